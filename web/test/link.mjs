// The server dies, freezes and comes back while the page is open.

import assert from "node:assert/strict";
import { accessible, fits } from "./axe.mjs";
import { answers, ask, nodes, ready, records, rest, set } from "./chat.mjs";
import { Server } from "./server.mjs";
import { ANSWERS, chunk, eventStream, eventsOf, sentBy } from "./responses.mjs";

const OPTIONS = ["--api-key", "test-key", "--backend", "sim", "--sim-preset", "fixed:100ms"];
const NOTICED = 10_000; // ms within which a dead server must be noticed; about 2 s on an idle machine

const offline = (page, hidden) => page.waitForSelector("#offline", { state: hidden ? "hidden" : "visible" });

/** Waits until the page says that the server cannot be reached; fails if that takes too long. */
async function noticed(page) {
  const began = performance.now();
  await offline(page, false);
  const took = performance.now() - began;
  assert.ok(took < NOTICED, `noticed after ${Math.round(took)} ms`);
  assert.match(await page.locator("#offline").innerText(), /^Server not reachable, reconnecting…$/);
}

const saidSome = (page) => page.waitForFunction(() => [...document.querySelectorAll(".msg.assistant .text")].at(-1)?.textContent.length > 30);

/** Killed in the middle of an answer, then while idle. */
export async function killed({ page, shot }) {
  let server = await Server.start(OPTIONS);
  const { address } = server, { port } = new URL(address);
  const sent = sentBy(page);
  try {
    await page.goto(address);
    await ready(page);
    // Eight seconds: on a busy machine the kill must come before the end.
    await set(page, "max_tokens", "80");
    await ask(page, "Say something long.");
    await saidSome(page);
    await server.stop("SIGKILL");
    await noticed(page);
    assert.equal(await page.locator(".composer.busy").count(), 1, "the answer waits for the server");
    await page.fill("#question", "Kept");
    await page.keyboard.press("Enter");
    assert.equal(await page.inputValue("#question"), "Kept", "a question waits until it can be sent");
    await page.fill("#question", "");
    await shot("unreachable");
    await accessible(page, "unreachable");
    await fits(page, "unreachable");
    const shown = await answers(page);

    server = await Server.start(OPTIONS, port);
    await offline(page, true);
    await rest(page);
    assert.match(await page.locator(".msg .wrong").innerText(), /server no longer has this answer/, "a restart loses it");
    assert.deepEqual(await answers(page), shown, "what had come stays");
    const before = (await nodes(page)).at(-1).message.content;
    await shot("reconnected");
    await page.click(".wrong [data-act=continue]");
    await rest(page);
    assert.equal(await page.locator(".msg .wrong").count(), 0, "it came to its end");
    const { message, meta } = (await nodes(page)).at(-1);
    assert.ok(message.content.startsWith(before.trimEnd()) && message.content.length > before.length + 30, "what was said stays");
    assert.ok(meta.usage.completion_tokens > 80, "both parts are counted");
    const body = sent.at(-1);
    assert.deepEqual(body.input, [{ role: "user", content: "Say something long." }, { role: "assistant", content: before.trimEnd() }]);
    assert.deepEqual([body.continue_final_message, body.session], [true, undefined]);
    await shot("continued");

    // The next turn works as usual.
    await set(page, "max_tokens", "4");
    await ask(page, "And?");
    await rest(page);
    assert.equal((await answers(page)).length, 2);
    assert.deepEqual(sent.at(-1).input.map(({ role }) => role), ["user", "assistant", "user"]);
    assert.equal(sent.at(-1).input[1].content, message.content);

    // While idle, on the other tab.
    await page.click(".tabs a[href='#engine']");
    await server.stop("SIGKILL");
    await noticed(page);
    await accessible(page, "unreachable, engine");
    await shot("engine-unreachable");
    await page.click(".tabs a[href='#chat']");
    server = await Server.start(OPTIONS, port);
    await offline(page, true);
    await ask(page, "Still there?");
    await rest(page);
    assert.equal(await page.locator(".msg .wrong").count(), 0);
    assert.equal((await answers(page)).length, 3);
    assert.equal(sent.at(-1).input.length, 5, "the new process knows nothing of the conversation");
  } finally {
    await server.stop("SIGKILL");
  }
}

/** Blocks the page's deletions of responses, so that `matchesServer` can read them. */
export const keepResponses = (page) => page.context().route("**/v1/responses/*", (route) => (route.request().method() === "DELETE" ? route.fulfill({ json: {} }) : route.continue()));

/** Event numbers after which the page resumes streams, collected from now on. */
function resumePoints(page) {
  const after = [];
  page.on("request", (request) => { if (/\/v1\/responses\/resp_\w+\?stream=true/.test(request.url())) after.push(new URL(request.url()).searchParams.get("starting_after")); });
  return after;
}

/** Asserts that the newest answer equals the server's copy (no gap, no repeated text) and has this many tokens. */
export async function matchesServer(page, tokens) {
  const [newest] = (await records(page)).sort((a, b) => b.updated - a.updated), { message, meta } = newest.tree.nodes.at(-1);
  const output = await page.evaluate(async (id) => {
    const headers = { Authorization: `Bearer ${sessionStorage.getItem("kvasir-key")}` };
    return (await (await fetch(`/v1/responses/${id}`, { headers })).json()).output;
  }, meta.response.id);
  assert.deepEqual(output.map(({ content }) => content[0].text), [message.content]);
  assert.deepEqual([meta.usage.completion_tokens, meta.stopped, meta.error], [tokens, undefined, undefined]);
}

/** A reload in the middle of an answer resumes it after the last event; one before its first token loses nothing. */
export async function reloaded({ page, address, shot }) {
  const sent = sentBy(page), after = resumePoints(page);
  await keepResponses(page);
  await page.goto(address);
  await ready(page);
  // Eight seconds: on a busy machine the page must be back before the end.
  await set(page, "max_tokens", "80");
  for (const [length, question] of [[0, "Say something."], [20, "Say something long."]]) {
    await ask(page, question);
    await page.waitForFunction((length) => [...document.querySelectorAll(".msg.assistant .text, .msg.assistant .waits")].at(-1)?.textContent.length >= length, length);
    const count = sent.length;
    await page.reload();
    await page.waitForSelector(".composer.busy");
    await shot("picked-up-after-reload");
    await rest(page);
    await matchesServer(page, 80);
    if (length) assert.deepEqual([sent.length - count, Number(after.at(-1)) > 5], [0, true], "it is not requested again");
    assert.match(await page.locator(".msg.assistant .meta").last().innerText(), /^80 tokens · [\d.]+ tok\/s · first after \d+ ms/);
    assert.equal((await answers(page)).length, 1, "no answer is duplicated");
    await page.click(".top [data-do=new]");
  }
  // A stopped answer stays stopped after a reload, and has ended on the server.
  await set(page, "max_tokens", "200");
  await ask(page, "Once more.");
  await saidSome(page);
  const canceled = page.waitForResponse((response) => response.url().endsWith("/cancel"));
  await page.keyboard.press("Escape");
  assert.equal((await (await canceled).json()).status, "cancelled");
  await rest(page);
  // A damaged `kvasir-answering` entry does not keep the page from loading.
  for (const damaged of ["{", "null", "5", '[null, {"record": 5}, {"record": {"id": "x"}, "node": 1}]']) {
    await page.evaluate((damaged) => addEventListener("pagehide", () => sessionStorage.setItem("kvasir-answering", damaged)), damaged);
    await page.reload();
    await ready(page);
    await page.waitForSelector(".msg.assistant .meta");
    assert.match(await page.locator(".msg.assistant .meta").last().innerText(), /stopped/);
  }
}

/** After a lost connection the page resumes the stream after the last event. */
export async function reconnected({ page, address }) {
  const after = resumePoints(page);
  await keepResponses(page);
  await page.goto(address);
  await ready(page);
  await set(page, "max_tokens", "80");
  await ask(page, "Say something long.");
  await saidSome(page);
  await page.context().setOffline(true);
  await offline(page, false);
  await page.context().setOffline(false);
  await rest(page);
  assert.equal(after.length, 1);
  await matchesServer(page, 80);
}

/** A suspended process keeps its connections open, like a machine without power. */
export async function frozen({ page }) {
  const server = await Server.start(OPTIONS);
  try {
    await page.goto(server.address);
    await ready(page);
    await set(page, "max_tokens", "40");
    await ask(page, "Say something long.");
    await saidSome(page);
    server.process.kill("SIGSTOP");
    await noticed(page);
    server.process.kill("SIGCONT");
    await offline(page, true);
    await rest(page);
    assert.equal(await page.locator(".msg .wrong").count(), 0, "the answer went on");
    assert.match(await page.locator(".msg.assistant .meta").innerText(), /^40 tokens/);
    server.process.kill("SIGSTOP");
    await noticed(page);
    server.process.kill("SIGCONT");
    await offline(page, true);
  } finally {
    server.process.kill("SIGCONT");
    await server.stop("SIGKILL");
  }
}

/** The built-in model completes a cut answer to the answer that it gives in one go. */
export async function continued({ page, address }) {
  await page.goto(address);
  await set(page, "temperature", "0");
  let cut = true;
  // The stream ends early, and the server does not know this mocked response.
  await page.route(ANSWERS, (route) => {
    if (!cut) return route.continue();
    cut = false;
    return route.fulfill(eventStream(eventsOf(chunk({ content: "17 + 25 " })).slice(0, -1)));
  });
  await ask(page, "What is 17 + 25?");
  await page.waitForSelector(".msg .wrong");
  assert.match(await page.locator(".msg .wrong").innerText(), /server no longer has this answer.*The text received so far is kept/);
  await page.click(".wrong [data-act=continue]");
  await rest(page);
  assert.deepEqual(await answers(page), ["17 + 25 = 42"]);
  assert.equal(await page.locator("[data-act=continue]").count(), 0, "a whole answer has no continuation");
}
