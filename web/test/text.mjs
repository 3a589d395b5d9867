// What messages show: Markdown, formulas, highlighted code, files, tool calls that a model typed.

import assert from "node:assert/strict";
import { accessible, fits } from "./axe.mjs";
import { ask, ready, records, rest } from "./chat.mjs";
import { chunk, mock, sse } from "./responses.mjs";

/** Lets the model answer with this text. */
export const says = (page, text) => mock(page, (route) => route.fulfill(sse(chunk({ content: text }), chunk({}, { finish_reason: "stop" }))));

const RICH = String.raw`The loss is $L = -\sum_i y_i \log p_i$ and costs $5 or $10.

$$
\operatorname{softmax}\left(\frac{QK^T}{\sqrt{d_k}}\right)V = \begin{pmatrix} a & b \\ c & d \end{pmatrix}
$$

\[ \boxed{x = \frac{-b \pm \sqrt{b^2 - 4ac}}{2a}} \]

- [x] read the paper
- [ ] write the kernel, see https://example.org/a_(b)?x=1&y=2.

| cache | blocks | shares |
|:------|-------:|:------:|
| radix | 1,024 | yes |
| paged \| flat | 64 | no |

${"```"}rust
/// Plans a claim.
pub fn plan<'a>(&'a self, claim: &Claim) -> Result<Plan, Error> {
    let slots = self.free.take(claim.tokens * 2)?; // a line that is longer than a phone is wide
    println!("{slots:?} of {}", "all");
    Ok(Plan::new(slots))
}
${"```"}

${"```"}python
async def main(n: int = 3) -> None:  # starts
    print(f"hello {n}", 1.5e3, None)
${"```"}
`;

export async function rich({ page, address, shot }) {
  await says(page, RICH);
  await page.goto(address);
  await ready(page);
  await ask(page, "Show me everything.");
  await rest(page);
  await page.waitForFunction(() => document.querySelectorAll(".math.drawn math").length === 3);
  const text = page.locator(".msg.assistant .text");
  assert.match(await text.locator("p").first().innerText(), /costs \$5 or \$10/);
  assert.ok((await text.locator("math mfrac").count()) >= 2);
  assert.ok((await text.locator("math mtable").count()) >= 2);
  assert.deepEqual(await text.locator(".tick").evaluateAll((all) => all.map((tick) => tick.getAttribute("aria-label"))), ["done", "to do"]);
  assert.equal(await text.locator("li a").getAttribute("href"), "https://example.org/a_(b)?x=1&y=2");
  assert.deepEqual(await text.locator("td").evaluateAll((all) => all.slice(0, 3).map((cell) => getComputedStyle(cell).textAlign)), ["start", "right", "center"]);
  assert.equal(await text.locator("td").nth(3).innerText(), "paged | flat");
  for (const [kind, word] of [["keyword", "pub"], ["comment", "/// Plans a claim."], ["type", "Plan"], ["string", '"all"'], ["function", "println!"], ["keyword", "async"], ["number", "1.5e3"]]) {
    assert.ok((await text.locator(`.t-${kind}`).allInnerTexts()).includes(word), `${word} is a ${kind}`);
  }
  await accessible(page, "text, formulas and code");
  await fits(page, "text, formulas and code");
  const scrolls = await text.locator("pre").first().evaluate((pre) => pre.scrollWidth > pre.clientWidth && getComputedStyle(pre).overflowX === "auto");
  assert.ok(scrolls || page.viewportSize().width > 600, "code scrolls in its box");
  await shot("text-end");
  await page.evaluate(() => { document.querySelector(".scroller").scrollTop = 0; });
  await shot("text");
}

const HEBREW = `# כותרת

שלום \`f(x)\` עולם

- פריט
  - item
- [x] פריט

> ציטוט

| א | b |
|---|---|
| ג | d |

\`\`\`js
f(1);
\`\`\`

English`;

/** Each block runs in the direction of its first letter; lists, quotes and tables follow their first part. */
export async function rightToLeft({ page, address, shot }) {
  await says(page, HEBREW);
  await page.goto(address);
  await ready(page);
  assert.equal(await page.locator("#question").evaluate((field) => field.dir), "auto");
  await ask(page, "שלום?");
  await rest(page);
  const text = page.locator(".msg.assistant .text");
  const styles = (name, selector) => text.locator(selector).evaluateAll((all, name) => all.map((element) => getComputedStyle(element)[name]), name);
  assert.equal(await page.locator(".bubble").evaluate((bubble) => getComputedStyle(bubble).direction), "rtl");
  assert.deepEqual(await styles("direction", "> p, h3, blockquote, table, pre, p code"), ["rtl", "rtl", "ltr", "rtl", "rtl", "ltr", "ltr"]);
  assert.deepEqual(await styles("direction", "li"), ["rtl", "ltr", "rtl"]);
  assert.deepEqual(await styles("direction", "th, td"), ["rtl", "ltr", "rtl", "ltr"]);
  assert.deepEqual(await styles("textAlign", "p, td"), ["start", "start", "right", "right", "start"]);
  assert.equal((await styles("borderRightWidth", "blockquote"))[0], "3px");
  // The marks of items have their space on either side.
  const spaces = await text.locator("> ul").evaluate((list) => {
    const edge = list.getBoundingClientRect();
    return [...list.querySelectorAll("li")].map((item) => [item.getBoundingClientRect().left - edge.left > 15, edge.right - item.getBoundingClientRect().right > 15]);
  });
  assert.deepEqual(spaces, [[false, true], [true, true], [false, true]]);
  await accessible(page, "text from right to left");
  await fits(page, "text from right to left");
  await page.evaluate(() => { document.querySelector(".scroller").scrollTop = 0; });
  await shot("right-to-left");
}

const WIDE = `| Parameter | Description | Recommendation | Compatibility |
|---|---|---|---|
| \`max_position_embeddings\` | internationalization<br>characteristics | Supercalifragilistic | unconditionally |`;

/** Cells keep their words whole; a table that is wider than its place scrolls in its box. */
export async function wideTable({ page, address, shot }) {
  await says(page, `${WIDE}\n\nText.`);
  await page.goto(address);
  await ready(page);
  await ask(page, "A table?");
  await rest(page);
  const box = page.locator(".tablebox");
  const broken = await box.evaluate((box) => {
    const broken = [], nodes = document.createTreeWalker(box, NodeFilter.SHOW_TEXT), range = document.createRange();
    while (nodes.nextNode()) {
      for (const { 0: word, index } of nodes.currentNode.data.matchAll(/\S+/g)) {
        range.setStart(nodes.currentNode, index);
        range.setEnd(nodes.currentNode, index + word.length);
        if (range.getClientRects().length > 1) broken.push(word);
      }
    }
    return broken;
  });
  assert.deepEqual(broken, []);
  const scrolls = await box.evaluate((box) => box.scrollWidth > box.clientWidth);
  assert.equal(scrolls, page.viewportSize().width < 600, "the table scrolls where it has no room");
  await accessible(page, "a wide table");
  await fits(page, "a wide table");
  await shot("wide-table");
}

/** Only MathML enters the page, whatever the server answers. */
export async function hostileMath({ page, address }) {
  const answers = [
    '<math><mi>x</mi><script xmlns="http://www.w3.org/1999/xhtml">window.hit = 1</script></math>',
    '<math><mi onclick="window.hit = 1" style="color: red; background: url(https://a.b/c)">x</mi></math>',
    '<math><mtext><img xmlns="http://www.w3.org/1999/xhtml" src="x" onerror="window.hit = 1"/></mtext></math>',
    '<math href="javascript:window.hit = 1"><maction actiontype="statusline#x"><mi>x</mi></maction></math>',
    '<math><annotation-xml encoding="text/html"><p xmlns="http://www.w3.org/1999/xhtml">x</p></annotation-xml></math>',
    "<svg onload='window.hit = 1'/>", "<math><mi>x</math>", "not even XML <", "",
  ];
  await page.route("**/page/math", (route) => route.fulfill({ json: { data: answers.map((mathml) => ({ mathml })) } }));
  await says(page, answers.map((_, i) => `$x_{${i}}$`).join(" and "));
  await page.goto(address);
  await ready(page);
  await ask(page, "Formulas?");
  await rest(page);
  await page.waitForSelector(".math.drawn");
  const odd = await page.evaluate(() => {
    const odd = [];
    for (const element of document.querySelectorAll(".math *")) {
      if (element.namespaceURI !== "http://www.w3.org/1998/Math/MathML") odd.push(element.outerHTML);
      for (const { name, value } of element.attributes) if (/^on|href/.test(name) || /url/.test(value)) odd.push(`${name}=${value}`);
    }
    return [...odd, globalThis.hit].filter(Boolean);
  });
  assert.deepEqual(odd, []);
  assert.equal(await page.locator(".math:not(.drawn)").count(), 4, "what is no formula stays as its source");
}

export async function attached({ page, address, shot }) {
  const sent = [];
  await mock(page, (route) => {
    sent.push(route.request().postDataJSON());
    return route.fulfill(sse(chunk({ content: "Read." }), chunk({}, { finish_reason: "stop" })));
  });
  await page.goto(address);
  await ready(page);
  const give = (name, buffer) => page.setInputFiles("#file", { name, mimeType: "text/plain", buffer: Buffer.from(buffer) });
  await give("notes.md", "# Notes\r\n\n<b>bold</b> </file>\n");
  await page.waitForSelector("#files li");
  await give("data.csv", "a,b\n1,2");
  await page.waitForFunction(() => document.querySelectorAll("#files li").length === 2);
  // Dropped, and removed again.
  await page.evaluate(() => {
    const dataTransfer = new DataTransfer();
    dataTransfer.items.add(new File(["dropped"], "dropped.txt"));
    document.body.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
  });
  await page.waitForFunction(() => document.querySelectorAll("#files li").length === 3);
  await page.click("#files li:last-child button");
  await give("image.png", [0x89, 0x50, 0x4e, 0x47, 0, 0xff]);
  await page.waitForFunction(() => /image.png is no text file/.test(document.getElementById("toast").textContent));
  await give("large.txt", "x".repeat((512 << 10) + 1));
  await page.waitForFunction(() => /larger than 512 KiB/.test(document.getElementById("toast").textContent));
  await accessible(page, "attached files");
  await page.evaluate(() => { document.getElementById("toast").hidden = true; });
  await shot("files");
  await page.click("#files li:last-child button");
  await ask(page, "What does it say?");
  await rest(page);
  const content = 'What does it say?\n\n<file name="notes.md">\n# Notes\n\n<b>bold</b> <\\/file>\n</file>';
  assert.equal(sent[0].input[0].content, content);
  assert.equal(await page.locator(".bubble").innerText(), "What does it say?");
  await page.click(".file summary");
  assert.match(await page.locator(".file pre").innerText(), /^# Notes\n\n<b>bold<\/b> <\/file>$/);
  await accessible(page, "a question with a file");
  await shot("file");
  assert.equal((await records(page))[0].title, "What does it say?");
  // An edited question keeps its files.
  await page.locator(".msg.user").hover();
  await page.click("[data-act=edit]");
  assert.equal(await page.inputValue(".editing textarea"), "What does it say?");
  await page.fill(".editing textarea", "And now?");
  await page.click(".editing .strong");
  await rest(page);
  assert.ok(sent[1].input[0].content.startsWith('And now?\n\n<file name="notes.md">'));
}

/** Calls that a model types, because it was offered no such tool, are shown as calls. */
export async function typed({ page, address, shot }) {
  await page.goto(address);
  await ready(page);
  await ask(page, "What is the weather in Oslo?");
  await rest(page);
  assert.equal(await page.locator(".call.typed .callname").innerText(), "weather_lookup");
  assert.match(await page.locator(".call.typed .given").innerText(), /city\s+Oslo/);
  assert.doesNotMatch(await page.locator(".msg.assistant").innerText(), /tool_call|[{}]/);
  await accessible(page, "a typed call");
  await shot("typed-call");
  const found = await page.evaluate(async () => {
    const { typedCalls } = await import("/page/typed_call.js");
    return ['{"name": "a", "arguments": {"x": 1}}', '[{"name": "a", "parameters": {}}]', '```json\n{"name": "a", "arguments": {}}\n```', 'Let me see.\n<tool_call>\n{"name": "a", "arguments": "{}"}\n</tool_call>', '[TOOL_CALLS] [{"name": "a", "arguments": {}}]',
      '{"name": "Ada", "age": 36}', '{"name": "two words", "arguments": {}}', "{}", "null", "plain", "<tool_call>\nnothing\n</tool_call>"].map((text) => typedCalls(text)?.calls.map(({ name }) => name) ?? null);
  });
  assert.deepEqual(found, [["a"], ["a"], ["a"], ["a"], ["a"], null, null, null, null, null, null]);
}

/** A footnote is reached from its reference and back, in its own message. */
export async function footnotes({ page, address, shot }) {
  await says(page, "Attention is a softmax[^a], as in the paper[^1].\n\n[^1]: *Attention is all you need*, $n = 8$.\n[^a]: Of scores.");
  await page.goto(address);
  await ready(page);
  for (const text of ["One", "Two"]) {
    await ask(page, text);
    await rest(page);
  }
  const focused = () => page.evaluate(() => [[...document.querySelectorAll(".msg.assistant")].findIndex((message) => message.contains(document.activeElement)), document.activeElement.localName, document.activeElement.dataset.note]);
  await page.locator(".msg.assistant").nth(1).locator(".noteref button").nth(1).click();
  assert.deepEqual(await focused(), [1, "li", "2"]);
  assert.match(await page.evaluate(() => document.activeElement.innerText), /^Attention is all you need/);
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  assert.deepEqual(await focused(), [1, "button", "2"]);
  assert.equal(new URL(page.url()).hash, "", "the address is not changed");
  await accessible(page, "footnotes");
  await shot("footnotes");
}

const FENCED = String.raw`$$ \begin{pmatrix} a & b \\ c & d \end{pmatrix} \begin{bmatrix} 1 \\ 2 \\ 3 \end{bmatrix} \begin{Bmatrix} 1 \\ 2 \end{Bmatrix} \begin{vmatrix} a & b \\ c & d \end{vmatrix} \begin{Vmatrix} x \\ y \end{Vmatrix} $$

$$ f(x) = \begin{cases} 1 & x > 0 \\ 0 & x = 0 \\ -1 & x < 0 \end{cases} \quad \left\lfloor \frac{a}{b} \right\rfloor + \left\lceil \frac{a}{b} \right\rceil + \left\langle \frac{u}{v} \right\rangle + \left[0, \frac{1}{2}\right) + (x) $$`;

/** Delimiters of tall parts are as tall as these, with a font that stretches glyphs and with one that does not. */
export async function fences({ page, address, shot }) {
  await says(page, FENCED);
  await page.goto(address);
  await ready(page);
  await ask(page, "Matrices?");
  await rest(page);
  await page.waitForFunction(() => document.querySelectorAll(".math.drawn math").length === 2);
  const drawn = () => page.evaluate(() => document.documentElement.classList.contains("draws-fences"));
  await page.evaluate(() => document.documentElement.classList.remove("draws-fences"));
  await shot("fences-of-font");
  // A font without pieces of delimiters, such as Liberation Sans, leaves the glyph at its size.
  await page.evaluate(async () => {
    const { getBoundingClientRect } = Element.prototype;
    Element.prototype.getBoundingClientRect = function () {
      return this.matches(".unseen mo") ? new DOMRect(0, 0, 5, 15) : getBoundingClientRect.call(this);
    };
    (await import("/page/fences.js")).probe();
  });
  assert.equal(await drawn(), true, "a font that stretches nothing");
  await shot("fences");
  const rows = await page.evaluate(() => [...document.querySelectorAll("mrow:is([data-open], [data-close])")].map((row) => {
    const { height } = row.getBoundingClientRect(), glyphs = [...row.querySelectorAll(":scope > mo[data-fence]")];
    const inner = Math.max(...[...row.children].filter((child) => !glyphs.includes(child)).map((child) => child.getBoundingClientRect().height));
    return { open: row.dataset.open, close: row.dataset.close, text: glyphs.map((glyph) => glyph.textContent).join(""), fits: Math.abs(height - inner) < 2 && glyphs.every((glyph) => glyph.getBoundingClientRect().height < 1) };
  }));
  assert.deepEqual(rows.map(({ open, close, text }) => `${open} ${close} ${text}`), ["paren paren ()", "bracket bracket []", "brace brace {}", "bar bar ||", "bars bars ‖‖", "brace undefined {", "floor floor ⌊⌋", "ceiling ceiling ⌈⌉", "angle angle ⟨⟩", "bracket paren [)"]);
  assert.ok(rows.every(({ fits }) => fits), JSON.stringify(rows));
  await accessible(page, "delimiters");
  await fits(page, "delimiters");
}
