// A conversation that fills the context: nothing is lost; the next answer drops the oldest turns or begins anew.

import assert from "node:assert/strict";
import { accessible, fits } from "./axe.mjs";
import { answers, ask, nodes, ready, records, rest, set } from "./chat.mjs";
import { Server } from "./server.mjs";
import { downloaded, give, listed, openSidebar } from "./conversations.mjs";
import { ANSWERS, sentBy } from "./responses.mjs";

/** Tokens of the context of the server that these tests use. */
export const CONTEXT = 640;
export const start = () => Server.start(["--api-key", "test-key", "--backend", "sim", "--sim-preset", "fixed:1ms", "--max-model-len", String(CONTEXT)]);

const long = (name, words = 60) => `${name}${" word".repeat(words)}`;
const offer = (page) => page.waitForSelector(".overflow");
const questions = async (page) => (await page.locator(".msg.user .bubble").allInnerTexts()).map((text) => text.split(" ")[0]);
const dropped = async (page) => (await page.locator(".msg.user.dropped .bubble").allInnerTexts()).map((text) => text.split(" ")[0]);
const focusedId = (page) => page.evaluate(() => document.activeElement.id);

/** Opens the page and asks until a question no longer fits; gives its number and the requests. */
async function fill(page, address) {
  const sent = sentBy(page);
  await page.goto(address);
  await ready(page);
  await set(page, "system", "Be brief.");
  await set(page, "max_tokens", "8");
  for (let i = 1; ; i++) {
    await ask(page, long(`Q${i}`));
    await rest(page);
    if (await page.locator(".overflow").count()) return { last: i, sent };
  }
}

export async function dropTurns({ page, address, shot }) {
  const { last, sent } = await fill(page, address);
  assert.ok(last > 4, `${last} questions`);
  assert.equal(await page.inputValue("#question"), long(`Q${last}`), "the question is back");
  assert.equal((await questions(page)).length, last - 1);
  assert.equal((await nodes(page)).length, 1 + 2 * (last - 1), "none that was refused stays");
  assert.match(await page.locator(".overflow [role=alert]").innerText(), /does not fit into the context. It is back in the message field\.[^]*context length is 640/);
  await accessible(page, "a question that does not fit");
  await fits(page, "a question that does not fit");
  await shot("overflow");
  await page.reload();
  await ready(page);
  await offer(page);
  await page.waitForFunction(() => document.getElementById("question").value !== "");
  assert.equal(await page.inputValue("#question"), long(`Q${last}`), "a reload keeps it");

  // By keyboard, from the message field.
  await page.focus("#question");
  await page.keyboard.press("Shift+Tab");
  await page.keyboard.press("Shift+Tab");
  await page.keyboard.press("Shift+Tab");
  assert.equal(await page.evaluate(() => document.activeElement.dataset.act), "drop");
  await page.keyboard.press("Enter");
  await page.waitForFunction((n) => document.querySelectorAll(".msg.user").length === n, last);
  await rest(page);
  assert.equal(await page.locator(".overflow").count(), 0);
  assert.equal(await page.inputValue("#question"), "");
  assert.equal((await answers(page)).length, last);
  const gone = await dropped(page), { input } = sent.at(-1);
  assert.ok(gone.length >= 1 && gone.length < last - 1, `${gone}`);
  assert.match(await page.locator("#toast").innerText(), gone.length === 1 ? /The oldest turn is no longer sent/ : new RegExp(`The ${gone.length} oldest turns are no longer sent`));
  assert.deepEqual(input.slice(0, 2).map(({ role, content }) => [role, content.split(" ")[0]]), [["system", "Be"], ["user", `Q${gone.length + 1}`]]);
  const { usage } = (await nodes(page)).at(-1).meta;
  assert.ok(usage.prompt_tokens <= 0.75 * CONTEXT && usage.prompt_tokens > 0.75 * CONTEXT - 90, `as many as needed: ${usage.prompt_tokens} tokens stay`);
  assert.match(await page.locator("#gauge span").innerText(), new RegExp(`^${usage.total_tokens} of`));
  await page.evaluate(() => document.querySelector(".dropped-end").scrollIntoView({ block: "center" }));
  await accessible(page, "dropped turns");
  await fits(page, "dropped turns");
  await shot("dropped");

  // The next turn extends the session of the shortened branch; a reload keeps the decision.
  await ask(page, "short");
  await rest(page);
  assert.deepEqual(sent.at(-1).input.map(({ content }) => content), ["short"]);
  await page.reload();
  await ready(page);
  await page.waitForSelector(".dropped-end");
  assert.deepEqual(await dropped(page), gone);
  const [, backup] = await downloaded(page, async () => { await openSidebar(page); await page.click("[data-act=export-all]"); });
  await give(page, "backup.json", backup);
  await page.waitForFunction(() => document.querySelectorAll(".item").length === 2);
  assert.deepEqual(await dropped(page), gone, "so does a backup");
  await page.click(".top [data-do=new]");
  await page.waitForSelector(".welcome");
  await openSidebar(page);
  await page.click(".item .open");
  await page.waitForSelector(".dropped-end");
  await ask(page, "again");
  await rest(page);
  assert.equal(sent.at(-1).input[1].content.split(" ")[0], `Q${gone.length + 1}`, "a new session has the shortened branch");

  // More turns go when it is full again.
  for (let i = 0; !(await page.locator(".overflow").count()); i++) {
    await ask(page, long(`R${i}`));
    await rest(page);
  }
  await page.click("[data-act=drop]");
  await page.waitForSelector(".overflow", { state: "detached" });
  await rest(page);
  assert.ok((await dropped(page)).length > gone.length);
  assert.equal(await page.locator(".dropped-end").count(), 1);

  await page.click("[data-act=undrop]");
  assert.equal(await page.locator(".dropped").count(), 0, "all are sent again");
  await ask(page, "and now?");
  await offer(page);
  assert.equal(await page.inputValue("#question"), "and now?");
}

export async function beginAnew({ page, address }) {
  const { last, sent } = await fill(page, address);
  await page.click("[data-act=anew]");
  await page.waitForSelector(".welcome");
  assert.equal(await page.inputValue("#question"), long(`Q${last}`));
  if (await page.evaluate(() => matchMedia("(hover: hover)").matches)) assert.equal(await focusedId(page), "question");
  await page.focus("#question");
  await page.keyboard.press("Enter");
  await rest(page);
  assert.deepEqual(sent.at(-1).input.map(({ role }) => role), ["system", "user"]);
  assert.equal((await answers(page)).length, 1);
  await page.waitForFunction(() => document.querySelectorAll(".item").length === 2);
  assert.ok((await records(page)).every(({ overflow }) => overflow === null));
}

/** A first question that is too long is kept until it is shortened or discarded. */
export async function alone({ page, address, shot }) {
  const sent = sentBy(page);
  await page.goto(address);
  await ready(page);
  await set(page, "max_tokens", "8");
  await page.setInputFiles("#file", { name: "notes.txt", mimeType: "text/plain", buffer: Buffer.from("line\n".repeat(800)) });
  await page.waitForSelector("#files li");
  await page.fill("#question", "Summarize");
  await page.focus("#question");
  await page.keyboard.press("Enter");
  await offer(page);
  assert.match(await page.locator(".overflow").innerText(), /Shorten it/);
  assert.equal(await page.locator(".overflow button").count(), 0);
  assert.deepEqual([await page.inputValue("#question"), await page.locator("#files li").count(), await page.locator(".msg").count()], ["Summarize", 1, 0]);
  await accessible(page, "a first question that does not fit");
  await shot("overflow-alone");
  await openSidebar(page);
  await listed(page, ["Summarize"]);
  const [, backup] = await downloaded(page, () => page.click("[data-act=export-all]"));
  await page.reload();
  await offer(page);
  await page.waitForSelector("#files li");
  assert.equal(await page.inputValue("#question"), "Summarize", "a reload keeps it");

  await page.click("#files button");
  await page.focus("#question");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".msg.assistant");
  await rest(page);
  assert.equal(await page.locator(".overflow").count(), 0);
  assert.equal(sent.at(-1).input[0].content, "Summarize");

  // The backup has it, too; emptying the field discards it.
  await give(page, "backup.json", backup);
  await offer(page);
  await page.waitForSelector("#files li");
  assert.equal(await page.inputValue("#question"), "Summarize");
  await page.fill("#question", "");
  await page.click("#files button");
  await page.waitForSelector(".welcome");
  await page.waitForFunction(() => document.querySelectorAll(".item").length === 1);
}

/** An edit that does not fit is open again, above its old version; one draft does not overwrite another. */
export async function edited({ page, address }) {
  const { last, sent } = await fill(page, address);
  await page.fill("#question", "a draft");
  await page.locator(".msg.user").last().hover();
  await page.locator(".msg.user [data-act=edit]").last().click();
  const text = long("E", 150);
  await page.fill(".editing textarea", text);
  await page.keyboard.press("Enter");
  await offer(page);
  await rest(page);
  assert.deepEqual([await page.inputValue(".editing textarea"), await page.inputValue("#question")], [text, "a draft"]);
  assert.equal((await nodes(page)).length, 1 + 2 * (last - 1));
  assert.match(await page.locator(".overflow").innerText(), /back in its field/);
  assert.equal(await page.evaluate(() => document.activeElement.matches(".editing textarea")), true);
  await page.keyboard.press("Escape");
  await page.waitForSelector(".overflow", { state: "detached" });
  await page.locator(".msg.user").last().hover();
  await page.locator(".msg.user [data-act=edit]").last().click();
  await page.fill(".editing textarea", text);
  await page.keyboard.press("Enter");
  await offer(page);
  await rest(page);
  await page.click("[data-act=drop]");
  await page.waitForSelector(".overflow", { state: "detached" });
  await rest(page);
  assert.equal(sent.at(-1).input.at(-1).content, text);
  assert.equal(await page.locator(".editing").count(), 0);
  assert.equal(await page.locator(".msg.user .turn").textContent(), "‹2 / 2›");
  assert.ok((await dropped(page)).length >= 1);
  await page.click(".msg.user [data-act=back]");
  assert.equal(await page.locator(".dropped").count(), 0, "the old branch is as it was");
  assert.equal(await page.inputValue("#question"), "a draft");
}

/** An answer that was cut because the context is full is continued without the oldest turns. */
export async function continued({ page, address, shot }) {
  const { sent } = await fill(page, address);
  await page.fill("#question", "");
  await page.waitForSelector(".overflow", { state: "detached" });
  await set(page, "max_tokens", "");
  await ask(page, "on and on");
  await rest(page);
  const before = (await answers(page)).at(-1);
  await page.locator(".msg.assistant [data-act=continue]").last().click();
  await offer(page);
  await rest(page);
  assert.match(await page.locator(".overflow").innerText(), /no room to continue this answer/);
  assert.equal((await answers(page)).at(-1).trim(), before.trim(), "the answer stays");
  await accessible(page, "an answer that cannot be continued");
  await shot("overflow-continue");
  await set(page, "max_tokens", "8");
  await page.click("[data-act=drop]");
  await page.waitForSelector(".overflow", { state: "detached" });
  await rest(page);
  assert.equal(sent.at(-1).continue_final_message, true);
  assert.ok((await dropped(page)).length >= 1);
  assert.ok((await nodes(page)).at(-1).meta.usage.completion_tokens > 8);
}

/** If the shortened branch is refused, too, more turns go; an edit keeps the beginning of the branch. */
export async function more({ page, address }) {
  await fill(page, address);
  let refusals = 1;
  await page.route(ANSWERS, (route) => {
    if (!refusals--) return route.continue();
    return route.fulfill({ status: 400, contentType: "application/json", body: JSON.stringify({ error: { message: "the `pool` is small", code: "context_length_exceeded" } }) });
  });
  await page.click("[data-act=drop]");
  await page.waitForFunction(() => /the pool is small/.test(document.querySelector(".overflow")?.textContent));
  await rest(page);
  const refused = refusals;
  assert.deepEqual([refused, await page.locator(".dropped").count()], [0, 0]);
  await page.unroute(ANSWERS);
  const sent = sentBy(page), label = await page.locator("[data-act=drop]").innerText();
  await page.click("[data-act=drop]");
  await page.waitForSelector(".overflow", { state: "detached" });
  await rest(page);
  const gone = await dropped(page);
  assert.equal(label, "drop the oldest turn", "one more than before");
  assert.ok(gone.length >= 3, `${gone}`);
  assert.equal(sent.at(-1).input[1].content.split(" ")[0], `Q${gone.length + 1}`);
  await page.keyboard.press("ArrowUp");
  await page.fill(".editing textarea", "shorter");
  await page.keyboard.press("Enter");
  await rest(page);
  assert.deepEqual(await dropped(page), gone);
  assert.equal((await answers(page)).length, (await questions(page)).length);
}

/** What one tab may not send, another tab does not take into its field. */
export async function tabs({ page, address }) {
  const { last } = await fill(page, address);
  await page.fill("#question", "");
  await page.waitForSelector(".overflow", { state: "detached" });
  const tab = await page.context().newPage();
  await tab.goto(address);
  await ready(tab);
  await tab.click(".item .open");
  await tab.waitForSelector(".msg.assistant");
  await ask(page, long(`Q${last}`));
  await offer(page);
  await page.waitForTimeout(300);
  assert.deepEqual([await tab.inputValue("#question"), await tab.locator(".overflow").count(), (await questions(tab)).length], ["", 0, last - 1]);
  await page.click("[data-act=drop]");
  await page.waitForSelector(".dropped-end");
  await rest(page);
  await tab.waitForSelector(".dropped-end");
  assert.deepEqual(await dropped(tab), await dropped(page));
  await tab.close();
}

/** A question that is refused while another conversation is shown waits in its own. */
export async function elsewhere({ page, address }) {
  await page.goto(address);
  await ready(page);
  let release;
  const released = new Promise((done) => { release = done; });
  await page.route(ANSWERS, async (route) => {
    await released;
    await route.continue();
  });
  await ask(page, long("First", 900));
  await openSidebar(page);
  await page.waitForSelector(".item.busy");
  await page.click(".newchat");
  await page.fill("#question", "a draft");
  release();
  await page.waitForSelector(".item.busy", { state: "detached" });
  assert.equal(await page.inputValue("#question"), "a draft");
  await openSidebar(page);
  await page.click(".item .open");
  await offer(page);
  assert.equal(await page.inputValue("#question"), `${long("First", 900)}\n\na draft`);
}
