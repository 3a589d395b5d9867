// The replica table of `serve --dp`, and the steps of the selected replica.

import assert from "node:assert/strict";
import { accessible, fits } from "./axe.mjs";
import { concurrentChats, tile } from "./engine.mjs";
import { Server } from "./server.mjs";

export const start = () => Server.start(["--dp", "2", "--threads", "1", "--route", "round-robin"]);

/** A server with a prefill replica and a decode replica. */
export const startRoles = () => Server.start(["--dp", "2", "--threads", "1", "--role", "prefill,decode"]);

const row = (page, replica) => page.locator("#fleet tbody tr").nth(replica);

/** The number of areas drawn in a column. */
const areas = (page, replica, column) => row(page, replica).locator(`td.${column} path[d]:not([d=""])`).count();

export async function looks({ page, address, shot }) {
  await page.goto(`${address}/#engine`);
  await page.waitForFunction(() => document.querySelectorAll("#fleet tbody tr").length === 2);
  let isDrawn = false;
  const waitUntilDrawn = async () => {
    await page.waitForFunction(() => [...document.querySelectorAll("#fleet td.running output")].every((now) => Number(now.textContent) > 0));
    await page.waitForFunction(() => [...document.querySelectorAll("#fleet td.hits output")].every((now) => /[1-9]\d? %/.test(now.textContent)));
    await page.waitForTimeout(4000);
    isDrawn = true;
    await shot("fleet");
  };
  const sendPrompts = async () => {
    while (!isDrawn) await concurrentChats(page, 12, 200);
  };
  await Promise.all([waitUntilDrawn(), sendPrompts()]);
  await page.waitForFunction(() => [...document.querySelectorAll("#fleet td.running output")].every((now) => now.textContent === "0"));
  for (const replica of [0, 1]) {
    for (const column of ["running", "pool", "hits"]) assert.ok(await areas(page, replica, column), `${column} of replica ${replica}`);
  }
  assert.match(await page.locator("#fleet .note").innerText(), /Routed by round-robin/);
  await fits(page, "replicas");
  await accessible(page, "replicas");
}

/** K/V transfers of both replicas are drawn while prompts are sent. */
export async function transfers({ page, address, shot }) {
  await page.goto(`${address}/#engine`);
  await page.waitForFunction(() => document.querySelector("#fleet .state span")?.textContent === "ready, prefill");
  let isDrawn = false;
  const waitUntilDrawn = async () => {
    await page.waitForFunction(() => [...document.querySelectorAll("#fleet td.transfers output")].every((output) => Number(output.textContent) > 0));
    isDrawn = true;
    await shot("transfers");
  };
  // Cached prompts are not transferred, so each is new.
  const complete = (i) => page.evaluate(async (content) => {
    const headers = { "Content-Type": "application/json" };
    await (await fetch("/v1/chat/completions", { method: "POST", headers, body: JSON.stringify({ messages: [{ role: "user", content }], max_tokens: 4 }) })).json();
  }, `${Date.now()} ${i} ${"counts from one to ten. ".repeat(20)}`);
  const sendPrompts = async () => {
    for (let i = 0; !isDrawn; i++) await complete(i);
  };
  await Promise.all([waitUntilDrawn(), sendPrompts()]);
  for (const replica of [0, 1]) assert.ok(await areas(page, replica, "transfers"), `transfers of replica ${replica}`);
  await fits(page, "transfers");
  await accessible(page, "transfers");
}

/** The view shows steps and figures of the selected replica. */
export async function selects({ page, address }) {
  await page.goto(`${address}/#engine`);
  await page.waitForFunction(() => document.querySelectorAll("#fleet tbody tr").length === 2);
  const stream = page.waitForRequest((request) => request.url().endsWith("/v1/engine/steps?replica=1"));
  await page.click("#fleet button[data-replica='1']");
  await stream;
  assert.equal(await page.locator("#fleet button[aria-pressed=true]").innerText(), "replica 1");
  await page.waitForFunction(() => document.getElementById("pulse").textContent === "idle");
  // `--route round-robin` alternates between the replicas.
  await concurrentChats(page, 1, 10);
  await page.waitForFunction(() => [...document.querySelectorAll(".tiles dd")].at(-1).textContent === "10");
  assert.equal(await tile(page, "running"), "0");
}

/** After its process is killed, a replica is shown as down, then as ready, and its steps continue. */
export async function restarts({ page, address }) {
  await page.goto(`${address}/#engine`);
  await page.waitForFunction(() => document.querySelector("#fleet .state span")?.textContent === "ready");
  const replicas = async () => (await (await fetch(`${address}/v1/admin/replicas`)).json()).data;
  const { restarts, process: id } = (await replicas())[0];
  process.kill(id, "SIGKILL");
  await page.waitForFunction((restarts) => Number(document.querySelector("#fleet td.restarts").textContent) > restarts, restarts);
  await page.waitForFunction(() => document.querySelector("#fleet .state span").textContent === "ready");
  assert.ok(await row(page, 0).locator("path.restart").count(), "the end of the process is marked");
  await concurrentChats(page, 3, 8);
  await page.waitForFunction(() => Number([...document.querySelectorAll(".tiles dd")].at(-1).textContent) >= 8);
}

/** A key that may not read the figures can still select a replica. */
export async function refused({ page, address }) {
  await page.route("**/v1/admin/replicas", (route) => route.fulfill({ status: 401, json: { error: { message: "no" } } }));
  await page.goto(`${address}/#engine`);
  await page.waitForFunction(() => /has no access to the replicas/.test(document.querySelector("#fleet .note").textContent));
  assert.equal(await page.locator("#ask-key[open]").count(), 0);
  await page.click("#fleet button[data-replica='1']");
  await page.waitForFunction(() => document.getElementById("pulse").textContent === "idle");
}
