// Tool calls that a model wrote as text, because no tool was offered or its parser found none.

const WRAPPED = /<tool_call>\s*([^]*?)\s*<\/tool_call>/g;
const FENCED = /^```(?:json|tool_call|tool_code)?\s*\n([^]*?)\n?```$/;
const MARKED = /^(?:\[TOOL_CALLS\]|<\|python_tag\|>|functools)\s*/;

/** A call from a parsed value; null if it is none. */
function callOf(value) {
  const { name, arguments: given = value?.parameters } = value?.function ?? value ?? {};
  const extra = Object.keys(value ?? {}).filter((key) => !["name", "arguments", "parameters", "function", "id", "type"].includes(key));
  if (typeof name !== "string" || !/^[\w.-]{1,128}$/.test(name) || given === undefined || extra.length) return null;
  return { name, arguments: typeof given === "string" ? given : JSON.stringify(given) };
}

function callsOf(json) {
  try {
    const value = JSON.parse(json), calls = (Array.isArray(value) ? value : [value]).map(callOf);
    return calls.length && calls.every(Boolean) ? calls : null;
  } catch {
    return null;
  }
}

/** `{text, calls}` of an answer that consists of calls, after some text at most; null if it does not. */
export function typedCalls(answer) {
  const text = (answer ?? "").trim();
  if (!/[{[]/.test(text)) return null;
  const wrapped = [...text.matchAll(WRAPPED)].map(([, json]) => callsOf(json));
  if (wrapped.length) return wrapped.every(Boolean) ? { text: text.replace(WRAPPED, "").trim(), calls: wrapped.flat() } : null;
  const calls = callsOf(FENCED.exec(text)?.[1] ?? text.replace(MARKED, ""));
  return calls && { text: "", calls };
}
