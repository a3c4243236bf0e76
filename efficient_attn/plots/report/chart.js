// Curves over length as SVG: hover, arrow keys and drag to zoom; the look of a contestant.

// matplotlib's markers on a circle of radius 1, as polygons; "o" is the circle itself.
const turned = (sides, start) =>
  Array.from({ length: sides }, (_, i) => {
    const angle = ((start + (360 * i) / sides) * Math.PI) / 180;
    return [Math.cos(angle), Math.sin(angle)];
  });
const star = turned(10, -90).map(([x, y], i) => (i % 2 ? [x * 0.45, y * 0.45] : [x, y]));
const plus = [[-1, -3], [1, -3], [1, -1], [3, -1], [3, 1], [1, 1], [1, 3], [-1, 3], [-1, 1], [-3, 1],
  [-3, -1], [-1, -1]].map(([x, y]) => [x / 3, y / 3]);
const SHAPES = {
  s: turned(4, 45), D: turned(4, 0), d: turned(4, 0).map(([x, y]) => [x * 0.65, y]),
  "^": turned(3, -90), v: turned(3, 90), "<": turned(3, 180), ">": turned(3, 0),
  P: plus, p: turned(5, -90), h: turned(6, -90), H: turned(6, 0), 8: turned(8, 22.5), "*": star,
};

const colour = (look) => `--c: light-dark(${look.light}, ${look.dark})`;

function marker(look, x, y, radius, attributes = {}) {
  const shape = SHAPES[look.marker];
  const own = { class: "mark", style: colour(look), ...attributes };
  if (!shape) return svg("circle", { cx: x, cy: y, r: radius, ...own });
  const points = shape.map(([dx, dy]) => `${x + 1.25 * radius * dx},${y + 1.25 * radius * dy}`);
  return svg("polygon", { points: points.join(" "), ...own });
}

const dashed = (look) => (look.dashes.length ? look.dashes.map((part) => 2 * part).join(" ") : null);

function sample(look) {
  return svg(
    "svg",
    { width: 42, height: 14, "aria-hidden": "true" },
    svg("line", { class: "curve", x1: 0, x2: 42, y1: 7, y2: 7, style: colour(look), "stroke-dasharray": dashed(look) }),
    marker(look, 21, 7, 4.5),
  );
}

// Position of values on an axis from pixel `from` to pixel `to`.
function scale(low, high, from, to, log) {
  const turn = log ? Math.log : (value) => value;
  const [a, b] = [turn(low), turn(high)];
  const at = (value) => from + ((turn(value) - a) / (b - a || 1)) * (to - from);
  at.invert = (pixel) => {
    const value = a + ((pixel - from) / (to - from)) * (b - a);
    return log ? Math.exp(value) : value;
  };
  return at;
}

function linearTicks(low, high, most) {
  const rough = (high - low || Math.abs(high) || 1) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((value) => value >= rough);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(i * step);
  return ticks;
}

function logTicks(low, high, most) {
  for (const factors of [[1, 2, 5], [1, 3], [1]]) {
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
      for (const factor of factors) {
        const value = factor * 10 ** power;
        if (value >= low * 0.999 && value <= high * 1.001) ticks.push(value);
      }
    }
    const every = Math.ceil(ticks.length / most);
    if (ticks.length <= most) return ticks.length >= 2 ? ticks : linearTicks(low, high, most).filter((v) => v > 0);
    if (factors.length === 1) return ticks.filter((_, i) => i % every === 0);
  }
  return [];
}

function thinned(values, most) {
  const step = Math.ceil(values.length / most);
  return values.filter((_, i) => (values.length - 1 - i) % step === 0);
}

const plain = (value) => {
  const size = Math.abs(value);
  if (value === 0 || (size >= 1e-3 && size < 1e6)) return String(Number(value.toPrecision(3)));
  return value.toExponential(0);
};

// spec: {label, x: {label, log, ticks}, y: {label, log}, series, marks, guides, zoom, onzoom}
// series: [{name, look, points: [{x, y, low, high, text, hollow}]}]; marks: [{name, look, x, status}]
class Chart {
  constructor(host) {
    this.host = host;
    host.classList.add("chart");
    host.tabIndex = 0;
    host.setAttribute("role", "application");
    host.setAttribute("aria-roledescription", "chart");
    this.tip = el("div", { class: "tip", hidden: true });
    host.addEventListener("keydown", (event) => this.key(event));
    host.addEventListener("blur", () => this.leave());
    host.addEventListener("pointermove", (event) => this.move(event));
    host.addEventListener("pointerdown", (event) => this.press(event));
    host.addEventListener("pointerup", (event) => this.release(event));
    host.addEventListener("pointerleave", () => this.leave());
    host.addEventListener("dblclick", () => this.spec.onzoom?.(null));
    let width = 0;
    new ResizeObserver(() => {
      if (this.spec && host.clientWidth !== width) {
        width = host.clientWidth;
        this.paint();
      }
    }).observe(host);
  }

  draw(spec) {
    this.spec = spec;
    this.active = null;
    this.host.setAttribute(
      "aria-label",
      `${spec.label}. Arrow keys go from point to point and from curve to curve, plus and minus zoom, ` +
        "0 shows all. The same values stand in the table below.",
    );
    this.paint();
  }

  paint() {
    const { spec, host } = this;
    const width = Math.max(host.clientWidth, 260);
    const height = width < 560 ? 320 : 430;
    const box = { left: 56, right: width - (spec.guides?.length ? 34 : 14), top: 26, bottom: height - 42 };
    const shown = (x) => !spec.zoom || (x >= spec.zoom[0] && x <= spec.zoom[1]);
    const usable = (point) => point.y !== null && (!spec.y.log || point.y > 0);
    this.points = spec.series.flatMap((series) =>
      series.points.filter((point) => usable(point) && shown(point.x)).map((point) => ({ ...point, series })));
    const marks = spec.marks.filter((mark) => shown(mark.x));
    const root = svg("svg", { height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    host.replaceChildren(root, this.tip);
    this.tip.hidden = true;
    this.box = box;
    if (!this.points.length) {
      root.append(svg("text", { class: "label", x: width / 2, y: height / 2, "text-anchor": "middle" },
        "Nothing measured here"));
      this.x = null;
      return;
    }
    const xs = [...this.points, ...marks].map((point) => point.x);
    const ends = spec.zoom || [Math.min(...xs), Math.max(...xs)];
    const pad = spec.x.log ? 1.06 : (ends[1] - ends[0]) * 0.03 || 1;
    const from = spec.x.log ? ends[0] / pad : Math.max(0, ends[0] - pad);
    const to = spec.x.log ? ends[1] * pad : ends[1] + pad;
    const values = this.points.flatMap((point) => [point.y, point.low ?? point.y, point.high ?? point.y]);
    const positive = spec.y.log ? values.filter((value) => value > 0) : [...values, 0];
    let [low, high] = [Math.min(...positive), Math.max(...positive)];
    const room = marks.length ? 1.6 : 1.15;
    [low, high] = spec.y.log ? [low / 1.15, high * room ** Math.max(1, Math.log10(high / low))] : [low, high * 1.06 * (marks.length ? 1.12 : 1)];
    const x = (this.x = scale(from, to, box.left, box.right, spec.x.log));
    const y = (this.y = scale(low, high, box.bottom, box.top, spec.y.log));

    const yTicks = (spec.y.log ? logTicks : linearTicks)(low, high, Math.floor((box.bottom - box.top) / 34));
    for (const tick of yTicks) {
      root.append(svg("line", { class: "grid", x1: box.left, x2: box.right, y1: y(tick), y2: y(tick) }));
      root.append(svg("text", { x: box.left - 6, y: y(tick) + 4, "text-anchor": "end" }, plain(tick)));
    }
    const inside = spec.x.ticks.filter((tick) => tick >= from && tick <= to);
    const wide = (box.right - box.left) / 52;
    let xTicks = spec.x.log ? thinned(inside, wide) : linearTicks(from, to, wide);
    if (spec.x.log && xTicks.length < 2) xTicks = logTicks(from, to, wide);
    for (const tick of xTicks) {
      root.append(svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: box.top, y2: box.bottom }));
      root.append(svg("text", { x: x(tick), y: box.bottom + 17, "text-anchor": "middle" }, String(Math.round(tick))));
    }
    root.append(svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
    root.append(svg("text", { class: "label", x: 2, y: 13 }, spec.y.label));
    root.append(svg("text", { class: "label", x: box.right, y: height - 8, "text-anchor": "end" }, spec.x.label));

    const clip = `clip-${host.id}`;
    root.append(svg("clipPath", { id: clip },
      svg("rect", { x: box.left - 8, y: box.top - 8, width: box.right - box.left + 16, height: box.bottom - box.top + 16 })));
    const plot = svg("g", { "clip-path": `url(#${clip})` });
    root.append(plot);
    for (const power of spec.guides || []) {
      const reach = Math.min(to, from * (high / low) ** (1 / power));
      plot.append(svg("line", { class: "guide", x1: x(from), y1: y(low), x2: x(reach), y2: y(low * (reach / from) ** power) }));
      const end = { x: x(reach) + 4, y: Math.max(y(low * (reach / from) ** power), box.top) + 4 };
      root.append(svg("text", end, power === 1 ? "∝ N" : "∝ N²"));
    }
    if (spec.level) {
      plot.append(svg("line", { class: "baseline", x1: box.left, x2: box.right, y1: y(spec.level), y2: y(spec.level), "stroke-dasharray": "6 4" }));
    }
    for (const series of spec.series) this.curve(plot, series, x, y, usable);
    const stacked = new Map();
    for (const mark of marks) {
      const level = stacked.get(mark.x) || 0;
      stacked.set(mark.x, level + 1);
      const [cx, cy] = [x(mark.x), box.top + 8 + 15 * level];
      const cross = `M${cx - 4} ${cy - 4}l8 8m0 -8l-8 8`;
      plot.append(svg("path", { class: "cross", d: cross, style: colour(mark.look) },
        svg("title", {}, `${mark.name}: ${mark.status} at N=${mark.x}`)));
      const left = cx > box.right - 70;
      plot.append(svg("text", { x: cx + (left ? -8 : 8), y: cy + 4, "text-anchor": left ? "end" : "start" }, mark.status));
    }
    this.ring = svg("circle", { class: "ring", r: 9, visibility: "hidden" });
    this.drag = svg("rect", { class: "drag", y: box.top, height: box.bottom - box.top, visibility: "hidden" });
    root.append(this.ring, this.drag);
  }

  curve(plot, series, x, y, usable) {
    const points = series.points.filter(usable);
    const place = (point, value) => `${x(point.x).toFixed(1)} ${y(value).toFixed(1)}`;
    const band = points.filter((point) => point.low > 0 && point.high !== null);
    if (band.length > 1) {
      const upper = band.map((point) => place(point, point.high));
      const lower = band.map((point) => place(point, point.low)).reverse();
      plot.append(svg("path", { class: "band", d: `M${[...upper, ...lower].join("L")}Z`, style: colour(series.look) }));
    }
    if (!series.scatter && points.length) {
      plot.append(svg("path", {
        class: "curve",
        d: `M${points.map((point) => place(point, point.y)).join("L")}`,
        style: colour(series.look),
        "stroke-dasharray": dashed(series.look),
      }));
    }
    for (const point of points) {
      plot.append(marker(series.look, x(point.x), y(point.y), 4, { class: point.hollow ? "mark hollow" : "mark" }));
    }
  }

  nearest(event) {
    const edge = this.host.getBoundingClientRect();
    const [px, py] = [event.clientX - edge.left, event.clientY - edge.top];
    let best = null;
    for (const point of this.points) {
      const distance = Math.hypot(this.x(point.x) - px, this.y(point.y) - py);
      if (distance < (best?.distance ?? 60)) best = { point, distance };
    }
    return best?.point ?? null;
  }

  move(event) {
    if (!this.x) return;
    if (this.start !== undefined && event.pointerType !== "touch") {
      const pixel = event.clientX - this.host.getBoundingClientRect().left;
      const [left, right] = [Math.min(this.start, pixel), Math.max(this.start, pixel)];
      this.drag.setAttribute("visibility", "visible");
      this.drag.setAttribute("x", left);
      this.drag.setAttribute("width", right - left);
      return;
    }
    this.show(this.nearest(event));
  }

  press(event) {
    if (!this.x || event.button !== 0) return;
    if (event.pointerType === "touch") this.show(this.nearest(event));
    else if (this.spec.onzoom) this.start = event.clientX - this.host.getBoundingClientRect().left;
  }

  release(event) {
    if (this.start === undefined) return;
    const end = event.clientX - this.host.getBoundingClientRect().left;
    const [left, right] = [Math.min(this.start, end), Math.max(this.start, end)];
    this.start = undefined;
    this.drag.setAttribute("visibility", "hidden");
    if (right - left > 12) this.spec.onzoom([this.x.invert(left), this.x.invert(right)]);
  }

  leave() {
    this.start = undefined;
    this.drag?.setAttribute("visibility", "hidden");
    this.show(null);
  }

  show(point) {
    this.active = point;
    this.tip.hidden = !point;
    this.ring?.setAttribute("visibility", point ? "visible" : "hidden");
    if (!point) return;
    const [px, py] = [this.x(point.x), this.y(point.y)];
    this.ring.setAttribute("cx", px);
    this.ring.setAttribute("cy", py);
    this.tip.replaceChildren(el("b", {}, point.series.name), point.text);
    const width = this.tip.offsetWidth;
    const left = px + 14 + width > this.host.clientWidth ? px - 14 - width : px + 14;
    this.tip.style.left = `${Math.max(0, left)}px`;
    this.tip.style.top = `${Math.min(py + 8, this.host.clientHeight - this.tip.offsetHeight)}px`;
  }

  key(event) {
    if (event.key === "+" || event.key === "=" || event.key === "-" || event.key === "0") {
      if (this.spec.onzoom) this.zoom(event.key === "0" ? 0 : event.key === "-" ? 2 : 0.5);
    } else if (event.key.startsWith("Arrow") && this.x) this.step(event.key);
    else if (event.key === "Escape") this.show(null);
    else return;
    event.preventDefault();
  }

  // factor: new width of what is seen over the old; 0 shows all.
  zoom(factor) {
    if (!factor || !this.x) return this.spec.onzoom(null);
    const { left, right } = this.box;
    const middle = this.active ? this.x(this.active.x) : (left + right) / 2;
    const reach = (factor * (right - left)) / 2;
    const wanted = [this.x.invert(middle - reach), this.x.invert(middle + reach)];
    const all = this.spec.x.ticks;
    if (wanted[0] <= all[0] && wanted[1] >= all.at(-1)) return this.spec.onzoom(null);
    return this.spec.onzoom(wanted);
  }

  step(key) {
    const all = this.points;
    if (!all.length) return;
    let next = all[0];
    if (this.active) {
      const now = this.active;
      const mine = all.filter((point) => point.series.name === now.series.name);
      const place = mine.findIndex((point) => point.x === now.x);
      if (key === "ArrowRight") next = mine[Math.min(place + 1, mine.length - 1)];
      else if (key === "ArrowLeft") next = mine[Math.max(place - 1, 0)];
      else {
        const near = (point) => Math.abs(this.x(point.x) - this.x(now.x));
        const column = all.filter((point) => near(point) < 1).sort((a, b) => a.y - b.y);
        const level = column.findIndex((point) => point.series.name === now.series.name);
        next = column[Math.min(Math.max(level + (key === "ArrowUp" ? 1 : -1), 0), column.length - 1)];
      }
    }
    this.show(next);
    announce(`${next.series.name}, ${next.text.replaceAll("\n", ", ")}`);
  }
}
