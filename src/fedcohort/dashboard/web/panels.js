/* The parts of the page below the list: curves, the comparison, the cohort map, one client. Text goes in as text only. */
"use strict";

const Panels = (() => {
  const el = (id) => document.getElementById(id);
  const { number, time, percent } = FedCharts.format;
  const { make, put, options } = RunList;

  // --- curves and comparison ------------------------------------------------------------------------------------------
  /* The selected runs by group, with what they are called and how they look. */
  function chosen(state) {
    const runs = [...state.selected.keys()].map((id) => state.runs.get(id)).filter(Boolean);
    const groups = Grouping.of(runs, el("by-group").checked);
    return { groups, names: Grouping.names(groups), looks: Grouping.looks(groups) };
  }

  function drawCurves(state) {
    const { groups, names, looks } = chosen(state);
    const series = (axis) => [...groups].map(([key, runs]) => ({
      name: runs.length > 1 ? `${names.get(key)} (${runs.length} seeds)` : names.get(key),
      ...looks.get(key), ...Grouping.band(runs.map((run) => state.selected.get(run.id)), axis),
    }));
    const share = /accuracy|f1|score/.test(state.number);
    const common = { yLabel: state.number === "accuracy" ? "test accuracy" : state.number, yPercent: share, height: 320 };
    FedCharts.lines(el("by-round"), { ...common, series: series("round"), xLabel: "round", xWhole: true });
    FedCharts.lines(el("by-time"), { ...common, series: series("clock"), xLabel: "virtual time", xTime: true, step: "post" });
    const same = [...new Set([...groups.values()].flat().map((run) => [run.world, run.task, run.method].filter(Boolean).join(", ")))];
    put(el("curves-note"), [same.length === 1 ? `${same[0]}.` : "", Grouping.words([...groups.values()].map((runs) => runs.length))].filter(Boolean).join(" "));
  }

  const reached = (key, form) => [(s) => (s.reached_rounds === null ? null : s[key]), form];
  const COMPARED = [
    ["rounds", (s) => s.rounds, number], ["accuracy", (s) => s.last, percent], ["best", (s) => s.best, percent],
    ["virtual time", (s) => s.clock, time],
    ["rounds to target", ...reached("reached_rounds", number), true], ["time to target", ...reached("reached_clock", time), true],
    ["traffic", (s) => s.bytes / 1e6, (v) => `${number(v, 3)} MB`],
    ["fairness (Jain)", (s) => s.jain, (v) => number(v, 3)], ["clients asked", (s) => s.coverage, percent],
  ];

  /* A number of a group: the mean over its seeds, with the lowest and the highest in the title. */
  function told(summaries, [, pick, form, aimed], target) {
    if (aimed && target === "") return ["–", ""];
    const known = summaries.map(pick).filter((v) => v !== null && v !== undefined);
    const missing = summaries.length - known.length;
    if (!known.length) return [aimed ? "not reached" : "–", ""];
    const part = missing && aimed ? ` (in ${known.length} of ${summaries.length})` : "";
    return [form(Grouping.mean(known)) + part, known.length > 1 ? `mean over seeds; lowest ${form(Math.min(...known))}, highest ${form(Math.max(...known))}` : ""];
  }

  function drawCompared(state, focus) {
    const table = el("compared");
    if (!table.tHead.rows.length) {
      const top = table.tHead.insertRow();
      for (const text of ["run", ...COMPARED.map(([name]) => name)]) {
        const head = top.appendChild(make("th", "", text));
        head.scope = "col";
      }
    }
    const { groups, names, looks } = chosen(state);
    const body = make("tbody");
    for (const [key, runs] of groups) {
      const tr = body.appendChild(make("tr"));
      const head = tr.appendChild(make("td"));
      head.appendChild(make("span", "swatch")).style.background = `var(--series-${looks.get(key).index})`;
      head.appendChild(make("span", "", names.get(key) + (runs.length > 1 ? ` (${runs.length} seeds)` : "")));
      const held = runs.map((run) => state.selected.get(run.id));
      const trouble = held.map((s) => s.error).filter(Boolean);
      const summaries = held.map((s) => s.summary).filter(Boolean);
      if (trouble.length) {
        const cell = tr.appendChild(make("td", "bad", trouble[0]));
        cell.colSpan = COMPARED.length;
      } else {
        for (const column of COMPARED) {
          const [text, title] = summaries.length ? told(summaries, column, state.target) : ["…", ""];
          tr.appendChild(make("td", "number", text)).title = title;
        }
      }
    }
    table.replaceChild(body, table.tBodies[0]);
    const each = Grouping.names(Grouping.of([...groups.values()].flat(), false));
    const seeded = (run) => (groups.size < each.size && Number.isInteger(run.seed) ? `seed ${run.seed}, ` : "");
    options(el("focus"), [...groups].flatMap(([key, runs]) => runs.map((run) => [run.id, runs.length > 1 ? `${names.get(key)}, ${seeded(run)}${run.name}` : names.get(key)])));
    if (focus) el("focus").value = focus;
  }

  // --- the cohort map -------------------------------------------------------------------------------------------------
  const ORDERS = { slot: "number", asked: "how often asked", skew: "skew", noise: "noise", speed: "speed", samples: "samples" };

  function drawMap(state, choose) {
    const map = state.map;
    if (!map) return;
    const place = new Map(map.slots.map((slot, i) => [slot, i]));
    const differ = (column) => new Set(column).size > 1; // an order by what all have in common would only look like one
    options(el("order"), ["slot", ...Object.keys(map.traits).filter((name) => differ(map.traits[name]))].map((key) => [key, ORDERS[key] || key]));
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
      rowLabels: map.names, legend: map.legend, mark: place.get(state.slot),
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
    put(el("client-title"), `Client ${found.name}`);
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

  return { el, drawCurves, drawCompared, drawMap, drawClient };
})();
