// Text files that go with a question. They stand in its message as `<file name="…">` elements, which
// every server and `kvasir chat` reads as text, and which the page shows as files again.

import { escape } from "/page/markdown.js";
import { icon } from "/page/icons.js";

const MAX_BYTES = 512 << 10;
const MAX_FILES = 16;
const FILES = /\n*<file name="([^"\n]{1,200})">\n([^]*?)\n<\/file>/g;

/** A question with files as one text. An end tag inside a file is escaped. */
export function withFiles(text, files) {
  const element = ({ name, content }) => `<file name="${name}">\n${content.replaceAll("</file>", "<\\/file>")}\n</file>`;
  return [text.trim(), ...files.map(element)].filter(Boolean).join("\n\n");
}

/** A message's text without its files. */
export const withoutFiles = (message) => message.replace(FILES, "");

/** The files in a message. */
export const filesOf = (message) => [...message.matchAll(FILES)].map(([, name, content]) => ({ name, content: content.replaceAll("<\\/file>", "</file>") }));

const size = (text) => {
  const bytes = new TextEncoder().encode(text).length;
  return bytes < 1024 ? `${bytes} B` : `${(bytes / 1024).toFixed(bytes < 10_240 ? 1 : 0)} KiB`;
};

/** Files of a message as it is shown: each can be opened. */
export function drawFiles(message) {
  const file = ({ name, content }) => `<details class="file"><summary>${icon("file")}<span>${escape(name)}</span><small>${size(content)}</small></summary><pre tabindex="0">${escape(content)}</pre></details>`;
  return filesOf(message).map(file).join("");
}

/** Reads a file as UTF-8 text; throws an error that says why it cannot be attached. */
async function readText(file) {
  if (file.size > MAX_BYTES) throw new Error(`${file.name} is larger than ${MAX_BYTES >> 10} KiB`);
  const bytes = await file.arrayBuffer();
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    if (!text.includes("\u0000")) return text.replace(/\r\n?/g, "\n").replace(/\n+$/, "");
  } catch {
    // Bytes that are no text.
  }
  throw new Error(`${file.name} is no text file`);
}

/** The files of the question that is being written. */
export class Attachments {
  /** `say(text)` tells the person why a file is refused. */
  constructor({ form, list, input, say, changed }) {
    Object.assign(this, { form, list, input, say, changed, files: [] });
    input.addEventListener("change", async () => {
      await this.add(input.files);
      input.value = "";
    });
    list.addEventListener("click", (e) => {
      const at = e.target.closest("[data-remove]")?.dataset.remove;
      if (at !== undefined) this.set(this.files.filter((_, i) => i !== Number(at)));
    });
    this.listenForDrops(document);
    form.addEventListener("paste", (e) => {
      const { files } = e.clipboardData ?? {};
      if (!files?.length) return;
      // Office programs add a picture of the text that they copy.
      if (e.clipboardData.getData("text/plain") && [...files].every(({ type }) => type.startsWith("image/"))) return;
      e.preventDefault();
      this.add(e.clipboardData.files);
    });
  }

  listenForDrops(target) {
    const holdsFiles = (e) => e.dataTransfer?.types.includes("Files");
    target.addEventListener("dragover", (e) => {
      if (!holdsFiles(e)) return;
      e.preventDefault();
      this.form.classList.add("dropping");
    });
    target.addEventListener("dragleave", (e) => { if (!e.relatedTarget) this.form.classList.remove("dropping"); });
    target.addEventListener("drop", (e) => {
      this.form.classList.remove("dropping");
      if (!holdsFiles(e)) return;
      e.preventDefault();
      this.add(e.dataTransfer.files);
    });
  }

  async add(files) {
    const added = [];
    for (const file of files) {
      try {
        if (this.files.length + added.length >= MAX_FILES) throw new Error(`a question takes ${MAX_FILES} files at most`);
        added.push({ name: file.name.replace(/["\n]/g, "'").slice(0, 200), content: await readText(file) });
      } catch (error) {
        this.say(error.message);
      }
    }
    if (added.length) this.set([...this.files, ...added]);
  }

  set(files) {
    this.files = files;
    this.list.hidden = !files.length;
    this.list.innerHTML = files.map(({ name, content }, i) => `<li>${icon("file")}<span>${escape(name)}</span><small>${size(content)}</small><button type="button" class="quiet" data-remove="${i}" aria-label="remove ${escape(name)}">${icon("close")}</button></li>`).join("");
    this.changed();
  }

  /** Gives the files and forgets them. */
  take() {
    const { files } = this;
    this.set([]);
    return files;
  }
}
