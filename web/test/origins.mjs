// A page of another origin, as browsers let it ask.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { once } from "node:events";
import { Server } from "./server.mjs";

const BODY = { messages: [{ role: "user", content: "What is 23 + 58?" }], temperature: 0, max_tokens: 16, stream: true };

export async function asked({ page, address: closed }) {
  // A browser whose requests are routed answers the preflight itself, so SOURCES has no effect here.
  await page.context().unrouteAll();
  const elsewhere = createServer((_, answer) => answer.setHeader("content-type", "text/html").end("<title>elsewhere</title>"));
  elsewhere.listen(0, "127.0.0.1");
  await once(elsewhere, "listening");
  const origin = `http://127.0.0.1:${elsewhere.address().port}`;
  const open = await Server.start(["--api-key", "test-key", "--allowed-origins", origin]);
  try {
    await page.goto(origin);
    // Headers as the official clients send them.
    const ask = (address, key) => page.evaluate(async ([address, key, body]) => {
      const headers = { "content-type": "application/json", authorization: `Bearer ${key}`, "x-stainless-os": "Unknown", "anthropic-version": "2023-06-01" };
      try {
        const answer = await fetch(`${address}/v1/chat/completions`, { method: "POST", headers, body: JSON.stringify(body) });
        return { status: answer.status, id: answer.headers.get("x-request-id"), text: await answer.text() };
      } catch (error) {
        return { error: error.name };
      }
    }, [address, key, BODY]);
    const answer = await ask(open.address, "test-key");
    assert.equal(answer.status, 200);
    assert.match(answer.id, /\w/);
    assert.match(answer.text, /^data: .*data: \[DONE\]\s*$/s);
    const refused = await ask(open.address, "another");
    assert.equal(refused.status, 401, "the page can read why");
    assert.match(refused.text, /error/);
    assert.deepEqual(await ask(closed, "test-key"), { error: "TypeError" }, "nobody allowed it there");
  } finally {
    elsewhere.closeAllConnections();
    elsewhere.close();
    await open.stop();
  }
}
