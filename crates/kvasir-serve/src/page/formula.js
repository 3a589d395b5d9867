// Places of formulas in Markdown. `math.js` draws them.

/** A place for a formula; its source is shown there until the formula is drawn. */
export function formula(latex, display, source) {
  return `<span class="math${display ? " display" : ""}" data-latex="${latex.trim()}">${source}</span>`;
}

export const formulaBlock = (latex) => `<div class="formula" tabindex="0">${formula(latex, true, latex)}</div>`;

const MOST = 200; // lines of a formula
const CLOSING = { "$$": "$$", "\\[": "\\]" };
const ENVIRONMENT = /^\s*\\begin\{((?:equation|align|aligned|gather|multline|cases|matrix|pmatrix|bmatrix)\*?)\}/;
const BEGINNING = /^\s*(\$\$|\\\[)/;
const ENDING = /(?:\$\$|(?<!\\)\\\[)$/;

/** A formula on lines of its own that begins at line `at`, if it ends: its HTML, and the line after it. */
export function displayMath(lines, at) {
  const environment = ENVIRONMENT.exec(lines[at])?.[1];
  if (environment) return environmentAt(lines, at, `\\end{${environment}}`);
  const [begin, mark] = BEGINNING.exec(lines[at]) ?? [];
  return mark ? closedBy(lines, at, begin.length, CLOSING[mark]) : null;
}

/** A formula whose opening mark ends a line of text: the text, the formula's HTML, and the line after it. */
export function mathBehindText(lines, at) {
  const line = lines[at].trimEnd(), mark = ENDING.exec(line)?.[0];
  // The last of an even number of `$$` closes a formula.
  if (!mark || (mark === "$$" && line.split(mark).length % 2)) return null;
  const shown = closedBy(lines, at, line.length, CLOSING[mark]);
  return shown && [line.slice(0, -mark.length).trim(), ...shown];
}

/** The lines up to the first that the environment's end ends. */
function environmentAt(lines, at, end) {
  for (let last = at; last < Math.min(lines.length, at + MOST); last++) {
    if (lines[last].trimEnd().endsWith(end)) return [formulaBlock(lines.slice(at, last + 1).join("\n")), last + 1];
  }
  return null;
}

/** What lies between column `from` of line `at` and the mark `close`, if nothing follows the mark on its line. */
function closedBy(lines, at, from, close) {
  for (let last = at; last < Math.min(lines.length, at + MOST); last++) {
    const end = lines[last].indexOf(close, last === at ? from : 0);
    // Formulas do not nest.
    if (end < 0 && last > at && BEGINNING.test(lines[last])) return null;
    if (end < 0) continue;
    const latex = [...lines.slice(at, last), lines[last].slice(0, end)].join("\n").slice(from);
    return latex.trim() && !lines[last].slice(end + close.length).trim() ? [formulaBlock(latex), last + 1] : null;
  }
  return null;
}
