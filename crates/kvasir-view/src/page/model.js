// What is known after each step. A trace holds only what changed; this folds the changes into states.

const KEYFRAME = 128; // a state is kept every so many steps, so that going back folds little

const FREE = 0, CACHED = 1, HELD = 2, LEASED = 3, DUMMY = 4;

/** A request while it lives. */
function newRequest([id, prompt, max, tag], at, names) {
  return {
    id, prompt, max, name: names.get(tag) ?? String(tag ?? id), arrived: at,
    status: "waiting", hit: 0, short: null, computed: 0, outputs: 0, table: [], row: null, tree: null,
    left: 0, chunk: 0, redirected: 0, reason: null, ended: null, preemptions: 0, isNew: true,
  };
}

class Model {
  /** `data`: {setup, steps, first, total, report}; see the crate's documentation. */
  constructor(data) {
    this.setup = data.setup;
    this.title = data.title ?? "Kvasir";
    this.first = data.first ?? 0;
    this.total = data.total ?? null;
    this.report = data.report ?? null;
    this.names = new Map(data.names ?? []);
    this.steps = [];
    this.keys = [];
    this.newest = this.empty();
    this.lives = new Map(); // id -> what the waterfall draws
    this.maxTokens = 64;
    this.retiredAt = new Map();
    /** Step -> tokens of each engine, if engines run in lockstep. */
    this.tokensAcrossDp = new Map();
    for (const step of data.steps ?? []) this.push(step);
  }

  get blocks() {
    return Math.ceil(this.setup.capacity / this.setup.block_size) + (this.setup.dummy_blocks ?? 0);
  }

  empty() {
    const map = new Uint8Array(this.blocks);
    map.fill(DUMMY, 0, this.setup.dummy_blocks ?? 0);
    return { index: -1, step: null, reqs: new Map(), queue: [], running: [], map, room: null, promised: 0 };
  }

  /** Takes the next step of a trace or of a live engine. */
  push(step) {
    const index = this.steps.length;
    if (index % KEYFRAME === 0) this.keys.push(clone(this.newest));
    this.steps.push(step);
    fold(this.newest, step, index, this.names);
    this.follow(step, index);
  }

  /** Forgets the oldest steps when there are twice as many as are kept. Gives the number forgotten. */
  trim(keep) {
    if (this.steps.length < 2 * keep) return 0;
    const cut = Math.floor((this.steps.length - keep) / KEYFRAME) * KEYFRAME;
    this.steps.splice(0, cut);
    this.keys.splice(0, cut / KEYFRAME);
    this.first += cut;
    for (const state of [...this.keys, this.newest]) state.index -= cut;
    for (const [id, life] of this.lives) {
      life.from -= cut;
      if (life.ended !== null) life.ended -= cut;
      life.spans = life.spans.filter(([at]) => at >= cut).map(([at, ...rest]) => [at - cut, ...rest]);
      if (life.ended !== null && life.ended < 0) this.lives.delete(id);
    }
    for (const numbers of [this.retiredAt, this.tokensAcrossDp]) {
      for (const number of numbers.keys()) if (number < this.steps[0].step) numbers.delete(number);
    }
    return cut;
  }

  /** Feeds the waterfall and the axes. */
  follow(step, index) {
    for (const [id, prompt, max, tag] of step.arrived ?? []) {
      this.lives.set(id, { id, name: this.names.get(tag) ?? String(tag ?? id), arrived: step.at, from: index, spans: [], admitted: null, ended: null, prompt, max });
      this.maxTokens = Math.max(this.maxTokens, prompt + Math.min(max, 4 * prompt + 512));
    }
    for (const [id] of step.admitted ?? []) {
      const life = this.lives.get(id);
      if (life && life.admitted === null) life.admitted = step.at;
    }
    for (const [id, phase, from, tokens, , left = 0] of step.rows ?? []) {
      this.lives.get(id)?.spans.push([index, phase, tokens]);
      this.maxTokens = Math.max(this.maxTokens, left * this.setup.block_size + from + tokens);
    }
    eachRun(step.again, (id) => this.lives.get(id)?.spans.push([index, 1, 1]));
    for (const [id, why] of step.ended ?? []) {
      const life = this.lives.get(id);
      if (life) { life.ended = index; life.why = why; }
    }
    for (const [number, took] of step.retired ?? []) this.retiredAt.set(number, took);
    for (const [number, tokens] of step.num_tokens_across_dp ?? []) this.tokensAcrossDp.set(number, tokens);
  }

  /** The state after step `index`; -1 is the one before all. */
  state(index) {
    if (index === this.newest.index) return this.newest;
    if (index < 0) return this.empty();
    const key = Math.floor(index / KEYFRAME);
    const state = clone(this.keys[key]);
    for (let i = key * KEYFRAME; i <= index; i++) fold(state, this.steps[i], i, this.names);
    return state;
  }

  /** Time at the end of step `index`. */
  endOf(index) {
    const step = this.steps[index];
    return this.steps[index + 1]?.at ?? step.at + (this.retiredAt.get(step.step) ?? 0);
  }
}

function clone(state) {
  const reqs = new Map();
  for (const [id, r] of state.reqs) reqs.set(id, { ...r });
  return { ...state, reqs, queue: state.queue.slice(), running: state.running.slice(), map: state.map.slice() };
}

function drop(list, id) {
  const i = list.indexOf(id);
  if (i >= 0) list.splice(i, 1);
}

/** Changes `state` into the one after `step`. Requests that ended are shown once and gone afterwards. */
function fold(state, step, index, names) {
  state.index = index;
  state.step = step;
  for (const [id, r] of state.reqs) {
    r.row = null;
    r.reason = null;
    if (r.tree?.accepted) r.tree = null;
    r.isNew = false;
    if (r.ended) {
      state.reqs.delete(id);
      drop(state.running, id);
      drop(state.queue, id);
    }
  }
  for (const entry of step.arrived ?? []) {
    state.reqs.set(entry[0], newRequest(entry, step.at, names));
    state.queue.push(entry[0]);
  }
  for (const id of step.preempted ?? []) {
    const r = state.reqs.get(id);
    if (!r) continue;
    Object.assign(r, { status: "waiting", computed: 0, table: [], hit: 0, short: null, left: 0, tree: null, preemptions: r.preemptions + 1 });
    drop(state.running, id);
    drop(state.queue, id);
    state.queue.unshift(id);
  }
  for (const [id, hit] of step.admitted ?? []) {
    const r = state.reqs.get(id);
    if (!r) continue;
    Object.assign(r, { status: "running", hit, short: null, computed: hit });
    drop(state.queue, id);
    drop(state.running, id);
    state.running.push(id);
  }
  for (const [id, matched, reason] of step.short_hits ?? []) {
    const r = state.reqs.get(id);
    if (r) r.short = { matched, reason };
  }
  for (const [id, phase, from, tokens, redirected = 0, left = 0, drafts = 0] of step.rows ?? []) {
    const r = state.reqs.get(id);
    if (!r) continue;
    r.row = { phase, from, tokens, redirected, left, drafts };
    r.tree = null;
    r.left = left;
    if (redirected) r.redirected = redirected;
    r.computed = from + tokens - drafts;
  }
  for (const [id, n] of step.computed ?? []) {
    const r = state.reqs.get(id);
    if (r) r.computed = n;
  }
  eachRun(step.again, (id) => {
    const r = state.reqs.get(id);
    if (r) Object.assign(r, { tree: null, row: { phase: 1, from: r.computed++, tokens: 1, redirected: 0, left: r.left, drafts: 0 } });
  });
  // States share trees, so a tree is replaced rather than changed.
  for (const [id, parents] of step.drafts ?? []) {
    const r = state.reqs.get(id);
    if (r) r.tree = { parents, accepted: null };
  }
  for (const [id, accepted] of step.accepted ?? []) {
    const r = state.reqs.get(id);
    if (r?.tree) r.tree = { parents: r.tree.parents, accepted };
  }
  for (const [id, n] of step.skipped ?? []) {
    const r = state.reqs.get(id);
    if (r) r.skipped = n;
  }
  for (const [id, keep, ...blocks] of step.tables ?? []) {
    const r = state.reqs.get(id);
    if (r) r.table = r.table.slice(0, keep).concat(expand(blocks));
  }
  for (const [id, reason] of step.held ?? []) {
    const r = state.reqs.get(id);
    if (r) r.reason = reason;
  }
  for (const r of state.reqs.values()) {
    if (r.reason || r.row) continue;
    if (r.status === "waiting") r.reason = step.rest_waiting ?? "behind";
    else if (r.status === "running") r.reason = step.rest_running ?? null;
  }
  eachOutput(step, (id, n) => {
    const r = state.reqs.get(id);
    if (r) r.outputs += n;
  });
  for (const [id, why] of step.ended ?? []) {
    const r = state.reqs.get(id);
    if (r) r.ended = why;
  }
  for (const [start, len, use] of step.map ?? []) state.map.fill(use, start, start + len);
  state.room = step.room ?? state.room;
  state.promised = step.promised ?? 0;
}

/** Numbers are written as runs of a first one and a count. */
function eachRun(runs, see) {
  for (const [first, n] of runs ?? []) for (let i = 0; i < n; i++) see(first + i);
}

/** Who the host has heard of in a step, and how many tokens. */
function eachOutput(step, see) {
  eachRun(step.spoke, (id) => see(id, 1));
  for (const [id, n] of step.outputs ?? []) see(id, n);
}

/** Block lists are written as ids, or as [first, count] for runs. */
function expand(list) {
  const out = [];
  for (const item of list) {
    if (Array.isArray(item)) for (let i = 0; i < item[1]; i++) out.push(item[0] + i);
    else out.push(item);
  }
  return out;
}

/** Whether a request has still prompt to compute; what was generated before a preemption counts as prompt. */
function isPrefilling(r) {
  return r.status === "running" && (r.row ? r.row.phase === 0 : r.computed < r.prompt);
}

/** Owners of every block, by block. */
function ownersOf(state) {
  const owners = new Map();
  for (const id of state.reqs.keys()) {
    const r = state.reqs.get(id);
    if (r.ended) continue;
    for (const block of r.table) {
      const list = owners.get(block);
      if (list) { if (!list.includes(id)) list.push(id); } else owners.set(block, [id]);
    }
  }
  return owners;
}

/** The numbers of a rectangular step: how wide each decoding row is, the widest, and the volume. */
function rectangle(state, setup) {
  const rows = [];
  for (const id of state.running) {
    const r = state.reqs.get(id);
    if (r?.row?.phase === 1) rows.push([id, r.left * setup.block_size + r.row.from + r.row.tokens]);
  }
  const widest = rows.reduce((max, [, tkv]) => Math.max(max, tkv), 0);
  return { rows: new Map(rows), widest, volume: widest * rows.length };
}
