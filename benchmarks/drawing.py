"""What the programs that draw pictures for the documents have in common."""
import math

# A phone shows these pictures 360 pixels wide: few units and large text keep them readable there.
WIDTH = 420
FONT_SIZE = 14


def ticks(low, high, most):
    """Multiples of 1, 2 or 5 times a power of ten inside [low, high], at most `most` + 1 of them."""
    rough = (high - low) / most
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def svg(height, parts, label):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH * 3 // 2}" '
            f'font-family="system-ui, sans-serif" font-size="{FONT_SIZE}" role="img" aria-label="{label}">'
            '<rect width="100%" height="100%" fill="white"/>' + "".join(parts) + "</svg>\n")
