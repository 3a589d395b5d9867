// A request that exceeds the model's context: its question goes back into its field, and the page offers to drop the
// oldest turns or to begin anew.
//
// The conversation keeps it as `overflow` until its next request:
//   `content`  the question with its files; null if the request had none of its own, as of another answer
//   `parent`   the message that the question or the answer stands under
//   `revises`  the message whose edit the question was; null if it was none
//   `continues`  the answer that was to be continued; null if none was
//   `window`   id of the first message sent, if the request exceeded the context despite dropped turns; else 0
//   `turns`    how many turns must go; 0 if dropping them does not suffice
//   `why`      the server's words

import { filesOf, withFiles, withoutFiles } from "/page/attachments.js";
import { tokens } from "/page/gauge.js";
import { escape } from "/page/markdown.js";
import { written } from "/page/conversation.js";
import { laterTurns } from "/page/truncation.js";

const ROOM = 0.25; // share of the context that is left for answers when turns are dropped
const LEAST_ROOM = 0.02; // share for the answer to a question that stands alone

/** The kept `overflow` of a file, or null. */
export function checkedOverflow(kept) {
  const { content, parent, revises, continues, window, turns, why } = kept ?? {};
  const isId = (value) => Number.isSafeInteger(value) || value === null;
  const isValid = (typeof content === "string" || content === null) && [parent, window, turns].every(Number.isSafeInteger) && isId(revises) && isId(continues) && typeof why === "string";
  return isValid ? { content, parent, revises, continues, window, turns, why } : null;
}

const plural = (n, word) => (n === 1 ? `the oldest ${word}` : `the ${n} oldest ${word}s`);

export class Overflow {
  /** `chat` shows the conversation; `say(text)` shows a text for a moment. */
  constructor({ chat, settings, model, say }) {
    Object.assign(this, { chat, settings, model, say, isBusy: false });
    /** Conversations whose question is back in its field in this tab. */
    this.returned = new Set();
  }

  /** Takes the request for `node` out of the conversation. Nothing that was typed is lost. */
  async take(conversation, node, why, continues) {
    const { tree } = conversation, parent = tree.nodes.get(node.parent);
    const overflow = { content: null, parent: parent.id, revises: null, continues: null, window: 0, turns: 0, why };
    if (continues) overflow.continues = node.id;
    else tree.remove(node.id);
    if (!continues && parent.message.role === "user" && !parent.children.length) Object.assign(overflow, this.withdraw(tree, parent));
    // What was refused alone cannot lose more.
    const isAlone = parent.meta.window === parent.id;
    overflow.turns = (!isAlone && (await this.cut(conversation, this.branch(conversation, overflow, overflow.content)))?.turns) || 0;
    conversation.setOverflow(overflow);
    this.returned.delete(conversation.id);
  }

  /** Removes a question; the branch that it was an edit of is shown again. */
  withdraw(tree, { id, parent, message, meta }) {
    tree.remove(id);
    const above = tree.nodes.get(parent), edited = above.children.indexOf(meta.revises);
    if (edited >= 0) above.chosen = edited;
    return { content: message.content, parent, revises: above.children[above.chosen] ?? null, window: meta.window ?? 0 };
  }

  /** The nodes that a request has, with its question as last. */
  branch({ tree }, { parent, continues, window }, content) {
    const nodes = tree.upTo(parent);
    if (content !== null) nodes.push({ id: 0, message: { role: "user", content }, meta: window ? { window } : {} });
    return { nodes, behind: continues === null ? [] : [tree.nodes.get(continues)] };
  }

  /**
   * Where the window must begin so that the branch fits with room for an answer, as the index of its first node, and how
   * many turns that drops. Null if the last question does not fit even alone.
   */
  async cut(conversation, { nodes, behind }) {
    const { context } = this.model, { tools } = this.settings, limit = this.settings.fields.max_tokens ?? 0;
    const turns = laterTurns(nodes), lead = conversation.system ? [{ role: "system", content: conversation.system }] : [];
    const count = async (at) => {
      const messages = [...lead, ...written([...nodes.slice(turns[at]), ...behind])];
      return (await tokens({ messages, ...(behind.length && { add_generation_prompt: false }), ...(tools.length && { tools }) })) ?? Infinity;
    };
    const last = turns.length - 1;
    if (last < 0 || (await count(last)) > context - Math.max(limit, Math.ceil(LEAST_ROOM * context))) return null;
    // Fewer messages have fewer tokens: a binary search.
    let low = 0, high = last;
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((await count(middle)) <= context - Math.max(limit, ROOM * context)) high = middle;
      else low = middle + 1;
    }
    return { index: turns[low], turns: low + 1 };
  }

  /** Puts a withdrawn question back where it was typed. */
  restoreQuestion(conversation) {
    const { content, revises } = conversation.overflow ?? {}, { chat } = this;
    if (typeof content !== "string") return;
    this.returned.add(conversation.id);
    if (revises === null) this.fill(content);
    else if (!chat.edits.has(conversation.id)) chat.edits.set(conversation.id, { id: revises, text: withoutFiles(content) });
  }

  /** Adds a question and its files before what is in the message field, unless they are there. */
  fill(content) {
    const { question, attachments } = this.chat, text = withoutFiles(content).trim();
    if (!question.value.includes(text)) question.value = [text, question.value].filter((part) => part.trim()).join("\n\n");
    const held = new Set(attachments.files.map(({ name, content }) => JSON.stringify([name, content])));
    attachments.set([...filesOf(content).filter(({ name, content }) => !held.has(JSON.stringify([name, content]))), ...attachments.files]);
  }

  /** The question as its field has it now. */
  content(conversation) {
    const { content, revises } = conversation.overflow, { question, attachments, edits } = this.chat;
    if (content === null) return null;
    if (revises === null) return withFiles(question.value, attachments.files);
    const edit = edits.get(conversation.id);
    return edit?.id === revises ? withFiles(edit.text, filesOf(content)) : content;
  }

  /** Drops as many of the oldest turns as needed, and sends the request again. */
  async drop() {
    const { chat } = this, { conversation } = chat, { overflow } = conversation;
    if (!overflow || this.isBusy) return;
    const content = this.content(conversation), branch = this.branch(conversation, overflow, content);
    if (content === "") return chat.question.focus();
    this.isBusy = true;
    const cut = await this.cut(conversation, branch);
    this.isBusy = false;
    if (conversation.overflow !== overflow || conversation.busy || !chat.shows(conversation)) return;
    // What was typed meanwhile is part of the question.
    if (this.content(conversation) !== content) return this.drop();
    if (!cut) {
      conversation.setOverflow({ ...overflow, turns: 0 });
      return chat.render();
    }
    this.send(conversation, branch.nodes, cut, content);
  }

  /** Sends the request with the window beginning at `cut`. */
  send(conversation, nodes, { index, turns }, content) {
    const { chat } = this, { tree, overflow } = conversation;
    const node = content === null ? tree.nodes.get(overflow.parent) : tree.add(overflow.parent, { role: "user", content });
    node.meta.window = nodes[index].id || node.id;
    if (overflow.revises !== null) node.meta.revises = overflow.revises;
    tree.touch(node);
    this.settle(conversation);
    if (content !== null && overflow.revises === null) chat.clearQuestion();
    else if (content !== null) chat.edits.delete(conversation.id);
    this.say(`${turns === 1 ? "The oldest turn is" : `The ${turns} oldest turns are`} no longer sent.`);
    if (overflow.continues !== null) chat.continueAnswer(tree.nodes.get(overflow.continues));
    else chat.answer(node.id);
    chat.questionFocus.take();
  }

  /** Begins a conversation with the question in the message field. */
  anew() {
    const { chat } = this, { conversation } = chat, { overflow } = conversation;
    if (!overflow) return;
    const last = conversation.tree.upTo(overflow.parent).findLast(({ message }) => message.role === "user");
    const content = this.content(conversation) ?? last?.message.content ?? "";
    this.settle(conversation);
    chat.edits.delete(conversation.id);
    chat.begin();
    this.fill(content);
    chat.questionFocus.take();
  }

  /** The request is made in another way, or no longer wanted. */
  settle(conversation) {
    conversation.setOverflow(null);
    this.returned.delete(conversation.id);
  }

  /** The message field was emptied, or the edit of message `revises` was canceled: its question is no longer wanted. */
  async discard(conversation, revises = null) {
    const { overflow } = conversation;
    if (typeof overflow?.content !== "string" || overflow.revises !== revises || !this.returned.has(conversation.id)) return;
    this.settle(conversation);
    if (!conversation.isEmpty) {
      await this.chat.keep();
      return this.chat.render();
    }
    await this.chat.conversations.remove(conversation.id);
    if (this.chat.shows(conversation)) this.chat.begin();
  }

  /** The offer, and the id of the message that it stands under, 0 for the beginning; null if there is no place for it. */
  offer(conversation) {
    const { overflow, tree } = conversation;
    if (!overflow || conversation.busy) return null;
    const { content, parent, revises, continues } = overflow;
    // The question is in the field of another tab.
    if (content !== null && !this.returned.has(conversation.id)) return null;
    const next = tree.nodes.get(parent)?.children.length ? tree.path().find((node) => node.parent === parent) : null;
    // Another tab may have gone on behind the place of a withdrawn question.
    if (content !== null && revises === null && next) return null;
    const answer = next?.message.role === "assistant" ? next.id : parent;
    return { place: revises ?? continues ?? (content === null ? answer : parent), html: this.html(conversation) };
  }

  /** The offer as HTML. */
  html({ overflow, tree }) {
    const { content, parent, revises, continues, turns, why } = overflow, { context } = this.model;
    const what = content !== null ? `This question does not fit into the context. It is back in ${revises === null ? "the message field" : "its field"}.`
      : continues !== null ? "The context has no room to continue this answer." : "The context has no room for this answer.";
    const earlier = tree.upTo(parent).filter(({ message }) => message.role === "user").length - (content === null);
    const isLimited = this.settings.fields.max_tokens > ROOM * context;
    const how = turns ? `The model can answer without ${plural(turns, "turn")}: they stay here, but are no longer sent.`
      : `${earlier > 0 ? "Dropping earlier turns does not help. " : ""}${content === null ? "Begin anew with a shorter question" : "Shorten it"}${isLimited ? ", or lower the token limit in the settings" : ""}.`;
    const button = (act, label, title) => `<button type="button" class="quiet" data-act="${act}" title="${title}">${label}</button>`;
    const drop = turns ? button("drop", `drop ${plural(turns, "turn")}`, "send the request without them; they stay here, and the system prompt is still sent") : "";
    const anew = tree.nodes.size > 1 ? button("anew", "begin anew", "a new conversation with the question in the message field") : "";
    return `<section class="overflow" aria-label="context exceeded"><div role="alert"><p>${what} ${how}</p><p class="note">${escape(why).replace(/`([^`]*)`/g, "<code>$1</code>")}</p></div><div class="offers">${drop}${anew}</div></section>`;
  }
}
