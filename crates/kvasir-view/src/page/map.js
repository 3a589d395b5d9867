// The physical map: a square per block (or cell), colored by its owner.

const LABELS = ["free", "cached", "held", "leased", "dummy"];

/** Squares that fill the width: their size and number per line. */
function mapLayout(blocks, width) {
  for (const size of [18, 14, 11, 8, 6, 4, 3, 2]) {
    const columns = Math.max(1, Math.floor(width / size));
    if (Math.ceil(blocks / columns) * size <= 300 || size === 2) return { size, columns };
  }
}

class BlockMap {
  constructor(canvas, tip) {
    this.canvas = canvas;
    this.tip = tip;
    canvas.addEventListener("pointermove", (e) => this.hover(e));
    canvas.addEventListener("pointerleave", () => { tip.textContent = ""; });
  }

  draw(state, model, css) {
    const { canvas } = this;
    const width = canvas.parentElement.clientWidth;
    const blocks = model.blocks;
    const { size, columns } = mapLayout(blocks, width);
    const height = Math.ceil(blocks / columns) * size;
    const scale = window.devicePixelRatio || 1;
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.style.height = `${height}px`;
    const ctx = canvas.getContext("2d");
    ctx.scale(scale, scale);
    const owners = ownersOf(state);
    Object.assign(this, { state, model, owners, size, columns });
    const gap = size > 5 ? 2 : size > 2 ? 1 : 0;
    const written = writtenNow(state, model);
    // What is promised has no place yet: it is shown on the free blocks that would be handed out first.
    let promised = Math.ceil((state.promised ?? 0) / model.setup.block_size);
    for (let b = 0; b < blocks; b++) {
      const x = (b % columns) * size, y = Math.floor(b / columns) * size, w = size - gap;
      const list = owners.get(b);
      const use = list ? HELD : state.map[b] === HELD ? FREE : state.map[b];
      ctx.fillStyle = list ? `hsl(${hue(list[0])} ${css.sat} ${css.light})` : css.use[use];
      ctx.fillRect(x, y, w, w);
      if (list && list.length > 1 && size > 3) share(ctx, x, y, w, list, css);
      if (use === DUMMY && size > 5) cross(ctx, x, y, w, css.ink);
      if (use === FREE && promised > 0) {
        promised--;
        ctx.fillStyle = css.promised;
        ctx.fillRect(x, y + w * 0.7, w, w * 0.3);
      }
      if (written.has(b) && size > 5) {
        ctx.strokeStyle = css.ink;
        ctx.lineWidth = 1.5;
        ctx.strokeRect(x + 0.75, y + 0.75, w - 1.5, w - 1.5);
      }
    }
  }

  hover(event) {
    if (!this.state) return;
    const b = Math.floor(event.offsetY / this.size) * this.columns + Math.floor(event.offsetX / this.size);
    if (b >= this.model.blocks) return;
    const list = this.owners.get(b);
    const names = list?.map((id) => this.state.reqs.get(id).name).join(", ");
    this.tip.textContent = `${this.model.setup.block_size > 1 ? "block" : "cell"} ${b}: ${names ? `${list.length > 1 ? "shared by" : "owned by"} ${names}` : LABELS[this.state.map[b]] ?? "free"}`;
  }
}

/** Blocks that this step writes to. */
function writtenNow(state, model) {
  const block = model.setup.block_size, out = new Set();
  for (const r of state.reqs.values()) {
    if (!r.row) continue;
    const first = Math.floor(r.row.from / block), last = Math.floor((r.row.from + r.row.tokens - 1) / block);
    for (let i = first; i <= last && i < r.table.length; i++) out.add(r.table[i]);
  }
  return out;
}

/** Several owners: their colors side by side, and a dot. */
function share(ctx, x, y, w, list, css) {
  const shown = list.slice(0, 4);
  shown.forEach((id, i) => {
    ctx.fillStyle = `hsl(${hue(id)} ${css.sat} ${css.light})`;
    ctx.fillRect(x + (w * i) / shown.length, y, w / shown.length, w);
  });
  ctx.fillStyle = css.paper;
  ctx.beginPath();
  ctx.arc(x + w / 2, y + w / 2, Math.max(1, w / 5), 0, 7);
  ctx.fill();
}

function cross(ctx, x, y, w, ink) {
  ctx.strokeStyle = ink;
  ctx.lineWidth = 1;
  ctx.beginPath();
  ctx.moveTo(x + 3, y + 3);
  ctx.lineTo(x + w - 3, y + w - 3);
  ctx.moveTo(x + w - 3, y + 3);
  ctx.lineTo(x + 3, y + w - 3);
  ctx.stroke();
}

/** How the pool is spread, as one bar with its numbers. */
function drawRoom(state, model) {
  const capacity = model.setup.capacity;
  const room = state.room ?? [capacity, 0, 0, 0];
  const promised = Math.min(state.promised ?? 0, room[0]);
  const parts = [["held", room[2]], ["leased", room[3]], ["kept", room[1]], ["promised", promised], ["free", room[0] - promised]];
  const words = { kept: "cached", promised: "reserved" };
  const total = parts.reduce((sum, [, n]) => sum + n, 0) || 1;
  const bar = parts.map(([name, n]) => `<i class="${name}" style="width:${(100 * n) / total}%"></i>`).join("");
  const legend = parts.map(([name, n]) => `<span class="key ${name}">${words[name] ?? name} <b>${count(n)}</b></span>`).join("");
  let shared = 0;
  for (const list of ownersOf(state).values()) if (list.length > 1) shared++;
  return `<div class="room">${bar}</div><div class="legend">${legend}<span class="key shared">shared blocks <b>${count(shared)}</b></span>${model.setup.dummy_blocks ? `<span class="key dummy">dummy <b>${model.setup.dummy_blocks}</b></span>` : ""}</div>`;
}
