// The focus of the message field: after what a person has finished, unless they are at something else.

import { isField } from "/page/shortcuts.js";

/** With a finger, the focus would open the keyboard over the conversation. */
const TOUCH = matchMedia("(hover: none)");

export class QuestionFocus {
  /** `send` is the button beside the field. */
  constructor(question, send) {
    Object.assign(this, { question, send });
  }

  /** Something was opened or closed: the field has the focus, unless another field has it. */
  take() {
    if (!TOUCH.matches && !isField(document.activeElement)) this.question.focus({ preventScroll: true });
  }

  /** An answer has ended: the field has the focus if nothing else has. A selection stays. */
  settle() {
    const { activeElement } = document;
    const isFree = !activeElement || activeElement === document.body || activeElement === this.send;
    if (isFree && getSelection().isCollapsed) this.take();
  }
}
