// The served model: its name, its card, and what it is good for.

import { get } from "/page/api.js";
import { escape } from "/page/markdown.js";

const number = (n) => n.toLocaleString("en-US");

/** A count with a unit of thousands: `5.5 million`. */
function words(n) {
  const [size, unit] = n >= 1e9 ? [1e9, "billion"] : n >= 1e6 ? [1e6, "million"] : [1e3, "thousand"];
  return `${(n / size).toFixed(n / size < 10 ? 1 : 0).replace(/\.0$/, "")} ${unit}`;
}

function bytes(n) {
  const [size, unit] = n >= 1e9 ? [1e9, "GB"] : [1e6, "MB"];
  return `${(n / size).toFixed(n / size < 10 ? 1 : 0)} ${unit}`;
}

/** What models of a size do well: the first entry whose limit is above the parameters. */
const BY_SIZE = [
  [100e6, "It is tiny: good for trying things out, not for facts."],
  [2e9, "Good at short answers, rewriting and simple extraction. Check its facts."],
  [15e9, "Good at general chat, summaries, short code and structured output."],
  [Infinity, "Good at general chat, longer texts, code and questions about documents."],
];

/** The built-in model was trained on these and nothing else. */
const BUILT_IN = {
  text: "Built in, for trying everything without a download. Good at small talk, arithmetic to two digits, capitals, units, sorting, small JSON and tool calls. Outside of that it makes things up.",
  examples: [["What is 17 + 25?"], ["What is the capital of Norway?"], ["Sort these numbers: 9, 4, 7, 1"], ["What time is it in Tokyo?", "clock"]],
};

const CODER = [["Write a function that checks whether a string is a palindrome."], ["Explain what a race condition is, with an example."], ["Write a regular expression for ISO dates."], ["What time is it in Tokyo?", "clock"]];
const GENERAL = [["Explain how a key-value cache speeds up text generation."], ["Draft a polite reply that declines a meeting."], ["Compare SQL and document databases in a table."], ["What time is it in Tokyo?", "clock"]];

export class Model {
  constructor() {
    this.facts = null;
  }

  /** Reads the model from the server. */
  async load() {
    const { data: [facts] } = await get("/v1/models");
    this.facts = facts ?? null;
  }

  get name() {
    return this.facts?.id ?? "";
  }

  get nameHtml() {
    return escape(this.name || "the model");
  }

  /** Tokens of context; 0 while it is not known. */
  get context() {
    return this.facts?.max_model_len ?? 0;
  }

  get meta() {
    return this.facts?.meta ?? {};
  }

  get isBuiltIn() {
    return this.facts?.root === "kvasir-mini";
  }

  /** Facts as `[name, text]`. */
  card() {
    const { n_params: weights, size, quantization, format, architecture, n_vocab: vocab, tools, reasoning, chat_template: chat } = this.meta;
    const can = [chat && "chat", tools && "tool calls", reasoning && "reasoning", "structured output"].filter(Boolean).join(", ");
    return [
      ["Type", architecture],
      ["Size", weights ? `${words(weights)} parameters` : ""],
      ["Weights", size ? [quantization, bytes(size), format].filter(Boolean).join(", ") : ""],
      ["Context", this.context ? `${number(this.context)} tokens` : ""],
      ["Vocabulary", vocab ? `${number(vocab)} tokens` : ""],
      ["Supports", can],
    ].filter(([, text]) => text);
  }

  cardHtml() {
    return this.card().map(([name, text]) => `<div><dt>${name}</dt><dd>${escape(text)}</dd></div>`).join("");
  }

  /** What it is good for, in two sentences. */
  strengths() {
    const { n_params: weights, tools, reasoning, chat_template: chat } = this.meta;
    if (!this.facts) return "";
    if (this.isBuiltIn) return BUILT_IN.text;
    if (chat === false) return "It completes text and has no chat template, so it cannot chat; use the completions API.";
    const size = weights ? BY_SIZE.find(([limit]) => weights < limit)[1] : "";
    const can = reasoning && tools ? "It reasons before it answers, and calls tools." : reasoning ? "It reasons before it answers." : tools ? "It calls tools." : "";
    return [size, can].filter(Boolean).join(" ");
  }

  /** What a conversation without messages shows. */
  welcome() {
    const examples = !this.facts ? [] : this.isBuiltIn ? BUILT_IN.examples : /code/i.test(this.name) ? CODER : GENERAL;
    const facts = [this.meta.n_params && `${words(this.meta.n_params)} parameters`, this.meta.quantization, this.context && `${number(this.context)} tokens of context`].filter(Boolean).join(" · ");
    const button = ([text, tool]) => `<button type="button" data-example="${escape(text)}"${tool ? ` data-tool="${tool}"` : ""}>${escape(text)}</button>`;
    return `<div class="welcome"><h1>${this.name ? `Chat with ${this.nameHtml}` : "Chat"}</h1><p class="facts">${escape(facts)}</p><p class="strengths">${escape(this.strengths())}</p><div class="examples">${examples.map(button).join("")}</div></div>`;
  }
}
