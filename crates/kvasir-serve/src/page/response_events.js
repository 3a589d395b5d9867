// Takes the events of a response into an answer.
//
// `meta.response` of an answer is `{id, after, before, ended}`. `id` and `after` are the position in the server's
// events (see `responses.js`), `before` is the number of tokens before the answer was continued, and `ended` is set
// after the last event. Message and position are written together, so a resumed answer has no gap and no text twice.

import { Refused } from "/page/api.js";

const MIN_DECODE = 20; // ms of decoding from which on a token rate is shown

/** Whether the server may be generating more of this answer. */
export const isPending = ({ meta }) => meta.response?.id !== undefined && !meta.response.ended;

/** Updates usage, time to first token and token rate from llama.cpp's `timings`. */
function measure(meta, { cache_n: cached, prompt_n: computed, prompt_ms: first, predicted_n: made, predicted_ms: took }) {
  count(meta, { prompt: cached + computed, cached, made });
  meta.first ??= first;
  if (made > 1 && took > MIN_DECODE) meta.rate = (1000 * (made - 1)) / took;
}

function count(meta, { prompt, cached, cacheEnd = meta.usage?.prompt_tokens_details?.cache_end, made }) {
  meta.usage = { prompt_tokens: prompt, completion_tokens: meta.response.before + made, total_tokens: prompt + made, prompt_tokens_details: { cached_tokens: cached, cache_end: cacheEnd } };
}

/** Updates usage, times and finish reason from the response object of the last event. */
function end(meta, { usage, timings, incomplete_details: cut, output }) {
  if (usage) count(meta, { prompt: usage.input_tokens, cached: usage.input_tokens_details?.cached_tokens, cacheEnd: usage.input_tokens_details?.cache_end, made: usage.output_tokens });
  if (timings) measure(meta, timings);
  meta.finish = cut ? "length" : output?.some(({ type }) => type === "function_call") ? "tool_calls" : "stop";
}

/** Takes an event into the answer; throws the error of a response that has failed. */
export function take({ message, meta }, event) {
  const { type, delta } = event;
  if (type === "response.output_text.delta") {
    // Log-probabilities are not stored, so a resumed answer shows none.
    if (event.logprobs?.length && (meta.tokens || !message.content)) (meta.tokens ??= []).push(...event.logprobs);
    message.content += delta;
  } else if (type === "response.reasoning_text.delta") message.reasoning = (message.reasoning ?? "") + delta;
  else if (type === "response.output_item.added" && event.item.type === "function_call") {
    (message.tool_calls ??= []).push({ id: event.item.call_id, type: "function", function: { name: event.item.name, arguments: "" } });
  } else if (type === "response.function_call_arguments.delta") message.tool_calls.at(-1).function.arguments += delta;
  else if (type === "response.completed" || type === "response.incomplete") end(meta, event.response);
  else if (type === "response.cancelled") meta.stopped = true;
  else if (type === "response.failed") throw new Refused(0, event.response.error.message, event.response.error.code);
  if (event.timings) measure(meta, event.timings);
}
