#!/usr/bin/env python3
"""draw_timeline.py TRACE.json OUT.svg: one step as rows of bars. From `gpt_bench --trace`: kernels, copies to the host, updates by the
CPU, copies back; from `nvme_bench`: reads, updates, writes."""
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from drawing import WIDTH, svg, ticks  # noqa: E402

MARGIN, ROW, BAR = 18, 46, 20
COLOURS = {"GPU kernels": "#1f6feb", "Copies to the host": "#d1242f", "CPU updates": "#9a6700", "Copies to the GPU": "#1a7f37",
           "Reads": "#1f6feb", "Updates": "#9a6700", "Writes": "#1a7f37"}


def lane_of(event):
    name, kind = event.get("name", ""), event.get("cat")
    if kind in ("read", "update", "write"):
        return kind.capitalize() + "s"
    if kind == "kernel":
        return "GPU kernels"
    if name == "capstan::host_update" and kind == "user_annotation":
        return "CPU updates"
    # Copies of a few bytes are not worth a bar.
    if "DtoH" in name and event["dur"] > 20:
        return "Copies to the host"
    if "HtoD" in name and event["dur"] > 20:
        return "Copies to the GPU"
    return None


def lanes(events):
    rows = {name: [] for name in COLOURS}
    for event in events:
        lane = lane_of(event)
        if lane:
            rows[lane].append((event["ts"], event["dur"]))
    return {name: bars for name, bars in rows.items() if bars}


def merge(bars, gap):
    merged = []
    for start, length in sorted(bars):
        if merged and start - merged[-1][1] < gap:
            merged[-1][1] = max(merged[-1][1], start + length)
        else:
            merged.append([start, start + length])
    return merged


def picture(events):
    rows = lanes(events)
    begin = min(s for bars in rows.values() for s, _ in bars)
    end = max(s + d for bars in rows.values() for s, d in bars)
    x = lambda t: MARGIN + (WIDTH - 2 * MARGIN) * (t - begin) / (end - begin)
    bottom = 8 + ROW * len(rows)
    out = []
    for ms in ticks(0, (end - begin) / 1000, 4):
        at = x(begin + 1000 * ms)
        out.append(f'<path d="M{at:.1f} 8V{bottom + 4}" stroke="#ddd"/>'
                   f'<text x="{at:.1f}" y="{bottom + 20}" text-anchor="middle">{ms:g}{" ms" if ms else ""}</text>')
    for i, (name, bars) in enumerate(rows.items()):
        y = 8 + ROW * i
        out.append(f'<text x="{MARGIN}" y="{y + 14}">{name}</text>')
        for start, stop in merge(bars, (end - begin) / 2000):
            out.append(f'<rect x="{x(start):.1f}" y="{y + 20}" width="{max(0.4, x(stop) - x(start)):.1f}" height="{BAR}" '
                       f'fill="{COLOURS[name]}"/>')
    return svg(bottom + 28, out, "One training step: " + ", ".join(rows))


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(picture(json.loads(Path(sys.argv[1]).read_text())["traceEvents"]))
