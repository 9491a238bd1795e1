"""A chart of lines with marked points as SVG text; the standard library is all it needs."""

from __future__ import annotations

import math
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 64, 150, 34, 46
COLOURS = ["#1f77b4", "#e6862a", "#2e8b57", "#c0392b", "#8e6bbf", "#8c6d5a", "#d479b8", "#777777"]

Points = list[tuple[float, float]]


def ticks(low: float, high: float) -> list[float]:
    """Round numbers, four to nine of them, that cover the range."""
    step = 10 ** math.floor(math.log10((high - low) / 4))
    step *= next(m for m in (1, 2, 5, 10) if (high - low) / (step * m) <= 8)
    return [i * step for i in range(math.floor(low / step), math.ceil(high / step) + 1)]


def powers(low: float, high: float) -> list[float]:
    return [2.0**i for i in range(math.floor(math.log2(low)), math.ceil(math.log2(high)) + 1)]


def lines(title: str, x_label: str, y_label: str, series: dict[str, Points], is_log: bool = False) -> str:
    """One line a series, its points in the order given. `is_log`: the x axis, in powers of two."""
    xs = [x for points in series.values() for x, _ in points]
    x_ticks = powers(min(xs), max(xs)) if is_log else ticks(0, max(xs))
    y_ticks = ticks(0, max(y for points in series.values() for _, y in points))
    scale = math.log2 if is_log else float
    x_low, x_high = scale(x_ticks[0]), scale(x_ticks[-1])

    def across(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (scale(value) - x_low) / ((x_high - x_low) or 1)

    def down(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / y_ticks[-1]

    def text(x: float, y: float, words: str, anchor: str = "start") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"']
    parts[0] += ' font-size="11">'
    parts.append(f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>')
    parts.append(text(LEFT, 18, title))
    for tick in y_ticks:
        parts.append(f'<path d="M{LEFT} {down(tick):.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>')
        parts.append(text(LEFT - 6, down(tick) + 4, f"{tick:g}", "end"))
    for tick in x_ticks:
        parts.append(f'<path d="M{across(tick):.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#eeeeee"/>')
        parts.append(text(across(tick), HEIGHT - BOTTOM + 16, f"{tick:g}", "middle"))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_label, "middle"))
    parts.append(f'<g transform="translate(14 {HEIGHT / 2}) rotate(-90)">{text(0, 0, y_label, "middle")}</g>')
    for i, (name, points) in enumerate(series.items()):
        colour = COLOURS[i % len(COLOURS)]
        places = [(across(x), down(y)) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        for (x, y), (value_x, value_y) in zip(places, points, strict=True):
            label = f"<title>{escape(name)}: {value_x:g}, {value_y:g}</title>"
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}">{label}</circle>')
        parts.append(f'<circle cx="{WIDTH - RIGHT + 14}" cy="{TOP + 8 + 16 * i}" r="4" fill="{colour}"/>')
        parts.append(text(WIDTH - RIGHT + 24, TOP + 12 + 16 * i, name))
    return "\n".join([*parts, "</svg>"]) + "\n"
