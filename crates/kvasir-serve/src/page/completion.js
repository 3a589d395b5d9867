// One answer of the model: sends the conversation, and takes the stream into a node.

import { Lost, Refused, events } from "/page/api.js";
import { written } from "/page/conversation.js";
import { begin, endUnused, forget, gone } from "/page/sessions.js";
import { sent, windowStart } from "/page/truncation.js";

/** Whether a request exceeded the model's context. */
export const isOverflow = (error) => error?.code === "context_length_exceeded";

/**
 * Fills a node with the answer as it comes; `fields` are those of the request beside its messages.
 * `continues` sends the node itself as the last message. Errors are shown in the node, except two, which are the result:
 * a refused API key, for which `guard(error)` shows the key dialog, and a request that exceeds the context.
 */
export async function complete(conversation, node, { fields, continues, signal, guard, refresh }, retry = true) {
  const { tree, system } = conversation, { meta } = node, branch = tree.upTo(node.parent), path = sent(branch);
  const scope = { system, window: windowStart(branch) ? path[0].id : 0 };
  let session = null;
  try {
    const how = continues ? { fields: continuing([...path, node], system), session } : await begin(tree, path, scope, written, signal);
    session = how.session;
    // Until the answer is complete, `end` finds the session only here.
    if (session) meta.tried = session;
    await receive(node, { ...how.fields, ...fields }, signal, refresh);
    if (session) {
      meta.session = session;
      delete meta.tried;
    }
  } catch (error) {
    if (session && retry && !signal.aborted && gone(error)) {
      forget(tree, session.id);
      return complete(conversation, node, { fields, continues, signal, guard, refresh }, false);
    }
    const lost = signal.reason instanceof Lost;
    if (signal.aborted && !lost) meta.stopped = true;
    else if (guard(error)) return error;
    else if (isOverflow(error) && (continues || !node.message.content)) {
      if (session) endUnused(tree, session.id);
      return error;
    } else meta.error = (lost ? signal.reason : error).message;
  }
  return null;
}

/** Sends a request and takes its answer into a node, with its usage and times. */
async function receive(node, fields, signal, refresh) {
  const { message, meta } = node;
  const began = performance.now(), before = meta.usage?.completion_tokens ?? 0;
  let first = null, last = began;
  try {
    // The usage comes with every piece: an answer that is cut has no last one.
    const body = { ...fields, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } };
    for await (const [, data] of events("/v1/chat/completions", body, signal)) {
      if (data.error) throw new Refused(0, data.error.message, data.error.code);
      if (data.usage) meta.usage = usage(data, before);
      const choice = data.choices?.[0];
      if (!choice) continue;
      if (choice.delta && take(message, choice.delta)) {
        first ??= performance.now();
        last = performance.now();
      }
      if (choice.logprobs?.content) (meta.tokens ??= []).push(...choice.logprobs.content);
      if (choice.finish_reason) meta.finish = choice.finish_reason;
      refresh(node);
    }
  } finally {
    if (first !== null) {
      meta.first ??= first - began;
      const made = (meta.usage?.completion_tokens ?? 0) - before;
      // What comes in a lump has no speed.
      if (made > 1 && last - first > 20) meta.rate = (1000 * (made - 1)) / (last - first);
    }
  }
}

/**
 * Fields of a request that continues the last of these nodes. A session refuses such a request, so
 * it carries the whole conversation.
 */
function continuing(nodes, system) {
  const lead = system ? [{ role: "system", content: system }] : [];
  return { messages: [...lead, ...written(nodes)], continue_final_message: true, add_generation_prompt: false };
}

/**
 * The usage of a chunk, plus the tokens of the answer `before` it was continued. Only the last
 * chunk, which has no choices, knows the cached tokens.
 */
function usage({ usage: { prompt_tokens_details: details, completion_tokens: made, ...rest }, choices }, before) {
  return { ...rest, completion_tokens: before + made, ...(choices?.length ? {} : { prompt_tokens_details: details }) };
}

/** Takes a delta into the message. False if it held nothing to show. */
function take(message, delta) {
  let got = false;
  if (delta.content) [message.content, got] = [message.content + delta.content, true];
  if (delta.reasoning_content) [message.reasoning, got] = [(message.reasoning ?? "") + delta.reasoning_content, true];
  for (const { index, id, function: part } of delta.tool_calls ?? []) {
    const call = ((message.tool_calls ??= [])[index] ??= { id, type: "function", function: { name: "", arguments: "" } });
    call.function.name += part?.name ?? "";
    call.function.arguments += part?.arguments ?? "";
    got = true;
  }
  return got;
}
