// Unpacks the data, starts every part, and keeps theme, sections and address together.

async function unpack() {
  const bytes = Uint8Array.from(atob($("data").textContent), (sign) => sign.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// The system's choice holds until the switch is used; then the address keeps it.
function theme() {
  const button = $("theme");
  const root = document.documentElement;
  const wanted = matchMedia("(prefers-color-scheme: dark)");
  const show = () => {
    root.dataset.theme = state.get("theme");
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : wanted.matches;
    button.setAttribute("aria-pressed", String(dark));
  };
  button.addEventListener("click", () => {
    state.set({ theme: button.getAttribute("aria-pressed") === "true" ? "light" : "dark" });
    show();
  });
  wanted.addEventListener("change", show);
  state.onRestore(show);
  show();
}

function sections() {
  const links = [...document.querySelectorAll("nav a, .skip")];
  const go = (name) => {
    const target = $(name);
    if (!target?.classList.contains("card")) return;
    target.scrollIntoView();
    target.tabIndex = -1;
    target.focus({ preventScroll: true });
  };
  for (const link of links) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      const name = link.getAttribute("href").slice(1);
      history.pushState(null, "", state.address(name));
      state.section = name;
      go(name);
    });
  }
  const tabs = links.filter((link) => !link.classList.contains("skip"));
  const seen = new Set();
  const watch = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) seen[isIntersecting ? "add" : "delete"](`#${target.id}`);
    const first = tabs.find((link) => seen.has(link.getAttribute("href")));
    for (const link of tabs) {
      if (link === first) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
    if (first) first.parentElement.scrollLeft = first.offsetLeft - 60;
  }, { rootMargin: "-100px 0px -60% 0px" });
  document.querySelectorAll("main > section").forEach((section) => watch.observe(section));
  addEventListener("hashchange", () => {
    state.restore();
    go(state.section);
  });
  go(state.section);
}

async function start() {
  state.read();
  theme();
  data = await unpack();
  readRows();
  for (const section of document.querySelectorAll("main > section")) section.hidden = false;
  picker.start();
  curves.start();
  accuracy.start();
  records.start();
  $("loading").remove();
  sections();
  document.documentElement.dataset.ready = "true";
}

start().catch((error) => {
  $("loading").textContent = `This page could not be drawn: ${error.message}. It needs a browser of 2024 or later.`;
  console.error(error);
});
