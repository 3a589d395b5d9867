// One conversation: its tree of messages, its title and its system prompt.

import { filesOf, withoutFiles } from "/page/attachments.js";
import { Tree } from "/page/tree.js";
import { sent } from "/page/truncation.js";

const TITLE = 60; // characters of a title

/** A random id. `crypto.randomUUID` exists on HTTPS and localhost only. */
function newId() {
  return [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export class Conversation {
  /**
   * `overflow` is the last request if it exceeded the context, see `overflow.js`; null if it did not. `renamed`,
   * `prompted` and `overflowed` are when the title, the system prompt and `overflow` were set.
   */
  constructor({ id = newId(), title = "", named = false, renamed = 0, created = Date.now(), updated = Date.now(), system = "", prompted = 0, overflow = null, overflowed = 0, tree = new Tree() } = {}) {
    Object.assign(this, { id, title, named, renamed, created, updated, system, prompted, overflow, overflowed, tree });
    /** Aborts the answer that is being made; null if none is. */
    this.stopper = null;
  }

  static from({ tree, ...record }) {
    return new Conversation({ ...record, tree: Tree.from(tree) });
  }

  /** What the store keeps. */
  record() {
    const { id, named, renamed, created, updated, system, prompted, overflow, overflowed } = this;
    return { id, title: this.label, named, renamed, created, updated, system, prompted, overflow, overflowed, tree: this.tree.toJSON() };
  }

  rename(title) {
    Object.assign(this, { title: title.trim(), named: Boolean(title.trim()), renamed: Date.now() });
  }

  prompt(system) {
    Object.assign(this, { system, prompted: Date.now() });
  }

  /** Takes in what a record of this conversation has newer; see `Tree.absorb`. Throws an error if the record is damaged. */
  absorb({ title, named, renamed = 0, updated, system, prompted = 0, overflow = null, overflowed = 0, tree }, follows = false) {
    let changed = this.tree.absorb(Tree.from(tree), follows);
    if (renamed > this.renamed) Object.assign(this, { title, named, renamed });
    if (prompted > this.prompted) Object.assign(this, { system, prompted });
    if (overflowed > this.overflowed) {
      Object.assign(this, { overflow, overflowed });
      changed = true;
    }
    this.updated = Math.max(this.updated, updated);
    return changed;
  }

  /** Records that the last request exceeded the context, or, with null, that this is settled. */
  setOverflow(overflow) {
    if (overflow || this.overflow) Object.assign(this, { overflow, overflowed: Date.now() });
  }

  get isEmpty() {
    return this.tree.nodes.size === 1 && !this.overflow;
  }

  get busy() {
    return this.stopper !== null;
  }

  /** The title that a person gave, or else the first question's first line, or its first file. */
  get label() {
    return (this.named && this.title) || this.firstLine();
  }

  firstLine() {
    const first = this.tree.path().find(({ message }) => message.role === "user")?.message.content ?? this.overflow?.content ?? "";
    const line = (withoutFiles(first).trim() || (filesOf(first)[0]?.name ?? "")).split("\n")[0].replace(/\s+/g, " ");
    return line.length > TITLE ? `${line.slice(0, TITLE - 1).trimEnd()}…` : line || "Untitled";
  }

  /** The shown branch in the API's format, with the system prompt. */
  messages() {
    return this.withSystem(this.tree.path());
  }

  /** Those messages that are sent. */
  sent() {
    return this.withSystem(sent(this.tree.path()));
  }

  withSystem(nodes) {
    const lead = this.system ? [{ role: "system", content: this.system }] : [];
    return [...lead, ...written(nodes)];
  }
}

/** Nodes as messages of a request: without reasoning, and without answers that never came. */
export function written(nodes) {
  return nodes.filter(({ message, meta }) => !meta.error || message.content).map(({ message: { reasoning, ...rest } }) => rest);
}
