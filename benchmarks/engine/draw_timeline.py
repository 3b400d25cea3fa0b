#!/usr/bin/env python3
"""draw_timeline.py TRACE.json OUT.svg: one step as bars: of `gpt_bench --trace` kernels, copies to the host, copies back; of
`nvme_bench` reads, updates, writes."""
import json
import sys

WIDTH, ROW, LEFT, TOP = 860, 46, 130, 20


def lanes(events):
    if any(e.get("cat") == "read" for e in events):
        return {name: [(e["ts"], e["dur"]) for e in events if e.get("cat") == name] for name in ("read", "update", "write")}
    rows = {"GPU kernels": [], "to the host": [], "to the device": []}
    for e in events:
        if e.get("cat") == "kernel":
            rows["GPU kernels"].append((e["ts"], e["dur"]))
        elif "DtoH" in e.get("name", "") and e["dur"] > 20:
            rows["to the host"].append((e["ts"], e["dur"]))
        elif "HtoD" in e.get("name", "") and e["dur"] > 20:
            rows["to the device"].append((e["ts"], e["dur"]))
    return rows


def merge(bars, gap):
    merged = []
    for start, length in sorted(bars):
        if merged and start - merged[-1][1] < gap:
            merged[-1][1] = max(merged[-1][1], start + length)
        else:
            merged.append([start, start + length])
    return merged


def main():
    rows = lanes(json.load(open(sys.argv[1]))["traceEvents"])
    begin = min(s for bars in rows.values() for s, _ in bars)
    end = max(s + d for bars in rows.values() for s, d in bars)
    x = lambda t: LEFT + (WIDTH - LEFT - 20) * (t - begin) / (end - begin)
    height = TOP + ROW * len(rows) + 34
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">'
           '<rect width="100%" height="100%" fill="white"/>']
    for i, (name, bars) in enumerate(rows.items()):
        y = TOP + ROW * i
        out.append(f'<text x="{LEFT - 10}" y="{y + 20}" text-anchor="end">{name}</text>')
        for start, stop in merge(bars, (end - begin) / 2000):
            out.append(f'<rect x="{x(start):.1f}" y="{y}" width="{max(0.4, x(stop) - x(start)):.1f}" height="30" '
                       f'fill="{["#1f6feb", "#d1242f", "#1a7f37"][i]}"/>')
    for k in range(6):
        t = begin + (end - begin) * k / 5
        out.append(f'<text x="{x(t):.1f}" y="{height - 12}" text-anchor="middle">{(t - begin) / 1000:.0f} ms</text>')
    open(sys.argv[2], "w").write("".join(out) + "</svg>\n")


if __name__ == "__main__":
    main()
