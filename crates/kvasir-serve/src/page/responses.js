// Stored responses of the server: it generates them whether or not this page listens.
//
// States of a response, as `place` has them: requested (no `id`), begun (`id`, and `after`, the number of the last event
// received). A connection that breaks is opened again behind `after`, so no event comes twice and none is missing. While
// the server cannot be reached, the reader waits.

import { Lost, events, post, remove } from "/page/api.js";
import { link } from "/page/link.js";

const PATH = "/v1/responses";
const RETRY = 2000; // ms between attempts to connect again
const MOST_EMPTY = 5; // connections in a row without an event, after which the answer counts as lost
const LAST = ["response.completed", "response.incomplete", "response.failed", "response.cancelled"];

/** The server does not have the response any more. */
export class Forgotten extends Error {
  constructor() {
    super("The server no longer has this answer, for example because it was restarted. What had come is kept.");
  }
}

/** Whether another attempt may succeed: the connection broke, or the server is loading or busy. */
const isPassing = (error) => error instanceof Lost || error.status === 429 || error.status >= 500;

const stream = (body, { id, after }, signal) => (id === undefined
  ? events(PATH, { ...body, background: true, stream: true }, signal)
  : events(`${PATH}/${id}?stream=true${after === undefined ? "" : `&starting_after=${after}`}`, null, signal));

/** Aborts a connection when the server cannot be reached; gives the function that stops watching. */
function watchLink(connection, place) {
  let waiting;
  const look = () => {
    clearTimeout(waiting);
    const lose = () => connection.abort(new Lost());
    if (!link.up && place.id !== undefined) lose();
    // A request without an id cannot be picked up. A server that was suspended answers it late.
    else if (link.up) waiting = setTimeout(() => { if (place.id === undefined) lose(); }, RETRY);
  };
  link.addEventListener("change", look);
  return () => {
    clearTimeout(waiting);
    link.removeEventListener("change", look);
  };
}

/** The events over as many connections as it takes. */
async function* connected(body, place, signal) {
  for (let empty = 0; ; ) {
    const connection = new AbortController(), unwatch = watchLink(connection, place);
    const abort = () => connection.abort(signal.reason);
    signal.addEventListener("abort", abort);
    let count = 0;
    try {
      for await (const [, event] of stream(body, place, connection.signal)) {
        count++;
        place.id ??= event.response?.id;
        // A reader that stores the end but not that it is the end asks for it once more.
        const isLast = LAST.includes(event.type);
        if (!isLast) place.after = event.sequence_number;
        yield event;
        if (isLast) return;
      }
    } catch (error) {
      if (signal.aborted || place.id === undefined) throw error;
      if (error.status === 404) throw new Forgotten();
      if (!isPassing(error)) throw error;
      empty = count || !link.up || error.status ? 0 : empty + 1;
      if (empty === MOST_EMPTY) throw new Forgotten();
    } finally {
      unwatch();
      signal.removeEventListener("abort", abort);
    }
    await link.pause(count ? 0 : RETRY);
  }
}

/**
 * The events of a response, up to its last. `place` is kept up to date; without an `id` in it, `body` is sent. Throws the
 * reason of `signal` when that aborts; the response then ends on the server, too.
 */
export async function* follow(body, place, signal) {
  signal.throwIfAborted();
  const connection = new AbortController(), all = connected(body, place, connection.signal);
  const stopped = new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason), { once: true }));
  stopped.catch(() => {});
  let next;
  try {
    for (;;) {
      next = all.next();
      const { done, value } = await Promise.race([next, stopped]);
      if (done) return;
      yield value;
    }
  } finally {
    // One that is requested is canceled when its id is known.
    const known = signal.aborted && place.id === undefined ? next : null;
    Promise.resolve(known).then(() => signal.aborted && place.id !== undefined && cancel(place.id)).catch(() => {}).finally(() => {
      connection.abort();
      all.return().catch(() => {});
    });
  }
}

/** Ends a response; other tabs that follow it see that it was canceled. */
async function cancel(id) {
  await post(`${PATH}/${id}/cancel`, {});
  discard(id);
}

/** Deletes a response whose end is stored in the browser. */
export function discard(id) {
  remove(`${PATH}/${id}`, { keepalive: true }).catch(() => {});
}
