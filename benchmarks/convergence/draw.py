#!/usr/bin/env python3
"""draw.py OUT.svg "LABEL=FILE.jsonl" …: loss curves in one picture, and their largest distance."""
import json
import sys

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 760, 420, 56, 40, 34
COLOURS = ["#1f6feb", "#d1242f", "#1a7f37", "#8250df"]


def read(path):
    lines = [json.loads(line) for line in open(path)]
    return [(line["step"], line["loss"]) for line in lines if "loss" in line]


def main():
    curves = [(label, read(path)) for label, path in (arg.split("=", 1) for arg in sys.argv[2:])]
    last = max(step for _, points in curves for step, _ in points)
    low = min(loss for _, points in curves for _, loss in points)
    high = max(loss for _, points in curves for _, loss in points)
    low, high = int(low), int(high) + 1
    x = lambda step: LEFT + (WIDTH - LEFT - 16) * step / last
    y = lambda loss: TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / (high - low)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
             f'font-size="12"><rect width="100%" height="100%" fill="white"/>']
    for loss in range(low, high + 1):
        parts.append(f'<path d="M{LEFT} {y(loss):.1f}H{WIDTH - 16}" stroke="#ddd"/>'
                     f'<text x="{LEFT - 8}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss}</text>')
    for k in range(6):
        step = last * k // 5
        parts.append(f'<text x="{x(step):.1f}" y="{HEIGHT - 18}" text-anchor="middle">{step}</text>')
    parts.append(f'<text x="{WIDTH // 2}" y="{HEIGHT - 3}" text-anchor="middle">step</text>')
    for i, (label, points) in enumerate(curves):
        path = "M" + "L".join(f"{x(s):.1f} {y(l):.1f}" for s, l in points)
        width = 3.0 if i == 0 else 1.2
        parts.append(f'<path d="{path}" fill="none" stroke="{COLOURS[i]}" stroke-width="{width}" opacity="0.8"/>'
                     f'<text x="{LEFT + 90}" y="{TOP + 14 + 18 * i}" fill="{COLOURS[i]}">{label}: '
                     f'{points[0][1]:.3f} to {points[-1][1]:.3f}</text>')
    open(sys.argv[1], "w").write("".join(parts) + "</svg>\n")
    first = dict(curves[0][1])
    for label, points in curves[1:]:
        gaps = [abs(first[s] - l) for s, l in points if s in first]
        tail = gaps[-100:]
        print(f"{label}: largest distance {max(gaps):.4f}, mean of the last {len(tail)} steps {sum(tail) / len(tail):.4f}")


if __name__ == "__main__":
    main()
