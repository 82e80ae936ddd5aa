"""Draws the loss of two arms against tokens, and their difference, as an SVG: with the standard library alone. The same numbers
give the same bytes."""

import dataclasses
import html
import math
import statistics

WIDTH, HEIGHT = 900, 720
LEFT, RIGHT = 74, 116
LOSS_TOP, LOSS_BOTTOM = 84, 420
LESS_TOP, LESS_BOTTOM = 476, 664
COLORS = ("#1f77b4", "#d95f02")
DASHES = ("", "5 3", "1.5 2.5")  # of the first, second and third seed
MEANS_MAX = 60  # points of a line
LOSS_FROM = 0.05  # part of the tokens before which the loss, still high, is left out
DIFFERENCE_FROM = 0.25  # the same of the difference, which settles later
LABEL_GAP = 16


@dataclasses.dataclass
class Series:
    name: str
    label: str
    losses: list  # of each seed: training loss by step
    held_out: list  # of each seed: at the end


def num_means(series):
    """The most spans, up to MEANS_MAX, that hold whole steps of both arms: then both are means over the same tokens."""
    steps = math.gcd(*(len(losses) for one in series for losses in one.losses))
    return max(count for count in range(1, MEANS_MAX + 1) if steps % count == 0)


def means(losses, count, shown_from):
    """[(part of the tokens, mean loss)] of `count` equal spans, of those from the part `shown_from` on."""
    size = len(losses) // count
    spans = [((i + 0.5) / count, statistics.mean(losses[i * size:(i + 1) * size])) for i in range(count)]
    return [(part, loss) for part, loss in spans if part >= shown_from]


def tick_step(span):
    """Returns 5, 2 or 1 times a power of ten, so that the span has four to ten such intervals."""
    power = 10.0 ** math.floor(math.log10(span / 4))
    return next(power * factor for factor in (5, 2, 1) if span / (power * factor) >= 4)


@dataclasses.dataclass
class Panel:
    top: int
    bottom: int
    low: float
    high: float

    @classmethod
    def around(cls, values, top, bottom):
        margin = (max(values) - min(values)) * 0.05 or 0.01
        return cls(top, bottom, min(values) - margin, max(values) + margin)

    def x(self, part):
        return LEFT + (WIDTH - LEFT - RIGHT) * part

    def y(self, value):
        return self.bottom - (self.bottom - self.top) * (value - self.low) / (self.high - self.low)

    def frame(self, title):
        step = tick_step(self.high - self.low)
        for i in range(math.ceil(self.low / step), math.floor(self.high / step) + 1):
            y = self.y(i * step)
            yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
            yield text(LEFT - 8, y + 4, f"{i * step:.4g}", "end")
        yield f'<path d="M{LEFT} {self.top}V{self.bottom}H{WIDTH - RIGHT}" fill="none" stroke="#222"/>'
        middle = (self.top + self.bottom) / 2
        yield text(18, middle, title, "middle", turn=f' transform="rotate(-90 18 {middle:.1f})"')

    def tokens(self, tokens, labels):
        step = tick_step(tokens / 1e6)
        for i in range(math.floor(tokens / 1e6 / step) + 1):
            x = self.x(i * step * 1e6 / tokens)
            yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{self.bottom}" y2="{self.bottom + 5}" stroke="#222"/>'
            if labels:
                yield text(x, self.bottom + 20, f"{i * step:.4g}", "middle")

    def line(self, points, color, dash):
        path = " ".join(f"{self.x(part):.1f},{self.y(value):.1f}" for part, value in points)
        return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.4" stroke-dasharray="{dash}"/>'

    def circle(self, place, value, color):
        x = WIDTH - RIGHT + 16 + 14 * place
        return f'<circle cx="{x}" cy="{self.y(value):.1f}" r="4" fill="none" stroke="{color}" stroke-width="1.6"/>'


def text(x, y, words, anchor="start", size=13, color="#222", turn=""):
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turn}'
    return f'<text {place} font-size="{size}" fill="{color}">{html.escape(words)}</text>'


def legend(series, tokens, count):
    yield text(LEFT, 24, f"training loss, means of {tokens // count:,} tokens; a line for each seed", size=14)
    for place, (one, color) in enumerate(zip(series, COLORS)):
        y = 46 + 19 * place
        yield f'<line x1="{LEFT}" x2="{LEFT + 28}" y1="{y - 4}" y2="{y - 4}" stroke="{color}" stroke-width="2"/>'
        yield text(LEFT + 36, y, one.label)


def loss_panel(series, tokens, count):
    lines = [[means(losses, count, LOSS_FROM) for losses in one.losses] for one in series]
    shown = [loss for one in lines for line in one for _, loss in line]
    panel = Panel.around(shown + [loss for one in series for loss in one.held_out], LOSS_TOP, LOSS_BOTTOM)
    yield from panel.frame("nats per byte")
    yield from panel.tokens(tokens, labels=False)
    ends = [statistics.mean(one.held_out) for one in series]
    apart = max(0, (LABEL_GAP - abs(panel.y(ends[0]) - panel.y(ends[1]))) / 2)
    for place, (one, color) in enumerate(zip(series, COLORS)):
        yield from (panel.line(line, color, dash) for line, dash in zip(lines[place], DASHES))
        yield from (panel.circle(place, loss, color) for loss in one.held_out)
        side = 1 if ends[place] <= ends[1 - place] else -1  # a lower loss is further down
        yield text(WIDTH - RIGHT + 42, panel.y(ends[place]) + 4 + side * apart, f"{ends[place]:.4f}", color=color)
    yield text(WIDTH - RIGHT + 8, LOSS_TOP - 8, "held out, at the end", size=11)


def difference_panel(series, tokens, count, tolerance):
    base, arm = series
    lines = []
    for losses, others in zip(arm.losses, base.losses):
        pairs = zip(means(losses, count, DIFFERENCE_FROM), means(others, count, DIFFERENCE_FROM))
        lines.append([(part, loss - other) for (part, loss), (_, other) in pairs])
    ends = [loss - other for loss, other in zip(arm.held_out, base.held_out)]
    shown = [value for line in lines for _, value in line]
    panel = Panel.around([*shown, *ends, tolerance, -tolerance], LESS_TOP, LESS_BOTTOM)
    height = panel.y(-tolerance) - panel.y(tolerance)
    yield f'<rect x="{LEFT}" y="{panel.y(tolerance):.1f}" width="{WIDTH - LEFT - RIGHT}" height="{height:.1f}" fill="#e8e8e8"/>'
    yield from panel.frame("difference")
    yield from panel.tokens(tokens, labels=True)
    yield from (panel.line(line, COLORS[1], dash) for line, dash in zip(lines, DASHES))
    yield from (panel.circle(1, value, COLORS[1]) for value in ends)
    yield text(WIDTH - RIGHT + 42, panel.y(statistics.mean(ends)) + 4, f"{statistics.mean(ends):+.4f}", color=COLORS[1])
    title = f"{arm.name} less {base.name} on the same bytes, after a quarter of them; grey: {tolerance:g} nats to either side"
    yield text(LEFT, LESS_TOP - 12, title, size=14)
    yield text((LEFT + WIDTH - RIGHT) / 2, LESS_BOTTOM + 42, "million tokens", "middle")


def draw(series, tokens, tolerance):
    """Returns the SVG: above, a line of training loss for each seed of the two series and a circle for its held-out loss at the
    end; below, the second less the first, seed by seed, on the band of the tolerance."""
    count = num_means(series)
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        *legend(series, tokens, count),
        *loss_panel(series, tokens, count),
        *difference_panel(series, tokens, count, tolerance),
        "</svg>",
        "",
    ])
