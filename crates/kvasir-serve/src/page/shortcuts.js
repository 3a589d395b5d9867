// Keyboard shortcuts of the chat, and the list of them.

const MODIFIER = /Mac|iP/.test(navigator.platform) ? "⌘" : "Ctrl";

/**
 * Key as `KeyboardEvent.key`, with the modifiers that it needs; `free` ones work outside of text fields only, `empty` ones
 * in the empty message field.
 */
const SHORTCUTS = [
  { act: "new", key: "o", mod: true, shift: true, keys: [MODIFIER, "Shift", "O"], text: "new conversation" },
  { act: "find", key: "k", mod: true, keys: [MODIFIER, "K"], text: "search conversations" },
  { act: "editLast", key: "ArrowUp", empty: true, keys: ["↑"], text: "edit the last question, in an empty field" },
  { act: "pageUp", key: "PageUp", empty: true, keys: ["Page ↑"], text: "scroll up, in an empty field" },
  { act: "pageDown", key: "PageDown", empty: true, keys: ["Page ↓"], text: "scroll down, in an empty field" },
  { act: "end", key: "End", free: true, keys: ["End"], text: "jump to the end" },
  { act: "write", key: "/", free: true, keys: ["/"], text: "go to the message field" },
  { act: "help", key: "/", mod: true, everywhere: true, keys: [MODIFIER, "/"], text: "this list" },
  { act: "help", key: "?", free: true, everywhere: true, keys: ["?"], text: "this list, outside of fields" },
  { act: "escape", key: "Escape", keys: ["Esc"], text: "close what is open, else stop the answer" },
];
const IN_FIELD = [{ keys: ["Enter"], text: "send" }, { keys: ["Shift", "Enter"], text: "new line" }];

/** Whether an element takes typed characters. */
export const isField = (element) => Boolean(element?.matches?.("input:not([type=checkbox], [type=range]), textarea, select, [contenteditable]"));

/** Whether a key types a character where no field takes it. A space presses buttons and scrolls; menus search by letters. */
function isTyped(e) {
  const isCharacter = e.key === "Dead" || ([...e.key].length === 1 && e.key !== " ");
  const isCommand = (e.ctrlKey || e.altKey || e.metaKey) && !e.getModifierState("AltGraph");
  return isCharacter && !isCommand && !e.defaultPrevented && !isField(e.target) && !e.target.closest?.("[role=menu]");
}

export class Shortcuts {
  /**
   * `acts` by name, false if they did nothing; `type` puts the focus where a character that is typed belongs. `question` is the field of the question; `enabled()` is false where other
   * keys than those marked `everywhere` mean other things.
   */
  constructor({ acts, question, dialog, enabled }) {
    Object.assign(this, { acts, question, enabled });
    dialog.querySelector("dl").innerHTML = [...IN_FIELD, ...SHORTCUTS].map(({ keys, text }) => `<div><dt>${keys.map((key) => `<kbd>${key}</kbd>`).join(" ")}</dt><dd>${text}</dd></div>`).join("");
    document.addEventListener("keydown", (e) => this.press(e));
  }

  press(e) {
    if (e.isComposing || document.querySelector("dialog[open]")) return;
    const found = SHORTCUTS.find((shortcut) => this.fits(shortcut, e));
    // The browser inserts the character into the field that has the focus after this event.
    if (!found && this.enabled() && isTyped(e)) this.acts.type();
    if (!found || !(found.everywhere || this.enabled())) return;
    if (this.acts[found.act]() !== false) e.preventDefault();
  }

  fits({ key, mod = false, shift, free, empty }, e) {
    if (e.key.toLowerCase() !== key.toLowerCase() || e.altKey || (e.ctrlKey || e.metaKey) !== mod) return false;
    if (shift !== undefined && e.shiftKey !== shift) return false;
    if (empty) return e.target === this.question && this.question.value === "" && !e.shiftKey;
    return !(free && isField(e.target)) || (key === "End" && e.target === this.question && this.question.value === "");
  }
}
