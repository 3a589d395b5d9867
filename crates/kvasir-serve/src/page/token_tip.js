// The alternatives of a token, shown beside it while it is under the pointer or has the focus.

import { alternatives } from "/page/message.js";

export class TokenTip {
  /** `nodeOf(id)` is the node of a message. */
  constructor(list, nodeOf) {
    this.nodeOf = nodeOf;
    this.tip = list.closest("main").appendChild(Object.assign(document.createElement("div"), { className: "tokentip", role: "tooltip", hidden: true }));
    for (const event of ["pointerover", "focusin"]) list.addEventListener(event, (e) => this.show(e.target));
    for (const event of ["pointerout", "focusout"]) list.addEventListener(event, () => this.hide());
  }

  hide() {
    this.tip.hidden = true;
  }

  show(target) {
    const i = target.dataset?.token;
    if (i === undefined) return;
    const node = this.nodeOf(Number(target.closest(".msg").dataset.id));
    this.tip.innerHTML = alternatives(node.meta.tokens[i]);
    this.tip.hidden = false;
    const at = target.getBoundingClientRect(), own = this.tip.getBoundingClientRect();
    this.tip.style.left = `${Math.max(8, Math.min(at.left, innerWidth - own.width - 8))}px`;
    this.tip.style.top = `${at.top > own.height + 12 ? at.top - own.height - 6 : at.bottom + 6}px`;
  }
}
