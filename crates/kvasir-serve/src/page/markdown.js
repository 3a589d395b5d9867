// Markdown to HTML. The text is escaped before it is parsed, so no tag of its own can come out.
//
// Blocks: paragraphs, headings, lists, task lists, quotes, code, tables, display math; then footnotes. `inline.js` parses the text in
// them. Formulas become `.math` placeholders, which `math.js` fills. The first letter of each block decides whether it
// runs from right to left.

import { Fence } from "/page/fence.js";
import { Footnotes } from "/page/footnotes.js";
import { displayMath, formulaBlock, mathBehindText } from "/page/formula.js";
import { highlight } from "/page/highlight.js";
import { dedent, indentOf, widthOf } from "/page/indent.js";
import { inline } from "/page/inline.js";
import { References } from "/page/references.js";

export const escape = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);

const unescape = (text) => text.replace(/&#(\d+);/g, (_, code) => String.fromCharCode(code));

const HEADING = /^(#{1,6})\s+(.*)$/;
const UNDERLINE = /^ {0,3}(={3,}|-{3,})\s*$/;
const RULE = /^\s{0,3}([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const TASK = /^\[([ xX])\]\s+(.*)$/;
const QUOTE = /^\s{0,3}&#62;\s?(.*)$/;
const DELIMITERS = /^\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?$/;
const DEEPEST = 6; // levels of quotes and lists

/** A text as HTML. */
export function markdown(text) {
  const footnotes = new Footnotes(escape(text).split(/\r\n?|\n/)), { rest } = footnotes;
  const context = { depth: 0, references: new References(rest, footnotes) };
  return blocks(rest, context) + footnotes.html((lines) => tight(blocks(lines, deeper(context))));
}

const deeper = (context) => ({ ...context, depth: context.depth + 1 });

function blocks(lines, context) {
  const out = [];
  let at = 0;
  while (at < lines.length) {
    const read = isIndentedCode(lines, at, out.at(-1), context) ? indentedCode : block;
    const [html, next] = read(lines, at, context);
    if (html) out.push(html);
    at = next;
  }
  return out.join("");
}

/** One block that begins at line `at`: its HTML, and the line after it. */
function block(lines, at, context) {
  const line = lines[at];
  if (!line.trim() || context.references.has(line)) return ["", at + 1];
  const fence = Fence.of(line);
  if (fence) return code(lines, at, fence);
  const shown = displayMath(lines, at);
  if (shown) return shown;
  const [, marks, title] = HEADING.exec(line) ?? [];
  if (marks) return [heading(marks.length, title.trimEnd().replace(/(?:^|\s)#+$/, ""), context), at + 1];
  if (RULE.test(line)) return ["<hr>", at + 1];
  if (QUOTE.test(line) && context.depth < DEEPEST) return quote(lines, at, context);
  if (itemOf(line) && context.depth < DEEPEST) return list(lines, at, context);
  if (isTable(lines, at)) return table(lines, at, context);
  return paragraph(lines, at, context);
}

/** Whether line `at` ends a paragraph that the line before it belongs to. */
function interrupts(lines, at) {
  const line = lines[at], item = itemOf(line);
  // A number at the start of a line of text, as a year, begins no list.
  if (item) return !item.isOrdered || item.number === 1;
  return Fence.of(line) !== null || [HEADING, RULE, QUOTE].some((kind) => kind.test(line)) || isTable(lines, at) || displayMath(lines, at) !== null;
}

function heading(level, text, { references }) {
  const name = `h${Math.min(6, level + 2)}`;
  return `<${name} dir="auto">${inline(text.trim(), references)}</${name}>`;
}

function code(lines, at, fence) {
  let end = at + 1;
  while (end < lines.length && !fence.closes(lines[end])) end++;
  const body = lines.slice(at + 1, end).map((line) => dedent(line, fence.indent)).join("\n");
  if (fence.language === "math" && end < lines.length) return [formulaBlock(body), end + 1];
  return [codeBox(unescape(body), fence.language), end + 1];
}

/** Code with its language and a button that copies it. */
function codeBox(text, language) {
  return `<div class="codebox"><div class="codehead"><span>${escape(language || "text")}</span><button type="button" class="quiet" data-act="copy-code">copy</button></div><pre tabindex="0"><code>${highlight(text, language, escape)}</code></pre></div>`;
}

/** Whether code without a fence begins: 4 columns to the right after an empty line, but not where a list may go on. */
function isIndentedCode(lines, at, before = "", { depth }) {
  if (depth || !at || lines[at - 1].trim() || !lines[at].trim() || indentOf(lines[at]) < 4) return false;
  return !/^<(?:[uo]l|div class="codebox)/.test(before) && !itemOf(lines[at]) && !interrupts(lines, at);
}

function indentedCode(lines, at) {
  let end = at;
  while (end < lines.length && (!lines[end].trim() || indentOf(lines[end]) >= 4)) end++;
  return [codeBox(unescape(lines.slice(at, end).map((line) => dedent(line, 4)).join("\n").trimEnd())), end];
}

function quote(lines, at, context) {
  const inner = [];
  while (at < lines.length && QUOTE.test(lines[at])) inner.push(QUOTE.exec(lines[at++])[1]);
  return [`<blockquote>${blocks(inner, deeper(context))}</blockquote>`, at];
}

/** The item of a list that a line begins; `inset` is the column of its text. */
function itemOf(line) {
  const [, space, marker, text] = (!RULE.test(line) && ITEM.exec(line)) || [];
  if (!marker) return null;
  const number = parseInt(marker, 10);
  return { indent: widthOf(space), isOrdered: !isNaN(number), number, text, inset: widthOf(line.slice(0, line.length - text.length)) };
}

function list(lines, at, context) {
  const { indent, isOrdered, number } = itemOf(lines[at]);
  const items = [];
  while (at < lines.length) {
    const item = itemOf(lines[at]);
    if (!item || item.indent > indent + 1 || item.indent < indent || item.isOrdered !== isOrdered) break;
    const [inner, next] = linesOf(item, lines, at, indent + 2);
    items.push(listItem(inner, context));
    at = next;
    if (!lines[at]?.trim() && itemOf(lines[at + 1] ?? "")?.indent === indent) at++;
  }
  return [isOrdered ? `<ol start="${number}">${items.join("")}</ol>` : `<ul>${items.join("")}</ul>`, at];
}

/** The lines of an item, without what indents them: those from column `inset` on, and text that goes on before it. */
function linesOf(item, lines, at, inset) {
  const inner = [item.text];
  let fence = Fence.of(item.text);
  for (at++; at < lines.length; at++) {
    const line = lines[at], isEmpty = !line.trim();
    if (indentOf(isEmpty ? lines[at + 1] ?? "" : line) < inset) {
      const goesOn = !isEmpty && !fence && inner.at(-1).trim() && !itemOf(line) && !interrupts(lines, at);
      if (!goesOn) break;
    }
    inner.push(dedent(line, item.inset));
    fence = fence ? (fence.closes(inner.at(-1)) ? null : fence) : Fence.of(inner.at(-1));
  }
  return [inner, at];
}

function listItem([first, ...more], context) {
  const [, state, text] = TASK.exec(first) ?? [];
  const inner = [text ?? first, ...more];
  const html = more.length ? tight(blocks(inner, deeper(context))) : inline(inner[0], context.references);
  return state ? `<li class="task" dir="auto">${tick(state !== " ")}${html}</li>` : `<li dir="auto">${html}</li>`;
}

const tick = (done) => `<span class="tick${done ? " done" : ""}" role="img" aria-label="${done ? "done" : "to do"}"></span>`;

/** An item's first paragraph is on the item's own line. */
const tight = (html) => html.replace(/^<p dir="auto">(.*?)<\/p>/s, "$1");

const cells = (line) => line.trim().replace(/^\||(?<!\\)\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim());

/** Alignment of a column by its delimiter: `:-:` or `-:`. */
const alignment = (delimiter) => (/^:-+:$/.test(delimiter) ? "center" : /-:$/.test(delimiter) ? "right" : "");

function isTable(lines, at) {
  const next = lines[at + 1] ?? "";
  return lines[at].includes("|") && next.includes("|") && DELIMITERS.test(next.trim());
}

function table(lines, at, { references }) {
  const aligned = cells(lines[at + 1]).map(alignment);
  const cell = (text, i, tag) => `<${tag} dir="auto"${aligned[i] ? ` class="${aligned[i]}"` : ""}>${inline(text, references, { isCell: true })}</${tag}>`;
  const row = (line, tag) => `<tr>${cells(line).map((text, i) => cell(text, i, tag)).join("")}</tr>`;
  const head = row(lines[at], "th"), body = [];
  at += 2;
  while (at < lines.length && lines[at].includes("|")) body.push(row(lines[at++], "td"));
  return [`<div class="tablebox" tabindex="0"><table><thead>${head}</thead><tbody>${body.join("")}</tbody></table></div>`, at];
}

/** A paragraph, or one line of text with a line under it, which is a heading. */
function paragraph(lines, at, context) {
  const own = [];
  const written = () => (own.length ? `<p dir="auto">${inline(own.join("\n"), context.references)}</p>` : "");
  while (at < lines.length && lines[at].trim() && (own.length === 0 || !interrupts(lines, at))) {
    const [text, formula, next] = mathBehindText(lines, at) ?? [lines[at].trim()];
    if (text) own.push(text);
    if (formula) return [written() + formula, next];
    at++;
    const level = own.length === 1 ? underlined(text, lines[at]) : 0;
    if (level) return [heading(level, text, context), at + 1];
  }
  return [written(), at];
}

/** The level of the heading that a line under a text makes of it. A line of `-` after a sentence is a rule. */
function underlined(text, line = "") {
  const mark = text.includes("|") ? undefined : UNDERLINE.exec(line)?.[1][0];
  return mark === "=" ? 1 : mark === "-" && !/[.,:;!?]$/.test(text) ? 2 : 0;
}
