// Answers in progress when this tab's page was unloaded: the tab's next page resumes them. The browser may not have
// completed the last write to its database, so whole records are kept.

import { session } from "/page/storage.js";

const KEY = "kvasir-answering";

/** Keeps `{record, node}` of conversations: the record, and the id of the answer in it. */
export const keepAnswering = (entries) => session.set(KEY, JSON.stringify(entries));

export const forgetAnswering = () => session.remove(KEY);

/** Returns the kept entries, and removes them. A malformed value counts as none. */
export function takeAnswering() {
  try {
    return JSON.parse(session.get(KEY) ?? "[]").filter((entry) => entry?.record);
  } catch {
    return [];
  } finally {
    forgetAnswering();
  }
}
