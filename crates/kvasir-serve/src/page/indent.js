// Indentation of lines in columns: a tab reaches to the next multiple of 4.

/** The columns that a text without line breaks takes. */
export function widthOf(text) {
  let width = 0;
  for (const char of text) width += char === "\t" ? 4 - (width % 4) : 1;
  return width;
}

export const indentOf = (line) => widthOf(/^[ \t]*/.exec(line)[0]);

/** A line moved to the left by `width` columns, or by what it is indented. */
export function dedent(line, width) {
  if (!width) return line;
  return " ".repeat(Math.max(0, indentOf(line) - width)) + line.replace(/^[ \t]+/, "");
}
