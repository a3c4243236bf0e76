// Tasks: every contestant's mean with its interval and its seeds, beside trivial predictors.

// Metrics within [0, 1]; intervals over few seeds reach beyond.
const SHARES = ["accuracy", "exact_match"];

const accuracy = {
  start() {
    const host = $("accuracy-body");
    if (!data.accuracy.length) {
      host.append(el("p", { class: "muted" }, "No accuracy was measured in these results: efficient-attn sweep measure=accuracy does."));
      return;
    }
    host.append(el("p", { class: "muted" },
      "Means over seeds with 95 % intervals; faint dots are single seeds, dashed lines trivial predictors " +
      "(those far off stand in the table alone). " +
      "The price is how much worse than full, in the metric's own units."));
    data.accuracy.forEach((task) => this.task(host, task));
  },

  task(host, task) {
    const arrow = task.higher ? "↑ higher is better" : "↓ lower is better";
    const plot = el("div", { class: "chart", "aria-hidden": "true" });
    host.append(el("h3", {}, `${task.label}: ${task.metric}, ${arrow}`), plot);
    const ends = (value) => (value === null ? null : el("span", {}, number(value[0]), el("small", {}, ` ${value[1] === null ? "one seed" : interval(value[1], value[2])}`)));
    const rows = task.scores.map((score) => {
      const failed = Object.entries(score.failures).map(([status, count]) => `${counted(count, "seed")} ${status}`).join(", ");
      return [
        score.contestant,
        score.value ? ends(score.value) : el("span", { class: "bad", title: score.reason ?? "" }, score.status),
        ends(score.price),
        score.seeds.length,
        score.parameters === null ? null : score.parameters.toLocaleString("en"),
        number(score.seconds),
        [failed, score.value ? "" : (score.reason ?? "")].filter(Boolean).join(": "),
      ];
    });
    const baselines = Object.entries(task.baselines).map(([name, value]) => [name, number(value), null, null, null, null, "trivial predictor"]);
    host.append(plainTable(`${task.label}: ${task.metric}`, ["contestant", task.metric, "price against full", "seeds", "parameters", "training, s", "remarks"], [...rows, ...baselines], [1, 2, 3, 4, 5]));
    const detailed = task.scores.filter((score) => Object.keys(score.details).length);
    if (detailed.length) {
      host.append(el("details", {}, el("summary", {}, "Further figures"),
        plainTable(`${task.label}: further figures`, ["contestant", "use", "figures"],
          detailed.flatMap((score) => Object.entries(score.details).map(([use, figures]) =>
            [score.contestant, use, Object.entries(figures).map(([name, value]) => `${name} ${number(value)}`).join(", ")])))));
    }
    let width = plot.clientWidth;
    this.draw(plot, task, width);
    new ResizeObserver(() => {
      if (plot.clientWidth !== width) this.draw(plot, task, (width = plot.clientWidth));
    }).observe(plot);
  },

  // The nearest baseline always, farther ones while they at most double what is in view.
  near(baselines, values) {
    let [low, high] = [Math.min(...values), Math.max(...values)];
    const away = ([, value]) => Math.max(low - value, value - high, 0);
    const kept = [];
    for (const line of [...baselines].sort((a, b) => away(a) - away(b))) {
      if (kept.length && away(line) > high - low) continue;
      kept.push(line);
      [low, high] = [Math.min(low, line[1]), Math.max(high, line[1])];
    }
    return kept;
  },

  draw(plot, task, width) {
    const scored = task.scores.filter((score) => score.value);
    if (!scored.length) return;
    const values = scored.flatMap((score) => [...score.seeds, ...score.value.filter((value) => value !== null)]);
    const lines = this.near(Object.entries(task.baselines), values);
    const all = [...values, ...lines.map(([, value]) => value)];
    const reach = Math.max(...all) - Math.min(...all) || 1;
    let [low, high] = [Math.min(...all) - 0.04 * reach, Math.max(...all) + 0.04 * reach];
    if (SHARES.includes(task.metric)) [low, high] = [Math.max(low, -0.04), Math.min(high, 1.06)];
    const longest = Math.max(...scored.map((score) => score.contestant.length));
    const above = 8 + 7.2 * longest > width * 0.42; // no room beside the marks
    const step = above ? 38 : 26;
    const box = { left: above ? 12 : 8 + 7.2 * longest, right: width - 14, top: 8 + 15 * lines.length };
    const height = box.top + step * scored.length + 30;
    const bottom = height - 24;
    const x = scale(low, high, box.left, box.right, false);
    const root = svg("svg", { height, viewBox: `0 0 ${width} ${height}` });
    for (const tick of linearTicks(low, high, Math.max(4, Math.floor((box.right - box.left) / 70)))) {
      root.append(svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: box.top, y2: bottom }));
      root.append(svg("text", { x: x(tick), y: bottom + 16, "text-anchor": "middle" }, plain(tick)));
    }
    lines.forEach(([name, value], level) => {
      const y = 12 + 15 * level;
      const late = x(value) + 6.8 * `${name} ${number(value)}`.length > width;
      root.append(svg("line", { class: "baseline", x1: x(value), x2: x(value), y1: y - 8, y2: bottom, "stroke-dasharray": "5 4" }));
      root.append(svg("text", { x: x(value) + (late ? -5 : 5), y, "text-anchor": late ? "end" : "start" }, `${name} ${number(value)}`));
    });
    scored.forEach((score, row) => {
      const y = box.top + step * row + step - 10;
      const look = looks.get(score.contestant);
      const place = above ? { x: 2, y: y - 13 } : { x: box.left - 10, y: y + 4, "text-anchor": "end" };
      root.append(svg("text", { class: "label", ...place }, score.contestant));
      for (const seed of score.seeds) root.append(svg("circle", { class: "seed", cx: x(seed), cy: y, r: 3, style: colour(look) }));
      const [mean, from, to] = score.value;
      if (from !== null) {
        const [a, b] = [Math.max(x(from), box.left), Math.min(x(to), box.right)];
        const cap = (end, at) => (x(end) === at ? `M${at} ${y - 4}v8` : ""); // none where it goes on
        root.append(svg("path", { class: "whisker", d: `M${a} ${y}H${b}${cap(from, a)}${cap(to, b)}`, style: colour(look) }));
      }
      root.append(marker(look, x(mean), y, 5));
    });
    plot.replaceChildren(root);
  },
};
