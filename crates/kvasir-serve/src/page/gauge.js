// How much of the model's context a conversation takes, and what the question would add.
//
// Answers report their tokens. The server counts those of a draft, and those of a conversation that
// ends in no such answer, such as an imported one.

import { post } from "/page/api.js";

const PAUSE = 350; // ms after the last change until tokens are counted
const FULL = 0.85; // share from which the gauge warns

const number = (n) => n.toLocaleString("en-US");

export class Gauge {
  constructor({ element, model, settings }) {
    Object.assign(this, { element, model, settings, used: 0, added: 0, turn: 0, draftTurn: 0 });
    this.bar = element.querySelector("i");
    this.text = element.querySelector("span");
  }

  /** Shows the tokens that are sent of a conversation's shown branch. */
  show(conversation) {
    const last = conversation.tree.path().at(-1), total = last?.meta.usage?.total_tokens;
    clearTimeout(this.counting);
    this.turn++;
    if (!last || total) this.set(total ?? 0);
    else if (!last.meta.streaming) this.counting = setTimeout(() => this.count(conversation), PAUSE);
  }

  async count(conversation) {
    const { turn } = this, { tools } = this.settings;
    const messages = conversation.sent();
    if (!messages.length) return;
    const count = await tokens({ messages, add_generation_prompt: false, ...(tools.length ? { tools } : {}) });
    if (turn === this.turn && count !== null) this.set(count);
  }

  /** Counts a draft. */
  draft(text) {
    clearTimeout(this.drafting);
    const turn = ++this.draftTurn;
    if (!text.trim()) return this.set(this.used, 0);
    this.drafting = setTimeout(async () => {
      const count = await tokens({ prompt: text, add_special_tokens: false });
      if (turn === this.draftTurn && count !== null) this.set(this.used, count);
    }, PAUSE);
  }

  set(used, added = this.added) {
    Object.assign(this, { used, added });
    const { context } = this.model, all = used + added;
    this.element.hidden = !context || !all;
    if (this.element.hidden) return;
    const share = Math.min(1, all / context);
    this.bar.style.setProperty("--share", share);
    this.element.dataset.level = all > context ? "over" : share >= FULL ? "high" : "";
    this.text.textContent = `${number(used)}${added ? ` + ${number(added)}` : ""} of ${number(context)} tokens${all > context ? ": too long" : ""}`;
    this.element.setAttribute("aria-valuenow", Math.min(all, context));
    this.element.setAttribute("aria-valuemax", context);
    this.element.setAttribute("aria-valuetext", `${number(all)} of ${number(context)} tokens`);
  }
}

/** Tokens of a text or a conversation; null if the server does not say. */
export async function tokens(body) {
  try {
    return (await post("/tokenize", body)).count;
  } catch {
    return null;
  }
}
