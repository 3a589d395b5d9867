// All conversations: what the store holds, and those whose answer is being made.
//
// Tabs tell each other of changes over a `BroadcastChannel`; the last write of a conversation stays.

import { Conversation } from "/page/conversation.js";
import { forgetSessions } from "/page/sessions.js";
import { Store } from "/page/store.js";

const CHANNEL = "kvasir-conversations";

const textOf = ({ title, tree }) => [title, ...tree.nodes.map(({ message }) => message?.content ?? "")].join("\n").toLowerCase();

export class Conversations extends EventTarget {
  constructor() {
    super();
    /** Opens meanwhile: the page does not wait for it. */
    this.opening = Store.open();
    /** Loaded conversations by id: those that are shown or answered. */
    this.live = new Map();
    this.channel = "BroadcastChannel" in globalThis ? new BroadcastChannel(CHANNEL) : null;
    this.channel?.addEventListener("message", ({ data }) => this.tell(data, true));
  }

  /** Reports a change of a conversation: `elsewhere` if another tab made it. */
  tell(id, elsewhere = false) {
    this.dispatchEvent(new CustomEvent("change", { detail: { id, elsewhere } }));
  }

  changed(id) {
    this.channel?.postMessage(id);
    this.tell(id);
  }

  /** Records whose title or text holds `words`, the last changed first. */
  async list(words = "") {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    const records = await (await this.opening).all();
    const found = wanted.length ? records.filter((record) => { const text = textOf(record); return wanted.every((word) => text.includes(word)); }) : records;
    return found.sort((a, b) => b.updated - a.updated);
  }

  /** A conversation by id; null if there is none or its record is damaged. */
  async load(id) {
    if (this.live.has(id)) return this.live.get(id);
    const record = await (await this.opening).get(id);
    try {
      const conversation = record ? Conversation.from(record) : null;
      if (conversation) this.live.set(id, conversation);
      return conversation;
    } catch {
      return null;
    }
  }

  /** Forgets a loaded conversation, so that it is read from the store again. */
  release(conversation) {
    if (!conversation.busy) this.live.delete(conversation.id);
  }

  /**
   * Writes a conversation, unless it is empty or deleted. `touched` moves it to the top of the list;
   * `quiet` fires no event, for an answer in progress.
   */
  async save(conversation, { touched = false, quiet = false } = {}) {
    if (conversation.isEmpty || conversation.deleted) return;
    this.live.set(conversation.id, conversation);
    if (touched) conversation.updated = Date.now();
    await this.put(conversation.record(), quiet);
  }

  async put(record, quiet = false) {
    try {
      await (await this.opening).put(record);
    } catch {
      // The browser's quota is used up: the page goes on, as without a store.
      this.dispatchEvent(new Event("full"));
    }
    if (!quiet) this.changed(record.id);
  }

  async rename(id, title) {
    const conversation = await this.load(id);
    if (!conversation) return;
    Object.assign(conversation, { title: title.trim(), named: Boolean(title.trim()) });
    await this.save(conversation);
  }

  /** Deletes a conversation; gives its record, for `restore`. */
  async remove(id) {
    const conversation = await this.load(id);
    const record = await (await this.opening).get(id);
    if (conversation) {
      conversation.deleted = true;
      conversation.stopper?.abort();
      this.live.delete(id);
    }
    await (await this.opening).remove(id);
    this.changed(id);
    return record;
  }

  /** Takes deleted records back. Their sessions have ended. */
  async restore(records) {
    for (const record of records) {
      forgetSessions(record.tree.nodes);
      await this.put(record);
    }
  }

  /** Deletes all; gives their records, for `restore`. */
  async clear() {
    const records = await (await this.opening).all();
    for (const { id } of records) await this.remove(id);
    return records;
  }

  /** Stoppers of the answers that are being made. */
  running() {
    return [...this.live.values()].map(({ stopper }) => stopper).filter(Boolean);
  }
}
