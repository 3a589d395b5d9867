// The list of conversations beside the chat: search, rename, delete with undo, export, import.
//
// On a narrow window it is a drawer over the page; what is behind it is inert meanwhile.

import { escape } from "/page/markdown.js";
import { icon } from "/page/icons.js";
import { local } from "/page/storage.js";
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
    /** Records of deletions that the toast offers to undo. */
    this.deleted = [];
    this.setOpen(!NARROW.matches && !local.get(CLOSED));
  }

  listen() {
    this.conversations.addEventListener("change", ({ detail }) => { if (!detail.quiet) this.refresh(); });
    this.conversations.addEventListener("writing", () => this.refresh());
    this.chat.addEventListener("shown", () => this.refresh());
    this.search.addEventListener("input", () => this.refresh());
    // A press beside the menu closes it before the click arrives.
    this.list.addEventListener("pointerdown", (e) => { this.pressed = this.isMenuOpen ? this.menuItem : null; if (!e.target.closest(".more")) this.pressed = null; });
    this.list.addEventListener("click", (e) => this.click(e));
    this.root.addEventListener("click", (e) => this.act(e.target.closest("[data-act]")?.dataset.act));
    this.menu.addEventListener("click", (e) => this.choose(e.target.closest("[data-act]")?.dataset.act));
    this.menu.addEventListener("keydown", (e) => this.moveInMenu(e));
    this.file.addEventListener("change", () => this.import());
    this.backdrop.addEventListener("click", () => this.setOpen(false));
    NARROW.addEventListener("change", () => this.setOpen(!NARROW.matches && !local.get(CLOSED)));
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
    if (!NARROW.matches && open) local.remove(CLOSED);
    else if (!NARROW.matches) local.set(CLOSED, "1");
    if (open && NARROW.matches) this.search.focus();
  }

  /** After something was chosen, a drawer closes. */
  chosen() {
    if (!NARROW.matches) return;
    this.setOpen(false);
    this.chat.questionFocus.take();
  }

  find() {
    this.setOpen(true);
    this.search.focus();
    this.search.select();
  }

  get isMenuOpen() {
    return this.menu.matches(":popover-open");
  }

  /** Esc: closes the menu, else the drawer, else clears the search. False if there was nothing to do. */
  escape() {
    if (this.isMenuOpen) {
      this.menu.hidePopover();
      this.focus(this.menuItem, "more");
    } else if (this.isOpen && NARROW.matches) {
      this.setOpen(false);
      [...this.toggles].find((toggle) => toggle.offsetParent)?.focus();
    } else if (document.activeElement === this.search && this.search.value) {
      this.search.value = "";
      this.refresh();
    } else {
      return false;
    }
    return true;
  }

  /** The list's element of a conversation; the list may have been drawn anew. */
  itemOf(id) {
    return this.list.querySelector(`.item[data-id="${id}"]`);
  }

  focus(id, name) {
    this.itemOf(id)?.querySelector(`.${name}`)?.focus();
  }

  /** Draws the list again; the latest of several calls wins. */
  async refresh() {
    const turn = (this.turn = (this.turn ?? 0) + 1);
    const records = await this.conversations.list(this.search.value);
    if (turn !== this.turn || this.list.querySelector("form")) return;
    const groups = Map.groupBy?.(records, groupOf) ?? grouped(records);
    const html = [...groups].map(([name, items], i) => `<p class="group" id="group-${i}">${escape(name)}</p><ul aria-labelledby="group-${i}">${items.map((record) => this.item(record)).join("")}</ul>`).join("");
    const none = this.search.value.trim() ? "No conversation has these words." : "No conversations yet.";
    const focused = this.list.contains(document.activeElement) ? document.activeElement : null, id = focused?.closest(".item")?.dataset.id;
    this.list.innerHTML = html || `<p class="nothing">${none}</p>`;
    if (id) this.focus(id, focused.matches(".more") ? "more" : "open");
  }

  item({ id, title }) {
    const current = id === this.chat.conversation.id, busy = this.conversations.isBusy(id);
    return `<li class="item${busy ? " busy" : ""}" data-id="${id}"><button type="button" class="open" title="${escape(title)}"${current ? ' aria-current="true"' : ""}>${escape(title)}${busy ? '<span class="sr">, answering</span>' : ""}</button><button type="button" class="quiet more" aria-haspopup="menu" aria-label="actions for ${escape(title)}">${icon("more")}</button></li>`;
  }

  async click(e) {
    const item = e.target.closest(".item");
    if (!item) return;
    const more = e.target.closest(".more");
    // A second click on the button closes the menu.
    if (more && this.pressed === item.dataset.id) this.pressed = null;
    else if (more) this.openMenu(item, more);
    if (more) return;
    if (!e.target.closest(".open")) return;
    await this.chat.open(item.dataset.id);
    this.chosen();
  }

  openMenu(item, button) {
    this.menuItem = item.dataset.id;
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
    const id = this.menuItem, item = this.itemOf(id);
    if (act === "rename") return item && this.rename(item);
    if (act === "delete") return this.remove(id);
    this.focus(id, "more");
    const conversation = await this.conversations.read(id);
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
    const close = async (keep, byKey = false) => {
      if (!open) return;
      open = false;
      form.remove();
      if (keep && field.value.trim() !== title) await this.conversations.rename(id, field.value);
      await this.refresh();
      if (byKey) this.focus(id, "more");
    };
    form.addEventListener("submit", (e) => { e.preventDefault(); close(true, true); });
    field.addEventListener("blur", () => close(true));
    field.addEventListener("keydown", (e) => {
      if (e.key !== "Escape") return;
      e.stopPropagation();
      close(false, true);
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
    this.offerUndo([record], wasShown ? id : null);
  }

  /** Offers to undo a deletion, and those whose offer is still shown. `shown` is the conversation to open again. */
  offerUndo(records, shown) {
    const before = this.toast.isOffering(this.undo) ? this.deleted : [];
    this.deleted = [...before, ...records];
    this.reopened = shown ?? (before.length ? this.reopened : null);
    const { deleted, reopened } = this;
    this.undo = async () => {
      await this.conversations.restore(deleted);
      if (reopened) await this.chat.open(reopened);
    };
    this.toast.show(`Deleted ${deleted.length === 1 ? `“${deleted[0].title}”` : `${deleted.length} conversations`}.`, "Undo", this.undo);
  }

  async act(act) {
    if (act === "import") this.file.click();
    else if (act === "export-all") download("kvasir-conversations.json", toBackup(await this.conversations.list()), "application/json");
    else if (act === "delete-all") this.clear();
  }

  async clear() {
    const records = await this.conversations.clear();
    if (!records.length) return this.toast.show("There are no conversations to delete.");
    this.chat.begin();
    this.offerUndo(records, null);
  }

  /** Adds the conversations of files, and opens the last. What cannot be read is left out and named. */
  async import() {
    const problems = [];
    let last = null, count = 0, damaged = 0, unkept = 0;
    for (const file of [...this.file.files]) {
      try {
        const { conversations, left } = read(file.name, await file.text());
        damaged += left;
        for (const conversation of conversations) {
          const isKept = await this.conversations.put(conversation.record());
          if (isKept) last = conversation;
          count += isKept;
          unkept += !isKept;
        }
      } catch (error) {
        problems.push(`${file.name}: ${error.message}`);
      }
    }
    this.file.value = "";
    if (last) {
      await this.chat.open(last.id);
      this.chosen();
      problems.unshift(`Imported ${count === 1 ? `“${last.label}”` : `${count} conversations`}.`);
    }
    if (damaged) problems.push(damaged === 1 ? "1 damaged conversation was left out." : `${damaged} damaged conversations were left out.`);
    if (unkept) problems.push(unkept === 1 ? "The browser did not keep 1 conversation." : `The browser did not keep ${unkept} conversations.`);
    if (problems.length) this.toast.show(problems.join(" "));
  }
}

/** `Map.groupBy` for browsers without it. */
function grouped(records) {
  const groups = new Map();
  for (const record of records) groups.set(groupOf(record), [...(groups.get(groupOf(record)) ?? []), record]);
  return groups;
}
