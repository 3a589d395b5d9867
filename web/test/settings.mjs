// Settings, the gauge of the context, the model card, keys, and the API key's dialog.

import assert from "node:assert/strict";
import { accessible, fits } from "./axe.mjs";
import { ask, ready, rest } from "./chat.mjs";
import { echo } from "./conversations.mjs";
import { chunk, mock, sse } from "./responses.mjs";

const stored = (page) => page.evaluate(() => JSON.parse(localStorage.getItem("kvasir-settings") ?? "{}"));

export async function settings({ page, address, shot }) {
  const sent = [];
  await mock(page, (route) => {
    sent.push(route.request().postDataJSON());
    return route.fulfill(sse(chunk({ content: "Yes." }), chunk({}, { finish_reason: "stop" })));
  });
  await page.goto(address);
  await ready(page);
  await page.click("[data-do=settings]");
  await accessible(page, "settings");
  await shot("settings");
  assert.equal(await page.locator("[data-preset=model]").getAttribute("aria-pressed"), "true");
  await page.click("[data-preset=balanced]");
  assert.deepEqual([await page.inputValue("[name=temperature]"), await page.inputValue("[name=top_p]")], ["0.7", "0.9"]);
  await page.fill("[name=temperature]", "101");
  assert.equal(await page.locator("[data-preset=balanced]").getAttribute("aria-pressed"), "false");
  assert.match(await page.locator("#wrong-temperature").innerText(), /from 0 to 100/);
  assert.equal(await page.locator("[name=temperature]").getAttribute("aria-invalid"), "true");
  await page.fill("[name=top_k]", "1.5");
  await page.fill("[name=seed]", "x");
  await page.fill("[name=max_tokens]", "0");
  await page.fill("[name=tools]", "[{]");
  for (const name of ["top_k", "seed", "max_tokens", "tools"]) assert.notEqual(await page.locator(`#wrong-${name}`).innerText(), "", name);
  await page.fill("[name=tools]", '[{"type": "function", "function": {}}]');
  assert.match(await page.locator("#wrong-tools").innerText(), /Tool 1 must have/);
  await accessible(page, "settings with mistakes");
  await shot("settings-wrong");
  await fits(page, "settings");
  await page.fill("[name=system]", "Be brief.");
  await page.click(".feet .strong");
  await ask(page, "Is it?");
  await rest(page);
  const { top_p, temperature, top_k, seed, max_output_tokens, tools, input } = sent.at(-1);
  assert.deepEqual([top_p, temperature, top_k, seed, max_output_tokens, tools], [0.9, undefined, undefined, undefined, undefined, undefined], "what is wrong is not sent");
  assert.deepEqual(input[0], { role: "system", content: "Be brief." });
  await page.reload();
  await ready(page);
  await page.click("[data-do=settings]");
  assert.equal(await page.inputValue("[name=top_p]"), "0.9", "settings outlive a reload");
  assert.equal(await page.inputValue("[name=system]"), "Be brief.");
  await page.click("[data-act=reset]");
  assert.deepEqual(await stored(page), {});
  await page.click("#toast button");
  assert.equal((await stored(page)).top_p, "0.9", "a reset is undone");
  await page.click("[data-do=settings]");
  await page.selectOption("[name=theme]", "dark");
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
}

export async function gauge({ page, address, shot }) {
  await echo(page);
  await page.goto(address);
  await ready(page);
  assert.equal(await page.locator("#gauge").isVisible(), false, "nothing is used");
  await page.fill("#question", "one two three");
  await page.waitForFunction(() => /^\d+ \+ [1-9]/.test(document.querySelector("#gauge span").textContent) || /^0 \+/.test(document.querySelector("#gauge span").textContent));
  await page.keyboard.press("Enter");
  await rest(page);
  assert.equal(await page.locator("#gauge span").innerText(), "48 of 4,096 tokens");
  assert.equal(await page.locator("#gauge").getAttribute("aria-valuenow"), "48");
  await page.fill("#question", "word ".repeat(9000));
  await page.waitForSelector("#gauge[data-level=over]");
  assert.match(await page.locator("#gauge span").innerText(), /too long/);
  await accessible(page, "the question is too long");
  await shot("too-long");
}

export async function card({ page, address, shot }) {
  await page.goto(address);
  await ready(page);
  assert.ok(await page.locator("#model").isVisible(), "the model's name is visible");
  await accessible(page, "a new conversation");
  assert.match(await page.locator(".welcome").innerText(), /kvasir-mini[^]*5\.5 million parameters · Q8_0 · 4,096 tokens[^]*Good at small talk/);
  await page.click("#model");
  await accessible(page, "model card");
  await shot("card");
  assert.match(await page.locator("#card").innerText(), /qwen3[^]*5\.5 million parameters[^]*Q8_0, \d+(\.\d)? MB, gguf[^]*4,096 tokens[^]*tool calls/);
}

export async function keys({ page, address, shot }) {
  await echo(page);
  await page.goto(address);
  await ready(page);
  await ask(page, "One");
  await rest(page);
  await page.focus("#question");
  await page.keyboard.press("ArrowUp");
  await page.waitForSelector(".editing textarea");
  await accessible(page, "a question under edit");
  await page.fill(".editing textarea", "Two");
  await page.keyboard.press("Control+Enter");
  await rest(page);
  assert.equal(await page.locator(".msg.user .bubble").innerText(), "Two");
  for (let i = 0; i < 12; i++) {
    await ask(page, `Line ${i}`);
    await rest(page);
  }
  await page.evaluate(() => { document.querySelector(".scroller").scrollTop = 0; });
  await page.waitForSelector(".to-end:not([hidden])");
  await shot("scrolled");
  await accessible(page, "scrolled up");
  await page.keyboard.press("End");
  await page.waitForSelector(".to-end", { state: "hidden" });
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press("/");
  assert.equal(await page.evaluate(() => document.activeElement.id), "question");
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press("?");
  await page.waitForSelector("#shortcuts[open]");
  await accessible(page, "list of keys");
  await shot("keys");
  await page.keyboard.press("Escape");
  await page.keyboard.press("Control+k");
  assert.equal(await page.evaluate(() => document.activeElement.type), "search");
  await page.keyboard.press("Escape");
  await page.keyboard.press("Control+Shift+O");
  await page.waitForSelector(".welcome");
}

/** A wrong key is called one; a key that the server takes no longer is asked for again. */
export async function key({ page, address, shot }) {
  await page.goto(address);
  await page.waitForSelector("#ask-key[open]");
  await accessible(page, "key asked for");
  await page.fill("#ask-key input", "wrong");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => /refused this key/.test(document.getElementById("key-wrong").textContent));
  await accessible(page, "key refused");
  await shot("key-refused");
  assert.equal(await page.evaluate(() => sessionStorage.getItem("kvasir-key")), "", "a refused key is not kept");
  await page.fill("#ask-key input", "test-key");
  await page.keyboard.press("Enter");
  await ready(page);
  await page.reload();
  await ready(page);
  assert.equal(await page.locator("#ask-key[open]").count(), 0, "it is asked for once");
  assert.deepEqual(await page.evaluate(() => Object.values(localStorage)), [], "nothing of it outlives the tab");
  await page.evaluate(() => sessionStorage.setItem("kvasir-key", "revoked"));
  await page.fill("#question", "Hello");
  await page.keyboard.press("Enter");
  await page.waitForSelector("#ask-key[open]");
  assert.match(await page.locator("#key-wrong").innerText(), /no longer accepts/);
}
