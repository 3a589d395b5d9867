// Syntax highlighting: comments, strings, numbers, keywords, types, calls and keys, in one pass.

import { languageOf } from "/page/languages.js";

const LONGEST = 100_000; // characters; longer code stays plain

const NUMBER = String.raw`(?<![\w.])\d[\w.]*`;
const WORD = String.raw`[A-Za-z_$][\w$]*!?`;

const patterns = new Map();

/** One pattern with a group per kind of token. */
function patternOf(language) {
  if (!patterns.has(language)) {
    const kinds = ["comment", "property", "added", "removed", "keyword", "variable", "string"].filter((kind) => language[kind]);
    const parts = kinds.map((kind) => `(?<${kind}>${language[kind]})`);
    if (!language.plain) parts.push(`(?<number>${NUMBER})`, `(?<word>${WORD})`);
    patterns.set(language, new RegExp(parts.join("|"), "g"));
  }
  return patterns.get(language);
}

/** What a word is, by the language and by what follows it. */
function kindOfWord(word, next, { words, ignoresCase }) {
  if (words.has(ignoresCase ? word.toLowerCase() : word)) return "keyword";
  if (next === "(" || word.endsWith("!")) return "function";
  return /^[A-Z]\w*[a-z]/.test(word) ? "type" : null;
}

/** Code as HTML; `escape` escapes a part of it. */
export function highlight(code, name, escape) {
  const language = languageOf(name);
  if (!language || code.length > LONGEST) return escape(code);
  let html = "", at = 0;
  for (const match of code.matchAll(patternOf(language))) {
    const [text] = match, [kind] = Object.entries(match.groups).find(([, found]) => found !== undefined) ?? [];
    if (!text) continue;
    const shown = kind === "word" ? kindOfWord(text, code[match.index + text.length], language) : kind;
    html += escape(code.slice(at, match.index)) + (shown ? `<span class="t-${shown}">${escape(text)}</span>` : escape(text));
    at = match.index + text.length;
  }
  return html + escape(code.slice(at));
}
