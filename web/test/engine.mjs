// The live view of the engine.

import assert from "node:assert/strict";
import { accessible, fits } from "./axe.mjs";

/** Completes a chat, then `n` concurrent ones with the same system prompt. They have the page's API key. */
export const concurrentChats = (page, n, max_tokens, style = "in a few words") => page.evaluate(async ([n, max_tokens, style]) => {
  const headers = { "Content-Type": "application/json", Authorization: `Bearer ${sessionStorage.getItem("kvasir-key")}` };
  const complete = (i) => {
    const messages = [{ role: "system", content: `You answer ${style}. `.repeat(12) }, { role: "user", content: `Question ${i}: what is ${i} + ${i}?` }];
    return fetch("/v1/chat/completions", { method: "POST", headers, body: JSON.stringify({ messages, max_tokens, ignore_eos: true }) }).then((response) => response.json());
  };
  await complete(0);
  return Promise.all(Array.from({ length: n }, (_, i) => complete(i + 1)));
}, [n, max_tokens, style]);

export const tile = (page, name) => page.locator(".tiles div", { hasText: name }).locator("dd").innerText();

export async function live({ page, address }) {
  await page.goto(`${address}/#engine`);
  await page.waitForSelector("#resting:not([hidden])");
  await page.waitForFunction(() => document.getElementById("pulse").textContent === "idle");
  await accessible(page, "engine before its first step");
  const answers = await concurrentChats(page, 6, 24);
  assert.ok(answers.every((answer) => answer.usage?.completion_tokens === 24), JSON.stringify(answers[0]));
  await page.waitForFunction(() => /24 of 24/.test(document.querySelector("#live .decode .body")?.textContent ?? ""));
  await page.waitForFunction(() => [...document.querySelectorAll(".tiles dd")].at(-1).textContent === "168");
  assert.match(await tile(page, "prompt tokens cached"), /[1-9]\d? %/);
  assert.equal(await tile(page, "running"), "0", "no request runs any more");
  await page.waitForFunction(() => document.querySelector("#live .kind").textContent === "idle");
  await accessible(page, "idle engine");
  assert.match(await page.locator("#live .at").innerText(), /step \d+ of \d+/);
  // An idle view can be moved through its steps; its end follows the newest step again.
  await page.click("#live [data-go=back]");
  const at = await page.locator("#live .at").innerText();
  await concurrentChats(page, 1, 4);
  await page.waitForFunction(() => [...document.querySelectorAll(".tiles dd")].at(-1).textContent === "176");
  assert.equal((await page.locator("#live .at").innerText()).split(" of ")[0], at.split(" of ")[0], "an earlier step stays in view");
  await page.click("#live [data-go=end]");
  await page.waitForFunction(() => /eos|max tokens/.test(document.querySelector("#live .decode .body").textContent));
  // The table of a step shows why the cache hit of a request ended.
  await concurrentChats(page, 1, 4, `in ${Date.now()} words`);
  await page.waitForFunction(() => [...document.querySelectorAll(".tiles dd")].at(-1).textContent === "184");
  await page.locator("#live summary", { hasText: "All values" }).click();
  assert.match(await page.locator("#live .values table").innerText(), /why its cache hit ended[^]*never computed/);
  await page.locator("#live summary", { hasText: "All values" }).click();
}

/** A key that opens the chat alone: the engine view says so, and no other key is asked for. */
export async function refused({ page, address }) {
  await page.route("**/v1/engine/steps", (route) => route.fulfill({ status: 401, json: { error: { message: "no" } } }));
  await page.goto(`${address}/#engine`);
  await page.waitForFunction(() => /key does not open/.test(document.getElementById("resting").textContent));
  assert.equal(await page.locator("#ask-key[open]").count(), 0);
}

/** Bars begin where their axis does, whatever the length of a request's name. */
export async function aligned(page) {
  const edges = await page.evaluate(() => {
    // Of names as they are after ten thousand requests, and after one.
    const chips = document.querySelectorAll("#live .decode .chip");
    chips.forEach((chip, i) => { if (i % 2) chip.textContent = "123456"; });
    const bars = [...document.querySelectorAll("#live .decode .row")].map((row) => row.querySelector(".bar, .ruler"));
    return bars.filter(Boolean).map((bar) => bar.getBoundingClientRect()).map(({ left, right }) => [Math.round(left), Math.round(right)]);
  });
  assert.ok(edges.length >= 2, "rows and an axis are there");
  for (const edge of edges) assert.deepEqual(edge, edges[0], "a bar is shifted against its axis");
}

/** The trees that rows verify: what was accepted is filled, what was rejected is hollow. */
export async function drafts({ page, address, shot }) {
  await page.goto(`${address}/#engine`);
  await page.waitForSelector("#resting:not([hidden])");
  const tree = [0, 0, 0, 1, 1, 2, 4, 4, 7, 8, 9, 8];
  const row = (id, first, drafts) => [id, 1, first, 1 + drafts, 0, 0, drafts];
  const step = (step, more) => ({ step, at: step * 1e6, kind: "decode", room: [0, 0, 64, 0], waiting: 0, running: 3, retired: [[step, 9e5]], ...more });
  const steps = [
    step(0, { arrived: [[0, 20, 40, 0], [1, 24, 40, 1], [2, 9, 40, 2]], admitted: [[0, 0], [1, 0], [2, 0]], computed: [[0, 20], [1, 24], [2, 9]], outputs: [[0, 1], [1, 1], [2, 1]], rows: [row(2, 9, 0)] }),
    step(1, { rows: [row(0, 20, 12), row(1, 24, 4), row(2, 10, 3)], drafts: [[0, tree], [1, [0, 1, 2, 3]], [2, [0, 1, 2]]], accepted: [[0, [1, 4, 8, 10]], [1, []]], outputs: [[0, 5], [1, 1]] }),
    step(2, { rows: [row(0, 25, 0)], accepted: [[2, [1, 2]]], outputs: [[2, 3]], rest_running: "token_in_flight" }),
    step(3, { again: [[0, 1]] }),
  ];
  await page.evaluate((steps) => {
    const setup = { policy: "chunked", cache: "tree", block_size: 1, capacity: 256, max_model_len: 64 };
    const view = new KvasirView(document.getElementById("live"), { title: "drafts", setup, steps }, { deep: false });
    globalThis.draftView = view;
    document.getElementById("live").hidden = false;
    view.go(1);
  }, steps);
  const seen = () => page.locator("#live .drafts").evaluateAll((all) => all.map((svg) => [svg.getAttribute("aria-label"), ...["accepted", "rejected", "proposed"].map((fate) => svg.querySelectorAll(`circle.${fate}`).length)]));
  assert.deepEqual(await seen(), [["4 of 12 drafts accepted", 4, 8, 0], ["0 of 4 drafts accepted", 0, 4, 0], ["3 drafts in verification", 0, 0, 3]]);
  // A branch stands below its sibling, and no two nodes stand on each other.
  const places = await page.locator("#live .drafts").first().locator("circle").evaluateAll((all) => all.map((dot) => `${dot.getAttribute("cx")} ${dot.getAttribute("cy")}`));
  assert.equal(new Set(places).size, 13);
  assert.match(await page.locator("#live .trees").innerText(), /in verification\s*accepted\s*rejected/);
  await page.locator("#live section.decode").scrollIntoViewIfNeeded();
  await shot("drafts");
  await accessible(page, "draft trees");
  await fits(page, "draft trees");
  await page.click("#live [data-go=next]");
  assert.deepEqual(await seen(), [["2 of 3 drafts accepted", 2, 1, 0]], "a result that came a step later");
  await page.click("#live [data-go=next]");
  assert.deepEqual(await seen(), []);
  await page.click("#live [data-go=start]");
  assert.deepEqual(await seen(), []);
}

/** A server that speculates: its steps carry trees. */
export async function speculates({ page, address }) {
  await page.goto(`${address}/#engine`);
  await page.waitForSelector("#resting:not([hidden])");
  const words = "one two three four five six seven ".repeat(6);
  const accepted = page.waitForFunction(() => {
    const shown = document.querySelector("#live .drafts");
    return shown && /of \d+ drafts? accepted/.test(shown.getAttribute("aria-label"));
  });
  let seen = false;
  const ask = async () => {
    while (!seen) {
      await page.evaluate((content) => fetch("/v1/chat/completions", {
        method: "POST", headers: { "Content-Type": "application/json", Authorization: `Bearer ${sessionStorage.getItem("kvasir-key")}` },
        body: JSON.stringify({ messages: [{ role: "user", content }], max_tokens: 100, temperature: 0, ignore_eos: true, prediction: { type: "content", content } }),
      }).then((response) => response.json()), words);
    }
  };
  await Promise.all([accepted.finally(() => { seen = true; }), ask()]);
}

export async function looks({ page, address, shot }) {
  await page.goto(`${address}/#engine`);
  await page.waitForSelector("#resting:not([hidden])");
  // Again and again, until the page has been seen while several decode: it may be drawn too late for the first ones.
  let seen = false;
  const look = async () => {
    await page.waitForFunction(() => document.querySelectorAll("#live section.decode .chip").length >= 4);
    seen = true;
    await aligned(page);
    await shot("engine");
  };
  const ask = async () => {
    while (!seen) await concurrentChats(page, 6, 200);
  };
  await Promise.all([look(), ask()]);
  await fits(page, "engine");
  await page.waitForFunction(() => document.querySelector("#live .kind").textContent === "idle");
  await accessible(page, "engine after an answer");
  await shot("engine-idle");
}
