// Stored (background) responses: the server generates them whether or not this page is connected.
//
// States of a response, as `place` records them: requested (no `id`), begun (`id`, and `after`, the sequence number of
// the last event received). After a lost connection, the next one starts after `after`: no event is repeated or
// missing. While the server cannot be reached, the reader waits.

import { Lost, events, post, remove } from "/page/api.js";
import { link } from "/page/link.js";

const PATH = "/v1/responses";
const RETRY = 2000; // ms between reconnections
const MAX_EMPTY = 5; // connections in a row without an event, after which the answer counts as lost
const MAX_BUSY = 300; // consecutive responses with 429 or 503 (10 minutes), after which reconnecting stops
const MAX_FAILED = 15; // consecutive responses with other errors (30 seconds), after which reconnecting stops
const FINAL_EVENTS = ["response.completed", "response.incomplete", "response.failed", "response.cancelled"];

/** The server no longer stores the response. */
export class ResponseGone extends Error {
  constructor() {
    super("The server no longer has this answer, for example because it was restarted. The text received so far is kept.");
  }
}

/** Too many reconnections in a row got an error response. */
export class ServerUnavailable extends Error {
  constructor(status) {
    super(`The server has answered every reconnection with status ${status}, so the page has stopped reconnecting. The text received so far is kept.`);
  }
}

/** Whether a reconnection may succeed: the connection broke, or the server is loading or busy. */
const isTransient = (error) => error instanceof Lost || error.status === 429 || error.status >= 500;

const stream = (body, { id, after }, signal) => (id === undefined
  ? events(PATH, { ...body, background: true, stream: true }, signal)
  : events(`${PATH}/${id}?stream=true${after === undefined ? "" : `&starting_after=${after}`}`, null, signal));

/** Aborts a connection when the server cannot be reached; returns the function that stops watching. */
function watchLink(connection, place) {
  let waiting;
  const look = () => {
    clearTimeout(waiting);
    const lose = () => connection.abort(new Lost());
    if (!link.up && place.id !== undefined) lose();
    // Without an id nothing can be resumed: wait `RETRY` for the reply, which a suspended server sends late.
    else if (link.up) waiting = setTimeout(() => { if (place.id === undefined) lose(); }, RETRY);
  };
  link.addEventListener("change", look);
  return () => {
    clearTimeout(waiting);
    link.removeEventListener("change", look);
  };
}

/** The events of a response; reconnects as needed. */
async function* connected(body, place, signal) {
  for (let empty = 0, budgetSpent = 0; ; ) {
    const connection = new AbortController(), unwatch = watchLink(connection, place);
    const abort = () => connection.abort(signal.reason);
    signal.addEventListener("abort", abort);
    let count = 0;
    try {
      for await (const [, event] of stream(body, place, connection.signal)) {
        count++;
        place.id ??= event.response?.id;
        // A reader that stored the text of the last event, but not `ended`, requests that event again.
        const isLast = FINAL_EVENTS.includes(event.type);
        if (!isLast) place.after = event.sequence_number;
        yield event;
        if (isLast) return;
      }
    } catch (error) {
      if (signal.aborted || place.id === undefined) throw error;
      if (error.status === 404) throw new ResponseGone();
      if (!isTransient(error)) throw error;
      const isBusy = error.status === 429 || error.status === 503;
      budgetSpent = count || !error.status ? 0 : budgetSpent + (isBusy ? 1 / MAX_BUSY : 1 / MAX_FAILED);
      // The sum of `MAX_BUSY` fractions may be slightly below 1.
      if (budgetSpent > 1 - 1e-6) throw new ServerUnavailable(error.status);
      empty = count || !link.up || error.status ? 0 : empty + 1;
      if (empty === MAX_EMPTY) throw new ResponseGone();
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
