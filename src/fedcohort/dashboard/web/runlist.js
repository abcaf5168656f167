/* The list of runs: one line per group of seeds (or per run), filtered and sorted. Text goes in as text only. */
"use strict";

const RunList = (() => {
  const el = (id) => document.getElementById(id);
  const { time, percent } = FedCharts.format;
  const KINDS = ["selector", "method", "world", "task", "state"];
  const SHOWN = 200; // lines of the list, until more are asked for
  const COLUMNS = [["selector", "run"], ["world", "setting"], ["done", "rounds"], ["accuracy", "accuracy"], ["clock", "virtual time"], ["state", "state"], ["date", "date"]];
  const RANK = { running: 0, unfinished: 1, finished: 2, damaged: 3, foreign: 4 };
  const list = { rows: new Map(), sort: ["state", 1], limit: SHOWN, order: "", open: new Set() };

  function make(tag, kind, text) {
    const element = document.createElement(tag);
    if (kind) element.className = kind;
    if (text !== undefined && text !== null) element.textContent = text;
    return element;
  }

  function put(element, text, title) {
    if (element.textContent !== text) element.textContent = text;
    if (title !== undefined && element.title !== title) element.title = title;
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

  function date(seconds) {
    if (!seconds) return "–";
    const day = new Date(1000 * seconds);
    const two = (n) => String(n).padStart(2, "0");
    return `${day.getFullYear()}-${two(day.getMonth() + 1)}-${two(day.getDate())} ${two(day.getHours())}:${two(day.getMinutes())}`;
  }

  // --- which, in which order ------------------------------------------------------------------------------------------
  function filter() {
    const text = el("find").value.toLowerCase();
    const seed = text.match(/\bseed[ =:]*(\d+)/); // "seed 3" is that seed, not any 3
    const found = { words: text.replace(seed ? seed[0] : "", "").split(/\s+/).filter(Boolean), seed: seed ? Number(seed[1]) : null };
    for (const kind of KINDS) found[kind] = el(`by-${kind}`).value;
    return found;
  }

  function matches(run, wanted) {
    if (KINDS.some((kind) => wanted[kind] && run[kind] !== wanted[kind])) return false;
    if (wanted.seed !== null && run.seed !== wanted.seed) return false;
    const whole = [run.name, run.selector, run.method, run.world, run.task, run.state, `seed ${run.seed}`, run.note].join(" ").toLowerCase();
    return wanted.words.every((word) => whole.includes(word));
  }

  /* The value of a group: the mean of numbers, the newest date, the state that needs a look first. */
  function value(runs, key) {
    if (key === "state") return Math.min(...runs.map((run) => RANK[run.state]));
    const known = runs.map((run) => run[key]).filter((v) => v !== undefined && v !== null && v !== "");
    if (!known.length) return null;
    if (typeof known[0] === "string") return known[0];
    return key === "date" ? Math.max(...known) : Grouping.mean(known);
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
    const newer = Math.floor(value(b, "date") / 60) - Math.floor(value(a, "date") / 60); // those of a minute by their names
    return newer || a[0].name.localeCompare(b[0].name, "en", { numeric: true });
  }

  function shown(state) {
    const wanted = filter();
    return [...state.runs.values()].filter((run) => matches(run, wanted));
  }

  /* Groups in the wanted order, [key, runs] each, seeds in order. */
  function groups(state) {
    const found = Grouping.of(shown(state), el("by-group").checked);
    for (const runs of found.values()) runs.sort((a, b) => (a.seed ?? 0) - (b.seed ?? 0) || a.name.localeCompare(b.name, "en", { numeric: true }));
    return [...found].sort((a, b) => compare(a[1], b[1]));
  }

  // --- drawing --------------------------------------------------------------------------------------------------------
  function heads(redraw) {
    for (const [key, text] of COLUMNS) {
      el("widths").appendChild(make("col", `w-${key}`));
      const head = el("heads").appendChild(make("th", `c-${key}`));
      head.scope = "col";
      const button = head.appendChild(make("button", "", text));
      button.type = "button";
      button.addEventListener("click", () => {
        list.sort = [key, list.sort[0] === key ? -list.sort[1] : ["accuracy", "date"].includes(key) ? -1 : 1];
        redraw();
      });
    }
  }

  function row(key, toggle, redraw) {
    const tr = make("tr");
    const first = tr.appendChild(make("td", "c-selector"));
    const label = first.appendChild(make("label", "name"));
    const box = label.appendChild(make("input"));
    box.type = "checkbox";
    const made = { tr, box, runs: [] };
    box.addEventListener("change", () => toggle(made.runs.filter((run) => run.readable).map((run) => run.id), box.checked));
    made.swatch = label.appendChild(make("span", "swatch"));
    const words = label.appendChild(make("span", "words"));
    made.title = words.appendChild(make("span", "title"));
    made.sub = words.appendChild(make("span", "sub"));
    made.under = words.appendChild(make("span", "sub narrow"));
    made.note = words.appendChild(make("span", "note"));
    made.more = first.appendChild(make("button", "unfold"));
    made.more.type = "button";
    made.more.addEventListener("click", () => {
      if (!list.open.delete(key)) list.open.add(key);
      redraw();
    });
    const setting = tr.appendChild(make("td", "c-world"));
    made.world = setting.appendChild(make("span", "line"));
    made.task = setting.appendChild(make("span", "line"));
    const done = tr.appendChild(make("td", "c-done number"));
    made.bar = done.appendChild(make("progress"));
    made.bar.setAttribute("aria-hidden", "true");
    made.rounds = done.appendChild(make("span"));
    const accuracy = tr.appendChild(make("td", "c-accuracy number"));
    made.accuracy = accuracy.appendChild(make("span"));
    made.spread = accuracy.appendChild(make("span", "sub"));
    made.clock = tr.appendChild(make("td", "c-clock number"));
    const stand = tr.appendChild(make("td", "c-state"));
    made.state = stand.appendChild(make("span", "state"));
    made.when = stand.appendChild(make("span", "sub narrow"));
    made.date = tr.appendChild(make("td", "c-date number"));
    return made;
  }

  function fill(made, runs, state, child) {
    const first = runs[0];
    const many = runs.length > 1;
    made.runs = runs;
    const on = runs.filter((run) => state.selected.has(run.id)).length;
    made.tr.classList.toggle("chosen", on > 0);
    made.tr.classList.toggle("child", child);
    made.box.checked = on > 0 && on === runs.filter((run) => run.readable).length;
    made.box.indeterminate = on > 0 && !made.box.checked;
    made.box.disabled = !runs.some((run) => run.readable);
    made.swatch.style.background = first.look ? `var(--series-${first.look.index})` : "transparent";
    const name = first.selector || first.name;
    const names = runs.map((run) => run.name).join("\n");
    put(made.title, child ? `seed ${first.seed ?? "–"}` : name, many ? `${name}\n${names}` : `${name}\n${first.name}`);
    put(made.sub, many ? `${runs.length} seeds: ${Grouping.seeds(runs)}` : [!child && Number.isInteger(first.seed) ? `seed ${first.seed}` : "", first.selector ? first.name : ""].filter(Boolean).join(", "), names);
    const size = first.cohort_size ? `${first.cohort_size} a round` : "";
    const setting = [first.world, first.task, first.method, size, first.more].filter(Boolean).join(", ");
    put(made.under, child ? "" : setting, setting);
    put(made.note, first.note || "", first.note || "");
    made.more.hidden = !many;
    const open = list.open.has(first.group);
    put(made.more, open ? "▾" : "▸");
    made.more.setAttribute("aria-expanded", String(open));
    made.more.setAttribute("aria-label", `the ${runs.length} seeds of ${name}`);
    put(made.world, child ? "" : first.world || "–", first.world || "");
    const second = [size, first.more, first.method, first.task].filter(Boolean).join(", ");
    put(made.task, child ? "" : second, setting);
    fillNumbers(made, runs);
  }

  function fillNumbers(made, runs) {
    const sum = (key) => runs.reduce((total, run) => total + (run[key] || 0), 0);
    const readable = runs.filter((run) => run.readable);
    made.bar.hidden = !sum("rounds");
    made.bar.max = sum("rounds") || 1;
    made.bar.value = sum("done");
    const [least, most] = [Math.min(...readable.map((run) => run.done)), Math.max(...readable.map((run) => run.done))];
    const total = runs[0].rounds ? ` / ${runs[0].rounds}` : "";
    put(made.rounds, readable.length ? `${least === most ? most : `${least} to ${most}`}${total}` : "–");
    const known = runs.map((run) => run.accuracy).filter((v) => v !== null && v !== undefined);
    put(made.accuracy, percent(known.length ? Grouping.mean(known) : null));
    const [low, high] = Grouping.spread(known);
    put(made.spread, low === null ? "" : `${(100 * low).toFixed(1)} to ${(100 * high).toFixed(1)}`, known.length < 5 ? "range over seeds" : "95 % bootstrap interval over seeds");
    const clocks = runs.map((run) => run.clock).filter((v) => v !== null && v !== undefined);
    put(made.clock, time(clocks.length ? Grouping.mean(clocks) : null), clocks.length > 1 ? "mean over seeds" : "");
    const worst = runs.reduce((a, b) => (RANK[b.state] < RANK[a.state] ? b : a)).state;
    const count = runs.filter((run) => run.state === worst).length;
    put(made.state, runs.length > 1 && count < runs.length ? `${count} ${worst}` : worst);
    made.state.className = `state ${worst}`;
    for (const place of [made.date, made.when]) put(place, date(value(runs, "date")), "when something was written last");
  }

  function lines(state) {
    const out = [];
    for (const [key, runs] of groups(state)) {
      out.push([key, runs, false]);
      if (runs.length > 1 && list.open.has(key)) for (const run of runs) out.push([run.id, [run], true]);
    }
    return out;
  }

  function draw(state, toggle, redraw) {
    for (const kind of KINDS) {
      const found = [...new Set([...state.runs.values()].map((run) => run[kind]).filter(Boolean))].sort();
      options(el(`by-${kind}`), [["", "all"], ...found.map((name) => [name, name])]);
    }
    const all = lines(state);
    const visible = all.slice(0, list.limit);
    for (const [key, runs, child] of visible) {
      if (!list.rows.has(key)) list.rows.set(key, row(key, toggle, redraw));
      fill(list.rows.get(key), runs, state, child);
    }
    const order = visible.map(([key]) => key).join();
    if (order !== list.order) {
      list.order = order;
      const held = document.activeElement;
      el("runs").tBodies[0].replaceChildren(...visible.map(([key]) => list.rows.get(key).tr));
      if (held && held.isConnected && held !== document.activeElement) held.focus({ preventScroll: true });
    }
    const now = new Set(all.map(([key]) => key));
    for (const key of list.rows.keys()) if (!now.has(key)) list.rows.delete(key);
    [...el("heads").children].forEach((head, i) => {
      if (COLUMNS[i][0] === list.sort[0]) head.setAttribute("aria-sort", list.sort[1] > 0 ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    el("more").hidden = all.length <= list.limit;
    put(el("more"), `show all ${all.length}`);
    put(el("count"), `${shown(state).length} of ${state.runs.size} runs, ${state.selected.size} selected`);
  }

  return { make, put, options, shown, groups, heads, draw, all: () => (list.limit = Infinity) };
})();
