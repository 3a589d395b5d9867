// Takes the pictures of the docs again, as the program looks now.

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";
import { ask, ready, rest, set } from "./chat.mjs";
import { Server, kvasir } from "./server.mjs";
import { serveSources } from "./sources.mjs";

const IMAGES = new URL("../../docs/images/", import.meta.url).pathname;
const browser = await chromium.launch({ executablePath: process.env.BROWSER, args: ["--no-sandbox", "--disable-gpu"], timeout: 120_000 });
const server = await Server.start([]);
const small = await Server.start(["--kv-capacity", "4096"]);

/** Opens `address` at this size, and takes the picture after `prepare`. */
async function take(name, [width, height], address, prepare) {
  const context = await browser.newContext({ viewport: { width, height }, reducedMotion: "reduce" });
  if (process.env.SOURCES) await serveSources(context);
  const page = await context.newPage();
  page.setDefaultTimeout(120_000);
  await page.goto(address);
  await prepare(page);
  await page.screenshot({ path: `${IMAGES}${name}.png` });
  await context.close();
  console.log(`docs/images/${name}.png`);
}

/** A chat that calls the page's tools, beside older ones. */
async function chats(page) {
  await ready(page);
  const say = async (text) => {
    await ask(page, text);
    await rest(page);
  };
  for (const text of ["Sort these numbers: 9, 4, 7, 1", "Hello! Who are you?", "How many minutes are in 3 hours?"]) {
    await say(text);
    await page.locator("button", { hasText: "New chat" }).first().click();
  }
  await set(page, "clock", true);
  await set(page, "calculator", true);
  for (const text of ["What is the capital of Norway?", "What time is it in Tokyo?", "Calculate 1234 * 5678."]) await say(text);
  await page.mouse.move(0, 0);
}

/** Sends chats with the same system prompt and answers of several lengths; returns when the short ones have ended. */
async function chatsOfSeveralLengths(page) {
  await page.waitForSelector("#resting:not([hidden])");
  await page.evaluate(async () => {
    const wait = (ms) => new Promise((done) => setTimeout(done, ms));
    const request = async (i, max_tokens) => {
      const messages = [{ role: "system", content: "You answer in a few words. ".repeat(12) }, { role: "user", content: `Question ${i}: what is ${i} + ${i}?` }];
      const body = JSON.stringify({ messages, max_tokens, ignore_eos: true });
      await fetch("/v1/chat/completions", { method: "POST", headers: { "Content-Type": "application/json" }, body });
    };
    await request(0, 30);
    for (const [i, max_tokens] of [20, 60, 40, 400, 360, 420, 300, 380].entries()) {
      request(i + 1, max_tokens);
      await wait(200);
    }
  });
  // The short ones end first.
  await page.waitForFunction(() => {
    const running = [...document.querySelectorAll("#live .decode .row .chip")].map((chip) => chip.textContent);
    return running.length === 5 && running.includes("9");
  });
  await page.waitForTimeout(1000);
}

const folder = mkdtempSync(join(tmpdir(), "kvasir-images-"));
try {
  await take("page", [1180, 760], server.address, chats);
  await take("engine", [1180, 1130], `${small.address}/#engine`, chatsOfSeveralLengths);
  const file = join(folder, "agents.html");
  kvasir("sim", "--workload", "agents", "--requests", "60", "--rate", "40", "--sim-preset", "h200:qwen3-14b", "--kv-capacity", "8192", "--html", file);
  await take("sim", [1280, 1455], `file://${file}#step=629`, (page) => page.waitForSelector(".waterfall"));
} finally {
  rmSync(folder, { recursive: true });
  await browser.close();
  await Promise.all([server.stop(), small.stop()]);
}
