// Small plots over the run: the strip of steps, the waterfall, rates and distributions.

function canvasFor(canvas, height) {
  const width = canvas.parentElement.clientWidth;
  const scale = window.devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.height = `${height}px`;
  const ctx = canvas.getContext("2d");
  ctx.scale(scale, scale);
  ctx.font = "11px ui-sans-serif, system-ui, sans-serif";
  return { ctx, width, height };
}

/** A tick per step, colored by what ran; the line is how many requests run. */
function drawStrip(canvas, model, index, css) {
  const { ctx, width, height } = canvasFor(canvas, 44);
  const n = model.steps.length || 1;
  const most = Math.max(1, ...sampled(model.steps, width).map((s) => s.running ?? 0));
  for (let x = 0; x < width; x++) {
    const step = model.steps[Math.floor((x * n) / width)];
    if (!step) continue;
    ctx.fillStyle = css.kind[step.step == null ? "idle" : step.kind] ?? css.kind.idle;
    const tall = 8 + (24 * (step.running ?? 0)) / most;
    ctx.fillRect(x, height - 6 - tall, 1, tall);
    const full = step.room ? 1 - (step.room[0] + step.room[1]) / Math.max(1, step.room[0] + step.room[1] + step.room[2] + step.room[3]) : 0;
    ctx.fillStyle = css.ink;
    ctx.globalAlpha = 0.55;
    ctx.fillRect(x, height - 4, 1, 4 * full);
    ctx.globalAlpha = 1;
  }
  const at = ((index + 0.5) * width) / n;
  ctx.fillStyle = css.accent;
  ctx.fillRect(at - 1, 0, 2, height);
  ctx.beginPath();
  ctx.moveTo(at - 5, 0);
  ctx.lineTo(at + 5, 0);
  ctx.lineTo(at, 6);
  ctx.fill();
}

function sampled(list, most) {
  if (list.length <= most) return list;
  return Array.from({ length: most }, (_, i) => list[Math.floor((i * list.length) / most)]);
}

const LINE = 15; // pixels of a request in the waterfall

/** What a request does in a step, in one line. */
function formatLife(life, r) {
  if (!r) return `${life.name}: ${life.ended === null ? "not here yet" : formatEnd(life.why)}`;
  if (r.ended) return `${life.name}: ${formatEnd(r.ended)}`;
  if (r.row) return `${life.name}: ${r.row.phase ? "decodes" : "prefill of"} ${plural(r.row.tokens, "token")}`;
  return `${life.name} waits: ${formatReason(r.reason) || "it has run"}`;
}

/** Lives of the requests around the current step: queued, prefill, decode, and each token. */
class Waterfall {
  constructor(canvas, go) {
    this.canvas = canvas;
    canvas.addEventListener("click", (e) => {
      if (!this.view) return;
      const { from, to, left, width } = this.view;
      const at = from + ((e.offsetX - left) / (width - left)) * (to - from);
      go(this.stepAt(at));
    });
    canvas.addEventListener("pointermove", (e) => this.hover(e));
  }

  /** Says of the request under the pointer what it did at that time, and why it waited if it did. */
  hover(event) {
    const { view, lives, model } = this;
    const life = lives?.[Math.floor((event.offsetY - 1) / LINE)];
    if (!view || !life || event.offsetX < view.left) {
      this.canvas.title = "";
      return;
    }
    const step = this.stepAt(view.from + ((event.offsetX - view.left) / (view.width - view.left)) * (view.to - view.from));
    if (this.shown === `${life.id} ${step}`) return;
    this.shown = `${life.id} ${step}`;
    this.canvas.title = formatLife(life, model.state(step).reqs.get(life.id));
  }

  stepAt(time) {
    const steps = this.model.steps;
    let lo = 0, hi = steps.length - 1;
    while (lo < hi) {
      const mid = (lo + hi + 1) >> 1;
      if (steps[mid].at <= time) lo = mid; else hi = mid - 1;
    }
    return lo;
  }

  draw(model, index, css) {
    this.model = model;
    const last = model.steps.length - 1;
    if (last < 0) return;
    const reach = 160;
    const first = last < 2 * reach ? 0 : Math.max(0, Math.min(index - reach, last - 2 * reach));
    const end = last < 2 * reach ? last : Math.min(last, first + 2 * reach);
    const lives = [...model.lives.values()].filter((l) => l.from <= end && (l.ended ?? last) >= first).slice(0, 60);
    this.lives = lives;
    const { ctx, width, height } = canvasFor(this.canvas, lives.length * LINE + 22);
    const left = 16 + Math.min(90, Math.max(18, ...lives.map((l) => ctx.measureText(l.name.slice(0, 14)).width))), from = model.steps[first].at, to = Math.max(from + 1, model.endOf(end));
    const x = (t) => left + ((t - from) / (to - from)) * (width - left);
    this.view = { from, to, left, width };
    lives.forEach((life, i) => this.drawLife(ctx, life, i * LINE + 3, LINE - 4, x, left, first, end, css));
    const now = x(model.steps[index].at), till = x(model.endOf(index));
    ctx.fillStyle = css.accent;
    ctx.globalAlpha = 0.18;
    ctx.fillRect(now, 0, Math.max(2, till - now), height - 18);
    ctx.globalAlpha = 1;
    ctx.fillStyle = css.faint;
    ctx.textAlign = "center";
    for (let k = 0; k <= 4; k++) ctx.fillText(span(from + ((to - from) * k) / 4), Math.min(width - 24, Math.max(left, left + ((width - left) * k) / 4)), height - 4);
  }

  drawLife(ctx, life, y, h, x, left, first, end, css) {
    const { model } = this;
    ctx.fillStyle = `hsl(${hue(life.id)} ${css.sat} ${css.light})`;
    ctx.fillRect(0, y, 4, h);
    ctx.fillStyle = css.ink;
    ctx.textAlign = "left";
    ctx.fillText(life.name.slice(0, 14), 8, y + h - 1);
    const done = life.ended === null ? model.endOf(end) : model.endOf(life.ended);
    const clip = (t) => Math.max(left, x(t));
    ctx.fillStyle = css.use[CACHED];
    ctx.globalAlpha = 0.5;
    const until = life.admitted ?? done;
    ctx.fillRect(clip(life.arrived), y + h / 2 - 1, Math.max(0, clip(until) - clip(life.arrived)), 2);
    ctx.globalAlpha = 1;
    if (life.admitted !== null) {
      ctx.fillStyle = css.track;
      ctx.fillRect(clip(life.admitted), y, Math.max(0, clip(done) - clip(life.admitted)), h);
    }
    for (const [at, phase] of life.spans) {
      if (at < first || at > end) continue;
      ctx.fillStyle = css.kind[phase ? "decode" : "prefill"];
      const a = clip(model.steps[at].at), b = clip(model.endOf(at));
      ctx.fillRect(a, y, Math.max(1, b - a - (b - a > 4 ? 1 : 0)), h);
    }
    if (life.ended !== null && life.ended <= end) {
      ctx.fillStyle = css.ink;
      ctx.fillRect(clip(done) - 1, y - 1, 2, h + 2);
    }
  }
}

/** A line or bars over x, with its scale written out. */
function drawSeries(canvas, { points, label, format, color, bars = false, mark = null }, css) {
  const { ctx, width, height } = canvasFor(canvas, 120);
  const low = 18, top = 20;
  const most = Math.max(1e-9, ...points.map((p) => p[1]));
  const x0 = points[0]?.[0] ?? 0, x1 = Math.max(x0 + 1e-9, points.at(-1)?.[0] ?? 1);
  const x = (v) => ((v - x0) / (x1 - x0)) * width, y = (v) => height - low - (v / most) * (height - low - top);
  ctx.strokeStyle = css.line;
  ctx.beginPath();
  ctx.moveTo(0, y(0) + 0.5);
  ctx.lineTo(width, y(0) + 0.5);
  ctx.stroke();
  ctx.fillStyle = ctx.strokeStyle = color;
  if (bars) {
    const w = Math.max(1, width / points.length - 1);
    for (const [a, v] of points) ctx.fillRect((x(a) * (width - w)) / width, y(v), w, y(0) - y(v));
  } else {
    ctx.lineWidth = 1.6;
    ctx.beginPath();
    points.forEach(([a, v], i) => (i ? ctx.lineTo(x(a), y(v)) : ctx.moveTo(x(a), y(v))));
    ctx.stroke();
    ctx.lineTo(width, y(0));
    ctx.lineTo(0, y(0));
    ctx.globalAlpha = 0.12;
    ctx.fill();
    ctx.globalAlpha = 1;
  }
  if (mark !== null && mark >= x0 && mark <= x1) {
    ctx.fillStyle = css.accent;
    ctx.fillRect(x(mark) - 0.75, top - 6, 1.5, height - low - top + 6);
  }
  ctx.fillStyle = css.faint;
  ctx.textAlign = "left";
  ctx.fillText(`${format(most)} ${label}`, 0, 11);
}

/** Values at percentiles as a rising line; x is the share of requests or gaps. */
function drawPercentiles(canvas, lists, css) {
  const { ctx, width, height } = canvasFor(canvas, 152);
  const low = 18, top = 36;
  const most = Math.max(1, ...lists.flatMap((l) => l.values));
  const least = Math.max(1, Math.min(most / 10, ...lists.flatMap((l) => l.values).filter((v) => v > 0)));
  const span_ = Math.log(most / least) || 1;
  const x = (p) => p * width, y = (v) => height - low - (Math.log(Math.max(v, least) / least) / span_) * (height - low - top);
  let at = 0;
  for (const { name, values, color } of lists) {
    ctx.strokeStyle = color;
    ctx.lineWidth = 1.8;
    ctx.beginPath();
    values.forEach((v, i) => (i ? ctx.lineTo(x(i / (values.length - 1)), y(v)) : ctx.moveTo(0, y(v))));
    ctx.stroke();
    ctx.fillStyle = color;
    ctx.textAlign = "left";
    ctx.fillText(name, at, 11);
    at += ctx.measureText(name).width + 14;
  }
  ctx.fillStyle = css.faint;
  ctx.textAlign = "left";
  ctx.fillText(`${span(least)} to ${span(most)}, logarithmic`, 0, 25);
  ctx.textAlign = "center";
  for (const p of [0.25, 0.5, 0.75]) ctx.fillText(`p${p * 100}`, x(p), height - 4);
  ctx.textAlign = "right";
  ctx.fillText("p100", width, height - 4);
}
