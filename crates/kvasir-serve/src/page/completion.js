// One answer of the model: sends the conversation, and takes the response into a node.

import { written } from "/page/conversation.js";
import { isPending, take } from "/page/response_events.js";
import { requestOf } from "/page/response_request.js";
import { ResponseGone, follow } from "/page/responses.js";
import { begin, endUnused, forget, gone } from "/page/sessions.js";
import { sent, windowStart } from "/page/truncation.js";

/** Whether a request exceeded the model's context. */
export const isOverflow = (error) => error?.code === "context_length_exceeded";

/**
 * Fills a node with the answer as it comes; `fields` are those of the request beside its messages.
 * `continues` sends the node itself as the last message. A pending answer is followed, and nothing is sent. Errors are
 * shown in the node, except two, which are the result: a refused API key, for which `guard(error)` shows the key dialog,
 * and a request that exceeds the context.
 */
export async function complete(conversation, node, { fields, continues, signal, guard, refresh }, retry = true) {
  const { tree, system } = conversation, { meta } = node;
  let session = null;
  try {
    let body = null;
    // The page that began a pending answer has ended its session.
    if (isPending(node)) delete meta.tried;
    else {
      ({ session, fields: body } = await request(conversation, node, continues, signal));
      body = requestOf({ ...body, ...fields });
      meta.response = { before: meta.usage?.completion_tokens ?? 0 };
    }
    // Until the answer is complete, `end` finds the session only here.
    if (session) meta.tried = session;
    for await (const event of follow(body, meta.response, signal)) {
      take(node, event);
      refresh(node, { begins: event.type === "response.created" });
    }
    if (session) {
      meta.session = session;
      delete meta.tried;
    }
  } catch (error) {
    if (session && retry && !signal.aborted && gone(error)) {
      forget(tree, session.id);
      return complete(conversation, node, { fields, continues, signal, guard, refresh }, false);
    }
    if (signal.aborted) meta.stopped = true;
    else if (guard(error)) return error;
    else if (isOverflow(error) && (continues || !node.message.content)) {
      if (session) endUnused(tree, session.id);
      return error;
    } else meta.error = error.message;
    if (error instanceof ResponseGone) delete meta.response;
  }
  return null;
}

/** The request fields that contain the conversation, and the session that the answer will belong to. */
async function request({ tree, system }, node, continues, signal) {
  const branch = tree.upTo(node.parent), path = sent(branch);
  if (continues) return { fields: continuing([...path, node], system), session: null };
  return begin(tree, path, { system, window: windowStart(branch) ? path[0].id : 0 }, written, signal);
}

/**
 * Fields of a request that continues the last of these nodes. A session refuses such a request, so
 * it carries the whole conversation.
 */
function continuing(nodes, system) {
  const lead = system ? [{ role: "system", content: system }] : [];
  return { messages: [...lead, ...written(nodes)], continue_final_message: true };
}
