// Text: why somebody waits, and numbers with units.

const REASONS = {
  behind: "somebody ahead of it must go first",
  sequence_limit: "as many sequences run as may",
  token_budget: "the step is full",
  no_room: (r) => `needs ${r.needed} slots, ${r.available} could be had`,
  reserved: (r) => `needs ${r.needed} slots, ${r.available} are not promised to others`,
  lease: (r) => `${r.slots} slots come back with the step in flight`,
  cache_sequences: "the cache holds as many sequences as it can",
  no_pool_row: "no place in the token pool is free",
  no_state_slot: "no place for its state is free",
  prefill_first: "prompts go first",
  decode_first: "decodes go first",
  delay: "held for the delay factor",
  coalesce: "waits so that all replicas prefill together",
  token_in_flight: "its own token is still in flight",
  last_token_in_flight: "its last token is in flight",
  verifying: "its drafts are being verified",
  sibling: "a sibling computes their common prompt",
  sliver: "too small a chunk is left of the budget",
  preempted: "preempted in this step",
  cost_target: "the step would take longer than its target",
  one_prefill: "another prompt is being computed",
  interleave: "prompts and decodes take turns",
  decode_batch: "the decode batch is full",
  volume: (r) => `rows × tkv could reach ${count(r.projected)}, the limit is ${count(r.limit)}`,
  model_length: "somebody's tokens would no longer fit the model's length",
  paused: "paused: not its turn to decode",
  others_paused: "no prompts while others are paused",
};

const titled = (word) => word.replaceAll("_", " ");

/** One line for a reason: a word, or {word: {figures}}. */
function sayReason(reason) {
  if (!reason) return "";
  const [word, figures] = typeof reason === "string" ? [reason, null] : Object.entries(reason)[0];
  const text = REASONS[word];
  if (typeof text === "function" && figures) return text(figures);
  if (typeof text === "string") return text;
  if (figures === null || typeof figures !== "object") return titled(word) + (figures === null ? "" : ` ${figures}`);
  return `${titled(word)} (${Object.entries(figures).map(([k, v]) => `${titled(k)} ${v}`).join(", ")})`;
}

/** How a request ended: a word, or {word: detail}. */
function sayEnd(why) {
  if (typeof why === "string") return titled(why);
  const [word, detail] = Object.entries(why)[0];
  return titled(word) + (detail && typeof detail === "object" ? `: ${sayReason(detail)}` : detail != null ? `: ${titled(String(detail))}` : "");
}

const count = (n) => (n == null ? "–" : Number(n).toLocaleString("en-US"));

const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

/** Nanoseconds with a fitting unit. */
function span(ns) {
  if (ns == null) return "–";
  const units = [["s", 1e9], ["ms", 1e6], ["µs", 1e3]];
  for (const [unit, size] of units) if (ns >= size) return `${trim(ns / size)} ${unit}`;
  return `${Math.round(ns)} ns`;
}

const trim = (x) => (x >= 100 ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x.toFixed(2)).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");

const escapeHtml = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);

/** A colour of its own for each request. */
const hue = (id) => Math.round((id * 137.508 + 205) % 360);
