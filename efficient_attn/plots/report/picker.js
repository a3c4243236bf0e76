// The picker: a workload described by hand, the ranking beside it at once.

const CAPABILITY_NAMES = {
  recall: "recall of what was seen far back", locality: "what stands close by",
  hierarchy: "nested structure", "2d": "images and grids", alignment: "one sequence to another",
};

const picker = {
  start() {
    const host = $("pick-body");
    readGrounds();
    if (!grounds.length) {
      host.append(el("p", { class: "muted" }, "No variant's time was measured, so there is nothing to pick from."));
      return;
    }
    this.usual = this.defaults();
    this.form = el("form", { id: "pick-form", "aria-label": "Workload", onsubmit: (event) => event.preventDefault() });
    this.answer = el("div", { id: "pick-answer" });
    this.verdict = el("p", { id: "verdict", class: "verdict", role: "status", "aria-live": "polite" });
    host.append(
      el("p", { class: "muted" }, "The answer is that of ", el("code", {}, "efficient-attn pick"),
        ", from the measurements of this page: sizes that were measured count as they are, others are predicted (≈) by cost models."),
      el("div", { class: "picker" }, this.form, this.verdict, this.answer));
    state.onRestore(() => this.render(true));
    this.render(true);
  },

  // The largest group of variants, and among its lengths the one in the middle.
  defaults() {
    const rows = rowsOf.find((some) => some.some((row) => row.entrant !== null));
    const group = data.groups[rows.find((row) => row.entrant !== null).group];
    const lengths = distinct(rows.map((row) => row.length)).sort((a, b) => a - b);
    const { pattern, batch, heads, head_dim, padding, dtype, device, pass } = group;
    return { length: lengths[Math.floor(lengths.length / 2)], pattern, batch, heads, head_dim, padding, dtype, device, pass };
  },

  get: (name, usual) => state.get(`p.${name}`, usual),

  set(changes, rebuild = false) {
    const named = Object.entries(changes).map(([name, value]) => [`p.${name}`, String(value ?? "") === String(this.usual[name] ?? "") ? null : value]);
    state.set(Object.fromEntries(named), "pick");
    this.render(rebuild);
  },

  // The request as the address has it, with what is wrong with it.
  request() {
    const wrong = [];
    const one = (name, usual, least, label, whole) => {
      const text = this.get(name, "");
      const value = text === "" ? usual : Number(text);
      if (value === null) return null;
      if (!Number.isFinite(value) || value < least || (whole && !Number.isInteger(value))) {
        wrong.push(`${label} ${text}: give a ${whole ? "whole number of at least " : "number above "}${least}`);
      }
      return value;
    };
    const choice = (name) => this.get(name, this.usual[name]);
    const pattern = choice("pattern");
    const length = one("length", this.usual.length, 1, "Length", true);
    const threads = this.get("threads", "");
    const scope = this.get("scope", "");
    const needs = this.needs();
    const request = {
      length, pattern,
      keys: pattern.endsWith("cross") ? one("keys", length, 1, "Keys", true) : length,
      causal: pattern.startsWith("causal"),
      batch: one("batch", this.usual.batch, 1, "Batch", true),
      heads: one("heads", this.usual.heads, 1, "Heads", true),
      head_dim: one("head_dim", this.usual.head_dim, 1, "Head dim", true),
      padding: one("padding", 100 * this.usual.padding, 0, "Padding", false) / 100,
      dtype: choice("dtype"), device: choice("device"), pass: choice("pass"), compile: false,
      threads: threads === "" ? undefined : Number(threads),
      scope: scope === "" ? undefined : scope,
      memory_gb: one("memory", null, 0, "Memory", false),
      time_ms: one("ms", null, 0, "Milliseconds", false),
      need_weights: this.get("weights", "") === "1",
      exact_only: this.get("exact", "") === "1",
      needs,
      tolerance: one("tolerance", 100 * data.picker.tolerance, 0, "Tolerance", false) / 100,
    };
    if (request.padding >= 1) wrong.push("Padding: give less than 100 %");
    if (request.tolerance > 1 || request.tolerance === 0) wrong.push("Tolerance: give 1 to 100 %");
    if (request.memory_gb === 0 || request.time_ms === 0) wrong.push("A limit must be above 0; leave it empty for none");
    return { request, wrong };
  },

  needs() {
    const found = {};
    for (const part of this.get("needs", "").split(",")) {
      const [name, weight] = part.split(":");
      if (data.picker.capabilities.includes(name) && Number(weight) > 0) found[name] = Number(weight);
    }
    return found;
  },

  render(rebuild) {
    const { request, wrong } = this.request();
    if (rebuild) this.drawForm(request);
    if (wrong.length) {
      this.verdict.textContent = `${wrong.join(". ")}.`;
      this.answer.replaceChildren();
      return;
    }
    this.draw(request, rank(request));
  },

  drawForm(request) {
    const numeric = (name, label, value, attributes = {}) =>
      el("label", { class: "field" }, label, el("input", {
        type: "number", id: `pick-${name}`, value: value ?? "", inputmode: "decimal", min: 1, step: 1, placeholder: this.usual[name], ...attributes,
        oninput: (event) => {
          this.set({ [name]: event.target.value });
          if (name === "length") $("pick-slider").value = Math.log2(event.target.value || this.usual.length);
        },
      }));
    const kinds = (field) => distinct(grounds.map(({ ground }) => ground[field]));
    const choose = (name, label, values, rebuild = false) =>
      select(label, values.map((value) => [String(value), valueName(name, value)]), String(request[name]),
        (value) => this.set({ [name]: value }, rebuild), { id: `pick-${name}` });
    const open = (name, label) => kinds(name).length > 1 && select(label,
      [["", "as measured"], ...kinds(name).filter((value) => value !== null).map((value) => [String(value), valueName(name, value)])],
      this.get(name, ""), (value) => this.set({ [name]: value }), { id: `pick-${name}` });
    const slider = el("input", {
      type: "range", id: "pick-slider", min: 4, max: 20, step: 0.25, value: Math.log2(request.length),
      "aria-label": "Length, by a slider", "aria-valuetext": `${request.length} tokens`,
      oninput: (event) => {
        const power = Number(event.target.value);
        const length = Number.isInteger(power) ? 2 ** power : Number((2 ** power).toPrecision(2));
        $("pick-length").value = length;
        event.target.setAttribute("aria-valuetext", `${length} tokens`);
        this.set({ length });
      },
    });
    const rowsKnown = distinct(rowsOf.flat().map((row) => row.size?.pattern).filter(Boolean));
    const patterns = Object.keys(data.names.pattern).filter((name) => rowsKnown.includes(name));
    const flag = (name, label) => check(label, this.get(name, "") === "1", (on) => this.set({ [name]: on ? "1" : "" }), { id: `pick-${name}` });
    refill(this.form,
      el("fieldset", {}, el("legend", { class: "hidden-text" }, "Workload"),
        el("div", { class: "length" }, numeric("length", "length N, tokens", request.length), slider),
        el("div", { class: "fields" },
          choose("pattern", "pattern", patterns, true), choose("pass", "pass", kinds("pass")),
          numeric("batch", "batch", request.batch), numeric("heads", "heads", request.heads),
          numeric("head_dim", "head dim", request.head_dim),
          request.pattern.endsWith("cross") && numeric("keys", "keys M", this.get("keys", ""), { placeholder: "as N" }),
          choose("dtype", "number format", kinds("dtype")),
          kinds("device").length > 1 && choose("device", "device", kinds("device")),
          open("scope", "scope"), open("threads", "threads"),
          kinds("padded").length > 1 && numeric("padding", "padding, %", 100 * request.padding, { min: 0, max: 99, step: "any" }))),
      el("fieldset", {}, el("legend", {}, "Must"),
        el("div", { class: "fields" },
          numeric("memory", "GiB at most", this.get("memory", ""), { min: 0, step: "any", placeholder: "no limit" }),
          numeric("ms", "ms at most", this.get("ms", ""), { min: 0, step: "any", placeholder: "no limit" })),
        el("div", { class: "row" }, flag("weights", "give attention weights"), flag("exact", "be softmax attention"))),
      this.capabilities(request));
  },

  capabilities(request) {
    const measured = new Set(data.picker.shares.map((one) => one.capability));
    const rows = data.picker.capabilities.map((name) => {
      const weight = request.needs[name] ?? 0;
      const shown = el("output", { for: `pick-need-${name}` }, weight || "–");
      return el("label", { class: "need" }, el("span", {}, name, el("small", { class: "muted" }, ` ${CAPABILITY_NAMES[name] ?? ""}${measured.has(name) ? "" : " (not measured here)"}`)),
        el("input", {
          type: "range", id: `pick-need-${name}`, min: 0, max: 5, step: 1, value: weight,
          oninput: (event) => {
            const needs = { ...this.needs(), [name]: Number(event.target.value) };
            shown.textContent = needs[name] || "–";
            this.set({ needs: Object.entries(needs).filter(([, one]) => one > 0).map(([key, one]) => `${key}:${one}`).join(",") });
          },
        }), shown);
    });
    const tolerance = el("label", { class: "field" }, "keep at least, % of full's lead", el("input", {
      type: "number", id: "pick-tolerance", min: 1, max: 100, step: "any", value: this.get("tolerance", String(100 * data.picker.tolerance)),
      oninput: (event) => this.set({ tolerance: event.target.value === String(100 * data.picker.tolerance) ? "" : event.target.value }),
    }));
    return el("fieldset", {}, el("legend", {}, "What the model must be good at, by weight"), rows, tolerance);
  },

  draw(request, found) {
    if (!found) {
      this.verdict.textContent = "These results hold no measurement of this pattern, pass, number format and machine.";
      refill(this.answer, el("p", {}, "To measure it:"), this.code(`efficient-attn sweep ${this.sweepWords(request)}`, "command"));
      return;
    }
    const { choices, rejections, advised } = found;
    this.verdict.textContent = this.words(request, found);
    const needs = Object.keys(request.needs);
    const slowest = Math.max(...choices.map((choice) => choice.time.value));
    const percent = (share) => (share ? `${Math.round(100 * share[0])} %` : "not measured");
    const rows = choices.map((choice, place) => {
      const guess = choice.row ? "" : "≈ ";
      const look = looks.get(choice.row?.name) ?? looks.get(choice.entry) ?? [...looks.values()][0];
      const bar = el("span", { class: "track", "aria-hidden": "true" }, el("i", { style: `${colour(look)};width:${Math.max(1, (100 * choice.time.value) / slowest)}%` }));
      const cells = [
        el("td", { class: "number" }, place + 1),
        el("th", { scope: "row" }, choice.contestant, this.optionText(choice), choice === advised ? el("span", { class: "tag good" }, "advised") : null, choice.tied ? el("span", { class: "tag" }, "ties with the first") : null,
          el("small", { class: "below", title: choice.fit ?? "" }, choice.evidence)),
        el("td", { class: "number" }, guess + number(choice.time.value), choice.noisy && choice.row ? "~" : null, el("small", { class: "below" }, this.ends(choice.time)), bar),
        el("td", { class: "number" }, choice.to_full ? guess + number(choice.to_full.value) : ABSENT, choice.to_full ? el("small", { class: "below" }, this.ends(choice.to_full)) : null),
        el("td", { class: "number" }, choice.memory === null ? ABSENT : guess + number(choice.memory / MIB)),
        needs.length ? el("td", { class: "number" }, percent(choice.kept.share), needs.length > 1 && choice.kept.shares.some((one) => one.share) ? choice.kept.shares.map((one) => el("small", { class: "below" }, `${one.capability} ${percent(one.share)}`)) : null) : null,
      ];
      return el("tr", { class: [choice === advised ? "best" : "", choice.row ? "" : "guess"].join(" ").trim() || null, "data-contestant": choice.contestant }, cells);
    });
    const heads = [["", 1], ["variant"], ["ms (95 %)", 1], ["× full (95 %)", 1], ["peak MiB", 1], ...(needs.length ? [["keeps", 1]] : [])];
    refill(this.answer,
      el("p", { class: "muted" }, this.circumstances(request, found)),
      choices.length > 0 && scrollable("Ranking", el("table", { id: "ranking" },
        el("caption", { class: "hidden-text" }, "Ranking, the best first"),
        el("thead", {}, el("tr", {}, heads.map(([text, isNumber]) => el("th", { scope: "col", class: isNumber ? "number" : null }, text)))),
        el("tbody", {}, rows))),
      ...this.accuracy(choices, request),
      rejections.length > 0 && el("h3", {}, "Out, and why"),
      rejections.length > 0 && el("ul", { id: "rejections" }, rejections.map((one) => el("li", { "data-contestant": one.contestant }, el("b", {}, one.contestant), ` ${this.without(one)}`))),
      advised && el("h3", {}, `To use ${advised.contestant}`),
      advised && this.code(this.snippet(advised, request), "Python"),
      el("p", {}, "The same answer with more of its evidence, on the command line:"),
      this.code(this.command(request), "command"));
  },

  scores: (tasks, choice) => tasks.flatMap((task) =>
    task.scores.filter((score) => entryName(score.contestant) === choice.entry && score.variant === choice.variant)),

  tasksOf: (request) => data.accuracy.filter((task) => task.pattern === request.pattern),

  // Scores of the choices on tasks of the same pattern, with the options that they were trained with.
  accuracy(choices, request) {
    const tasks = this.tasksOf(request);
    if (!tasks.length || !choices.length) return [];
    const cell = (task, choice) => {
      return this.scores([task], choice).map((score) => {
        if (!score.value) return el("div", { class: "bad" }, score.status);
        const other = Object.keys(choice.options).filter((name) => !data.picker.surroundings.includes(name) && name in score.options && plainText(score.options[name]) !== plainText(choice.options[name]));
        const notes = other.sort().map((name) => `${name}=${plainText(score.options[name])}`).join(", ");
        return el("div", {}, number(score.value[0]), score.value[1] === null ? " (one seed)" : ` ± ${number(score.value[2] - score.value[0])}`,
          notes && el("small", {}, el("br"), `trained with ${notes}`));
      });
    };
    return [
      el("h3", {}, "What they reached in accuracy"),
      el("div", { class: "wide" }, plainTable("Accuracy of the choices", ["variant", ...tasks.map((task) => `${task.label}, ${task.metric} ${task.higher ? "↑" : "↓"}`)],
        choices.map((choice) => [choice.contestant, ...tasks.map((task) => cell(task, choice))]))),
    ];
  },

  // Reasons of variants begin with their names.
  without: ({ contestant, reason }) => (reason.startsWith(`${contestant} `) ? reason.slice(contestant.length + 1) : reason),

  ends: ({ low, high }) => interval(Number.isFinite(low) ? low : null, Number.isFinite(high) ? high : null),

  optionText(choice) {
    const own = ownOf(choice.variant, choice.options);
    const name = data.picker.knobs[choice.variant];
    if (own === null || choice.contestant.includes(`${name}=`)) return null;
    return el("small", { class: "muted" }, ` ${name}=${plainText(own)}`);
  },

  words(request, { choices, rejections, advised }) {
    if (!choices.length) return "Nothing fits: see below why.";
    const [best] = choices;
    const times = (ratio) => `${number(ratio.value)}× (${this.ends(ratio)})`;
    const full = choices.find((choice) => choice.contestant === "full");
    const lead = [];
    if (best.variant === "full") {
      lead.push(choices.length === 1 ? "Stay with full: nothing else fits."
        : choices.some((choice) => !choice.enough) ? "Stay with full: nothing faster is shown to keep enough of what matters."
          : "Stay with full: nothing ranked here is faster.");
    } else if (!full || !best.to_full) {
      const out = rejections.find((one) => one.contestant === "full");
      lead.push(`Take ${best.contestant}: the fastest that fits; ${out ? `full is ruled out: it ${out.reason}` : "there is no evidence on full"}.`);
    } else if (advised === full) {
      lead.push(`Stay with full: ${best.contestant} comes first with ${times(best.to_full)} its time, which does not exclude equal speed.`);
    } else if (full.tied) {
      lead.push(`Take ${best.contestant}: it is predicted to need ${times(best.to_full)} the time of full, which is likely but not certain.`);
    } else {
      lead.push(`Take ${best.contestant}: it needs ${times(best.to_full)} the time of full.`);
    }
    if (Object.keys(request.needs).length && !best.enough) {
      lead.push(`Nothing that fits is shown to keep ${Math.round(100 * request.tolerance)} % of full's lead in ${Object.keys(request.needs).join(", ")}.`);
    }
    if (advised === best && best.variant !== "full") {
      const tasks = this.tasksOf(request).filter((task) => this.scores([task], best).length);
      const worse = tasks.filter((task) => this.scores([task], best).some((score) => score.price?.[1] > 0));
      if (!tasks.length) lead.push(`The accuracy of ${best.contestant} was not measured.`);
      if (worse.length) lead.push(`In accuracy it was worse than full on ${worse.map((task) => task.label).join(", ")}, with the options noted below.`);
    }
    const tied = choices.filter((choice) => choice.tied && choice !== advised).map((choice) => choice.contestant);
    if (tied.length) lead.push(`It ties with ${tied.join(", ")}: equal speed is not excluded.`.replace("It", best.contestant));
    if (!best.row) lead.push(`This is ${best.evidence}, not measured.`);
    return lead.join(" ");
  },

  circumstances(request, { ground, fitting, choices }) {
    const text = ({ scope, threads, machine }) => `${scope} scope, ${threads === null ? "all threads" : counted(threads, "thread")}${machine ? `, ${machine}` : ""}`;
    const parts = [`Taken with ${text(ground.ground)}.`];
    const others = fitting.filter((one) => one !== ground);
    if (others.length) parts.push(`Also measured: ${others.map((one) => text(one.ground)).join("; ")}.`);
    if (choices.some((choice) => !choice.row)) parts.push("Values marked ≈ are predictions.");
    if (choices.some((choice) => choice.to_full && choice.row && !choice.to_full.paired)) parts.push("Some ratios compare medians of different runs.");
    if (request.need_weights) parts.push("Times were taken without returning the weights; asking for them costs more.");
    return parts.join(" ");
  },

  code: (text, label) => el("div", { class: "code" }, el("pre", { tabindex: 0 }, el("code", {}, text)), copyable(text, label)),

  command(request) {
    const words = [`--length ${request.length}`, `--pattern ${request.pattern}`];
    const add = (flag, value, usual) => value !== usual && words.push(`--${flag} ${value}`);
    add("batch", request.batch, 1);
    add("heads", request.heads, 8);
    add("head-dim", request.head_dim, 64);
    if (request.keys !== request.length) add("key-length", request.keys);
    add("padding", request.padding, 0);
    add("dtype", request.dtype, "float32");
    add("device", request.device, "cpu");
    if (request.threads !== undefined) add("threads", request.threads);
    if (request.scope !== undefined) add("scope", request.scope);
    add("pass", request.pass, "forward");
    add("memory-gb", request.memory_gb, null);
    add("milliseconds", request.time_ms, null);
    if (request.need_weights) words.push("--need-weights");
    if (request.exact_only) words.push("--exact-only");
    const needs = Object.entries(request.needs).map(([name, weight]) => `${name}=${weight}`);
    if (needs.length) words.push(`--needs ${needs.join(" ")}`);
    add("tolerance", request.tolerance, data.picker.tolerance);
    return `efficient-attn pick ${words.join(" ")} --from ${data.folder}`;
  },

  sweepWords(request) {
    const names = distinct(data.picker.everyone.map(([name]) => entryName(name)));
    const asked = { length: request.length, pattern: request.pattern, batch: request.batch, heads: request.heads, head_dim: request.head_dim, dtype: request.dtype, device: request.device, pass: request.pass };
    if (request.keys !== request.length) asked.key_length = request.keys;
    return [`'attention=[${names.join(",")}]'`, ...Object.entries(asked).map(([name, value]) => `workload.${name}=${value}`)].join(" ");
  },

  snippet(choice, request) {
    const source = (value) =>
      Array.isArray(value) ? `(${value.map(source).join(", ")}${value.length === 1 ? "," : ""})`
        : typeof value === "boolean" ? (value ? "True" : "False") : JSON.stringify(value);
    const given = Object.entries(choice.options).filter(([, value]) => value !== null).flatMap(([name, value]) => {
      if (name === "max_len") return [[name, Math.max(request.length, request.keys)]];
      return name === "grid" && value[0] * value[1] !== request.length ? [] : [[name, value]];
    });
    return [
      "import efficient_attn as ea", "", "attention = ea.MultiHeadAttention(",
      `    embed_dim=${request.heads * request.head_dim},`, `    num_heads=${request.heads},`, `    variant="${choice.variant}",`,
      ...given.map(([name, value]) => `    ${name}=${source(value)},`), ")",
      ...(request.causal ? ["output, _ = attention(x, is_causal=True)"] : []),
    ].join("\n");
  },
};
