// What the person has set: checked at each field, kept in the browser, sent with every request.

import { escape } from "/page/markdown.js";
import { FIELDS, PRESETS, SAMPLED, problemOf, toolsProblem } from "/page/setting_fields.js";
import { local } from "/page/storage.js";
import { OWN } from "/page/tools.js";

const KEY = "kvasir-settings";

/** A parameter: label, explanation, input, and a place for what is wrong. */
function row({ name, label, hint, step, min, max, empty }) {
  return `<div class="setting"><label for="set-${name}">${label}</label><p class="note" id="hint-${name}">${hint}</p>
    <input id="set-${name}" name="${name}" type="text" inputmode="${step === 1 ? "numeric" : "decimal"}" autocomplete="off" placeholder="${empty ?? "model’s"}" data-min="${min}" data-max="${max}" aria-describedby="hint-${name} wrong-${name}">
    <p class="wrong" id="wrong-${name}" role="alert"></p></div>`;
}

/**
 * Values by name. `onSystem(text, conversation)` takes the system prompt of a conversation; `conversation()` is the shown
 * one; `context()` is how many tokens the model takes, 0 if that is not known.
 */
export class Settings {
  constructor(dialog, { onSystem, onTheme, toast, conversation, context }) {
    Object.assign(this, { dialog, onSystem, onTheme, toast, conversation, context });
    this.form = dialog.querySelector("form");
    dialog.querySelector("#parameters").innerHTML = FIELDS.map(row).join("");
    dialog.querySelector("#presets").innerHTML = PRESETS.map(({ name, label }) => `<button type="button" data-preset="${name}" aria-pressed="false">${label}</button>`).join("");
    this.values = this.restore();
    this.fill();
    this.form.addEventListener("input", (e) => this.change(e.target));
    dialog.addEventListener("click", (e) => this.click(e));
  }

  restore() {
    try {
      const kept = JSON.parse(local.get(KEY) ?? "{}");
      return Object.fromEntries(Object.entries(kept).filter(([name, value]) => this.form.elements[name] && ["string", "boolean"].includes(typeof value)));
    } catch {
      return {};
    }
  }

  save() {
    const set = Object.entries(this.values).filter(([, value]) => value !== "" && value !== false);
    if (!set.length) return local.remove(KEY);
    const isKept = local.set(KEY, JSON.stringify(Object.fromEntries(set)));
    if (!isKept && !this.isUnkept) this.toast.show("The browser does not keep these settings; they last as long as this page.");
    this.isUnkept = !isKept;
  }

  /** Shows the dialog, with the system prompt of the shown conversation. */
  open() {
    const { system, isEmpty } = (this.edited = this.conversation());
    this.fill();
    this.form.elements.system.value = system;
    this.dialog.querySelector("#hint-system").textContent = isEmpty
      ? "Tells the model how to behave. Applies to this conversation and to new ones."
      : "Tells the model how to behave. Applies to this conversation only; its next answer reads it.";
    this.dialog.showModal();
  }

  /** Writes the values into the form. */
  fill() {
    for (const field of this.form.elements) {
      if (!field.name || field.name === "system") continue;
      if (field.type === "checkbox") field.checked = Boolean(this.values[field.name]);
      else if (field.name === "theme") field.value = this.values.theme || "system";
      else field.value = this.values[field.name] ?? "";
    }
    this.check();
  }

  change(field) {
    const { name } = field, value = field.type === "checkbox" ? field.checked : field.value.trim();
    if (name === "system") {
      const edited = this.dialog.open ? this.edited : this.conversation();
      if (edited.isEmpty) this.values.system = value;
      this.onSystem(value, edited);
    } else {
      this.values[name] = value;
    }
    if (name === "theme") this.onTheme(value);
    this.save();
    this.check();
  }

  click(e) {
    if (e.target === this.dialog) return this.dialog.close();
    const button = e.target.closest("button");
    if (button?.dataset.preset) this.apply(PRESETS.find(({ name }) => name === button.dataset.preset).values);
    else if (button?.dataset.act === "reset") this.reset();
  }

  apply(preset) {
    for (const name of SAMPLED) this.values[name] = preset[name] ?? "";
    this.save();
    this.fill();
  }

  /** Everything as at first; the toast offers to undo it, in the same conversation. */
  reset() {
    const before = this.values, { edited } = this, { system } = edited;
    const put = (values, text) => {
      this.values = values;
      this.onSystem(text, edited);
      this.onTheme(values.theme ?? "system");
      this.save();
      this.fill();
    };
    put({}, "");
    this.dialog.close();
    this.toast.show("Settings are reset.", "Undo", () => put(before, system));
  }

  /** Says at each field what is wrong with it, and which preset the values are. */
  check() {
    for (const field of FIELDS) this.mark(field.name, this.problem(field));
    this.mark("tools", this.toolsProblem());
    for (const { name, values } of PRESETS) {
      const fits = SAMPLED.every((sampled) => (this.values[sampled] ?? "") === (values[sampled] ?? ""));
      this.dialog.querySelector(`[data-preset=${name}]`).setAttribute("aria-pressed", fits);
    }
  }

  /** What is wrong with the value of a field. An answer is not longer than the context. */
  problem(field) {
    const max = (field.name === "max_tokens" && this.context()) || field.max;
    return problemOf({ ...field, max }, this.values[field.name] ?? "");
  }

  toolsProblem() {
    return toolsProblem(this.values.tools ?? "", Object.keys(OWN));
  }

  mark(name, problem) {
    const note = problem && (name === "tools" ? `${problem} These tools are not offered.` : `${problem} It is not sent.`);
    this.dialog.querySelector(`#wrong-${name}`).innerHTML = escape(note).replace(/`([^`]*)`/g, "<code>$1</code>");
    this.form.elements[name].setAttribute("aria-invalid", Boolean(problem));
  }

  setTool(name, on) {
    this.values[name] = on;
    this.save();
    this.fill();
  }

  /** System prompt of new conversations. */
  get system() {
    return this.values.system ?? "";
  }

  /** The tools that are offered: the page's own, and the person's. */
  get tools() {
    const own = Object.keys(OWN).filter((name) => this.values[name]).map((name) => OWN[name].tool);
    const text = this.values.tools ?? "";
    return text && !this.toolsProblem() ? own.concat(JSON.parse(text)) : own;
  }

  /** Fields of a request beside its messages. */
  get fields() {
    const fields = {};
    for (const field of FIELDS) {
      const text = this.values[field.name] ?? "";
      if (text !== "" && !this.problem(field)) fields[field.name] = Number(text);
    }
    if (this.values.logprobs) Object.assign(fields, { logprobs: true, top_logprobs: 5 });
    if (this.tools.length) fields.tools = this.tools;
    return fields;
  }
}
