// Links in escaped text: targets in parentheses, bare URLs, URLs in angle brackets.
//
// Only http, https and mailto addresses become links.

import { matchAt } from "/page/scan.js";

const ADDRESS = /(?:https?:\/\/|mailto:)\S{1,2000}/y;
const TITLE = /\s+(&#3[49];)(.{0,300}?)\1(?=\s*\))/y;
const BARE = /https?:\/\/(?:(?!&#(?:34|39|60|62);)[^\s`]){1,2000}/y;
const ANGLED = /&#60;((?:https?:\/\/|mailto:)[^\s`]{1,2000}?)&#62;/y;

export function openingTag({ url, title }) {
  const hint = title ? ` title="${title}"` : "";
  return `<a href="${url}"${hint} target="_blank" rel="noopener noreferrer">`;
}

/** The target at `at`, as in `(https://a.b/c_(d) "title")`: address, title, and where it ends. */
export function targetAt(text, at) {
  const open = matchAt(/\(\s*/y, text, at);
  if (!open) return null;
  const begin = at + open[0].length, angled = matchAt(ANGLED, text, begin);
  const url = angled ? angled[1] : addressAt(text, begin);
  if (!url) return null;
  const behind = begin + (angled ? angled[0] : url).length;
  const title = matchAt(TITLE, text, behind);
  const close = matchAt(/\s*\)/y, text, behind + (title ? title[0].length : 0));
  return close && { url: url.replace(/\\([!-/:-@[-`{-~])/g, "$1"), title: title?.[2], end: close.index + close[0].length };
}

/** An address without white space in which parentheses are balanced. */
function addressAt(text, at) {
  const found = matchAt(ADDRESS, text, at)?.[0] ?? "";
  let depth = 0;
  for (const { 0: mark, index } of found.matchAll(/[()]/g)) {
    depth += mark === "(" ? 1 : -1;
    if (depth < 0) return found.slice(0, index);
  }
  return found;
}

/** The URL at `at`, bare or in angle brackets, and where it ends. In a label `]` ends a bare one. */
export function urlAt(text, at, isInLabel) {
  const angled = matchAt(ANGLED, text, at);
  if (angled) return { url: angled[1], end: at + angled[0].length };
  const found = matchAt(BARE, text, at)?.[0];
  if (!found) return null;
  const url = withoutPunctuation(isInLabel ? found.split("]")[0] : found);
  return { url, end: at + url.length };
}

/** Punctuation and parentheses that the sentence closes are not part of a URL. */
function withoutPunctuation(url) {
  let end = url.length, surplus = url.split(")").length - url.split("(").length;
  for (;;) {
    const last = url[end - 1];
    const isMark = ".,:;!?*_~".includes(last) && url.slice(end - 5, end) !== "&#38;";
    if (!isMark && !(last === ")" && surplus > 0)) return url.slice(0, end);
    if (last === ")") surplus--;
    end--;
  }
}
