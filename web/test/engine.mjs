import assert from "node:assert/strict";

/** Several chats at once on one beginning, in the page's own name. */
const crowd = (page, n, max_tokens) => page.evaluate(async ([n, max_tokens]) => {
  const headers = { "Content-Type": "application/json", Authorization: `Bearer ${sessionStorage.getItem("kvasir-key")}` };
  const ask = (i) => {
    const messages = [{ role: "system", content: "You answer in a few words. ".repeat(12) }, { role: "user", content: `Question ${i}: what is ${i} + ${i}?` }];
    return fetch("/v1/chat/completions", { method: "POST", headers, body: JSON.stringify({ messages, max_tokens, ignore_eos: true }) }).then((response) => response.json());
  };
  await ask(0);
  return Promise.all(Array.from({ length: n }, (_, i) => ask(i + 1)));
}, [n, max_tokens]);

const tile = (page, name) => page.locator(".tiles div", { hasText: name }).locator("dd").innerText();

export async function live({ page, address }) {
  await page.goto(`${address}/#engine`);
  await page.waitForSelector("#resting:not([hidden])");
  const answers = await crowd(page, 6, 24);
  assert.ok(answers.every((answer) => answer.usage?.completion_tokens === 24), JSON.stringify(answers[0]));
  await page.waitForFunction(() => /24 of 24/.test(document.querySelector("#live .decode .body")?.textContent ?? ""));
  await page.waitForFunction(() => [...document.querySelectorAll(".tiles dd")].at(-1).textContent === "168");
  assert.match(await tile(page, "prompt tokens cached"), /[1-9]\d? %/);
  assert.equal(await tile(page, "running"), "0", "nobody runs any more");
  assert.match(await page.locator("#live .at").innerText(), /step \d+ of \d+/);
  // It can be moved through while it stands still, and goes on with the newest step afterwards.
  await page.click("#live [data-go=back]");
  const at = await page.locator("#live .at").innerText();
  await crowd(page, 1, 4);
  await page.waitForFunction(() => [...document.querySelectorAll(".tiles dd")].at(-1).textContent === "176");
  assert.equal((await page.locator("#live .at").innerText()).split(" of ")[0], at.split(" of ")[0], "who looks back is left alone");
  await page.click("#live [data-go=end]");
  await page.waitForFunction(() => /eos|max tokens/.test(document.querySelector("#live .decode .body").textContent));
}

export async function looks({ page, address, shot }) {
  await page.goto(`${address}/#engine`);
  await page.waitForSelector("#resting:not([hidden])");
  // Again and again, until the page has been seen while several decode: it may be drawn too late for the first ones.
  let seen = false;
  const look = async () => {
    await page.waitForFunction(() => document.querySelectorAll("#live section.decode .chip").length >= 4);
    seen = true;
    await shot("engine");
  };
  const ask = async () => {
    while (!seen) await crowd(page, 6, 200);
  };
  await Promise.all([look(), ask()]);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(wide <= 0, `the page is ${wide} pixels too wide`);
}
