// What every part of the page uses: elements, numbers as text, and the state kept in the address.

const $ = (id) => document.getElementById(id);

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(3)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

const el = (tag, attributes, ...children) =>
  build(document.createElement(tag), attributes, children);

const svg = (tag, attributes, ...children) =>
  build(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const ABSENT = "·";

// Three significant digits without an exponent where it stays readable.
function number(value) {
  if (value === null || value === undefined) return ABSENT;
  if (value === 0 || !Number.isFinite(value)) return String(value);
  const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
  const text = digits >= 7 ? value.toExponential(2) : Math.abs(value) < 1e4 ? value.toFixed(digits) : Math.round(value).toLocaleString("en");
  return text.replace(/^-/, "−");
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);

const counted = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

function day(seconds) {
  return seconds === null ? ABSENT : new Date(seconds * 1e3).toISOString().slice(0, 16).replace("T", " ");
}

const interval = (low, high, format = number) =>
  low === null || high === null ? "interval unknown" : `${format(low)}${low < 0 ? " to " : "–"}${format(high)}`;

// One polite voice for everything that changes without the focus moving there.
function announce(text) {
  let voice = $("voice");
  if (!voice) {
    voice = el("div", { id: "voice", class: "hidden-text", role: "status", "aria-live": "polite" });
    document.body.append(voice);
  }
  voice.textContent = text;
}

// The state of the page is the address: #section?name=value&name=value, defaults left out.
const state = {
  section: "",
  values: new URLSearchParams(),
  listeners: [],
  read() {
    const [section, query] = location.hash.slice(1).split("?");
    this.section = section || "";
    this.values = new URLSearchParams(query || "");
  },
  get(name, fallback = "") {
    return this.values.get(name) ?? fallback;
  },
  set(changes, section = this.section) {
    for (const [name, value] of Object.entries(changes)) {
      if (value === null || value === undefined || value === "") this.values.delete(name);
      else this.values.set(name, value);
    }
    this.section = section;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => history.replaceState(null, "", this.address()), 80);
  },
  address(section = this.section) {
    const query = this.values.toString();
    return `#${section}${query ? `?${query}` : ""}`;
  },
  onRestore(listener) {
    this.listeners.push(listener);
  },
  restore() {
    this.read();
    for (const listener of this.listeners) listener();
  },
};

function select(label, options, value, onchange, attributes = {}) {
  const box = el("select", { ...attributes, onchange: (event) => onchange(event.target.value) });
  for (const [key, text] of options) box.append(el("option", { value: key }, text));
  box.value = value;
  return el("label", { class: "field" }, label, box);
}

function check(label, checked, onchange, attributes = {}) {
  const change = (event) => onchange(event.target.checked);
  const box = el("input", { type: "checkbox", checked, onchange: change, ...attributes });
  return el("label", { class: "check" }, box, label);
}

function scrollable(label, ...children) {
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, ...children);
}

// Rebuilds `host` and gives the focus back to the control that had it.
function refill(host, ...children) {
  const focused = host.contains(document.activeElement) ? document.activeElement.id : "";
  host.replaceChildren(...children.filter(Boolean));
  if (focused && $(focused)) $(focused).focus({ preventScroll: true });
}

function copyable(text, label) {
  const button = el("button", { type: "button" }, "Copy");
  button.setAttribute("aria-label", `Copy ${label}`);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = el("textarea", { value: text });
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
      button.focus();
    }
    announce(`${label} copied`);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}
