// Sampling parameters that can be set: name in the API, bounds, explanation; and presets of them.

export const FIELDS = [
  { name: "temperature", label: "Temperature", min: 0, max: 100, step: 0.05, hint: "How random the answer is. 0 always takes the likeliest token." },
  { name: "top_p", label: "Top p", min: 0, max: 1, step: 0.01, above: true, hint: "Samples from the likeliest tokens whose probabilities add up to this." },
  { name: "top_k", label: "Top k", min: 0, max: 1_000_000, step: 1, hint: "Samples from this many of the likeliest tokens. 0 means all." },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.01, hint: "Drops tokens whose probability is below this share of the likeliest one's." },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0, max: 100, step: 0.05, above: true, hint: "Above 1, tokens that occurred before become less likely." },
  { name: "max_tokens", label: "Token limit", min: 1, max: 10_000_000, step: 1, empty: "what fits", hint: "Longest answer in tokens, reasoning included." },
  { name: "seed", label: "Random seed", min: 0, max: Number.MAX_SAFE_INTEGER, step: 1, empty: "random", hint: "Equal seeds give equal answers to equal requests." },
];

/** Values of the presets; a parameter that one lacks is the model's. */
export const PRESETS = [
  { name: "model", label: "Default", values: {} },
  { name: "precise", label: "Precise", values: { temperature: "0" } },
  { name: "balanced", label: "Balanced", values: { temperature: "0.7", top_p: "0.9" } },
  { name: "creative", label: "Creative", values: { temperature: "1.1", min_p: "0.05" } },
];

/** Parameters that presets set. */
export const SAMPLED = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty"];

const written = (n) => n.toLocaleString("en-US");

/** What is wrong with the text of a field; empty if nothing is. */
export function problemOf({ label, min, max, step, above }, text) {
  if (text === "") return "";
  const value = Number(text);
  if (!Number.isFinite(value)) return `${label} must be a number.`;
  if (step === 1 && !Number.isInteger(value)) return `${label} must be a whole number.`;
  if (value < min || value > max || (above && value === min)) {
    if (max >= 1_000_000) return `${label} must be ${min} or more.`;
    return above ? `${label} must be above ${min} and at most ${written(max)}.` : `${label} must be from ${min} to ${written(max)}.`;
  }
  return "";
}

/** What is wrong with a JSON list of tools; empty if nothing is. `taken` are names of other tools. */
export function toolsProblem(text, taken = []) {
  if (!text.trim()) return "";
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    return `This is no JSON: ${error.message}.`;
  }
  if (!Array.isArray(tools)) return "The tools must be a JSON list: […].";
  for (const [i, tool] of tools.entries()) {
    const { name, parameters = {} } = tool?.function ?? {};
    if (tool?.type !== "function" || typeof name !== "string" || !/^[\w.-]{1,128}$/.test(name)) return `Tool ${i + 1} must have \`"type": "function"\` and a \`function.name\`.`;
    if (typeof parameters !== "object" || parameters === null || Array.isArray(parameters)) return `The \`parameters\` of tool ${i + 1} must be an object.`;
    if (taken.includes(name)) return `Tool ${i + 1} has the name \`${name}\` of the page’s own tool.`;
    if (tools.slice(0, i).some((other) => other.function.name === name)) return `Tool ${i + 1} has the name \`${name}\` of another tool.`;
  }
  return "";
}
