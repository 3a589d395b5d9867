// Tabs of this page tell each other which conversations change, and in which an answer is being made.
//
// A tab that makes answers replies to `{asks}` with `{writes: [id]}`. The others ask while they know of such a tab, and
// forget one that crashed after MOST_MISSES questions without a reply. Timers of hidden tabs are slow, replies are not.

const CHANNEL = "kvasir-conversations";
const ASK_EVERY = 2000; // ms
const MOST_MISSES = 3;
const REPLY = 150; // ms that other tabs have to reply

/** Fires `change` with `{id, quiet, deleted}`, and `writing` with `{id}` when an answer elsewhere begins or ends. */
export class Tabs extends EventTarget {
  constructor() {
    super();
    /** Conversations that this tab answers in. */
    this.own = new Set();
    /** Questions without a reply since another tab said that it answers in a conversation, by id. */
    this.others = new Map();
    try {
      this.channel = new BroadcastChannel(CHANNEL);
    } catch {
      return;
    }
    this.channel.addEventListener("message", ({ data }) => this.take(data));
    addEventListener("pagehide", () => {
      this.isLeft = true;
      for (const id of this.own) this.channel.postMessage({ ended: id });
    });
    addEventListener("pageshow", () => {
      this.isLeft = false;
      this.reply();
    });
    setInterval(() => this.look(), ASK_EVERY);
    this.channel.postMessage({ asks: true });
  }

  /** `quiet` if only an answer in progress has grown. */
  changed(id, { quiet = false, deleted = false } = {}) {
    this.channel?.postMessage({ changed: id, quiet, deleted });
  }

  begins(id) {
    this.own.add(id);
    this.channel?.postMessage({ writes: [id] });
  }

  ends(id) {
    this.own.delete(id);
    this.channel?.postMessage({ ended: id });
  }

  /** Reports the conversations that this tab writes. A page in the back/forward cache receives messages but must not reply. */
  reply() {
    if (this.own.size && !this.isLeft) this.channel.postMessage({ writes: [...this.own] });
  }

  /** Whether another tab makes an answer in this conversation. */
  writes(id) {
    return this.others.has(id);
  }

  /** Waits until the other tabs have reported the conversations that they write. */
  async settle() {
    if (!this.channel) return;
    this.channel.postMessage({ asks: true });
    await new Promise((done) => setTimeout(done, REPLY));
  }

  take({ asks, writes = [], ended, changed, quiet, deleted }) {
    if (asks) this.reply();
    for (const id of writes) {
      const isNew = !this.others.has(id);
      this.others.set(id, 0);
      if (isNew) this.report("writing", { id });
    }
    if (ended && this.others.delete(ended)) this.report("writing", { id: ended });
    if (changed) this.report("change", { id: changed, quiet, deleted });
  }

  report(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }

  look() {
    for (const [id, misses] of this.others) {
      this.others.set(id, misses + 1);
      if (misses < MOST_MISSES) continue;
      this.others.delete(id);
      this.report("writing", { id });
    }
    if (this.others.size) this.channel.postMessage({ asks: true });
  }
}
