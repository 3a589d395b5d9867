// Time series per replica, with `--dp`: queue, running requests, KV cache usage, prefix hit rate, K/V transfers (with
// `--role`), and process state.
//
// Polls `/v1/admin/replicas` while the view is visible. The engine view draws the steps of the replica chosen here.

import { get } from "/page/api.js";
import { link } from "/page/link.js";

const POLL_INTERVAL = 1000; // ms
const MAX_SAMPLES = 300; // per replica
const MIN_SPAN = 60; // minimum length of the time axis, in samples
const RATE_WINDOW = 10; // samples per hit rate
const HEIGHT = 100; // of a plot, in SVG units

/** A sample of a replica's statistics; values are `null` while its process is down. */
function sample(replica) {
  const slots = Math.max(1, replica.kv_slots);
  const isUp = replica.phase === "ready" || replica.phase === "drained";
  return {
    phase: replica.phase, restarts: replica.restarts, isUp,
    waiting: isUp ? replica.waiting : null, running: isUp ? replica.running : null,
    held: isUp && replica.kv_slots ? replica.kv_held / slots : null, cached: isUp && replica.kv_slots ? replica.kv_cached / slots : null,
    queries: replica.prefix_queries, hits: replica.prefix_hits,
    blocks: replica.kv_transfers.sent_blocks + replica.kv_transfers.received_blocks,
  };
}

/** Prefix cache hit rate over the `RATE_WINDOW` samples before `at`; `null` without lookups. */
function hitRate(samples, at) {
  const now = samples[at], before = samples[Math.max(0, at - RATE_WINDOW)];
  // A new process counts from 0.
  const from = before && now && before.restarts === now.restarts ? before : { queries: 0, hits: 0 };
  const queries = (now?.queries ?? 0) - from.queries;
  return queries > 0 ? (now.hits - from.hits) / queries : null;
}

/** K/V blocks sent and received since the previous sample; `null` without one. */
const transferred = (samples, at) => (samples[at] && samples[at - 1] ? Math.max(0, samples[at].blocks - samples[at - 1].blocks) : null);

const count = (n) => (n == null ? "–" : Math.round(n).toLocaleString("en-US"));
const percent = (share) => (share == null ? "–" : `${Math.round(100 * share)} %`);

/** SVG path of the area under `values`, scaled from 0 to `max`; `null` values leave gaps. */
function area(values, max) {
  let path = "", open = false;
  values.forEach((value, i) => {
    if (value == null) {
      if (open) path += `V${HEIGHT}Z`;
      open = false;
      return;
    }
    const y = (HEIGHT * (1 - Math.min(1, value / max))).toFixed(1);
    path += open ? `H${i}V${y}` : `M${i} ${HEIGHT}V${y}`;
    path += `H${i + 1}`;
    open = true;
  });
  return open ? `${path}V${HEIGHT}Z` : path;
}

/** Maximal runs of samples that satisfy `predicate`, as `[from, to]`. */
function spans(samples, predicate) {
  const found = [];
  samples.forEach((one, i) => {
    if (!one || !predicate(one)) return;
    const last = found.at(-1);
    if (last && last[1] === i) last[1] = i + 1;
    else found.push([i, i + 1]);
  });
  return found;
}

const COLUMNS = [
  { name: "waiting", title: "Waiting", toSeries: (samples) => [["waiting", samples.map((one) => one?.waiting)]], format: count },
  { name: "running", title: "Running", toSeries: (samples) => [["running", samples.map((one) => one?.running)]], format: count },
  {
    name: "pool", title: "Pool", max: 1, format: percent,
    toSeries: (samples) => [["held", samples.map((one) => one?.held)], ["cached", samples.map((one) => (one?.held == null ? null : one.held + one.cached))]],
  },
  { name: "hits", title: "Prefix hits", max: 1, toSeries: (samples) => [["hits", samples.map((one, i) => (one ? hitRate(samples, i) : null))]], format: percent },
  { name: "transfers", title: "K/V blocks per second", toSeries: (samples) => [["transfers", samples.map((_, i) => transferred(samples, i))]], format: count },
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

  /** Prepares the view for this number of replicas; 0 if the engine runs in the server's process. */
  begin(replicas, chosen) {
    this.root.hidden = !replicas;
    this.chosen = chosen;
    if (this.rows.length !== replicas) {
      this.samples = Array.from({ length: replicas }, () => []);
      this.table.innerHTML = this.samples.map((_, i) => this.rowHtml(i)).join("");
      this.rows = [...this.table.rows];
    }
    this.markChosen();
    if (replicas) this.poll();
  }

  rowHtml(i) {
    const plots = COLUMNS.map(({ name }) => `<td class="${name}"><svg viewBox="0 0 ${MIN_SPAN} ${HEIGHT}" preserveAspectRatio="none" role="img" aria-label=""><g></g></svg><output></output></td>`);
    return `<tr><th scope="row"><button type="button" data-replica="${i}" aria-pressed="false">replica ${i}</button></th><td class="state"><span></span></td>${plots.join("")}<td class="restarts"></td></tr>`;
  }

  choose(replica) {
    if (replica === this.chosen) return;
    this.chosen = replica;
    this.markChosen();
    this.dispatchEvent(new CustomEvent("choose", { detail: { replica } }));
  }

  markChosen() {
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
        if (link.up) this.update(await get("/v1/admin/replicas"));
      } catch (error) {
        if (error.status === 401 || error.status === 403) {
          this.root.classList.add("refused");
          this.note.textContent = "This API key has no access to the replicas.";
          break;
        }
      }
      await new Promise((done) => setTimeout(done, Math.max(0, POLL_INTERVAL - (performance.now() - begun))));
    }
    this.isPolling = false;
  }

  update({ data, routing }) {
    if (data.length !== this.rows.length) return;
    this.root.classList.remove("refused");
    this.root.classList.toggle("roles", data.some(({ role }) => role !== "both"));
    data.forEach((replica, i) => {
      const samples = this.samples[i];
      samples.push(sample(replica));
      if (samples.length > MAX_SAMPLES) samples.shift();
    });
    const { route, kv_events } = routing;
    const minutes = (this.span * POLL_INTERVAL) / 60_000;
    this.note.textContent = `Routed by ${route === "prefix" && !kv_events ? "session and load: the caches report no KV events" : route}. The last ${minutes < 2 ? `${Math.round(60 * minutes)} s` : `${minutes.toFixed(0)} minutes`}.`;
    this.draw(data);
  }

  /** Length of the time axis, in samples. */
  get span() {
    return Math.max(MIN_SPAN, ...this.samples.map((samples) => samples.length));
  }

  draw(data) {
    const { span } = this;
    // Replicas share an axis, so that their queues can be compared.
    const shared = Object.fromEntries(["waiting", "running"].map((name) => [name, Math.max(1, ...this.samples.flat().map((one) => one[name] ?? 0))]));
    shared.transfers = Math.max(1, ...this.samples.flatMap((samples) => samples.map((_, i) => transferred(samples, i) ?? 0)));
    for (const small of this.root.querySelectorAll("[data-max]")) small.textContent = `up to ${count(shared[small.dataset.max])}`;
    data.forEach((replica, i) => {
      const row = this.rows[i], samples = this.samples[i];
      const padded = [...Array(span - samples.length).fill(null), ...samples];
      const marks = this.marks(padded);
      const state = row.querySelector(".state span");
      state.textContent = replica.role === "both" ? replica.phase : `${replica.phase}, ${replica.role}`;
      state.dataset.phase = replica.phase;
      row.title = replica.last_exit ? `its last process ended: ${replica.last_exit}` : "";
      row.querySelector(".restarts").textContent = `${replica.restarts}${replica.hangs ? ` (${replica.hangs} hung)` : ""}`;
      for (const { name, title, max = shared[name], toSeries, format } of COLUMNS) {
        const cell = row.querySelector(`.${name}`), series = toSeries(padded);
        const areas = series.map(([kind, values]) => `<path class="${kind}" d="${area(values, max)}"/>`).reverse();
        cell.querySelector("g").innerHTML = marks.down + areas.join("") + marks.restarts;
        const now = series[0][1].at(-1);
        cell.querySelector("output").textContent = format(now);
        cell.querySelector("svg").setAttribute("viewBox", `0 0 ${span} ${HEIGHT}`);
        cell.querySelector("svg").setAttribute("aria-label", `${title} of replica ${i}: ${format(now)} now, at most ${format(Math.max(0, ...series[0][1].filter((value) => value != null)))}`);
      }
    });
  }

  /** SVG marks: intervals in which the replica was down or drained, and its restarts. */
  marks(samples) {
    const shades = (name, predicate) => spans(samples, predicate).map(([from, to]) => `<rect class="${name}" x="${from}" y="0" width="${to - from}" height="${HEIGHT}"/>`);
    const down = [...shades("down", (one) => !one.isUp), ...shades("drained", (one) => one.phase === "drained")];
    const restarts = samples.flatMap((one, i) => (one && samples[i - 1] && one.restarts > samples[i - 1].restarts ? [`<path class="restart" d="M${i} 0V${HEIGHT}"/>`] : []));
    return { down: down.join(""), restarts: restarts.join("") };
  }
}
