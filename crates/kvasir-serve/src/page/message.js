// One message as it is drawn.

import { escape, markdown } from "/page/markdown.js";

const button = (act, label, title) => `<button type="button" class="quiet" data-act="${act}" title="${title}">${label}</button>`;

/** Whether an answer can be continued: it was cut in its text, and no message follows it. */
export function canContinue({ message, meta, children }) {
  const cut = meta.error || meta.stopped || meta.finish === "length";
  return Boolean(cut && !meta.streaming && message.content?.trim() && !message.tool_calls?.length && !children.length);
}

const continueButton = (node) => (canContinue(node) ? button("continue", "continue", "continue from where the answer was cut") : "");

/** The buttons under a message, and which of several branches it is. */
function under(node, tree, busy) {
  const [at, of] = tree.place(node.id);
  const turn = of > 1 ? `<span class="turn">${button("back", "‹", "the branch before")}<span>${at + 1} / ${of}</span>${button("on", "›", "the next branch")}</span>` : "";
  // What failed at once can only be tried again, which its error offers.
  if (busy || (node.meta.error && !node.message.content)) return `<div class="under">${turn}</div>`;
  const again = node.meta.error ? "" : button("again", "again", "answer again; this answer stays");
  const own = node.message.role === "user" ? button("edit", "edit", "edit; the old branch stays") : again;
  const tokens = node.meta.tokens?.length ? button("tokens", node.meta.showTokens ? "text" : "tokens", "each token with its probability") : "";
  return `<div class="under">${turn}<span class="meta">${escape(measured(node.meta))}</span>${node.meta.error ? "" : continueButton(node)}${button("copy", "copy", "copy the text")}${own}${tokens}</div>`;
}

const plural = (n, word) => `${n.toLocaleString("en-US")} ${word}${n === 1 ? "" : "s"}`;

/** What an answer took, in one line. */
function measured({ usage, rate, first, stopped, finish }) {
  const parts = [];
  if (usage) parts.push(plural(usage.completion_tokens, "token"));
  if (rate) parts.push(`${rate < 10 ? rate.toFixed(1) : Math.round(rate).toLocaleString("en-US")} tok/s`);
  if (first != null) parts.push(`first after ${Math.max(1, Math.round(first))} ms`);
  const cached = usage?.prompt_tokens_details?.cached_tokens;
  if (cached != null) parts.push(`${cached.toLocaleString("en-US")} of ${usage.prompt_tokens.toLocaleString("en-US")} prompt tokens cached`);
  if (stopped) parts.push("stopped");
  if (finish === "length") parts.push("cut at its limit");
  return parts.join(" · ");
}

function thought(message, meta) {
  if (!message.reasoning) return "";
  const open = meta.streaming && !message.content ? " open" : "";
  return `<details class="thought"${open}><summary>${open ? "Thinking" : "Thought"}</summary><div>${markdown(message.reasoning)}</div></details>`;
}

/** A tool call with its result, or a place for the person to give one. */
function call({ id, function: { name, arguments: given } }, result, streaming) {
  const said = `<div class="callhead"><span class="callname">${escape(name)}</span><code>${escape(given)}</code></div>`;
  if (result) return `<div class="call${result.failed ? " failed" : ""}">${said}<div class="result">${escape(result.content)}</div></div>`;
  if (streaming) return `<div class="call">${said}</div>`;
  return `<div class="call asks">${said}<form data-call="${escape(id)}"><input name="result" placeholder="its result" aria-label="result of ${escape(name)}" autocomplete="off"><button class="quiet">give</button></form></div>`;
}

/** Tokens side by side; the paler, the surer. */
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

/** What stands in an answer; `results` are those of its calls, by id. */
export function answerBody(node, results) {
  const { message, meta } = node;
  const text = meta.showTokens && meta.tokens?.length ? tokens(meta.tokens) : `<div class="text">${markdown(message.content ?? "")}</div>`;
  const calls = (message.tool_calls ?? []).map((one) => call(one, results.get(one.id), meta.streaming)).join("");
  const waits = meta.streaming && !message.content && !message.reasoning && !calls ? `<div class="waits" aria-label="waiting"><i></i><i></i><i></i></div>` : "";
  const wrong = meta.error ? `<div class="wrong" role="alert"><span>${escape(meta.error).replace(/`([^`]*)`/g, "<code>$1</code>")}</span><span class="offers">${continueButton(node)}<button type="button" class="quiet" data-act="again">try again</button></span></div>` : "";
  return thought(message, meta) + text + calls + waits + wrong;
}

/** A whole message. One that only calls tools goes on in the next: nothing stands under it. */
export function draw(node, tree, results, busy, goesOn) {
  const { message, meta } = node;
  if (message.role === "user") return `<article class="msg user" data-id="${node.id}"><div class="bubble">${escape(message.content)}</div>${under(node, tree, busy)}</article>`;
  const below = meta.streaming || goesOn ? "" : under(node, tree, busy);
  return `<article class="msg assistant${goesOn ? " goes-on" : ""}" data-id="${node.id}"><div class="body_">${answerBody(node, results)}</div>${below}</article>`;
}
