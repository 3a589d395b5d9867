// A short message at the lower edge, with one action at most, such as undo.

const SHOWN = 8000; // ms

export class Toast {
  constructor(element) {
    this.element = element;
    this.text = element.querySelector("span");
    this.button = element.querySelector("button");
    this.button.addEventListener("click", () => {
      const { act } = this;
      this.hide();
      act?.();
    });
    for (const event of ["pointerenter", "focusin"]) element.addEventListener(event, () => clearTimeout(this.timer));
    for (const event of ["pointerleave", "focusout"]) element.addEventListener(event, () => this.start());
  }

  /** Shows a text; `label` and `act` are its action. */
  show(text, label = "", act = null) {
    this.text.textContent = text;
    this.button.textContent = label;
    this.button.hidden = !act;
    this.act = act;
    this.element.hidden = false;
    this.start();
  }

  /** Whether a message with this action is shown. */
  isOffering(act) {
    return !this.element.hidden && act !== undefined && this.act === act;
  }

  start() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.hide(), SHOWN);
  }

  hide() {
    clearTimeout(this.timer);
    this.element.hidden = true;
  }
}
