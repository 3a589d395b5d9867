// The way to the server: the key, and answers that come in pieces.

import { link } from "/page/link.js";
import { session } from "/page/storage.js";

const KEY = "kvasir-key";
const SILENCE = 30_000; // ms without a byte after which a stream is dead: the server sends a comment every 15 s

export const key = {
  get: () => session.get(KEY) ?? "",
  set: (value) => session.set(KEY, value),
  /** Characters of a text that no HTTP header takes, each once. */
  unsendable: (text) => [...new Set(text.match(/[^\t\x20-\x7e\x80-\xff]/gu) ?? [])],
};

/** An error response: `status` is the HTTP status, `code` the error code of the API. */
export class Refused extends Error {
  constructor(status, message, code = "") {
    super(message);
    Object.assign(this, { status, code });
  }
}

/** The connection broke before the answer was whole. */
export class Lost extends Error {
  constructor() {
    super("The connection to the server was lost.");
  }
}

/** Waits for something from the server; a connection that breaks is probed at once. */
async function arrival(promise, signal) {
  try {
    const arrived = await promise;
    link.heard();
    return arrived;
  } catch (error) {
    if (signal?.aborted) throw error;
    link.probe();
    throw new Lost();
  }
}

async function request(path, body, signal, method = body ? "POST" : "GET", keepalive = false) {
  if (key.unsendable(key.get()).length) throw new Refused(401, "The key of this tab cannot be sent.");
  const headers = key.get() ? { Authorization: `Bearer ${key.get()}` } : {};
  if (body) headers["Content-Type"] = "application/json";
  const response = await arrival(fetch(path, { method, headers, signal, body: body && JSON.stringify(body), cache: "no-store", keepalive }), signal);
  if (response.ok) return response;
  const reply = await response.json().catch(() => null);
  throw new Refused(response.status, reply?.error?.message ?? `the server answered ${response.status}`, reply?.error?.code);
}

export async function get(path) {
  return (await request(path)).json();
}

export async function post(path, body, signal) {
  return (await request(path, body, signal)).json();
}

/** `keepalive` lets the request outlast the page. */
export async function remove(path, { keepalive = false } = {}) {
  await request(path, null, undefined, "DELETE", keepalive);
}

/**
 * Server-sent events as `[event, data]`, data being JSON. Ends with `[DONE]`; throws `Lost` if the
 * stream ends before.
 */
export async function* events(path, body, signal) {
  const response = await request(path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  try {
    for (;;) {
      const silent = setTimeout(() => reader.cancel().catch(() => {}), SILENCE);
      const { done, value } = await arrival(reader.read(), signal).finally(() => clearTimeout(silent));
      if (done) {
        link.probe();
        throw new Lost();
      }
      const parts = (held + value).split("\n\n");
      held = parts.pop();
      for (const part of parts) {
        let event = "message", data = "";
        for (const line of part.split("\n")) {
          if (line.startsWith("event: ")) event = line.slice(7);
          else if (line.startsWith("data: ")) data += line.slice(6);
        }
        if (data === "[DONE]") return;
        if (data) yield [event, JSON.parse(data)];
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
