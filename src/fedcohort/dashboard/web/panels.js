/* The parts of the page: the list of runs, the comparison, the cohort map, one client. Text goes in as text only. */
"use strict";

const Panels = (() => {
  const el = (id) => document.getElementById(id);
  const { number, time, percent } = FedCharts.format;
  const KINDS = ["selector", "method", "world", "task", "state"];
  const SHOWN = 200; // rows of the list, until more are asked for
  const COLUMNS = [
    ["name", "run"], ["selector", "selector"], ["method", "method"], ["world", "world"], ["task", "task"],
    ["seed", "seed"], ["done", "rounds"], ["accuracy", "accuracy"], ["clock", "virtual time"], ["state", "state"],
  ];

  function make(tag, kind, text) {
    const element = document.createElement(tag);
    if (kind) element.className = kind;
    if (text !== undefined && text !== null) element.textContent = text;
    return element;
  }

  /* Options of a select, the chosen one kept where it still exists. */
  function options(select, entries) {
    const now = JSON.stringify(entries);
    if (select.dataset.entries === now) return;
    select.dataset.entries = now;
    const held = select.value;
    select.textContent = "";
    for (const [value, text] of entries) {
      const option = select.appendChild(make("option", "", text));
      option.value = value;
    }
    if (entries.some(([value]) => value === held)) select.value = held;
  }

  // --- the list -----------------------------------------------------------------------------------------------------
  const list = { rows: new Map(), sort: ["state", 1], limit: SHOWN, order: "" };
  const RANK = { running: 0, unfinished: 1, finished: 2, damaged: 3, foreign: 4 };

  function value(run, key) {
    if (key === "state") return RANK[run.state];
    return run[key] === undefined || run[key] === "" ? null : run[key];
  }

  function compare(a, b) {
    const [key, way] = list.sort;
    const [x, y] = [value(a, key), value(b, key)];
    if (x !== y) {
      if (x === null) return 1;
      if (y === null) return -1;
      const order = typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y;
      if (order) return order * way;
    }
    return a.name.localeCompare(b.name, "en", { numeric: true });
  }

  function matches(run, filter) {
    if (KINDS.some((kind) => filter[kind] && run[kind] !== filter[kind])) return false;
    if (filter.seed !== null && run.seed !== filter.seed) return false;
    const whole = [run.name, run.selector, run.method, run.world, run.task, run.state, `seed ${run.seed}`, run.note].join(" ").toLowerCase();
    return filter.words.every((word) => whole.includes(word));
  }

  function filter() {
    const text = el("find").value.toLowerCase();
    const seed = text.match(/\bseed[ =:]*(\d+)/); // "seed 3" is that seed, not any 3
    const found = { words: text.replace(seed ? seed[0] : "", "").split(/\s+/).filter(Boolean), seed: seed ? Number(seed[1]) : null };
    for (const kind of KINDS) found[kind] = el(`by-${kind}`).value;
    return found;
  }

  function shown(state) {
    const wanted = filter();
    return [...state.runs.values()].filter((run) => matches(run, wanted)).sort(compare);
  }

  function heads(redraw) {
    for (const [key, text] of COLUMNS) {
      const head = el("heads").appendChild(make("th"));
      head.scope = "col";
      const button = head.appendChild(make("button", "", text));
      button.type = "button";
      button.addEventListener("click", () => {
        list.sort = [key, list.sort[0] === key ? -list.sort[1] : key === "accuracy" ? -1 : 1];
        redraw();
      });
    }
  }

  function row(run, toggle) {
    const tr = make("tr");
    const label = tr.appendChild(make("td")).appendChild(make("label", "name"));
    const box = label.appendChild(make("input"));
    box.type = "checkbox";
    box.addEventListener("change", () => toggle(run.id, box.checked));
    const words = label.appendChild(make("span"));
    const cells = { box, words, name: words.appendChild(make("span")), note: words.appendChild(make("div", "note")) };
    for (const [key] of COLUMNS.slice(1)) cells[key] = tr.appendChild(make("td", "number"));
    cells.bar = cells.done.appendChild(make("progress"));
    cells.bar.setAttribute("aria-hidden", "true");
    cells.rounds = cells.done.appendChild(make("span"));
    return { tr, cells };
  }

  function put(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  function fill({ tr, cells }, run, chosen) {
    tr.classList.toggle("chosen", chosen);
    cells.box.checked = chosen;
    cells.box.disabled = !run.readable;
    put(cells.name, run.name);
    put(cells.note, run.note);
    for (const key of ["selector", "method", "world", "task"]) put(cells[key], run[key] || "–");
    put(cells.seed, run.seed === null || run.seed === undefined ? "–" : String(run.seed));
    cells.bar.hidden = !run.rounds;
    cells.bar.max = run.rounds || 1;
    cells.bar.value = run.done || 0;
    put(cells.rounds, run.readable ? `${run.done}${run.rounds ? ` / ${run.rounds}` : ""}` : "–");
    put(cells.accuracy, percent(run.accuracy));
    put(cells.clock, time(run.clock));
    put(cells.state, run.state);
    cells.state.className = `state ${run.state}`;
  }

  function drawList(state, toggle) {
    for (const kind of KINDS) {
      const found = [...new Set([...state.runs.values()].map((run) => run[kind]).filter(Boolean))].sort();
      options(el(`by-${kind}`), [["", "all"], ...found.map((name) => [name, name])]);
    }
    const runs = shown(state);
    const body = el("runs").tBodies[0];
    const visible = runs.slice(0, list.limit);
    for (const run of visible) {
      if (!list.rows.has(run.id)) list.rows.set(run.id, row(run, toggle));
      fill(list.rows.get(run.id), run, state.selected.has(run.id));
    }
    const order = visible.map((run) => run.id).join();
    if (order !== list.order) {
      list.order = order;
      const held = document.activeElement;
      body.replaceChildren(...visible.map((run) => list.rows.get(run.id).tr));
      if (held && held.isConnected && held !== document.activeElement) held.focus({ preventScroll: true });
    }
    for (const id of list.rows.keys()) if (!state.runs.has(id)) list.rows.delete(id);
    [...el("heads").children].forEach((head, i) => {
      const on = COLUMNS[i][0] === list.sort[0];
      if (on) head.setAttribute("aria-sort", list.sort[1] > 0 ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    el("more").hidden = runs.length <= list.limit;
    put(el("more"), `show all ${runs.length}`);
    put(el("count"), `${runs.length} of ${state.runs.size} runs, ${state.selected.size} selected`);
  }

  // --- curves and comparison ------------------------------------------------------------------------------------------
  /* What tells the selected runs apart: only the keys in which they differ. */
  function labels(state) {
    const runs = [...state.selected.keys()].map((id) => state.runs.get(id)).filter(Boolean);
    const keys = ["selector", "method", "world", "task", "seed"].filter((key) => new Set(runs.map((run) => run[key])).size > 1);
    const found = new Map(runs.map((run) => [run.id, keys.map((key) => (key === "seed" ? `seed ${run.seed}` : run[key] || "–")).join(", ") || run.name]));
    const counts = new Map();
    for (const text of found.values()) counts.set(text, (counts.get(text) || 0) + 1);
    for (const run of runs) if (counts.get(found.get(run.id)) > 1) found.set(run.id, `${found.get(run.id)} (${run.name})`);
    return found;
  }

  function drawCurves(state) {
    const names = labels(state);
    const series = (x) => [...state.selected].map(([id, s]) => ({ name: names.get(id) || id, x: s[x], y: s.value }));
    const share = /accuracy|f1|score/.test(state.number);
    const common = { yLabel: state.number, yPercent: share, height: 320 };
    FedCharts.lines(el("by-round"), { ...common, series: series("round"), xLabel: "round", xWhole: true });
    FedCharts.lines(el("by-time"), { ...common, series: series("clock"), xLabel: "virtual time", xTime: true });
  }

  const COMPARED = [
    ["rounds", (s) => number(s.rounds)], ["accuracy", (s) => percent(s.last)],
    ["best", (s) => (s.best === null ? "–" : `${percent(s.best)} (round ${s.best_round})`)],
    ["virtual time", (s) => time(s.clock)],
    ["rounds to target", (s, aimed) => (aimed ? (s.reached_rounds === null ? "not reached" : number(s.reached_rounds)) : "–")],
    ["time to target", (s, aimed) => (aimed ? (s.reached_rounds === null ? "not reached" : time(s.reached_clock)) : "–")],
    ["traffic", (s) => `${number(s.bytes / 1e6, 3)} MB`],
    ["fairness (Jain)", (s) => number(s.jain, 3)], ["clients asked", (s) => percent(s.coverage)],
  ];

  function drawCompared(state, focus) {
    const table = el("compared");
    if (!table.tHead.rows.length) {
      const top = table.tHead.insertRow();
      for (const text of ["run", ...COMPARED.map(([name]) => name)]) {
        const head = top.appendChild(make("th", "", text));
        head.scope = "col";
      }
    }
    const names = labels(state);
    const body = make("tbody");
    let at = 0;
    for (const [id, s] of state.selected) {
      const tr = body.appendChild(make("tr"));
      const head = tr.appendChild(make("td"));
      const swatch = head.appendChild(make("span", "swatch"));
      swatch.style.background = getComputedStyle(document.documentElement).getPropertyValue(`--series-${at++ % 8}`);
      head.appendChild(make("span", "", names.get(id) || id));
      if (s.error) {
        const cell = tr.appendChild(make("td", "bad", s.error));
        cell.colSpan = COMPARED.length;
      } else {
        for (const [, text] of COMPARED) tr.appendChild(make("td", "number", s.summary ? text(s.summary, state.target !== "") : "…"));
      }
    }
    table.replaceChild(body, table.tBodies[0]);
    options(el("focus"), [...state.selected.keys()].map((id) => [id, names.get(id) || id]));
    if (focus) el("focus").value = focus;
  }

  // --- the cohort map -------------------------------------------------------------------------------------------------
  const ORDERS = { slot: "number", asked: "how often asked", skew: "skew", noise: "noise", speed: "speed", samples: "samples" };

  function drawMap(state, choose) {
    const map = state.map;
    if (!map) return;
    const place = new Map(map.slots.map((slot, i) => [slot, i]));
    options(el("order"), ["slot", ...Object.keys(map.traits)].map((key) => [key, ORDERS[key] || key]));
    const key = el("order").value || "slot";
    const order = map.slots.map((_, i) => i);
    if (key !== "slot" && map.traits[key]) {
      const way = key === "asked" ? -1 : 1;
      order.sort((a, b) => way * ((map.traits[key][a] ?? Infinity) - (map.traits[key][b] ?? Infinity)) || a - b);
    }
    const cells = [];
    for (let i = 0; i + 2 < map.cells.length; i += 3) {
      const row = place.get(map.cells[i + 1]);
      if (row !== undefined && map.cells[i] >= map.first) cells.push(map.cells[i] - map.first, row, map.cells[i + 2]);
    }
    const left = map.population - map.slots.length;
    put(el("map-note"), [left > 0 ? `the ${map.slots.length} of ${number(map.population)} clients that were asked most often` : "", map.note].filter(Boolean).join("; "));
    FedCharts.map(el("map"), {
      rows: map.slots.length, columns: Math.max(map.next - map.first, 1), first: map.first, cells, order,
      rowLabels: map.slots, legend: map.legend, mark: place.get(state.slot),
      orderName: key === "slot" ? "client" : `client, by ${ORDERS[key] || key}`,
      readout: (row) => Object.entries(map.traits).map(([name, column]) => `${ORDERS[name] || name} ${number(column[row], 3)}`),
      onClick: (row) => choose(map.slots[row]),
    });
  }

  // --- one client -----------------------------------------------------------------------------------------------------
  function drawClient(found) {
    el("client").hidden = false;
    if (found.error) {
      put(el("client-title"), "");
      put(el("client-words"), found.error);
      return;
    }
    put(el("client-title"), `Client ${found.slot}`);
    const ends = Object.entries(found.outcomes).map(([name, count]) => `${name} ${count}`).join(", ");
    const parts = found.parts.length ? "" : " The selector tells no score parts.";
    put(el("client-words"), found.asked ? `Asked in ${found.asked} of ${found.rounds} rounds: ${ends}.${parts}` : `Never asked in ${found.rounds} rounds.`);
    const x = found.visits.map((visit) => visit.round);
    const pick = (visit, part, key) => (visit.why[part] ? visit.why[part][key] : null);
    el("parts").hidden = !found.parts.length;
    if (found.parts.length) {
      FedCharts.lines(el("parts"), {
        series: found.parts.map((part) => ({ name: part, x, y: found.visits.map((visit) => pick(visit, part, "value")) })),
        xLabel: "round", yLabel: "score part", xWhole: true, height: 240,
      });
    }
    const table = el("visits");
    const top = make("tr");
    for (const text of ["round", "outcome", "seconds", ...found.parts, "reason"]) top.appendChild(make("th", "", text)).scope = "col";
    table.tHead.replaceChildren(top);
    const rows = [...found.visits].reverse().map((visit) => {
      const tr = make("tr");
      tr.appendChild(make("td", "number", visit.round));
      tr.appendChild(make("td", "", visit.outcome || "not back yet"));
      tr.appendChild(make("td", "number", number(visit.seconds, 3)));
      for (const part of found.parts) {
        const mean = pick(visit, part, "mean");
        const above = mean === null ? "" : ` (cohort ${number(mean, 3)})`;
        tr.appendChild(make("td", "number", `${number(pick(visit, part, "value"), 4)}${above}`));
      }
      tr.appendChild(make("td", "", visit.reason || ""));
      return tr;
    });
    table.tBodies[0].replaceChildren(...rows);
  }

  return { el, options, shown, heads, drawList, drawCurves, drawCompared, drawMap, drawClient, put, all: () => (list.limit = Infinity) };
})();
