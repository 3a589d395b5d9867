// Answers of the server in place of the model's: events of `/v1/responses`, and routes that send them.

/** The route that begins an answer. */
export const ANSWERS = "**/v1/responses";
/** Those of begun answers: their events from any on, `cancel`, and `DELETE`. */
const BEGUN = "**/v1/responses/**";

let made = 0;

/** One piece of an answer, as a delta of a chat; `more` has its `logprobs` and `finish_reason`. */
export const chunk = (delta, more = {}) => ({ delta, ...more });

/** The events of an answer of these pieces, as texts; `{usage}` may be the last. */
export function eventsOf(...pieces) {
  const id = `resp_mock${++made}`, events = [{ type: "response.created", response: { id, status: "in_progress" } }];
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

/** Server-sent events as a route can answer with. */
export const sse = (...pieces) => eventStream(eventsOf(...pieces));

/** An answer that fails at once. */
export function failing(message) {
  const [created, last] = eventsOf();
  return eventStream([created, last.replaceAll("response.completed", "response.failed").replace('"response":{', `"response":{"error":${JSON.stringify({ code: "server_error", message })},`)]);
}

/** Lets `answer(route)` take requests for answers. The server knows nothing of these. */
export async function mock(page, answer) {
  await page.route(BEGUN, (route) => route.fulfill({ json: {} }));
  await page.route(ANSWERS, answer);
}

export async function unmock(page) {
  await page.unroute(BEGUN);
  await page.unroute(ANSWERS);
}

/** Bodies of the requests for answers from now on. */
export function sentBy(page) {
  const sent = [];
  page.on("request", (request) => { if (request.method() === "POST" && request.url().endsWith("/v1/responses")) sent.push(request.postDataJSON()); });
  return sent;
}
