// Places of formulas in Markdown. `math.js` draws them.

/** A place for a formula; its source is shown there until the formula is drawn. */
export function formula(latex, display, source) {
  return `<span class="math${display ? " display" : ""}" data-latex="${latex.trim()}">${source}</span>`;
}
