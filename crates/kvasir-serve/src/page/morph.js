// Changes an element's content to new HTML and keeps every element that the HTML still has, with its selection, scroll
// position, focus and open state. Children are compared by position: what streams grows at its end.

/** Two elements show different things if one of these attributes differs. */
const KEYS = ["data-id", "data-call"];

export function morph(element, html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  mergeChildren(element, template.content);
}

function mergeChildren(old, next) {
  let at = old.firstChild;
  for (const node of [...next.childNodes]) {
    const following = at?.nextSibling ?? null;
    if (!at) old.append(node);
    else if (!merge(at, node)) at.replaceWith(node);
    at = following;
  }
  while (at) {
    const following = at.nextSibling;
    at.remove();
    at = following;
  }
}

/** Makes `old` equal to `next`. False if it must be replaced. */
function merge(old, next) {
  if (old.isEqualNode(next)) return true;
  if (old.nodeType !== next.nodeType || old.nodeName !== next.nodeName) return false;
  if (old.nodeType === Node.TEXT_NODE) {
    // A selection survives only in text that grows.
    if (next.data.startsWith(old.data)) old.appendData(next.data.slice(old.data.length));
    else old.data = next.data;
    return true;
  }
  if (old.nodeType !== Node.ELEMENT_NODE || KEYS.some((key) => old.getAttribute(key) !== next.getAttribute(key))) return false;
  if (isKept(old, next)) return true;
  mergeAttributes(old, next);
  mergeChildren(old, next);
  return true;
}

/** What the page has changed itself: a drawn formula, a button that says `copied`, a message under edit. */
function isKept(old, next) {
  if (old.matches(".math.drawn")) return next.matches(".math") && old.dataset.latex === next.dataset.latex && old.matches(".display") === next.matches(".display");
  if (old.matches("button[data-label]")) return old.dataset.act === next.dataset.act;
  return old.matches(".msg:has(> .editing)");
}

function mergeAttributes(old, next) {
  // `data-auto` is the state that the page gave it: a `details` that the person opened or closed stays so.
  const isTouched = old.nodeName === "DETAILS" && old.open !== (old.dataset.auto === "open");
  const skips = (name) => isTouched && name === "open";
  for (const { name } of [...old.attributes]) if (!next.hasAttribute(name) && !skips(name)) old.removeAttribute(name);
  for (const { name, value } of next.attributes) if (old.getAttribute(name) !== value && !skips(name)) old.setAttribute(name, value);
}
