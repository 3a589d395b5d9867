// The list of conversations beside the chat: search, rename, delete with undo, export, import.
//
// On a narrow window it is a drawer over the page; what is behind it is inert meanwhile.

import { escape } from "/page/markdown.js";
import { icon } from "/page/icons.js";
import { download, fileName, read, toBackup, toJson, toMarkdown } from "/page/transcript.js";

const CLOSED = "kvasir-sidebar-closed";
const NARROW = matchMedia("(max-width: 860px)");
const DAY = 86_400_000; // ms

/** Start of the day `back` days ago. */
const dayStart = (back) => new Date().setHours(0, 0, 0, 0) - back * DAY;

function groupOf({ updated }) {
  if (updated >= dayStart(0)) return "Today";
  if (updated >= dayStart(1)) return "Yesterday";
  if (updated >= dayStart(7)) return "Previous 7 days";
  return new Date(updated).toLocaleDateString("en-US", { month: "long", year: "numeric" });
}

export class Sidebar {
  constructor({ root, menu, toggles, behind, conversations, chat, toast }) {
    Object.assign(this, { root, menu, toggles, behind, conversations, chat, toast });
    this.list = root.querySelector(".conversations");
    this.search = root.querySelector("input[type=search]");
    this.file = root.querySelector("input[type=file]");
    this.backdrop = root.nextElementSibling;
    this.listen();
    this.setOpen(!NARROW.matches && !localStorage.getItem(CLOSED));
  }

  listen() {
    this.conversations.addEventListener("change", () => this.refresh());
    this.chat.addEventListener("shown", () => this.refresh());
    this.search.addEventListener("input", () => this.refresh());
    this.list.addEventListener("click", (e) => this.click(e));
    this.root.addEventListener("click", (e) => this.act(e.target.closest("[data-act]")?.dataset.act));
    this.menu.addEventListener("click", (e) => this.choose(e.target.closest("[data-act]")?.dataset.act));
    this.menu.addEventListener("keydown", (e) => this.moveInMenu(e));
    this.file.addEventListener("change", () => this.import());
    this.backdrop.addEventListener("click", () => this.setOpen(false));
    this.root.addEventListener("keydown", (e) => { if (e.key === "Escape" && NARROW.matches) this.setOpen(false); });
    NARROW.addEventListener("change", () => this.setOpen(!NARROW.matches && !localStorage.getItem(CLOSED)));
  }

  get isOpen() {
    return !document.body.classList.contains("sidebar-closed");
  }

  setOpen(open) {
    document.body.classList.toggle("sidebar-closed", !open);
    const covers = open && NARROW.matches;
    this.backdrop.hidden = !covers;
    for (const element of this.behind) element.inert = covers;
    for (const toggle of this.toggles) toggle.setAttribute("aria-expanded", open);
  }

  toggle() {
    const open = !this.isOpen;
    this.setOpen(open);
    if (!NARROW.matches) localStorage[open ? "removeItem" : "setItem"](CLOSED, "1");
    if (open && NARROW.matches) this.search.focus();
  }

  /** After something was chosen, a drawer closes. */
  chosen() {
    if (NARROW.matches) this.setOpen(false);
  }

  find() {
    this.setOpen(true);
    this.search.focus();
    this.search.select();
  }

  /** Draws the list again; the latest of several calls wins. */
  async refresh() {
    const turn = (this.turn = (this.turn ?? 0) + 1);
    const records = await this.conversations.list(this.search.value);
    if (turn !== this.turn || this.list.querySelector("form")) return;
    const groups = Map.groupBy?.(records, groupOf) ?? grouped(records);
    const html = [...groups].map(([name, items], i) => `<p class="group" id="group-${i}">${escape(name)}</p><ul aria-labelledby="group-${i}">${items.map((record) => this.item(record)).join("")}</ul>`).join("");
    const none = this.search.value.trim() ? "No conversation has these words." : "No conversations yet.";
    this.list.innerHTML = html || `<p class="nothing">${none}</p>`;
  }

  item({ id, title }) {
    const current = id === this.chat.conversation.id, busy = this.conversations.live.get(id)?.busy;
    return `<li class="item${busy ? " busy" : ""}" data-id="${id}"><button type="button" class="open" title="${escape(title)}"${current ? ' aria-current="true"' : ""}>${escape(title)}${busy ? '<span class="sr">, answering</span>' : ""}</button><button type="button" class="quiet more" aria-haspopup="menu" aria-label="actions for ${escape(title)}">${icon("more")}</button></li>`;
  }

  async click(e) {
    const item = e.target.closest(".item");
    if (!item) return;
    if (e.target.closest(".more")) return this.openMenu(item, e.target.closest(".more"));
    if (!e.target.closest(".open")) return;
    await this.chat.open(item.dataset.id);
    this.chosen();
  }

  openMenu(item, button) {
    this.menuItem = item;
    this.menu.showPopover();
    const at = button.getBoundingClientRect(), own = this.menu.getBoundingClientRect();
    this.menu.style.left = `${Math.max(8, Math.min(at.left, innerWidth - own.width - 8))}px`;
    this.menu.style.top = `${at.bottom + own.height + 8 < innerHeight ? at.bottom + 4 : at.top - own.height - 4}px`;
    this.menu.querySelector("button").focus();
  }

  moveInMenu(e) {
    const items = [...this.menu.querySelectorAll("button")], by = { ArrowDown: 1, ArrowUp: -1 }[e.key];
    if (!by) return;
    e.preventDefault();
    items[(items.indexOf(document.activeElement) + by + items.length) % items.length].focus();
  }

  async choose(act) {
    if (!act) return;
    this.menu.hidePopover();
    const { id } = this.menuItem.dataset;
    if (act === "rename") return this.rename(this.menuItem);
    if (act === "delete") return this.remove(id);
    const conversation = await this.conversations.load(id);
    if (!conversation) return this.toast.show("This conversation is damaged.");
    const { label } = conversation;
    if (act === "json") download(fileName(label, "json"), toJson(conversation), "application/json");
    else download(fileName(label, "md"), toMarkdown(conversation), "text/markdown");
  }

  rename(item) {
    const { id } = item.dataset, title = item.querySelector(".open").title;
    const form = document.createElement("form");
    form.innerHTML = `<input name="title" aria-label="title" maxlength="200" autocomplete="off">`;
    const field = form.elements.title;
    field.value = title;
    let open = true;
    const close = async (keep) => {
      if (!open) return;
      open = false;
      form.remove();
      if (keep && field.value.trim() !== title) await this.conversations.rename(id, field.value);
      this.refresh();
    };
    form.addEventListener("submit", (e) => { e.preventDefault(); close(true); });
    field.addEventListener("blur", () => close(true));
    field.addEventListener("keydown", (e) => {
      if (e.key !== "Escape") return;
      e.stopPropagation();
      close(false);
    });
    item.replaceChildren(form);
    field.focus();
    field.select();
  }

  async remove(id) {
    const wasShown = id === this.chat.conversation.id;
    const record = await this.conversations.remove(id);
    if (!record) return;
    if (wasShown) this.chat.begin();
    this.toast.show(`Deleted “${record.title}”.`, "Undo", async () => {
      await this.conversations.restore([record]);
      if (wasShown) await this.chat.open(id);
    });
  }

  async act(act) {
    if (act === "import") this.file.click();
    else if (act === "export-all") download("kvasir-conversations.json", toBackup(await this.conversations.list()), "application/json");
    else if (act === "delete-all") this.clear();
  }

  async clear() {
    const records = await this.conversations.clear();
    this.chat.begin();
    this.toast.show(`Deleted ${records.length === 1 ? "1 conversation" : `${records.length} conversations`}.`, "Undo", () => this.conversations.restore(records));
  }

  /** Adds the conversations of files, and opens the last. */
  async import() {
    let last = null, count = 0;
    for (const file of [...this.file.files]) {
      try {
        for (const conversation of read(file.name, await file.text())) {
          await this.conversations.put(conversation.record());
          last = conversation;
          count++;
        }
      } catch (error) {
        this.toast.show(`${file.name}: ${error.message}`);
        this.file.value = "";
        return;
      }
    }
    this.file.value = "";
    if (!last) return;
    await this.chat.open(last.id);
    this.chosen();
    this.toast.show(`Imported ${count === 1 ? `“${last.label}”` : `${count} conversations`}.`);
  }
}

/** `Map.groupBy` for browsers without it. */
function grouped(records) {
  const groups = new Map();
  for (const record of records) groups.set(groupOf(record), [...(groups.get(groupOf(record)) ?? []), record]);
  return groups;
}
