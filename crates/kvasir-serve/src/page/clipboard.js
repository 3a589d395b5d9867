// Copies text. Browsers offer `navigator.clipboard` only on HTTPS and localhost (secure contexts);
// elsewhere `execCommand("copy")` copies a selection.

/** Relabels a button for `ms`. */
function label(button, text, ms) {
  button.dataset.label ??= button.textContent;
  button.textContent = text;
  clearTimeout(button.timer);
  button.timer = setTimeout(() => { button.textContent = button.dataset.label; }, ms);
}

/** Copies a text from a field outside of the window. False if the browser refuses. */
function copySelected(text) {
  const field = document.createElement("textarea"), focused = document.activeElement;
  Object.assign(field, { value: text, readOnly: true, className: "unseen" });
  document.body.append(field);
  field.select();
  let done = false;
  try {
    done = document.execCommand("copy");
  } catch {
    // A refusal, too.
  }
  field.remove();
  focused?.focus({ preventScroll: true });
  return done;
}

/**
 * Copies a text and shows the outcome on the button. If the browser refuses, `shown` stays selected
 * for the person to copy.
 */
export async function copy(button, text, shown) {
  let done;
  try {
    await navigator.clipboard.writeText(text);
    done = true;
  } catch {
    done = copySelected(text);
  }
  if (done) return label(button, "copied", 1200);
  getSelection().selectAllChildren(shown);
  label(button, "not copied: the text is selected", 5000);
}
