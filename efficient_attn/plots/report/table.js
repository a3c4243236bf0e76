// Tables to sort, filter and leaf through; the rows stay data, only one page of them is drawn.

const PAGE = 25;

// columns: [{key, label, get(row), show?(row) → text or node, number?, filter?, long?}]; prefix: of
// the table's names in the address. A filter is a list of the column's values to choose from.
class DataTable {
  constructor(host, { label, prefix, columns, rows, sort = "" }) {
    Object.assign(this, { host, label, prefix, columns, rows, sort });
    this.filters = columns.filter((column) => column.filter);
    for (const column of this.filters) {
      const values = [...new Set(rows.map((row) => column.get(row)))].filter((value) => value !== null);
      column.values = values.sort(compare);
    }
    this.filters = this.filters.filter((column) => column.values.length > 1);
    this.controls = el("div", { class: "controls" });
    this.body = el("div");
    this.foot = el("div", { class: "controls" });
    host.append(this.controls, this.body, this.foot);
    state.onRestore(() => this.render(true));
    this.render(true);
  }

  get(name, fallback = "") {
    return state.get(`${this.prefix}.${name}`, fallback);
  }

  set(name, value) {
    state.set({ [`${this.prefix}.page`]: null, [`${this.prefix}.${name}`]: value });
    this.render(false);
    announce(`${this.label}: ${counted(this.chosen.length, "row")}`);
  }

  render(withControls) {
    this.chosen = this.sorted(this.matching());
    if (withControls) this.drawControls();
    this.drawTable();
    this.drawFoot();
  }

  matching() {
    const words = this.get("q").toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = this.filters.map((column) => [column, this.get(column.key)]).filter(([, value]) => value);
    return this.rows.filter((row) =>
      wanted.every(([column, value]) => String(column.get(row)) === value) &&
      (!words.length || words.every((word) => this.text(row).includes(word))));
  }

  text(row) {
    row.text ??= this.columns.map((column) => column.get(row) ?? "").join(" ").toLowerCase();
    return row.text;
  }

  sorted(rows) {
    const [key, way] = this.get("sort", this.sort).split(":");
    const column = this.columns.find((one) => one.key === key);
    if (!column) return rows;
    const sign = way === "down" ? -1 : 1;
    const keyed = rows.map((row) => [column.get(row), row]);
    const missing = (value) => value === null || value === undefined;
    keyed.sort(([a], [b]) => missing(a) - missing(b) || (missing(a) ? 0 : sign * compare(a, b)));
    return keyed.map(([, row]) => row);
  }

  drawControls() {
    const search = el("input", {
      type: "search",
      value: this.get("q"),
      id: `${this.prefix}-q`,
      placeholder: "any words",
      oninput: (event) => this.set("q", event.target.value),
    });
    const selects = this.filters.map((column) =>
      select(column.label, [["", "all"], ...column.values.map((value) => [String(value), String(value)])],
        this.get(column.key), (value) => this.set(column.key, value)));
    const clear = el("button", { type: "button", onclick: () => this.clear() }, "Clear");
    this.controls.replaceChildren(el("label", { class: "field" }, "Search", search), ...selects, clear);
  }

  clear() {
    const names = ["q", "page", "sort", ...this.filters.map((column) => column.key)];
    state.set(Object.fromEntries(names.map((name) => [`${this.prefix}.${name}`, null])));
    this.render(true);
    announce(`${this.label}: ${counted(this.chosen.length, "row")}`);
  }

  drawTable() {
    const [key, way] = this.get("sort", this.sort).split(":");
    const head = this.columns.map((column) => {
      const sorted = column.key === key ? (way === "down" ? "descending" : "ascending") : "none";
      const next = sorted === "ascending" ? "down" : "up";
      const button = el("button", {
        type: "button",
        id: `${this.prefix}-sort-${column.key}`,
        onclick: () => this.set("sort", `${column.key}:${next}`),
      }, column.label);
      return el("th", { scope: "col", class: column.number ? "number" : null, "aria-sort": sorted }, button);
    });
    const first = this.page * PAGE;
    const rows = this.chosen.slice(first, first + PAGE).map((row) =>
      el("tr", {}, this.columns.map((column) => {
        const shown = column.show ? column.show(row) : column.get(row);
        return el("td", { class: column.number ? "number" : column.long ? "long" : "word" }, shown ?? ABSENT);
      })));
    refill(this.body, scrollable(this.label, el("table", { class: "data" },
      el("caption", { class: "hidden-text" }, this.label),
      el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows))));
  }

  get page() {
    const last = Math.max(0, Math.ceil(this.chosen.length / PAGE) - 1);
    return Math.min(Math.max(0, (Number.parseInt(this.get("page", "1"), 10) || 1) - 1), last);
  }

  drawFoot() {
    const pages = Math.max(1, Math.ceil(this.chosen.length / PAGE));
    const all = this.chosen.length === this.rows.length ? "" : ` of ${this.rows.length.toLocaleString("en")}`;
    const turn = (to) => {
      state.set({ [`${this.prefix}.page`]: to > 1 ? String(to) : null });
      this.render(false);
      announce(`page ${to} of ${pages}`);
    };
    const here = this.page + 1;
    const button = (text, to, id) => el("button", {
      type: "button", id: `${this.prefix}-${id}`, disabled: to < 1 || to > pages, onclick: () => turn(to),
    }, text);
    refill(this.foot,
      el("span", { class: "muted" }, `${this.chosen.length.toLocaleString("en")}${all} rows, page ${here} of ${pages}`),
      pages > 1 && button("Previous", here - 1, "previous"),
      pages > 1 && button("Next", here + 1, "next"));
  }
}

function compare(a, b) {
  return typeof a === "number" && typeof b === "number"
    ? a - b
    : String(a).localeCompare(String(b), "en", { numeric: true });
}

// A small table without controls. head: texts; rows: cells, the first of each names the row.
function plainTable(label, head, rows, numbers = []) {
  const cell = (value, column) => {
    const kind = { class: numbers.includes(column) ? "number" : column && typeof value === "string" ? (value.length > 30 ? "long" : "word") : null };
    const empty = value === null || value === undefined || value.length === 0;
    return column ? el("td", kind, empty ? ABSENT : value) : el("th", { scope: "row" }, value ?? ABSENT);
  };
  return scrollable(label, el("table", {},
    el("caption", { class: "hidden-text" }, label),
    el("thead", {}, el("tr", {}, head.map((text, column) =>
      el("th", { scope: "col", class: numbers.includes(column) ? "number" : null }, text)))),
    el("tbody", {}, rows.map((cells) => el("tr", {}, cells.map(cell))))));
}
