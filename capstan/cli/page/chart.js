// One chart: axes with round ticks, lines, and the values under the pointer.

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 230, TOP = 10, BOTTOM = 24, RIGHT = 12;

function make(name, attributes = {}, ...children) {
  const node = ["svg", "path", "line", "text", "circle", "g", "rect"].includes(name)
    ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function rangeOf(lists, positive) {
  let low = Infinity, high = -Infinity;
  for (const list of lists) {
    for (const value of list) {
      if (value === null || (positive && value <= 0)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low <= high ? [low, high] : null;
}

// Maps values to pixels; `ticks` are [value, text].
function axisOf(range, options) {
  let [low, high] = range;
  const [divisor, unit] = KINDS[options.kind || "number"].unit(high);
  if (options.zero && !options.log) [low, high] = [Math.min(0, low), high === 0 ? 1 : high * 1.05];
  if (!(high > low)) {
    const around = Math.abs(high) * 0.1 || 1;
    [low, high] = options.log ? [low / 2, high * 2] : [low - (options.zero ? 0 : around), high + around];
  }
  const values = options.log ? logTicks(low, high) : roundTicks(low / divisor, high / divisor, options.ticks).map((tick) => tick * divisor);
  const kept = options.whole ? values.filter((tick) => Math.abs(tick / divisor - Math.round(tick / divisor)) < 1e-9) : values;
  const text = (tick) => shortNumber(Number((tick / divisor).toPrecision(10))) + (unit ? ` ${unit}` : "");
  const at = options.log ? (value) => Math.log(value / low) / Math.log(high / low) : (value) => (value - low) / (high - low);
  return { at, ticks: kept.map((tick) => [tick, text(tick)]) };
}

function pathOf(series, values, place) {
  let path = "", open = false;
  values.forEach((value, i) => {
    const point = value === null ? null : place(series.x[i], value);
    if (point) path += `${open ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
    open = point !== null;
  });
  return path;
}

class Chart {
  constructor(spec, state, redraw) {
    this.spec = spec;
    this.state = state;
    this.redraw = redraw;
    this.box = make("section", { class: "chart", id: `chart-${spec.id}` });
    this.box.addEventListener("pointermove", (event) => this.hover(event));
    this.box.addEventListener("pointerleave", () => this.leave());
  }

  draw(runs) {
    const all = seriesOf(this.spec, runs, this.state);
    this.box.hidden = all.length === 0;
    if (this.box.hidden) return;
    this.series = all.filter((each) => !this.state.hidden.has(this.keyOf(each)));
    const log = this.state.logs.has(this.spec.id);
    const weight = this.spec.smooth ? this.state.smoothing : 0;
    for (const each of this.series) each.shown = each.dots ? each.y : smoothed(each.y, weight);
    this.picture = make("svg", { height: HEIGHT, role: "img", "aria-label": `${this.spec.title} by ${this.state.axis}` });
    this.box.replaceChildren(this.heading(log), this.picture, this.legend(all));
    this.paint(log, weight > 0);
  }

  keyOf(series) { return `${this.spec.id} ${series.name}`; }

  heading(log) {
    const header = make("header", {}, make("h2", {}, this.spec.title));
    if (this.spec.log) {
      const button = make("button", { type: "button", class: "switch", "aria-pressed": log }, "log");
      button.addEventListener("click", () => this.toggle(this.state.logs, this.spec.id));
      header.append(button);
    }
    return header;
  }

  // One entry per name: the runs have a legend of their own.
  legend(all) {
    const box = make("div", { class: "legend" });
    const names = new Map(all.map((each) => [each.name, each]));
    if (names.size < 2) return box;
    const several = new Set(all.map((each) => each.run)).size > 1;
    for (const each of names.values()) {
      const key = this.keyOf(each);
      const color = several ? "currentColor" : each.color;
      const mark = make("svg", { viewBox: "0 0 22 8", "aria-hidden": true },
        each.dots ? make("circle", { cx: 11, cy: 4, r: 3.5, fill: color })
          : make("line", { x1: 0, x2: 22, y1: 4, y2: 4, stroke: color, "stroke-width": 2.5, "stroke-dasharray": each.dash }));
      const button = make("button", { type: "button", "aria-pressed": !this.state.hidden.has(key) }, mark, each.name);
      button.addEventListener("click", () => this.toggle(this.state.hidden, key));
      box.append(button);
    }
    return box;
  }

  toggle(set, key) {
    if (!set.delete(key)) set.add(key);
    this.redraw();
  }

  paint(log, faint) {
    const width = Math.max(200, this.picture.clientWidth || 430);
    this.picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const xRange = rangeOf(this.series.map((each) => each.x));
    const yRange = rangeOf(this.series.map((each) => each.y), log);
    this.place = null;
    if (!xRange || !yRange) return;
    const y = axisOf(yRange, { ...this.spec, log, ticks: 5 });
    const left = 14 + 6.8 * Math.max(3, ...y.ticks.map(([, text]) => text.length));
    const x = axisOf(xRange, { kind: this.state.axis === "time" ? "seconds" : "number", whole: this.state.axis !== "time",
                               ticks: Math.max(2, Math.floor((width - left) / 85)) });
    const px = (value) => left + x.at(value) * (width - left - RIGHT);
    const py = (value) => TOP + (1 - y.at(value)) * (HEIGHT - TOP - BOTTOM);
    this.place = (a, b) => (a === null || (log && b <= 0) ? null : [px(a), py(b)]);
    for (const [value, text] of y.ticks) {
      this.picture.append(make("line", { class: "grid", x1: left, x2: width - RIGHT, y1: py(value), y2: py(value) }),
                          make("text", { x: left - 6, y: py(value) + 4, "text-anchor": "end" }, text));
    }
    for (const [value, text] of x.ticks) {
      const anchor = px(value) > width - 26 ? "end" : "middle";
      this.picture.append(make("text", { x: anchor === "end" ? width - 2 : px(value), y: HEIGHT - 6, "text-anchor": anchor }, text));
    }
    for (const each of this.series) this.line(each, faint);
    this.cross = make("g");
    this.picture.append(this.cross);
  }

  line(each, faint) {
    const style = { stroke: each.color, "stroke-dasharray": each.dash };
    if (each.dots) {
      each.y.forEach((value, i) => {
        const point = value === null ? null : this.place(each.x[i], value);
        if (point) this.picture.append(make("circle", { cx: point[0].toFixed(1), cy: point[1].toFixed(1), r: 3.5, fill: each.color }));
      });
      return;
    }
    if (faint) this.picture.append(make("path", { ...style, class: "raw", d: pathOf(each, each.y, this.place) }));
    this.picture.append(make("path", { ...style, d: pathOf(each, each.shown, this.place) }));
  }

  nearest(each, pixel) {
    let best = null, distance = Infinity;
    each.shown.forEach((value, i) => {
      const point = value === null ? null : this.place(each.x[i], value);
      if (point && Math.abs(point[0] - pixel) < distance) [best, distance] = [{ i, point }, Math.abs(point[0] - pixel)];
    });
    return best;
  }

  hover(event) {
    if (!this.place) return;
    const frame = this.picture.getBoundingClientRect();
    const pixel = event.clientX - frame.left;
    const rows = this.series.map((each) => [each, this.nearest(each, pixel)]).filter(([, found]) => found !== null);
    if (rows.length === 0 || event.clientY < frame.top || event.clientY > frame.bottom) return this.leave();
    const text = KINDS[this.spec.kind || "number"].text;
    const at = rows[0][1].point[0];
    this.cross.replaceChildren(make("line", { class: "cross", x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM }),
      ...rows.map(([each, { point }]) => make("circle", { cx: point[0], cy: point[1], r: 3.5, fill: each.color })));
    this.tip = this.tip || make("div", { class: "hover" });
    this.tip.replaceChildren(make("div", {}, `step ${rows[0][0].steps[rows[0][1].i]}`),
      ...rows.map(([each, { i }]) => make("div", {},
        make("span", {}, make("i", { style: `background:${each.color}` }), each.label), make("b", {}, text(each.shown[i])))));
    if (!this.tip.isConnected) this.box.append(this.tip);
    const room = this.box.clientWidth - this.tip.offsetWidth - 8;
    this.tip.style.left = `${Math.max(4, Math.min(room, at + (at > frame.width / 2 ? -this.tip.offsetWidth : 22)))}px`;
    this.tip.style.top = "2.6rem";
  }

  leave() {
    if (this.tip) this.tip.remove();
    if (this.cross) this.cross.replaceChildren();
  }
}
