// The replicas over time, with `--dp`: queue, running requests, K/V use, prefix hits, and the state of each process.
//
// The figures are polled while the view is visible. The replica that is chosen here is the one whose steps are drawn.

import { get } from "/page/api.js";
import { link } from "/page/link.js";

const PERIOD = 1000; // ms between polls
const KEEP = 300; // samples that are drawn, at most
const LEAST = 60; // samples that the axis has room for, at least
const WINDOW = 10; // samples that a hit rate is taken over
const HEIGHT = 100; // of a plot, in its own units

/** Figures of a replica at a time. `null`: its process was not there. */
function sample(replica) {
  const slots = Math.max(1, replica.kv_slots);
  const isUp = replica.phase === "ready" || replica.phase === "drained";
  return {
    phase: replica.phase, restarts: replica.restarts, isUp,
    waiting: isUp ? replica.waiting : null, running: isUp ? replica.running : null,
    held: isUp && replica.kv_slots ? replica.kv_held / slots : null, cached: isUp && replica.kv_slots ? replica.kv_cached / slots : null,
    queries: replica.prefix_queries, hits: replica.prefix_hits,
  };
}

/** Share of prompt tokens that were found, over the samples before one; `null` if none were looked up. */
function hitRate(samples, at) {
  const now = samples[at], before = samples[Math.max(0, at - WINDOW)];
  // A new process counts from 0.
  const from = before && now && before.restarts === now.restarts ? before : { queries: 0, hits: 0 };
  const queries = (now?.queries ?? 0) - from.queries;
  return queries > 0 ? (now.hits - from.hits) / queries : null;
}

const count = (n) => (n == null ? "–" : Math.round(n).toLocaleString("en-US"));
const percent = (share) => (share == null ? "–" : `${Math.round(100 * share)} %`);

/** The path of an area under values from 0 to `most`; gaps where there is none. */
function area(values, most) {
  let path = "", open = false;
  values.forEach((value, i) => {
    if (value == null) {
      if (open) path += `V${HEIGHT}Z`;
      open = false;
      return;
    }
    const y = (HEIGHT * (1 - Math.min(1, value / most))).toFixed(1);
    path += open ? `H${i}V${y}` : `M${i} ${HEIGHT}V${y}`;
    path += `H${i + 1}`;
    open = true;
  });
  return open ? `${path}V${HEIGHT}Z` : path;
}

/** Spans of samples in which `is` holds, as `[from, to]`. */
function spans(samples, is) {
  const found = [];
  samples.forEach((one, i) => {
    if (!one || !is(one)) return;
    const last = found.at(-1);
    if (last && last[1] === i) last[1] = i + 1;
    else found.push([i, i + 1]);
  });
  return found;
}

const COLUMNS = [
  { name: "waiting", title: "Waiting", of: (samples) => [["waiting", samples.map((one) => one?.waiting)]], shown: count },
  { name: "running", title: "Running", of: (samples) => [["running", samples.map((one) => one?.running)]], shown: count },
  {
    name: "pool", title: "Pool", most: 1, shown: percent,
    of: (samples) => [["held", samples.map((one) => one?.held)], ["cached", samples.map((one) => (one?.held == null ? null : one.held + one.cached))]],
  },
  { name: "hits", title: "Prefix hits", most: 1, of: (samples) => [["hits", samples.map((one, i) => (one ? hitRate(samples, i) : null))]], shown: percent },
];

/** Fires `choose` with `{replica}`. */
export class FleetView extends EventTarget {
  constructor(root) {
    super();
    Object.assign(this, { root, table: root.querySelector("tbody"), note: root.querySelector(".note"), samples: [], rows: [], chosen: 0, isShown: false });
    this.table.addEventListener("click", (e) => {
      const button = e.target.closest("button[data-replica]");
      if (button) this.choose(Number(button.dataset.replica));
    });
  }

  /** A server with this many replicas; 0 for an engine in the server's process. */
  begin(replicas, chosen) {
    this.root.hidden = !replicas;
    this.chosen = chosen;
    if (this.rows.length !== replicas) {
      this.samples = Array.from({ length: replicas }, () => []);
      this.table.innerHTML = this.samples.map((_, i) => this.rowHtml(i)).join("");
      this.rows = [...this.table.rows];
    }
    this.mark();
    if (replicas) this.poll();
  }

  rowHtml(i) {
    const plots = COLUMNS.map(({ name }) => `<td class="${name}"><svg viewBox="0 0 ${LEAST} ${HEIGHT}" preserveAspectRatio="none" role="img" aria-label=""><g></g></svg><output></output></td>`);
    return `<tr><th scope="row"><button type="button" data-replica="${i}" aria-pressed="false">replica ${i}</button></th><td class="state"><span></span></td>${plots.join("")}<td class="restarts"></td></tr>`;
  }

  choose(replica) {
    if (replica === this.chosen) return;
    this.chosen = replica;
    this.mark();
    this.dispatchEvent(new CustomEvent("choose", { detail: { replica } }));
  }

  mark() {
    this.rows.forEach((row, i) => row.querySelector("button").setAttribute("aria-pressed", i === this.chosen));
  }

  /** Shows or hides the view. */
  watch(shown) {
    this.isShown = shown;
    if (shown && this.rows.length) this.poll();
  }

  /** Polls while the view is visible; one loop at a time. */
  async poll() {
    if (this.isPolling) return;
    this.isPolling = true;
    while (this.isShown && this.rows.length) {
      const begun = performance.now();
      try {
        if (link.up) this.take(await get("/v1/admin/replicas"));
      } catch (error) {
        if (error.status === 401 || error.status === 403) {
          this.root.classList.add("refused");
          this.note.textContent = "This key does not open the figures of the replicas.";
          break;
        }
      }
      await new Promise((done) => setTimeout(done, Math.max(0, PERIOD - (performance.now() - begun))));
    }
    this.isPolling = false;
  }

  take({ data, routing }) {
    if (data.length !== this.rows.length) return;
    this.root.classList.remove("refused");
    data.forEach((replica, i) => {
      const samples = this.samples[i];
      samples.push(sample(replica));
      if (samples.length > KEEP) samples.shift();
    });
    const { route, kv_events } = routing;
    const minutes = (this.span * PERIOD) / 60_000;
    this.note.textContent = `Routed by ${route === "prefix" && !kv_events ? "session and load: the caches report no prefixes" : route}. The last ${minutes < 2 ? `${Math.round(60 * minutes)} s` : `${minutes.toFixed(0)} minutes`}.`;
    this.draw(data);
  }

  /** Samples on the axis. */
  get span() {
    return Math.max(LEAST, ...this.samples.map((samples) => samples.length));
  }

  draw(data) {
    const { span } = this;
    // Replicas share an axis, so that their queues can be compared.
    const most = Object.fromEntries(["waiting", "running"].map((name) => [name, Math.max(1, ...this.samples.flat().map((one) => one[name] ?? 0))]));
    for (const small of this.root.querySelectorAll("[data-most]")) small.textContent = `up to ${count(most[small.dataset.most])}`;
    data.forEach((replica, i) => {
      const row = this.rows[i], samples = this.samples[i];
      const padded = [...Array(span - samples.length).fill(null), ...samples];
      const marks = this.marks(padded);
      const state = row.querySelector(".state span");
      state.textContent = replica.phase;
      state.dataset.phase = replica.phase;
      row.title = replica.last_exit ? `its last process ended: ${replica.last_exit}` : "";
      row.querySelector(".restarts").textContent = `${replica.restarts}${replica.hangs ? ` (${replica.hangs} hung)` : ""}`;
      for (const { name, title, most: top = most[name], of, shown } of COLUMNS) {
        const cell = row.querySelector(`.${name}`), series = of(padded);
        const areas = series.map(([kind, values]) => `<path class="${kind}" d="${area(values, top)}"/>`).reverse();
        cell.querySelector("g").innerHTML = marks.down + areas.join("") + marks.restarts;
        const now = series[0][1].at(-1);
        cell.querySelector("output").textContent = shown(now);
        cell.querySelector("svg").setAttribute("viewBox", `0 0 ${span} ${HEIGHT}`);
        cell.querySelector("svg").setAttribute("aria-label", `${title} of replica ${i}: ${shown(now)} now, at most ${shown(Math.max(0, ...series[0][1].filter((value) => value != null)))}`);
      }
    });
  }

  /** Times without a process, times in which it was drained, and ends of processes. */
  marks(samples) {
    const shades = (name, is) => spans(samples, is).map(([from, to]) => `<rect class="${name}" x="${from}" y="0" width="${to - from}" height="${HEIGHT}"/>`);
    const down = [...shades("down", (one) => !one.isUp), ...shades("drained", (one) => one.phase === "drained")];
    const restarts = samples.flatMap((one, i) => (one && samples[i - 1] && one.restarts > samples[i - 1].restarts ? [`<path class="restart" d="M${i} 0V${HEIGHT}"/>`] : []));
    return { down: down.join(""), restarts: restarts.join("") };
  }
}
