#!/usr/bin/env python3
"""draw_speed_and_memory.py OUT.svg: speed and peak memory of one training step beside other systems, as bars.

The figures are those of the first table of docs/performance.md; change both together.
"""
import sys

# One H200, GPT-2 XL (1.56 B parameters), 16 x 1024 tokens a step, bf16, AdamW: (system, TFLOP/s, peak GiB on the GPU).
# Peers and "Capstan" train Hugging Face's model, "our C++ GPT-2" is gpt_bench. The limit adds up every kernel of the step at the best
# speed that the GPU reaches.
GROUPS = [
    ("Everything on the GPU", [
        ("DeepSpeed 0.19.8, stage 3", 244, 98),
        ("PyTorch FSDP2", 342, 92.8),
        ("PyTorch FSDP2 + torch.compile", 424, 61.7),
        ("torch.compile alone, no sharding", 446, 68),
        ("Capstan, stage 3", 434, 67.4),
        ("Capstan, stage 2 + torch.compile", 460, 65.9),
        ("Capstan, stage 3, our C++ GPT-2", 497, 67.4),
        ("This GPU's limit for this step", 611, None),
    ]),
    ("Optimizer and parameters in host memory", [
        ("DeepSpeed 0.19.8, stage 3", 119, 77),
        ("PyTorch FSDP2", 149, 75),
        ("Capstan, stage 3", 268, 48.8),
        ("Capstan, stage 3, our C++ GPT-2", 292, 49.1),
    ]),
]

WIDTH, MARGIN, ROW, BAR = 420, 12, 38, 13
SPEED = (MARGIN, 200 / 611)  # where bars begin, and their width per unit
MEMORY = (262, 115 / 98)
STYLE = """
    .page { fill: #ffffff } text { fill: #1f2328 } .quiet { fill: #59636e }
    .peer { fill: #afb8c1 } .ours { fill: #1f6feb } .limit { fill: none; stroke: #59636e; stroke-dasharray: 3 3 }
    @media (prefers-color-scheme: dark) {
      .page { fill: #0d1117 } text { fill: #e6edf3 } .quiet { fill: #9198a1 }
      .peer { fill: #656e79 } .ours { fill: #388bfd } .limit { stroke: #9198a1 }
    }
"""


def text(x, y, words, kind=None, **more):
    more = more | ({"class": kind} if kind else {})
    extra = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in more.items())
    return f'<text x="{x:g}" y="{y:g}"{extra}>{words}</text>'


def bar(column, y, value, kind):
    begin, per_unit = column
    return (f'<rect x="{begin}" y="{y}" width="{value * per_unit:.1f}" height="{BAR}" rx="2" class="{kind}"/>'
            + text(begin + value * per_unit + 5, y + BAR - 1.5, f"{value:.0f}"))


def kind_of(system):
    return "ours" if system.startswith("Capstan") else "limit" if "limit" in system else "peer"


def picture():
    out = [text(MARGIN, 26, "Speed and memory of a training step", font_size=17, font_weight="bold"),
           text(MARGIN, 47, "GPT-2 XL, 16 × 1024 tokens, bf16, one H200", "quiet"),
           text(MARGIN, 67, "Higher speed and lower memory are better.", "quiet")]
    y = 72
    for title, rows in GROUPS:
        out.append(text(MARGIN, y + 26, title, font_weight="bold"))
        out.append(text(SPEED[0], y + 47, "Speed, TFLOP/s", "quiet"))
        out.append(text(MEMORY[0], y + 47, "GPU memory, GiB", "quiet"))
        y += 52
        for system, speed, memory in rows:
            out.append(text(MARGIN, y + 16, system))
            out.append(bar(SPEED, y + 21, speed, kind_of(system)))
            if memory is not None:
                out.append(bar(MEMORY, y + 21, memory, kind_of(system)))
            y += ROW
        y += 6
    height = y + 8
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH * 5 // 4}" '
            f'font-family="system-ui, sans-serif" font-size="14" role="img" '
            f'aria-label="Speed and memory of Capstan beside DeepSpeed, FSDP2 and torch.compile">\n'
            f'<style>{STYLE}</style>\n<rect width="100%" height="100%" rx="6" class="page"/>\n' + "\n".join(out) + "\n</svg>\n")


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write(picture())
