/* Runs that differ only in the seed are one group: its name, its look, its mean and the spread around it. */
"use strict";

const Grouping = (() => {
  const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3]]; // as in fedcohort/looks.py
  const LEAST = 5; // seeds: of fewer, the range is told
  const DRAWS = 1000;
  const POINTS = 240;

  /* Runs by group, in the order in which they come. */
  function of(runs, together = true) {
    const found = new Map();
    for (const run of runs) {
      const key = together && run.group ? run.group : run.id;
      if (!found.has(key)) found.set(key, []);
      found.get(key).push(run);
    }
    return found;
  }

  /* Seeds as a short text: 0-4, 7. */
  function seeds(runs) {
    const all = [...new Set(runs.map((run) => run.seed).filter((seed) => Number.isInteger(seed)))].sort((a, b) => a - b);
    const parts = [];
    for (const seed of all) {
      const last = parts[parts.length - 1];
      if (last && last[1] === seed - 1) last[1] = seed;
      else parts.push([seed, seed]);
    }
    return parts.map(([a, b]) => (a === b ? `${a}` : b === a + 1 ? `${a}, ${b}` : `${a}-${b}`)).join(", ");
  }

  /* What tells groups apart: only the keys in which they differ. */
  function names(groups) {
    const firsts = [...groups.values()].map((runs) => runs[0]);
    const keys = ["selector", "method", "world", "task", "cohort_size", "rounds", "more"].filter((key) => new Set(firsts.map((run) => run[key])).size > 1);
    const word = (run, key) => (key === "cohort_size" ? `${run[key]} a round` : key === "rounds" ? `${run[key]} rounds` : run[key] || (key === "more" ? "all other keys at their defaults" : "–"));
    const counts = new Map();
    const found = new Map();
    for (const [key, runs] of groups) {
      const text = keys.map((k) => word(runs[0], k)).join(", ") || runs[0].selector || runs[0].name;
      found.set(key, text);
      counts.set(text, (counts.get(text) || 0) + 1);
    }
    for (const [key, runs] of groups) {
      if (counts.get(found.get(key)) > 1) found.set(key, `${found.get(key)} (${runs.length > 1 ? `seeds ${seeds(runs)}, ` : Number.isInteger(runs[0].seed) ? `seed ${runs[0].seed}, ` : ""}${runs[0].name})`);
    }
    return found;
  }

  /* The look of every group: that of its selector; where two would look the same, the later one gets another dash, and
     another marker when all dashes are taken. The colour stays that of the selector. */
  function looks(groups) {
    const taken = new Set();
    const found = new Map();
    for (const [key, runs] of groups) {
      const own = runs[0].look || { index: 6, dash: [], marker: 0 };
      const start = Math.max(0, DASHES.findIndex((dash) => dash.join() === own.dash.join()));
      let at = 0;
      const place = () => [own.index, (start + at) % DASHES.length, (own.marker + 3 * at + Math.floor(at / 8)) % 8];
      while (taken.has(place().join()) && at < 8 * DASHES.length) at += 1;
      const [index, row, marker] = place();
      taken.add(place().join());
      found.set(key, { index, dash: DASHES[row], marker });
    }
    return found;
  }

  /* Lower and upper end of what is told beside a mean: the range, or the 95 % bootstrap interval; always the same draws. */
  function spread(values) {
    const n = values.length;
    if (n < 2) return [null, null];
    if (n < LEAST) return [Math.min(...values), Math.max(...values)];
    let seed = 12345;
    const means = new Float64Array(DRAWS);
    for (let d = 0; d < DRAWS; d++) {
      let sum = 0;
      for (let i = 0; i < n; i++) {
        seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
        sum += values[Math.floor((seed / 4294967296) * n)];
      }
      means[d] = sum / n;
    }
    means.sort();
    return [means[Math.floor(0.025 * (DRAWS - 1))], means[Math.ceil(0.975 * (DRAWS - 1))]];
  }

  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

  /* The newest value at x of a curve whose x only grows; undefined before its first. */
  function at(xs, ys, x) {
    let [low, high] = [0, xs.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (xs[middle] <= x) low = middle + 1;
      else high = middle;
    }
    return ys[low - 1];
  }

  /* One series of several curves {round, clock, value}: their mean and spread where all have a value. */
  function band(curves, axis) {
    const all = curves.filter((c) => c.value.length);
    if (all.length < 2) return all.length ? { x: all[0][axis], y: all[0].value } : { x: [], y: [] };
    const [from, to] = [Math.max(...all.map((c) => c[axis][0])), Math.min(...all.map((c) => c[axis][c[axis].length - 1]))];
    const places = all.reduce((a, b) => (a.value.length < b.value.length ? a : b))[axis].filter((x) => x >= from && x <= to);
    const step = Math.max(1, Math.ceil(places.length / POINTS));
    const grid = axis === "clock" ? Array.from({ length: POINTS }, (_, i) => from + ((to - from) * i) / (POINTS - 1)) : places.filter((_, i) => i % step === 0 || i === places.length - 1);
    const out = { x: [], y: [], low: [], high: [] };
    for (const x of from <= to ? grid : []) {
      const values = all.map((c) => at(c[axis], c.value, x));
      const [low, high] = spread(values);
      out.x.push(x);
      out.y.push(mean(values));
      out.low.push(low);
      out.high.push(high);
    }
    return out;
  }

  /* What a band is, for groups of so many runs. */
  function words(counts) {
    const kinds = new Set(counts.filter((n) => n > 1).map((n) => (n < LEAST ? "range" : "interval")));
    if (!kinds.size) return "";
    if (kinds.size > 1) return `Lines are means over seeds; bands the 95 % bootstrap interval, the range of fewer than ${LEAST} seeds.`;
    return kinds.has("range") ? `Lines are means over seeds, bands the range (fewer than ${LEAST} seeds: no interval).` : "Lines are means over seeds, bands the 95 % bootstrap interval.";
  }

  return { of, seeds, names, looks, spread, mean, band, words };
})();
