// The page's parts that need no server, run as the page loads them.

import assert from "node:assert/strict";

export async function all({ page, address }) {
  await page.goto(address);
  await markdown(page);
  await blocks(page);
  await inline(page);
  await hostile(page);
  await linear(page);
  await calculator(page);
  await tree(page);
  await model(page);
}

/** Reconnections to a stored answer stop after a limited number of error responses. Timers fire at once here. */
export async function failures({ page, address }) {
  await page.goto(address);
  for (const [status, limit] of [[500, 15], [503, 300]]) {
    const path = "**/v1/responses/resp_failing*";
    let requests = 0;
    await page.route(path, (route) => { requests++; return route.fulfill({ status, json: {} }); });
    const message = await page.evaluate(async () => {
      const { follow } = await import("/page/responses.js");
      const wait = window.setTimeout;
      window.setTimeout = (work) => wait(work, 0);
      try {
        for await (const event of follow({}, { id: "resp_failing" }, new AbortController().signal)) return event.type;
        return "ended";
      } catch (error) {
        return error.message;
      } finally {
        window.setTimeout = wait;
      }
    });
    await page.unroute(path);
    assert.match(message, new RegExp(`every reconnection with status ${status}`));
    assert.equal(requests, limit);
  }
}

const htmlOf = (page, text) => page.evaluate(async (text) => (await import("/page/markdown.js")).markdown(text), text);

/** HTML without the direction of its blocks, which `text.rightToLeft` tests. */
const undirected = (html) => html.replaceAll(' dir="auto"', "");

/** Compares the HTML of each text, without the attributes that all links have. */
async function each(page, texts) {
  for (const [text, html] of Object.entries(texts)) {
    assert.equal(undirected(await htmlOf(page, text)).replaceAll(' target="_blank" rel="noopener noreferrer"', ""), html, text);
  }
}

async function markdown(page) {
  const html = async (text) => undirected(await htmlOf(page, text));
  assert.equal(await html("a **b** *c* `d < e` ~~f~~"), "<p>a <strong>b</strong> <em>c</em> <code>d &#60; e</code> <s>f</s></p>");
  assert.equal(await html("# One\n\n- a\n- b\n  1. c\n\n> q"), "<h3>One</h3><ul><li>a</li><li>b<ol start=\"1\"><li>c</li></ol></li></ul><blockquote><p>q</p></blockquote>");
  assert.equal(await html("snake_case_name 2 * 3 * 4"), "<p>snake_case_name 2 * 3 * 4</p>");
  assert.match(await html("```js\nlet a = 1 < 2;\n```"), /<pre tabindex="0"><code><span class="t-keyword">let<\/span> a = <span class="t-number">1<\/span> &#60; <span class="t-number">2<\/span>;<\/code><\/pre>/);
  assert.match(await html("```\nnot closed"), /<pre tabindex="0"><code>not closed<\/code><\/pre>/);
  assert.match(await html("| a | b |\n|---|:-:|\n| 1 | 2 |"), /<th>a<\/th><th class="center">b<\/th>.*<td>1<\/td><td class="center">2<\/td>/s);
  assert.match(await html("[x](https://a.b/c_d_e?f=1&g=2)"), /^<p><a href="https:\/\/a.b\/c_d_e\?f=1&#38;g=2" target="_blank" rel="noopener noreferrer">x<\/a><\/p>$/);
  assert.match(await html("see https://a.b/c_(d), <https://e.f/?g=1&h=2> and **https://i.j**."), /see <a href="https:\/\/a.b\/c_\(d\)"[^>]*>https:\/\/a.b\/c_\(d\)<\/a>, <a href="https:\/\/e.f\/\?g=1&#38;h=2".*<strong><a href="https:\/\/i.j".*<\/a><\/strong>\./);
  assert.equal(await html("- [x] a\n- [ ] b"), '<ul><li class="task"><span class="tick done" role="img" aria-label="done"></span>a</li><li class="task"><span class="tick" role="img" aria-label="to do"></span>b</li></ul>');
  assert.equal(await html("\\*not bold\\* \\$5"), "<p>*not bold* $5</p>");
  assert.equal(await html("$5 and $10, US$3, a $x_1$ b"), '<p>$5 and $10, US$3, a <span class="math" data-latex="x_1">$x_1$</span> b</p>');
  assert.match(await html("$$\na &= b\n$$"), /^<div class="formula" tabindex="0"><span class="math display" data-latex="a &#38;= b">/);
  assert.match(await html("```diff\n+a\n-b\n```"), /t-added">\+a<\/span>\n<span class="t-removed">-b/);
}

async function blocks(page) {
  const box = (code, language = "text") => `<div class="codebox"><div class="codehead"><span>${language}</span><button type="button" class="quiet" data-act="copy-code">copy</button></div><pre tabindex="0"><code>${code}</code></pre></div>`;
  const table = '<div class="tablebox" tabindex="0"><table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr></tbody></table></div>';
  const formula = (latex) => `<div class="formula" tabindex="0"><span class="math display" data-latex="${latex}">\n${latex}\n</span></div>`;
  await each(page, {
    "Here:\n| a | b |\n|---|---|\n| 1 | 2 |\n\nEnd": `<p>Here:</p>${table}<p>End</p>`,
    "a | b\n---": "<p>a | b</p><hr>",
    // Lists: tabs, continued text, numbers.
    "- a\n\t- b\n\t\t- c\n- d": "<ul><li>a<ul><li>b<ul><li>c</li></ul></li></ul></li><li>d</li></ul>",
    "1.\ta\n\n\tb\n\t- c\n2.\td": '<ol start="1"><li>a<p>b</p><ul><li>c</li></ul></li><li>d</li></ol>',
    "1. **a**\ntext\n2. b": '<ol start="1"><li><strong>a</strong><br>text</li><li>b</li></ol>',
    "- a\n* * *\n- b": "<ul><li>a</li></ul><hr><ul><li>b</li></ul>",
    "The year\n1986. was good": "<p>The year<br>1986. was good</p>",
    "Steps:\n1. a\n2. b": '<p>Steps:</p><ol start="1"><li>a</li><li>b</li></ol>',
    "7. a\n8. b": '<ol start="7"><li>a</li><li>b</li></ol>',
    // Formulas.
    "So we get \\[\nx = 1\n- y\n\\]\nok": `<p>So we get</p>${formula("x = 1\n- y")}<p>ok</p>`,
    "- a: $$\n  x\n  $$\n- b": `<ul><li>a:${formula("x")}</li><li>b</li></ul>`,
    "\\[ a \\] b\nc \\[ d \\]": '<p><span class="math display" data-latex="a">\\[ a \\]</span> b<br>c <span class="math display" data-latex="d">\\[ d \\]</span></p>',
    "a \\[\nno end": "<p>a [<br>no end</p>",
    // Code.
    "```md\n```js\nx\n```\nafter": `${box("```js\nx", "md")}<p>after</p>`,
    "````md\n```js\nx\n```\n````\nafter": `${box("```js\nx\n```", "md")}<p>after</p>`,
    "~~~\n```\n~~~\n```a```": `${box("```")}<p><code>a</code></p>`,
    "- a\n  ```\n  x\n\n    y\n  ```\n- b": `<ul><li>a${box("x\n\n  y")}</li><li>b</li></ul>`,
    "```make\nall:\n\tcc\n```": box("all:\n\tcc", "make"),
    "a\n\n    b\n\n      <c>\n\nd": `<p>a</p>${box("b\n\n  &#60;c&#62;")}<p>d</p>`,
    // Indented text that is no code.
    "    a\nb\n    c": "<p>a<br>b<br>c</p>",
    "a\n\n    - b": "<p>a</p><ul><li>b</li></ul>",
    "1. a\n```\nx\n```\n\n    b": `<ol start="1"><li>a</li></ol>${box("x")}<p>b</p>`,
    "1. a\n\n\n    b": '<ol start="1"><li>a</li></ol><p>b</p>',
    "a\n\n    \\[\n    x\n    \\]": '<p>a</p><div class="formula" tabindex="0"><span class="math display" data-latex="x">\n    x\n    </span></div>',
    "a\n\n    2. b": '<p>a</p><ol start="2"><li>b</li></ol>',
    // Headings.
    "Title\n=====\ntext": "<h3>Title</h3><p>text</p>",
    "Title\n---\ntext": "<h4>Title</h4><p>text</p>",
    "Here it is:\n---\ntext": "<p>Here it is:</p><hr><p>text</p>",
    "a\nb\n---": "<p>a<br>b</p><hr>",
    "Here are\n-": "<p>Here are<br>-</p>",
    "# C# ##": "<h3>C#</h3>",
    "# a\r\n- b\r\n- c": "<h3>a</h3><ul><li>b</li><li>c</li></ul>",
  });
}

const note = (n) => `<sup class="noteref"><button type="button" data-act="note" data-note="${n}" aria-label="footnote ${n}">${n}</button></sup>`;
const notes = (...texts) => `<div class="footnotes"><ol>${texts.map((text, i) => `<li data-note="${i + 1}" tabindex="-1">${text} <button type="button" data-act="note-back" data-note="${i + 1}" aria-label="back to reference ${i + 1}">↩</button></li>`).join("")}</ol></div>`;

async function inline(page) {
  await each(page, {
    "__a__ ***b*** _c_ __init": "<p><strong>a</strong> <em><strong>b</strong></em> <em>c</em> __init</p>",
    "**a\nb** c": "<p><strong>a<br>b</strong> c</p>",
    "*a **b** c* and **a *b* c**": "<p><em>a <strong>b</strong> c</em> and <strong>a <em>b</em> c</strong></p>",
    "2*3*4 snake__case__name f**** ____": "<p>2*3*4 snake__case__name f**** ____</p>",
    "「**太字**」です。**重要。**次": "<p>「<strong>太字</strong>」です。<strong>重要。</strong>次</p>",
    "*a [b* c](https://a.b)": '<p>*a <a href="https://a.b">b* c</a></p>',
    "[w](https://a.b/c_(d))": '<p><a href="https://a.b/c_(d)">w</a></p>',
    "([w](https://a.b)) [x](<https://c.d>)": '<p>(<a href="https://a.b">w</a>) <a href="https://c.d">x</a></p>',
    '[w](https://a.b "a \'t\'") [x](https://c.d \'t\')': '<p><a href="https://a.b" title="a &#39;t&#39;">w</a> <a href="https://c.d" title="t">x</a></p>',
    "[**w** `]` [1]](https://a.b)": '<p><a href="https://a.b"><strong>w</strong> <code>]</code> [1]</a></p>',
    "[https://a.b](https://a.b)": '<p><a href="https://a.b">https://a.b</a></p>',
    "[[a](https://a.b) c](https://d.e)": '<p>[<a href="https://a.b">a</a> c](<a href="https://d.e">https://d.e</a>)</p>',
    "[w][1], [A  b], [C][], [x][2]\n\n[1]: https://a.b\n[a b]: <https://c.d> \"t\"\n[c]: mailto:e@f.g": '<p><a href="https://a.b">w</a>, <a href="https://c.d" title="t">A  b</a>, <a href="mailto:e@f.g">C</a>, [x][2]</p>',
    "[1]\n\n```\n[1]: https://a.b\n```\n\n[1]: javascript:alert(1)": '<p>[1]</p><div class="codebox"><div class="codehead"><span>text</span><button type="button" class="quiet" data-act="copy-code">copy</button></div><pre tabindex="0"><code>[1]: https://a.b</code></pre></div><p>[1]: javascript:alert(1)</p>',
    "`` a`b `` ``c`` `d``": "<p><code>a`b</code> <code>c</code> `d``</p>",
    "a&nbsp;b &lt;i&gt; &#8212; &#x3c; & &;": "<p>a&nbsp;b &lt;i&gt; &#8212; &#x3c; &#38; &#38;;</p>",
    "`&amp;`": "<p><code>&#38;amp;</code></p>",
    "a<br>b<BR />c `<br>`": "<p>a<br>b<br>c <code>&#60;br&#62;</code></p>",
    "a\\\nb": "<p>a<br>b</p>",
    // Footnotes.
    "a[^x] b[^1], [^x]\n\n[^1]: *one*\n[^X]: two\n    more\n\n    last\n\nend": `<p>a${note(1)} b${note(2)}, ${note(1)}</p><p>end</p>${notes("two<br>more<p>last</p>", "<em>one</em>")}`,
    "a[^1] `[^1]` \\[^1] [^2] [l [^1]](https://a.b)\n\n[^1]: n": `<p>a${note(1)} <code>[^1]</code> [^1] [^2] <a href="https://a.b">l [^1]</a></p>${notes("n")}`,
    "a[^1]\n[^1]: b[^2]\n[^2]: c\n- d": `<p>a${note(1)}</p><ul><li>d</li></ul>${notes(`b${note(2)}`, "c")}`,
    "```\n[^1]: x\n```\n[^1]: y": '<div class="codebox"><div class="codehead"><span>text</span><button type="button" class="quiet" data-act="copy-code">copy</button></div><pre tabindex="0"><code>[^1]: x</code></pre></div><div class="footnotes"><ol><li data-note="1" tabindex="-1">y</li></ol></div>',
  });
  const table = undirected(await htmlOf(page, "| a | b |\n|---|---|\n| x<br>y | `p \\| q` \\| r |"));
  assert.match(table, /<td>x<br>y<\/td><td><code>p \| q<\/code> \| r<\/td>/);
}

/** Nothing that a model says becomes a tag, an attribute or a script of its own. */
async function hostile(page) {
  const texts = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "[x](javascript:alert(1))", "[x](https://a\" onmouseover=\"alert(1))", "![x](https://a.b/c.png)",
    "`</code><script>alert(1)</script>`", "```\n</pre><script>alert(1)</script>\n```", "```\"><img src=x>\nx\n```", "| <b> |\n|---|\n| <i onclick=x> |",
    "**<svg onload=alert(1)>**", "\u00000\u0000 `a`", "> > > > > > > > > > > deep", "- ".repeat(200), "*".repeat(5000), "_a".repeat(2000), "[".repeat(3000),
    '$a" onclick="x$', '$a \\(b" onclick="x\\) c$', '`a` $`b` "x$', '[a $"x" onclick=y$](https://a.b)', 'https://a.b/"onclick=x', 'https://a.b/`c`d', "<https://a.b/`c`\" onclick=x>", '$$\n" onclick="x\n$$', '```js\n`</code><img src=x>${"\n```', '```html\n<img src=x onerror=alert(1)>\n```', "$".repeat(3000), "\\(".repeat(2000), "https://".repeat(500), "```rust\n" + "'".repeat(5000) + "\n```", "| a |\n|:-:|\n| \\| <img src=x> |",
    '[x](https://a.b "t" onclick="x")', '[x](https://a.b \'" onclick="y\')', '[x](<https://a.b"onclick=x>)', '[x](https://a.b/" onclick=")', '[x][1]\n\n[1]: https://a.b "t&quot; onclick=&quot;x"', "[x][1]\n\n[1]: javascript:alert(1)", '[1]: https://a.b"onclick=x\n\n[1]', "&#60;script&#62;alert(1)&lt;/script&gt;", "[x](https&#58;//a.b) [x](java&#115;cript:alert(1))", "<br onclick=x> <br/onclick=x>", "`` </code><b> ``", "x \\[\n<img src=x>\n\\]", "<b>\n===", "a\n\n    <b>x</b>", "*[a*](https://a.b)*", "- \t<b>\n\t- <i>", '[^"onclick=x] <b>\n\n[^"onclick=x]: <img src=x onerror=alert(1)>',
  ];
  const tags = await page.evaluate(async (texts) => {
    const { markdown } = await import("/page/markdown.js");
    return texts.map((text) => {
      const document_ = new DOMParser().parseFromString(markdown(text), "text/html");
      const odd = [...document_.querySelectorAll("script, img, svg, iframe, object, link, style, form, b, i")].map((e) => e.outerHTML);
      for (const element of document_.querySelectorAll("*")) {
        for (const { name, value } of element.attributes) {
          if (name.startsWith("on") || name === "style" || (name === "href" && !/^(https?:|mailto:)/.test(value))) odd.push(`${name}=${value}`);
        }
      }
      return odd;
    });
  }, texts);
  assert.deepEqual(tags, texts.map(() => []));
}

/** Texts that repeat one mark take linear time: an answer is drawn again for every token. */
async function linear(page) {
  const marks = ["*a ", "a* ", "_a", "*a_b ", "***a** ", "[", "[a](", "[[a](https://b)", "`", "`a ``", "\\(", "\\[\n", "\\(`", "$a ", "a $$\n", "https://a) ", "<https://", "&", "# ", "#", "- ", "- a\n", "| a ", "| a |\n", "[a]: https://b \"", "a\n===\n", "a\n\n    b\n\n", "[^a", "[^a]: b\n", "[^a]", "[^a]: [^a]\n\n  c\n\n"];
  const slow = await page.evaluate(async (marks) => {
    const { markdown } = await import("/page/markdown.js");
    const time = (text) => {
      const start = performance.now();
      markdown(text);
      return performance.now() - start;
    };
    // Quadratic time would take minutes here.
    return marks.filter((mark) => time(mark.repeat(100_000 / mark.length)) > 3000);
  }, marks);
  assert.deepEqual(slow, []);
}

async function calculator(page) {
  const value = (text) => page.evaluate(async (text) => {
    const { calculate } = await import("/page/tools.js");
    try {
      return calculate(text);
    } catch (error) {
      return error.message;
    }
  }, text);
  const sums = { "17 + 25": 42, "2 * (3 + 4) - 1": 13, "-2 ^ 2": -4, "2 ** 3 ** 2": 512, "7 % 4 × 2": 6, "0.1 + 0.2": 0.3, ".5 / 2": 0.25, "1e3 - 1": 999 };
  for (const [text, result] of Object.entries(sums)) assert.equal(await value(text), result, text);
  for (const bad of ["", "1 +", "(1", "1 2", "alert(1)", "2)"]) assert.equal(typeof (await value(bad)), "string", bad);
}

async function tree(page) {
  const seen = await page.evaluate(async () => {
    const { Tree } = await import("/page/tree.js");
    const tree = new Tree();
    const say = (content) => ({ role: "user", content });
    const said = (of = tree) => of.path().map((node) => node.message.content);
    const a = tree.add(0, say("a")), b = tree.add(a.id, say("b"));
    tree.add(b.id, say("c"));
    const other = tree.add(a.id, say("B"));
    const out = [said(), tree.place(other.id)];
    tree.turn(other.id, 1);
    out.push(said());
    const again = Tree.from(JSON.parse(JSON.stringify(tree)));
    out.push(said(again), again.upTo(other.id).map((node) => node.message.content));
    tree.remove(b.id);
    out.push(said(), tree.nodes.size);
    return out;
  });
  assert.deepEqual(seen, [["a", "B"], [1, 2], ["a", "b", "c"], ["a", "b", "c"], ["a", "B"], ["a", "B"], 3]);
}

/** What the card and the empty state say of models that are not built in. */
async function model(page) {
  const say = (facts) => page.evaluate(async (facts) => {
    const { Model } = await import("/page/model.js");
    const model = new Model();
    model.facts = facts;
    return { strengths: model.strengths(), card: Object.fromEntries(model.card()), welcome: model.welcome() };
  }, facts);
  const meta = { n_params: 7.6e9, size: 4.7e9, quantization: "Q4_K", format: "gguf", architecture: "qwen2", n_vocab: 152064, tools: true, reasoning: true, chat_template: true };
  const { strengths, card, welcome } = await say({ id: "<i>coder</i>", root: "x", max_model_len: 32768, meta });
  assert.equal(strengths, "Good at general chat, summaries, short code and structured output. It reasons before it answers, and calls tools.");
  assert.deepEqual(card, { Type: "qwen2", Size: "7.6 billion parameters", Weights: "Q4_K, 4.7 GB, gguf", Context: "32,768 tokens", Vocabulary: "152,064 tokens", Supports: "chat, tool calls, reasoning, structured output" });
  assert.ok(!welcome.includes("<i>") && welcome.includes("palindrome"), "a name is text, and coders get tasks of code");
  assert.match((await say({ id: "base", max_model_len: 10, meta: { chat_template: false } })).strengths, /cannot chat/);
  // A server that says nothing of its model, such as an older one.
  assert.deepEqual((await say({ id: "x", max_model_len: 10 })).card, { Context: "10 tokens", Supports: "structured output" });
}
