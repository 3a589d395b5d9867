import assert from "node:assert/strict";
import { accessible, fits } from "./axe.mjs";
import { chunk, failing, mock, sse } from "./responses.mjs";

export async function ask(page, text) {
  await page.fill("#question", text);
  await page.keyboard.press("Enter");
}

/** Waits until the page shows the model. */
export const ready = (page) => page.waitForFunction(() => document.querySelector("#model span").textContent !== "");

/** Records of the conversations that the browser keeps. */
export const records = (page) => page.evaluate(() => new Promise((done, failed) => {
  const request = indexedDB.open("kvasir");
  request.onerror = () => failed(request.error);
  request.onsuccess = () => {
    const all = request.result.transaction("conversations").objectStore("conversations").getAll();
    all.onsuccess = () => {
      request.result.close();
      done(all.result);
    };
  };
}));

/** The kept nodes of the only conversation. */
export const nodes = async (page) => (await records(page))[0].tree.nodes;

/** Waits until no answer is being made. */
export const rest = (page) => page.waitForSelector(".composer:not(.busy)");

export const answers = (page) => page.locator(".msg.assistant .text").allInnerTexts();

/** Sets a field that the settings show only when they are open. */
export const set = (page, name, value) => page.evaluate(([name, value]) => {
  const field = document.querySelector(`#settings [name=${name}]`);
  if (field.type === "checkbox") field.checked = value;
  else field.value = value;
  field.dispatchEvent(new Event("input", { bubbles: true }));
}, [name, value]);

export async function talk({ page, address }) {
  const sent = [];
  page.on("request", (request) => {
    const { pathname } = new URL(request.url());
    if (request.method() !== "GET") sent.push([request.method(), pathname.replace(/(sess|resp)_[^/]+/, "ID"), request.postDataJSON()]);
  });
  const last = () => sent.findLast(([, path]) => path === "/v1/responses")[2];
  await page.goto(address);
  await set(page, "max_tokens", "12");
  await ask(page, "What is 17 + 25?");
  await rest(page);
  const [first] = await answers(page);
  assert.match(await page.locator(".msg.assistant .meta").innerText(), /\d+ tokens?/);
  assert.equal((await nodes(page)).length, 3, "the root, a question and an answer are kept");

  assert.deepEqual(sent.map(([method, path]) => `${method} ${path}`), ["POST /v1/sessions", "POST /v1/responses", "DELETE /v1/responses/ID"]);
  const { session } = last();

  // The next turn sends only the new message.
  await ask(page, "And 1 + 1?");
  await rest(page);
  assert.deepEqual([last().session, last().input], [session, [{ role: "user", content: "And 1 + 1?" }]]);

  await ask(page, "Say something else.");
  await rest(page);

  // An edited question is a branch; the old one stays.
  await set(page, "max_tokens", "8");
  await page.locator(".msg.user").first().hover();
  await page.locator(".msg.user [data-act=edit]").first().click();
  await page.fill(".editing textarea", "What is 2 + 3?");
  await page.click(".editing .strong");
  await rest(page);
  assert.equal(await page.locator(".msg.user").count(), 1);
  assert.equal(await page.locator(".msg.user .turn").textContent(), "‹2 / 2›");
  await page.click(".msg.user [data-act=back]");
  assert.equal(await page.locator(".msg.user").count(), 3);
  assert.equal((await answers(page))[0], first, "the first branch is as it was");

  // An edit further down forks the session before it: what the branches share is not sent again.
  await page.locator(".msg.user").nth(1).hover();
  await page.locator(".msg.user [data-act=edit]").nth(1).click();
  await page.fill(".editing textarea", "And 2 + 2?");
  await page.click(".editing .strong");
  await rest(page);
  const [fork, chat] = sent.filter(([method]) => method === "POST").slice(-2);
  assert.deepEqual([fork[1], fork[2]], ["/v1/sessions/ID/fork", { at: { message: 2 } }]);
  assert.deepEqual(chat[2].input, [{ role: "user", content: "And 2 + 2?" }]);
  assert.notEqual(chat[2].session, session, "the old branch keeps its session");

  // Asked again: an answer beside the first, whose prompt comes from the cache as far as whole blocks go.
  await page.locator(".msg.assistant").first().hover();
  await page.locator(".msg.assistant [data-act=again]").first().click();
  await rest(page);
  assert.equal(await page.locator(".msg.assistant .turn").textContent(), "‹2 / 2›");
  await page.reload();
  await ready(page);
  await page.waitForSelector(".msg.assistant");
  assert.equal(await page.locator(".msg.assistant .turn").textContent(), "‹2 / 2›", "a reload keeps the branches");
  await page.click(".top [data-do=new]");
  await page.waitForSelector(".welcome");
  assert.deepEqual(await page.evaluate(async () => {
    const headers = { Authorization: `Bearer ${sessionStorage.getItem("kvasir-key")}` };
    for (let i = 0; i < 600; i++) {
      const { data } = await (await fetch("/v1/sessions", { headers })).json();
      if (!data.length) return [];
      await new Promise((done) => setTimeout(done, 100));
    }
  }), [], "a new chat ends the sessions of the old one");
}

/** A stopped answer keeps its text. Tokens are slow enough that no answer is complete before the stop. */
export async function stopped({ page, address, shot }) {
  await page.goto(address);
  await ready(page);
  await ask(page, "Say something very long.");
  await page.waitForFunction(() => [...document.querySelectorAll(".msg.assistant .text")].at(-1)?.textContent.length > 3);
  await accessible(page, "an answer in progress");
  await shot("answering");
  const canceled = page.waitForResponse((response) => response.url().endsWith("/cancel"));
  await page.keyboard.press("Escape");
  await rest(page);
  assert.match(await page.locator(".msg.assistant .meta").last().innerText(), /stopped/);
  assert.equal((await (await canceled).json()).status, "cancelled");
  assert.ok((await answers(page))[0].length > 3);
  await accessible(page, "a stopped answer");
}

export async function shown({ page, address, shot }) {
  await page.goto(address);
  const token = (token, p) => ({ token, logprob: Math.log(p), bytes: [] });
  const requests = [];
  await mock(page, async (route) => {
    const body = route.request().postDataJSON();
    requests.push(body);
    const usage = { choices: [], usage: { prompt_tokens: 40, completion_tokens: 2, prompt_tokens_details: { cached_tokens: 32, cache_end: "evicted" } } };
    if (body.input.at(-1).type === "function_call_output") {
      const logprobs = { content: [{ ...token("It", 0.9), top_logprobs: [token("It", 0.9), token("<b>", 0.1)] }, { ...token(" is 42.", 0.5), top_logprobs: [] }] };
      return route.fulfill(sse(chunk({ content: "It is 42." }, { logprobs }), chunk({}, { finish_reason: "stop" }), usage));
    }
    const call = (index, name, text) => [chunk({ tool_calls: [{ index, id: `c${index}`, type: "function", function: { name, arguments: "" } }] }), chunk({ tool_calls: [{ index, function: { arguments: text } }] })];
    await route.fulfill(sse(chunk({ reasoning_content: "Two <tools>." }), ...call(0, "calculator", '{"expression": "17 + 25"}'), ...call(1, "weather", '{"city": "Oslo"}'), chunk({}, { finish_reason: "tool_calls" })));
  });
  await set(page, "calculator", true);
  await set(page, "logprobs", true);
  await set(page, "system", "Be brief.");
  await set(page, "tools", '[{"type": "function", "function": {"name": "weather", "parameters": {}}}]');
  await ask(page, "What is 17 + 25, and the weather in Oslo?");
  await rest(page);
  assert.deepEqual(requests[0].tools.map(({ type, name }) => `${type} ${name}`), ["function calculator", "function weather"]);
  assert.deepEqual([requests[0].input[0], requests[0].include, requests[0].top_logprobs], [{ role: "system", content: "Be brief." }, ["message.output_text.logprobs"], 5]);
  assert.equal(await page.locator(".call .result").innerText(), "42", "the page's own tool has run");
  assert.match(await page.locator(".call .given").first().innerText(), /expression\s+17 \+ 25/);
  await accessible(page, "tool calls");
  await shot("calls");
  await page.fill(".asks input", "sunny");
  await page.click(".asks button");
  await page.waitForFunction(() => document.body.textContent.includes("It is 42."));
  await rest(page);
  assert.deepEqual(requests[1].input.slice(-2).map(({ call_id, output }) => [call_id, output]), [["c0", "42"], ["c1", "sunny"]]);
  assert.equal(requests[1].input.some(({ type }) => type === "reasoning"), false);
  await page.click(".thought summary");
  assert.match(await page.locator(".thought").innerText(), /Two <tools>\./);
  await page.locator(".msg.assistant").last().hover();
  await page.locator("[data-act=tokens]").last().click();
  await accessible(page, "tokens");
  await page.hover("[data-token='0']");
  await accessible(page, "alternatives of a token");
  await shot("tokens");
  assert.match(await page.locator(".tokentip").innerText(), /It\s+90\.0 %\s+<b>\s+10\.0 %/);
  assert.match(await page.locator(".meta").last().innerText(), /2 tokens.*32 of 40 prompt tokens cached, rest evicted/);
}

export async function refused({ page, address, shot }) {
  await page.goto(address);
  let tries = 0;
  await mock(page, (route) => (tries++ ? route.fulfill(sse(chunk({ content: "Now." }), chunk({}, { finish_reason: "stop" }))) : route.fulfill(failing("the step <failed>"))));
  await ask(page, "Hello");
  await page.waitForSelector(".msg .wrong");
  assert.match(await page.locator(".msg .wrong").innerText(), /the step <failed>/);
  await accessible(page, "a failed answer");
  await shot("refused");
  await page.click(".wrong [data-act=again]");
  await page.waitForFunction(() => document.body.textContent.includes("Now."));
  assert.equal(await page.locator(".msg .wrong").count(), 0);
}

/** On plain HTTP from another machine a browser has no `navigator.clipboard`. */
export async function copied({ page, address, shot }) {
  await page.addInitScript(() => Object.defineProperty(navigator, "clipboard", { value: undefined }));
  await page.goto(address);
  const text = "Say **this**:\n\n```sh\necho 1\n  echo 2\n```";
  await mock(page, (route) => route.fulfill(sse(chunk({ content: text }), chunk({}, { finish_reason: "stop" }))));
  await ask(page, "How?");
  await rest(page);
  await page.locator(".msg.assistant").hover();
  const pasted = async () => {
    await page.fill("#question", "");
    await page.focus("#question");
    await page.keyboard.press("Control+V");
    return page.inputValue("#question");
  };
  const label = (act) => page.locator(`.msg.assistant [data-act=${act}]`).innerText();
  for (const [act, expected] of [["copy-code", "echo 1\n  echo 2"], ["copy", text]]) {
    await page.click(`.msg.assistant [data-act=${act}]`);
    assert.equal(await label(act), "copied");
    assert.equal(await pasted(), expected, act);
  }
  // A browser that refuses leaves the text selected, and the person is told.
  await page.evaluate(() => { document.execCommand = () => false; });
  for (const [act, expected] of [["copy-code", /^echo 1\n {2}echo 2$/], ["copy", /^Say this:\s+sh\s/]]) {
    await page.locator(".msg.assistant").hover();
    await page.click(`.msg.assistant [data-act=${act}]`);
    assert.equal(await label(act), "not copied: the text is selected");
    assert.match(await page.evaluate(() => getSelection().toString()), expected, act);
    if (act === "copy-code") await shot("not-copied");
  }
  await page.waitForFunction(() => [...document.querySelectorAll(".msg.assistant [data-act^=copy]")].every((button) => button.textContent === "copy"));
}

/** What a person sees, for a person to look at; and that nothing is wider than the window. */
export async function looks({ page, address, shot }) {
  await page.goto(address);
  await ready(page);
  await shot("welcome");
  const text = "It shares blocks:\n\n1. The **policy** picks rows\n2. The cache takes slots\n\n```rust\nlet plan = cache.plan(&claim)?; // a line that is longer than a telephone is wide, to see it scroll\n```\n\n| cache | shares |\n|---|---|\n| radix | yes |";
  await mock(page, (route) => route.fulfill(sse(chunk({ reasoning_content: "Short." }), chunk({ content: text }), chunk({}, { finish_reason: "stop" }), { choices: [], usage: { prompt_tokens: 212, completion_tokens: 78, total_tokens: 290, prompt_tokens_details: { cached_tokens: 192 } } })));
  await ask(page, "How do two chats share their beginning?");
  await rest(page);
  await accessible(page, "a conversation");
  await shot("chat");
  await fits(page, "a conversation");
}
