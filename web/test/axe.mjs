// Accessibility: the rules of axe-core, in the state that a page is in.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";

const SOURCE = await readFile(new URL("node_modules/axe-core/axe.min.js", import.meta.url), "utf8").catch(() => null);
if (!SOURCE) console.log("skip  axe-core is not installed: accessibility is not checked");

/** Fails if a rule is violated; `state` names what the page shows. */
export async function accessible(page, state) {
  if (!SOURCE) return;
  if (!(await page.evaluate(() => "axe" in globalThis))) await page.evaluate(SOURCE);
  const found = await page.evaluate(async () => {
    const { violations } = await globalThis.axe.run(document, { resultTypes: ["violations"] });
    return violations.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 6).map(({ target, failureSummary }) => `${target.join(" ")} (${failureSummary.split("\n").slice(1, 3).join(" ").trim()})`).join("; ")}`);
  });
  assert.deepEqual(found, [], `axe-core, ${state}`);
}

/** Fails if the page is wider than its window. */
export async function fits(page, state) {
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(wide <= 0, `${state}: the page is ${wide} pixels too wide`);
}
