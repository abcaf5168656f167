/* FedCharts: lines with bands here, the cohort map and bars in maps.js (load it after this). Without dependencies.

   FedCharts.lines(element, {series: [{name, x, y, low, high, index, dash, marker}], xLabel, yLabel, yPercent, xTime, yRange, step, height})
   FedCharts.map(element, {rows, columns, cells, order, rowLabels, legend, rowName, columnName, onClick, readout, mark})
   FedCharts.bars(element, {labels, values, xLabel, yLabel, onClick, mark, names})

   `index` of a series chooses its colour; it comes with `dash` and `marker` from fedcohort/looks.py, so that a name looks the
   same in every chart. `step` is "post" (a value holds until the next one) or "mid".
   Calling again on the same element updates it in place. Text goes in as text nodes only. Colours come from the style
   sheet (--series-0 ... --series-7, --outcome-0 ... --outcome-5), so that a change of theme is a redraw. */
"use strict";

const FedCharts = (() => {
  const charts = new Map();
  const SERIES = 8;
  const MARKS = 8; // markers of a line

  // --- small things -------------------------------------------------------------------------------------------------
  function make(tag, kind, text) {
    const element = document.createElement(tag);
    if (kind) element.className = kind;
    if (text !== undefined) element.textContent = text;
    return element;
  }

  function css(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  const known = (v) => v !== null && v !== undefined && Number.isFinite(v);

  function number(value, digits = 4) {
    if (!known(value)) return "–";
    if (Math.abs(value) >= 1e4) return Math.round(value).toLocaleString("en-US");
    return String(Number(value.toPrecision(digits)));
  }

  function time(seconds) {
    if (!known(seconds)) return "–";
    for (const [size, unit] of [[86400, "days"], [3600, "h"], [60, "min"]]) {
      if (Math.abs(seconds) >= size) return `${number(seconds / size, 3)} ${unit}`;
    }
    return `${number(seconds, 3)} s`;
  }

  const percent = (v) => (known(v) ? `${(100 * v).toFixed(1)} %` : "–");

  function ticks(low, high, most, steps = [1, 2, 5, 10]) {
    const span = high - low || 1;
    const power = 10 ** Math.floor(Math.log10(span / Math.max(most, 1)));
    const step = (steps.find((s) => span / (s * power) <= most) || 10) * power;
    const found = [];
    for (let t = Math.ceil(low / step - 1e-9) * step; t <= high + 1e-9 * span; t += step) found.push(Math.abs(t) < step * 1e-6 ? 0 : t);
    return found;
  }

  /* Ticks and their words in one unit of time for the whole axis. */
  function timeTicks(low, high, most) {
    const [size, unit] = [[86400, "days"], [3600, "h"], [60, "min"], [1, "s"]].find(([u]) => high - low >= 2 * u) || [1, "s"];
    return ticks(low / size, high / size, most).map((t) => [t * size, `${number(t, 6)} ${unit}`]);
  }

  // --- the frame every chart stands in: canvas, overlay for the cursor, read-out, legend ------------------------------
  function chart(element, spec, draw) {
    let c = charts.get(element);
    if (!c) {
      c = { element, hidden: new Set(), cursor: null };
      element.textContent = "";
      element.classList.add("fc");
      c.stage = element.appendChild(make("div", "fc-stage"));
      c.base = c.stage.appendChild(make("canvas", "fc-canvas"));
      c.over = c.stage.appendChild(make("canvas", "fc-over"));
      c.over.tabIndex = 0;
      c.over.setAttribute("role", "img");
      c.tip = c.stage.appendChild(make("div", "fc-tip"));
      c.tip.setAttribute("role", "status");
      c.tip.hidden = true;
      c.keys = element.appendChild(make("div", "fc-legend"));
      listen(c);
      charts.set(element, c);
      c.watch = new ResizeObserver(() => redraw(c));
      c.watch.observe(element);
    }
    c.spec = spec;
    c.draw = draw;
    redraw(c);
    return c;
  }

  function listen(c) {
    const move = (event) => {
      const box = c.over.getBoundingClientRect();
      point(c, event.clientX - box.left, event.clientY - box.top);
    };
    c.over.addEventListener("pointermove", move);
    c.over.addEventListener("pointerdown", move);
    c.over.addEventListener("pointerleave", () => point(c, null));
    c.over.addEventListener("blur", () => point(c, null));
    c.over.addEventListener("click", (event) => {
      move(event);
      if (c.click) c.click();
    });
    c.over.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (step && c.step) {
        c.step(...step);
        event.preventDefault();
      } else if (event.key === "Enter" && c.click) c.click();
    });
  }

  function redraw(c) {
    const width = c.element.clientWidth;
    if (!width || !c.draw) return;
    const height = c.spec.height || 300;
    const ratio = window.devicePixelRatio || 1;
    for (const canvas of [c.base, c.over]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
      canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    c.width = width;
    c.height = height;
    c.ink = css("--ink");
    c.pale = css("--pale");
    c.rule = css("--rule");
    c.tip.hidden = true;
    c.draw(c, c.base.getContext("2d"));
  }

  function point(c, x, y) {
    const g = c.over.getContext("2d");
    g.clearRect(0, 0, c.width, c.height);
    c.tip.hidden = true;
    if (x !== null && c.hover) c.hover(x, y, g);
  }

  function tell(c, lines, x, y, floor = c.height) {
    c.tip.textContent = "";
    for (const [text, colour] of lines) {
      const row = c.tip.appendChild(make("div", "fc-row"));
      if (colour) row.appendChild(make("span", "fc-dot")).style.background = colour;
      row.appendChild(make("span", "", text));
    }
    c.tip.hidden = false;
    const wide = c.tip.offsetWidth;
    c.tip.style.left = `${Math.max(0, x + 14 + wide > c.width ? x - wide - 14 : x + 14)}px`;
    c.tip.style.top = `${Math.max(0, Math.min(y, floor - c.tip.offsetHeight))}px`;
  }

  function legend(c, entries, toggles) {
    c.keys.textContent = "";
    for (const entry of entries) {
      const key = c.keys.appendChild(make(toggles ? "button" : "span", "fc-key"));
      const swatch = key.appendChild(make("canvas", "fc-swatch"));
      swatch.width = 44;
      swatch.height = 20;
      const g = swatch.getContext("2d");
      g.lineWidth = entry.line ? 5 : 18;
      g.strokeStyle = entry.colour;
      g.setLineDash((entry.dash || []).map((d) => 2 * d));
      g.beginPath();
      g.moveTo(entry.line ? 0 : 12, 10);
      g.lineTo(entry.line ? 44 : 32, 10);
      g.stroke();
      g.setLineDash([]);
      g.fillStyle = entry.colour;
      if (entry.line) mark(g, entry.marker, 22, 10, 8);
      key.appendChild(make("span", "", entry.name));
      if (!toggles) continue;
      key.type = "button";
      key.setAttribute("aria-pressed", String(!c.hidden.has(entry.name)));
      key.addEventListener("click", () => {
        if (!c.hidden.delete(entry.name)) c.hidden.add(entry.name);
        redraw(c);
      });
    }
  }

  function axes(c, g, box, spec) {
    g.font = "12px system-ui, sans-serif";
    g.lineWidth = 1;
    g.textBaseline = "middle";
    for (const t of box.yTicks) {
      const y = Math.round(box.y(t)) + 0.5;
      g.strokeStyle = c.rule;
      g.beginPath();
      g.moveTo(box.left, y);
      g.lineTo(box.right, y);
      g.stroke();
      g.fillStyle = c.pale;
      g.textAlign = "right";
      g.fillText(box.yText(t), box.left - 7, y);
    }
    g.fillStyle = c.pale;
    g.textAlign = "center";
    g.textBaseline = "top";
    for (const [x, text] of box.xTicks) {
      const half = g.measureText(text).width / 2;
      g.fillText(text, Math.min(Math.max(x, half + 2), c.width - half - 2), box.bottom + 7);
    }
    g.strokeStyle = c.pale;
    g.beginPath();
    g.moveTo(box.left, box.bottom + 0.5);
    g.lineTo(box.right, box.bottom + 0.5);
    g.stroke();
    g.fillStyle = c.ink;
    g.fillText(spec.xLabel || "", (box.left + box.right) / 2, box.bottom + 25);
    g.save();
    g.translate(6, (box.top + box.bottom) / 2);
    g.rotate(-Math.PI / 2);
    g.fillText(spec.yLabel || "", 0, 0);
    g.restore();
  }

  function room(c, labels) {
    const g = c.base.getContext("2d");
    g.font = "12px system-ui, sans-serif";
    const wide = Math.max(20, ...labels.map((t) => g.measureText(t).width));
    return { left: wide + 34, right: c.width - 12, top: 10, bottom: c.height - 44 };
  }

  // --- lines --------------------------------------------------------------------------------------------------------
  function reach(series, spec) {
    let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const s of series) {
      for (let i = 0; i < s.x.length; i++) {
        if (!known(s.x[i]) || !known(s.y[i])) continue;
        x0 = Math.min(x0, s.x[i]);
        x1 = Math.max(x1, s.x[i]);
        const [low, high] = [s.low ? s.low[i] : s.y[i], s.high ? s.high[i] : s.y[i]];
        y0 = Math.min(y0, s.y[i], known(low) ? low : Infinity);
        y1 = Math.max(y1, s.y[i], known(high) ? high : -Infinity);
      }
    }
    if (x0 > x1) [x0, x1, y0, y1] = [0, 1, 0, 1];
    if (spec.yRange) [y0, y1] = spec.yRange;
    const pad = (y1 - y0 || Math.abs(y1) || 1) * 0.06;
    y0 = spec.yRange ? y0 : y0 >= 0 ? Math.max(0, y0 - pad) : y0 - pad;
    y1 = spec.yRange ? y1 : spec.yPercent && y1 <= 1 ? Math.min(1, y1 + pad) : y1 + pad;
    return [x0, x1 > x0 ? x1 : x0 + 1, y0, y1 > y0 ? y1 : y0 + 1];
  }

  /* Points to draw: of those that fall on one pixel column only the first, lowest, highest and last. */
  function thin(x, y, toX) {
    const out = [];
    let column = null;
    let held = [];
    const flush = () => {
      if (held.length <= 4) out.push(...held);
      else {
        let [low, high] = [held[0], held[0]];
        for (const i of held) {
          if (y[i] < y[low]) low = i;
          if (y[i] > y[high]) high = i;
        }
        out.push(...[...new Set([held[0], low, high, held[held.length - 1]])].sort((a, b) => a - b));
      }
      held = [];
    };
    for (let i = 0; i < x.length; i++) {
      if (!known(y[i]) || !known(x[i])) continue;
      const at = Math.round(toX(x[i]));
      if (at !== column) flush();
      column = at;
      held.push(i);
    }
    flush();
    return out;
  }

  /* A small shape, the same as in the pictures of matplotlib: o s ^ D v P X *. */
  function mark(g, kind, x, y, r) {
    const polygon = (points) => {
      g.beginPath();
      for (const [a, b] of points) g.lineTo(x + r * a, y + r * b);
      g.closePath();
      g.fill();
    };
    const plus = (c) => [[-c, -1], [c, -1], [c, -c], [1, -c], [1, c], [c, c], [c, 1], [-c, 1], [-c, c], [-1, c], [-1, -c], [-c, -c]];
    const turned = plus(0.4).map(([a, b]) => [0.75 * (a - b), 0.75 * (a + b)]);
    const star = [...Array(10).keys()].map((k) => [(k % 2 ? 0.5 : 1.2) * Math.sin((k * Math.PI) / 5), -(k % 2 ? 0.5 : 1.2) * Math.cos((k * Math.PI) / 5)]);
    const shapes = [
      null, [[-0.85, -0.85], [0.85, -0.85], [0.85, 0.85], [-0.85, 0.85]], [[0, -1.1], [1, 0.8], [-1, 0.8]], [[0, -1.15], [1.15, 0], [0, 1.15], [-1.15, 0]],
      [[0, 1.1], [1, -0.8], [-1, -0.8]], plus(0.4), turned, star,
    ];
    const shape = shapes[(kind || 0) % shapes.length];
    if (shape) polygon(shape);
    else {
      g.beginPath();
      g.arc(x, y, r, 0, 7);
      g.fill();
    }
  }

  /* Corners of a line in pixels, with steps where the series has them. */
  function corners(s, at, values, box) {
    const out = [];
    at.forEach((i, k) => {
      const [x, y] = [box.x(s.x[i]), box.y(values[i])];
      if (k && s.step) {
        const py = out[out.length - 1][1];
        const turn = s.step === "post" ? x : (box.x(s.x[at[k - 1]]) + x) / 2;
        out.push([turn, py], [turn, y]);
      }
      out.push([x, y]);
    });
    return out;
  }

  function drawSeries(g, s, box) {
    const at = thin(s.x, s.y, box.x);
    const banded = s.low && s.high ? at.filter((i) => known(s.low[i]) && known(s.high[i])) : [];
    if (banded.length > 1) {
      g.globalAlpha = 0.16;
      g.fillStyle = s.colour;
      g.beginPath();
      for (const [x, y] of corners(s, banded, s.high, box)) g.lineTo(x, y);
      for (const [x, y] of corners(s, banded, s.low, box).reverse()) g.lineTo(x, y);
      g.fill();
      g.globalAlpha = 1;
    }
    g.strokeStyle = g.fillStyle = s.colour;
    g.lineWidth = 2;
    g.lineJoin = "round";
    g.setLineDash(s.dash);
    g.beginPath();
    for (const [x, y] of corners(s, at, s.y, box)) g.lineTo(x, y);
    g.stroke();
    g.setLineDash([]);
    const every = Math.max(1, Math.floor(at.length / MARKS));
    const first = at.length > MARKS ? Math.floor((s.marker * every) / 8) : 0;
    for (let k = first; k < at.length; k += every) mark(g, s.marker, box.x(s.x[at[k]]), box.y(s.y[at[k]]), 4);
  }

  function nearest(x, wanted) {
    let [low, high] = [0, x.length - 1];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (x[middle] <= wanted) low = middle;
      else high = middle;
    }
    return Math.abs(x[high] - wanted) < Math.abs(x[low] - wanted) ? high : low;
  }

  function drawLines(c, g) {
    const spec = c.spec;
    const all = spec.series.map((s, i) => ({
      ...s,
      colour: css(`--series-${(s.index ?? i) % SERIES}`),
      dash: s.dash || [],
      marker: s.marker ?? i,
      step: spec.step,
    }));
    const shown = all.filter((s) => !c.hidden.has(s.name));
    const [x0, x1, y0, y1] = reach(shown, spec);
    const yText = spec.yPercent ? (v) => `${number(100 * v, 3)} %` : (v) => number(v, 3);
    const xText = spec.xTime ? time : (v) => number(v, 6);
    const yTicks = ticks(y0, y1, Math.max(2, c.height / 52));
    const box = { ...room(c, yTicks.map(yText)), yTicks, yText };
    box.x = (v) => box.left + ((v - x0) / (x1 - x0)) * (box.right - box.left);
    box.y = (v) => box.bottom - ((v - y0) / (y1 - y0)) * (box.bottom - box.top);
    const most = Math.max(2, (box.right - box.left) / 90);
    const whole = (t) => !spec.xWhole || Number.isInteger(t);
    const marks = spec.xTime ? timeTicks(x0, x1, most) : ticks(x0, x1, most).filter(whole).map((t) => [t, xText(t)]);
    box.xTicks = marks.map(([t, text]) => [box.x(t), text]);
    g.clearRect(0, 0, c.width, c.height);
    axes(c, g, box, spec);
    g.save();
    g.beginPath();
    g.rect(box.left, 0, box.right - box.left + 6, box.bottom + 1);
    g.clip();
    for (const s of shown) drawSeries(g, s, box);
    g.restore();
    legend(c, all.map((s) => ({ name: s.name, colour: s.colour, dash: s.dash, marker: s.marker, line: true })), all.length > 1);
    const last = shown.map((s) => `${s.name} ${yText(s.y[s.y.length - 1])}`).slice(0, 12).join(", ");
    c.over.setAttribute("aria-label", `${spec.yLabel || ""} against ${spec.xLabel || ""}; last values: ${last}`);
    c.hover = (px, _, over) => readLines(c, over, px, { shown, box, x0, x1, xText, spec });
    c.step = (dx) => {
      const at = c.cursor === null ? box.left : c.cursor;
      const moved = Math.min(box.right, Math.max(box.left, at + dx * Math.max(4, (box.right - box.left) / 60)));
      point(c, moved, box.top);
    };
    c.click = null;
  }

  function readLines(c, g, px, { shown, box, x0, x1, xText, spec }) {
    if (px < box.left - 8 || px > box.right + 8) return;
    c.cursor = px;
    const wanted = x0 + ((px - box.left) / (box.right - box.left)) * (x1 - x0);
    const form = spec.yPercent ? percent : (v) => number(v);
    const rows = [];
    let at = wanted;
    for (const s of shown) {
      if (!s.x.length) continue;
      const i = nearest(s.x, wanted);
      if (!known(s.y[i]) || Math.abs(box.x(s.x[i]) - px) > 40) continue;
      at = spec.xTime ? wanted : s.x[i];
      const band = s.low && known(s.low[i]) ? ` [${form(s.low[i])}, ${form(s.high[i])}]` : "";
      rows.push({ y: s.y[i], line: [`${s.name}: ${form(s.y[i])}${band}`, s.colour] });
      g.fillStyle = s.colour;
      g.beginPath();
      g.arc(box.x(s.x[i]), box.y(s.y[i]), 3.5, 0, 7);
      g.fill();
    }
    if (!rows.length) return;
    g.strokeStyle = c.pale;
    g.lineWidth = 1;
    g.beginPath();
    g.moveTo(box.x(at), box.top);
    g.lineTo(box.x(at), box.bottom);
    g.stroke();
    rows.sort((a, b) => b.y - a.y);
    const middle = rows.reduce((sum, r) => sum + box.y(r.y), 0) / rows.length;
    const side = middle < (box.top + box.bottom) / 2 ? box.bottom : box.top; /* where the lines are not */
    tell(c, [[`${spec.xLabel || ""} ${xText(at)}`], ...rows.slice(0, 14).map((r) => r.line)], px, side, box.bottom - 6);
  }

  // --- outside ------------------------------------------------------------------------------------------------------
  const all = () => charts.forEach((c, element) => {
    if (element.isConnected) redraw(c);
    else {
      c.watch.disconnect();
      charts.delete(element);
    }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  new MutationObserver(all).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });

  return {
    lines: (element, spec) => chart(element, { height: 320, ...spec }, drawLines),
    redraw: all,
    format: { number, time, percent },
    kit: { chart, point, tell, legend, axes, room, css, known, number, ticks },
  };
})();
