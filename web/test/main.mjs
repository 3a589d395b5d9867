// Runs every test in a browser against a server of its own. Errors in the console fail the test.

import { mkdirSync, rmSync } from "node:fs";
import { chromium } from "playwright-core";
import * as chat from "./chat.mjs";
import * as context from "./context.mjs";
import * as controls from "./controls.mjs";
import * as conversations from "./conversations.mjs";
import * as engine from "./engine.mjs";
import * as fleet from "./fleet.mjs";
import * as focus from "./focus.mjs";
import * as link from "./link.mjs";
import * as origins from "./origins.mjs";
import * as parts from "./parts.mjs";
import * as settings from "./settings.mjs";
import * as tabs from "./tabs.mjs";
import * as text from "./text.mjs";
import * as trace from "./trace.mjs";
import { Server } from "./server.mjs";
import { serveSources } from "./sources.mjs";

const SHOTS = new URL("shots/", import.meta.url).pathname;
const SIZES = { desktop: { width: 1280, height: 860 }, phone: { width: 390, height: 844 } };

rmSync(SHOTS, { recursive: true, force: true });
mkdirSync(SHOTS, { recursive: true });

// A container has no sandbox to offer; what is opened is the project's own page.
const browser = await chromium.launch({ executablePath: process.env.BROWSER, args: ["--no-sandbox", "--disable-gpu"], timeout: 120_000 });
const server = await Server.start(["--api-key", "test-key"]);
const slow = await Server.start(["--api-key", "test-key,other-key", "--backend", "sim", "--sim-preset", "fixed:100ms"]);
const small = await context.start();
const replicas = await fleet.start();
const roles = await fleet.startRoles();
const speculating = await Server.start(["--api-key", "test-key", "--spec", "suffix"]);
let failed = 0;

/** Runs one test on a page of its own, if its name holds what ONLY asks for. */
async function run(name, test, { size = "desktop", colorScheme = "light", key = "test-key", at = server, expected = /401/, sources = process.env.SOURCES } = {}) {
  if (!name.includes(process.env.ONLY ?? "")) return;
  const context = await browser.newContext({ viewport: SIZES[size], colorScheme, hasTouch: size === "phone", reducedMotion: "reduce" });
  if (sources) await serveSources(context);
  const page = await context.newPage();
  // With SOURCES the page is being edited: a missing element fails after 20 seconds, not 120.
  page.setDefaultTimeout(process.env.SOURCES ? 20_000 : 120_000);
  const errors = [];
  page.on("console", (message) => { if (message.type() === "error" && !expected.test(message.text())) errors.push(message.text()); });
  page.on("pageerror", (error) => errors.push(error.message));
  if (key) await context.addInitScript((value) => sessionStorage.setItem("kvasir-key", value), key);
  const shot = (what) => page.screenshot({ path: `${SHOTS}${what}-${size}-${colorScheme}.png` });
  try {
    await test({ page, address: at.address, shot });
    if (errors.length) throw new Error(`the console has errors: ${errors.join("; ")}`);
    console.log(`ok    ${name}`);
  } catch (error) {
    failed++;
    await shot(`failed-${name.replaceAll(/\W+/g, "-")}`).catch(() => {});
    console.log(`FAIL  ${name}\n      ${String(error.stack ?? error).replaceAll("\n", "\n      ")}`);
  }
  await context.close();
}

/** What is drawn, at both widths and in both themes, each seen once per pair. */
const DRAWN = [
  ["looks", chat.looks], ["tool calls and tokens", chat.shown], ["settings are checked and kept", settings.settings],
  ["the gauge counts the context", settings.gauge], ["the model has a card", settings.card], ["text, formulas and code", text.rich],
  ["text from right to left", text.rightToLeft], ["the text of a wide table", text.wideTable], ["a typed tool call is shown as a call", text.typed],
  ["a full context loses its oldest turns", context.dropTurns, { at: small, expected: /40[01]/ }], ["a toast is centered", focus.toast],
  ["buttons of the last answer are visible", focus.visible], ["the engine looks", engine.looks], ["the replica table is drawn", fleet.looks, { at: replicas }], ["K/V transfers of replicas are drawn", fleet.transfers, { at: roles }], ["draft trees are drawn", engine.drafts],
];

/** What is done, at both widths, each with one of the themes. */
const DONE = [
  ["a refused request says why and can be tried again", chat.refused], ["conversations are kept", conversations.kept],
  ["conversations are searched", conversations.searched], ["a conversation is renamed", conversations.renamed],
  ["a deletion is undone", conversations.deleted], ["conversations are exported and imported", conversations.exported],
  ["the chat has keys", settings.keys], ["a wrong key is called one", settings.key, { key: null }],
  ["esc closes what is open first", controls.escape], ["the focus stays on its control", controls.focus],
  ["a growing answer leaves what is read alone", controls.steady], ["many rounds of tools end with a reason", controls.rounds],
  ["an edit outlasts another conversation", controls.drafts], ["a key that cannot be sent", controls.unsendable, { key: null }],
  ["files go with a question", text.attached], ["footnotes are followed", text.footnotes], ["delimiters are as tall as what they enclose", text.fences], ["enter sends an edit", focus.edited],
  ["a full context begins anew", context.beginAnew, { at: small, expected: /40[01]/ }],
  ["a first question that does not fit is kept", context.alone, { at: small, expected: /40[01]/ }],
  ["an edit that does not fit is kept", context.edited, { at: small, expected: /40[01]/ }],
  ["an answer goes on in a full context", context.continued, { at: small, expected: /40[01]/ }],
];
const PAIRS = [["desktop", "light"], ["phone", "dark"], ["desktop", "dark"], ["phone", "light"]];

async function tests() {
  await run("markdown, tools and branches", parts.all);
  await run("reconnections to a failing server stop", parts.failures, { expected: /50[03]/ });
  await run("an answer streams, is edited and asked again", chat.talk);
  await run("the message field has the focus", focus.kept);
  await run("what is typed goes into the message field", focus.typed);
  await run("the empty message field scrolls", focus.scrolled);
  await run("a finger opens no keyboard", focus.touched, { size: "phone", colorScheme: "dark" });
  await run("a question that does not fit waits in its conversation", context.elsewhere, { at: small, expected: /40[01]/ });
  await run("a shortened branch is shortened further", context.more, { at: small, expected: /40[01]/ });
  await run("a question that does not fit stays in its tab", context.tabs, { at: small, expected: /40[01]/ });
  await run("only MathML enters the page", text.hostileMath, { expected: /401|inline event handler/ });
  await run("a conversation is whole while an answer is awaited", tabs.torn);
  await run("only one of two tabs runs the tool calls of an answer", tabs.ended);
  await run("a reset is undone where it was made", controls.resetElsewhere);
  await run("a late result of a call is refused", controls.lateResult);
  await run("what is wrong is refused in words", controls.refusals);
  await run("forced colors keep data and choices visible", controls.contrast);
  await run("a full store is reported", tabs.quota);
  await run("cleared site data is reported", tabs.cleared);
  await run("the page works without storage", tabs.blocked, { key: null });
  await run("full settings are reported and checked", tabs.fullSettings);
  await run("the step stream is open only while it is seen", tabs.connections);
  for (const [pair, [size, colorScheme]] of PAIRS.entries()) {
    const tests = pair < 2 ? [...DRAWN, ...DONE] : DRAWN;
    for (const [name, test, options] of tests) await run(`${name}, ${size}, ${colorScheme}`, test, { size, colorScheme, ...options });
  }
  for (const [size, colorScheme] of PAIRS.slice(0, 2)) {
    await run(`copy works on plain HTTP, and says when it does not, ${size}`, chat.copied, { size, colorScheme });
  }
  await run("a cut answer is continued from where it was cut", link.continued, { expected: /40[14]/ });
  // A context that serves sources would answer preflight requests in place of the server.
  await run("a page of another origin asks where it may", origins.asked, { expected: /401|CORS|net::ERR_FAILED/, sources: false });
  await run("the engine is watched while it answers", engine.live);
  await run("a speculating engine shows its drafts", engine.speculates, { at: speculating });
  await run("a key that does not open the engine's steps", engine.refused);
  await run("the view shows the steps of the selected replica", fleet.selects, { at: replicas });
  await run("a killed replica is marked, and its steps continue", fleet.restarts, { at: replicas });
  await run("a key that may not read the replicas' figures", fleet.refused, { at: replicas });
  await run("the trace page moves through its steps", trace.moves);
  await run("the volume test of the rectangular policy is drawn", trace.projection);
  await run("the trace page on a phone", trace.looks, { size: "phone", colorScheme: "dark" });
  await run("the page of several replicas", trace.replicas);
  await run("the page of several replicas on a phone", trace.replicas, { size: "phone", colorScheme: "dark" });
  await run("the report of a benchmark has tables", trace.report);
  await run("the report of a benchmark has tables, phone", trace.report, { size: "phone", colorScheme: "dark" });
}

/** Tests that mostly wait, for slow steps or an unreachable server. They run concurrently with `tests`. */
async function waitingTests() {
  await run("an answer is stopped", chat.stopped, { at: slow });
  await run("an answer is stopped, phone", chat.stopped, { at: slow, size: "phone", colorScheme: "dark" });
  await run("an answer goes on beside another conversation", conversations.beside, { at: slow });
  await run("an answer goes on beside another conversation, phone", conversations.beside, { at: slow, size: "phone", colorScheme: "dark" });
  await run("a reload in the middle of an answer resumes it", link.reloaded, { at: slow });
  await run("a stream resumes after a lost connection", link.reconnected, { at: slow, expected: /401|net::ERR_/ });
  await run("two tabs write one conversation", tabs.shared, { at: slow, expected: /401|404/ });
  await run("another tab resumes the answer of a closed tab", tabs.leftTab, { at: slow });
  await run("sessions end with their tab", tabs.closedTab, { at: slow, key: "other-key" });
  await run("a server that stands still is noticed", link.frozen, { expected: /401|net::ERR_/ });
  for (const [size, colorScheme] of PAIRS) {
    await run(`a killed server is noticed and its answer continued, ${size}, ${colorScheme}`, link.killed, { size, colorScheme, expected: /401|404|503|net::ERR_/ });
  }
}

try {
  await Promise.all([tests(), waitingTests()]);
} finally {
  await browser.close();
  await Promise.all([server.stop(), slow.stop(), small.stop(), speculating.stop(), replicas.stop(), roles.stop()]);
}
console.log(failed ? `${failed} failed; screenshots are in web/test/shots` : "all passed");
process.exit(failed ? 1 : 0);
