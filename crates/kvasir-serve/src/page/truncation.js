// Truncation of a branch: which of its messages are sent. All are, until a person drops the oldest turns.
//
// `meta.window` of a message is the id of the first message sent with it: an earlier one, or itself. It also applies to
// all messages that follow. It is stored in the tree, so each branch has its own, and a reload keeps it.

/** Index of the first node of a branch that is sent. */
export function windowStart(path) {
  const id = path.findLast(({ meta }) => meta.window)?.meta.window;
  return Math.max(0, path.findIndex((node) => node.id === id));
}

/** The nodes of a branch that are sent. */
export const sent = (path) => path.slice(windowStart(path));

/** Indexes at which the window can begin beyond where it does: those of later questions. */
export function laterTurns(path) {
  const start = windowStart(path);
  return [...path.keys()].filter((i) => i > start && path[i].message.role === "user");
}

/** Ids of the nodes of a branch that are not sent. */
export const droppedOf = (path) => new Set(path.slice(0, windowStart(path)).map(({ id }) => id));

/** Sends all messages of the shown branch again. */
export function undrop(tree) {
  for (const node of tree.path().filter(({ meta }) => meta.window)) {
    delete node.meta.window;
    tree.touch(node);
  }
}
