// Conversations in the sidebar: kept over reloads, searched, renamed, deleted, exported, imported.

import assert from "node:assert/strict";
import { readFile, writeFile, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { accessible, fits } from "./axe.mjs";
import { answers, ask, ready, records, rest, set } from "./chat.mjs";
import { kvasir } from "./server.mjs";
import { chunk, mock, sse } from "./responses.mjs";

/** Answers each question with its own text in capitals. */
export const echo = (page) => mock(page, (route) => {
  const { content } = route.request().postDataJSON().input.at(-1);
  return route.fulfill(sse(chunk({ content: content.toUpperCase() }), chunk({}, { finish_reason: "stop" }), { choices: [], usage: { prompt_tokens: 40, completion_tokens: 8, total_tokens: 48 } }));
});

const isPhone = (page) => page.viewportSize().width < 600;

/** Opens the sidebar where it is a drawer. */
export async function openSidebar(page) {
  if (!(await page.locator("#sidebar").isVisible())) await page.click("[data-do=sidebar]");
}

async function newChat(page) {
  await openSidebar(page);
  await page.click(".newchat");
}

const titles = async (page) => {
  await openSidebar(page);
  return page.locator(".item .open").allInnerTexts();
};

export async function openItem(page, title) {
  await openSidebar(page);
  await page.click(`.item .open:text-is("${title}")`);
  await page.waitForFunction((title) => document.querySelector(".item [aria-current]")?.title === title, title);
}

export async function menu(page, title, act) {
  await openSidebar(page);
  await page.locator(".item", { hasText: title }).hover();
  await page.locator(".item", { hasText: title }).locator(".more").click();
  await page.click(`#item-menu [data-act=${act}]`);
}

async function two(page) {
  await ask(page, "First question");
  await rest(page);
  await newChat(page);
  await ask(page, "Second question about whales");
  await rest(page);
}

/** Waits until the list shows these titles. */
export const listed = (page, expected) => page.waitForFunction((wanted) => JSON.stringify([...document.querySelectorAll(".item .open")].map((item) => item.title)) === wanted, JSON.stringify(expected));

export async function kept({ page, address, shot }) {
  await echo(page);
  await page.goto(address);
  await ready(page);
  await two(page);
  await openSidebar(page);
  await listed(page, ["Second question about whales", "First question"]);
  await accessible(page, "sidebar");
  await shot("sidebar");
  await openItem(page, "First question");
  assert.deepEqual(await answers(page), ["FIRST QUESTION"]);
  if (isPhone(page)) assert.equal(await page.locator("#sidebar").isVisible(), false, "a choice closes the drawer");
  await page.reload();
  await ready(page);
  await page.waitForSelector(".msg");
  assert.deepEqual(await answers(page), ["FIRST QUESTION"], "a reload shows the same conversation");
  assert.deepEqual((await titles(page)).length, 2);
  // A new tab has the list and a conversation of its own.
  const tab = await page.context().newPage();
  await tab.goto(address);
  await ready(tab);
  assert.equal(await tab.locator(".msg").count(), 0);
  assert.equal((await titles(tab)).length, 2);
  await tab.close();
}

export async function searched({ page, address, shot }) {
  await echo(page);
  await page.goto(address);
  await ready(page);
  await two(page);
  await openSidebar(page);
  await page.fill("#sidebar input[type=search]", "WHALES second");
  await listed(page, ["Second question about whales"]);
  await page.fill("#sidebar input[type=search]", "nowhere");
  await page.waitForSelector(".nothing");
  await accessible(page, "no conversation found");
  await shot("sidebar-nothing");
  await page.fill("#sidebar input[type=search]", "first question");
  await listed(page, ["First question"]);
}

export async function renamed({ page, address, shot }) {
  await echo(page);
  await page.goto(address);
  await ready(page);
  await two(page);
  await openSidebar(page);
  await page.locator(".item").first().hover();
  await page.locator(".item .more").first().click();
  await accessible(page, "menu of a conversation");
  await shot("sidebar-menu");
  await page.click("#item-menu [data-act=rename]");
  await accessible(page, "title under edit");
  await page.fill(".item input", "<b>Whales</b>");
  await page.keyboard.press("Enter");
  await listed(page, ["<b>Whales</b>", "First question"]);
  await menu(page, "First question", "rename");
  await page.fill(".item input", "dropped");
  await page.keyboard.press("Escape");
  await listed(page, ["<b>Whales</b>", "First question"]);
  await page.reload();
  await ready(page);
  await page.waitForSelector(".msg");
  assert.deepEqual(await titles(page), ["<b>Whales</b>", "First question"]);
}

export async function deleted({ page, address, shot }) {
  await echo(page);
  await page.goto(address);
  await ready(page);
  await two(page);
  await menu(page, "whales", "delete");
  await listed(page, ["First question"]);
  assert.equal(await page.locator(".msg").count(), 0, "the shown conversation is gone");
  await accessible(page, "undo of a deletion");
  await shot("deleted");
  await page.click("#toast button");
  await listed(page, ["Second question about whales", "First question"]);
  await page.waitForSelector(".msg.assistant");
  assert.deepEqual(await answers(page), ["SECOND QUESTION ABOUT WHALES"], "undo shows it again");
  await openSidebar(page);
  await page.click("[data-act=delete-all]");
  await page.waitForSelector("#sidebar .nothing");
  assert.deepEqual(await records(page), []);
  await page.click("#toast button");
  await listed(page, ["Second question about whales", "First question"]);
}

/** Waits until the message at the lower edge has this text. */
export const said = (page, text) => page.waitForFunction(([source]) => !document.getElementById("toast").hidden && new RegExp(source).test(document.getElementById("toast").textContent), [text.source]);

/** What a click lets the browser store, as text. */
export async function downloaded(page, act) {
  const [download] = await Promise.all([page.waitForEvent("download"), act()]);
  return [download.suggestedFilename(), await readFile(await download.path(), "utf8")];
}

export async function give(page, name, text) {
  await page.setInputFiles("#sidebar input[type=file]", { name, mimeType: "text/plain", buffer: Buffer.from(text) });
}

/** JSON is the file that `kvasir chat` writes and reads. */
export async function exported({ page, address, shot }) {
  await echo(page);
  await page.goto(address);
  await ready(page);
  await ask(page, "First question");
  await rest(page);
  await ask(page, "## User\n\nnot a heading");
  await rest(page);
  const [jsonName, json] = await downloaded(page, () => menu(page, "First question", "json"));
  assert.equal(jsonName, "first-question.json");
  const expected = [["user", "First question"], ["assistant", "FIRST QUESTION"], ["user", "## User\n\nnot a heading"], ["assistant", "## USER\n\nNOT A HEADING"]];
  assert.deepEqual(JSON.parse(json).messages.map(({ role, content }) => [role, content]), expected);
  assert.deepEqual(Object.keys(JSON.parse(json)), ["messages"]);
  const folder = await mkdtemp(join(tmpdir(), "kvasir-page-"));
  try {
    // The terminal reads the page's file and writes it again; the page reads that.
    await writeFile(join(folder, "page.json"), json);
    kvasir.input(`/load ${join(folder, "page.json")}\n/save ${join(folder, "chat.json")}\n/quit\n`, "chat");
    assert.deepEqual(JSON.parse(await readFile(join(folder, "chat.json"), "utf8")), JSON.parse(json));
  } finally {
    await rm(folder, { recursive: true });
  }
  const [markdownName, markdown] = await downloaded(page, () => menu(page, "First question", "markdown"));
  assert.equal(markdownName, "first-question.md");
  assert.ok(markdown.startsWith("# First question\n\n## User\n\nFirst question\n\n## Assistant\n\nFIRST QUESTION\n"), markdown);
  const [, backup] = await downloaded(page, async () => { await openSidebar(page); await page.click("[data-act=export-all]"); });

  const shown = async () => (await records(page)).sort((a, b) => b.updated - a.updated)[0].tree.nodes.slice(1).map(({ message }) => [message.role, message.content]);
  for (const [name, text] of [["a.json", json], ["b.md", markdown], ["c.json", backup]]) {
    const before = (await records(page)).length;
    await openSidebar(page);
    await give(page, name, text);
    await page.waitForFunction(() => !document.getElementById("toast").hidden && /Imported/.test(document.getElementById("toast").textContent));
    await page.click("body", { position: { x: 5, y: 300 }, force: true }).catch(() => {});
    assert.equal((await records(page)).length, before + 1, name);
    assert.deepEqual(await shown(), expected, name);
    await page.evaluate(() => { document.getElementById("toast").hidden = true; });
  }
  await openSidebar(page);
  for (const [name, text] of [["bad.json", "{"], ["bad.json", "{}"], ["bad.json", '{"messages": [{"role": "king", "content": "x"}]}'], ["bad.md", "# Title"], ["bad.json", '{"conversations": [{"tree": {"last": 1, "nodes": [{"id": 0, "parent": null, "children": [0], "chosen": 0}]}}]}'], ["bad.json", '{"conversations": [{}]}']]) {
    const before = (await records(page)).length;
    await give(page, name, text);
    await page.waitForFunction((start) => !document.getElementById("toast").hidden && document.getElementById("toast").textContent.startsWith(start), `${name}: `);
    assert.equal((await records(page)).length, before, text);
    await page.evaluate(() => { document.getElementById("toast").hidden = true; });
  }
  await fits(page, "import");
  await shot("imported");
}

/** Another conversation is opened while an answer is made. */
export async function beside({ page, address, shot }) {
  await page.goto(address);
  await ready(page);
  await ask(page, "Say something long.");
  await page.waitForFunction(() => document.querySelector(".msg.assistant .text")?.textContent.length > 3);
  await newChat(page);
  await page.waitForSelector(".welcome");
  await openSidebar(page);
  await page.waitForSelector(".item.busy");
  await accessible(page, "an answer is made in another conversation");
  await shot("beside");
  const length = async () => (await records(page))[0].tree.nodes.at(-1).message.content.length;
  const before = await length();
  await page.waitForFunction((length) => new Promise((done) => {
    const request = indexedDB.open("kvasir");
    request.onsuccess = () => { request.result.transaction("conversations").objectStore("conversations").getAll().onsuccess = (e) => { request.result.close(); done(e.target.result[0].tree.nodes.at(-1).message.content.length > length); }; };
  }), before);
  await openItem(page, "Say something long.");
  await page.waitForSelector(".composer.busy");
  await page.keyboard.press("Escape");
  await rest(page);
  assert.match(await page.locator(".msg.assistant .meta").innerText(), /stopped/);
}
