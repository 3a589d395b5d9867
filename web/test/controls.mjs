// Keys, focus, what a streaming answer leaves alone, and what the page refuses with a reason.

import assert from "node:assert/strict";
import { accessible } from "./axe.mjs";
import { answers, ask, nodes, ready, records, rest, set } from "./chat.mjs";
import { echo, give, listed, menu, openItem, openSidebar, said } from "./conversations.mjs";
import { chunk, eventsOf, mock, sse, unmock } from "./responses.mjs";

/** Mocks an answer of these deltas. Each call of the returned function sends one, and one more call ends the answer. */
async function steps(page, deltas) {
  await page.evaluate(([begun, ...left]) => {
    const { fetch } = globalThis, encoder = new TextEncoder();
    globalThis.fetch = (url, options) => {
      const { pathname } = new URL(url, location.href);
      if (pathname.startsWith("/v1/responses/")) return Promise.resolve(new Response("{}"));
      if (pathname !== "/v1/responses") return fetch(url, options);
      const body = new ReadableStream({
        start(stream) {
          stream.enqueue(encoder.encode(begun));
          globalThis.step = () => {
            stream.enqueue(encoder.encode(left.shift()));
            if (!left.length) stream.close();
          };
          options.signal.addEventListener("abort", () => { if (left.length) stream.error(options.signal.reason); });
        },
      });
      return Promise.resolve(new Response(body, { headers: { "content-type": "text/event-stream" } }));
    };
  }, eventsOf(...deltas.map((delta) => chunk(delta))));
  return () => page.evaluate(() => new Promise((drawn) => {
    globalThis.step();
    setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(drawn)), 30);
  }));
}

/** Starts `steps` and waits until the page has sent its question. */
async function begin(page, deltas) {
  const next = await steps(page, deltas);
  await ask(page, "go");
  await page.waitForFunction(() => globalThis.step);
  return next;
}

const act = (page) => page.evaluate(() => document.activeElement.dataset.act ?? document.activeElement.id ?? document.activeElement.tagName);
const menuOpen = (page) => page.evaluate(() => document.getElementById("item-menu").matches(":popover-open"));

/** Esc closes what is open, one thing at a time, before it stops an answer. */
export async function escape({ page, address }) {
  const isPhone = page.viewportSize().width < 600;
  await page.goto(address);
  await ready(page);
  await begin(page, [{ content: "one" }, { content: "two" }]);
  const busy = () => page.locator(".composer.busy").count();
  await openSidebar(page);
  await page.waitForSelector(".item .more");
  await page.locator(".item").hover();
  await page.click(".item .more");
  assert.equal(await menuOpen(page), true);
  await page.keyboard.press("Escape");
  assert.deepEqual([await menuOpen(page), await busy()], [false, 1], "the menu");
  assert.ok(await page.evaluate(() => document.activeElement.matches(".more")), "the focus is where the menu came from");
  await page.click(".item .more");
  await page.click(".item .more");
  assert.equal(await menuOpen(page), false, "a second click closes the menu");
  await page.click(".item .more");
  assert.equal(await menuOpen(page), true, "a third one opens it");
  await page.keyboard.press("Escape");
  if (isPhone) {
    await page.keyboard.press("Escape");
    assert.deepEqual([await page.locator("#sidebar").isVisible(), await busy()], [false, 1], "the drawer");
  } else {
    await page.keyboard.press("Control+k");
    await page.keyboard.type("zzz");
    await page.keyboard.press("Escape");
    assert.deepEqual([await page.inputValue("#sidebar input[type=search]"), await busy()], ["", 1], "the search");
  }
  await page.keyboard.press("Escape");
  await rest(page);
  assert.match(await page.locator(".msg.assistant .meta").innerText(), /stopped/);
  const prevented = await page.evaluate(() => !document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true, cancelable: true })));
  assert.equal(prevented, false, "Esc without effect is left to the browser");
}

export async function focus({ page, address }) {
  await echo(page);
  await page.goto(address);
  await ready(page);
  await ask(page, "One");
  await rest(page);
  await page.focus(".msg.assistant [data-act=again]");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".msg.assistant .turn");
  await rest(page);
  assert.equal(await act(page), "again");
  for (const name of ["back", "on", "on"]) {
    await page.focus(`.msg.assistant [data-act=${name}]`);
    await page.keyboard.press("Enter");
    assert.equal(await act(page), name);
  }
  for (const key of ["Enter", "Escape"]) {
    await menu(page, "One", "rename");
    await page.keyboard.press(key);
    await page.waitForFunction(() => document.activeElement.matches(".more"));
  }
}

/** What a reader has selected, scrolled, opened or copied stays while the answer grows, and when it ends. */
export async function steady({ page, address }) {
  await page.goto(address);
  await ready(page);
  const text = `A first paragraph.\n\n\`\`\`\n${"long ".repeat(120)}\n\`\`\`\n\nThe formula $x^2$ and`;
  const next = await begin(page, [{ reasoning_content: "Hm." }, { content: text }, { content: " more" }, { content: " words.\n\nEnd" }, { content: "." }]);
  await next();
  await next();
  await page.evaluate(() => {
    const answer = document.querySelector(".msg.assistant");
    getSelection().selectAllChildren(answer.querySelector(".text p"));
    answer.querySelector("pre").scrollLeft = 200;
    answer.querySelector("details").open = true;
    answer.querySelector("[data-act=copy-code]").click();
    answer.querySelector("pre").mark = answer.querySelector(".text p").mark = true;
  });
  await page.waitForFunction(() => document.querySelector("[data-act=copy-code]").textContent !== "copy");
  const label = await page.locator("[data-act=copy-code]").textContent();
  const check = async (when) => {
    const seen = await page.evaluate(() => {
      const answer = document.querySelector(".msg.assistant");
      return [String(getSelection()).trim(), answer.querySelector("pre").scrollLeft, answer.querySelector("details").open, answer.querySelector("[data-act=copy-code]").textContent, answer.querySelector("pre").mark, answer.querySelector(".text p").mark];
    });
    assert.deepEqual(seen, ["A first paragraph.", 200, true, label, true, true], when);
  };
  await next();
  await check("while it grows");
  await next();
  await next();
  await check("a new paragraph");
  await next();
  await rest(page);
  await check("when it ends");
  assert.match((await answers(page))[0], /more words\.\s+End\.$/);
}

/** The page says why it stops after many rounds of tools, and continues on request. */
export async function rounds({ page, address, shot }) {
  let n = 0;
  await mock(page, (route) => {
    const call = chunk({ tool_calls: [{ index: 0, id: `c${n++}`, type: "function", function: { name: "calculator", arguments: '{"expression": "1+1"}' } }] });
    return route.fulfill(n <= 8 ? sse(call, chunk({}, { finish_reason: "tool_calls" })) : sse(chunk({ content: "Two." }), chunk({}, { finish_reason: "stop" })));
  });
  await page.goto(address);
  await ready(page);
  await set(page, "calculator", true);
  await ask(page, "Loop");
  await rest(page);
  assert.match(await page.locator(".msg.assistant").last().innerText(), /stopped after 8 answers in a row/);
  await accessible(page, "many rounds of tools");
  await shot("rounds");
  await page.click("[data-act=resume]");
  await page.waitForFunction(() => document.body.textContent.includes("Two."));
  await rest(page);
  assert.equal(await page.locator("[data-act=resume]").count(), 0);
}

/** The result of a call is given directly behind it, or no longer. */
export async function lateResult({ page, address }) {
  let n = 0;
  await mock(page, (route) => {
    const call = chunk({ tool_calls: [{ index: 0, id: "c0", type: "function", function: { name: "weather", arguments: "{}" } }] });
    return route.fulfill(n++ ? sse(chunk({ content: "Fine." }), chunk({}, { finish_reason: "stop" })) : sse(call, chunk({}, { finish_reason: "tool_calls" })));
  });
  await page.goto(address);
  await ready(page);
  await ask(page, "Weather?");
  await rest(page);
  assert.equal(await page.locator(".asks form").count(), 1);
  await ask(page, "Never mind.");
  await rest(page);
  assert.equal(await page.locator(".asks form").count(), 0);
  assert.match(await page.locator(".call").innerText(), /No result was given before the next message/);
}

/** An edit outlasts a look at another conversation; a paste keeps its text; files alone give a title. */
export async function drafts({ page, address }) {
  await echo(page);
  await page.goto(address);
  await ready(page);
  await ask(page, "First");
  await rest(page);
  await openSidebar(page);
  await page.click(".newchat");
  await page.setInputFiles("#file", { name: "notes.txt", mimeType: "text/plain", buffer: Buffer.from("x") });
  await page.waitForSelector("#files li");
  await page.click("#send");
  await rest(page);
  await openSidebar(page);
  await listed(page, ["notes.txt", "First"]);
  await openItem(page, "First");
  await page.locator(".msg.user").hover();
  await page.click("[data-act=edit]");
  await page.fill(".editing textarea", "half an edit");
  await openItem(page, "notes.txt");
  assert.equal(await page.locator(".editing").count(), 0);
  await openItem(page, "First");
  assert.equal(await page.inputValue(".editing textarea"), "half an edit");
  await page.click(".editing .strong");
  await rest(page);
  assert.deepEqual(await answers(page), ["HALF AN EDIT"]);
  const paste = (types) => page.evaluate((types) => {
    const data = new DataTransfer();
    data.items.add(new File(["x"], "a", { type: types[0] }));
    if (types[1]) data.setData("text/plain", "words");
    return document.getElementById("question").dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
  }, types);
  assert.equal(await paste(["image/png", true]), true, "the browser inserts the text");
  assert.equal(await paste(["text/plain"]), false, "a file is attached");
  await page.waitForSelector("#files li");
}

/** A reset of the settings is undone in the conversation that it came from. */
export async function resetElsewhere({ page, address }) {
  await echo(page);
  await page.goto(address);
  await ready(page);
  await ask(page, "First");
  await rest(page);
  await page.click("[data-do=settings]");
  await page.fill("[name=system]", "Be brief.");
  await page.click("[data-act=reset]");
  await openSidebar(page);
  await page.click(".newchat");
  await ask(page, "Second");
  await rest(page);
  await page.click("#toast button");
  await page.waitForTimeout(300);
  const kept = await records(page);
  assert.deepEqual(Object.fromEntries(kept.map(({ title, system }) => [title, system])), { First: "Be brief.", Second: "" });
}

/** A key that cannot be sent is refused with a reason, and a question is sent again with the right key. */
export async function unsendable({ page, address, shot }) {
  await page.addInitScript(() => { if (!sessionStorage.getItem("kvasir-key")) sessionStorage.setItem("kvasir-key", "ключ"); });
  await echo(page);
  await page.goto(address);
  await page.waitForSelector("#ask-key[open]");
  assert.match(await page.locator("#key-wrong").innerText(), /cannot be sent/);
  await page.fill("#ask-key input", "kłódka");
  await page.keyboard.press("Enter");
  assert.match(await page.locator("#key-wrong").innerText(), /cannot have “ł”/);
  await accessible(page, "a key that cannot be sent");
  await shot("key-unsendable");
  assert.equal(await page.locator("#offline").isVisible(), false);
  await page.fill("#ask-key input", "test-key");
  await page.keyboard.press("Enter");
  await ready(page);
  await unmock(page);
  await set(page, "max_tokens", "4");
  await page.evaluate(() => sessionStorage.setItem("kvasir-key", "stale"));
  await ask(page, "Hello");
  await page.waitForSelector("#ask-key[open]");
  await page.fill("#ask-key input", "test-key");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".msg.assistant .meta:not(:empty)");
  assert.equal((await answers(page)).length, 1, "the question is sent again");
  assert.equal((await nodes(page)).length, 3);
}

export async function refusals({ page, address }) {
  await echo(page);
  await page.goto(address);
  await ready(page);
  await page.click("[data-do=settings]");
  const tool = (name, parameters) => ({ type: "function", function: { name, parameters } });
  for (const [tools, wrong] of [[[tool("a", [])], /parameters.*must be an object/], [[tool("a", {}), tool("a", {})], /name a of another tool/], [[tool("clock", {})], /page’s own tool/], [[tool("a", {}), tool("b", {})], /^$/]]) {
    await page.fill("[name=tools]", JSON.stringify(tools));
    assert.match(await page.locator("#wrong-tools").textContent(), wrong);
  }
  await page.fill("[name=max_tokens]", "4097");
  assert.match(await page.locator("#wrong-max_tokens").innerText(), /from 1 to 4,096/);
  await page.fill("[name=max_tokens]", "4096");
  assert.equal(await page.locator("#wrong-max_tokens").textContent(), "");
  await page.keyboard.press("Escape");

  await openSidebar(page);
  await page.click("[data-act=delete-all]");
  await said(page, /no conversations to delete/);
  assert.equal(await page.locator("#toast button").isVisible(), false);
  for (const [text, why] of [["{", /is not valid JSON$/], ['{"conversations": []}', /holds no conversations/], ['{"messages": [null]}', /a message is no object/], ['{"messages": [{}]}', /has no role/], ['{"conversations": [null]}', /has no messages/]]) {
    await give(page, "bad.json", text);
    await said(page, why);
  }
  for (const text of ["One", "Two", "Three"]) {
    await openSidebar(page);
    await page.click(".newchat");
    await ask(page, text);
    await rest(page);
  }
  for (const title of ["One", "Two"]) await menu(page, title, "delete");
  await said(page, /Deleted 2 conversations/);
  await page.click("#toast button");
  await listed(page, ["Three", "Two", "One"]);
  await page.click(".tabs a[href='#engine']", { force: true }).catch(() => {});
  await page.evaluate(() => { location.hash = "#engine"; document.activeElement.blur(); });
  await page.keyboard.press("?");
  await page.waitForSelector("#shortcuts[open]");
}

/** With the system's colors, data keeps its own, and what is chosen has a border. */
export async function contrast({ page, address, shot }) {
  await page.emulateMedia({ forcedColors: "active" });
  await echo(page);
  await page.goto(address);
  await ready(page);
  await ask(page, "One");
  await rest(page);
  await shot("contrast");
  const border = (selector) => page.locator(selector).evaluate((element) => { const { borderTopWidth, borderTopColor } = getComputedStyle(element); return [borderTopWidth, borderTopColor]; });
  assert.equal((await border(".bubble"))[0], "1px");
  assert.notEqual((await border(".tabs a[aria-current]"))[1], (await border(".tabs a:not([aria-current])"))[1]);
  await page.click("[data-do=settings]");
  assert.notEqual((await border("[data-preset=model]"))[1], (await border("[data-preset=precise]"))[1]);
  await shot("contrast-settings");
}
