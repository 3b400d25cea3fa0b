#!/usr/bin/env python3
"""draw.py OUT.svg "LABEL=FILE.jsonl" …: loss curves in one picture, and their largest distance."""
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from drawing import WIDTH, svg, ticks  # noqa: E402

HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 300, 34, 24, 14, 46
COLOURS = ["#1f6feb", "#d1242f", "#1a7f37", "#8250df"]


def read(path):
    lines = [json.loads(line) for line in open(path)]
    return [(line["step"], line["loss"]) for line in lines if "loss" in line]


def picture(curves):
    last = max(step for _, points in curves for step, _ in points)
    low = int(min(loss for _, points in curves for _, loss in points))
    high = int(max(loss for _, points in curves for _, loss in points)) + 1
    x = lambda step: LEFT + (WIDTH - LEFT - RIGHT) * step / last
    y = lambda loss: TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / (high - low)
    parts = []
    for loss in ticks(low, high, 6):
        parts.append(f'<path d="M{LEFT} {y(loss):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
                     f'<text x="{LEFT - 7}" y="{y(loss) + 5:.1f}" text-anchor="end">{loss:g}</text>')
    for step in ticks(0, last, 5):
        parts.append(f'<text x="{x(step):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{step:g}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">step</text>')
    for i, (label, points) in enumerate(curves):
        path = "M" + "L".join(f"{x(s):.1f} {y(l):.1f}" for s, l in points)
        width = 3.0 if i == 0 else 1.2
        parts.append(f'<path d="{path}" fill="none" stroke="{COLOURS[i]}" stroke-width="{width}" opacity="0.8"/>'
                     f'<text x="{LEFT + 62}" y="{TOP + 20 + 22 * i}" fill="{COLOURS[i]}">{label}: '
                     f'{points[0][1]:.3f} to {points[-1][1]:.3f}</text>')
    return svg(HEIGHT, parts, "Loss by step: " + ", ".join(label for label, _ in curves))


def main():
    curves = [(label, read(path)) for label, path in (arg.split("=", 1) for arg in sys.argv[2:])]
    Path(sys.argv[1]).write_text(picture(curves))
    first = dict(curves[0][1])
    for label, points in curves[1:]:
        gaps = [abs(first[s] - l) for s, l in points if s in first]
        tail = gaps[-100:]
        print(f"{label}: largest distance {max(gaps):.4f}, mean of the last {len(tail)} steps {sum(tail) / len(tail):.4f}")


if __name__ == "__main__":
    main()
