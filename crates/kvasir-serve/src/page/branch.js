// The shown branch as HTML: its messages, where the window of those that are sent begins, and the offer under a request
// that exceeded the context.

import { draw } from "/page/message.js";
import { droppedOf } from "/page/truncation.js";

/** What stands between the turns that are no longer sent and the others. */
const DIVIDER = '<div class="dropped-end" role="note"><span>The messages above are no longer sent to the model.</span> <button type="button" class="quiet" data-act="undrop" title="send all messages again, as far as they fit">send them again</button></div>';

/**
 * `results` are those of tool calls, by id; `isWritten` if another tab is writing; `offer` is `{place, html}`, `place`
 * being the id of the message that it stands under, or 0 for the beginning.
 */
export function drawBranch(tree, { busy, isWritten, results, offer }) {
  const path = tree.path(), shown = path.filter(({ message }) => message.role !== "tool");
  const dropped = droppedOf(path), at = path.findIndex(({ id }) => id === offer?.place);
  // Results of calls are shown with their call.
  const anchor = path.slice(0, at + 1).findLast(({ message }) => message.role !== "tool");
  const parts = shown.map((node, i) => {
    const isDropped = dropped.has(node.id), ends = isDropped && !dropped.has(shown[i + 1]?.id);
    const message = draw(node, tree, results, { busy, next: shown[i + 1], isWritten, isDropped });
    return message + (node === anchor ? offer.html : "") + (ends ? DIVIDER : "");
  });
  return (offer?.place === 0 ? offer.html : "") + parts.join("");
}
