// The server dies, freezes and comes back while the page is open.

import assert from "node:assert/strict";
import { accessible, fits } from "./axe.mjs";
import { answers, ask, chunk, nodes, ready, rest, set, sse } from "./chat.mjs";
import { Server } from "./server.mjs";

const OPTIONS = ["--api-key", "test-key", "--backend", "sim", "--sim-preset", "fixed:100ms"];
const NOTICED = 3000; // ms within which a dead server must be noticed

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
  const sent = [];
  page.on("request", (request) => { if (request.url().endsWith("/v1/chat/completions")) sent.push(request.postDataJSON()); });
  try {
    await page.goto(address);
    await ready(page);
    // Eight seconds: on a busy machine the kill must come before the end.
    await set(page, "max_tokens", "80");
    await ask(page, "Say something long.");
    await saidSome(page);
    await server.stop("SIGKILL");
    await noticed(page);
    await rest(page);
    await page.waitForSelector(".msg .wrong");
    assert.match(await page.locator(".msg .wrong").innerText(), /connection to the server was lost/);
    assert.ok(await page.locator(".wrong [data-act=continue]").isDisabled(), "nothing can be continued without a server");
    await page.fill("#question", "Kept");
    await page.keyboard.press("Enter");
    assert.equal(await page.inputValue("#question"), "Kept", "a question waits until it can be sent");
    await page.fill("#question", "");
    await shot("unreachable");
    await accessible(page, "unreachable");
    await fits(page, "unreachable");
    const before = (await nodes(page)).at(-1).message.content;

    server = await Server.start(OPTIONS, port);
    await offline(page, true);
    await shot("reconnected");
    await page.click(".wrong [data-act=continue]");
    await rest(page);
    assert.equal(await page.locator(".msg .wrong").count(), 0, "it came to its end");
    const { message, meta } = (await nodes(page)).at(-1);
    assert.ok(message.content.startsWith(before.trimEnd()) && message.content.length > before.length + 30, "what was said stays");
    assert.ok(meta.usage.completion_tokens > 80, "both parts are counted");
    const body = sent.at(-1);
    assert.deepEqual(body.messages, [{ role: "user", content: "Say something long." }, { role: "assistant", content: before.trimEnd() }]);
    assert.deepEqual([body.continue_final_message, body.add_generation_prompt, body.session], [true, false, undefined]);
    await shot("continued");

    // The next turn works as usual.
    await set(page, "max_tokens", "4");
    await ask(page, "And?");
    await rest(page);
    assert.equal((await answers(page)).length, 2);
    assert.deepEqual(sent.at(-1).messages.map(({ role }) => role), ["user", "assistant", "user"]);
    assert.equal(sent.at(-1).messages[1].content, message.content);

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
    assert.equal(sent.at(-1).messages.length, 5, "the new process knows nothing of the conversation");
  } finally {
    await server.stop("SIGKILL");
  }
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
  await page.route("**/v1/chat/completions", (route) => {
    if (!cut) return route.continue();
    cut = false;
    return route.fulfill({ ...sse(), body: `data: ${JSON.stringify(chunk({ content: "17 + 25 " }))}\n\n` });
  });
  await ask(page, "What is 17 + 25?");
  await page.click(".wrong [data-act=continue]");
  await rest(page);
  assert.deepEqual(await answers(page), ["17 + 25 = 42"]);
  assert.equal(await page.locator("[data-act=continue]").count(), 0, "a whole answer has no continuation");
}
