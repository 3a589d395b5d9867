// Footnotes of Markdown: `[^a]` in a text, and `[^a]: the note` at its place or elsewhere.
//
// References become buttons and not links: the address of the page names its view, and labels repeat between messages.
// Notes are numbered in the order of their first references. Those without one come last, so that no text is lost.

import { Fence } from "/page/fence.js";
import { dedent, indentOf } from "/page/indent.js";

const DEFINITION = /^ {0,3}\[\^([^\s[\]]{1,100})\]:[ \t]*(.*)$/;
const INSET = 2; // columns from which a line after an empty one belongs to the note

const keyOf = (label) => label.toLowerCase();

export class Footnotes {
  /** Takes the notes out of the lines of an escaped text; `rest` are the others. Of equal labels the first counts. */
  constructor(lines) {
    /** Lines of each note by label. */
    this.notes = new Map();
    /** Labels in the order of their numbers. */
    this.order = [];
    this.numbers = new Map();
    this.rest = [];
    let fence = null;
    for (let at = 0; at < lines.length;) {
      const [, label, text] = (!fence && DEFINITION.exec(lines[at])) || [];
      if (label !== undefined) {
        at = this.define(label, text, lines, at + 1);
        continue;
      }
      fence = fence ? (fence.closes(lines[at]) ? null : fence) : Fence.of(lines[at]);
      this.rest.push(lines[at++]);
    }
  }

  /** Reads the lines of a note from `at` on; gives the line after them. An empty line stands in their place. */
  define(label, text, lines, at) {
    const own = [text], key = keyOf(label);
    for (; at < lines.length; at++) {
      const line = lines[at], isEmpty = !line.trim();
      const goesOn = isEmpty ? indentOf(lines[at + 1] ?? "") >= INSET && lines[at + 1].trim() : indentOf(line) >= INSET || (own.at(-1).trim() && !isBlock(line));
      if (!goesOn) break;
      own.push(dedent(line, 4));
    }
    if (!this.notes.has(key)) this.notes.set(key, own);
    this.rest.push("");
    return at;
  }

  /** The reference to a note as HTML; null if there is no such note. */
  reference(label) {
    const key = keyOf(label);
    if (!this.notes.has(key)) return null;
    const number = this.number(key);
    return `<sup class="noteref"><button type="button" data-act="note" data-note="${number}" aria-label="footnote ${number}">${number}</button></sup>`;
  }

  number(key) {
    if (!this.numbers.has(key)) this.numbers.set(key, this.order.push(key));
    return this.numbers.get(key);
  }

  /** The notes as HTML; `draw(lines)` is that of a note's lines, which may refer to others. */
  html(draw) {
    const items = [];
    const add = (key, hasReference) => {
      const number = this.number(key), back = `<button type="button" data-act="note-back" data-note="${number}" aria-label="back to reference ${number}">↩</button>`;
      items.push(`<li data-note="${number}" tabindex="-1" dir="auto">${draw(this.notes.get(key))}${hasReference ? ` ${back}` : ""}</li>`);
    };
    for (let at = 0; at < this.order.length; at++) add(this.order[at], true);
    for (const key of this.notes.keys()) {
      if (this.numbers.has(key)) continue;
      const before = this.order.length;
      add(key, false);
      for (let at = before + 1; at < this.order.length; at++) add(this.order[at], true);
    }
    return items.length ? `<div class="footnotes"><ol>${items.join("")}</ol></div>` : "";
  }
}

/** Whether a line begins something that is no text of the note before it. */
const isBlock = (line) => DEFINITION.test(line) || Fence.of(line) !== null || /^ {0,3}(?:#{1,6}\s|[-*+]\s|\d{1,9}[.)]\s|&#62;|\||([-*_])(?:\s*\1){2,}\s*$)/.test(line);

/** Shows the note of a reference, or the reference of a note, and puts the focus there. */
export function follow(button) {
  const { act, note } = button.dataset, text = button.closest(".text, .thought");
  const target = text?.querySelector(act === "note" ? `li[data-note="${note}"]` : `[data-act=note][data-note="${note}"]`);
  target?.focus({ preventScroll: true });
  target?.scrollIntoView({ block: "nearest" });
}
