// Markdown to HTML. Everything is escaped before anything is read, so no tag of a text's own can come out.

export const escape = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);

const LINK = /\[([^\]\n]{1,300})\]\(((?:https?:\/\/|mailto:)[^\s()]{1,2000})\)/g;

/** Marks inside a line, in text that is escaped already. Code and links are put aside first: nothing is read in them. */
function inline(text) {
  const kept = [];
  const aside = (html) => `\u0000${kept.push(html) - 1}\u0000`;
  const back = (html) => html.replace(/\u0000(\d+)\u0000/g, (_, i) => kept[i]);
  const marked = text
    .replaceAll("\u0000", "")
    .replace(/(`+)([^`]+?)\1(?!`)/g, (_, ticks, code) => aside(`<code>${code.trim()}</code>`))
    .replace(LINK, (_, label, url) => aside(`<a href="${url}" target="_blank" rel="noopener noreferrer">${back(label)}</a>`))
    .replace(/\*\*(?=\S)(.+?)(?<=\S)\*\*/g, "<strong>$1</strong>")
    .replace(/(?<![\w*])\*(?=[^\s*])([^*\n]+?)(?<=[^\s*])\*(?![\w*])/g, "<em>$1</em>")
    .replace(/(?<!\w)_(?=[^\s_])([^_\n]+?)(?<=[^\s_])_(?!\w)/g, "<em>$1</em>")
    .replace(/~~(?=\S)(.+?)(?<=\S)~~/g, "<s>$1</s>");
  return back(marked);
}

const FENCE = /^\s{0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const HEADING = /^(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^\s{0,3}([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^\s{0,3}(?:>|&#62;)\s?(.*)$/;
const TABLE_LINE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

/** A text as HTML. */
export function markdown(text) {
  return blocks(escape(text).split("\n"), 0);
}

function blocks(lines, depth) {
  const out = [];
  let at = 0;
  while (at < lines.length) {
    const [html, next] = block(lines, at, depth);
    if (html) out.push(html);
    at = next;
  }
  return out.join("");
}

/** One block that begins at line `at`: its HTML, and the line after it. */
function block(lines, at, depth) {
  const line = lines[at];
  if (!line.trim()) return ["", at + 1];
  const fence = FENCE.exec(line);
  if (fence) return code(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) {
    const level = Math.min(6, heading[1].length + 2);
    return [`<h${level}>${inline(heading[2])}</h${level}>`, at + 1];
  }
  if (RULE.test(line)) return ["<hr>", at + 1];
  if (QUOTE.test(line) && depth < 6) return quote(lines, at, depth);
  if (ITEM.test(line) && depth < 6) return list(lines, at, depth);
  if (line.includes("|") && TABLE_LINE.test(lines[at + 1] ?? "")) return table(lines, at);
  return paragraph(lines, at);
}

function code(lines, at, [, mark, language]) {
  let end = at + 1;
  while (end < lines.length && !lines[end].trim().startsWith(mark)) end++;
  const body = lines.slice(at + 1, end).join("\n");
  return [`<div class="codebox"><div class="codehead"><span>${language || "text"}</span><button type="button" class="quiet" data-act="copy-code">copy</button></div><pre><code>${body}</code></pre></div>`, end + 1];
}

function quote(lines, at, depth) {
  const inner = [];
  while (at < lines.length && QUOTE.test(lines[at])) inner.push(QUOTE.exec(lines[at++])[1]);
  return [`<blockquote>${blocks(inner, depth + 1)}</blockquote>`, at];
}

const indentOf = (line) => line.length - line.trimStart().length;

function list(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  const base = first[1].length, ordered = /\d/.test(first[2]);
  const items = [];
  while (at < lines.length) {
    const item = ITEM.exec(lines[at]);
    if (!item || item[1].length > base + 1 || item[1].length < base || /\d/.test(item[2]) !== ordered) break;
    const inner = [item[3]];
    const inset = lines[at].length - item[3].length;
    at++;
    while (at < lines.length && (lines[at].trim() ? indentOf(lines[at]) > base + 1 : indentOf(lines[at + 1] ?? "") > base + 1)) {
      inner.push(lines[at].slice(Math.min(inset, indentOf(lines[at]))));
      at++;
    }
    items.push(inner.length > 1 ? `<li>${tight(blocks(inner, depth + 1))}</li>` : `<li>${inline(inner[0])}</li>`);
    if (!lines[at]?.trim() && ITEM.test(lines[at + 1] ?? "") && indentOf(lines[at + 1]) === base) at++;
  }
  const start = ordered ? ` start="${parseInt(first[2], 10)}"` : "";
  return [ordered ? `<ol${start}>${items.join("")}</ol>` : `<ul>${items.join("")}</ul>`, at];
}

/** An item's first paragraph stands on the item's own line. */
const tight = (html) => html.replace(/^<p>(.*?)<\/p>/s, "$1");

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => inline(cell.trim()));

function table(lines, at) {
  const row = (line, tag) => `<tr>${cells(line).map((cell) => `<${tag}>${cell}</${tag}>`).join("")}</tr>`;
  const head = row(lines[at], "th"), body = [];
  at += 2;
  while (at < lines.length && lines[at].includes("|")) body.push(row(lines[at++], "td"));
  return [`<div class="tablebox"><table><thead>${head}</thead><tbody>${body.join("")}</tbody></table></div>`, at];
}

function paragraph(lines, at) {
  const own = [];
  while (at < lines.length && lines[at].trim() && (own.length === 0 || !startsBlock(lines[at]))) own.push(lines[at++].trim());
  return [`<p>${own.map(inline).join("<br>")}</p>`, at];
}

const startsBlock = (line) => [FENCE, HEADING, RULE, QUOTE, ITEM].some((kind) => kind.test(line));
