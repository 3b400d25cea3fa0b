// The page around the charts: state, tiles, tables; and where new figures come from.

const STORED = "capstan run page";
const state = { axis: "step", smoothing: 0, logs: new Set(), hidden: new Set() };
let data = { live: false, written: 0, runs: [] };
let charts = [];
let source = "", heard = false;

function byId(id) { return document.getElementById(id); }

function keepState() {
  try {
    sessionStorage.setItem(STORED, JSON.stringify({ ...state, logs: [...state.logs], hidden: [...state.hidden] }));
  } catch { /* without storage a reload begins anew */ }
}

function bringStateBack() {
  try {
    const kept = JSON.parse(sessionStorage.getItem(STORED) || "{}");
    Object.assign(state, kept, { logs: new Set(kept.logs), hidden: new Set(kept.hidden) });
  } catch { /* as it begins */ }
}

function last(list) {
  for (let i = (list || []).length - 1; i >= 0; --i) if (list[i] !== null) return list[i];
  return null;
}

function stepsWanted(run) { return Number(run.run?.facts?.steps) || 0; }

// [id, name, value, text]: where a run stands.
function figuresOf(run) {
  const { columns } = run;
  const rate = columns.tokens_per_s ? ["tokens_per_s", "Tokens/s"] : ["samples_per_s", "Samples/s"];
  const of = (id, name, text, list = columns[id]) => [id, name, last(list), text];
  const number = (value) => shortNumber(value, 5);
  const times = columns.time ? elapsed(columns.time) : [];
  return [
    of("step", "Step", (value) => (stepsWanted(run) ? `${value} / ${stepsWanted(run)}` : String(value))),
    of("loss", "Loss", number), of("validation_loss", "Validation loss", number, run.validation.loss),
    of("lr", "Learning rate", number), of("grad_norm", "Gradient norm", number), of(...rate, number),
    of("memory_bytes.device", "Device memory", bytesText), of("memory_bytes.host", "Host memory", bytesText),
    ["skipped", "Skipped steps", run.skipped.length, String],
    ["elapsed", "Elapsed", times.length > 1 ? times[times.length - 1] : null, clockText],
  ].filter(([, , value]) => value !== null).map(([id, name, value, text]) => [id, name, value, text(value)]);
}

function table(heads, rows) {
  const line = (cells, kind) => make("tr", {}, ...cells.map((cell) => (cell instanceof Node ? cell : make(kind, {}, cell))));
  return make("div", { class: "wide" }, make("table", {}, make("thead", {}, line(heads, "th")),
    make("tbody", {}, ...rows.map((cells) => (cells instanceof Node ? cells : line(cells, "td"))))));
}

function numberCell(value, text, id) {
  return make("td", { class: "number", "data-figure": id, "data-value": value }, text);
}

function showRuns() {
  const { runs } = data;
  if (runs.length === 1) {
    byId("runs").replaceChildren(make("div", { class: "tiles" }, ...figuresOf(runs[0]).map(([id, name, value, text]) =>
      make("div", { class: "tile", "data-figure": id, "data-value": value },
        make("span", { class: "name" }, name), make("span", { class: "value" }, text)))));
    return;
  }
  const names = new Map(runs.flatMap(figuresOf).map(([id, name]) => [id, name]));
  byId("runs").replaceChildren(table(["Run", ...names.values()], runs.map((run, index) => {
    const own = new Map(figuresOf(run).map((figure) => [figure[0], figure]));
    const key = `run ${run.name}`;
    const button = make("button", { type: "button", "aria-pressed": !state.hidden.has(key) },
      make("span", { class: "dot", style: `background:var(--c${index % 8})` }), run.name);
    button.addEventListener("click", () => { if (!state.hidden.delete(key)) state.hidden.add(key); show(); });
    return make("tr", { "data-run": run.name }, make("td", { class: "legend" }, button), ...[...names.keys()].map((id) =>
      (own.has(id) ? numberCell(own.get(id)[2], own.get(id)[3], id) : make("td", {}, "–"))));
  })));
}

function titleOf({ runs }) {
  return runs.length === 1 ? runs[0].name : `${runs.length} runs`;
}

function showState() {
  byId("title").textContent = document.title = titleOf(data);
  const written = new Date(data.written * 1000);
  const silent = Date.now() / 1000 - data.written;
  const said = !data.live ? `written ${written.toLocaleString()}`
    : silent > 60 ? `no news for ${clockText(silent)}: the run has stopped, or is in a long step` : "running";
  byId("state").textContent = said;
  const shares = data.runs.filter(stepsWanted).map((run) => (last(run.columns.step) || 0) / stepsWanted(run));
  byId("progress").hidden = shares.length === 0 || !data.live;
  byId("progress").value = Math.max(0, ...shares);
  const damage = data.runs.filter((run) => run.damage).map((run) => `${run.name}: ${run.damage}`);
  byId("notice").hidden = damage.length === 0;
  byId("notice").textContent = damage.join("\n");
}

function details(id, title, ...children) {
  const open = byId(id)?.open;
  const box = make("details", { id }, make("summary", {}, title), ...children);
  box.open = open === undefined ? id === "facts" : open;
  return box;
}

// One row per name, one column per run.
function factTable(part) {
  const told = data.runs.map((run) => run.run?.[part] || {});
  const names = [...new Set(told.flatMap(Object.keys))];
  return names.length === 0 ? null : table(["", ...data.runs.map((run) => run.name)],
    names.map((name) => [make("th", {}, name), ...told.map((facts) => facts[name] ?? "–")]));
}

function configTable() {
  const told = data.runs.map((run) => new Map((run.run?.config || []).map((each) => [each[0], each])));
  const paths = [...new Set(told.flatMap((config) => [...config.keys()]))];
  const rows = paths.map((path) => {
    const found = told.map((config) => config.get(path));
    const values = found.map((each) => (each ? each[1] : "–"));
    const differs = new Set(values).size > 1, given = found.some((each) => each?.[3]);
    const origins = [...new Set(found.filter(Boolean).map((each) => each[2]))].join("; ");
    return { given: given || differs, row: make("tr", { class: differs ? "differs" : null, "data-path": path }, make("td", {}, path),
      ...values.map((value) => make("td", { class: "number" }, value)), make("td", { class: "origin" }, origins)) };
  });
  const heads = ["key", ...data.runs.map((run) => (data.runs.length > 1 ? run.name : "value")), "where it comes from"];
  const given = rows.filter((each) => each.given).map((each) => each.row), rest = rows.filter((each) => !each.given).map((each) => each.row);
  return { count: rows.length, given: table(heads, given), rest: rest.length > 0 ? table(heads, rest) : null };
}

// The numbers behind the charts, as they stand in the file.
const TABLE_STEPS = 500;

function figureTable(run) {
  const names = Object.keys(run.columns);
  const steps = (run.columns.step || []).length;
  const rows = [];
  for (let i = Math.max(0, steps - TABLE_STEPS); i < steps; ++i) {
    rows.push(make("tr", {}, ...names.map((name) => make("td", { class: "number" }, String(run.columns[name][i] ?? "")))));
  }
  return table(names, rows);
}

function showTables() {
  const config = configTable();
  byId("tables").replaceChildren(...[
    factTable("facts") && details("facts", "Run", factTable("facts")),
    factTable("environment") && details("environment", "Environment", factTable("environment")),
    config.count > 0 && details("config", "Configuration", config.given,
      config.rest && details("config-rest", "Everything that nobody set", config.rest)),
    ...data.runs.map((run, i) => details(`figures-${i}`, data.runs.length > 1 ? `Figures of ${run.name}` : "Figures", figureTable(run))),
  ].filter(Boolean));
}

function showControls() {
  byId("smoothing").value = Math.round(state.smoothing * 100);
  byId("smoothed").textContent = state.smoothing > 0 ? state.smoothing.toFixed(2) : "off";
  byId("axis").value = state.axis;
}

function showCharts() {
  for (const chart of charts) chart.draw(data.runs);
}

function show() {
  keepState();
  showState();
  showControls();
  showRuns();
  showCharts();
  showTables();
}

function begin() {
  bringStateBack();
  charts = CHARTS.map((spec) => new Chart(spec, state, () => { keepState(); showCharts(); }));
  byId("charts").append(...charts.map((chart) => chart.box));
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  byId("smoothing").addEventListener("input", (event) => {
    state.smoothing = event.target.value / 100;
    showControls(); showCharts(); keepState();
  });
  byId("axis").addEventListener("change", (event) => { state.axis = event.target.value; showCharts(); keepState(); });
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; showCharts(); } });
}

// A page that was opened as a file may load scripts, and nothing else, again and again.
function askAgain() {
  const script = make("script", { src: `${source}?${Date.now()}` });
  script.onload = () => { heard = true; script.remove(); };
  script.onerror = () => {
    script.remove();
    // It was taken away because the page has everything now.
    if (heard) location.reload();
  };
  document.head.append(script);
}

function runPageFollow(file) { source = file; }

function runPageData(given) {
  const first = charts.length === 0;
  if (first) begin();
  data = given;
  show();
  if (data.live) setTimeout(askAgain, first ? 0 : 2000);
}
