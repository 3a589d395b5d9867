// One conversation: its tree of messages, its title and its system prompt.

import { withoutFiles } from "/page/attachments.js";
import { Tree } from "/page/tree.js";

const TITLE = 60; // characters of a title

/** A random id. `crypto.randomUUID` exists on HTTPS and localhost only. */
function newId() {
  return [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export class Conversation {
  constructor({ id = newId(), title = "", named = false, created = Date.now(), updated = Date.now(), system = "", tree = new Tree() } = {}) {
    Object.assign(this, { id, title, named, created, updated, system, tree });
    /** Aborts the answer that is being made; null if none is. */
    this.stopper = null;
  }

  static from({ tree, ...record }) {
    return new Conversation({ ...record, tree: Tree.from(tree) });
  }

  /** What the store keeps. */
  record() {
    const { id, named, created, updated, system } = this;
    return { id, title: this.label, named, created, updated, system, tree: this.tree.toJSON() };
  }

  get isEmpty() {
    return this.tree.nodes.size === 1;
  }

  get busy() {
    return this.stopper !== null;
  }

  /** The title that a person gave, or else the first question's first line. */
  get label() {
    return (this.named && this.title) || this.firstLine();
  }

  firstLine() {
    const first = this.tree.path().find(({ message }) => message.role === "user")?.message.content ?? "";
    const line = withoutFiles(first).trim().split("\n")[0].replace(/\s+/g, " ");
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
