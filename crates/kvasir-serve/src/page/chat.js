// The conversation: asking, streaming, stopping, editing, branching, tools.

import { Lost, events } from "/page/api.js";
import { copy } from "/page/clipboard.js";
import { link } from "/page/link.js";
import { begin, end, forget, gone } from "/page/sessions.js";
import { alternatives, answerBody, canContinue, draw } from "/page/message.js";
import { OWN } from "/page/tools.js";
import { Tree } from "/page/tree.js";

const KEY = "kvasir-chat";
const MOST_ROUNDS = 8; // answers in a row that call tools
const EXAMPLES = ["What is 17 + 25?", "What is the capital of Norway?", "Sort these numbers: 9, 4, 7, 1", "What time is it in Tokyo?"];

export class Chat {
  /** `guard(error)` is true if it took care of the error (asked for the key). */
  constructor({ list, form, settings, guard }) {
    Object.assign(this, { list, form, settings, guard });
    this.scroller = list.parentElement;
    this.question = form.querySelector("textarea");
    this.send = form.querySelector(".send");
    this.tip = document.body.appendChild(Object.assign(document.createElement("div"), { className: "tokentip", hidden: true }));
    this.stopper = null;
    this.tree = this.restore();
    this.listen();
    this.render();
  }

  restore() {
    try {
      return Tree.from(JSON.parse(sessionStorage.getItem(KEY)));
    } catch {
      return new Tree();
    }
  }

  keep() {
    const light = (name, value) => (name === "tokens" || name === "streaming" ? undefined : value);
    try {
      sessionStorage.setItem(KEY, JSON.stringify(this.tree, light));
    } catch {
      sessionStorage.removeItem(KEY); // more than the browser keeps: the chat goes on without
    }
  }

  get busy() {
    return this.stopper !== null;
  }

  begin() {
    this.stop();
    end(this.tree);
    this.tree = new Tree();
    this.keep();
    this.render();
    this.question.focus();
  }

  stop() {
    this.stopper?.abort();
  }

  /** Aborts the answer of this `stopper` as cut by a lost connection. */
  lose(stopper) {
    stopper?.abort(new Lost());
  }

  listen() {
    this.form.addEventListener("submit", (e) => {
      e.preventDefault();
      if (this.busy) this.stop();
      else this.ask(this.question.value);
    });
    this.question.addEventListener("keydown", (e) => {
      if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
        e.preventDefault();
        if (!this.busy) this.ask(this.question.value);
      }
    });
    this.question.addEventListener("input", () => this.fit());
    document.addEventListener("keydown", (e) => { if (e.key === "Escape" && !document.querySelector("dialog[open]")) this.stop(); });
    this.list.addEventListener("click", (e) => this.act(e));
    this.list.addEventListener("submit", (e) => this.answerCall(e));
    for (const event of ["pointerover", "focusin"]) this.list.addEventListener(event, (e) => this.showToken(e.target));
    for (const event of ["pointerout", "focusout"]) this.list.addEventListener(event, () => { this.tip.hidden = true; });
  }

  fit() {
    this.question.style.height = "auto";
    this.question.style.height = `${Math.min(this.question.scrollHeight, 240)}px`;
  }

  ask(text) {
    if (!text.trim() || this.busy || !link.up) return;
    this.question.value = "";
    this.fit();
    const end = this.tree.path().at(-1);
    const node = this.tree.add(end?.id ?? 0, { role: "user", content: text.trim() });
    this.answer(node.id);
  }

  /**
   * Lets the model answer under a node, running the page's own tools until it has no more calls for
   * them. The first answer continues `cut` if there is one.
   */
  async answer(parent, cut = null) {
    this.stopper = new AbortController();
    for (let round = 0; round < MOST_ROUNDS && parent !== null; round++) {
      const continues = cut !== null && round === 0;
      const node = continues ? cut : this.tree.add(parent, { role: "assistant", content: "" });
      node.meta.streaming = true;
      this.render(true);
      const asked = await this.stream(node, this.stopper.signal, continues);
      delete node.meta.streaming;
      if (asked && continues) node.meta.error = "The server asks for a key.";
      else if (asked) this.tree.remove(node.id);
      parent = asked || node.meta.stopped || node.meta.error ? null : this.runTools(node);
    }
    this.stopper = null;
    this.keep();
    this.render();
  }

  /** Fills a node with the answer as it comes. True if nothing came because a key is missing. */
  async stream(node, signal, continues = false, retry = true) {
    const { meta } = node, path = this.tree.upTo(node.parent), { system } = this.settings;
    let session = null;
    try {
      const how = continues ? { fields: continuing([...path, node], system), session } : await begin(this.tree, path, system, written, signal);
      session = how.session;
      await this.receive(node, how.fields, signal);
      if (session) meta.session = session;
    } catch (error) {
      if (session) meta.tried = session;
      if (session && retry && !signal.aborted && gone(error)) {
        forget(this.tree, session.id);
        return this.stream(node, signal, continues, false);
      }
      const lost = signal.reason instanceof Lost;
      if (signal.aborted && !lost) meta.stopped = true;
      else if (this.guard(error)) return true;
      else meta.error = (lost ? signal.reason : error).message;
    }
    return false;
  }

  /** Sends a request and takes its answer into a node, with what it took. */
  async receive(node, fields, signal) {
    const { message, meta } = node;
    const began = performance.now(), before = meta.usage?.completion_tokens ?? 0;
    let first = null, last = began;
    try {
      // The usage comes with every piece: an answer that is cut has no last one.
      const body = { ...fields, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true }, ...this.settings.fields };
      for await (const [, data] of events("/v1/chat/completions", body, signal)) {
        if (data.error) throw new Error(data.error.message);
        if (data.usage) meta.usage = usage(data, before);
        const choice = data.choices?.[0];
        if (!choice) continue;
        if (choice.delta && take(message, choice.delta)) {
          first ??= performance.now();
          last = performance.now();
        }
        if (choice.logprobs?.content) (meta.tokens ??= []).push(...choice.logprobs.content);
        if (choice.finish_reason) meta.finish = choice.finish_reason;
        this.refresh(node);
      }
    } finally {
      if (first !== null) {
        meta.first ??= first - began;
        const made = (meta.usage?.completion_tokens ?? 0) - before;
        // What comes in a lump has no speed.
        if (made > 1 && last - first > 20) meta.rate = (1000 * (made - 1)) / (last - first);
      }
    }
  }

  /** Runs those calls that the page can run. Gives the node to go on under once every call has its result. */
  runTools(node) {
    const calls = node.message.tool_calls ?? [];
    let parent = node.id, open = calls.length;
    for (const { id, function: { name, arguments: given } } of calls) {
      if (!OWN[name]) continue;
      let content, failed = false;
      try {
        content = OWN[name].run(JSON.parse(given));
      } catch (error) {
        content = `error: ${error.message}`;
        failed = true;
      }
      parent = this.tree.add(parent, { role: "tool", tool_call_id: id, content }).id;
      if (failed) this.tree.nodes.get(parent).meta.failed = true;
      open--;
    }
    return calls.length && open === 0 ? parent : null;
  }

  /** The person gives the result of a call. */
  answerCall(e) {
    e.preventDefault();
    if (this.busy || !link.up) return;
    const node = this.tree.nodes.get(Number(e.target.closest(".msg").dataset.id));
    const end = this.tree.path().at(-1);
    const result = this.tree.add(end.id, { role: "tool", tool_call_id: e.target.dataset.call, content: e.target.elements.result.value });
    const known = this.results();
    if (node.message.tool_calls.every(({ id }) => known.has(id))) this.answer(result.id);
    else this.render();
  }

  results() {
    const results = new Map();
    for (const { message, meta } of this.tree.path()) if (message.role === "tool") results.set(message.tool_call_id, { content: message.content, failed: meta.failed });
    return results;
  }

  act(e) {
    const act = e.target.dataset?.act, example = e.target.dataset?.example;
    if (example) {
      if (example.includes("time")) this.settings.form.elements.clock.checked = true;
      return this.ask(example);
    }
    if (!act) return;
    if (act === "copy-code") {
      const code = e.target.closest(".codebox").querySelector("pre");
      return copy(e.target, code.textContent, code);
    }
    const shown = e.target.closest(".msg"), id = Number(shown.dataset.id), node = this.tree.nodes.get(id);
    if (act === "copy") return copy(e.target, node.message.content, shown.querySelector(".bubble, .text, .tokens"));
    if (this.busy) return;
    if (act === "back" || act === "on") this.tree.turn(id, act === "on" ? 1 : -1);
    else if (act === "tokens") node.meta.showTokens = !node.meta.showTokens;
    else if (act === "edit") return this.edit(shown, node);
    else if (act === "again") return link.up && this.again(node);
    else if (act === "continue") return link.up && this.continueAnswer(node);
    this.keep();
    this.render();
  }

  again(node) {
    const { parent } = node;
    if (node.meta.error) this.tree.remove(node.id);
    this.answer(parent);
  }

  /** Continues an answer that was cut. */
  continueAnswer(node) {
    const { message, meta } = node;
    if (!canContinue(node)) return;
    message.content = message.content.trimEnd(); // as the server reads it
    for (const name of ["error", "stopped", "finish"]) delete meta[name];
    // The session holds the answer as it was cut: the next question forks it before that answer.
    if (meta.session) meta.tried = meta.session;
    delete meta.session;
    this.answer(node.parent, node);
  }

  /** Lets a question be written anew; what it becomes stands in a branch beside it. */
  edit(element, node) {
    const form = document.createElement("form");
    form.className = "editing";
    form.innerHTML = `<textarea aria-label="edited message"></textarea><div class="row-end"><button type="button" class="quiet" value="no">cancel</button><button class="strong">send</button></div>`;
    const field = form.querySelector("textarea");
    field.value = node.message.content;
    field.rows = Math.min(12, field.value.split("\n").length + 1);
    form.querySelector("[value=no]").addEventListener("click", () => this.render());
    form.addEventListener("submit", (e) => {
      e.preventDefault();
      e.stopPropagation();
      if (field.value.trim() && link.up) this.answer(this.tree.add(node.parent, { role: "user", content: field.value.trim() }).id);
    });
    element.replaceChildren(form);
    field.focus();
  }

  showToken(target) {
    const i = target.dataset?.token;
    if (i === undefined) return;
    const node = this.tree.nodes.get(Number(target.closest(".msg").dataset.id));
    this.tip.innerHTML = alternatives(node.meta.tokens[i]);
    this.tip.hidden = false;
    const at = target.getBoundingClientRect(), own = this.tip.getBoundingClientRect();
    this.tip.style.left = `${Math.max(8, Math.min(at.left, innerWidth - own.width - 8))}px`;
    this.tip.style.top = `${at.top > own.height + 12 ? at.top - own.height - 6 : at.bottom + 6}px`;
  }

  /** Draws the answer that is being made, once per frame at most. */
  refresh(node) {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      const body = this.list.querySelector(`[data-id="${node.id}"] .body_`);
      if (!body || !node.meta.streaming) return;
      const stays = this.atEnd();
      body.innerHTML = answerBody(node, new Map());
      if (stays) this.toEnd();
    });
  }

  /** Enables buttons that need the server. Redraws nothing: a message may be under edit. */
  reach() {
    for (const button of this.list.querySelectorAll("[data-act=again], [data-act=continue], .asks button, .editing .strong")) button.disabled = !link.up;
    this.send.disabled = !link.up && !this.busy;
  }

  atEnd() {
    return this.scroller.scrollHeight - this.scroller.scrollTop - this.scroller.clientHeight < 80;
  }

  toEnd() {
    this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  render(jump = false) {
    const stays = jump || this.atEnd(), results = this.results();
    const shown = this.tree.path().filter(({ message }) => message.role !== "tool");
    this.tip.hidden = true;
    this.list.innerHTML = shown.length ? shown.map((node, i) => draw(node, this.tree, results, this.busy, node.message.role === shown[i + 1]?.message.role)).join("") : welcome();
    this.reach();
    this.send.textContent = this.busy ? "■" : "↑";
    this.send.title = this.busy ? "stop (Esc)" : "send (Enter)";
    this.send.setAttribute("aria-label", this.busy ? "stop" : "send");
    this.form.classList.toggle("busy", this.busy);
    this.list.setAttribute("aria-busy", this.busy); // who listens to the page hears an answer when it is whole
    if (stays) this.toEnd();
  }
}

/** Nodes as a request has them: without what was thought, and without answers that never came. */
function written(nodes) {
  return nodes.filter(({ message, meta }) => !meta.error || message.content).map(({ message: { reasoning, ...rest } }) => rest);
}

/**
 * Fields of a request that continues the last of these nodes. A session refuses such a request, so
 * it carries the whole conversation.
 */
function continuing(nodes, system) {
  const lead = system ? [{ role: "system", content: system }] : [];
  return { messages: [...lead, ...written(nodes)], continue_final_message: true, add_generation_prompt: false };
}

/**
 * The usage of a chunk, plus the tokens of the answer `before` it was continued. Only the last
 * chunk, which has no choices, knows the cached tokens.
 */
function usage({ usage: { prompt_tokens_details: details, completion_tokens: made, ...rest }, choices }, before) {
  return { ...rest, completion_tokens: before + made, ...(choices?.length ? {} : { prompt_tokens_details: details }) };
}

/** Takes a delta into the message. False if it held nothing to show. */
function take(message, delta) {
  let got = false;
  if (delta.content) [message.content, got] = [message.content + delta.content, true];
  if (delta.reasoning_content) [message.reasoning, got] = [(message.reasoning ?? "") + delta.reasoning_content, true];
  for (const { index, id, function: part } of delta.tool_calls ?? []) {
    const call = ((message.tool_calls ??= [])[index] ??= { id, type: "function", function: { name: "", arguments: "" } });
    call.function.name += part?.name ?? "";
    call.function.arguments += part?.arguments ?? "";
    got = true;
  }
  return got;
}

function welcome() {
  return `<div class="welcome"><h1>What shall we talk about?</h1><div class="examples">${EXAMPLES.map((text) => `<button type="button" data-example="${text}">${text}</button>`).join("")}</div></div>`;
}
