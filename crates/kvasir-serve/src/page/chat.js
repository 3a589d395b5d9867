// The conversation that is shown: asking, stopping, editing, branching, tools.
//
// Another conversation may be opened while an answer is made; the answer goes on and is kept there.

import { Lost } from "/page/api.js";
import { filesOf, withFiles, withoutFiles } from "/page/attachments.js";
import { copy } from "/page/clipboard.js";
import { complete } from "/page/completion.js";
import { Conversation } from "/page/conversation.js";
import { link } from "/page/link.js";
import { drawMath } from "/page/math.js";
import { answerBody, canContinue, draw } from "/page/message.js";
import { end } from "/page/sessions.js";
import { TokenTip } from "/page/token_tip.js";
import { OWN } from "/page/tools.js";

const OPEN = "kvasir-open"; // the conversation that this tab shows
const MOST_ROUNDS = 8; // answers in a row that call tools
const SAVE_EVERY = 1000; // ms between two writes of an answer in progress

/** Fires `shown` when another conversation is shown or its state has changed. */
export class Chat extends EventTarget {
  /** `guard(error)` is true if it took care of the error (asked for the key). */
  constructor({ list, form, settings, conversations, attachments, gauge, model, guard }) {
    super();
    Object.assign(this, { list, form, settings, conversations, attachments, gauge, model, guard });
    this.scroller = list.parentElement;
    this.question = form.querySelector("textarea");
    this.send = form.querySelector(".send");
    this.endButton = form.querySelector(".to-end");
    this.tip = new TokenTip(list, (id) => this.tree.nodes.get(id));
    this.conversation = new Conversation({ system: settings.system });
    this.listen();
    this.render();
  }

  get tree() {
    return this.conversation.tree;
  }

  get busy() {
    return this.conversation.busy;
  }

  /** Shows what this tab showed before it was loaded again. */
  async restore() {
    const id = sessionStorage.getItem(OPEN), conversation = id && (await this.conversations.load(id));
    // A question may have been asked meanwhile.
    if (conversation && this.conversation.isEmpty) this.show(conversation);
  }

  /** Shows a kept conversation. */
  async open(id) {
    if (id === this.conversation.id && !this.conversation.deleted) return;
    const conversation = await this.conversations.load(id);
    if (conversation) this.show(conversation);
  }

  /** Begins a conversation. */
  begin() {
    if (!this.conversation.isEmpty || this.conversation.deleted) this.show(new Conversation({ system: this.settings.system }));
    this.question.focus();
  }

  show(conversation) {
    this.leave();
    this.conversation = conversation;
    sessionStorage.setItem(OPEN, conversation.id);
    this.render(true);
  }

  /** Ends the sessions of a conversation that is not shown, once it rests. */
  leave(conversation = this.conversation) {
    if (conversation.busy) return;
    end(conversation.tree);
    this.conversations.save(conversation);
    this.conversations.release(conversation);
  }

  /** Reads the shown conversation again after another tab has changed it. */
  async reload() {
    if (this.busy || this.conversation.isEmpty || this.list.querySelector(".editing")) return;
    this.conversations.live.delete(this.conversation.id);
    const conversation = await this.conversations.load(this.conversation.id);
    this.conversation = conversation ?? new Conversation({ system: this.settings.system });
    this.render();
  }

  setSystem(text, conversation) {
    conversation.system = text;
    this.conversations.save(conversation);
  }

  keep() {
    return this.conversations.save(this.conversation);
  }

  stop() {
    this.conversation.stopper?.abort();
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
    this.question.addEventListener("input", () => this.wrote());
    this.list.addEventListener("click", (e) => this.act(e));
    this.list.addEventListener("submit", (e) => this.answerCall(e));
    this.scroller.addEventListener("scroll", () => this.markEnd(), { passive: true });
    this.endButton.addEventListener("click", () => this.toEnd());
    addEventListener("pagehide", () => { if (this.busy) this.keep(); });
  }

  /** The question has changed: its field grows with it, and the gauge counts it. */
  wrote() {
    this.question.style.height = "auto";
    this.question.style.height = `${Math.min(this.question.scrollHeight, 240)}px`;
    this.gauge.draft(withFiles(this.question.value, this.attachments.files));
  }

  ask(text) {
    if ((!text.trim() && !this.attachments.files.length) || this.busy || !link.up) return;
    const content = withFiles(text, this.attachments.take());
    this.question.value = "";
    this.wrote();
    const node = this.tree.add(this.tree.path().at(-1)?.id ?? 0, { role: "user", content });
    sessionStorage.setItem(OPEN, this.conversation.id);
    this.answer(node.id);
  }

  /**
   * Lets the model answer under a node, running the page's own tools until it has no more calls for
   * them. The first answer continues `cut` if there is one.
   */
  async answer(parent, cut = null) {
    const { conversation } = this, { tree } = conversation;
    const { signal } = (conversation.stopper = new AbortController());
    this.conversations.save(conversation, { touched: true });
    for (let round = 0; round < MOST_ROUNDS && parent !== null; round++) {
      const continues = cut !== null && round === 0;
      const node = continues ? cut : tree.add(parent, { role: "assistant", content: "" });
      node.meta.streaming = true;
      if (this.shows(conversation)) this.render(true);
      const refresh = () => this.refresh(conversation, node);
      const refused = await complete(conversation, node, { fields: this.settings.fields, continues, signal, guard: this.guard, refresh });
      delete node.meta.streaming;
      if (refused && continues) node.meta.error = "The server asks for a key.";
      else if (refused) tree.remove(node.id);
      parent = refused || node.meta.stopped || node.meta.error ? null : this.runTools(tree, node);
    }
    conversation.stopper = null;
    this.conversations.save(conversation, { touched: true });
    if (this.shows(conversation)) this.render();
    else this.leave(conversation);
  }

  shows(conversation) {
    return conversation === this.conversation;
  }

  /** Runs those calls that the page can run. Gives the node to go on under once every call has its result. */
  runTools(tree, node) {
    const calls = node.message.tool_calls ?? [];
    let parent = node.id, open = calls.length;
    for (const { id, function: { name, arguments: given } } of calls) {
      if (!Object.hasOwn(OWN, name)) continue;
      let content, failed = false;
      try {
        content = OWN[name].run(JSON.parse(given));
      } catch (error) {
        content = `error: ${error.message}`;
        failed = true;
      }
      parent = tree.add(parent, { role: "tool", tool_call_id: id, content }).id;
      if (failed) tree.nodes.get(parent).meta.failed = true;
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
    const target = e.target.closest("button");
    const act = target?.dataset.act, example = target?.dataset.example;
    if (example) {
      if (target.dataset.tool) this.settings.setTool(target.dataset.tool, true);
      return this.ask(example);
    }
    if (!act) return;
    if (act === "copy-code") {
      const code = target.closest(".codebox").querySelector("pre");
      return copy(target, code.textContent, code);
    }
    const shown = target.closest(".msg"), id = Number(shown.dataset.id), node = this.tree.nodes.get(id);
    if (act === "copy") return copy(target, node.message.content, shown.querySelector(".bubble, .text, .tokens"));
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

  /** Lets the last question be edited. */
  editLast() {
    const node = this.tree.path().findLast(({ message }) => message.role === "user");
    const element = node && this.list.querySelector(`[data-id="${node.id}"]`);
    if (element && !this.busy) this.edit(element, node);
  }

  /** Lets a question be edited; the new one begins a branch beside it. Its files stay. */
  edit(element, node) {
    const form = document.createElement("form"), files = filesOf(node.message.content);
    form.className = "editing";
    form.innerHTML = `<textarea aria-label="edited message"></textarea><div class="row-end"><button type="button" class="quiet" value="no">cancel</button><button class="strong">send</button></div>`;
    const field = form.querySelector("textarea");
    field.value = withoutFiles(node.message.content);
    field.rows = Math.min(12, field.value.split("\n").length + 1);
    const cancel = () => {
      this.render();
      this.question.focus();
    };
    form.querySelector("[value=no]").addEventListener("click", cancel);
    field.addEventListener("keydown", (e) => {
      if (e.key === "Escape") cancel();
      else if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) form.requestSubmit();
    });
    form.addEventListener("submit", (e) => {
      e.preventDefault();
      e.stopPropagation();
      const content = withFiles(field.value, files);
      if (content && link.up) this.answer(this.tree.add(node.parent, { role: "user", content }).id);
    });
    element.replaceChildren(form);
    field.focus();
  }

  /** Draws the answer that is being made, once per frame at most, and saves it now and then. */
  refresh(conversation, node) {
    if (performance.now() - (conversation.savedAt ?? 0) > SAVE_EVERY) {
      conversation.savedAt = performance.now();
      this.conversations.save(conversation, { quiet: true });
    }
    if (this.frame || !this.shows(conversation)) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      const body = this.list.querySelector(`[data-id="${node.id}"] .body_`);
      if (!body || !node.meta.streaming) return;
      const stays = this.atEnd();
      body.innerHTML = answerBody(node, new Map());
      drawMath(body);
      this.gauge.show(this.conversation);
      if (stays) this.toEnd();
      else this.markEnd();
    });
  }

  /** Aborts answers as cut by a lost connection. */
  lose(stoppers) {
    for (const stopper of stoppers) stopper.abort(new Lost());
  }

  /** Enables buttons that need the server. Redraws nothing: a message may be under edit. */
  reach() {
    for (const button of this.list.querySelectorAll("[data-act=again], [data-act=continue], [data-example], .asks button, .editing .strong")) button.disabled = !link.up;
    this.send.disabled = !link.up && !this.busy;
  }

  atEnd() {
    return this.scroller.scrollHeight - this.scroller.scrollTop - this.scroller.clientHeight < 80;
  }

  toEnd() {
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.markEnd();
  }

  markEnd() {
    this.endButton.hidden = this.atEnd();
  }

  render(jump = false) {
    const stays = jump || this.atEnd(), results = this.results();
    const shown = this.tree.path().filter(({ message }) => message.role !== "tool");
    this.tip.hide();
    const heading = `<h1 class="sr">Chat with ${this.model.nameHtml}</h1>`;
    this.list.innerHTML = shown.length ? heading + shown.map((node, i) => draw(node, this.tree, results, this.busy, node.message.role === shown[i + 1]?.message.role)).join("") : this.model.welcome();
    drawMath(this.list);
    this.reach();
    this.send.title = this.busy ? "stop (Esc)" : "send (Enter)";
    this.send.setAttribute("aria-label", this.busy ? "stop" : "send");
    this.form.classList.toggle("busy", this.busy);
    this.list.setAttribute("aria-busy", this.busy); // a screen reader reads an answer when it is whole
    this.gauge.show(this.conversation);
    if (stays) this.toEnd();
    else this.markEnd();
    this.dispatchEvent(new Event("shown"));
  }
}
