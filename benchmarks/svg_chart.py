"""A line chart as an SVG file, with Python's standard library alone.

    write_chart('out.svg', title='...', x='batch', y='tokens/s', lines=[Line('tp 1', [(1, 100.0), (8, 700.0)])], log_x=True)
"""

import math
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 860, 520
LEFT, RIGHT, TOP, BOTTOM = 80, 230, 46, 56
COLOURS = ('#1f6fb4', '#d1495b', '#3a9d5d', '#8d5fb0', '#e08e2b', '#2aa7a1', '#7a6652', '#c2559d')


@dataclass
class Line:
    name: str
    points: list  # [(x, y)] or [(x, y, label)]
    dashed: bool = False
    colour: int = None  # of an earlier line, by its number; None: one of its own


@dataclass
class Axis:
    least: float
    most: float
    log: bool
    ticks: list = field(default_factory=list)

    def place(self, value):
        """0 to 1."""
        if self.log:
            return math.log(value / self.least) / math.log(self.most / self.least)
        return (value - self.least) / (self.most - self.least)


def number(value):
    """Short, as people write it: 0.5, 20, 1.5k, 20k."""
    for limit, letter in ((1e9, 'G'), (1e6, 'M'), (1e3, 'k')):
        if abs(value) >= limit:
            return f'{value / limit:.3g}{letter}'
    return f'{value:.3g}'


def linear_axis(most):
    """From zero to a round number from `most` on."""
    most = most or 1.0
    step = 10 ** math.floor(math.log10(most))
    for part in (0.1, 0.2, 0.25, 0.5, 1, 2):
        if most / (step * part) <= 8:
            step *= part
            break
    count = math.ceil(most / step - 1e-9)
    return Axis(0.0, count * step, False, [i * step for i in range(count + 1)])


def log_axis(values):
    """Between powers of two."""
    least, most = math.floor(math.log2(min(values))), math.ceil(math.log2(max(values)))
    if least == most:
        least, most = least - 1, most + 1
    every = max(1, math.ceil((most - least) / 10))
    return Axis(2.0 ** least, 2.0 ** most, True, [2.0 ** e for e in range(least, most + 1, every)])


def chart(title, x, y, lines, log_x=False, log_y=False):
    """The SVG's text."""
    points = [point for line in lines for point in line.points]
    xs = [point[0] for point in points if point[0] > 0 or not log_x] or [1.0]
    ys = [point[1] for point in points if point[1] > 0 or not log_y] or [1.0]
    across = log_axis(xs) if log_x else linear_axis(max(xs))
    up = log_axis(ys) if log_y else linear_axis(max(ys))
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at(point):
        return LEFT + across.place(point[0]) * wide, TOP + (1 - up.place(point[1])) * high

    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
           'font-family="sans-serif" font-size="12">', f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           f'<text x="{LEFT}" y="26" font-size="15">{escape(title)}</text>']
    for tick in across.ticks:
        px, _ = at((tick, up.least))
        svg.append(f'<path d="M{px:.1f} {TOP}V{TOP + high}" stroke="#e4e4e4"/>'
                   f'<text x="{px:.1f}" y="{TOP + high + 18}" text-anchor="middle">{number(tick)}</text>')
    for tick in up.ticks:
        _, py = at((across.least, tick))
        svg.append(f'<path d="M{LEFT} {py:.1f}H{LEFT + wide}" stroke="#e4e4e4"/>'
                   f'<text x="{LEFT - 8}" y="{py + 4:.1f}" text-anchor="end">{number(tick)}</text>')
    svg.append(f'<path d="M{LEFT} {TOP}V{TOP + high}H{LEFT + wide}" stroke="#444" fill="none"/>'
               f'<text x="{LEFT + wide / 2}" y="{HEIGHT - 14}" text-anchor="middle">{escape(x)}</text>'
               f'<text transform="translate(20 {TOP + high / 2}) rotate(-90)" text-anchor="middle">{escape(y)}</text>')
    for i, line in enumerate(lines):
        colour = COLOURS[(i if line.colour is None else line.colour) % len(COLOURS)]
        dash = ' stroke-dasharray="6 4"' if line.dashed else ''
        drawn = [point for point in line.points if not (log_x and point[0] <= 0) and not (log_y and point[1] <= 0)]
        path = ' '.join(f'{px:.1f},{py:.1f}' for px, py in map(at, drawn))
        svg.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        for point in drawn:
            px, py = at(point)
            if not line.dashed:
                svg.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3.5" fill="{colour}"/>')
            if len(point) > 2:
                svg.append(f'<text x="{px + 6:.1f}" y="{py - 6:.1f}" fill="#555">{escape(str(point[2]))}</text>')
        top = TOP + 8 + 18 * i
        svg.append(f'<path d="M{LEFT + wide + 16} {top}h22" stroke="{colour}" stroke-width="2"{dash}/>'
                   f'<text x="{LEFT + wide + 44}" y="{top + 4}">{escape(line.name)}</text>')
    return '\n'.join(svg + ['</svg>', ''])


def write_chart(path, **what):
    with open(path, 'w', encoding='utf-8') as file:
        file.write(chart(**what))
