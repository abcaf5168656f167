/* FedCharts.map and FedCharts.bars: the second half of charts.js, in the same frame. */
"use strict";

(() => {
  const { chart, point, tell, legend, axes, room, css, known, number, ticks } = FedCharts.kit;

  // --- the cohort map -----------------------------------------------------------------------------------------------
  /* Cells as one flat list round, row, code: from triples, from a flat list, or from {asked, outcomes} of views.py. */
  function flat(spec) {
    if (spec.asked) {
      const out = [];
      spec.asked.forEach((rows, r) => rows.forEach((row, i) => out.push(r, row, Number(spec.outcomes[r][i]))));
      return out;
    }
    const cells = spec.cells || [];
    return cells.length && typeof cells[0] !== "number" ? cells.flatMap((t) => Array.from(t)) : cells;
  }

  function drawMap(c, g) {
    const spec = c.spec;
    const cells = flat(spec);
    const order = spec.order || Array.from({ length: spec.rows }, (_, i) => i);
    const place = new Int32Array(spec.rows).fill(-1);
    order.forEach((row, i) => (place[row] = i));
    const box = { left: 46, right: c.width - 8, top: 8, bottom: c.height - 44, yTicks: [], yText: String };
    const [w, h] = [(box.right - box.left) / Math.max(spec.columns, 1), (box.bottom - box.top) / Math.max(order.length, 1)];
    const first = spec.first || 0;
    box.xTicks = ticks(first, first + Math.max(spec.columns - 1, 1), Math.max(2, c.width / 100))
      .filter((t) => Number.isInteger(t) && t - first < spec.columns)
      .map((t) => [box.left + (t - first + 0.5) * w, number(t, 8)]);
    g.clearRect(0, 0, c.width, c.height);
    g.fillStyle = css("--sunk");
    g.fillRect(box.left, box.top, box.right - box.left, box.bottom - box.top);
    const [gapX, gapY] = [w > 5 ? 1 : 0, h > 5 ? 1 : 0];
    const byCode = new Map();
    const at = new Map();
    for (let i = 0; i + 2 < cells.length; i += 3) {
      const y = place[cells[i + 1]];
      if (y < 0) continue;
      if (!byCode.has(cells[i + 2])) byCode.set(cells[i + 2], []);
      byCode.get(cells[i + 2]).push(cells[i], y);
      at.set(cells[i] * spec.rows + cells[i + 1], cells[i + 2]);
    }
    for (const [code, list] of [...byCode].sort((a, b) => a[0] - b[0])) {
      g.fillStyle = css(`--outcome-${code}`);
      g.globalAlpha = Math.min(1, Math.max(code === 0 ? 0.3 : 0.45, w)); /* narrower than a pixel: density is depth */
      for (let i = 0; i < list.length; i += 2) {
        g.fillRect(box.left + list[i] * w, box.top + list[i + 1] * h, Math.max(w - gapX, 1), Math.max(h - gapY, 1));
      }
    }
    g.globalAlpha = 1;
    if (known(spec.mark) && place[spec.mark] >= 0) {
      g.strokeStyle = c.ink;
      g.lineWidth = 2;
      g.strokeRect(box.left, box.top + place[spec.mark] * h - 1, box.right - box.left, Math.max(h, 2) + 1);
    }
    axes(c, g, box, { xLabel: spec.columnName || "round", yLabel: spec.orderName || "" });
    mapReading(c, { spec, order, box, w, h, at });
  }

  function mapReading(c, { spec, order, box, w, h, at }) {
    const words = spec.legend || [];
    const used = new Set(at.values());
    legend(c, words.map((name, i) => ({ name, colour: css(`--outcome-${i}`) })).filter((_, i) => used.has(i)), false);
    c.over.setAttribute("aria-label", `${spec.rowName || "client"}s by ${spec.columnName || "round"}: ${at.size} cells`);
    let cell = null;
    c.hover = (px, py, g) => {
      const [column, y] = [Math.floor((px - box.left) / w), Math.floor((py - box.top) / h)];
      cell = column >= 0 && column < spec.columns && y >= 0 && y < order.length ? [column, y] : null;
      if (!cell) return;
      const row = order[y];
      const code = at.get(column * spec.rows + row);
      const name = spec.rowLabels ? spec.rowLabels[row] : row;
      const lines = [[`${spec.rowName || "client"} ${name}, ${spec.columnName || "round"} ${column + (spec.first || 0)}`]];
      lines.push(code === undefined ? ["not asked"] : [words[code] || String(code), css(`--outcome-${code}`)]);
      for (const line of spec.readout ? spec.readout(row, column) : []) lines.push([line]);
      g.strokeStyle = c.ink;
      g.strokeRect(box.left + column * w, box.top + y * h, Math.max(w, 2), Math.max(h, 2));
      tell(c, lines, px, py);
    };
    c.step = (dx, dy) => {
      const [column, y] = cell || [0, 0];
      const next = [Math.min(spec.columns - 1, Math.max(0, column + dx)), Math.min(order.length - 1, Math.max(0, y + dy))];
      point(c, box.left + (next[0] + 0.5) * w, box.top + (next[1] + 0.5) * h);
    };
    c.click = spec.onClick ? () => cell && spec.onClick(order[cell[1]], cell[0]) : null;
  }

  // --- bars ---------------------------------------------------------------------------------------------------------
  function drawBars(c, g) {
    const spec = c.spec;
    const values = spec.values;
    const high = Math.max(...values.map((v) => (known(v) ? v : 0)), 0) * 1.06 || 1;
    const low = Math.min(...values.map((v) => (known(v) ? v : 0)), 0) * 1.06;
    const yText = (v) => number(v, 3);
    const yTicks = ticks(low, high, Math.max(2, c.height / 52));
    const box = { ...room(c, yTicks.map(yText)), yTicks, yText };
    const w = (box.right - box.left) / Math.max(values.length, 1);
    box.y = (v) => box.bottom - ((v - low) / (high - low)) * (box.bottom - box.top);
    const every = Math.max(1, Math.ceil((values.length * 46) / (box.right - box.left)));
    box.xTicks = spec.labels.map((text, i) => [box.left + (i + 0.5) * w, String(text)]).filter((_, i) => i % every === 0);
    if (spec.hideLabels) box.xTicks = [];
    g.clearRect(0, 0, c.width, c.height);
    axes(c, g, box, spec);
    values.forEach((v, i) => {
      if (!known(v)) return;
      g.fillStyle = i === spec.mark ? css("--series-1") : css("--series-0");
      const [top, end] = [Math.min(box.y(v), box.y(0)), Math.max(box.y(v), box.y(0))];
      g.fillRect(box.left + i * w, top, Math.max(w - (w > 4 ? 1 : 0), 1), Math.max(end - top, 0.5));
    });
    legend(c, [], false);
    c.over.setAttribute("aria-label", `${spec.yLabel || ""} by ${spec.xLabel || ""}, ${values.length} bars`);
    let held = null;
    c.hover = (px, py) => {
      const i = Math.floor((px - box.left) / w);
      held = i >= 0 && i < values.length ? i : null;
      if (held === null) return;
      tell(c, [[`${spec.names ? spec.names[i] : spec.labels[i]}: ${number(values[i])}`]], px, Math.min(py, box.bottom - 30));
    };
    c.step = (dx) => {
      held = Math.min(values.length - 1, Math.max(0, (held === null ? -1 : held) + dx));
      point(c, box.left + (held + 0.5) * w, box.top);
    };
    c.click = spec.onClick ? () => held !== null && spec.onClick(held) : null;
  }

  FedCharts.map = (element, spec) => chart(element, { height: Math.min(640, Math.max(180, spec.rows * 9 + 52)), ...spec }, drawMap);
  FedCharts.bars = (element, spec) => chart(element, { height: 220, ...spec }, drawBars);
})();
