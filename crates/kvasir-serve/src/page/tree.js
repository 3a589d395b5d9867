// A conversation as a tree: an edited question or another answer begins a branch beside the old one.
//
// Several tabs may write one conversation. Ids of nodes are unique across tabs and rise from parent to child, and the
// tree only grows, so two copies are joined by the union of their nodes. Of a node in both, the one written last counts.

const ROLES = ["user", "assistant", "tool"];
const PER_MS = 1024; // ids per millisecond

/** An id above `last` that no other tab makes: the time and some random bits. */
const nextId = (last) => Math.max(last + 1, Date.now() * PER_MS) + Math.floor(Math.random() * PER_MS);

export class Tree {
  constructor() {
    this.nodes = new Map([[0, { id: 0, parent: null, children: [], chosen: 0 }]]);
    this.last = 0;
    /** Ids of removed nodes: another tab's copy does not bring them back. */
    this.removed = new Set();
  }

  /** Puts a message under `parent` and goes there. */
  add(parent, message) {
    this.last = nextId(this.last);
    const node = { id: this.last, parent, children: [], chosen: 0, message, meta: {}, touched: Date.now() };
    this.nodes.set(node.id, node);
    const above = this.nodes.get(parent);
    above.chosen = above.children.push(node.id) - 1;
    return node;
  }

  /** Records that a node's message has changed. */
  touch(node) {
    node.touched = Math.max(Date.now(), (node.touched ?? 0) + 1);
  }

  /** The nodes of the branch that is shown, without the root. */
  path() {
    const path = [];
    let node = this.nodes.get(0);
    while (node.children.length) {
      node = this.nodes.get(node.children[node.chosen]);
      path.push(node);
    }
    return path;
  }

  /** The nodes from the first to this one. */
  upTo(id) {
    const path = [];
    for (let node = this.nodes.get(id); node?.parent !== null; node = this.nodes.get(node.parent)) path.unshift(node);
    return path;
  }

  /** Its index among its siblings, and how many they are. */
  place(id) {
    const { children } = this.nodes.get(this.nodes.get(id).parent);
    return [children.indexOf(id), children.length];
  }

  /** Shows the branch that is `by` places further. */
  turn(id, by) {
    const above = this.nodes.get(this.nodes.get(id).parent);
    above.chosen = (above.children.indexOf(id) + by + above.children.length) % above.children.length;
  }

  /** Takes a node and everything under it away. */
  remove(id) {
    const node = this.nodes.get(id);
    for (const child of node.children.slice()) this.remove(child);
    const above = this.nodes.get(node.parent);
    above.children.splice(above.children.indexOf(id), 1);
    above.chosen = Math.max(0, Math.min(above.chosen, above.children.length - 1));
    this.nodes.delete(id);
    this.removed.add(id);
  }

  /**
   * Takes in what another copy of this tree has more. `follows` also shows the branch that the copy shows. True if
   * something has changed.
   */
  absorb(copy, follows = false) {
    const before = this.path().map(({ id }) => id).join();
    let changed = false;
    for (const id of copy.removed) {
      changed ||= !this.removed.has(id) && this.nodes.has(id);
      this.removed.add(id);
    }
    for (const node of copy.nodes.values()) {
      const own = this.nodes.get(node.id);
      if (!own) {
        this.nodes.set(node.id, { ...node, children: [...node.children] });
        changed ||= !this.removed.has(node.id);
      } else if ((node.touched ?? 0) > (own.touched ?? 0) && !own.meta.streaming) {
        const { tokens, showTokens } = own.meta;
        Object.assign(own, { message: node.message, meta: { ...node.meta, ...(tokens && { tokens, showTokens }) }, touched: node.touched });
        changed = true;
      }
    }
    const shown = ({ children, chosen }) => children[chosen];
    this.join((node) => {
      const own = shown(node), other = copy.nodes.has(node.id) ? shown(copy.nodes.get(node.id)) : undefined;
      return follows ? [other, own] : [own, other];
    });
    return changed || before !== this.path().map(({ id }) => id).join();
  }

  /**
   * Sets children anew from parents, in the order of ids. Nodes that hang on nothing are dropped, and removed ones under
   * which no other stays. `wishes(node)` are the children to show, the most wanted first.
   */
  join(wishes) {
    const wanted = new Map([...this.nodes.values()].map((node) => [node.id, wishes(node)]));
    const sorted = [...this.nodes.values()].sort((a, b) => a.id - b.id), placed = new Set([0]), kept = new Set([0]);
    for (const { id, parent } of sorted) if (parent !== null && parent < id && placed.has(parent)) placed.add(id);
    for (const { id, parent } of sorted.toReversed?.() ?? [...sorted].reverse()) {
      if (id !== 0 && placed.has(id) && (!this.removed.has(id) || kept.has(id))) kept.add(id).add(parent);
    }
    this.nodes = new Map(sorted.filter(({ id }) => kept.has(id)).map((node) => [node.id, node]));
    for (const node of this.nodes.values()) node.children = [];
    for (const { id, parent } of this.nodes.values()) if (id !== 0) this.nodes.get(parent).children.push(id);
    for (const node of this.nodes.values()) {
      const found = wanted.get(node.id).map((child) => node.children.indexOf(child)).find((at) => at >= 0);
      node.chosen = found ?? Math.max(0, node.children.length - 1);
    }
    this.last = Math.max(this.last, ...this.nodes.keys());
  }

  /** Plain data, without token probabilities. An answer counts as stopped until its response has an id. */
  toJSON() {
    const plain = ({ meta, ...node }) => {
      const own = { ...node, children: [...node.children] };
      if (!meta) return own;
      const { tokens, showTokens, streaming, ...rest } = meta;
      return { ...own, meta: streaming && rest.response?.id === undefined ? { ...rest, stopped: true } : rest };
    };
    return { last: this.last, nodes: [...this.nodes.values()].map(plain), ...(this.removed.size && { removed: [...this.removed] }) };
  }

  /** A tree from its plain data, whose links are repaired; throws an error if the data is none. */
  static from(data) {
    if (!Array.isArray(data?.nodes)) throw new Error("a conversation has no messages");
    const tree = new Tree();
    for (const node of data.nodes) check(node);
    tree.nodes = new Map(data.nodes.map((node) => [node.id, node]));
    if (tree.nodes.get(0)?.parent !== null) throw new Error("a conversation has no beginning");
    tree.removed = new Set(Array.isArray(data.removed) ? data.removed.filter(Number.isSafeInteger) : []);
    tree.last = Number.isSafeInteger(data.last) ? data.last : 0;
    tree.join(({ children, chosen }) => [children?.[chosen]]);
    return tree;
  }

  /** A tree of one branch. */
  static of(messages) {
    const tree = new Tree();
    let parent = 0;
    for (const message of messages) parent = tree.add(parent, message).id;
    return tree;
  }
}

/** Throws an error unless this is a node that the page can show. */
function check(node) {
  if (!Number.isSafeInteger(node?.id) || node.id < 0) throw new Error("a message has no number");
  if (node.id === 0) return;
  if (typeof node.meta !== "object" || node.meta === null) throw new Error("a message is incomplete");
  checkMessage(node.message);
}

/** Throws an error unless this is a message that the page can show. */
export function checkMessage(message) {
  if (!ROLES.includes(message?.role)) throw new Error(message?.role === undefined ? "a message has no role" : `the role \`${message.role}\` is not known`);
  if (typeof message.content !== "string") throw new Error("a message has no text");
  if (message.reasoning !== undefined && typeof message.reasoning !== "string") throw new Error("reasoning is no text");
  const calls = message.tool_calls ?? [];
  const isCall = (call) => typeof call?.id === "string" && typeof call.function?.name === "string" && typeof call.function.arguments === "string";
  if (!Array.isArray(calls) || !calls.every(isCall)) throw new Error("a tool call lacks its id, name or arguments");
}
