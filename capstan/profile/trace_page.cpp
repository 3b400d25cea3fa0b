#include "capstan/profile/trace_page.h"

namespace capstan::profile {

const std::string_view kPageHead = R"page(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Timeline</title>
<style>
:root { color-scheme: light dark; --back: #ffffff; --text: #1f2328; --faint: #656d76; --line: #d0d7de; }
@media (prefers-color-scheme: dark) { :root { --back: #0d1117; --text: #e6edf3; --faint: #8b949e; --line: #30363d; } }
body { margin: 0; padding: 16px; background: var(--back); color: var(--text); font: 14px/1.5 system-ui, sans-serif; }
h1 { font-size: 20px; margin: 0 0 4px; }
p { margin: 4px 0 12px; color: var(--faint); }
ul { margin: 4px 0 12px; padding-left: 20px; }
#legend span { margin-right: 14px; white-space: nowrap; }
#legend i { display: inline-block; width: 11px; height: 11px; margin-right: 5px; border-radius: 2px; }
#drawing { position: relative; margin-top: 12px; border: 1px solid var(--line); border-radius: 6px; overflow: hidden; }
canvas { display: block; width: 100%; touch-action: pan-y; cursor: crosshair; }
#tip { position: absolute; display: none; max-width: 70%; padding: 6px 9px; background: var(--back); border: 1px solid var(--line);
       border-radius: 6px; pointer-events: none; white-space: pre-line; box-shadow: 0 2px 8px #0003; }
button { font: inherit; padding: 2px 10px; margin-right: 6px; }
</style>
</head>
<body>
<h1 id="title"></h1>
<p id="span"></p>
<div id="ranks"></div>
<div><button id="in">Zoom in</button><button id="out">Zoom out</button><button id="all">All</button>
<span id="hint">Wheel or pinch: zoom. Drag: move. Hover or tap: what it was.</span></div>
<p id="legend"></p>
<div id="drawing"><canvas id="canvas"></canvas><div id="tip"></div></div>
<script id="data" type="application/json">)page";

const std::string_view kPageTail = R"page(</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const COLOURS = ["#8c959f", "#1f6feb", "#1a7f37", "#bf3989", "#8250df", "#0598bc", "#bc4c00", "#9a6700", "#d1242f"];
const ROW = 13, GAP = 5, LABEL = 84, HEAD = 22, AXIS = 24;
const byId = id => document.getElementById(id);
const canvas = byId("canvas"), tip = byId("tip"), pen = canvas.getContext("2d");

function add(parent, tag, text) {
  const element = document.createElement(tag);
  element.textContent = text;
  parent.append(element);
  return element;
}

function time(us) {
  const size = Math.abs(us);
  return size >= 1e6 ? (us / 1e6).toFixed(3) + " s" : size >= 1e3 ? (us / 1e3).toFixed(2) + " ms" : us.toFixed(1) + " µs";
}

function amount(bytes) {
  for (const [size, name] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]])
    if (bytes >= size) return (bytes / size).toFixed(1) + " " + name;
  return bytes + " bytes";
}

// Where each lane of each rank is drawn.
const lanes = [];
let bottom = AXIS, last = 0;
for (const rank of data.ranks) {
  lanes.push({ title: rank.name, y: bottom, rank });
  bottom += HEAD;
  for (let lane = 0; lane < data.lanes.length; ++lane) {
    const spans = rank.spans.filter(span => span[0] === lane);
    if (!spans.length) continue;
    const rows = 1 + spans.reduce((most, span) => Math.max(most, span[1]), 0);
    lanes.push({ lane, spans, y: bottom, rows, rank });
    bottom += rows * ROW + GAP;
    for (const span of spans) last = Math.max(last, span[2] + span[3]);
  }
  bottom += GAP;
}
let from = 0, to = last || 1, width = 0, hovered = null;

const x = us => LABEL + (width - LABEL) * (us - from) / (to - from);
const us = px => from + (px - LABEL) / (width - LABEL) * (to - from);

function axis(style) {
  const room = (width - LABEL) / 90, raw = (to - from) / Math.max(1, room), ten = 10 ** Math.floor(Math.log10(raw));
  const mark = [1, 2, 5, 10].map(n => n * ten).find(n => n >= raw);
  pen.textAlign = "center";
  for (let at = Math.ceil(from / mark) * mark; at <= to; at += mark) {
    pen.fillStyle = style.line;
    pen.fillRect(x(at), AXIS - 6, 1, bottom);
    pen.fillStyle = style.faint;
    pen.fillText(time(at), x(at), 13);
  }
  pen.textAlign = "left";
}

function draw() {
  const seen = getComputedStyle(document.body), ratio = window.devicePixelRatio || 1;
  const style = { text: seen.color, line: seen.getPropertyValue("--line"), faint: seen.getPropertyValue("--faint") };
  width = canvas.clientWidth;
  canvas.width = width * ratio;
  canvas.height = bottom * ratio;
  canvas.style.height = bottom + "px";
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.font = "11px system-ui, sans-serif";
  pen.clearRect(0, 0, width, bottom);
  axis(style);
  for (const row of lanes) {
    pen.fillStyle = style.text;
    if (row.title) {
      pen.font = "bold 12px system-ui, sans-serif";
      pen.fillText(row.title, 6, row.y + 15);
      pen.font = "11px system-ui, sans-serif";
      continue;
    }
    pen.fillText(data.lanes[row.lane], 12, row.y + 10);
    pen.save();
    pen.beginPath();
    pen.rect(LABEL, 0, width, bottom);
    pen.clip();
    for (const span of row.spans) {
      const begin = x(span[2]), long = Math.max(0.7, x(span[2] + span[3]) - begin);
      if (begin > width || begin + long < LABEL) continue;
      pen.globalAlpha = span === hovered ? 1 : 0.78;
      pen.fillStyle = COLOURS[row.lane];
      pen.fillRect(begin, row.y + span[1] * ROW, long > 3 ? long - 0.6 : long, ROW - 2);
      if (long > 40) {
        pen.globalAlpha = 1;
        pen.fillStyle = "#ffffff";
        pen.save();
        pen.beginPath();
        pen.rect(begin, row.y, long, row.rows * ROW);
        pen.clip();
        pen.fillText(span[5] ? span[5].split(".").slice(-2).join(".") : span[4], Math.max(begin, LABEL) + 3, row.y + span[1] * ROW + 9);
        pen.restore();
      }
    }
    pen.restore();
    pen.globalAlpha = 1;
  }
  pen.fillStyle = style.text;
  for (const row of lanes.filter(each => each.title))
    for (const [step, begin] of row.rank.steps)
      if (x(begin) >= LABEL) pen.fillText("| step " + step, x(begin), row.y + 15);
}

function find(px, py) {
  const row = lanes.find(each => each.spans && py >= each.y && py < each.y + each.rows * ROW);
  if (!row || px < LABEL) return null;
  const slack = us(px + 2) - us(px), at = us(px), line = Math.floor((py - row.y) / ROW);
  return row.spans.find(span => span[1] === line && at >= span[2] - slack && at <= span[2] + span[3] + slack) || null;
}

function show(event) {
  const box = canvas.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
  const span = find(px, py);
  if (span !== hovered) {
    hovered = span;
    draw();
  }
  tip.style.display = span ? "block" : "none";
  if (!span) return;
  const [, , begin, long, name, unit, bytes, detail] = span;
  tip.textContent = [name + (unit ? ": " + unit : ""), time(long) + " at " + time(begin),
                     bytes ? amount(bytes) + (long > 0 ? ", " + (bytes / long / 1e3).toFixed(2) + " GB/s" : "") : "", detail]
                    .filter(Boolean).join("\n");
  tip.style.left = Math.min(px + 12, Math.max(0, width - tip.offsetWidth - 4)) + "px";
  tip.style.top = Math.min(py + 14, Math.max(0, bottom - tip.offsetHeight - 4)) + "px";
}

function view(begin, end) {
  const long = Math.min(Math.max(end - begin, 0.1), last || 1);
  from = Math.min(Math.max(0, begin), Math.max(0, last - long));
  to = from + long;
  draw();
}

const zoom = (factor, at) => view(at - (at - from) * factor, at + (to - at) * factor);

const held = new Map();
canvas.addEventListener("pointerdown", event => { canvas.setPointerCapture(event.pointerId); held.set(event.pointerId, event.offsetX); });
canvas.addEventListener("pointermove", event => {
  const before = held.get(event.pointerId);
  if (before === undefined) return show(event);
  const others = [...held].filter(([id]) => id !== event.pointerId).map(([, px]) => px);
  held.set(event.pointerId, event.offsetX);
  if (!others.length) return view(from + us(before) - us(event.offsetX), to + us(before) - us(event.offsetX));
  const now = Math.abs(event.offsetX - others[0]), then = Math.abs(before - others[0]);
  if (now > 5) zoom(then / now, us((event.offsetX + others[0]) / 2));
});
for (const end of ["pointerup", "pointercancel"])
  canvas.addEventListener(end, event => { held.delete(event.pointerId); show(event); });
canvas.addEventListener("pointerleave", () => { hovered = null; tip.style.display = "none"; draw(); });
canvas.addEventListener("wheel", event => { event.preventDefault(); zoom(1.002 ** event.deltaY, us(event.offsetX)); }, { passive: false });
byId("in").onclick = () => zoom(0.5, (from + to) / 2);
byId("out").onclick = () => zoom(2, (from + to) / 2);
byId("all").onclick = () => view(0, last);
window.addEventListener("resize", draw);

document.title = data.title;
byId("title").textContent = data.title;
byId("span").textContent = data.ranks.length + (data.ranks.length === 1 ? " rank, " : " ranks, ") + time(last);
for (const rank of data.ranks) {
  add(byId("ranks"), "div", rank.name + ": " + rank.summary).className = "summary";
  const list = add(byId("ranks"), "ul", "");
  for (const line of rank.advice) add(list, "li", line);
}
data.lanes.forEach((name, lane) => {
  const entry = add(byId("legend"), "span", "");
  add(entry, "i", "").style.background = COLOURS[lane];
  entry.append(name);
});
view(0, last);
</script>
</body>
</html>
)page";

}  // namespace capstan::profile
