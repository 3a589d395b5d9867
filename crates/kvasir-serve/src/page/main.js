// Puts the page together: tabs, dialogs, the key, the state of the connection.

import { Attachments } from "/page/attachments.js";
import { Chat } from "/page/chat.js";
import { copy } from "/page/clipboard.js";
import { Conversations } from "/page/conversations.js";
import { Engine } from "/page/engine.js";
import { FleetView } from "/page/fleet.js";
import { Gauge } from "/page/gauge.js";
import { KeyDialog } from "/page/key_dialog.js";
import { link } from "/page/link.js";
import { Model } from "/page/model.js";
import { Settings } from "/page/settings.js";
import { Shortcuts } from "/page/shortcuts.js";
import { Sidebar } from "/page/sidebar.js";
import { Theme } from "/page/theme.js";
import { Toast } from "/page/toast.js";

const $ = (id) => document.getElementById(id);

const keyDialog = new KeyDialog($("ask-key"), async () => {
  await start();
  chat.resume();
});

/** Asks for the key if that is what was wrong. True if so. */
function guard(error) {
  if (error.status !== 401) return false;
  keyDialog.ask();
  return true;
}

const toast = new Toast($("toast"));
const model = new Model();
const conversations = new Conversations();
const engine = new Engine({ root: $("live"), tiles: $("tiles"), pulse: $("pulse"), resting: $("resting"), fleet: new FleetView($("fleet")) });
const theme = new Theme(() => engine.shown());
const settings = new Settings($("settings"), {
  onSystem: (text, conversation) => chat.setSystem(text, conversation), onTheme: (name) => theme.choose(name), toast,
  conversation: () => chat.conversation, context: () => model.context,
});
const gauge = new Gauge({ element: $("gauge"), model, settings });
const attachments = new Attachments({ form: $("composer"), list: $("files"), input: $("file"), say: (text) => toast.show(text), changed: () => chat.wrote() });
const chat = new Chat({ list: $("talk"), form: $("composer"), settings, conversations, attachments, gauge, model, guard, say: (text) => toast.show(text) });
const sidebar = new Sidebar({
  root: $("sidebar"), menu: $("item-menu"), toggles: document.querySelectorAll("[data-do=sidebar]"), behind: [$("chat")], conversations, chat, toast,
});

const isChat = () => !location.hash.startsWith("#engine");

function show() {
  const tab = isChat() ? "chat" : "engine";
  for (const name of ["chat", "engine"]) $(name).hidden = name !== tab;
  document.body.classList.toggle("on-engine", tab === "engine");
  for (const anchor of document.querySelectorAll(".tabs a")) {
    if (anchor.hash === `#${tab}`) anchor.setAttribute("aria-current", "page");
    else anchor.removeAttribute("aria-current");
  }
  engine.watch(tab === "engine");
  if (tab === "chat") chat.toEnd();
}

function toChat() {
  if (!isChat()) location.hash = "#chat";
}

function openCard() {
  $("card").querySelector("h2").textContent = model.name;
  $("card").querySelector("dl").innerHTML = model.cardHtml();
  $("card").querySelector(".strengths").textContent = model.strengths();
  $("card").querySelector("code").textContent = `${location.origin}/v1`;
  $("card").showModal();
}

const ACTS = {
  new: () => {
    toChat();
    chat.begin();
    sidebar.chosen();
  },
  settings: () => settings.open(),
  theme: () => theme.toggle(),
  sidebar: () => sidebar.toggle(),
  model: () => { if (model.facts) openCard(); },
  shortcuts: () => $("shortcuts").showModal(),
  attach: () => $("file").click(),
  address: (button) => copy(button, `${location.origin}/v1`, $("card").querySelector("code")),
};

document.addEventListener("click", (e) => {
  const button = e.target.closest("[data-do]");
  if (button) ACTS[button.dataset.do]?.(button);
});
for (const dialog of document.querySelectorAll("dialog")) dialog.addEventListener("close", () => chat.questionFocus.take());
$("file").addEventListener("change", () => chat.questionFocus.take());
for (const dialog of [$("card"), $("shortcuts")]) dialog.addEventListener("click", (e) => { if (e.target === dialog) dialog.close(); });

new Shortcuts({
  acts: { new: ACTS.new, find: () => sidebar.find(), editLast: () => chat.editLast(), end: () => chat.toEnd(), write: () => chat.question.focus(), type: () => chat.question.focus(), pageUp: () => chat.scrollPage(-1), pageDown: () => chat.scrollPage(1), help: ACTS.shortcuts, escape: () => sidebar.escape() || chat.stop() },
  question: chat.question, dialog: $("shortcuts"), enabled: isChat,
});

window.addEventListener("hashchange", show);
conversations.addEventListener("change", ({ detail: { id, elsewhere } }) => { if (elsewhere && id === chat.conversation.id) chat.sync(); });
conversations.addEventListener("writing", ({ detail: { id } }) => {
  if (id !== chat.conversation.id || chat.busy) return;
  chat.render();
  chat.followPending();
});
conversations.addEventListener("unkept", ({ detail: error }) => {
  const why = error?.name === "QuotaExceededError" ? "The browser has no room for this conversation" : "The browser does not keep this conversation";
  toast.show(`${why}; it is lost with this page.`);
});
conversations.addEventListener("cleared", () => toast.show("The data of this site was cleared: conversations that were not open are gone."));
show();

/** Shows the server's model. */
async function greet() {
  try {
    await model.load();
    $("model").querySelector("span").textContent = model.name;
    document.title = model.name ? `${model.name} · Kvasir` : "Kvasir";
    if (chat.conversation.isEmpty) chat.render();
    else gauge.show(chat.conversation);
    return true;
  } catch (error) {
    if (!guard(error)) $("model").querySelector("span").textContent = "no connection";
    return error.status !== 401;
  }
}

let started = false;

/** Greets the server, and follows its engine from then on. */
async function start() {
  if (!(await greet()) || started) return;
  started = true;
  engine.listen();
}

link.addEventListener("change", () => {
  $("offline").hidden = link.up;
  chat.reach();
  if (link.up) greet();
});
$("offline").hidden = link.up;
chat.questionFocus.take();
sidebar.refresh();
chat.restore();
start();
