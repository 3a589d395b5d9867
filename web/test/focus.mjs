// The message field has the focus when nothing else needs it, and takes what is typed elsewhere.

import assert from "node:assert/strict";
import { answers, ask, ready, rest } from "./chat.mjs";
import { echo, listed, openItem, openSidebar, said } from "./conversations.mjs";
import { chunk, mock, sse } from "./responses.mjs";

const focused = (page) => page.evaluate(() => document.activeElement.id || document.activeElement.dataset.act || document.activeElement.tagName);

/** Waits until the message field has the focus. */
const inField = (page) => page.waitForFunction(() => document.activeElement.id === "question");

const blur = (page) => page.evaluate(() => document.activeElement.blur());

export async function kept({ page, address }) {
  await echo(page);
  await page.goto(address);
  assert.equal(await focused(page), "question", "on load");
  await ready(page);
  await page.keyboard.type("One");
  await page.click("#send");
  await rest(page);
  assert.deepEqual(await answers(page), ["ONE"]);
  await inField(page);
  await page.click(".newchat");
  await inField(page);
  await page.keyboard.type("Two");
  await page.keyboard.press("Enter");
  await rest(page);
  await listed(page, ["Two", "One"]);
  await openItem(page, "One");
  await inField(page);
  await page.reload();
  await page.waitForSelector(".msg");
  await inField(page);
  await page.click(".top [data-do=new]");
  await page.click("[data-example]");
  await rest(page);
  await inField(page);
  for (const name of ["settings", "model", "shortcuts"]) {
    const dialog = name === "model" ? "card" : name;
    await page.click(`[data-do=${name}]`);
    await page.waitForSelector(`#${dialog}[open]`);
    await page.keyboard.press("Escape");
    await inField(page);
  }
  // A control that was used by key keeps the focus, and a selection is not lost, when an answer ends.
  await page.focus(".msg.assistant [data-act=again]");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".msg.assistant .turn");
  await rest(page);
  assert.equal(await focused(page), "again");
  let release;
  const released = new Promise((done) => { release = done; });
  await mock(page, async (route) => {
    await released;
    await route.fulfill(sse(chunk({ content: "Late." }), chunk({}, { finish_reason: "stop" })));
  });
  await ask(page, "Slow");
  await page.waitForSelector(".composer.busy");
  await blur(page);
  await page.evaluate(() => getSelection().selectAllChildren(document.querySelector(".msg.assistant .text")));
  const selected = await page.evaluate(() => String(getSelection()));
  release();
  await rest(page);
  assert.notEqual(selected, "");
  assert.deepEqual([await page.evaluate(() => String(getSelection())), await focused(page)], [selected, "BODY"]);
}

/** A character typed outside of fields goes into the message field; commands, spaces and menus stay what they are. */
export async function typed({ page, address }) {
  await echo(page);
  await page.goto(address);
  await ready(page);
  await ask(page, "One");
  await rest(page);
  const value = () => page.inputValue("#question");
  await blur(page);
  await page.keyboard.type("ab");
  assert.equal(await value(), "ab", "from the page");
  await page.focus(".msg.assistant [data-act=copy]");
  await page.keyboard.type("Ç d");
  assert.equal(await value(), "abÇ d", "from a button");
  await page.evaluate(() => {
    document.activeElement.blur();
    getSelection().selectAllChildren(document.querySelector(".msg.assistant .text"));
  });
  for (const key of ["Control+c", "Control+a", "Alt+x", "Meta+b", " ", "Shift", "ArrowDown", "F2"]) await page.keyboard.press(key);
  assert.deepEqual([await value(), await focused(page)], ["abÇ d", "BODY"], "no command is typed");
  await page.focus(".search input");
  await page.keyboard.type("x");
  assert.deepEqual([await page.inputValue(".search input"), await value()], ["x", "abÇ d"], "another field keeps its own");
  await page.keyboard.press("Escape");
  await page.hover(".item");
  await page.click(".item .more");
  await page.keyboard.type("d");
  assert.equal(await value(), "abÇ d", "a menu is not left");
  await page.keyboard.press("Escape");
  await page.click("[data-do=settings]");
  await page.focus("#settings .strong");
  await page.keyboard.type("q");
  assert.equal(await value(), "abÇ d", "nor is a dialog");
  await page.keyboard.press("Escape");

  // `?` is a character in a field, and opens the list elsewhere; Ctrl+/ opens it everywhere.
  await inField(page);
  await page.keyboard.type("?");
  assert.deepEqual([await value(), await page.locator("#shortcuts[open]").count()], ["abÇ d?", 0]);
  for (const keys of ["Control+/", "?"]) {
    if (keys === "?") await blur(page);
    await page.keyboard.press(keys);
    await page.waitForSelector("#shortcuts[open]");
    await page.keyboard.press("Escape");
    await inField(page);
  }
  assert.equal(await value(), "abÇ d?");
}

/** The empty message field passes on the keys that scroll. */
export async function scrolled({ page, address }) {
  await mock(page, (route) => route.fulfill(sse(chunk({ content: "line\n\n".repeat(120) }), chunk({}, { finish_reason: "stop" }))));
  await page.goto(address);
  await ready(page);
  await ask(page, "Long");
  await rest(page);
  await inField(page);
  const top = () => page.evaluate(() => document.querySelector(".scroller").scrollTop);
  const end = await top();
  await page.keyboard.press("PageUp");
  assert.ok((await top()) < end - 100);
  await page.keyboard.press("PageDown");
  assert.ok(Math.abs((await top()) - end) < 2);
  await page.keyboard.type("x");
  await page.keyboard.press("PageUp");
  assert.ok(Math.abs((await top()) - end) < 2, "in a text they move in it");
}

/** With a finger nothing takes the focus, as it would open the keyboard. */
export async function touched({ page, address }) {
  await echo(page);
  await page.goto(address);
  await ready(page);
  assert.equal(await focused(page), "BODY");
  await page.tap("[data-example]");
  await rest(page);
  assert.equal(await focused(page), "BODY");
  await openSidebar(page);
  await page.tap(".item .open");
  await page.waitForSelector("#sidebar", { state: "hidden" });
  assert.notEqual(await focused(page), "question");
}

/** Enter sends an edit, Shift-Enter begins a line, and an input method's Enter does neither. */
export async function edited({ page, address }) {
  await echo(page);
  await page.goto(address);
  await ready(page);
  await ask(page, "One");
  await rest(page);
  await page.keyboard.press("ArrowUp");
  await page.fill(".editing textarea", "a");
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.type("b");
  assert.equal(await page.inputValue(".editing textarea"), "a\nb");
  await page.evaluate(() => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", isComposing: true, bubbles: true, cancelable: true })));
  assert.equal(await page.locator(".editing").count(), 1);
  await page.keyboard.press("Enter");
  await rest(page);
  assert.deepEqual(await answers(page), ["A\nB"]);
  await inField(page);
}

/** Buttons of the last answer are visible without the pointer; the ring of the focus has no color of errors. */
export async function visible({ page, address, shot }) {
  await echo(page);
  await page.goto(address);
  await ready(page);
  for (const text of ["One", "Two"]) {
    await ask(page, text);
    await rest(page);
  }
  await page.mouse.move(0, 0);
  const opacity = (selector, at) => page.locator(selector).nth(at).evaluate((button) => {
    for (const animation of button.getAnimations()) animation.finish();
    return getComputedStyle(button).opacity;
  });
  const touch = await page.evaluate(() => matchMedia("(hover: none)").matches);
  for (const act of ["again", "copy"]) {
    assert.equal(await opacity(`.msg.assistant [data-act=${act}]`, 1), "1", act);
    assert.equal(await opacity(`.msg.assistant [data-act=${act}]`, 0), touch ? "1" : "0", act);
  }
  await page.keyboard.press("Shift+Tab");
  const { ring, accent } = await page.evaluate(() => {
    const probe = document.body.appendChild(document.createElement("i"));
    probe.style.color = "var(--accent)";
    const accent = getComputedStyle(probe).color;
    probe.remove();
    return { accent, ring: getComputedStyle(document.activeElement).outlineColor };
  });
  assert.notEqual(ring, accent);
  await page.locator(".msg.assistant [data-act=again]").last().focus();
  await shot("focus-ring");
}

/** A toast stands in the middle above the message field, with and without the list beside it. */
export async function toast({ page, address, shot }) {
  await page.goto(address);
  await ready(page);
  await openSidebar(page);
  await page.click("[data-act=delete-all]");
  await said(page, /no conversations to delete/);
  const offset = () => page.evaluate(() => {
    const middle = (selector) => { const { left, width } = document.querySelector(selector).getBoundingClientRect(); return left + width / 2; };
    const text = document.createRange();
    text.selectNodeContents(document.querySelector("#toast span"));
    const { left, width } = text.getBoundingClientRect();
    return [middle("#toast") - middle(".composer"), left + width / 2 - middle("#toast")].map(Math.abs);
  });
  assert.ok((await offset()).every((pixels) => pixels <= 1), `${await offset()}`);
  await shot("toast");
  await page.evaluate(() => document.querySelector("[data-do=sidebar]").click());
  assert.ok((await offset()).every((pixels) => pixels <= 1), `${await offset()}`);
}
