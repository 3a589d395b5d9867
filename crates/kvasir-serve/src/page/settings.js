// What the person has set: kept in this tab, handed to every request.

import { OWN } from "/page/tools.js";

const KEY = "kvasir-settings";
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "seed"];

/** Reads and keeps the form. */
export class Settings {
  constructor(dialog, wrong) {
    this.dialog = dialog;
    this.form = dialog.querySelector("form");
    this.wrong = wrong;
    this.restore();
    this.form.addEventListener("input", () => this.keep());
    dialog.addEventListener("click", (e) => { if (e.target === dialog) dialog.close(); });
    dialog.addEventListener("close", () => this.checkTools());
  }

  open() {
    this.checkTools();
    this.dialog.showModal();
  }

  value(name) {
    const field = this.form.elements[name];
    return field.type === "checkbox" ? field.checked : field.value.trim();
  }

  keep() {
    const names = [...this.form.elements].map((field) => field.name).filter(Boolean);
    sessionStorage.setItem(KEY, JSON.stringify(Object.fromEntries(names.map((name) => [name, this.value(name)]))));
    this.checkTools();
  }

  restore() {
    for (const [name, value] of Object.entries(JSON.parse(sessionStorage.getItem(KEY) ?? "{}"))) {
      const field = this.form.elements[name];
      if (field?.type === "checkbox") field.checked = value;
      else if (field) field.value = value;
    }
  }

  /** The person's own tools; null if the text is no list. */
  ownTools() {
    if (!this.value("tools")) return [];
    try {
      const tools = JSON.parse(this.value("tools"));
      return Array.isArray(tools) ? tools : null;
    } catch {
      return null;
    }
  }

  checkTools() {
    this.wrong.textContent = this.ownTools() ? "" : "This is no JSON list; these tools are not offered.";
  }

  get system() {
    return this.value("system");
  }

  /** Fields of a request beside its messages. */
  get fields() {
    const fields = {};
    for (const name of NUMBERS) if (this.value(name) !== "") fields[name] = Number(this.value(name));
    if (this.value("logprobs")) Object.assign(fields, { logprobs: true, top_logprobs: 5 });
    const tools = Object.keys(OWN).filter((name) => this.value(name)).map((name) => OWN[name].tool).concat(this.ownTools() ?? []);
    if (tools.length) fields.tools = tools;
    return fields;
  }
}
