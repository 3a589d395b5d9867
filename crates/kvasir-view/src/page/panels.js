// The queue, the prompts being computed and the sequences being decoded: a bar per request, in tokens.

const MOST_ROWS = 200;

/** One stretch of a bar, from token `a` to `b`. */
function stretch(kind, a, b, axis, title = "") {
  if (b <= a || a >= axis) return "";
  const left = (100 * a) / axis, width = (100 * (Math.min(b, axis) - a)) / axis;
  return `<i class="${kind}" style="left:${left.toFixed(3)}%;width:${width.toFixed(3)}%" title="${escapeHtml(title || `${kind} ${b - a}`)}"></i>`;
}

function chip(r) {
  return `<a class="chip" data-request="${r.id}" style="--hue:${hue(r.id)}">${escapeHtml(r.name)}</a>`;
}

/** Tokens that the axis of the bars spans. */
function axisOf(model) {
  const { max_model_len: longest, block_size: block } = model.setup;
  const used = Math.ceil(model.maxTokens / block) * block;
  return longest && longest <= 2 * used ? longest : Math.max(used, block);
}

/** Grid lines: a faint one per block, a strong one per chunk, as few as can be told apart. */
function grid(setup, axis) {
  let block = Math.max(setup.block_size, 1);
  while (axis / block > 64) block *= 4;
  const chunk = setup.chunk_size && axis / setup.chunk_size <= 64 ? setup.chunk_size : 0;
  const style = [`--block:${((100 * block) / axis).toFixed(4)}%`];
  if (chunk) style.push(`--chunk:${((100 * chunk) / axis).toFixed(4)}%`);
  return style.join(";");
}

function ruler(axis) {
  const marks = [];
  const step = niceStep(axis / 6);
  for (let at = 0; at < axis * 0.86; at += step) marks.push(`<b style="left:${(100 * at) / axis}%">${count(at)}</b>`);
  return `<div class="ruler">${marks.join("")}<b class="end" style="left:100%">${count(axis)}</b></div>`;
}

function niceStep(rough) {
  const size = 2 ** Math.floor(Math.log2(Math.max(rough, 1)));
  return rough / size > 1.5 ? size * 2 : size;
}

function more(n) {
  return n > 0 ? `<p class="more">and ${count(n)} more (the table has them)</p>` : "";
}

/** Those who wait, with the reason. */
function drawQueue(state, model) {
  const ids = state.queue.filter((id) => state.reqs.has(id));
  const axis = axisOf(model);
  const rows = ids.slice(0, MOST_ROWS).map((id) => {
    const r = state.reqs.get(id);
    const known = r.prompt + r.outputs;
    const bar = stretch("todo", 0, known, axis, `prompt ${r.prompt}${r.outputs ? `, generated ${r.outputs}` : ""}`) +
      stretch("reserve", known, r.prompt + r.max, axis, `up to ${r.max} tokens to generate`);
    const why = r.ended ? `<em class="ended">${escapeHtml(formatEnd(r.ended))}</em>` : `<em>${escapeHtml(formatReason(r.reason))}</em>`;
    const back = r.preemptions ? `<span class="tag warn">preempted ${r.preemptions}×</span>` : "";
    return `<div class="row">${chip(r)}<div class="why">${why}${back}</div><div class="bar thin" style="${grid(model.setup, axis)}">${bar}</div><span class="num">${count(r.prompt)} + ${count(r.max)}</span></div>`;
  });
  return { count: ids.length, html: rows.join("") + more(ids.length - rows.length) || `<p class="none">queue empty</p>` };
}

/** The reason of a short prefix hit; empty for other hits. */
function formatShortHit({ hit, short }) {
  if (!short) return "";
  const matched = short.matched > hit ? ` (${count(short.matched)} matched)` : "";
  return `${titled(short.reason)}${matched}`;
}

/** The stretch of the cached tokens of a request, `tokens` of which are shown. */
function cachedStretch(r, start, tokens, axis) {
  const why = formatShortHit(r);
  return stretch("cached", start, start + tokens, axis, `found in the cache ${tokens}${why && `, ${why}`}`);
}

/** The stretches of a prompt: padding, cached, redirected, done, current, to come. */
function promptBar(r, setup, axis) {
  const block = setup.block_size;
  const start = r.left * block;
  const row = r.row;
  const total = r.prompt;
  const from = row ? row.from : r.computed;
  const to = row ? row.from + row.tokens : r.computed;
  const fresh = row ? from + row.redirected : from;
  const right = setup.rectangular ? Math.ceil(total / block) * block : total;
  return stretch("pad", 0, start, axis, `left padding ${start}`) +
    cachedStretch(r, start, Math.min(r.hit, from), axis) +
    stretch("done", start + Math.min(r.hit, from), start + from, axis, `computed ${from - Math.min(r.hit, from)}`) +
    stretch("redirected", start + from, start + fresh, axis, `computed again, writes redirected: ${fresh - from}`) +
    stretch("now", start + fresh, start + to, axis, `in this step ${to - fresh}`) +
    stretch("todo", start + to, start + total, axis, `to come ${total - to}`) +
    stretch("pad", start + total, start + right, axis, `right padding ${right - total}`) +
    (row ? frame(start + from, setup.rectangular && to >= total ? start + right : start + to, axis) : "");
}

function frame(a, b, axis) {
  return `<i class="frame" style="left:${(100 * a) / axis}%;width:${(100 * (Math.min(b, axis) - a)) / axis}%"></i>`;
}

function drawPrefill(state, model) {
  const ids = state.running.filter((id) => isPrefilling(state.reqs.get(id)));
  const axis = axisOf(model);
  const rows = ids.slice(0, MOST_ROWS).map((id) => {
    const r = state.reqs.get(id);
    const why = r.row ? `<em class="ran">${plural(r.row.tokens, "token")} now${r.row.redirected ? `, ${count(r.row.redirected)} of them again` : ""}</em>` : `<em>${escapeHtml(formatReason(r.reason))}</em>`;
    return `<div class="row${r.row ? "" : " held"}">${chip(r)}<div class="why">${why}</div><div class="bar" style="${grid(model.setup, axis)}">${promptBar(r, model.setup, axis)}</div><span class="num">${count(Math.min(r.computed, r.prompt))} / ${count(r.prompt)}</span></div>`;
  });
  const ran = ids.some((id) => state.reqs.get(id).row);
  return { count: ids.length, ran, html: rows.length ? rows.join("") + more(ids.length - rows.length) + axisRow(axis) : `<p class="none">no prompt in prefill</p>` };
}

const axisRow = (axis) => `<div class="row axis"><span></span><span></span>${ruler(axis)}<span></span></div>`;

function drawDecode(state, model, before) {
  const { setup } = model;
  const ids = state.running.filter((id) => !isPrefilling(state.reqs.get(id)));
  const axis = axisOf(model);
  const rect = rectangle(state, setup);
  const rows = ids.slice(0, MOST_ROWS).map((id) => {
    const r = state.reqs.get(id);
    return decodeRow(r, before.reqs.get(id), rect, setup, axis);
  });
  const ran = ids.some((id) => state.reqs.get(id).row);
  const overlay = setup.rectangular && rect.volume ? volumeBox(rect, setup, axis) : "";
  const html = rows.length
    ? `<div class="rows">${rows.join("")}${overlay}</div>` + more(ids.length - rows.length) + axisRow(axis)
    : `<p class="none">no request decodes</p>`;
  return { count: ids.length, ran, html: html + drawProjection(state, model), rect };
}

function decodeRow(r, old, rect, setup, axis) {
  const start = r.left * setup.block_size;
  const known = start + r.prompt + r.outputs;
  const tkv = rect.rows.get(r.id);
  // Rejected drafts are no output.
  const newest = r.row ? Math.max(1, r.row.tokens - r.row.drafts + (r.tree?.accepted?.length ?? 0)) : 0;
  const bar = stretch("pad", 0, start, axis, `left padding ${start}`) +
    cachedStretch(r, start, r.hit, axis) +
    stretch("done", start + r.hit, start + r.prompt, axis, `prompt ${r.prompt}`) +
    stretch("made", start + r.prompt, known, axis, `generated ${r.outputs}`) +
    (r.row ? stretch("now", known - newest, known, axis, "the newest") : "") +
    stretch("reserve", known, start + r.prompt + r.max, axis, `may still generate ${r.max - r.outputs}`) +
    (setup.rectangular && tkv ? `<i class="tkv${tkv === rect.widest ? " widest" : ""}" style="left:${(100 * tkv) / axis}%" title="tkv ${tkv}"><b>${tkv}</b></i>` : "");
  let note = r.ended ? `<em class="ended">${escapeHtml(formatEnd(r.ended))}</em>`
    : r.tree ? "" : r.row ? (r.row.drafts ? `<em class="ran">${plural(r.row.drafts, "draft")}</em>` : "") : `<em>${escapeHtml(formatReason(r.reason))}</em>`;
  if (r.tree) note += `<em class="ran">${formatTree(r.tree)}</em>`;
  if (old?.row && r.row && old.left !== r.left && old.status === "running" && !isPrefilling(old)) {
    const by = (r.left - old.left) * setup.block_size;
    note += `<span class="tag jump">${by > 0 ? "▶ +" : "◀ −"}${Math.abs(by)}</span>`;
  }
  return `<div class="row${r.row || r.ended ? "" : " held"}">${chip(r)}<div class="why">${note}</div><div class="bar" style="${grid(setup, axis)}">${bar}</div><span class="num">${count(r.outputs)} of ${count(r.max)}</span>${r.tree ? drawTree(r.tree) : ""}</div>`;
}

/** The rectangle that all rows are padded to, and how wide it may become. */
function volumeBox(rect, setup, axis) {
  const n = rect.rows.size;
  const limit = setup.max_batch_tkv;
  const bound = limit ? limit / n : null;
  const mark = bound && bound <= axis ? `<i class="bound" style="left:${(100 * bound) / axis}%"><b>bound ${Math.floor(bound)}</b></i>` : "";
  return `<div class="volume"><i class="box" style="width:${(100 * Math.min(rect.widest, axis)) / axis}%"></i>${mark}</div>`;
}

/** What the volume test saw: everybody at the length it may grow to, the longest on top, and for each the bound there is with so many rows. */
function drawProjection(state, model) {
  const { setup } = model;
  const [id, mine, others] = state.step?.projection ?? [];
  if (!setup.rectangular || mine == null) return "";
  const limit = setup.max_batch_tkv;
  const ends = [...others.map((end) => ({ end })), { end: mine, isNew: true }].sort((a, b) => b.end - a.end);
  const axis = Math.max(axisOf(model), ends[0].end);
  const tested = (at) => ends[at].end <= mine;
  let worst = 0, over = -1;
  const rows = ends.slice(0, MOST_ROWS).map(({ end, isNew }, at) => {
    const n = at + 1, bound = limit / n;
    if (tested(at)) worst = Math.max(worst, n * end);
    const isOver = tested(at) && n * end > limit;
    if (isOver) over = at;
    const mark = limit && bound <= axis ? `<i class="bound" style="left:${(100 * bound) / axis}%" title="${count(limit)} ÷ ${n} = ${Math.floor(bound)}"></i>` : "";
    const bar = stretch(isNew ? "now" : "reserve", 0, end, axis, `would end at ${end}`) + mark;
    return `<div class="row${isOver ? " over" : ""}"><span class="times">${n} ×</span><div class="bar thin" style="${grid(setup, axis)}">${bar}</div><span class="num">${count(n * end)}</span></div>`;
  });
  const name = state.reqs.get(id)?.name ?? id;
  const verdict = over >= 0 ? `would be exceeded: ${count(worst)}` : `is kept: ${count(worst)} at most`;
  return `<div class="projection"><h3>If ${escapeHtml(name)} joins, the volume ${verdict} of ${count(limit)}</h3>${rows.join("")}${more(ends.length - rows.length)}</div>`;
}

/** The same values as a table. */
function drawTable(state, model) {
  const { setup } = model;
  const rect = rectangle(state, setup);
  const head = ["request", "state", "in this step", "why it waits", "why its cache hit ended", "drafts accepted", "prompt", "cached", "redirected", "computed", "generated", "limit", "left padding", "tkv", "blocks"];
  const body = [...state.reqs.values()].slice(0, 1000).map((r) => {
    const what = r.ended ? `ended: ${formatEnd(r.ended)}` : r.status === "waiting" ? "waiting" : isPrefilling(r) ? "prefill" : "decode";
    const now = r.row ? `${r.row.phase ? "decode" : "prefill"} ${r.row.tokens} at ${r.row.from}` : "";
    const blocks = runs(r.table);
    return [r.name, what, now, r.ended ? "" : formatReason(r.reason), formatShortHit(r), r.tree?.accepted ? `${r.tree.accepted.length} of ${r.tree.parents.length}` : "", r.prompt, r.hit, r.redirected, r.computed, r.outputs, r.max, r.left * setup.block_size, rect.rows.get(r.id) ?? "", blocks];
  });
  const cells = (row, tag) => `<tr>${row.map((v) => `<${tag}>${escapeHtml(v)}</${tag}>`).join("")}</tr>`;
  return `<table><thead>${cells(head, "th")}</thead><tbody>${body.map((row) => cells(row, "td")).join("")}</tbody></table>`;
}

/** Block ids with runs written as first–last. */
function runs(table) {
  const out = [];
  for (let i = 0; i < table.length; ) {
    let j = i;
    while (j + 1 < table.length && table[j + 1] === table[j] + 1) j++;
    out.push(j > i + 1 ? `${table[i]}–${table[j]}` : j > i ? `${table[i]} ${table[j]}` : table[i]);
    i = j + 1;
  }
  return out.join(" ");
}
