// What was run, the table of all measurements, failures by reason, and the machines.

const distinct = (values) => [...new Set(values)];

const records = {
  start() {
    this.rows = rowsOf.flat();
    this.summary();
    this.table();
    this.failures();
    this.environment();
  },

  summary() {
    const { rows } = this;
    const lengths = distinct(rows.map((row) => row.length)).sort((a, b) => a - b);
    const moments = data.environments.flatMap((one) => one.created).filter((moment) => moment !== null);
    const done = rows.filter((row) => row.status === "ok");
    const failed = rows.filter((row) => !["ok", "unsupported"].includes(row.status)).length +
      data.others.filter(([, , , status]) => !["ok", "unsupported"].includes(status)).length;
    const fact = (value, text) => el("li", {}, el("b", {}, value), text);
    const total = Object.values(data.measures).reduce((sum, count) => sum + count, 0);
    const kinds = Object.entries(data.measures).map(([measure, count]) => `${count.toLocaleString("en")} ${measure}`).join(", ");
    const machines = distinct(data.environments.map((one) => one.fields.device_name ?? one.fields.cpu));
    const host = $("summary-body");
    host.append(el("ul", { class: "facts" },
      fact(total.toLocaleString("en"), `records: ${kinds}`),
      fact(String(data.contestants.length), "contestants"),
      lengths.length ? fact(lengths.length === 1 ? lengths[0] : `${lengths[0]}–${lengths.at(-1)}`, `tokens, ${counted(lengths.length, "length")}`) : null,
      fact(String(failed), `${failed === 1 ? "failure" : "failures"}, beside what variants do not support`),
      done.length ? fact(`${number((100 * done.filter((row) => row.noisy).length) / done.length)} %`, "of the times missed their target precision") : null,
      fact(String(machines.length), machines.length === 1 ? "machine" : "machines")));
    const list = (field) => distinct(data.groups.map((group) => group[field])).map((value) => valueName(field, value)).join("; ");
    const pairs = [
      ["contestants", data.contestants.map(([name]) => name).join(", ")],
      ...(data.groups.length ? [["patterns", list("pattern")], ["passes", list("pass")], ["number formats", list("dtype")], ["scopes", list("scope")]] : []),
      ...(data.accuracy.length ? [["tasks", data.accuracy.map((task) => task.label).join(", ")]] : []),
      ["machines", distinct(data.environments.map((one) => `${one.fields.device_name ?? one.fields.cpu ?? "unnamed"}, ${one.fields.cores ?? "?"} cores, ${one.fields.memory_gb ?? "?"} GiB`)).join("; ")],
      ["software", distinct(data.environments.map((one) => `torch ${one.fields.torch}, Python ${one.fields.python}`)).join("; ")],
      ["commits", distinct(data.environments.map((one) => one.fields.git_revision ?? "unknown")).join(", ")],
      ["measured", moments.length ? `${day(Math.min(...moments))} to ${day(Math.max(...moments))} UTC` : "unknown"],
      ["written by", `efficient-attn ${data.version}`],
    ];
    host.append(el("dl", {}, pairs.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])));
    if (data.superseded) host.append(el("p", { class: "muted" }, `${counted(data.superseded, "older record")} of the same question are left out for newer ones.`));
    if (data.left_out.length) {
      host.append(el("details", { class: "bad" }, el("summary", {}, `${counted(data.left_out.length, "file")} could not be read`),
        el("ul", {}, data.left_out.map((text) => el("li", {}, text)))));
    }
  },

  table() {
    const host = $("records-body");
    if (!this.rows.length) return host.append(el("p", { class: "muted" }, "None."));
    const group = (row) => data.groups[row.group];
    const word = (field, label) => ({ key: field, label, filter: true, get: (row) => valueName(field, group(row)[field]) });
    const fields = Object.keys(FIELDS).filter((field) => !["pattern", "pass"].includes(field) && curves.varies(field));
    const options = data.options.map((text) => Object.entries(JSON.parse(text)).filter(([, value]) => value !== null).map(([name, value]) => `${name}=${plainText(value)}`).join(", "));
    const numeric = (key, label, get, show) => ({ key, label, get, show, number: true });
    new DataTable(host, {
      label: "Measurements",
      prefix: "m",
      rows: this.rows,
      columns: [
        { key: "name", label: "contestant", filter: true, get: (row) => row.name },
        word("pattern", "pattern"),
        word("pass", "pass"),
        numeric("length", "N", (row) => row.length),
        { key: "status", label: "status", filter: true, get: (row) => row.status, show: (row) => el("span", { class: row.status === "ok" ? "good" : "bad", title: row.reason ?? "" }, row.status) },
        numeric("median", "ms", (row) => row.median, (row) => row.median === null ? null : el("span", {}, number(row.median), row.noisy ? "~" : null, el("small", {}, ` ${interval(row.low, row.high)}`))),
        numeric("ratio", "÷ full", (row) => row.ratio, (row) => row.ratio === null ? null : el("span", { title: row.paired ? "paired" : "not paired" }, number(row.ratio), el("small", {}, ` ${interval(row.ratio_low, row.ratio_high)}`))),
        numeric("memory", "peak MiB", (row) => row.memory, (row) => (row.memory === null ? null : number(row.memory / MIB))),
        numeric("flops", "GFLOP", (row) => row.flops, (row) => (row.flops === null ? null : number(row.flops / 1e9))),
        numeric("share", "% of peak", (row) => row.share, (row) => (row.share === null ? null : number(100 * row.share))),
        ...fields.map((field) => word(field, FIELDS[field])),
        { key: "options", label: "options", get: (row) => options[row.options] },
        { key: "created", label: "taken, UTC", get: (row) => row.created, show: (row) => day(row.created) },
      ].filter((column) => !column.number || this.rows.some((row) => column.get(row) !== null)),
    });
  },

  failures() {
    const host = $("failures-body");
    const found = [
      ...this.rows.filter((row) => row.status !== "ok").map((row) => ({ what: groupText(data.groups[row.group]), length: row.length, name: row.name, status: row.status, reason: row.reason })),
      ...data.others.filter(([, , , status]) => status !== "ok").map(([measure, what, name, status, reason]) => ({ what: `${measure}: ${what}`, length: null, name, status, reason })),
    ];
    if (!found.length) return host.append(el("p", {}, "Nothing failed, and nothing was unsupported."));
    // One row for each reason: a sweep repeats it at every length.
    const alike = new Map();
    for (const one of found) {
      const key = [one.name, one.status, one.status === "unsupported" ? "" : one.length, one.reason].join("\n");
      if (!alike.has(key)) alike.set(key, { ...one, count: 0, lengths: new Set(), places: new Set() });
      const kept = alike.get(key);
      kept.count += 1;
      if (one.length !== null) kept.lengths.add(one.length);
      kept.places.add(one.what);
    }
    const span = (row) => {
      const lengths = [...row.lengths].sort((a, b) => a - b);
      return lengths.length > 2 ? `${lengths[0]}–${lengths.at(-1)}` : lengths.join(", ");
    };
    new DataTable(host, {
      label: "Failures",
      prefix: "f",
      rows: [...alike.values()],
      sort: "status:up",
      columns: [
        { key: "status", label: "status", filter: true, get: (row) => row.status, show: (row) => el("span", { class: "bad" }, row.status) },
        { key: "name", label: "contestant", filter: true, get: (row) => row.name },
        { key: "length", label: "N", number: true, get: (row) => Math.min(...row.lengths), show: span },
        { key: "count", label: "records", number: true, get: (row) => row.count },
        { key: "reason", label: "reason", long: true, get: (row) => row.reason ?? "", show: (row) => this.reason(row.reason) },
        { key: "where", label: "where", long: true, get: (row) => [...row.places].join("; "), show: (row) => this.places([...row.places]) },
      ],
    });
  },

  reason(text) {
    const [first, ...rest] = (text ?? "no reason given").trim().split("\n");
    return rest.length ? el("details", {}, el("summary", {}, first), el("pre", {}, el("code", {}, rest.join("\n")))) : first;
  },

  places(all) {
    return all.length > 2
      ? el("details", {}, el("summary", {}, counted(all.length, "setting")), el("ul", {}, all.map((text) => el("li", {}, text))))
      : all.join("; ");
  },

  environment() {
    const host = $("environment-body");
    const span = (ends, unit) => ends && (ends[0] === ends[1] ? `${number(ends[0])}${unit}` : `${number(ends[0])} to ${number(ends[1])}${unit}`);
    const scaled = (ends, by) => ends && ends.map((end) => end / by);
    const names = distinct(data.environments.flatMap((one) => Object.keys(one.fields)));
    const shared = names.filter((name) => distinct(data.environments.map((one) => JSON.stringify(one.fields[name]))).length === 1);
    const text = (value) => (value === null || value === undefined ? "not set" : typeof value === "object" ? JSON.stringify(value) : String(value));
    const pairs = (fields, of) => fields.map((name) => [el("dt", {}, name), el("dd", {}, text(of[name]))]);
    if (data.environments.length > 1) {
      host.append(el("h3", {}, `The same in all ${data.environments.length} environments`), el("dl", {}, pairs(shared, data.environments[0]?.fields ?? {})));
    }
    data.environments.forEach((one, place) => {
      const own = data.environments.length > 1 ? names.filter((name) => !shared.includes(name)) : names;
      const measured = {
        records: `${one.records.toLocaleString("en")}, ${one.noisy.toLocaleString("en")} of them noisy`,
        taken: `${day(one.created[0])} to ${day(one.created[1])} UTC`,
        "load before a cell": span(one.load, "") ?? "unknown",
        "best matrix product": span(scaled(one.flops_per_s, 1e9), " GFLOP/s") ?? "not measured",
        "best copy": span(scaled(one.bytes_per_s, 1e9), " GB/s") ?? "not measured",
      };
      const title = `${place + 1}: ${one.fields.device_name ?? one.fields.cpu ?? "unnamed machine"}, ${one.fields.git_revision ?? "unknown commit"}`;
      host.append(el("details", { open: place < 2 }, el("summary", {}, title),
        el("dl", {}, pairs(Object.keys(measured), measured), pairs(own, one.fields))));
    });
  },
};
