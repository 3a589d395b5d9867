// Fences of code blocks in Markdown.

import { indentOf } from "/page/indent.js";

// Back-ticks behind the opening ones make a code span of the line.
const OPENING = /^ {0,3}(`{3,}(?=[^`]*$)|~{3,})\s*([\w+#.-]*)/;
const CLOSING = /^\s*(`{3,}|~{3,})\s*$/;

export class Fence {
  /** The fence that a line opens, or null. */
  static of(line) {
    const found = OPENING.exec(line);
    return found && new Fence(indentOf(line), found[1], found[2]);
  }

  constructor(indent, marks, language) {
    Object.assign(this, { indent, marks, language });
  }

  /** A closing fence names no language, is at least as long as the opening one and at most 3 columns further in. */
  closes(line) {
    const marks = CLOSING.exec(line)?.[1];
    return Boolean(marks?.startsWith(this.marks)) && indentOf(line) <= this.indent + 3;
  }
}
