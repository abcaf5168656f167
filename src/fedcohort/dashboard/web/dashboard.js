/* The page at work: what it knows, what it asks for, and what it hears. One stream of events brings only what is new. */
"use strict";

(() => {
  const { el } = Panels;
  const { put } = RunList;
  const MOST = 30; // runs selected at once
  const FIRST = 20; // runs that are shown before anybody selects some
  const state = { runs: new Map(), version: 0, selected: new Map(), number: "accuracy", target: "", focus: "", map: null, slot: null };
  let stream = null;
  let said = "";

  // --- drawing, at most a few times a second --------------------------------------------------------------------------
  const due = new Set();
  function redraw(...what) {
    if (!due.size) setTimeout(draw, 150);
    for (const name of what) due.add(name);
  }

  function draw() {
    const now = new Set(due);
    due.clear();
    if (now.has("list")) RunList.draw(state, toggle, () => redraw("list"));
    const any = state.selected.size > 0;
    el("compare").hidden = el("inside").hidden = !any;
    el("hint").hidden = any;
    put(el("hint"), state.runs.size ? "Select runs in the list to see their curves; several are compared." : "There are no runs here yet. `fedcohort run --selector oort` makes one; it appears by itself.");
    if (!any) return;
    if (now.has("curves")) Panels.drawCurves(state);
    if (now.has("compared")) Panels.drawCompared(state, state.focus);
    if (now.has("map")) Panels.drawMap(state, showClient);
  }

  function say(text) {
    said = text || said;
    const count = (wanted) => [...state.runs.values()].filter((run) => run.state === wanted).length;
    put(el("status"), said === "live" ? `live: ${count("running")} running, ${count("finished")} finished, ${state.runs.size} in all` : said);
  }

  // --- asking ---------------------------------------------------------------------------------------------------------
  async function get(address) {
    const answer = await fetch(address, { cache: "no-store" });
    if (answer.status === 401) throw new Error("locked");
    return answer.ok ? answer.json() : null;
  }

  async function guarded(work) {
    try {
      return await work();
    } catch (error) {
      say(error.message === "locked" ? "The dashboard was started anew: open the address that it printed." : "No answer from the dashboard; trying again.");
      return null;
    }
  }

  async function loadCurve(id) {
    const found = await guarded(() => get(`/api/runs/${id}/curve?name=${encodeURIComponent(state.number)}`));
    const held = state.selected.get(id);
    if (!held) return;
    if (!found) held.error = held.error || "it cannot be read now";
    else if (found.error) held.error = found.error;
    else Object.assign(held, { error: "", born: found.born, next: found.next, round: found.round, clock: found.clock, value: found.value, names: found.names });
    numbers();
    redraw("curves", "compared");
  }

  function numbers() {
    const names = new Set(["accuracy", "loss"]);
    for (const s of state.selected.values()) for (const name of s.names || []) names.add(name);
    RunList.options(el("number"), [...names].map((name) => [name, name]));
    el("number").value = state.number;
  }

  async function loadSummary(id) {
    const held = state.selected.get(id);
    if (!held || held.asking) return;
    held.asking = true;
    const target = state.target === "" ? "" : `?target=${encodeURIComponent(state.target)}`;
    const found = await guarded(() => get(`/api/runs/${id}${target}`));
    held.asking = false;
    if (found && !found.error) held.summary = found;
    redraw("compared");
  }

  async function loadMap() {
    const id = state.focus;
    if (!id) return;
    const found = await guarded(() => get(`/api/runs/${id}/map?last=${el("window").value}`));
    if (!found || found.error || id !== state.focus) return;
    state.map = found;
    redraw("map");
    if (found.next > 0) loadTraits(id, found);
  }

  async function loadTraits(id, map) {
    const found = await guarded(() => get(`/api/runs/${id}/traits`));
    if (!found || found.error || state.map !== map) return;
    const place = new Map(found.slots.map((slot, i) => [slot, i]));
    for (const [name, column] of Object.entries(found.traits)) map.traits[name] = map.slots.map((slot) => column[place.get(slot)] ?? null);
    map.note = found.note;
    redraw("map");
  }

  async function showClient(slot) {
    if (!state.focus || !Number.isInteger(slot) || slot < 0) return;
    const id = state.focus;
    state.slot = slot;
    el("slot").value = slot;
    redraw("map");
    const found = await guarded(() => get(`/api/runs/${id}/clients/${slot}`));
    if (found && id === state.focus && state.slot === slot) Panels.drawClient(found);
  }

  // --- choosing -------------------------------------------------------------------------------------------------------
  /* Select runs, as many as there is room for; those that were added. */
  function take(ids) {
    const fresh = ids.filter((id) => !state.selected.has(id));
    const added = fresh.slice(0, MOST - state.selected.size);
    for (const id of added) state.selected.set(id, { born: 0, next: 0, round: [], clock: [], value: [], error: "" });
    if (added.length < fresh.length) setTimeout(() => say(`At most ${MOST} runs can be selected at once.`), 300);
    return added;
  }

  async function toggle(ids, on) {
    if (!on) for (const id of ids) state.selected.delete(id);
    await changed(on ? take(ids) : []);
  }

  /* What is shown before anybody selects something: the newest run and what can be compared with it. */
  function first() {
    const readable = [...state.runs.values()].filter((run) => run.readable && run.done).sort((a, b) => b.date - a.date);
    const alike = readable.filter((run) => ["world", "task", "method"].every((key) => run[key] === readable[0][key]));
    const out = [];
    for (const runs of Grouping.of(alike).values()) if (out.length + runs.length <= FIRST || !out.length) out.push(...runs.slice(0, FIRST));
    return out.map((run) => run.id);
  }

  async function changed(added) {
    keep();
    if (!state.selected.has(state.focus)) focusOn(state.selected.keys().next().value || "");
    redraw("list", "curves", "compared", "map");
    await Promise.all(added.map(loadCurve));
    for (const id of added) loadSummary(id);
    listen();
  }

  function focusOn(id) {
    state.focus = id;
    state.map = null;
    state.slot = null;
    el("client").hidden = true;
    loadMap();
  }

  function keep() {
    history.replaceState(null, "", state.selected.size ? `#${[...state.selected.keys()].join(",")}` : "/");
  }

  // --- hearing --------------------------------------------------------------------------------------------------------
  function listen() {
    if (stream) stream.close();
    stream = null;
    if (document.hidden) return;
    const places = [...state.selected].filter(([, s]) => !s.error).map(([id, s]) => `${id}:${s.born}:${s.next}`);
    const query = new URLSearchParams({ version: state.version, runs: places.join(","), name: state.number, map: state.focus });
    const own = new EventSource(`/api/events?${query}`);
    stream = own;
    own.addEventListener("open", () => say("live"));
    own.addEventListener("list", (event) => hearList(JSON.parse(event.data)));
    own.addEventListener("rows", (event) => hearRows(JSON.parse(event.data)));
    own.addEventListener("anew", (event) => hearAnew(JSON.parse(event.data).id));
    own.addEventListener("trouble", (event) => hearTrouble(JSON.parse(event.data)));
    own.addEventListener("error", () => {
      if (own !== stream) return;
      say("Connection lost; trying again.");
      if (own.readyState !== EventSource.CLOSED) return;
      setTimeout(async () => {
        if (own === stream && (await guarded(() => get("/api/runs")))) listen();
        else if (own === stream) own.dispatchEvent(new Event("error"));
      }, 3000);
    });
  }

  function hearList({ version, changed: entries, gone }) {
    state.version = version;
    for (const run of entries) state.runs.set(run.id, run);
    let lost = false;
    for (const id of gone) {
      state.runs.delete(id);
      lost = state.selected.delete(id) || lost;
    }
    say("live");
    redraw("list");
    if (lost) changed([]);
  }

  function hearRows({ id, born, next, rows, cells }) {
    const held = state.selected.get(id);
    if (!held || held.born !== born) return;
    for (const [round, clock, value] of rows) {
      if (value === null) continue;
      held.round.push(round);
      held.clock.push(clock);
      held.value.push(value);
    }
    held.next = next;
    redraw("curves");
    later(`summary ${id}`, 2500, () => loadSummary(id));
    if (id !== state.focus || !state.map) return;
    const map = state.map;
    map.cells.push(...cells);
    map.next = next;
    map.first = Math.max(map.first, next - Number(el("window").value));
    redraw("map");
    if (state.slot !== null && cells.some((cell, i) => i % 3 === 1 && cell === state.slot)) later("client", 1500, () => showClient(state.slot));
  }

  const waiting = new Set();
  function later(name, delay, work) {
    if (waiting.has(name)) return;
    waiting.add(name);
    setTimeout(() => {
      waiting.delete(name);
      work();
    }, delay);
  }

  async function hearAnew(id) {
    if (!state.selected.has(id)) return;
    await loadCurve(id);
    loadSummary(id);
    if (id === state.focus) loadMap();
    listen();
  }

  function hearTrouble({ id, error }) {
    const held = state.selected.get(id);
    if (held) held.error = error;
    redraw("compared");
  }

  // --- the beginning --------------------------------------------------------------------------------------------------
  function wire() {
    RunList.heads(() => redraw("list"));
    el("by-group").addEventListener("change", () => redraw("list", "curves", "compared"));
    for (const id of ["find", "by-selector", "by-method", "by-world", "by-task", "by-state"]) el(id).addEventListener("input", () => redraw("list"));
    for (const id of ["filters", "ask-client"]) el(id).addEventListener("submit", (event) => event.preventDefault());
    el("more").addEventListener("click", () => {
      RunList.all();
      redraw("list");
    });
    el("select-shown").addEventListener("click", () => {
      changed(take(RunList.groups(state).flatMap(([, runs]) => runs.filter((run) => run.readable).map((run) => run.id))));
    });
    el("select-none").addEventListener("click", () => {
      state.selected.clear();
      changed([]);
    });
    el("number").addEventListener("change", async () => {
      state.number = el("number").value;
      await Promise.all([...state.selected.keys()].map(loadCurve));
      listen();
    });
    el("target").addEventListener("change", () => {
      state.target = el("target").value;
      for (const id of state.selected.keys()) loadSummary(id);
    });
    el("focus").addEventListener("change", () => {
      focusOn(el("focus").value);
      listen();
    });
    el("window").addEventListener("change", loadMap);
    el("order").addEventListener("change", () => redraw("map"));
    el("ask-client").addEventListener("submit", () => el("slot").value !== "" && showClient(Number(el("slot").value)));
    el("theme").addEventListener("click", () => {
      const root = document.documentElement;
      const dark = (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
      root.dataset.theme = dark ? "light" : "dark";
      redraw("compared");
    });
    document.addEventListener("visibilitychange", listen);
  }

  async function begin() {
    wire();
    const found = await guarded(() => get("/api/runs"));
    if (!found) return;
    hearList({ version: found.version, changed: found.runs, gone: [] });
    const named = location.hash.slice(1).split(",").filter((id) => state.runs.has(id) && state.runs.get(id).readable);
    await changed(take(named.length ? named.slice(0, MOST) : first()));
  }

  begin();
})();
