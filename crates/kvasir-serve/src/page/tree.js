// A conversation as a tree: to edit a message or to ask again is to begin a branch beside it.

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

  /** Where it stands among those that could stand there: [place from 0, how many]. */
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

  toJSON() {
    return { last: this.last, nodes: [...this.nodes.values()] };
  }

  static from(data) {
    const tree = new Tree();
    if (!data?.nodes?.length) return tree;
    tree.last = data.last;
    tree.nodes = new Map(data.nodes.map((node) => [node.id, node]));
    return tree;
  }
}
