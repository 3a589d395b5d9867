// One conversation: its tree of messages, its title and its system prompt.

import { filesOf, withoutFiles } from "/page/attachments.js";
import { Tree } from "/page/tree.js";

const TITLE = 60; // characters of a title

/** A random id. `crypto.randomUUID` exists on HTTPS and localhost only. */
function newId() {
  return [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export class Conversation {
  /** `renamed` and `prompted` are when the title and the system prompt were set. */
  constructor({ id = newId(), title = "", named = false, renamed = 0, created = Date.now(), updated = Date.now(), system = "", prompted = 0, tree = new Tree() } = {}) {
    Object.assign(this, { id, title, named, renamed, created, updated, system, prompted, tree });
    /** Aborts the answer that is being made; null if none is. */
    this.stopper = null;
  }

  static from({ tree, ...record }) {
    return new Conversation({ ...record, tree: Tree.from(tree) });
  }

  /** What the store keeps. */
  record() {
    const { id, named, renamed, created, updated, system, prompted } = this;
    return { id, title: this.label, named, renamed, created, updated, system, prompted, tree: this.tree.toJSON() };
  }

  rename(title) {
    Object.assign(this, { title: title.trim(), named: Boolean(title.trim()), renamed: Date.now() });
  }

  prompt(system) {
    Object.assign(this, { system, prompted: Date.now() });
  }

  /** Takes in what a record of this conversation has newer; see `Tree.absorb`. Throws an error if the record is damaged. */
  absorb({ title, named, renamed = 0, updated, system, prompted = 0, tree }, follows = false) {
    const changed = this.tree.absorb(Tree.from(tree), follows);
    if (renamed > this.renamed) Object.assign(this, { title, named, renamed });
    if (prompted > this.prompted) Object.assign(this, { system, prompted });
    this.updated = Math.max(this.updated, updated);
    return changed;
  }

  get isEmpty() {
    return this.tree.nodes.size === 1;
  }

  get busy() {
    return this.stopper !== null;
  }

  /** The title that a person gave, or else the first question's first line, or its first file. */
  get label() {
    return (this.named && this.title) || this.firstLine();
  }

  firstLine() {
    const first = this.tree.path().find(({ message }) => message.role === "user")?.message.content ?? "";
    const line = (withoutFiles(first).trim() || (filesOf(first)[0]?.name ?? "")).split("\n")[0].replace(/\s+/g, " ");
    return line.length > TITLE ? `${line.slice(0, TITLE - 1).trimEnd()}…` : line || "Untitled";
  }

  /** The shown branch in the API's format, with the system prompt. */
  messages() {
    const lead = this.system ? [{ role: "system", content: this.system }] : [];
    return [...lead, ...written(this.tree.path())];
  }
}

/** Nodes as messages of a request: without reasoning, and without answers that never came. */
export function written(nodes) {
  return nodes.filter(({ message, meta }) => !meta.error || message.content).map(({ message: { reasoning, ...rest } }) => rest);
}
