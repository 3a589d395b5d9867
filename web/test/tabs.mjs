// Several tabs on the same conversations, and storage that the browser cuts, fills or blocks.

import assert from "node:assert/strict";
import { accessible } from "./axe.mjs";
import { answers, ask, nodes, ready, records, rest, set } from "./chat.mjs";
import { keepResponses, matchesServer } from "./link.mjs";
import { downloaded, echo, give, listed, menu, openItem, openSidebar, said } from "./conversations.mjs";
import { chunk, mock, sse, unmock } from "./responses.mjs";

/** Waits until these questions are shown. */
const asked = (page, expected) => page.waitForFunction((wanted) => JSON.stringify([...document.querySelectorAll(".msg.user .bubble")].map(({ innerText }) => innerText)) === wanted, JSON.stringify(expected));

/** Waits until the last answer has more than this many characters. */
const grown = (page, length) => page.waitForFunction((length) => [...document.querySelectorAll(".msg.assistant .text")].at(-1)?.textContent.length > length, length);

async function open(page, address) {
  const tab = await page.context().newPage();
  await tab.goto(address);
  await ready(tab);
  return tab;
}

/** Requests of the chat wait for ever, or until `release()`. */
async function hang(page) {
  let release;
  const released = new Promise((done) => { release = done; });
  await mock(page, async (route) => {
    await released;
    await route.fulfill(sse(chunk({ content: "Late." }), chunk({}, { finish_reason: "stop" }))).catch(() => {});
  });
  return release;
}

/** A record that is read while the first token is awaited is whole, and so is one that an older page tore. */
export async function torn({ page, address }) {
  await echo(page);
  await page.goto(address);
  await ready(page);
  await ask(page, "Precious");
  await rest(page);
  await unmock(page);
  await hang(page);
  await ask(page, "A slow question");
  await page.waitForFunction(() => document.querySelectorAll(".msg.user").length === 2);
  await page.waitForTimeout(300);
  const kept = await nodes(page), ids = new Set(kept.map(({ id }) => id));
  assert.ok(kept.every(({ children }) => children.every((id) => ids.has(id))), "every child that is named is kept");
  const [, backup] = await downloaded(page, async () => { await openSidebar(page); await page.click("[data-act=export-all]"); });
  await give(page, "backup.json", backup);
  await said(page, /Imported “Precious”\./);

  // One bad record does not keep the others out.
  const { conversations } = JSON.parse(backup);
  const broken = structuredClone(conversations[0]);
  broken.tree.nodes.at(-1).children.push(broken.tree.last + 5);
  await give(page, "some.json", JSON.stringify({ conversations: [broken, { title: "no tree" }, null] }));
  await said(page, /Imported “Precious”\. 2 damaged conversations were left out\./);
  assert.deepEqual((await answers(page)).slice(0, 1), ["PRECIOUS"], "links to lost messages are dropped");

  // The browser's record is damaged: the page says so.
  await page.evaluate(() => new Promise((done) => {
    const request = indexedDB.open("kvasir");
    request.onsuccess = () => {
      const transaction = request.result.transaction("conversations", "readwrite");
      transaction.objectStore("conversations").put({ id: "bad", title: "Damaged", created: 1, updated: 1, tree: { last: 0, nodes: [{ id: 1 }] } });
      transaction.oncomplete = () => { request.result.close(); done(); };
    };
  }));
  await page.reload();
  await ready(page);
  await openSidebar(page);
  await page.click('.item .open:text-is("Damaged")');
  await said(page, /damaged/);
}

/** What one tab asks another shows, while the answer grows, and says that it is written there. */
export async function shared({ page, address, shot }) {
  await page.goto(address);
  await ready(page);
  await set(page, "max_tokens", "4");
  await ask(page, "start");
  await rest(page);
  const other = await open(page, address);
  await openItem(other, "start");
  await set(page, "max_tokens", "40");
  await ask(page, "a long one");
  await other.waitForSelector(".elsewhere");
  assert.equal(await other.locator(".welcome").count(), 0);
  await asked(other, ["start", "a long one"]);
  await grown(other, 10);
  await accessible(other, "an answer in another tab");
  await shot("elsewhere");

  // Both ask at once, and nothing is lost; a title that one gives stays.
  await set(other, "max_tokens", "3");
  await ask(other, "from the other tab");
  await menu(other, "start", "rename");
  await other.fill(".item input", "Both");
  await other.keyboard.press("Enter");
  await rest(other);
  await rest(page);
  await other.waitForSelector(".elsewhere", { state: "detached" });
  for (const tab of [page, other]) await asked(tab, ["start", "a long one", "from the other tab"]);
  const [{ title, tree }] = await records(page);
  assert.equal(title, "Both");
  assert.equal(tree.nodes.length, 7);
  const long = tree.nodes.find(({ message }) => message?.content === "a long one"), answer = tree.nodes.find(({ parent }) => parent === long.id);
  assert.equal(answer.meta.usage.completion_tokens, 40, "the whole answer is kept, not the part that the other tab knew");
  assert.equal(answer.meta.stopped, undefined);

  // A conversation that was only exported is read again when it is opened.
  const third = await open(page, address);
  await downloaded(third, () => menu(third, "Both", "json"));
  await set(page, "max_tokens", "3");
  await ask(page, "after the export");
  await rest(page);
  await openItem(third, "Both");
  await asked(third, ["start", "a long one", "from the other tab", "after the export"]);

  // Deleted in one tab, it is left in the others.
  await menu(other, "Both", "delete");
  await page.waitForSelector(".welcome");
  await third.waitForSelector(".welcome");
  await page.waitForTimeout(300);
  assert.deepEqual(await records(page), []);
  await other.close();
  await third.close();
}

/** The answer of a closed tab is resumed by a tab that shows it at that time or later. */
export async function leftTab({ page, address, shot }) {
  await page.goto(address);
  await ready(page);
  await keepResponses(page);
  for (const [question, isShown] of [["a long one", true], ["another long one", false]]) {
    const other = await open(page, address);
    // Eight seconds: on a busy machine the tab must be closed before the end.
    await set(other, "max_tokens", "80");
    await ask(other, question);
    await openSidebar(page);
    await page.waitForSelector(".item.busy");
    if (isShown) {
      await openItem(page, question);
      await page.waitForSelector(".elsewhere");
    }
    await grown(other, 10);
    await other.close();
    if (!isShown) await openItem(page, question);
    await page.waitForSelector(".composer.busy");
    assert.equal(await page.locator(".elsewhere").count(), 0);
    await shot("picked-up-from-tab");
    await rest(page);
    await page.waitForSelector(".msg.assistant .meta");
    await matchesServer(page, 80);
  }
}

/** If two tabs stream one answer to its end, only the first may run its tool calls. */
export async function ended({ page, address }) {
  await page.goto(address);
  await ready(page);
  const ends = await page.evaluate(async () => {
    const [{ Conversations }, { Conversation }] = await Promise.all([import("/page/conversations.js"), import("/page/conversation.js")]);
    const own = new Conversation(), conversations = new Conversations(), { tree } = own;
    const node = tree.add(tree.add(0, { role: "user", content: "Hi" }).id, { role: "assistant", content: "" });
    node.meta.response = { id: "resp_x", after: 3, before: 0 };
    await conversations.save(own);
    const others = [own, Conversation.from(structuredClone(own.record()))];
    // A write that is queued behind the last event does not count as the end.
    conversations.save(own, { quiet: true });
    return Promise.all(others.map((conversation) => conversations.end(conversation, conversation.tree.nodes.get(node.id))));
  });
  assert.deepEqual(ends, [true, false]);
}

/** Waits until the server has this many sessions of the key. */
async function sessions(page, count) {
  const found = await page.evaluate(async (count) => {
    const headers = { Authorization: `Bearer ${sessionStorage.getItem("kvasir-key")}` };
    let data;
    for (let i = 0; i < 100; i++) {
      ({ data } = await (await fetch("/v1/sessions", { headers })).json());
      if (data.length === count) break;
      await new Promise((done) => setTimeout(done, 50));
    }
    return data.length;
  }, count);
  assert.equal(found, count, "sessions of the server");
}

/** A tab that is closed or loaded again ends its sessions, also while it answers; later questions begin a new one. */
export async function closedTab({ page, address }) {
  await page.goto(address);
  await ready(page);
  await sessions(page, 0);
  const other = await open(page, address);
  await set(other, "max_tokens", "3");
  await ask(other, "one");
  await other.waitForSelector(".msg.assistant .meta");
  await sessions(page, 1);
  await other.reload();
  await ready(other);
  await sessions(page, 0);
  // The stored record named the ended session; a request for it would be refused.
  const refused = [];
  other.on("response", (response) => { if (response.status() >= 400) refused.push(response.url()); });
  await ask(other, "two");
  await other.locator(".msg.assistant .meta").nth(1).waitFor();
  assert.deepEqual(refused, []);
  await sessions(page, 1);
  await other.close();
  await sessions(page, 0);
  const third = await open(page, address);
  await set(third, "max_tokens", "2000");
  await ask(third, "a long one");
  await third.waitForFunction(() => [...document.querySelectorAll(".msg.assistant .text")].at(-1)?.textContent.length > 3);
  await sessions(page, 1);
  await third.close();
  await sessions(page, 0);
}

export async function quota({ page, address }) {
  await echo(page);
  await page.goto(address);
  await ready(page);
  const browser = await page.context().newCDPSession(page);
  await browser.send("Storage.overrideQuotaForOrigin", { origin: new URL(address).origin, quotaSize: 1 });
  await ask(page, `Will this be kept? ${"z".repeat(3000)}`);
  await rest(page);
  await said(page, /no room for this conversation/);
  assert.deepEqual(await records(page), []);
}

/** The site's data is cleared while the page is open: it says so, and keeps what it shows. */
export async function cleared({ page, address }) {
  await echo(page);
  await page.goto(address);
  await ready(page);
  await ask(page, "First");
  await rest(page);
  const browser = await page.context().newCDPSession(page);
  await browser.send("Storage.clearDataForOrigin", { origin: new URL(address).origin, storageTypes: "indexeddb" });
  await said(page, /data of this site was cleared/);
  await ask(page, "Second");
  await rest(page);
  await listed(page, ["First"]);
  assert.equal((await nodes(page)).length, 5);
}

/** Without any storage the page works for as long as it is open. */
export async function blocked({ page, address }) {
  await page.addInitScript(() => {
    const denied = { get() { throw new DOMException("denied", "SecurityError"); } };
    for (const name of ["localStorage", "sessionStorage", "indexedDB"]) Object.defineProperty(window, name, denied);
  });
  await echo(page);
  await page.goto(address);
  await page.waitForSelector("#ask-key[open]");
  await page.fill("#ask-key input", "test-key");
  await page.keyboard.press("Enter");
  await ready(page);
  await page.click("[data-do=settings]");
  await page.fill("[name=temperature]", "900");
  assert.match(await page.locator("#wrong-temperature").innerText(), /from 0 to 100/);
  await page.keyboard.press("Escape");
  await ask(page, "Works?");
  await rest(page);
  await ask(page, "Still?");
  await rest(page);
  assert.deepEqual(await answers(page), ["WORKS?", "STILL?"]);
  await listed(page, ["Works?"]);
}

/** A full `localStorage` is reported, and the field is checked all the same. */
export async function fullSettings({ page, address }) {
  await page.addInitScript(() => { for (let n = 1 << 22; n; n >>= 1) try { localStorage.setItem(`x${n}`, "y".repeat(n)); } catch { /* full */ } });
  await page.goto(address);
  await ready(page);
  await page.click("[data-do=settings]");
  await page.fill("[name=temperature]", "900");
  assert.match(await page.locator("#wrong-temperature").innerText(), /from 0 to 100/);
  assert.match(await page.locator("#toast span").textContent(), /does not keep these settings/);
}

/** A browser has six connections to a server: the step stream takes one only while it is seen. */
export async function connections({ page, address }) {
  const streams = new Set();
  page.on("request", (request) => { if (request.url().endsWith("/v1/engine/steps")) streams.add(request); });
  page.on("requestfailed", (request) => streams.delete(request));
  page.on("requestfinished", (request) => streams.delete(request));
  const count = async (n, why) => {
    for (let i = 0; i < 100 && streams.size !== n; i++) await page.waitForTimeout(50);
    assert.equal(streams.size, n, why);
  };
  await page.goto(address);
  await page.waitForFunction(() => document.getElementById("pulse").textContent === "connected");
  await page.waitForTimeout(300);
  await count(0, "the chat needs no steps");
  await page.click(".tabs a[href='#engine']");
  await count(1, "the engine's tab follows the steps");
  await page.waitForFunction(() => document.getElementById("pulse").textContent === "idle");
  const hide = (hidden) => page.evaluate((hidden) => {
    Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
  }, hidden);
  await hide(true);
  await count(0, "a hidden page follows no steps");
  await hide(false);
  await count(1, "a page that is seen again follows them");
  await page.click(".tabs a[href='#chat']");
  await count(0, "the chat's tab closes the stream");
  const tabs = [];
  for (let i = 0; i < 7; i++) tabs.push(await open(page, address));
  await set(tabs.at(-1), "max_tokens", "4");
  await ask(tabs.at(-1), "hi");
  await tabs.at(-1).waitForSelector(".composer.busy", { state: "attached" }).catch(() => {});
  await rest(tabs.at(-1));
  assert.equal((await answers(tabs.at(-1))).length, 1);
  for (const tab of tabs) {
    assert.equal(await tab.locator("#offline").isVisible(), false);
    await tab.close();
  }
}
