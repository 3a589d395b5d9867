// Inline elements of Markdown: code spans, formulas, links, emphasis, character references, line breaks.
//
// One scan over escaped text collects parts of HTML. A stack of brackets finds links and a stack of delimiter runs
// finds emphasis, so the time is linear in the length. Code, formulas and addresses are not parsed further.

import { DelimiterRun, emphasize } from "/page/emphasis.js";
import { formula } from "/page/formula.js";
import { openingTag, targetAt, urlAt } from "/page/hyperlinks.js";
import { matchAt } from "/page/scan.js";

/** Where something other than text may begin. */
const SPECIAL = /[\\`$*_~[\]\n]|&#(?:38|60);|(?<![\w/])https?:\/\//g;
// A dollar sign before a digit that closes is a price.
const IN_DOLLARS = /\$(?=\S)((?:\\.|[^$\\\n`]){1,2000})(?<!\s)\$(?![\w$])/y;
const ESCAPED = /\\(&#\d+;|[!-/:-@[-`{-~])/y;
const REFERENCE = /&#38;(#\d{1,7}|#[xX][\da-fA-F]{1,6}|[a-zA-Z][a-zA-Z\d]{1,30});/y;
const BREAK = /&#60;br {0,4}\/?&#62;/iy;
const FOOTNOTE = /\[\^([^\s[\]]{1,100})\]/y;
const LABEL = /\[([^[\]]{0,300})\]/y;

/** HTML of an escaped text. In a cell of a table `\|` is a bar, also in code. */
export const inline = (text, references, { isCell = false } = {}) => new Inline(text, references, isCell).html();

class Inline {
  constructor(text, references, isCell) {
    Object.assign(this, { text, references, isCell });
    this.parts = []; // HTML, and delimiter runs
    this.runs = [];
    this.brackets = []; // that a link may begin with
    this.inactive = 0; // brackets that hold a link, from the first on: links do not nest
    this.urls = []; // and footnotes, that a label of a link takes back as text
    this.found = new Map();
  }

  html() {
    const { text } = this;
    for (let at = 0; at < text.length;) {
      const special = matchAt(SPECIAL, text, at)?.index ?? text.length;
      if (special > at) this.parts.push(text.slice(at, special));
      at = special < text.length ? this.element(special) : special;
    }
    emphasize(this.runs);
    return this.parts.map((part) => (typeof part === "string" ? part : part.html())).join("");
  }

  /** Reads the element at `at`. This and the functions below return where what they read ends. */
  element(at) {
    switch (this.text[at]) {
      case "\n": return this.put("<br>", at + 1);
      case "`": return this.code(at);
      case "\\": return this.backslash(at);
      case "$": return this.dollars(at);
      case "[": return this.openingBracket(at);
      case "]": return this.closingBracket(at);
      case "&": return this.character(at);
      case "h": return this.address(at) ?? this.put("h", at + 1);
      default: return this.delimiters(at);
    }
  }

  put(part, end) {
    this.parts.push(part);
    return end;
  }

  code(at) {
    const ticks = matchAt(/`+/y, this.text, at)[0], begin = at + ticks.length;
    const end = this.closingTicks(ticks.length, begin);
    if (end === undefined) return this.put(ticks, begin);
    let code = this.text.slice(begin, end).replaceAll("\n", " ");
    if (code.startsWith(" ") && code.endsWith(" ") && code.trim()) code = code.slice(1, -1);
    if (this.isCell) code = code.replaceAll("\\|", "|");
    return this.put(`<code>${code}</code>`, end + ticks.length);
  }

  /** The next run of `length` back-ticks from `at` on. */
  closingTicks(length, at) {
    if (!this.ticks) {
      this.ticks = new Map();
      for (const run of [...this.text.matchAll(/`+/g)].reverse()) {
        if (!this.ticks.has(run[0].length)) this.ticks.set(run[0].length, []);
        this.ticks.get(run[0].length).push(run.index);
      }
    }
    const places = this.ticks.get(length) ?? [];
    while (places.at(-1) < at) places.pop();
    return places.at(-1);
  }

  backslash(at) {
    const { text } = this, next = text[at + 1];
    if (next === "\n") return this.put("<br>", at + 2);
    const end = (next === "(" && this.formula(at, "\\)", false)) || (next === "[" && this.formula(at, "\\]", true));
    if (end) return end;
    const escaped = matchAt(ESCAPED, text, at);
    return escaped ? this.put(escaped[1], at + escaped[0].length) : this.put("\\", at + 1);
  }

  dollars(at) {
    const { text } = this, marks = matchAt(/\$+/y, text, at)[0], behind = at + marks.length;
    if (marks === "$$" && this.next("$$", behind) < this.next("\n", behind)) return this.formula(at, "$$", true) ?? this.put(marks, behind);
    const found = marks === "$" && !/\w/.test(text[at - 1] ?? "") ? matchAt(IN_DOLLARS, text, at) : null;
    return found ? this.put(formula(found[1], false, found[0]), at + found[0].length) : this.put(marks, behind);
  }

  /** The formula between two characters at `at` and `close`; null if there is none. */
  formula(at, close, display) {
    const begin = at + 2, end = this.next(close, begin);
    if (end === Infinity || this.next("`", begin) < end) return null;
    const latex = this.text.slice(begin, end), behind = end + close.length;
    return latex.trim() && !latex.endsWith("\\") ? this.put(formula(latex, display, this.text.slice(at, behind)), behind) : null;
  }

  /** The next place of a mark from `at` on, or Infinity. As places only grow, the text is searched once per mark. */
  next(mark, at) {
    let place = this.found.get(mark) ?? -1;
    if (place < at) {
      place = this.text.indexOf(mark, at);
      if (place < 0) place = Infinity;
      this.found.set(mark, place);
    }
    return place;
  }

  openingBracket(at) {
    const label = matchAt(FOOTNOTE, this.text, at), note = label && this.references.footnotes.reference(label[1]);
    if (note) {
      this.urls.push({ part: this.parts.length, url: label[0] });
      return this.put(note, at + label[0].length);
    }
    this.brackets.push({ part: this.parts.length, runs: this.runs.length, begin: at + 1 });
    return this.put("[", at + 1);
  }

  closingBracket(at) {
    const opener = this.brackets.pop(), isActive = this.brackets.length >= this.inactive;
    this.inactive = Math.min(this.inactive, this.brackets.length);
    const target = opener && isActive ? this.target(this.text.slice(opener.begin, at), at + 1) : null;
    if (!target) return this.put("]", at + 1);
    emphasize(this.runs.splice(opener.runs));
    while (this.urls.at(-1)?.part > opener.part) {
      const { part, url } = this.urls.pop();
      this.parts[part] = url;
    }
    this.parts[opener.part] = openingTag(target);
    this.inactive = this.brackets.length;
    return this.put("</a>", target.end);
  }

  /** What a label that ends before `at` links to: an address in parentheses, or what its reference defines. */
  target(label, at) {
    if (!/\S/.test(label)) return null;
    const target = targetAt(this.text, at);
    if (target) return target;
    const named = matchAt(LABEL, this.text, at);
    const reference = this.references.get(named?.[1] || label);
    return reference ? { ...reference, end: at + (named?.[0].length ?? 0) } : null;
  }

  /** A character reference, a line break or a URL in angle brackets; anything else is text. */
  character(at) {
    const { text } = this, reference = matchAt(REFERENCE, text, at);
    // The browser decodes it to text, never to a tag.
    if (reference) return this.put(`&${reference[1]};`, at + reference[0].length);
    const line = matchAt(BREAK, text, at);
    if (line) return this.put("<br>", at + line[0].length);
    return this.address(at) ?? this.put(text.slice(at, at + 5), at + 5);
  }

  address(at) {
    const found = urlAt(this.text, at, this.brackets.length > 0);
    if (!found) return null;
    this.urls.push({ part: this.parts.length, url: found.url });
    return this.put(`${openingTag(found)}${found.url}</a>`, found.end);
  }

  delimiters(at) {
    const { text } = this, marks = matchAt(/([*_~])\1*/y, text, at)[0], end = at + marks.length;
    const run = new DelimiterRun(marks, text[at - 1] ?? " ", text[end] ?? " ");
    this.runs.push(run);
    return this.put(run, end);
  }
}
