// Heat maps of a fleet, replicas × time: queue, running requests, prefix hit rate, K/V transfers and failures.

const MAP_HEIGHT = 220; // px, without the time axis; exceeded if rows would be lower than 2 px
const NAME_HEIGHT = 14; // px

/** Largest value of a map's rows; at least 1e-9. */
const largest = (rows) => rows.reduce((max, row) => row.reduce((m, v) => (v > m ? v : m), max), 1e-9);

/** Mean of the values of a row; `null` if it has none. */
function rowMean(row) {
  const values = row.filter((v) => v !== null);
  return values.length ? values.reduce((sum, v) => sum + v, 0) / values.length : null;
}

const formatValue = (value, unit) => (value === null ? "–" : `${value < 10 ? trim(value) : count(Math.round(value))} ${unit}`);

/** One heat map: a row per replica, a column per time bin. Cells without a value are blank. */
class HeatMap {
  constructor(figure, map, fleet) {
    Object.assign(this, { map, fleet, canvas: figure.querySelector("canvas"), tip: figure.querySelector("output") });
    this.canvas.addEventListener("mousemove", (e) => this.showValueAt(e.offsetX, e.offsetY));
    this.canvas.addEventListener("mouseleave", () => { this.tip.textContent = ""; });
  }

  draw(color, css) {
    const { map: { rows, max }, fleet: { replicas, seconds } } = this;
    const rowHeight = Math.max(2, Math.min(18, Math.floor(MAP_HEIGHT / rows.length)));
    const { ctx, width, height } = canvasFor(this.canvas, rows.length * rowHeight + 16);
    const bins = Math.max(1, ...rows.map((row) => row.length));
    const left = 8 + Math.min(120, Math.max(...replicas.map((name) => ctx.measureText(name).width)));
    const binWidth = (width - left) / bins;
    this.grid = { left, binWidth, rowHeight };
    ctx.fillStyle = css.track;
    ctx.fillRect(left, 0, width - left, rows.length * rowHeight);
    ctx.fillStyle = color;
    rows.forEach((row, y) => row.forEach((value, x) => {
      if (value === null) return;
      // A value of 0 is visible, unlike a missing value.
      ctx.globalAlpha = 0.12 + 0.88 * Math.min(1, value / max);
      ctx.fillRect(left + x * binWidth, y * rowHeight, Math.max(1, binWidth), rowHeight > 4 ? rowHeight - 1 : rowHeight);
    }));
    ctx.globalAlpha = 1;
    ctx.fillStyle = css.faint;
    ctx.textAlign = "left";
    const every = Math.max(1, Math.ceil(NAME_HEIGHT / rowHeight));
    replicas.forEach((name, y) => { if (y % every === 0) ctx.fillText(name, 0, y * rowHeight + Math.max(9, rowHeight - 4)); });
    for (let k = 0; k <= 4; k++) {
      ctx.textAlign = k === 0 ? "left" : k === 4 ? "right" : "center";
      ctx.fillText(span((bins * seconds * 1e9 * k) / 4), left + ((width - left) * k) / 4, height - 3);
    }
  }

  /** Shows the value of the cell at this position. */
  showValueAt(x, y) {
    const { left, binWidth, rowHeight } = this.grid ?? {};
    const at = Math.floor((x - left) / binWidth), row = Math.floor(y / rowHeight);
    const value = this.map.rows[row]?.[at];
    this.tip.textContent = value === undefined ? "" : `replica ${this.fleet.replicas[row]} at ${span(at * this.fleet.seconds * 1e9)}: ${formatValue(value, this.map.unit)}`;
  }
}

/** All heat maps of a fleet, and a table of their means. */
class FleetMaps {
  constructor(root, fleet) {
    this.maps = fleet.maps.map((map) => {
      const figure = document.createElement("figure"), title = escapeHtml(map.title), unit = escapeHtml(map.unit);
      const max = map.max ?? largest(map.rows), range = escapeHtml(`up to ${formatValue(max, map.unit)}`);
      figure.innerHTML = `<figcaption>${title} <small>${range}</small> <output></output></figcaption><div class="plot"><canvas role="img" aria-label="${title} of the replicas over time in ${unit}, ${range}"></canvas></div>`;
      root.querySelector(".maps").append(figure);
      return new HeatMap(figure, { ...map, max }, fleet);
    });
    root.querySelector("small").textContent = plural(fleet.replicas.length, "row");
    const head = fleet.maps.map(({ title, unit }) => `<th scope="col">${escapeHtml(`${title}, ${unit}`)}</th>`).join("");
    const body = fleet.replicas.map((name, i) => {
      const cells = fleet.maps.map(({ rows }) => `<td>${escapeHtml(formatValue(rowMean(rows[i]), ""))}</td>`).join("");
      return `<tr><th scope="row">${escapeHtml(name)}</th>${cells}</tr>`;
    });
    root.querySelector(".scroll").innerHTML = `<table><thead><tr><th scope="col">replica</th>${head}</tr></thead><tbody>${body.join("")}</tbody></table>`;
  }

  draw(css) {
    const colors = [css.kind.mixed, css.kind.prefill, css.kind.decode, css.use[CACHED], css.accent];
    this.maps.forEach((map, i) => map.draw(colors[i % colors.length], css));
  }
}
