// Puts the panels together and moves through the steps.

/** Colors that canvases need, read from the style sheet so that there is one place for them. */
function canvasColors() {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue(name).trim();
  return {
    ink: get("--ink"), faint: get("--faint"), line: get("--line"), paper: get("--paper"), accent: get("--accent"),
    track: get("--track"), sat: get("--sat"), light: get("--light"), promised: get("--promised"),
    use: [get("--free"), get("--cached"), get("--held"), get("--leased"), get("--dummy")],
    kind: { prefill: get("--prefill"), decode: get("--decode"), mixed: get("--mixed"), dummy: get("--dummy"), idle: get("--idle") },
  };
}

const SKELETON = `
<header><div><h1></h1><p class="setup"></p></div><button class="theme" title="dark or light (t)" aria-label="dark or light">◐</button></header>
<nav class="transport" aria-label="steps">
  <div class="buttons"><button data-go="start" aria-label="first step" title="first step (Home)">|◀</button><button data-go="back" aria-label="one step back" title="one step back (←)">‹</button><button data-go="play" aria-label="play or pause" class="play" title="play or pause (space)">▶</button><button data-go="next" aria-label="one step on" title="one step on (→)">›</button><button data-go="end" aria-label="last step" title="last step (End)">▶|</button>
  <select class="speed" title="steps per second" aria-label="steps per second"><option>1</option><option selected>4</option><option>15</option><option>60</option></select></div>
  <div class="where"><strong class="kind"></strong> <span class="at"></span></div>
  <input type="range" class="slider" min="0" value="0" aria-label="step">
  <div class="plot"><canvas class="strip" role="img" aria-label="steps of the run"></canvas></div>
</nav>
<div class="panels">
  <section class="queue"><h2>Queue <small></small></h2><div class="body" tabindex="0"></div></section>
  <section class="prefill"><h2>Prefill <small></small></h2><div class="body" tabindex="0"></div></section>
  <section class="decode"><h2>Decode <small></small></h2><div class="body" tabindex="0"></div><p class="rect"></p></section>
  <p class="legend bars"><span class="key pad">padding</span><span class="key cached">cached</span><span class="key redirected">again, write redirected</span><span class="key done">done</span><span class="key now">current</span><span class="key todo">to come</span><span class="key made">generated</span><span class="key reserve">may still generate</span></p>
  <p class="legend trees" hidden><span class="key proposed">draft in verification</span><span class="key accepted">accepted</span><span class="key rejected">rejected</span></p>
  <section class="memory"><h2>Memory <small></small></h2><div class="pool"></div><div class="plot"><canvas class="map" role="img" aria-label="blocks of the cache"></canvas></div><p class="tip" aria-live="polite"></p></section>
  <section class="lives"><h2>Waterfall <small><span class="key queued">queued</span> <span class="key prefilling">prefill</span> <span class="key decoding">decode</span></small></h2><div class="plot"><canvas class="waterfall" role="img" aria-label="requests over time"></canvas></div></section>
  <section class="numbers"><h2>The run</h2><dl></dl><div class="report"></div><div class="plots"></div></section>
  <section class="replicas" hidden><h2>Replicas over time <small></small></h2><div class="maps"></div><details><summary>Means as a table</summary><div class="scroll" tabindex="0"></div></details></section>
  <section class="values"><details><summary>All values of this step as a table</summary><div class="scroll" tabindex="0"></div></details></section>
</div>
<footer>← → step · shift 10 · Home End · space plays · t theme · the address keeps the step</footer>`;

const RUN_EVERY = 500; // ms between two drawings of a live run's rates

class View {
  /** Draws `data` into `root`; `options.follow` keeps to the newest step, `options.deep` uses the address. */
  constructor(root, data, options = {}) {
    this.root = root;
    this.options = options;
    this.model = new Model(data);
    this.index = 0;
    this.following = Boolean(options.follow);
    root.classList.add("kvasir");
    // A run that was seen from outside has figures and no steps.
    root.classList.toggle("figures", Boolean(data.report) && !data.steps.length);
    root.innerHTML = SKELETON;
    this.find = (selector) => root.querySelector(selector);
    this.map = new BlockMap(this.find(".map"), this.find(".tip"));
    this.waterfall = new Waterfall(this.find(".waterfall"), (i) => this.go(i));
    this.find("h1").textContent = this.model.title;
    this.find(".setup").innerHTML = setupChips(this.model.setup);
    this.listen();
    this.drawRun();
    this.go(options.deep === false ? 0 : this.fromAddress() ?? 0);
  }

  /** Takes one more step of a live engine. Many come between two frames: what is drawn is the newest. */
  push(step) {
    this.model.push(step);
    if (this.options.keep) this.index = Math.max(0, this.index - this.model.trim(this.options.keep));
    if (this.frame || !this.options.follow) return;
    this.frame = requestAnimationFrame((now) => {
      this.frame = 0;
      if (now - (this.ran ?? 0) > RUN_EVERY) {
        this.ran = now;
        if (this.visible) this.drawRun();
      }
      if (this.following) this.go(this.model.steps.length - 1);
    });
  }

  /** Begins anew with other data, in the same place. */
  reset(data) {
    this.model = new Model(data);
    this.following = true;
    this.find("h1").textContent = this.model.title;
    this.find(".setup").innerHTML = setupChips(this.model.setup);
    this.go(0);
  }

  /** Tells a live view whether the engine is idle: its newest step is then not what runs now. */
  rest(idle) {
    if (this.idle === idle) return;
    this.idle = idle;
    if (this.model.steps.length && this.visible) this.drawHead(this.model.state(this.index), this.index);
  }

  /** Draws all of it again, because its place has another size or other colors. */
  redraw() {
    this.drawRun();
    this.draw();
  }

  /** Nothing is drawn, and no key is meant for it, while its place is hidden. */
  get visible() {
    return this.root.offsetParent !== null;
  }

  listen() {
    this.find(".slider").addEventListener("input", (e) => this.go(Number(e.target.value)));
    this.find(".buttons").addEventListener("click", (e) => this.act(e.target.dataset?.go));
    this.find(".theme").addEventListener("click", () => this.theme());
    this.find(".strip").addEventListener("click", (e) => this.go(Math.floor((e.offsetX / e.target.clientWidth) * this.model.steps.length)));
    this.find(".values details").addEventListener("toggle", () => this.draw());
    window.addEventListener("resize", () => this.redraw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    if (this.options.deep !== false) window.addEventListener("hashchange", () => { const at = this.fromAddress(); if (at !== null && at !== this.index) this.go(at); });
    document.addEventListener("keydown", (e) => {
      if (!this.visible) return;
      if (e.target.matches?.("input:not([type=range]), textarea, select") || e.ctrlKey || e.metaKey || e.altKey) return;
      const act = { ArrowLeft: "back", ArrowRight: "next", Home: "start", End: "end", " ": "play", t: "theme" }[e.key];
      if (!act || (e.key === " " && e.target.matches?.("button, summary"))) return;
      e.preventDefault();
      this.act(act, e.shiftKey ? 10 : 1);
    });
  }

  act(what, by = 1) {
    const last = this.model.steps.length - 1;
    if (what === "play") return this.play(!this.timer);
    if (what === "theme") return this.theme();
    const to = { start: 0, end: last, back: this.index - by, next: this.index + by }[what];
    if (to === undefined) return;
    this.play(false);
    this.go(to);
  }

  play(on) {
    clearInterval(this.timer);
    this.timer = null;
    this.find(".play").textContent = on ? "⏸" : "▶";
    if (!on) return;
    if (this.index >= this.model.steps.length - 1) this.go(0);
    const rate = Number(this.find(".speed").value);
    this.timer = setInterval(() => {
      if (this.index >= this.model.steps.length - 1) this.play(false);
      else this.go(this.index + 1);
    }, 1000 / rate);
  }

  theme() {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    this.redraw();
  }

  /** Step numbers in the address count from 1 over the whole run. */
  fromAddress() {
    const found = /(?:^#|&)step=(\d+)/.exec(location.hash);
    return found ? Number(found[1]) - 1 - this.model.first : null;
  }

  go(index) {
    const last = this.model.steps.length - 1;
    this.index = Math.max(0, Math.min(last, index));
    this.following = Boolean(this.options.follow) && this.index >= last;
    this.draw();
    if (this.options.deep !== false && last >= 0 && !this.timer) history.replaceState(null, "", `#step=${this.index + 1 + this.model.first}`);
  }

  draw() {
    const { model, index } = this;
    if (!model.steps.length || !this.visible) return;
    const css = canvasColors();
    const state = model.state(index), before = model.state(index - 1);
    this.root.style.setProperty("--name", `${this.nameWidth(state)}px`);
    this.drawHead(state, index);
    const fill = (name, panel) => {
      this.find(`section.${name} .body`).innerHTML = panel.html;
      this.find(`section.${name} small`).textContent = count(panel.count);
      if (panel.ran !== undefined) this.find(`section.${name}`).classList.toggle("rests", !panel.ran && panel.count > 0);
    };
    fill("queue", drawQueue(state, model));
    fill("prefill", drawPrefill(state, model));
    const decode = drawDecode(state, model, before);
    fill("decode", decode);
    // Drafts come and go with each step; once there were some, their legend stays.
    if ([...state.reqs.values()].some((r) => r.tree)) this.find(".trees").hidden = false;
    this.find(".rect").innerHTML = rectText(decode.rect, model.setup);
    this.find(".pool").innerHTML = drawRoom(state, model);
    this.find(".memory small").textContent = `${count(model.blocks)} ${model.setup.block_size > 1 ? `blocks of ${model.setup.block_size}` : "cells"}`;
    this.map.draw(state, model, css);
    this.waterfall.draw(model, index, css);
    drawStrip(this.find(".strip"), model, index, css);
    if (this.find(".values details").open) this.find(".values .scroll").innerHTML = drawTable(state, model);
  }

  /** Width of the column of names, one for all rows, so that bars begin at the zero of their axis. It never shrinks. */
  nameWidth({ reqs }) {
    for (const { name } of reqs.values()) this.longest = Math.max(this.longest ?? 0, name.length);
    return Math.min(110, Math.max(34, 14 + 7.4 * (this.longest ?? 0)));
  }

  drawHead({ step, reqs }, index) {
    const { model } = this;
    const kind = step.step == null || (this.idle && this.following) ? "idle" : step.kind;
    const slider = this.find(".slider");
    slider.max = model.steps.length - 1;
    slider.value = index;
    const number = index + 1 + model.first, all = model.total ?? model.first + model.steps.length;
    slider.setAttribute("aria-valuetext", `step ${number} of ${all}, ${kind}`);
    const kindBox = this.find(".kind");
    kindBox.textContent = kind;
    kindBox.className = `kind ${kind}`;
    const took = model.retiredAt.get(step.step);
    const tokensAcrossDp = model.tokensAcrossDp.get(step.step);
    const fed = [...reqs.values()].filter((r) => r.row);
    const tokens = fed.reduce((sum, r) => sum + r.row.tokens, 0);
    this.find(".at").textContent = `step ${count(number)} of ${count(all)} · at ${span(step.at)}${took ? ` · ${span(took)} on the device` : ""} · ${plural(fed.length, "row")}, ${plural(tokens, "token")}${tokensAcrossDp ? ` · tokens of each engine: ${tokensAcrossDp.map((n) => n || "dummy step").join(", ")}` : ""}`;
  }

  /** What does not change from step to step. */
  drawRun() {
    const { report } = this.model;
    const css = canvasColors();
    const shown = report ? report.numbers : [];
    const isTable = this.root.classList.contains("figures");
    this.find(".report").innerHTML = isTable ? reportTables(report) : "";
    this.find("dl").innerHTML = isTable ? "" : shown.map(([name, value]) => `<div><dt>${escapeHtml(name)}</dt><dd>${escapeHtml(value)}</dd></div>`).join("");
    const plots = this.find(".plots");
    plots.innerHTML = "";
    const add = (title) => {
      const figure = document.createElement("figure");
      figure.innerHTML = `<figcaption>${title}</figcaption><div class="plot"><canvas role="img" aria-label="${title}"></canvas></div>`;
      plots.append(figure);
      return figure.querySelector("canvas");
    };
    const series = report?.series ?? seriesOf(this.model);
    const colors = [css.kind.decode, css.kind.prefill, css.use[CACHED], css.accent];
    series.forEach(({ title, unit, points }, i) => {
      if (points.length > 1) drawSeries(add(title), { points, label: unit, format: (v) => (v < 10 ? trim(v) : count(Math.round(v))), color: colors[i % 4] }, css);
    });
    const lists = (report?.percentiles ?? []).filter((l) => l.values.length > 1).map((l, i) => ({ ...l, color: colors[i % 4] }));
    if (lists.length) drawPercentiles(add("latency by percentile"), lists, css);
    this.find(".numbers").hidden = !shown.length && !plots.children.length;
    this.drawFleet(css);
  }

  /** Draws the heat maps of the replicas, if the run had several. */
  drawFleet(css) {
    const { fleet } = this.model.report ?? {};
    if (!fleet) return;
    const section = this.find(".replicas");
    section.hidden = false;
    this.fleet ??= new FleetMaps(section, fleet);
    this.fleet.draw(css);
  }
}

/** Figures of a run as tables: one value per line, and latencies by percentile. */
function reportTables({ numbers, table }) {
  const cells = (list, tag) => list.map((value) => `<${tag}>${escapeHtml(value)}</${tag.split(" ")[0]}>`).join("");
  const row = ([name, ...values]) => `<tr><th scope="row">${escapeHtml(name)}</th>${cells(values, "td")}</tr>`;
  const totals = `<table class="totals"><tbody>${numbers.map(row).join("")}</tbody></table>`;
  if (!table) return totals;
  const [, ...columns] = table.head;
  return `${totals}<div class="scroll" tabindex="0"><table class="times"><thead><tr><td></td>${cells(columns, 'th scope="col"')}</tr></thead><tbody>${table.rows.map(row).join("")}</tbody></table></div>`;
}

/** Rates from the steps themselves, if the run has no report. */
function seriesOf(model) {
  const bins = Math.min(120, Math.max(2, model.steps.length >> 2));
  const from = model.steps[0]?.at ?? 0, to = Math.max(from + 1, model.steps.at(-1)?.at ?? 1);
  const sums = Array.from({ length: bins }, () => ({ made: 0, running: 0, used: 0, n: 0 }));
  for (const step of model.steps) {
    const bin = sums[Math.min(bins - 1, Math.floor(((step.at - from) / (to - from)) * bins))];
    eachOutput(step, (_, n) => { bin.made += n; });
    bin.running += step.running ?? 0;
    bin.used += step.room ? step.room[2] + step.room[3] : 0;
    bin.n++;
  }
  const width = (to - from) / bins / 1e9;
  const points = (value) => sums.map((bin, i) => [i * width, value(bin)]);
  return [
    { title: "output tokens per second", unit: "tok/s", points: points((b) => b.made / width) },
    { title: "running requests", unit: "", points: points((b) => b.running / Math.max(1, b.n)) },
    { title: "slots in use", unit: "", points: points((b) => b.used / Math.max(1, b.n)) },
  ];
}

function setupChips(setup) {
  const names = [["policy", ""], ["cache", ""], ["device", ""], ["replicas", "replicas "], ["route", "route "], ["roles", "prefill : decode "], ["tp", "ranks "], ["failures", "failures "], ["block_size", "block "], ["chunk_size", "chunk "], ["max_model_len", "length "], ["max_num_seqs", "sequences "], ["max_num_batched_tokens", "budget "], ["max_batch_tkv", "volume "]];
  const chips = names.filter(([key]) => setup[key] != null).map(([key, word]) => `<span>${word}<b>${escapeHtml(typeof setup[key] === "number" ? count(setup[key]) : setup[key])}</b></span>`);
  for (const note of setup.notes ?? []) chips.push(`<span class="note">${escapeHtml(note)}</span>`);
  return chips.join("");
}

function rectText(rect, setup) {
  if (!setup.rectangular || !rect.volume) return "";
  const limit = setup.max_batch_tkv ? ` of <b>${count(setup.max_batch_tkv)}</b>` : "";
  return `widest tkv <b>${count(rect.widest)}</b> × ${rect.rows.size} requests = volume <b>${count(rect.volume)}</b>${limit}`;
}

globalThis.KvasirView = View;
