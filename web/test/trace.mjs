// The page that `kvasir sim --html` writes.

import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { accessible, fits } from "./axe.mjs";
import { Server, kvasir } from "./server.mjs";

/** Writes a page and opens it as a file: it needs no network. */
async function open(page, ...options) {
  const folder = mkdtempSync(join(tmpdir(), "kvasir-trace-"));
  const file = join(folder, "page.html");
  try {
    kvasir("sim", ...options, "--html", file);
    await page.goto(`file://${file}`);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

const AGENTS = ["--workload", "agents", "--requests", "20", "--rate", "40", "--sim-preset", "h200:qwen3-14b", "--kv-capacity", "8192"];

export async function moves({ page, shot }) {
  await open(page, ...AGENTS);
  const at = () => page.locator(".at").innerText();
  assert.match(await at(), /^step 1 of/);
  await page.keyboard.press("End");
  const last = /^step ([\d,]+) of ([\d,]+)/.exec(await at());
  assert.equal(last[1], last[2]);
  await page.keyboard.press("Shift+ArrowLeft");
  assert.notEqual(/^step ([\d,]+)/.exec(await at())[1], last[1]);
  await page.keyboard.press("Home");
  for (let i = 0; i < 12; i++) await page.keyboard.press("ArrowRight");
  assert.match(await at(), /^step 13 of/);
  assert.match(page.url(), /#step=13$/);
  assert.equal(await page.locator("section.decode.rests .row:not(.held)").count(), 0, "nobody rests who runs");
  assert.ok((await page.locator(".decode .row, .prefill .row").count()) > 1, "somebody runs");
  assert.ok((await page.locator(".numbers dt").count()) > 5, "the report is there");
  await page.hover(".waterfall", { position: { x: 600, y: 8 } });
  assert.match(await page.locator(".waterfall").getAttribute("title"), /: .+|waits/);
  await page.locator(".values summary").click();
  // A disclosure tells its page that it was opened a moment later.
  await page.locator(".values table tr").nth(1).waitFor();
  const before = await page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
  await page.keyboard.press("t");
  assert.notEqual(await page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor), before);
  await shot("trace");
  await accessible(page, "trace");
}

export async function looks({ page, shot }) {
  await open(page, ...AGENTS);
  for (let i = 0; i < 12; i++) await page.keyboard.press("ArrowRight");
  await shot("trace");
  await accessible(page, "trace");
  await fits(page, "trace");
}

/** A run of several replicas has heat maps and a table of their means. */
export async function replicas({ page, shot }) {
  await open(page, "--workload", "agents", "--requests", "300", "--rate", "60", "--sim-preset", "h200:qwen3-14b", "--kv-capacity", "64000", "--roles", "2:3", "--failures", "mtbf=3,restart=0.5");
  const titles = await page.locator(".maps figcaption").allInnerTexts();
  assert.deepEqual(titles.map((title) => title.split(" up to")[0]), ["Queue", "Running", "Prefix hit rate", "K/V transfers", "Down"]);
  const map = page.locator(".maps canvas").nth(1);
  const { width } = await map.boundingBox();
  const labels = new Set();
  for (let i = 2; i < 20; i++) {
    await map.hover({ position: { x: (width * i) / 20, y: 8 } });
    labels.add(await page.locator(".maps output").nth(1).innerText());
  }
  assert.ok([...labels].some((text) => /^replica 0, prefill at .+ s: .+ requests$/.test(text)), [...labels].join("; "));
  await page.locator(".replicas summary").click();
  assert.equal(await page.locator(".replicas tbody tr").count(), 5);
  await shot("replicas");
  await accessible(page, "replicas over time");
  await fits(page, "replicas over time");
}

/** The document's example: request 4 waits, because the rectangle could grow beyond its bound. */
export async function projection({ page, shot }) {
  await open(page, new URL("../../crates/kvasir-bench/scenarios/admission.json", import.meta.url).pathname);
  for (let i = 1; i < 37; i++) await page.keyboard.press("ArrowRight");
  assert.match(await page.locator(".projection h3").innerText(), /If 4 joins, the volume would be exceeded: 2,048 of 1,536/);
  assert.match(await page.locator("body").innerText(), /rows × tkv could reach 2,048, the limit is 1,536/);
  assert.match(await page.locator(".decode").last().innerText(), /widest tkv 415 × 3 requests = volume 1,245 of 1,536/);
  await shot("projection");
  await page.keyboard.press("End");
  assert.equal(await page.locator(".projection").count(), 0, "nobody is weighed when nobody waits");
}

/** The page of `bench serve` and `bench offline` has tables, and plots for eyes. */
export async function report({ page, shot }) {
  const folder = mkdtempSync(join(tmpdir(), "kvasir-report-"));
  const file = join(folder, "page.html");
  const server = await Server.start([]);
  try {
    kvasir("bench", "serve", server.address, "--requests", "6", "--html", file);
    await page.goto(`file://${file}`);
  } finally {
    await server.stop();
    rmSync(folder, { recursive: true });
  }
  assert.deepEqual(await page.locator(".times th[scope=col]").allInnerTexts(), ["mean", "p50", "p90", "p99", "most"]);
  assert.equal(await page.locator(".times th[scope=row]").count(), 5);
  assert.match(await page.locator(".times td:nth-child(2)").nth(1).innerText(), /^\d+\.\d\d$/);
  assert.match(await page.locator(".totals").innerText(), /answers\s+6 in/);
  await shot("report");
  await accessible(page, "report");
  await fits(page, "report");
}
