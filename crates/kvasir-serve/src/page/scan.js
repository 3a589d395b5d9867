// Scanning a text from left to right.

/** What a sticky or global pattern finds from `at` on. */
export function matchAt(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}
