// Puts the page together: tabs, theme, the key.

import { get, key } from "/page/api.js";
import { Chat } from "/page/chat.js";
import { Engine } from "/page/engine.js";
import { link } from "/page/link.js";
import { Settings } from "/page/settings.js";

const $ = (id) => document.getElementById(id);
const THEME = "kvasir-theme";

/** Asks for the key if that is what was wrong. True if so. */
function guard(error) {
  if (error.status !== 401) return false;
  const dialog = $("ask-key");
  if (!dialog.open) dialog.showModal();
  return true;
}

$("ask-key").addEventListener("close", () => {
  const given = $("ask-key").querySelector("input").value.trim();
  if (given) {
    key.set(given);
    location.reload();
  }
});
$("ask-key").addEventListener("cancel", (e) => e.preventDefault());

const settings = new Settings($("settings"), $("tools-wrong"));
const chat = new Chat({ list: $("talk"), form: $("composer"), settings, guard });
const engine = new Engine({ root: $("live"), tiles: $("tiles"), pulse: $("pulse"), resting: $("resting"), guard });

function show() {
  const tab = location.hash.startsWith("#engine") ? "engine" : "chat";
  for (const name of ["chat", "engine"]) $(name).hidden = name !== tab;
  for (const link of document.querySelectorAll(".tabs a")) link.toggleAttribute("aria-current", link.hash === `#${tab}`);
  if (tab === "engine") engine.shown();
  else chat.toEnd();
}

function theme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem(THEME, root.dataset.theme);
  engine.shown();
}

const ACTS = {
  new: () => { location.hash = "#chat"; chat.begin(); },
  settings: () => settings.open(),
  theme,
};

document.querySelector(".top").addEventListener("click", (e) => ACTS[e.target.closest("[data-do]")?.dataset.do]?.());
window.addEventListener("hashchange", show);
const chosen = localStorage.getItem(THEME);
if (chosen) document.documentElement.dataset.theme = chosen;
show();

let since = null;

/**
 * Shows the server's model. If the process has changed, `answer` was lost with the old one.
 */
async function greet(answer = null) {
  try {
    const { data: [model] } = await get("/v1/models");
    $("model").textContent = model?.id ?? "";
    document.title = model ? `${model.id} · Kvasir` : "Kvasir";
    if (since !== null && since !== model?.created) chat.lose(answer);
    since = model?.created ?? null;
    return true;
  } catch (error) {
    if (!guard(error)) $("model").textContent = "no connection";
    return error.status !== 401;
  }
}

link.addEventListener("change", () => {
  $("offline").hidden = link.up;
  chat.reach();
  if (link.up) greet(chat.stopper);
});
$("offline").hidden = link.up;
if (await greet()) engine.listen();
