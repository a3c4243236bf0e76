// The rule of `efficient-attn pick`, on the same numbers. Each function has its twin in Python:
// analysis/predict.py (predicted), knobs.py, kept.py, candidates.py (judged), judge.py and pick.py.

const GIB = 2 ** 30;
const HAPPENED = {
  oom: "ran out of memory", timeout: "ran out of time", crashed: "crashed",
  unsupported: "does not support this", diverged: "diverged",
};

const plainText = (value) => (typeof value === "string" ? value : JSON.stringify(value ?? null));
const ownOf = (variant, options) => options[data.picker.knobs[variant]] ?? null;
const entryName = (contestant) => contestant.split(" (", 1)[0];
const sum = (values) => values.reduce((total, value) => total + value, 0);

// Python's :.3g and :g.
function general(value, digits = 6) {
  const power = value === 0 ? 0 : Math.floor(Math.log10(Number(Math.abs(value).toPrecision(digits))));
  if (power >= -4 && power < digits) return String(Number(value.toPrecision(digits)));
  const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
  return `${Number(mantissa)}e${exponent[0]}${exponent.slice(1).padStart(2, "0")}`;
}

function knob(variant, options, length, keys, causal) {
  const value = ownOf(variant, options);
  if (value === null) return 1;
  const pair = Array.isArray(value);
  if (variant === "local_window") return Math.min(1 + sum(sides(value, causal)), keys);
  if (variant === "shifted_window") {
    return Math.min(pair ? value.reduce((product, side) => product * side, 1) : value, length);
  }
  return value;
}

const sides = (window, causal) => {
  const [left, right] = Array.isArray(window) ? window : [window, window];
  return [left, causal ? 0 : right];
};

// K of the cost models; size: {length, keys, causal, pass}.
function scored(variant, options, size) {
  const { length, keys, causal } = size;
  const { block, whole } = data.picker.kernels;
  const reach = knob(variant, options, length, keys, causal);
  if (size.pass === "prefill" || size.pass === "decode") return reach;
  if (variant === "shifted_window" && length <= whole && !options.relative_bias) return length;
  if (variant !== "local_window" || ownOf(variant, options) === null) return reach;
  const backward = size.pass !== "forward";
  const width = sum(sides(options.window, causal).map((side) => Math.min(side, length - 1)));
  if (length <= (backward ? width + 4 * block : 1.5 * (width + block))) return keys;
  return Math.min(width + (backward && width > block ? block : block / 2), keys);
}

function isExact(variant, options, length, causal) {
  if (variant === "full") return true;
  const value = options.window;
  if (variant === "local_window") {
    const [left, right] = Array.isArray(value) ? value : [value, value];
    return left >= length - 1 && (causal || right >= length - 1);
  }
  if (variant === "shifted_window") {
    const alone = options.shift === 0 && !options.relative_bias;
    return alone && (options.grid ?? null) === null && !Array.isArray(value) && value >= length;
  }
  return false;
}

const TERMS = {
  1: () => 1,
  GSKd: (x) => tokens(x) * x.knob * x.head_dim,
  GSd: (x) => tokens(x) * x.head_dim,
  GSK: (x) => tokens(x) * x.knob,
  GS: (x) => tokens(x),
  G: (x) => x.batch * x.heads,
  BSE2: (x) => x.batch * (x.length + x.keys) * (x.heads * x.head_dim) ** 2,
  GNMd: (x) => pairs(x) * x.head_dim,
  GNM: (x) => pairs(x),
};
const tokens = (x) => x.batch * x.heads * (x.length + x.keys);
const pairs = (x) => x.batch * x.heads * x.length * x.keys;

const coordinates = (x) => [
  Math.log2(x.batch * x.heads), Math.log2(x.length), Math.log2(x.keys / x.length),
  Math.log2(x.head_dim), Math.log2(x.knob), 4 * x.padding,
];

// c and v of a correction at coordinates u.
function corrected(correction, u) {
  if (!correction.points.length) return { c: 0, v: 0 };
  let c = 0;
  let nearest = 0;
  correction.points.forEach((point, i) => {
    const near = u.map((value, axis) => Math.exp(-0.5 * ((value - point[axis]) / correction.scale) ** 2));
    const product = near.reduce((all, one) => all * one, 1);
    c += correction.alphas[i] * (0.5 * (sum(near) / near.length) + 0.5 * product);
    nearest = Math.max(nearest, product);
  });
  return { c, v: correction.noise ** 2 + correction.spread ** 2 * (1 - nearest) };
}

// Value and range of a cost model at a size; a text where there is no prediction.
function predicted(model, size) {
  const longest = Math.max(size.length, size.keys);
  if (longest > data.picker.longest) {
    return `length=${longest} lies beyond ${data.picker.longest} tokens, up to which costs are predicted: measure it`;
  }
  const u = coordinates(size);
  const own = corrected(model.own, u);
  const common = corrected(model.common, u.filter((_, axis) => data.picker.axes[axis] !== "knob"));
  const physics = sum(Object.entries(model.weights).map(([name, weight]) => weight * TERMS[name](size)));
  const value = physics * Math.exp(own.c + common.c);
  const beyond = u.map((at, axis) => Math.max(model.low[axis] - at, at - model.high[axis], 0)).map((far) => (far < 1e-9 ? 0 : far));
  const doubt = 1 + sum(beyond) / 2;
  const h = model.quantile * Math.sqrt(own.v + common.v) * doubt;
  const outside = data.picker.axes.filter((_, axis) => beyond[axis] > 0);
  const pair_width = model.pair_quantile * Math.sqrt(own.v) * doubt;
  return { value, low: value * Math.exp(-h), high: value * Math.exp(h), pair_width, outside };
}

// What a contestant keeps of full's lead in what matters.
function kept(entrant, options, reach, exact, request) {
  const known = data.picker.shares.filter((one) => one.variant === entrant.variant && one.knob <= reach);
  const shares = Object.entries(request.needs).map(([capability, weight]) => {
    if (exact) return { capability, weight, share: [1, 1, 1], note: "softmax attention itself" };
    const about = known.filter((one) => one.capability === capability);
    const here = about.filter((one) => one.pattern === request.pattern);
    const best = new Map();
    for (const one of here.length ? here : about) {
      if (!best.has(one.task) || best.get(one.task).knob < one.knob) best.set(one.task, one);
    }
    const taken = [...best.values()];
    if (!taken.length) return { capability, weight, share: null, note: "not measured" };
    const share = [0, 1, 2].map((end) => sum(taken.map((one) => one.share[end])) / taken.length);
    return { capability, weight, share, note: taken.map((one) => one.task).join("; ") };
  });
  const weights = sum(shares.map((one) => one.weight));
  const share = shares.every((one) => one.share)
    ? [0, 1, 2].map((end) => sum(shares.map((one) => one.weight * one.share[end])) / weights)
    : null;
  return { share, enough: share !== null && share[0] >= request.tolerance, shares };
}

// Rows by entrant, made once: {…entrant, rows, done, name} for every entrant of every ground.
const grounds = [];
function readGrounds() {
  const optionSets = data.options.map((text) => JSON.parse(text));
  const entrants = [];
  for (const told of data.picker.grounds) {
    const members = told.entrants.map((entrant) => ({ ...entrant, rows: [], done: [] }));
    entrants.push(...members);
    grounds.push({ ...told, entrants: members });
  }
  for (const row of rowsOf.flat()) {
    if (row.entrant === null) continue;
    const entrant = entrants[row.entrant];
    const group = data.groups[row.group];
    row.set = optionSets[row.options];
    row.own = plainText(ownOf(entrant.variant, row.set));
    row.size = { ...group, length: row.length, keys: group.key_length ?? row.length, causal: group.pattern.startsWith("causal") };
    row.size.knob = scored(entrant.variant, row.set, row.size);
    entrant.rows.push(row);
    if (row.status === "ok") entrant.done.push(row);
  }
  for (const { rows, done } of entrants) {
    rows.sort((a, b) => a.created - b.created);
    done.sort((a, b) => a.created - b.created);
  }
}

const sameSize = (row, request) =>
  ["pattern", "length", "keys", "batch", "heads", "head_dim", "padding"].every((name) => row.size[name] === request[name]);

function failure(row) {
  const lines = (row.reason ?? "").trim().split("\n");
  if (row.status === "unsupported" && lines[0]) return lines[0];
  return `${HAPPENED[row.status]} at N=${row.length}${lines[0] ? `: ${lines[0]}` : ""}`;
}

// The newest row of each set of options at the requested size, in the order they first appear.
function atSize(entrant, request) {
  const sets = new Map();
  for (const row of entrant.rows) if (sameSize(row, request)) sets.set(row.own, row);
  return sets;
}

function blocked(entrant, size) {
  const within = (small, large) =>
    small.batch * small.heads <= large.batch * large.heads &&
    ["length", "keys", "head_dim", "knob"].every((name) => small[name] <= large[name]);
  const failed = entrant.rows.filter((row) => row.status === "oom" || row.status === "timeout");
  for (const row of failed.sort((a, b) => a.length - b.length)) {
    if (within(row.size, size) && !entrant.done.some((one) => within(row.size, one.size))) {
      return failure(row).replace(` at N=`, ` already at N=`);
    }
  }
  return null;
}

// Time and memory of an entrant with these options, or why they are not known.
function costOf(entrant, options, request) {
  const own = plainText(ownOf(entrant.variant, options));
  const row = atSize(entrant, request).get(own);
  if (row && row.status !== "ok") return failure(row);
  if (row) {
    const time = { value: row.median, low: row.low ?? -Infinity, high: row.high ?? Infinity };
    return { evidence: "measured", time, memory: row.memory, noisy: Boolean(row.noisy), row };
  }
  if (!entrant.done.length) return failure(rowsByPlace[entrant.first]);
  const size = { ...request, knob: scored(entrant.variant, options, request) };
  const reason = blocked(entrant, size);
  if (reason) return reason;
  if (!entrant.time) {
    const lengths = distinct(entrant.done.map((one) => one.length)).sort((a, b) => a - b);
    return `not measured at N=${request.length}, and ${lengths.length} measured length(s) (${lengths.join(", ")}) ` +
      `are too few to predict from (${data.picker.min_lengths} needed)`;
  }
  const time = predicted(entrant.time, size);
  if (typeof time === "string") return time;
  const outside = [...time.outside].sort();
  return {
    evidence: outside.length ? "extrapolated" : "interpolated",
    time,
    memory: entrant.memory ? predicted(entrant.memory, size).value : null,
    noisy: entrant.done.some((one) => one.noisy),
    fit: entrant.time.text + (outside.length ? `; not measured at such: ${outside.join(", ")}` : ""),
    row: null,
  };
}

function overLimit(cost, request) {
  const how = cost.evidence === "measured" ? "" : ` (${cost.evidence})`;
  if (request.memory_gb !== null) {
    if (cost.memory === null) return `its memory at N=${request.length} is unknown, and the limit is a hard one`;
    const used = cost.memory / GIB;
    if (used > request.memory_gb) return `needs ${general(used, 3)} GiB${how}, more than the limit of ${general(request.memory_gb)} GiB`;
  }
  if (request.time_ms !== null && cost.time.value > request.time_ms) {
    return `takes ${general(cost.time.value, 3)} ms${how}, more than the limit of ${general(request.time_ms)} ms`;
  }
  return null;
}

function judge(entrant, options, request) {
  const out = (reason) => ({ contestant: entrant.contestant, variant: entrant.variant, options, reason });
  const exact = isExact(entrant.variant, options, request.length, request.causal);
  if (request.exact_only && !exact) return out("is not softmax attention here, only near to it");
  const cost = costOf(entrant, options, request);
  if (typeof cost === "string") return out(cost);
  const reason = overLimit(cost, request);
  if (reason) return out(reason);
  const reach = knob(entrant.variant, options, request.length, request.keys, request.causal);
  const share = Object.keys(request.needs).length ? kept(entrant, options, reach, exact, request) : null;
  return { contestant: entrant.contestant, variant: entrant.variant, options, ...cost, exact, kept: share, enough: !share || share.enough };
}

// Verdicts on all candidates of an entrant.
function judged(entrant, request) {
  const out = (reason) => [{ contestant: entrant.contestant, variant: entrant.variant, options: entrant.usual ?? {}, reason }];
  const here = entrant.rows.filter((row) => row.size.pattern === request.pattern);
  if (!here.length) return out(`was not measured in ${data.names.pattern[request.pattern]}`);
  const differ = request.keys !== request.length;
  const alike = here.filter((row) => (row.size.keys !== row.length) === differ);
  const asked = alike.length ? alike : here;
  if (asked.every((row) => row.status === "unsupported")) return out(failure(asked[0]));
  if (request.need_weights) {
    const able = data.picker.weights[entrant.variant];
    if (able === null) return out(`variant '${entrant.variant}' is not installed here: its weights are unknown`);
    if (!able) return out("cannot return attention weights");
  }
  const tell = (options) => judge(entrant, options, request);
  const found = [...atSize(entrant, request).values()].map((row) => tell(row.set));
  if (entrant.usual === null) return found.length ? found : [tell(rowsByPlace[entrant.first].set)];
  const own = (options) => plainText(ownOf(entrant.variant, options));
  const known = new Set(found.map((one) => own(one.options)));
  const fresh = (sets) => sets.filter((options) => !known.has(own(options)));
  const name = data.picker.knobs[entrant.variant];
  const others = entrant.grid.map((value) => {
    const old = entrant.usual[name];
    return { ...entrant.usual, [name]: Array.isArray(old) ? old.map((side) => (side ? value : 0)) : value };
  });
  const fits = (one) => one.reason === undefined;
  if (Object.keys(request.needs).length) {
    const able = fresh([entrant.usual, ...others]).map(tell).filter((one) => fits(one) && one.enough);
    const rivals = [...found.filter((one) => fits(one) && one.enough), ...able];
    if (rivals.length) {
      const fastest = rivals.reduce((best, one) => (one.time.value < best.time.value ? one : best));
      return able.includes(fastest) ? [...found, fastest] : found;
    }
  }
  if (found.some(fits)) return found;
  const first = fresh([entrant.usual]).map(tell);
  if (first.some(fits)) return [...found, ...first];
  for (const options of fresh(others.reverse())) {
    const one = tell(options);
    if (fits(one)) return [...found, ...first, one];
  }
  return [...found, ...first];
}

// Joins to a name that stands for several the options by which they differ.
function named(found) {
  const surroundings = new Set(data.picker.surroundings);
  const identity = (one) => ({ variant: one.variant, ...one.options });
  return found.map((one) => {
    const twins = found.filter((other) => other.contestant === one.contestant).map(identity);
    const mine = identity(one);
    const differing = Object.keys(mine)
      .filter((name) => !surroundings.has(name) && twins.every((twin) => name in twin))
      .filter((name) => twins.some((twin) => plainText(twin[name]) !== plainText(mine[name])))
      .sort();
    const suffix = differing.map((name) => `${name}=${plainText(mine[name])}`).join(", ");
    return { ...one, entry: one.contestant, contestant: one.contestant + (suffix ? ` (${suffix})` : "") };
  });
}

// Of two times of which one at least is predicted.
function quotient(one, other) {
  if (one.pair_width !== undefined && other.pair_width !== undefined) {
    const [value, width] = [one.value / other.value, Math.hypot(one.pair_width, other.pair_width)];
    return { value, low: value * Math.exp(-width), high: value * Math.exp(width), paired: false };
  }
  const log = (large, small) => (small > 0 && Number.isFinite(large) ? Math.log(large / small) : Infinity);
  const value = one.value / other.value;
  const low = Math.hypot(log(one.value, one.low), log(other.high, other.value));
  const high = Math.hypot(log(one.high, one.value), log(other.value, other.low));
  return { value, low: value * Math.exp(-low), high: value * Math.exp(high), paired: false };
}

function divided(one, other) {
  return {
    value: one.value / other.value,
    low: other.high > 0 ? Math.max(one.low, 0) / other.high : 0,
    high: other.low > 0 ? one.high / other.low : Infinity,
    paired: false,
  };
}

function toFull(choice, full) {
  if (!choice.row || !full.row) return quotient(choice.time, full.time);
  const { row } = choice;
  if (full.row.name !== "full" || row.ratio === null) return divided(choice.time, full.time);
  return { value: row.ratio, low: row.ratio_low ?? -Infinity, high: row.ratio_high ?? Infinity, paired: Boolean(row.paired) };
}

const reachesOne = (choice, best) =>
  choice.row && best.row
    ? (choice.row.ties ?? []).includes(best.row.place - choice.row.place)
    : quotient(choice.time, best.time).low <= 1;

// Whether predictions make it the slower one with odds of nine to one.
function likelySlower(choice, best) {
  if (choice.row && best.row) return false;
  const { value, low } = quotient(choice.time, best.time);
  return value * (low / value) ** data.picker.nine_to_one > 1;
}

function ranked(choices) {
  const full = choices.find((choice) => choice.contestant === "full");
  const known = choices.map((choice) => ({ ...choice, to_full: full && choice !== full ? toFull(choice, full) : null }));
  const paired = known.every((choice) => choice.contestant === "full" || choice.to_full?.paired);
  const cost = (choice) => (paired ? (choice.to_full?.value ?? 1) : choice.time.value);
  const ordered = known.sort((a, b) => (b.enough - a.enough) || cost(a) - cost(b));
  return ordered.map((choice, place) => ({
    ...choice,
    tied: place > 0 && choice.enough === ordered[0].enough && reachesOne(choice, ordered[0]),
  }));
}

function groundFor(request) {
  const cross = request.pattern.endsWith("cross");
  const fitting = grounds.filter(({ ground, entrants }) =>
    ground.causal === request.causal && ground.cross === (cross && ground.scope !== "core") &&
    ground.padded === request.padding > 0 &&
    ["pass", "dtype", "device", "compile"].every((name) => ground[name] === request[name]) &&
    ["threads", "scope", "machine"].every((name) => request[name] === undefined || ground[name] === request[name]) &&
    entrants.some(({ rows }) => rows.some((row) => row.size.pattern === request.pattern)));
  const same = (one) => one.entrants.some(({ rows }) => rows.some((row) => sameSize(row, request)));
  const worth = (one) => [Number(same(one)), one.contestants, one.created];
  let best = null;
  for (const one of fitting) {
    if (!best || isMore(worth(one), worth(best))) best = one;
  }
  return { ground: best, fitting };
}

function isMore(mine, theirs) {
  const place = mine.findIndex((value, i) => value !== theirs[i]);
  return place >= 0 && mine[place] > theirs[place];
}

// The ranking of a request; null where no record is about its pattern, pass, format and machine.
function rank(request) {
  const { ground, fitting } = groundFor(request);
  if (!ground) return null;
  const found = named(ground.entrants.flatMap((entrant) => judged(entrant, request)));
  const here = new Set(ground.entrants.map((entrant) => entrant.contestant));
  const elsewhere = data.picker.everyone
    .filter(([name]) => !here.has(entryName(name)))
    .map(([contestant, variant]) => ({ contestant, variant, reason: "no record of this workload" }));
  const choices = ranked(found.filter((one) => one.reason === undefined));
  const rejections = [...found.filter((one) => one.reason !== undefined), ...elsewhere];
  const tied = choices.find((choice) => choice.tied && choice.contestant === "full");
  const stay = tied && choices[0].variant !== "full" && !likelySlower(tied, choices[0]);
  const advised = stay ? tied : (choices[0] ?? null);
  return { ground, fitting, choices, rejections, advised };
}
