// Cost over length: which group of records, which quantity, which scales.

let data = null; // the payload, see payload.py
const rowsOf = []; // rows of each group, by contestant and length
const rowsByPlace = [];
const looks = new Map(); // by contestant

const MIB = 2 ** 20;
const METRICS = {
  time: { name: "time", unit: "median ms of one pass, ↓ lower is better", at: (row) => row.median, ends: (row) => [row.low, row.high], guides: true },
  ratio: { name: "time over full's", unit: "time ÷ time of full, ↓ lower is better", at: (row) => (row.name === "full" ? 1 : row.ratio), ends: (row) => [row.ratio_low, row.ratio_high], level: 1 },
  memory: { name: "peak memory", unit: "peak MiB above the inputs, ↓ lower is better", at: (row) => (row.memory ? row.memory / MIB : null), guides: true },
  flops: { name: "arithmetic", unit: "GFLOP of one pass, ↓ less work", at: (row) => (row.flops === null ? null : row.flops / 1e9), guides: true },
  share: { name: "share of peak", unit: "% of what the machine can do, ↑ higher is better", at: (row) => (row.share === null ? null : 100 * row.share) },
};

const FIELDS = {
  pattern: "pattern", pass: "pass", dtype: "number format", scope: "scope", batch: "batch", heads: "heads",
  head_dim: "head dim", key_length: "keys", padding: "padding", device: "device", threads: "threads",
  compile: "compiled", machine: "machine",
};

function valueName(field, value) {
  if (data.names[field]?.[value]) return data.names[field][value];
  if (field === "key_length") return value === null ? "as many as queries" : String(value);
  if (field === "threads") return value === null ? "all cores" : String(value);
  if (field === "padding") return `${Math.round(value * 100)} %`;
  if (field === "compile") return value ? "yes" : "no";
  return String(value) || "unnamed";
}

function groupText(group) {
  const parts = [
    data.names.pattern[group.pattern], data.names.pass[group.pass], `batch ${group.batch}`,
    `${group.heads} heads × ${group.head_dim}`, group.dtype,
    group.threads === null ? group.device : `${group.device}, ${counted(group.threads, "thread")}`, `${group.scope} scope`,
  ];
  if (group.compile) parts.push("compiled");
  if (group.key_length !== null) parts.push(`${group.key_length} keys`);
  if (group.padding) parts.push(`${Math.round(group.padding * 100)} % padding`);
  return parts.join(", ");
}

// Row objects with their words beside their numbers; in the order of the payload.
function readRows() {
  const { costs } = data;
  const names = Object.keys(costs);
  data.contestants.forEach(([name, variant, light, dark, shape, dashes]) =>
    looks.set(name, { variant, light, dark, marker: shape, dashes }));
  data.groups.forEach(() => rowsOf.push([]));
  for (let i = 0; i < costs.length.length; i++) {
    const row = {};
    for (const name of names) row[name] = costs[name][i];
    row.place = i;
    row.name = data.contestants[row.contestant][0];
    row.status = data.statuses[row.status];
    row.reason = row.reason === null ? null : data.reasons[row.reason];
    rowsOf[row.group].push(row);
    rowsByPlace.push(row);
  }
}

const curves = {
  host: null,

  start() {
    this.host = $("curves-body");
    if (!data.groups.length) {
      this.host.append(el("p", { class: "muted" }, "No time or memory was measured."));
      return;
    }
    this.controls = el("div", { class: "controls" });
    this.note = el("p", { class: "muted" });
    this.legend = el("fieldset");
    this.plot = el("div", { id: "curves-chart" });
    this.buttons = el("div", { class: "row" });
    this.below = el("div");
    this.host.append(this.controls, this.note, this.legend, this.plot, this.buttons, this.below);
    this.chart = new Chart(this.plot);
    state.onRestore(() => this.render());
    this.render();
  },

  // The group that agrees with the address in most of its fields, the first ones counting most.
  group() {
    let best = null;
    data.groups.forEach((group, number) => {
      let worth = 0;
      Object.keys(FIELDS).forEach((field, place) => {
        const wanted = state.get(field, null);
        if (wanted !== null && String(group[field]) === wanted) worth += 2 ** (14 - place);
      });
      if (!best || worth > best.worth) best = { number, group, worth };
    });
    return best;
  },

  // Takes the wanted value of one field, and of the groups that have it the one most like the last.
  choose(field, value) {
    const last = this.group().group;
    const alike = (group) => Object.keys(FIELDS).filter((name) => group[name] === last[name]).length;
    const fitting = data.groups.filter((group) => String(group[field]) === value);
    const next = fitting.reduce((best, group) => (alike(group) > alike(best) ? group : best));
    const others = Object.keys(FIELDS).filter((name) => name !== field && next[name] !== last[name]);
    state.set({ ...Object.fromEntries(Object.keys(FIELDS).map((name) => [name, this.varies(name) ? String(next[name]) : null])), zoom: null }, "curves");
    this.render();
    this.note.textContent = others.length
      ? `${groupText(next)}. This combination was measured with another ${others.map((name) => FIELDS[name]).join(", ")}.`
      : groupText(next);
    announce(this.note.textContent);
  },

  varies: (field) => new Set(data.groups.map((group) => group[field])).size > 1,

  set(changes) {
    state.set(changes, "curves");
    this.render();
  },

  render() {
    const { number: place, group } = this.group();
    const rows = rowsOf[place];
    const known = Object.keys(METRICS).filter((key) => rows.some((row) => row.status === "ok" && METRICS[key].at(row) !== null && !(key === "ratio" && row.name === "full")));
    const key = known.includes(state.get("metric")) ? state.get("metric") : (known[0] ?? "time");
    const metric = METRICS[key];
    this.drawControls(group, known, key);
    this.note.textContent = groupText(group) + (group.machine ? `, on ${group.machine}` : "");

    const hidden = new Set(state.get("hide").split("|").filter(Boolean));
    const names = [...new Set(rows.map((row) => row.name))];
    this.drawLegend(names, rows, hidden);
    const shown = names.filter((name) => !hidden.has(name));
    const log = (axis) => state.get(axis, axis === "y" && key === "share" ? "linear" : "log") === "log";
    const series = shown.map((name) => ({
      name,
      look: looks.get(name),
      points: rows.filter((row) => row.name === name && row.status === "ok").map((row) => this.point(row, metric, key)),
    }));
    const failed = rows.filter((row) => shown.includes(row.name) && !["ok", "unsupported"].includes(row.status));
    const zoom = state.get("zoom").split("~").map(Number);
    this.chart.draw({
      label: `${capital(metric.name)} over length, ${groupText(group)}`,
      x: { label: "length N, tokens", log: log("x"), ticks: [...new Set(rows.map((row) => row.length))].sort((a, b) => a - b) },
      y: { label: metric.unit, log: log("y") },
      series,
      marks: failed.map((row) => ({ name: row.name, look: looks.get(row.name), x: row.length, status: row.status })),
      guides: metric.guides && log("x") && log("y") ? [1, 2] : [],
      level: metric.level,
      zoom: zoom.length === 2 && zoom[0] < zoom[1] ? zoom : null,
      onzoom: (ends) => {
        this.set({ zoom: ends ? ends.map((end) => String(Math.round(end))).join("~") : null });
        announce(ends ? `lengths ${Math.round(ends[0])} to ${Math.round(ends[1])}` : "all lengths");
      },
    });
    const zoomer = (text, label, factor) => el("button", {
      type: "button", id: `zoom-${label}`, "aria-label": label, onclick: () => this.chart.zoom(factor),
    }, text);
    refill(this.buttons, zoomer("+", "Zoom in", 0.5), zoomer("−", "Zoom out", 2), zoomer("All lengths", "All lengths", 0),
      el("span", { class: "muted check" }, "Drag over the chart to zoom; arrow keys go from point to point."));
    this.drawTable(rows, shown, metric, group, place);
  },

  point(row, metric, key) {
    const [low, high] = metric.ends?.(row) ?? [null, null];
    const lines = [`N = ${row.length}: ${number(metric.at(row))}${low === null ? "" : ` (${interval(low, high)})`}`, metric.unit.split(",")[0]];
    if (key === "time" && row.ratio !== null) lines.push(`${number(row.ratio)} × the time of full${row.paired ? "" : ", not paired"}`);
    if (key === "memory" && row.resident) lines.push("resident set: tensor bytes unknown");
    if (row.noisy) lines.push("noisy: its interval missed the target");
    return { x: row.length, y: metric.at(row), low, high, text: lines.join("\n") };
  },

  drawControls(group, known, key) {
    const boxes = [];
    boxes.push(select("quantity", known.map((name) => [name, METRICS[name].name]), key, (value) => this.set({ metric: value === "time" ? null : value }), { id: "curves-metric" }));
    for (const [field, label] of Object.entries(FIELDS)) {
      if (!this.varies(field)) continue;
      const values = [...new Set(data.groups.map((one) => one[field]))].sort((a, b) => compare(a ?? "", b ?? ""));
      boxes.push(select(label, values.map((value) => [String(value), valueName(field, value)]), String(group[field]), (value) => this.choose(field, value), { id: `curves-${field}` }));
    }
    for (const [axis, label] of [["x", "length axis"], ["y", "value axis"]]) {
      const usual = axis === "y" && key === "share" ? "linear" : "log";
      boxes.push(select(label, [["log", "logarithmic"], ["linear", "linear"]], state.get(axis, usual), (value) => this.set({ [axis]: value === usual ? null : value }), { id: `curves-${axis}` }));
    }
    refill(this.controls, ...boxes);
  },

  drawLegend(names, rows, hidden) {
    const silent = (name) => rows.filter((row) => row.name === name).every((row) => row.status === "unsupported");
    const boxes = names.map((name) =>
      el("label", { class: "check" },
        el("input", {
          type: "checkbox", checked: !hidden.has(name), id: `show-${name}`,
          onchange: (event) => {
            event.target.checked ? hidden.delete(name) : hidden.add(name);
            this.set({ hide: [...hidden].join("|") });
          },
        }),
        sample(looks.get(name)), name + (silent(name) ? " (unsupported)" : "")));
    refill(this.legend, el("legend", {}, "Shown"), el("div", { class: "legend" }, boxes));
  },

  drawTable(rows, shown, metric, group, place) {
    const lengths = [...new Set(rows.map((row) => row.length))].sort((a, b) => a - b);
    const by = new Map(rows.map((row) => [`${row.name}\n${row.length}`, row]));
    const cell = (name, length) => {
      const row = by.get(`${name}\n${length}`);
      if (!row) return null;
      if (row.status !== "ok") return el("span", { class: "bad", title: row.reason ?? "" }, row.status);
      const [low, high] = metric.ends?.(row) ?? [null, null];
      const ends = low === null ? null : el("small", {}, ` ${interval(low, high)}`);
      return el("span", {}, number(metric.at(row)), row.noisy && metric.ends ? "~" : null, ends);
    };
    const crossings = data.crossovers.filter((one) => one.group === place && shown.includes(one.contestant));
    this.below.replaceChildren(
      el("h3", {}, capital(`${metric.name} by length`)),
      el("p", { class: "muted" }, `${metric.unit}${metric.ends ? "; medians with 95 % intervals; ~ marks noisy ones" : ""}.`),
      plainTable(`${metric.name} by length, ${groupText(group)}`, ["N", ...shown], lengths.map((length) => [length, ...shown.map((name) => cell(name, length))]), shown.map((_, i) => i + 1)),
      ...(crossings.length
        ? [el("h3", {}, "From which length on faster than full"),
          plainTable("Crossovers with full", ["contestant", "faster than full"], crossings.map((one) => [one.contestant, one.text]))]
        : []));
  },
};
