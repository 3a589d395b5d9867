// Emphasis in Markdown: matches delimiter runs with a stack, as CommonMark does, in linear time.

const TAGS = { "*": ["em", "strong"], "_": ["em", "strong"], "~": ["s", "s"] };

/** A run of `*`, `_` or `~` with the characters around it, and whether it may open or close emphasis. */
export class DelimiterRun {
  constructor(marks, before, after) {
    this.mark = marks[0];
    this.length = this.left = marks.length;
    // A single `*` and any `_` stay text inside words: `2*3*4`, `snake_case`.
    const isStrict = this.mark === "_" || marks === "*";
    const isText = this.mark === "~" ? marks !== "~~" : this.length > 3;
    this.opens = !isText && /\S/.test(after) && !(isStrict && /\w/.test(before));
    this.closes = !isText && /\S/.test(before) && !(isStrict && /\w/.test(after));
    this.starts = this.ends = "";
  }

  /** Closing tags, delimiters that match nothing, opening tags. */
  html() {
    return this.ends + this.mark.repeat(this.left) + this.starts;
  }

  matches(closer) {
    if (this.mark !== closer.mark) return false;
    // CommonMark's rule of three, for runs that may both open and close.
    const sum = this.length + closer.length;
    return !(this.closes || closer.opens) || sum % 3 !== 0 || this.length % 3 === 0;
  }
}

/** Turns the runs that match into tags. */
export function emphasize(runs) {
  /** Runs that may still open, and for each kind of closer the run below which none matches. */
  const openers = [], floors = new Map();
  runs.forEach((run, place) => {
    run.place = place;
    if (run.closes) close(run, openers, floors);
    if (run.opens && run.left) openers.push(run);
  });
}

function close(closer, openers, floors) {
  const kind = `${closer.mark}${closer.opens}${closer.length % 3}`;
  while (closer.left) {
    let at = openers.length - 1;
    const isAbove = () => at >= 0 && openers[at].place >= (floors.get(kind) ?? 0);
    while (isAbove() && !openers[at].matches(closer)) at--;
    if (!isAbove()) {
      floors.set(kind, closer.place);
      return;
    }
    const opener = openers[at], size = Math.min(2, opener.left, closer.left), tag = TAGS[closer.mark][size - 1];
    opener.left -= size;
    closer.left -= size;
    opener.starts = `<${tag}>${opener.starts}`;
    closer.ends += `</${tag}>`;
    openers.length = opener.left ? at + 1 : at;
  }
}
