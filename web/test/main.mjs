// Runs every test in a browser against a server of its own. What a page writes to its console as an error fails the test.

import { mkdirSync, rmSync } from "node:fs";
import { chromium } from "playwright-core";
import * as chat from "./chat.mjs";
import * as engine from "./engine.mjs";
import * as link from "./link.mjs";
import * as origins from "./origins.mjs";
import * as parts from "./parts.mjs";
import * as trace from "./trace.mjs";
import { Server } from "./server.mjs";

const SHOTS = new URL("shots/", import.meta.url).pathname;
const SIZES = { desktop: { width: 1280, height: 860 }, phone: { width: 390, height: 844 } };

rmSync(SHOTS, { recursive: true, force: true });
mkdirSync(SHOTS, { recursive: true });

// A container has no sandbox to offer; what is opened is the project's own page.
const browser = await chromium.launch({ executablePath: process.env.BROWSER, args: ["--no-sandbox", "--disable-gpu"], timeout: 120_000 });
const server = await Server.start(["--api-key", "test-key"]);
const slow = await Server.start(["--api-key", "test-key", "--backend", "sim", "--sim-preset", "fixed:100ms"]);
let failed = 0;

/** Runs one test on a page of its own, if its name holds what ONLY asks for. */
async function run(name, test, { size = "desktop", colorScheme = "light", key = "test-key", at = server, expected = /401/ } = {}) {
  if (!name.includes(process.env.ONLY ?? "")) return;
  const context = await browser.newContext({ viewport: SIZES[size], colorScheme, hasTouch: size === "phone" });
  const page = await context.newPage();
  page.setDefaultTimeout(120_000);
  const errors = [];
  page.on("console", (message) => { if (message.type() === "error" && !expected.test(message.text())) errors.push(message.text()); });
  page.on("pageerror", (error) => errors.push(error.message));
  if (key) await page.addInitScript((value) => sessionStorage.setItem("kvasir-key", value), key);
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

try {
  await run("the key is asked for once and kept in the tab", chat.key, { key: null });
  await run("markdown, tools and branches", parts.all);
  await run("an answer streams, is edited and asked again", chat.talk);
  await run("an answer is stopped", chat.stopped, { at: slow });
  await run("reasoning, tools and token probabilities are shown", chat.shown);
  await run("a refused request says why and can be tried again", chat.refused);
  for (const [size, colorScheme] of [["desktop", "light"], ["phone", "dark"]]) {
    await run(`copy works on plain HTTP, and says when it does not, ${size}`, chat.copied, { size, colorScheme });
  }
  await run("a cut answer is continued from where it was cut", link.continued);
  await run("a server that stands still is noticed", link.frozen, { expected: /401|net::ERR_/ });
  for (const [size, colorScheme] of [["desktop", "light"], ["phone", "dark"], ["desktop", "dark"], ["phone", "light"]]) {
    await run(`a killed server is noticed and its answer continued, ${size}, ${colorScheme}`, link.killed, { size, colorScheme, expected: /401|404|net::ERR_/ });
  }
  await run("a page of another origin asks where it may", origins.asked, { expected: /401|CORS|net::ERR_FAILED/ });
  await run("the engine is watched while it answers", engine.live);
  for (const size of ["desktop", "phone"]) {
    for (const colorScheme of ["light", "dark"]) {
      await run(`looks, ${size}, ${colorScheme}`, chat.looks, { size, colorScheme });
      await run(`the engine looks, ${size}, ${colorScheme}`, engine.looks, { size, colorScheme });
    }
  }
  await run("the trace page moves through its steps", trace.moves);
  await run("the volume test of the rectangular policy is drawn", trace.projection);
  await run("the trace page on a phone", trace.looks, { size: "phone", colorScheme: "dark" });
} finally {
  await browser.close();
  await Promise.all([server.stop(), slow.stop()]);
}
console.log(failed ? `${failed} failed; screenshots are in web/test/shots` : "all passed");
process.exit(failed ? 1 : 0);
