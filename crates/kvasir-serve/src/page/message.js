// One message as HTML.

import { drawFiles, withoutFiles } from "/page/attachments.js";
import { escape, markdown } from "/page/markdown.js";
import { isPending } from "/page/response_events.js";
import { typedCalls } from "/page/typed_call.js";

const button = (act, label, title) => `<button type="button" class="quiet" data-act="${act}" title="${title}">${label}</button>`;

/** Whether an answer can be continued: it was cut in its text, and no message follows it. */
export function canContinue({ message, meta, children }) {
  const cut = meta.error || meta.stopped || meta.finish === "length";
  return Boolean(cut && !meta.streaming && message.content?.trim() && !message.tool_calls?.length && !children.length);
}

/** Removes `error`, `stopped` and `finish` from an answer's metadata; returns the removed fields. */
export function clearOutcome(meta) {
  const { error, stopped, finish } = meta;
  for (const name of ["error", "stopped", "finish"]) delete meta[name];
  return Object.fromEntries(Object.entries({ error, stopped, finish }).filter(([, value]) => value !== undefined));
}

const continueButton = (node) => (canContinue(node) ? button("continue", "continue", "continue from where the answer was cut") : "");

/** The buttons under a message, and which of several branches it is. */
function under(node, tree, busy) {
  const [at, of] = tree.place(node.id);
  const turn = of > 1 ? `<span class="turn">${button("back", "‹", "the branch before")}<span>${at + 1} / ${of}</span>${button("on", "›", "the next branch")}</span>` : "";
  // What failed at once can only be tried again, which its error offers.
  if (busy || (node.meta.error && !node.message.content)) return `<div class="under">${turn}</div>`;
  const again = node.meta.error ? "" : button("again", "again", "answer again; this answer stays");
  const answer = node.children.length ? "" : button("answer", "answer", "let the model answer this question");
  const own = node.message.role === "user" ? button("edit", "edit", "edit; the old branch stays") + answer : again;
  const tokens = node.meta.tokens?.length ? button("tokens", node.meta.showTokens ? "text" : "tokens", "each token with its probability") : "";
  return `<div class="under">${turn}<span class="meta">${escape(measured(node.meta))}</span>${node.meta.error ? "" : continueButton(node)}${button("copy", "copy", "copy the text")}${own}${tokens}</div>`;
}

const plural = (n, word) => `${n.toLocaleString("en-US")} ${word}${n === 1 ? "" : "s"}`;

/** Texts of `cache_end`: why the rest of the prompt was not cached. */
const CACHE_END_TEXTS = {
  no_checkpoint: "no checkpoint for the rest",
  window_released: "sliding window of the rest released",
  evicted: "rest evicted",
  other_key: "rest cached under another key",
  never_computed: "rest new",
};

/** Token counts and times of an answer, in one line. */
function measured({ usage, rate, first, stopped, finish }) {
  const parts = [];
  if (usage) parts.push(plural(usage.completion_tokens, "token"));
  if (rate) parts.push(`${rate < 10 ? rate.toFixed(1) : Math.round(rate).toLocaleString("en-US")} tok/s`);
  if (first != null) parts.push(`first after ${Math.max(1, Math.round(first))} ms`);
  const { cached_tokens: cached, cache_end: cacheEnd } = usage?.prompt_tokens_details ?? {};
  const why = CACHE_END_TEXTS[cacheEnd] ? `, ${CACHE_END_TEXTS[cacheEnd]}` : "";
  if (cached != null) parts.push(`${cached.toLocaleString("en-US")} of ${usage.prompt_tokens.toLocaleString("en-US")} prompt tokens cached${why}`);
  if (stopped) parts.push("stopped");
  if (finish === "length") parts.push("cut at its limit");
  return parts.join(" · ");
}

function thought(message, meta) {
  if (!message.reasoning) return "";
  const open = meta.streaming && !message.content ? " open" : "";
  return `<details class="thought" data-auto="${open ? "open" : "closed"}"${open}><summary>${open ? "Thinking" : "Thought"}</summary><div>${markdown(message.reasoning)}</div></details>`;
}

/** Arguments of a call: a line per name, or the text if it is no JSON object. */
function given(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    value = null;
  }
  if (value === null || typeof value !== "object" || Array.isArray(value)) return text.trim() ? `<code>${escape(text)}</code>` : "";
  const written = (part) => (typeof part === "string" ? part : JSON.stringify(part));
  const entries = Object.entries(value).map(([name, part]) => `<div><dt>${escape(name)}</dt><dd>${escape(written(part))}</dd></div>`);
  return entries.length ? `<dl class="given">${entries.join("")}</dl>` : "";
}

const callHead = (name, args) => `<div class="callhead"><span class="callname">${escape(name)}</span>${given(args)}</div>`;

const UNANSWERED = "No result was given before the next message. <em>again</em> lets the model call the tool anew.";

/** A tool call with its result, or a place for the person to give one until another message follows. */
function call({ id, function: { name, arguments: args } }, result, streaming, isPast) {
  const said = callHead(name, args);
  if (result) return `<div class="call${result.failed ? " failed" : ""}">${said}<div class="result">${escape(result.content)}</div></div>`;
  if (streaming) return `<div class="call">${said}</div>`;
  if (isPast) return `<div class="call">${said}<p class="note">${UNANSWERED}</p></div>`;
  return `<div class="call asks">${said}<form data-call="${escape(id)}"><input name="result" placeholder="result of the call" aria-label="result of ${escape(name)}" autocomplete="off"><button class="quiet">send</button></form></div>`;
}

/** A call that the model wrote as text: it was not offered the tool, so nothing runs it. */
function typedCall({ name, arguments: args }) {
  return `<div class="call typed">${callHead(name, args)}<p class="note">The model wrote this call without being offered such a tool. Tools are in the settings.</p></div>`;
}

/** An answer's text. Calls that the model wrote as text are shown as calls, also while they are being written. */
function answerText({ content }, streaming) {
  const typed = typedCalls(content);
  if (typed) return `${typed.text ? `<div class="text">${markdown(typed.text)}</div>` : ""}<div class="text calls">${typed.calls.map(typedCall).join("")}</div>`;
  const begun = streaming ? /^([^]*?)<tool_call>/.exec(content) : null;
  if (begun) return `<div class="text">${markdown(begun[1])}</div><div class="call typed"><p class="note">writes a tool call…</p></div>`;
  return `<div class="text">${markdown(content)}</div>`;
}

/** Tokens side by side; the darker, the less likely. */
function tokens(list) {
  return `<div class="tokens">${list.map((entry, i) => `<span class="tok" tabindex="0" data-token="${i}" style="--doubt:${(1 - Math.exp(entry.logprob)).toFixed(3)}">${escape(entry.token)}</span>`).join("")}</div>`;
}

/** What to say of one token: the likeliest in its place. */
export function alternatives(entry) {
  const share = (logprob) => 100 * Math.exp(logprob);
  const line = ({ token, logprob }) => `<div class="alt${token === entry.token ? " chosen" : ""}"><code>${escape(JSON.stringify(token).slice(1, -1))}</code><i style="width:${share(logprob).toFixed(1)}%"></i><b>${share(logprob).toFixed(1)} %</b></div>`;
  const top = entry.top_logprobs ?? [];
  return (top.some(({ token }) => token === entry.token) ? top : [entry, ...top]).map(line).join("");
}

/**
 * Explains why the page did not continue after the results of tool calls, with a button that continues. `isOpen` if it
 * is the last of the branch and no answer is being made.
 */
function unfinished({ message, meta }, results, isOpen) {
  const calls = message.tool_calls ?? [];
  if (!isOpen || !calls.length || !calls.every(({ id }) => results.has(id))) return "";
  const why = meta.rounds ? `The page stopped after ${meta.rounds} answers in a row that called tools.` : "The model has not read these results.";
  return `<div class="wrong" role="status"><span>${why}</span><span class="offers">${button("resume", "continue", "let the model read the results and go on")}</span></div>`;
}

/** What stands in an answer; `results` are those of its calls, by id. `isPast` if a question follows, see `unfinished` for `isOpen`. */
export function answerBody(node, results, { isPast = false, isOpen = false } = {}) {
  const { message, meta } = node;
  const text = meta.showTokens && meta.tokens?.length ? tokens(meta.tokens) : answerText({ content: message.content ?? "" }, meta.streaming);
  const calls = (message.tool_calls ?? []).map((one) => call(one, results.get(one.id), meta.streaming, isPast)).join("");
  const waits = meta.streaming && !message.content && !message.reasoning && !calls ? `<div class="waits" aria-label="waiting"><i></i><i></i><i></i></div>` : "";
  const wrong = meta.error ? `<div class="wrong" role="alert"><span>${escape(meta.error).replace(/`([^`]*)`/g, "<code>$1</code>")}</span><span class="offers">${continueButton(node)}<button type="button" class="quiet" data-act="again">try again</button></span></div>` : "";
  return thought(message, meta) + text + calls + waits + wrong + unfinished(node, results, isOpen);
}

/** A question with its files. */
function question(content) {
  const text = withoutFiles(content).trim(), files = drawFiles(content);
  return `<div class="asked">${text ? `<div class="bubble" dir="auto">${escape(text)}</div>` : ""}${files ? `<div class="filelist">${files}</div>` : ""}</div>`;
}

/** A node as an answer in progress: another tab receives it, or the server has not ended it. */
const inProgress = (node) => ({ ...node, meta: { ...node.meta, streaming: true, stopped: false } });

/**
 * A whole message. `next` is the message after it and its calls' results. One that only calls tools goes on in the next:
 * nothing stands under it. `isWritten` if another tab is writing in this conversation, `isDropped` if
 * the message is no longer sent.
 */
export function draw(node, tree, results, { busy, next, isWritten, isDropped = false }) {
  if (isPending(node) || (isWritten && !next && node.message.role === "assistant" && node.meta.stopped)) node = inProgress(node);
  const { message, meta } = node, goesOn = message.role === next?.message.role;
  const dropped = isDropped ? " dropped" : "", unsent = isDropped ? ", no longer sent" : "";
  if (message.role === "user") return `<article class="msg user${dropped}" data-id="${node.id}"><h2 class="sr">You${unsent}</h2>${question(message.content)}${under(node, tree, busy)}</article>`;
  const below = meta.streaming || goesOn ? "" : under(node, tree, busy);
  return `<article class="msg assistant${goesOn ? " goes-on" : ""}${dropped}" data-id="${node.id}"><h2 class="sr">Answer${unsent}</h2><div class="body_">${answerBody(node, results, { isPast: Boolean(next), isOpen: !next && !busy && !isWritten })}</div>${below}</article>`;
}
