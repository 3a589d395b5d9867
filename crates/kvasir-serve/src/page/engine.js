// The engine live: the server's steps, drawn by the script of the trace page.

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

export class Engine {
  constructor({ root, tiles, pulse, resting }) {
    Object.assign(this, { root, tiles, pulse, resting });
    this.figures = new Figures();
    this.view = null;
    setInterval(() => this.say(), 250);
  }

  /** Streams steps for as long as the page is open; reconnects when the server is back. */
  async listen() {
    for (;;) {
      const stop = new AbortController(), stopIfLost = () => link.up || stop.abort();
      link.addEventListener("change", stopIfLost);
      try {
        for await (const [event, data] of events("/v1/engine/steps", null, stop.signal)) {
          if (event === "begin") this.begin(data);
          else this.step(data);
        }
      } catch (error) {
        // The key dialog accepted this key, so it permits the chat but not the steps.
        if (error.status === 401) return this.refuse();
      }
      link.removeEventListener("change", stopIfLost);
      this.figures.lost();
      await link.pause(RETRY);
    }
  }

  refuse() {
    this.resting.textContent = "This key does not open the engine’s steps.";
  }

  begin(data) {
    this.figures.capacity = data.setup.capacity;
    if (!this.view) this.view = new globalThis.KvasirView(this.root, data, { follow: true, deep: false, keep: KEEP });
    else this.view.reset(data);
    this.root.hidden = true;
    this.resting.hidden = false;
  }

  step(step) {
    this.figures.see(step);
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
    this.pulse.textContent = !this.view || !link.up ? "" : rests ? "idle" : `${count(rate)} tok/s · ${count(step.running)} running${step.waiting ? ` · ${count(step.waiting)} waiting` : ""}`;
    this.pulse.classList.toggle("on", !rests && link.up);
  }
}
