// Converts messages and fields of `/v1/chat/completions`, the format of conversations and settings, to a request of
// `/v1/responses`.

/** The items of a message. */
function itemsOf({ role, content, tool_calls: calls = [], tool_call_id: id }) {
  if (role === "tool") return [{ type: "function_call_output", call_id: id, output: content }];
  const text = content || !calls.length ? [{ role, content }] : [];
  return [...text, ...calls.map(({ id, function: { name, arguments: given } }) => ({ type: "function_call", call_id: id, name, arguments: given }))];
}

const toolOf = ({ function: { name, description, parameters, strict } }) => ({ type: "function", name, description, parameters, strict });

/** The request body. It requests `timings` in each delta: an interrupted answer has no last event with usage. */
export function requestOf({ messages, max_tokens: limit, logprobs, top_logprobs: top, tools, ...fields }) {
  return {
    ...fields,
    input: messages.flatMap(itemsOf),
    timings_per_token: true,
    ...(limit !== undefined && { max_output_tokens: limit }),
    ...(logprobs && { include: ["message.output_text.logprobs"], top_logprobs: top }),
    ...(tools && { tools: tools.map(toolOf) }),
  };
}
