// Markdown to HTML. The text is escaped before it is parsed, so no tag of its own can come out.
//
// Blocks: paragraphs, headings, lists, task lists, quotes, fenced code, tables, display math. `inline.js` parses the
// text in them. Formulas become `.math` placeholders, which `math.js` fills.

import { formula } from "/page/formula.js";
import { highlight } from "/page/highlight.js";
import { inline } from "/page/inline.js";
import { References } from "/page/references.js";

export const escape = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);

const unescape = (text) => text.replace(/&#(\d+);/g, (_, code) => String.fromCharCode(code));

const FENCE = /^\s{0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const HEADING = /^(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^\s{0,3}([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const TASK = /^\[([ xX])\]\s+(.*)$/;
const QUOTE = /^\s{0,3}(?:>|&#62;)\s?(.*)$/;
const TABLE_LINE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
/** First line of a formula that has lines of its own, and how its last line ends. */
const DISPLAY = [[/^\s*\$\$/, "$$"], [/^\s*\\\[/, "\\]"]];
const ENVIRONMENT = /^\s*\\begin\{((?:equation|align|aligned|gather|multline|cases|matrix|pmatrix|bmatrix)\*?)\}/;

/** A text as HTML. */
export function markdown(text) {
  const lines = escape(text).split("\n");
  return blocks(lines, { depth: 0, references: new References(lines) });
}

const deeper = (context) => ({ ...context, depth: context.depth + 1 });

function blocks(lines, context) {
  const out = [];
  let at = 0;
  while (at < lines.length) {
    const [html, next] = block(lines, at, context);
    if (html) out.push(html);
    at = next;
  }
  return out.join("");
}

/** One block that begins at line `at`: its HTML, and the line after it. */
function block(lines, at, context) {
  const line = lines[at];
  if (!line.trim() || context.references.has(line)) return ["", at + 1];
  const fence = FENCE.exec(line);
  if (fence) return code(lines, at, fence);
  const shown = displayMath(lines, at);
  if (shown) return shown;
  const heading = HEADING.exec(line);
  if (heading) {
    const level = Math.min(6, heading[1].length + 2);
    return [`<h${level}>${inline(heading[2], context.references)}</h${level}>`, at + 1];
  }
  if (RULE.test(line)) return ["<hr>", at + 1];
  if (QUOTE.test(line) && context.depth < 6) return quote(lines, at, context);
  if (ITEM.test(line) && context.depth < 6) return list(lines, at, context);
  if (line.includes("|") && TABLE_LINE.test(lines[at + 1] ?? "")) return table(lines, at, context);
  return paragraph(lines, at, context);
}

function code(lines, at, [, mark, language]) {
  let end = at + 1;
  while (end < lines.length && !lines[end].trim().startsWith(mark)) end++;
  const body = lines.slice(at + 1, end).join("\n");
  if (language === "math" && end < lines.length) return [`<div class="formula">${formula(body, true, body)}</div>`, end + 1];
  return [codeBox(unescape(body), language), end + 1];
}

/** Code with its language and a button that copies it. */
export function codeBox(text, language) {
  return `<div class="codebox"><div class="codehead"><span>${escape(language || "text")}</span><button type="button" class="quiet" data-act="copy-code">copy</button></div><pre tabindex="0"><code>${highlight(text, language, escape)}</code></pre></div>`;
}

/** A formula on lines of its own, if one begins here and ends. */
function displayMath(lines, at) {
  const line = lines[at], environment = ENVIRONMENT.exec(line)?.[1];
  const [start, close] = environment ? [/^/, `\\end{${environment}}`] : DISPLAY.find(([open]) => open.test(line)) ?? [];
  if (!start) return null;
  for (let end = at; end < Math.min(lines.length, at + 200); end++) {
    const text = lines.slice(at, end + 1).join("\n").replace(start, "").trimEnd();
    if (!text.endsWith(close)) continue;
    const latex = environment ? text : text.slice(0, -close.length);
    if (latex.includes("$$")) return null;
    if (!latex.trim()) continue;
    return [`<div class="formula">${formula(latex, true, latex)}</div>`, end + 1];
  }
  return null;
}

function quote(lines, at, context) {
  const inner = [];
  while (at < lines.length && QUOTE.test(lines[at])) inner.push(QUOTE.exec(lines[at++])[1]);
  return [`<blockquote>${blocks(inner, deeper(context))}</blockquote>`, at];
}

const indentOf = (line) => line.length - line.trimStart().length;

function list(lines, at, context) {
  const first = ITEM.exec(lines[at]);
  const base = first[1].length, ordered = /\d/.test(first[2]);
  const items = [];
  while (at < lines.length) {
    const item = ITEM.exec(lines[at]);
    if (!item || item[1].length > base + 1 || item[1].length < base || /\d/.test(item[2]) !== ordered) break;
    const task = TASK.exec(item[3]);
    const inner = [task ? task[2] : item[3]];
    const inset = lines[at].length - item[3].length;
    at++;
    while (at < lines.length && (lines[at].trim() ? indentOf(lines[at]) > base + 1 : indentOf(lines[at + 1] ?? "") > base + 1)) {
      inner.push(lines[at].slice(Math.min(inset, indentOf(lines[at]))));
      at++;
    }
    const text = inner.length > 1 ? tight(blocks(inner, deeper(context))) : inline(inner[0], context.references);
    items.push(task ? `<li class="task">${tick(task[1] !== " ")}${text}</li>` : `<li>${text}</li>`);
    if (!lines[at]?.trim() && ITEM.test(lines[at + 1] ?? "") && indentOf(lines[at + 1]) === base) at++;
  }
  const start = ordered ? ` start="${parseInt(first[2], 10)}"` : "";
  return [ordered ? `<ol${start}>${items.join("")}</ol>` : `<ul>${items.join("")}</ul>`, at];
}

const tick = (done) => `<span class="tick${done ? " done" : ""}" role="img" aria-label="${done ? "done" : "to do"}"></span>`;

/** An item's first paragraph stands on the item's own line. */
const tight = (html) => html.replace(/^<p>(.*?)<\/p>/s, "$1");

const cells = (line) => line.trim().replace(/^\||(?<!\\)\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim());

/** Alignment of a column by its delimiter: `:-:` or `-:`. */
const alignment = (delimiter) => (/^:-+:$/.test(delimiter) ? "center" : /-:$/.test(delimiter) ? "right" : "");

function table(lines, at, { references }) {
  const aligned = cells(lines[at + 1]).map(alignment);
  const cell = (text, i, tag) => `<${tag}${aligned[i] ? ` class="${aligned[i]}"` : ""}>${inline(text, references, { isCell: true })}</${tag}>`;
  const row = (line, tag) => `<tr>${cells(line).map((text, i) => cell(text, i, tag)).join("")}</tr>`;
  const head = row(lines[at], "th"), body = [];
  at += 2;
  while (at < lines.length && lines[at].includes("|")) body.push(row(lines[at++], "td"));
  return [`<div class="tablebox" tabindex="0"><table><thead>${head}</thead><tbody>${body.join("")}</tbody></table></div>`, at];
}

function paragraph(lines, at, { references }) {
  const own = [];
  while (at < lines.length && lines[at].trim() && (own.length === 0 || !startsBlock(lines, at))) own.push(lines[at++].trim());
  return [`<p>${inline(own.join("\n"), references)}</p>`, at];
}

const startsBlock = (lines, at) => [FENCE, HEADING, RULE, QUOTE, ITEM].some((kind) => kind.test(lines[at])) || displayMath(lines, at) !== null;
