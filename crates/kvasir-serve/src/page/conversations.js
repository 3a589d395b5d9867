// All conversations: what the store holds, and those whose answer is being made.
//
// Every write joins the conversation with its stored record in one transaction, so no tab overwrites another's messages.

import { Conversation } from "/page/conversation.js";
import { forgetEnded, forgetSessions } from "/page/sessions.js";
import { Store } from "/page/store.js";
import { Tabs } from "/page/tabs.js";

const textOf = ({ title, overflow, tree }) => [title, overflow?.content ?? "", ...tree.nodes.map(({ message }) => message?.content ?? "")].join("\n").toLowerCase();

/**
 * Fires `change` with `{id, elsewhere, quiet}`, `writing` with `{id}` when an answer in another tab begins or ends,
 * `unkept` with the error if the browser does not keep a conversation, and `cleared` if the site's data is gone.
 */
export class Conversations extends EventTarget {
  constructor() {
    super();
    /** Opens meanwhile: the page does not wait for it. */
    this.opening = Store.open();
    this.opening.then((store) => store.addEventListener("cleared", () => this.clearedByBrowser()));
    /** Conversations that are shown or answered, by id. */
    this.live = new Map();
    this.tabs = new Tabs();
    this.tabs.addEventListener("change", ({ detail }) => this.hear(detail));
    this.tabs.addEventListener("writing", ({ detail }) => this.dispatchEvent(new CustomEvent("writing", { detail })));
  }

  /** Takes in that another tab has changed or deleted a conversation. */
  hear({ id, quiet, deleted }) {
    const conversation = deleted && this.live.get(id);
    if (conversation) this.drop(conversation);
    this.tell(id, { elsewhere: true, quiet });
  }

  tell(id, { elsewhere = false, quiet = false } = {}) {
    this.dispatchEvent(new CustomEvent("change", { detail: { id, elsewhere, quiet } }));
  }

  changed(id, { quiet = false, deleted = false } = {}) {
    this.tabs.changed(id, { quiet, deleted });
    if (!quiet) this.tell(id);
  }

  /** Whether an answer is being made in a conversation, in this tab or another. */
  isBusy(id) {
    return Boolean(this.live.get(id)?.busy) || this.tabs.writes(id);
  }

  /** Records whose title or text holds `words`, the last changed first. */
  async list(words = "") {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    const records = await (await this.opening).all();
    const found = wanted.length ? records.filter((record) => { const text = textOf(record); return wanted.every((word) => text.includes(word)); }) : records;
    return found.sort((a, b) => b.updated - a.updated);
  }

  /** A conversation by id; null if there is none or its record is damaged. */
  async read(id) {
    if (this.live.has(id)) return this.live.get(id);
    const record = await (await this.opening).get(id);
    try {
      if (!record) return null;
      const conversation = Conversation.from(record);
      forgetEnded(conversation.tree);
      return conversation;
    } catch {
      return null;
    }
  }

  /** Restores a conversation from the record that its page saved when it closed during an answer; null if damaged. */
  async revive(record) {
    try {
      const conversation = Conversation.from(record);
      this.hold(conversation);
      const stored = await (await this.opening).get(conversation.id);
      if (stored) this.join(conversation, stored);
      forgetEnded(conversation.tree);
      return conversation;
    } catch {
      return null;
    }
  }

  /** Keeps a conversation loaded while it is shown or answered. */
  hold(conversation) {
    if (!conversation.deleted) this.live.set(conversation.id, conversation);
  }

  /** Forgets a loaded conversation, so that it is read from the store again. */
  release(conversation) {
    if (!conversation.busy) this.live.delete(conversation.id);
  }

  /** Takes what other tabs have written into a loaded conversation. True if its messages have changed. */
  async sync(conversation) {
    const record = await (await this.opening).get(conversation.id);
    return record ? this.join(conversation, record, !conversation.busy) : false;
  }

  join(conversation, record, follows = false) {
    try {
      return conversation.absorb(record, follows);
    } catch {
      return false; // A damaged record is replaced at the next write.
    }
  }

  /**
   * Writes a conversation, unless it is empty or deleted. `touched` moves it to the top of the list;
   * `quiet` is for an answer in progress: the lists stay as they are.
   */
  async save(conversation, { touched = false, quiet = false } = {}) {
    if (conversation.isEmpty || conversation.deleted) return;
    if (touched) conversation.updated = Date.now();
    await this.write(conversation.id, (stored) => {
      if (conversation.deleted) return null;
      if (stored) this.join(conversation, stored);
      return conversation.record();
    });
    if (!conversation.deleted) this.changed(conversation.id, { quiet });
  }

  /** Writes the end of an answer. False if another tab that followed it too has written that before. */
  async end(conversation, node) {
    const own = node.meta.response;
    let isFirst = true;
    await this.write(conversation.id, (stored) => {
      if (conversation.deleted) return null;
      const other = stored?.tree.nodes.find(({ id }) => id === node.id)?.meta.response;
      isFirst = !(other?.id === own.id && other.ended);
      // Set here and not earlier: writes that are queued would store it.
      own.ended = true;
      if (stored) this.join(conversation, stored);
      return conversation.record();
    });
    own.ended = true;
    if (!conversation.deleted) this.changed(conversation.id, { quiet: true });
    return isFirst;
  }

  /** Writes a record; false if the browser does not keep it. */
  async put(record) {
    const isKept = await this.write(record.id, () => record);
    this.changed(record.id);
    return isKept;
  }

  /** False if the browser has no room: the page goes on, as without a store, and says so once. */
  async write(id, change) {
    try {
      await (await this.opening).update(id, change);
      this.isUnkept = false;
    } catch (error) {
      if (!this.isUnkept) this.dispatchEvent(new CustomEvent("unkept", { detail: error }));
      this.isUnkept = true;
    }
    return !this.isUnkept;
  }

  async rename(id, title) {
    const conversation = await this.read(id);
    if (!conversation) return;
    conversation.rename(title);
    await this.save(conversation);
  }

  drop(conversation) {
    conversation.deleted = true;
    conversation.stopper?.abort();
    this.live.delete(conversation.id);
  }

  /** Deletes a conversation; gives its record, for `restore`. */
  async remove(id) {
    const store = await this.opening;
    const record = await store.get(id);
    if (this.live.has(id)) this.drop(this.live.get(id));
    await store.remove(id);
    this.changed(id, { deleted: true });
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

  /** The site's data was cleared while the page is open: what it has loaded is kept again. */
  async clearedByBrowser() {
    for (const conversation of this.live.values()) await this.save(conversation);
    this.tell(null);
    this.dispatchEvent(new Event("cleared"));
  }
}
