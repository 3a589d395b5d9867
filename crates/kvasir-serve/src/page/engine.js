// The engine live: the server's steps, drawn by the script of the trace page.
//
// The step stream is open only while its tab is visible: a browser has six connections to a server for all its tabs.

import { events } from "/page/api.js";
import { link } from "/page/link.js";

const KEEP = 4096; // steps that stay in memory
const RECENT = 2e9; // nanoseconds that the figures of now look back
const RETRY = 2000; // ms until a lost connection is tried again

/** Figures of now, and since the page was opened, from the steps. */
class Figures {
  constructor() {
    this.prompts = new Map();
    this.spoken = []; // [when in ns, tokens]
    Object.assign(this, { asked: 0, hit: 0, made: 0, step: null, took: null, capacity: 0 });
  }

  see(step) {
    let tokens = 0;
    for (const [, n] of step.spoke ?? []) tokens += n;
    for (const [, n] of step.outputs ?? []) tokens += n;
    for (const [id, prompt] of step.arrived ?? []) this.prompts.set(id, prompt);
    for (const [id, hit] of step.admitted ?? []) {
      this.asked += this.prompts.get(id) ?? 0;
      this.hit += hit;
    }
    for (const [id] of step.ended ?? []) this.prompts.delete(id);
    for (const [, ns] of step.retired ?? []) this.took = ns;
    this.made += tokens;
    this.spoken.push([step.at, tokens]);
    while (this.spoken.length > 1 && this.spoken[0][0] < step.at - RECENT) this.spoken.shift();
    this.step = step;
    this.heard = performance.now();
  }

  /** Forgets the state of the engine until its next step. */
  lost() {
    this.prompts.clear();
    this.step = null;
  }

  /** Tokens per second over the last moments; 0 when nothing has come for as long. */
  rate() {
    if (!this.step || performance.now() - this.heard > RECENT / 1e6) return 0;
    const span = Math.max(this.step.at - this.spoken[0][0], 5e7);
    return (1e9 * this.spoken.reduce((sum, [, n]) => sum + n, 0)) / span;
  }

  /** No request runs or waits, as far as the last step knows. */
  get rests() {
    const { step } = this;
    return !step || step.running + step.waiting - (step.ended?.length ?? 0) <= 0;
  }
}

const count = (n) => Math.round(n).toLocaleString("en-US");

function ms(ns) {
  return ns == null ? "–" : ns < 1e6 ? `${count(ns / 1e3)} µs` : `${(ns / 1e6).toFixed(ns < 1e7 ? 1 : 0)} ms`;
}

const RESTING = "The engine is idle. Its next step will be drawn here.";

/** Fires `watch` when the view is shown or hidden. */
export class Engine extends EventTarget {
  constructor({ root, tiles, pulse, resting, fleet }) {
    super();
    Object.assign(this, { root, tiles, pulse, resting, fleet, replica: 0, isShown: false, isGreeted: false, isOpen: false });
    this.figures = new Figures();
    this.view = null;
    /** State of a stream that was opened again: the steps before it stay in view until its first step. */
    this.pending = null;
    document.addEventListener("visibilitychange", () => this.dispatchEvent(new Event("watch")));
    this.addEventListener("watch", () => fleet.watch(this.isWatched));
    fleet.addEventListener("choose", ({ detail: { replica } }) => {
      this.replica = replica;
      this.figures = new Figures();
      this.dispatchEvent(new Event("replica"));
    });
    setInterval(() => this.say(), 250);
  }

  /** Shows or hides the view. */
  watch(shown) {
    this.isShown = shown;
    this.dispatchEvent(new Event("watch"));
    if (shown) this.shown();
  }

  get isWatched() {
    return this.isShown && !document.hidden;
  }

  async until(watched) {
    while (this.isWatched !== watched) await new Promise((done) => this.addEventListener("watch", done, { once: true }));
  }

  /** Streams steps while the view is shown; reconnects when the server is back. */
  async listen() {
    this.isGreeted = true;
    let resumes = false;
    for (;;) {
      await this.until(true);
      const stop = new AbortController(), stopIfLost = () => (link.up && this.isWatched) || stop.abort();
      const { replica } = this, stopOnReplicaChange = () => stop.abort();
      this.addEventListener("replica", stopOnReplicaChange, { once: true });
      link.addEventListener("change", stopIfLost);
      this.addEventListener("watch", stopIfLost);
      try {
        for await (const [event, data] of events(`/v1/engine/steps${replica ? `?replica=${replica}` : ""}`, null, stop.signal)) {
          if (event === "begin") this.begin(data, resumes);
          else this.step(data);
        }
      } catch (error) {
        // The key dialog accepted this key, so it permits the chat but not the steps.
        if (error.status === 401) {
          this.resting.textContent = "This key does not open the engine’s steps.";
          await this.until(false);
        }
      }
      this.isOpen = false;
      link.removeEventListener("change", stopIfLost);
      this.removeEventListener("watch", stopIfLost);
      this.removeEventListener("replica", stopOnReplicaChange);
      this.figures.lost();
      resumes = link.up && !this.isWatched && replica === this.replica;
      // The steps of a newly chosen replica are requested at once.
      if (!resumes && replica === this.replica) await link.pause(RETRY);
    }
  }

  begin(data, resumes) {
    this.isOpen = true;
    this.resting.textContent = RESTING;
    this.figures.capacity = data.setup.capacity;
    this.fleet.begin(data.replicas ?? 0, this.replica);
    this.pending = resumes && this.view ? data : null;
    if (this.pending) return;
    if (!this.view) this.view = new globalThis.KvasirView(this.root, data, { follow: true, deep: false, keep: KEEP });
    else this.view.reset(data);
    this.root.hidden = true;
    this.resting.hidden = false;
  }

  step(step) {
    this.figures.see(step);
    if (this.pending) this.view.reset(this.pending);
    this.pending = null;
    if (this.root.hidden) {
      this.root.hidden = false;
      this.resting.hidden = true;
    }
    this.view?.push(step);
  }

  /** The view has no size while its tab is hidden: it draws when it is shown. */
  shown() {
    this.view?.redraw();
  }

  say() {
    const { figures } = this;
    const { step, rests } = figures;
    const room = step?.room ?? [figures.capacity, 0, 0, 0];
    const total = room.reduce((sum, n) => sum + n, 0) || 1;
    const rate = rests ? 0 : figures.rate();
    const tiles = [
      ["tokens per second", count(rate)],
      ["running", rests ? "0" : count(step.running)],
      ["waiting", rests ? "0" : count(step.waiting)],
      ["prompt tokens cached", figures.asked ? `${Math.round((100 * figures.hit) / figures.asked)} %` : "–"],
      ["pool in use", `${Math.round((100 * (room[2] + room[3])) / total)} %`],
      ["pool kept for reuse", `${Math.round((100 * room[1]) / total)} %`],
      ["last step", ms(figures.took)],
      ["tokens so far", count(figures.made)],
    ];
    const html = tiles.map(([name, value]) => `<div><dt>${name}</dt><dd>${value}</dd></div>`).join("");
    if (html !== this.html) this.tiles.innerHTML = this.html = html;
    this.view?.rest(rests && link.up);
    this.pulse.textContent = !this.isGreeted || !link.up ? "" : !this.isOpen ? "connected" : rests ? "idle" : `${count(rate)} tok/s · ${count(step.running)} running${step.waiting ? ` · ${count(step.waiting)} waiting` : ""}`;
    this.pulse.classList.toggle("on", !rests && link.up);
  }
}
