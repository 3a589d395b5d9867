// The conversation that is shown: asking, stopping, editing, branching, tools.
//
// Another conversation may be opened while an answer is made; the answer goes on and is kept there.

import { forgetAnswering, keepAnswering, takeAnswering } from "/page/answering.js";
import { filesOf, withFiles, withoutFiles } from "/page/attachments.js";
import { drawBranch } from "/page/branch.js";
import { copy } from "/page/clipboard.js";
import { complete, isOverflow } from "/page/completion.js";
import { Conversation } from "/page/conversation.js";
import { QuestionFocus } from "/page/focus.js";
import { follow } from "/page/footnotes.js";
import { link } from "/page/link.js";
import { drawMath } from "/page/math.js";
import { answerBody, canContinue, clearOutcome } from "/page/message.js";
import { morph } from "/page/morph.js";
import { Overflow } from "/page/overflow.js";
import { isPending } from "/page/response_events.js";
import { discard } from "/page/responses.js";
import { end, endWithPage } from "/page/sessions.js";
import { session } from "/page/storage.js";
import { TokenTip } from "/page/token_tip.js";
import { OWN } from "/page/tools.js";
import { undrop } from "/page/truncation.js";

const OPEN = "kvasir-open"; // the conversation that this tab shows
const MOST_ROUNDS = 8; // answers in a row that call tools
const SAVE_EVERY = 1000; // ms between two writes of an answer in progress

/** Enter sends, unless it ends a composition of an input method. */
const isSend = (e) => e.key === "Enter" && !e.shiftKey && !e.isComposing;

/** Fires `shown` when another conversation is shown or its state has changed. */
export class Chat extends EventTarget {
  /** `guard(error)` is true if it took care of the error (asked for the key); `say(text)` shows a text for a moment. */
  constructor({ list, form, settings, conversations, attachments, gauge, model, guard, say }) {
    super();
    Object.assign(this, { list, form, settings, conversations, attachments, gauge, model, guard, say });
    /** Questions under edit, as `{id, text}`, by conversation: they outlast a look at another one. */
    this.edits = new Map();
    /** The answer that was refused for its key, as `{conversation, parent}`. */
    this.refused = null;
    this.scroller = list.parentElement;
    this.question = form.querySelector("textarea");
    this.send = form.querySelector(".send");
    this.endButton = form.querySelector(".to-end");
    this.questionFocus = new QuestionFocus(this.question, this.send);
    this.overflow = new Overflow({ chat: this, settings, model, say });
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

  /** Shows what this tab showed before it was loaded again, and resumes its answers. */
  async restore() {
    const cut = await Promise.all(takeAnswering().map(async ({ record, node }) => ({ conversation: await this.conversations.revive(record), node })));
    const id = session.get(OPEN), conversation = id && (await this.conversations.read(id));
    // A question may have been asked meanwhile.
    if (conversation && this.conversation.isEmpty) this.show(conversation);
    for (const { conversation, node } of cut) if (conversation) this.resumeCut(conversation, node);
  }

  /** Resumes an answer that a reload interrupted. One whose request had no reply yet is requested again. */
  resumeCut(conversation, id) {
    const { tree } = conversation, node = tree.nodes.get(id);
    const isRequested = node?.meta.stopped && !node.meta.response?.id && !node.message.content && !node.children.length;
    if (conversation.busy || !isRequested) return this.followPending(conversation);
    tree.remove(id);
    this.answer(node.parent, { conversation });
  }

  /** Follows an answer that the server may still be generating for an unloaded page, unless another tab does. */
  async followPending(conversation = this.conversation) {
    const pending = () => [...conversation.tree.nodes.values()].find((node) => node.id && isPending(node));
    if (conversation.busy || !pending()) return;
    await this.conversations.tabs.settle();
    await this.conversations.sync(conversation);
    const node = pending();
    if (!node || conversation.busy || conversation.deleted || this.conversations.tabs.writes(conversation.id)) return;
    return this.answer(node.parent, { cut: node, conversation });
  }

  /** Shows a kept conversation. */
  async open(id) {
    if (id === this.conversation.id && !this.conversation.deleted) return;
    const conversation = await this.conversations.read(id);
    if (conversation) this.show(conversation);
    else this.say("This conversation is damaged or was deleted.");
  }

  /** Begins a conversation. */
  begin() {
    if (!this.conversation.isEmpty || this.conversation.deleted) this.show(new Conversation({ system: this.settings.system }));
    this.question.focus();
  }

  show(conversation) {
    this.leave();
    this.conversation = conversation;
    if (!conversation.isEmpty) this.conversations.hold(conversation);
    session.set(OPEN, conversation.id);
    this.overflow.restoreQuestion(conversation);
    this.render(true);
    this.questionFocus.take();
    this.followPending();
  }

  /** Ends the sessions of a conversation that is not shown, once it rests. */
  leave(conversation = this.conversation) {
    if (conversation.busy) return;
    end(conversation.tree);
    this.conversations.save(conversation);
    this.conversations.release(conversation);
  }

  /** Takes in what another tab has written into the shown conversation, or that it has deleted it. */
  async sync() {
    const { conversation } = this;
    if (conversation.deleted) return this.show(new Conversation({ system: this.settings.system }));
    const changed = await this.conversations.sync(conversation);
    if (changed && this.shows(conversation) && !this.busy) this.render();
  }

  /** Called when the page is closed or loaded again: ends its sessions and stores its conversations. */
  close() {
    const answering = [];
    for (const conversation of new Set([this.conversation, ...this.conversations.live.values()])) {
      const hasEnded = endWithPage(conversation.tree);
      if (hasEnded || conversation.busy) this.conversations.save(conversation);
      // The browser may not complete that write.
      const node = [...conversation.tree.nodes.values()].find(({ meta }) => meta?.streaming);
      if (node && !conversation.deleted) answering.push({ record: conversation.record(), node: node.id });
    }
    keepAnswering(answering);
  }

  setSystem(text, conversation) {
    conversation.prompt(text);
    this.conversations.save(conversation);
  }

  keep() {
    return this.conversations.save(this.conversation);
  }

  /** Stops the answer that is being made, on the server too. False if none is. */
  stop() {
    this.conversation.stopper?.abort();
    return this.busy;
  }

  listen() {
    this.form.addEventListener("submit", (e) => {
      e.preventDefault();
      if (this.busy) this.stop();
      else this.ask(this.question.value);
    });
    this.question.addEventListener("keydown", (e) => {
      if (isSend(e)) {
        e.preventDefault();
        if (!this.busy) this.ask(this.question.value);
      }
    });
    this.question.addEventListener("input", () => this.wrote());
    this.list.addEventListener("click", (e) => this.act(e));
    this.list.addEventListener("submit", (e) => this.answerCall(e));
    this.scroller.addEventListener("scroll", () => this.markEnd(), { passive: true });
    this.endButton.addEventListener("click", () => this.toEnd());
    addEventListener("pagehide", () => this.close());
    addEventListener("pageshow", ({ persisted }) => { if (persisted) forgetAnswering(); });
  }

  /** The question has changed: its field grows with it, and the gauge counts it. */
  wrote() {
    this.question.style.height = "auto";
    this.question.style.height = `${Math.min(this.question.scrollHeight, 240)}px`;
    const content = withFiles(this.question.value, this.attachments.files);
    this.gauge.draft(content);
    if (!content) this.overflow.discard(this.conversation);
  }

  clearQuestion() {
    this.attachments.take();
    this.question.value = "";
    this.wrote();
  }

  ask(text) {
    if ((!text.trim() && !this.attachments.files.length) || this.busy || !link.up) return;
    const content = withFiles(text, this.attachments.files);
    this.overflow.settle(this.conversation);
    this.clearQuestion();
    const node = this.tree.add(this.tree.path().at(-1)?.id ?? 0, { role: "user", content });
    session.set(OPEN, this.conversation.id);
    this.answer(node.id);
    this.questionFocus.settle();
  }

  /**
   * Lets the model answer under a node, running the page's own tools until it has no more calls for
   * them. The first answer is `cut` if there is one: it is followed if it is pending, else continued.
   */
  async answer(parent, { cut = null, conversation = this.conversation } = {}) {
    const { tree } = conversation;
    const { signal } = (conversation.stopper = new AbortController());
    this.refused = null;
    this.overflow.settle(conversation);
    this.conversations.hold(conversation);
    this.conversations.tabs.begins(conversation.id);
    this.conversations.save(conversation, { touched: true });
    for (let round = 1; parent !== null; round++) {
      const node = round === 1 && cut ? cut : tree.add(parent, { role: "assistant", content: "" });
      const continues = node === cut && !isPending(node);
      const before = continues ? clearOutcome(node.meta) : {};
      node.meta.streaming = true;
      if (this.shows(conversation)) this.render(true);
      const refresh = (node, { begins }) => this.refresh(conversation, node, begins);
      const refusal = await complete(conversation, node, { fields: this.settings.fields, continues, signal, guard: this.guard, refresh });
      delete node.meta.streaming;
      tree.touch(node);
      if (isOverflow(refusal)) {
        Object.assign(node.meta, before);
        await this.overflow.take(conversation, node, refusal.message, continues);
      } else if (refusal) this.refuse(conversation, node, continues);
      const continuesTurn = !refusal && (await this.end(conversation, node)) && !node.meta.stopped && !node.meta.error;
      parent = continuesTurn ? this.runTools(tree, node) : null;
      if (parent !== null && round === MOST_ROUNDS) {
        node.meta.rounds = MOST_ROUNDS;
        parent = null;
      }
    }
    conversation.stopper = null;
    const saved = this.conversations.save(conversation, { touched: true });
    if (this.shows(conversation)) this.rest();
    else this.leave(conversation);
    await saved;
    if (!conversation.busy) this.conversations.tabs.ends(conversation.id);
  }

  /** Stores the end of an answer, then deletes it on the server. False if another tab has stored it, which then continues the turn. */
  async end(conversation, node) {
    const { response } = node.meta;
    if (response?.id === undefined) return true;
    const isFirst = await this.conversations.end(conversation, node);
    // A canceled one is deleted by the tab that canceled it.
    if (isFirst && !node.meta.stopped) discard(response.id);
    return isFirst;
  }

  /** Shows that no answer is being made. */
  rest() {
    const { conversation } = this;
    this.overflow.restoreQuestion(conversation);
    this.render();
    const { overflow } = conversation;
    if (overflow) this.list.querySelector(".overflow")?.scrollIntoView({ block: "nearest" });
    if (overflow?.content && overflow.revises !== null) this.list.querySelector(".editing textarea")?.focus();
    this.questionFocus.settle();
  }

  /** The server refused the key of an answer: it is removed unless it is pending, and requested again with the next key. */
  refuse(conversation, node, continues) {
    if (isPending(node)) return;
    if (continues) {
      node.meta.error = "The server asks for a key.";
      return;
    }
    conversation.tree.remove(node.id);
    this.refused = { conversation, parent: node.parent };
  }

  /** The server takes a new key. */
  resume() {
    this.followPending();
    const { conversation, parent } = this.refused ?? {};
    if (!conversation || conversation.busy || conversation.deleted || conversation.tree.nodes.get(parent)?.children.length) return;
    this.answer(parent, { conversation });
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
    const path = this.tree.path(), end = path.at(-1);
    // Another tab may have asked something meanwhile: a result belongs directly behind its call.
    if (path.slice(path.indexOf(node) + 1).some(({ message }) => message.role !== "tool")) return this.render();
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
    if (act === "drop") return link.up && this.overflow.drop();
    if (act === "anew") return this.overflow.anew();
    if (act === "undrop") return this.undrop();
    if (act === "note" || act === "note-back") return follow(target);
    if (act === "copy-code") {
      const code = target.closest(".codebox").querySelector("pre");
      return copy(target, code.textContent, code);
    }
    const shown = target.closest(".msg"), id = Number(shown.dataset.id), node = this.tree.nodes.get(id);
    if (act === "copy") return copy(target, node.message.content, shown.querySelector(".bubble, .text, .tokens"));
    if (this.busy) return;
    if (act === "back" || act === "on") this.tree.turn(id, act === "on" ? 1 : -1);
    else if (act === "tokens") node.meta.showTokens = !node.meta.showTokens;
    else if (act === "edit") return this.openEdit(shown, node);
    else if (act === "again") return link.up && this.again(node);
    else if (act === "continue") return link.up && this.continueAnswer(node);
    else if (act === "answer") return link.up && this.answer(id);
    else if (act === "resume") return link.up && this.answer(this.tree.path().at(-1).id);
    this.keep();
    this.render();
  }

  /** Sends the dropped turns again with the next question. */
  undrop() {
    if (this.busy) return;
    undrop(this.tree);
    this.keep();
    this.render();
    this.questionFocus.settle();
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
    // The session holds the answer as it was cut: the next question forks it before that answer.
    if (meta.session) meta.tried = meta.session;
    delete meta.session;
    this.tree.touch(node);
    this.answer(node.parent, { cut: node });
  }

  /** Lets the last question be edited. */
  editLast() {
    const node = this.tree.path().findLast(({ message }) => message.role === "user");
    const element = node && this.list.querySelector(`[data-id="${node.id}"]`);
    if (element && !this.busy) this.openEdit(element, node);
  }

  /** Opens the edit of a question, and closes another one. */
  openEdit(element, node) {
    if (this.edits.get(this.conversation.id)?.id === node.id) return this.list.querySelector(".editing textarea").focus();
    this.edits.delete(this.conversation.id);
    this.list.querySelector(".editing")?.remove();
    this.render();
    this.edit(this.list.querySelector(`[data-id="${element.dataset.id}"]`), node).focus();
  }

  /** Lets a question be edited; the new one begins a branch beside it. Its files stay. */
  edit(element, node, text = withoutFiles(node.message.content)) {
    const { conversation } = this;
    const form = document.createElement("form"), files = filesOf(node.message.content);
    form.className = "editing";
    form.innerHTML = `<textarea aria-label="edited message"></textarea><div class="row-end"><button type="button" class="quiet" value="no">cancel</button><button class="strong">send</button></div>`;
    const field = form.querySelector("textarea");
    field.value = text;
    field.rows = Math.min(12, field.value.split("\n").length + 1);
    const note = () => this.edits.set(conversation.id, { id: node.id, text: field.value });
    const close = () => {
      this.edits.delete(conversation.id);
      form.remove();
    };
    const cancel = () => {
      close();
      this.overflow.discard(conversation, node.id);
      this.render();
      this.question.focus();
    };
    form.querySelector("[value=no]").addEventListener("click", cancel);
    field.addEventListener("input", note);
    field.addEventListener("keydown", (e) => {
      if (e.key === "Escape") {
        e.stopPropagation();
        cancel();
      } else if (isSend(e)) {
        e.preventDefault();
        form.requestSubmit();
      }
    });
    form.addEventListener("submit", (e) => {
      e.preventDefault();
      e.stopPropagation();
      const content = withFiles(field.value, files);
      if (!content || !link.up || this.busy) return;
      close();
      const revision = this.tree.add(node.parent, { role: "user", content });
      revision.meta.revises = node.id;
      if (node.meta.window) revision.meta.window = node.meta.window === node.id ? revision.id : node.meta.window;
      this.answer(revision.id);
      this.question.focus();
    });
    note();
    element.replaceChildren(form);
    return field;
  }

  /** Draws the answer that is being made, once per frame at most, and saves it when it `begins` and now and then. */
  refresh(conversation, node, begins) {
    if (begins || performance.now() - (conversation.savedAt ?? 0) > SAVE_EVERY) {
      conversation.savedAt = performance.now();
      conversation.tree.touch(node);
      this.conversations.save(conversation, { quiet: true });
    }
    if (this.frame || !this.shows(conversation)) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      const body = this.list.querySelector(`[data-id="${node.id}"] .body_`);
      if (!body || !node.meta.streaming) return;
      const stays = this.atEnd();
      morph(body, answerBody(node, new Map()));
      drawMath(body);
      this.gauge.show(this.conversation);
      if (stays) this.toEnd();
      else this.markEnd();
    });
  }

  /** Enables buttons that need the server. Redraws nothing: a message may be under edit. */
  reach() {
    for (const button of this.list.querySelectorAll("[data-act=again], [data-act=continue], [data-act=answer], [data-act=resume], [data-act=drop], [data-example], .asks button, .editing .strong")) button.disabled = !link.up;
    this.send.disabled = !link.up && !this.busy;
  }

  atEnd() {
    return this.scroller.scrollHeight - this.scroller.scrollTop - this.scroller.clientHeight < 80;
  }

  toEnd() {
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.markEnd();
  }

  /** Scrolls by almost what is visible. */
  scrollPage(by) {
    this.scroller.scrollBy({ top: by * 0.9 * this.scroller.clientHeight });
  }

  markEnd() {
    this.endButton.hidden = this.atEnd();
  }

  render(jump = false) {
    const stays = jump || this.atEnd(), results = this.results(), focus = this.focused();
    const { id } = this.conversation, isWritten = !this.busy && this.conversations.tabs.writes(id);
    this.tip.hide();
    const heading = `<h1 class="sr">Chat with ${this.model.nameHtml}</h1>`;
    const messages = drawBranch(this.tree, { busy: this.busy, isWritten, results, offer: this.overflow.offer(this.conversation) });
    const elsewhere = isWritten ? '<p class="note elsewhere" role="status">Another tab is writing in this conversation.</p>' : "";
    morph(this.list, !this.conversation.isEmpty ? heading + messages + elsewhere : this.model.welcome());
    this.restoreEdit();
    drawMath(this.list);
    this.reach();
    this.focus(focus);
    this.send.title = this.busy ? "stop (Esc)" : "send (Enter)";
    this.send.setAttribute("aria-label", this.busy ? "stop" : "send");
    this.form.classList.toggle("busy", this.busy);
    this.list.setAttribute("aria-busy", this.busy); // a screen reader reads an answer when it is whole
    this.gauge.show(this.conversation);
    if (stays) this.toEnd();
    else this.markEnd();
    this.dispatchEvent(new Event("shown"));
  }

  /** Draws the open edit of this conversation again, if it is not shown. */
  restoreEdit() {
    const { id, text } = this.edits.get(this.conversation.id) ?? {};
    const element = id !== undefined && this.list.querySelector(`[data-id="${id}"]`);
    if (element && !element.querySelector(".editing")) this.edit(element, this.tree.nodes.get(id), text);
  }

  /** The focused control of a message: which one, and of which message. */
  focused() {
    const control = document.activeElement, message = this.list.contains(control) ? control.closest(".msg") : null;
    if (!message) return null;
    const act = control === message ? this.lastAct : control.dataset.act;
    return { control, act, at: [...this.list.querySelectorAll(".msg")].indexOf(message) };
  }

  /** Puts the focus on the same control of the message at the same place; on the message while it has no such control. */
  focus(before) {
    if (!before || (before.control.isConnected && !before.control.disabled && !before.control.matches(".msg"))) return;
    const messages = this.list.querySelectorAll(".msg"), message = messages[Math.min(before.at, messages.length - 1)];
    const control = before.act && message?.querySelector(`[data-act=${before.act}]:enabled`);
    this.lastAct = before.act;
    if (message && !control) message.tabIndex = -1;
    (control || message)?.focus({ preventScroll: true });
  }
}
