// Formulas: the server converts LaTeX to MathML, which the browser renders.
//
// Only MathML elements and attributes of the lists below enter the document, whatever the server
// answers. Formulas are cached by source, because an answer that streams is drawn many times.

import { post } from "/page/api.js";
import { markFences, probeOnce } from "/page/fences.js";

const MATHML = "http://www.w3.org/1998/Math/MathML";
const ELEMENTS = new Set("math mi mn mo ms mtext mspace mrow mfrac msqrt mroot msub msup msubsup munder mover munderover mmultiscripts mprescripts mtable mtr mtd mstyle mpadded mphantom menclose merror semantics".split(" "));
const ATTRIBUTES = new Set("display displaystyle scriptlevel mathvariant stretchy symmetric fence separator largeop movablelimits accent accentunder form lspace rspace minsize maxsize linethickness width height depth voffset notation columnspan rowspan".split(" "));
const STYLES = new Set("color background-color width text-align justify-items padding-left padding-right margin-left border-top border-right border-bottom border-left".split(" "));
const STYLE_VALUE = /^[\w#%.\s-]{1,60}$/;
const MOST = 2000; // formulas that stay in memory
const BATCH = 100; // formulas per request

/** Rendered formulas by key; `null` while one is requested or if it cannot be rendered. */
const cache = new Map();
let waiting = new Map(), scheduled = false;

/** A copy of an element that holds what the lists allow and nothing else. */
function sanitize(element) {
  if (element.namespaceURI && element.namespaceURI !== MATHML && element.localName !== "b") return null;
  // Bold text in a formula comes as HTML.
  const name = element.localName === "b" ? "mrow" : element.localName;
  if (!ELEMENTS.has(name)) return null;
  const copy = document.createElementNS(MATHML, name);
  for (const { name: attribute, value } of element.attributes) {
    if (ATTRIBUTES.has(attribute)) copy.setAttribute(attribute, value);
    else if (attribute === "style") copyStyle(value, copy);
  }
  for (const child of element.childNodes) {
    if (child.nodeType === Node.TEXT_NODE) copy.append(child.data);
    else if (child.nodeType === Node.ELEMENT_NODE) copy.append(sanitize(child) ?? child.textContent);
  }
  return copy;
}

function copyStyle(text, element) {
  for (const declaration of text.split(";")) {
    const [name, value] = declaration.split(":").map((part) => part.trim());
    if (STYLES.has(name) && STYLE_VALUE.test(value ?? "")) element.style.setProperty(name, value);
  }
}

/** A `math` element from the server's text; null if it is none. */
export function parse(mathml) {
  const { documentElement: root } = new DOMParser().parseFromString(mathml.replace("<math", `<math xmlns="${MATHML}"`), "application/xml");
  const formula = root.localName === "math" && !root.getElementsByTagName("parsererror").length ? sanitize(root) : null;
  if (formula) markFences(formula);
  return formula;
}

const keyOf = (place) => `${place.classList.contains("display") ? "D" : "I"}${place.dataset.latex}`;

/** Draws the formulas in `root`; asks the server for those that are not known. */
export function drawMath(root) {
  for (const place of root.querySelectorAll(".math:not(.drawn)")) {
    const key = keyOf(place), known = cache.get(key);
    if (known) put(place, known);
    else if (known === undefined) request(key);
  }
}

function put(place, formula) {
  probeOnce();
  place.replaceChildren(formula.cloneNode(true));
  place.classList.add("drawn");
}

function request(key) {
  if (cache.size > MOST) cache.clear();
  cache.set(key, null);
  waiting.set(key, { latex: key.slice(1), display: key[0] === "D" });
  if (!scheduled) setTimeout(convert, 30);
  scheduled = true;
}

/** Converts what waits. A formula that cannot be converted stays as its source. */
async function convert() {
  const all = [...waiting];
  [waiting, scheduled] = [new Map(), false];
  for (let at = 0; at < all.length; at += BATCH) {
    const batch = all.slice(at, at + BATCH);
    try {
      const { data } = await post("/page/math", { items: batch.map(([, item]) => item) });
      batch.forEach(([key], i) => cache.set(key, data[i]?.mathml ? parse(data[i].mathml) : null));
    } catch {
      // Asked again when the formula is drawn the next time.
      for (const [key] of batch) cache.delete(key);
    }
  }
  for (const place of document.querySelectorAll(".math:not(.drawn)")) {
    const known = cache.get(keyOf(place));
    if (known) put(place, known);
  }
}
