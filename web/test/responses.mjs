// Mocked answers: event streams of `/v1/responses`, and Playwright routes that send them.

/** URL pattern of the request that begins an answer. */
export const ANSWERS = "**/v1/responses";
/** URL pattern of requests for an existing answer: its events, `cancel`, and `DELETE`. */
const EXISTING = "**/v1/responses/**";

let mockCount = 0;

/** One piece of an answer, in the form of a chat completion delta; `more` has its `logprobs` and `finish_reason`. */
export const chunk = (delta, more = {}) => ({ delta, ...more });

/** The server-sent events of an answer of these pieces, one text each; the last piece may be `{usage}`. */
export function eventsOf(...pieces) {
  const id = `resp_mock${++mockCount}`, events = [{ type: "response.created", response: { id, status: "in_progress" } }];
  let usage, finish;
  for (const { delta = {}, logprobs, finish_reason: reason, usage: counted } of pieces) {
    finish = reason ?? finish;
    if (counted) usage = { input_tokens: counted.prompt_tokens, input_tokens_details: counted.prompt_tokens_details, output_tokens: counted.completion_tokens };
    if (delta.reasoning_content) events.push({ type: "response.reasoning_text.delta", delta: delta.reasoning_content });
    if (delta.content) events.push({ type: "response.output_text.delta", delta: delta.content, logprobs: logprobs?.content ?? [] });
    for (const { id, function: part } of delta.tool_calls ?? []) {
      if (id) events.push({ type: "response.output_item.added", item: { type: "function_call", call_id: id, name: part.name, arguments: "" } });
      if (part.arguments) events.push({ type: "response.function_call_arguments.delta", delta: part.arguments });
    }
  }
  const isCut = finish === "length";
  events.push({ type: isCut ? "response.incomplete" : "response.completed", response: { id, usage, incomplete_details: isCut ? { reason: "max_output_tokens" } : null, output: [] } });
  return events.map((event, number) => `event: ${event.type}\ndata: ${JSON.stringify({ ...event, sequence_number: number })}\n\n`);
}

export const eventStream = (texts) => ({ status: 200, contentType: "text/event-stream", body: texts.join("") });

/** The event stream of an answer of these pieces, for `route.fulfill`. */
export const sse = (...pieces) => eventStream(eventsOf(...pieces));

/** The event stream of an answer that fails before its first token. */
export function failing(message) {
  const [created, last] = eventsOf();
  return eventStream([created, last.replaceAll("response.completed", "response.failed").replace('"response":{', `"response":{"error":${JSON.stringify({ code: "server_error", message })},`)]);
}

/** Routes requests for answers to `answer(route)`; the server never sees them. */
export async function mock(page, answer) {
  await page.route(EXISTING, (route) => route.fulfill({ json: {} }));
  await page.route(ANSWERS, answer);
}

export async function unmock(page) {
  await page.unroute(EXISTING);
  await page.unroute(ANSWERS);
}

/** Bodies of the requests for answers, collected from now on. */
export function sentBy(page) {
  const sent = [];
  page.on("request", (request) => { if (request.method() === "POST" && request.url().endsWith("/v1/responses")) sent.push(request.postDataJSON()); });
  return sent;
}
