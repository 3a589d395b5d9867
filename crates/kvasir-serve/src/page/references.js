// Reference definitions of Markdown: lines as `[1]: https://a.b "title"`, which links name by their label.

import { Fence } from "/page/fence.js";

const DEFINITION = /^ {0,3}\[([^[\]]{1,300})\]:\s*(?:&#60;)?((?:https?:\/\/|mailto:)\S{1,2000}?)(?:&#62;)?(?:\s+(?:&#3[49];|\()(.{0,300})(?:&#3[49];|\)))?\s*$/;

const keyOf = (label) => label.trim().replace(/\s+/g, " ").toLowerCase();

/** The targets that the lines of an escaped text define, outside fenced code. Of equal labels the first counts. `footnotes` are those of the text. */
export class References {
  constructor(lines, footnotes) {
    this.footnotes = footnotes;
    this.targets = new Map();
    let fence = null;
    for (const line of lines) {
      if (fence) {
        if (fence.closes(line)) fence = null;
        continue;
      }
      fence = Fence.of(line);
      const [, label, url, title] = DEFINITION.exec(line) ?? [];
      if (label && !this.get(label)) this.targets.set(keyOf(label), { url, title });
    }
  }

  get(label) {
    return label.length > 300 ? undefined : this.targets.get(keyOf(label));
  }

  /** Whether a line is a definition that links can use. */
  has(line) {
    const label = DEFINITION.exec(line)?.[1];
    return label !== undefined && this.get(label) !== undefined;
  }
}
