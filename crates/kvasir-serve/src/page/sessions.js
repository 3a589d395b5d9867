// Which of the server's sessions holds which branch. A branch that goes on sends new messages only; one
// that begins beside another forks the session where the two part, so that both share its K/V.

import { post, remove } from "/page/api.js";
import { session as tab } from "/page/storage.js";

const TTL = 600; // idle seconds after which the server ends a session: a killed page cannot end it
const ENDED = "kvasir-ended"; // the newest sessions that pages of this tab ended when they were closed
const MOST_ENDED = 64;

/**
 * The node's session if it was asked under the same system prompt and with the same beginning: `{id, at, system, window}`,
 * `at` being how many messages it then held.
 */
function of({ meta: { session } }, { system, window }) {
  return session?.system === system && (session.window ?? 0) === window ? session : null;
}

/**
 * Messages that a session may hold: as many as the longest branch that was asked in it. Whether an answer that was stopped or failed has
 * become part of it, only the server knows: who goes on from before it forks.
 */
function length(tree, id) {
  let most = 0;
  for (const { meta } of tree.nodes.values()) {
    for (const session of [meta?.session, meta?.tried]) if (session?.id === id) most = Math.max(most, session.at);
  }
  return most;
}

/**
 * How to let the model answer under the end of `path`: the fields to send, and the session that the answer then belongs to.
 * `scope` is the system prompt, and the `window`: the id of the first message if turns before it were dropped, else 0.
 * `write(nodes)` gives the messages of nodes. Without a session, for whatever reason, the whole path is sent.
 */
export async function begin(tree, path, scope, write, signal) {
  const { system } = scope;
  const lead = system ? [{ role: "system", content: system }] : [];
  const last = path.findLastIndex((node) => of(node, scope));
  try {
    if (last < 0) {
      const messages = [...lead, ...write(path)];
      const { id } = await post("/v1/sessions", { ttl: TTL }, signal);
      return { fields: { session: id, messages }, session: { id, at: messages.length + 1, ...scope } };
    }
    const messages = write(path.slice(last + 1));
    let { id, at } = of(path[last], scope);
    if (at < length(tree, id)) id = (await post(`/v1/sessions/${id}/fork`, { at: { message: at } }, signal)).data[0].id;
    return { fields: { session: id, messages }, session: { id, at: at + messages.length + 1, ...scope } };
  } catch (error) {
    if (error.status === 401) throw error;
    return { fields: { messages: [...lead, ...write(path)] }, session: null };
  }
}

/** Whether what went wrong is the session's fault: it has ended meanwhile, or another request is in it. */
export const gone = (error) => error.status === 404 || error.status === 409;

/** Forgets that nodes were answered in a session. */
export function forget(tree, id) {
  for (const { meta } of tree.nodes?.values() ?? []) for (const name of ["session", "tried"]) if (meta?.[name]?.id === id) delete meta[name];
}

/** Ends a session that no node belongs to. */
export function endUnused(tree, id) {
  if ([...tree.nodes.values()].some(({ meta }) => meta?.session?.id === id)) return;
  forget(tree, id);
  remove(`/v1/sessions/${id}`).catch(() => {});
}

/** Forgets all sessions of these nodes. */
export function forgetSessions(nodes) {
  for (const { meta } of nodes) for (const name of ["session", "tried"]) delete meta?.[name];
}

/**
 * Ends the sessions of a conversation that is left, also that of an answer in progress. If it is continued later, a new
 * session begins. Returns their ids; with `keepalive`, the requests outlast the page.
 */
export function end(tree, { keepalive = false } = {}) {
  const nodes = [...tree.nodes.values()];
  const ids = new Set(nodes.flatMap(({ meta }) => [meta?.session?.id, meta?.tried?.id]).filter(Boolean));
  forgetSessions(nodes);
  for (const id of ids) remove(`/v1/sessions/${id}`, { keepalive }).catch(() => {});
  return [...ids];
}

const ended = () => JSON.parse(tab.get(ENDED) ?? "[]");

/** Ends the sessions of a conversation when its page closes. The stored record may still name them. */
export function endWithPage(tree) {
  const ids = end(tree, { keepalive: true });
  if (ids.length) tab.set(ENDED, JSON.stringify([...ended(), ...ids].slice(-MOST_ENDED)));
  return ids.length > 0;
}

/** Forgets the sessions that pages of this tab ended when they were closed. */
export function forgetEnded(tree) {
  for (const id of ended()) forget(tree, id);
}
