// Delimiters around tall parts of formulas, such as the parentheses of a matrix, where no font stretches them.
//
// Browsers stretch a delimiter with the MATH table of the font, or compose some of the font's pieces (U+239B to U+23AD).
// If the font has neither, a glyph keeps its size. The style sheet then draws delimiters on the box of their `mrow`, which has
// the height of what they enclose. Glyphs stay for screen readers.

const OPENING = "([{⟨⌊⌈|‖∥", CLOSING = ")]}⟩⌋⌉|‖∥";
const NAMES = { "(": "paren", ")": "paren", "[": "bracket", "]": "bracket", "{": "brace", "}": "brace", "⟨": "angle", "⟩": "angle", "⌊": "floor", "⌋": "floor", "⌈": "ceiling", "⌉": "ceiling", "|": "bar", "‖": "bars", "∥": "bars" };
const TALL = "mtable, mfrac, munder, mover, munderover, mroot";

/** The name of a delimiter that stretches; undefined if an element is none. */
function fence(element, characters) {
  const text = element?.localName === "mo" ? element.textContent : "";
  const isFixed = element?.getAttribute("stretchy") === "false" || element?.hasAttribute("minsize");
  return text && characters.includes(text) && !isFixed ? NAMES[text] : undefined;
}

/** Marks the delimiters of a formula for the style sheet. */
export function markFences(formula) {
  for (const row of formula.querySelectorAll("mrow")) {
    if (!row.querySelector(TALL)) continue;
    const { firstElementChild: first, lastElementChild: last } = row;
    const open = fence(first, OPENING), close = first === last ? undefined : fence(last, CLOSING);
    if (open) row.dataset.open = first.dataset.fence = open;
    if (close) row.dataset.close = last.dataset.fence = close;
  }
}

let isProbed = false;

export function probeOnce() {
  if (!isProbed) probe();
  isProbed = true;
}

/** Lets the style sheet draw delimiters if the font of formulas stretches none. */
export function probe() {
  const math = document.createElement("div");
  math.className = "unseen";
  math.innerHTML = '<math><mrow><mo>(</mo><mspace height="3em" depth="1em"></mspace></mrow><mrow><mo>⌊</mo><mspace height="3em" depth="1em"></mspace></mrow></math>';
  document.body.append(math);
  const heights = (name) => [...math.querySelectorAll(name)].map((element) => element.getBoundingClientRect().height);
  document.documentElement.classList.toggle("draws-fences", Math.min(...heights("mo")) < heights("mspace")[0] / 2);
  math.remove();
}
