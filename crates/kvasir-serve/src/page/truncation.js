// Truncation of a branch: which of its messages are sent. All are, until a person drops the oldest turns.
//
// A message whose `meta.window` is the id of an earlier one, or its own, was sent without what stands before that one,
// and so is all that follows it. The mark is part of the tree: each branch has its own, and a reload keeps it.

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
