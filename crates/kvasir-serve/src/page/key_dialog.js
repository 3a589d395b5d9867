// The dialog for the API key. It shows an error if the server refuses the key.

import { get, key } from "/page/api.js";

export class KeyDialog {
  /** `accepted()` follows once the server takes a key. */
  constructor(dialog, accepted) {
    Object.assign(this, { dialog, accepted });
    this.field = dialog.querySelector("input");
    this.wrong = dialog.querySelector(".wrong");
    dialog.addEventListener("cancel", (e) => e.preventDefault());
    dialog.querySelector("form").addEventListener("submit", (e) => {
      e.preventDefault();
      this.try(this.field.value.trim());
    });
    this.field.addEventListener("input", () => this.say(""));
  }

  /** Shows the dialog, unless it is open. A key that this tab already has is one that was refused. */
  ask() {
    if (this.dialog.open) return;
    const kept = key.get(), isBad = key.unsendable(kept).length > 0;
    this.say(isBad ? "The key of this tab has characters that cannot be sent." : kept ? "The server no longer accepts the key of this tab." : "");
    this.dialog.showModal();
  }

  say(text) {
    this.wrong.textContent = text;
    this.field.setAttribute("aria-invalid", Boolean(text));
  }

  async try(value) {
    if (!value) return;
    const odd = key.unsendable(value);
    if (odd.length) {
      this.say(`A key cannot have ${odd.slice(0, 5).map((char) => `“${char}”`).join(", ")}${odd.length > 5 ? " and others" : ""}: browsers send Latin letters, digits and signs only.`);
      return this.field.select();
    }
    const before = key.get();
    key.set(value);
    try {
      await get("/v1/models");
    } catch (error) {
      if (error.status !== 401) return this.say(error.message);
      key.set(before);
      this.say("The server refused this key.");
      return this.field.select();
    }
    this.field.value = "";
    this.dialog.close();
    this.accepted();
  }
}
