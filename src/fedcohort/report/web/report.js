/* The page of a report: what is in the element "data", drawn with FedCharts. */
"use strict";

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const by = (id) => document.getElementById(id);
  const { number, time } = FedCharts.format;
  const WORDS = {
    slot: "Clients in the order of their slots.",
    asked: "Most often asked first.",
    skew: "From the most even to the most skewed",
    noise: "From the cleanest labels to the noisiest",
    speed: "From the fastest to the slowest",
    samples: "From the fewest to the most samples",
  };
  const VISITS = 200;
  let run = null;
  let client = null;

  function fill(select, entries) {
    select.textContent = "";
    entries.forEach((text, i) => {
      const option = document.createElement("option");
      option.value = String(i);
      option.textContent = text;
      select.append(option);
    });
  }

  function cell(row, tag, text, kind) {
    const made = document.createElement(tag);
    made.textContent = text;
    if (kind) made.className = kind;
    row.append(made);
  }

  // --- theme --------------------------------------------------------------------------------------------------------
  const dark = () => document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  function label() {
    by("theme").textContent = dark() ? "Light" : "Dark";
  }
  by("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    label();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", label);
  label();

  // --- curves -------------------------------------------------------------------------------------------------------
  function showSetting() {
    const setting = data.settings[Number(by("setting").value)];
    const named = (lines) => lines.map((s) => ({ ...s, name: s.seeds > 1 ? `${s.name} (${s.seeds} seeds)` : s.name }));
    const common = { yLabel: "test accuracy", yPercent: true };
    for (const place of document.querySelectorAll(".band")) place.textContent = setting.band;
    FedCharts.lines(by("by-round"), { ...common, series: named(setting.rounds), xLabel: "round", xWhole: true });
    FedCharts.lines(by("by-time"), { ...common, series: named(setting.time), xLabel: "virtual time", xTime: true, step: "post" });
    FedCharts.lines(by("by-rank"), { series: named(setting.asked), xLabel: "clients, most often asked first", yLabel: "times asked", xWhole: true, step: "mid", height: 260 });
    const at = data.runs.findIndex((r) => r.setting === setting.name);
    if (at >= 0 && (!run || run.setting !== setting.name)) {
      by("run").value = String(at);
      showRun();
    }
  }

  // --- one run ------------------------------------------------------------------------------------------------------
  function showRun() {
    run = data.runs[Number(by("run").value)];
    const orders = Object.keys(run.orders);
    const wanted = by("order").selectedOptions.length ? by("order").selectedOptions[0].textContent : "skew";
    fill(by("order"), orders);
    by("order").value = String(Math.max(0, orders.indexOf(wanted)));
    by("client").max = String(run.population - 1);
    const most = run.traits.asked.indexOf(Math.max(...run.traits.asked, 0));
    if (client === null || run.clients.indexOf(client) < 0) client = run.clients[Math.max(most, 0)];
    const goes = Object.entries(run.goesWith).map(([name, value]) => `${name} ${value.toFixed(2)}`).join(", ");
    by("goes-with").textContent = [goes ? `Times asked goes with (rank correlation): ${goes}.` : "", run.note ? `${run.note[0].toUpperCase()}${run.note.slice(1)}.` : ""].join(" ");
    showOrder();
  }

  function showOrder() {
    const name = Object.keys(run.orders)[Number(by("order").value)];
    const order = run.orders[name];
    by("order-about").textContent = data.about[name] ? `${WORDS[name]}: ${data.about[name]}.` : WORDS[name] || "";
    const some = run.clients.length < run.population ? ` (${run.clients.length} most often asked of ${run.population.toLocaleString("en-US")} clients)` : "";
    FedCharts.map(by("map"), {
      rows: run.clients.length, columns: run.rounds, first: run.first, asked: run.asked, outcomes: run.outcomes,
      legend: run.legend, order, rowLabels: run.names, orderName: `clients by ${name}${some}`,
      mark: run.clients.indexOf(client), readout: (row) => traitLines(row), onClick: (row) => pick(run.clients[row]),
    });
    const names = order.map((row) => `client ${run.names[row]}`);
    FedCharts.bars(by("per-client"), {
      labels: order.map((row) => run.names[row]), names, values: order.map((row) => run.traits.asked[row]),
      xLabel: `clients by ${name}`, yLabel: "times asked", hideLabels: name !== "slot",
      mark: order.indexOf(run.clients.indexOf(client)), onClick: (i) => pick(run.clients[order[i]]),
    });
    histogram();
    showClient();
  }

  function histogram() {
    const counts = run.traits.asked;
    const [least, most] = [Math.min(...counts, Infinity), Math.max(...counts, 0)];
    const from = Number.isFinite(least) ? least : 0;
    const width = Math.max(1, Math.ceil((most - from + 1) / 30));
    const bins = new Array(Math.floor((most - from) / width) + 1).fill(0);
    counts.forEach((n) => (bins[Math.floor((n - from) / width)] += 1));
    const labels = bins.map((_, i) => (width === 1 ? String(from + i) : `${from + i * width}–${from + (i + 1) * width - 1}`));
    const names = labels.map((text) => `asked ${text} times, clients`);
    FedCharts.bars(by("histogram"), { labels, names, values: bins, xLabel: "times asked", yLabel: "clients" });
  }

  function traitLines(row) {
    const form = { skew: (v) => `skew ${number(v, 3)} bits`, noise: (v) => `wrong labels ${(100 * v).toFixed(1)} %`, speed: (v) => `expected ${time(v)}`, samples: (v) => `${v} samples`, asked: (v) => `asked ${v} times` };
    return Object.entries(run.traits).map(([name, values]) => (form[name] ? form[name](values[row]) : `${name} ${values[row]}`));
  }

  // --- why ----------------------------------------------------------------------------------------------------------
  function pick(slot) {
    client = slot;
    showOrder();
  }

  function part(values, at) {
    if (!values || values[at] === null || values[at] === undefined) return "–";
    const others = values.filter((v) => v !== null);
    const mean = others.reduce((a, b) => a + b, 0) / others.length;
    return `${number(values[at])} (cohort ${number(mean)})`;
  }

  function visits(row) {
    const found = [];
    for (let t = run.asked.length - 1; t >= 0; t--) {
      const at = run.asked[t].indexOf(row);
      if (at >= 0) found.push([t, at]);
    }
    return found;
  }

  function showClient() {
    const table = by("why");
    table.textContent = "";
    by("client").value = String(client);
    const row = run.clients.indexOf(client);
    if (row < 0) {
      by("client-about").textContent = client < run.population ? `Client ${client} is not among those shown.` : `There are ${run.population} clients, counted from 0.`;
      return;
    }
    const found = visits(row);
    const shown = found.slice(0, VISITS);
    const more = found.length > shown.length ? `; the newest ${shown.length} are listed` : "";
    by("client-about").textContent = `Client ${run.names[row]}: ${traitLines(row).join(", ")}${more}. Beside each part of the score: the mean of the cohort it was chosen with.`;
    const head = document.createElement("tr");
    for (const name of ["round", "outcome", "seconds", ...run.why.parts]) cell(head, "th", name.replaceAll("_", " "));
    table.createTHead().append(head);
    const body = table.createTBody();
    for (const [t, at] of shown) {
      const line = body.insertRow();
      const index = t + run.first;
      const k = index - run.why.first;
      const reason = run.why.reasons[`${index}/${client}`];
      cell(line, "td", String(index), "number");
      cell(line, "td", run.legend[Number(run.outcomes[t][at])] + (reason ? `: ${reason}` : ""));
      const seconds = k >= 0 && run.why.values.seconds[k];
      cell(line, "td", seconds ? time(seconds[at]) : "–", "number");
      for (const name of run.why.parts) cell(line, "td", k >= 0 ? part(run.why.values[name][k], at) : "–", "number");
    }
  }

  // --- start --------------------------------------------------------------------------------------------------------
  fill(by("setting"), data.settings.map((s) => s.name));
  const most = Math.max(...data.settings.map((s) => s.rounds.length));
  by("setting").value = String(data.settings.findIndex((s) => s.rounds.length === most)); // where there is most to compare
  fill(by("run"), data.runs.map((r) => `${r.entry}, seed ${r.seed}${data.settings.length > 1 ? `, ${r.setting}` : ""}${r.state === "finished" ? "" : ` (${r.state})`}`));
  by("setting").addEventListener("change", showSetting);
  by("run").addEventListener("change", showRun);
  by("order").addEventListener("change", showOrder);
  by("client").addEventListener("change", () => {
    const wanted = Number(by("client").value);
    if (Number.isInteger(wanted) && wanted >= 0) pick(wanted);
  });
  if (!data.runs.length) by("cohorts").hidden = true;
  showSetting();
})();
