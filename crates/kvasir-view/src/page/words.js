// Text: defer reasons, finish reasons, and numbers with units.

const REASONS = {
  behind: "behind the head of the queue",
  sequence_limit: "--max-num-seqs sequences are running",
  token_budget: "the step's token budget is used up",
  no_room: (r) => `needs ${r.needed} slots, ${r.available} are available`,
  reserved: (r) => `needs ${r.needed} slots, ${r.available} are not reserved`,
  lease: (r) => `${r.slots} slots are leased by the step in flight`,
  cache_sequences: "the cache is at its sequence limit",
  no_pool_row: "the token pool has no free row",
  no_state_slot: "no recurrent-state slot is free",
  prefill_first: "prefill steps go first",
  delay: "deferred by the delay factor",
  coalesce: "deferred so that all replicas prefill together",
  token_in_flight: "its token is in flight",
  last_token_in_flight: "its last token is in flight",
  verifying: "its drafts are being verified",
  sibling: "a sibling computes the shared prompt",
  sliver: "the remaining budget is too small for a chunk",
  preempted: "preempted in this step",
  cost_target: "the step would exceed its time target",
  one_prefill: "another prompt is in prefill",
  interleave: "prefill and decode steps alternate",
  decode_batch: "the decode batch is full",
  volume: (r) => `rows × tkv could reach ${count(r.projected)}, the limit is ${count(r.limit)}`,
  model_length: "a row would exceed the model's length",
  paused: "paused: not its turn to decode",
  others_paused: "no prefill while decodes are paused",
};

const titled = (word) => word.replaceAll("_", " ");

/** One line for a reason: a word, or {word: {figures}}. */
function formatReason(reason) {
  if (!reason) return "";
  const [word, figures] = typeof reason === "string" ? [reason, null] : Object.entries(reason)[0];
  const text = REASONS[word];
  if (typeof text === "function" && figures) return text(figures);
  if (typeof text === "string") return text;
  if (figures === null || typeof figures !== "object") return titled(word) + (figures === null ? "" : ` ${figures}`);
  return `${titled(word)} (${Object.entries(figures).map(([k, v]) => `${titled(k)} ${v}`).join(", ")})`;
}

/** How a request ended: a word, or {word: detail}. */
function formatEnd(why) {
  if (typeof why === "string") return titled(why);
  const [word, detail] = Object.entries(why)[0];
  return titled(word) + (detail && typeof detail === "object" ? `: ${formatReason(detail)}` : detail != null ? `: ${titled(String(detail))}` : "");
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

/** A color of its own for each request. */
const hue = (id) => Math.round((id * 137.508 + 205) % 360);
