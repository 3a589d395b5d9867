// A conversation as a tree: an edited question or another answer begins a branch beside the old one.

const ROLES = ["user", "assistant", "tool"];

export class Tree {
  constructor() {
    this.nodes = new Map([[0, { id: 0, parent: null, children: [], chosen: 0 }]]);
    this.last = 0;
  }

  /** Puts a message under `parent` and goes there. */
  add(parent, message) {
    const node = { id: ++this.last, parent, children: [], chosen: 0, message, meta: {} };
    this.nodes.set(node.id, node);
    const above = this.nodes.get(parent);
    above.chosen = above.children.push(node.id) - 1;
    return node;
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
  }

  /** Plain data, without token probabilities. An answer in progress counts as stopped. */
  toJSON() {
    const plain = ({ meta, ...node }) => {
      if (!meta) return node;
      const { tokens, showTokens, streaming, ...rest } = meta;
      return { ...node, meta: streaming ? { ...rest, stopped: true } : rest };
    };
    return { last: this.last, nodes: [...this.nodes.values()].map(plain) };
  }

  /** A tree from its plain data; throws an error if the data is none. */
  static from(data) {
    if (!Array.isArray(data?.nodes) || !Number.isSafeInteger(data.last)) throw new Error("a conversation has no messages");
    const tree = new Tree();
    tree.nodes = new Map(data.nodes.map((node) => [node.id, node]));
    tree.last = data.last;
    for (const node of data.nodes) check(node, tree);
    if (tree.nodes.get(0)?.parent !== null) throw new Error("the root is missing");
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

/** Throws an error unless a node fits its tree. Ids rise from parent to child, so there is no cycle. */
function check({ id, parent, children, chosen, message, meta }, { nodes, last }) {
  const isChild = (child) => nodes.get(child)?.parent === id && child > id;
  const fits = Number.isSafeInteger(id) && id >= 0 && id <= last && Array.isArray(children) && children.every(isChild) &&
    Number.isSafeInteger(chosen) && chosen >= 0 && chosen < Math.max(1, children.length);
  if (!fits) throw new Error(`node ${id} has no place in the tree`);
  if (id === 0) return;
  if (!nodes.get(parent)?.children.includes(id) || typeof meta !== "object" || meta === null) throw new Error(`node ${id} has no place in the tree`);
  checkMessage(message);
}

/** Throws an error unless this is a message that the page can show. */
export function checkMessage(message) {
  if (!ROLES.includes(message?.role)) throw new Error(`the role \`${message?.role}\` is not known`);
  if (typeof message.content !== "string") throw new Error("a message has no text");
  if (message.reasoning !== undefined && typeof message.reasoning !== "string") throw new Error("reasoning is no text");
  const calls = message.tool_calls ?? [];
  const isCall = (call) => typeof call?.id === "string" && typeof call.function?.name === "string" && typeof call.function.arguments === "string";
  if (!Array.isArray(calls) || !calls.every(isCall)) throw new Error("a tool call lacks its id, name or arguments");
}
