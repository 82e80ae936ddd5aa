"""Colours of the page as people with deuteranopia and protanopia see them.

Simulated with the matrices for full severity of Machado, Oliveira and Fernandes, "A Physiologically-based Model for
Simulation of Color Vision Deficiency", IEEE TVCG 15(6), 2009. Distances are those of CIE 1976 L*a*b* (D65), where 2.3
is the least that people notice side by side.
"""

import itertools
import re

VISION = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
}
CATEGORIES = ["forward", "backward", "weights", "optimizer", "send", "receive", "collective", "load", "wait"]
DISTANCE_MIN = 20


def linear(value):
    value /= 255
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4


def seen(color, vision):
    """Linear red, green and blue of 0 to 1, as the vision sees the color of 0 to 255."""
    light = [linear(value) for value in color]
    return [min(1, max(0, sum(row[i] * light[i] for i in range(3)))) for row in VISION[vision]]


def luminance(light):
    return 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2]


def lab(light):
    r, g, b = light
    x = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047
    y = luminance(light)
    z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883
    fx, fy, fz = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def distance(a, b):
    return sum((x - y) ** 2 for x, y in zip(a, b)) ** 0.5


def colors_of(block):
    return {name: tuple(int(digits[i:i + 2], 16) for i in (0, 2, 4))
            for name, digits in re.findall(r"--([a-z]+): #([0-9a-f]{6});", block)}


def palettes(css):
    """Light, and dark: which changes some of the light ones."""
    light, dark = re.findall(r":root \{(.*?)\}", css, re.S)[:2]
    return {"light": colors_of(light), "dark": {**colors_of(light), **colors_of(dark)}}


def check_categories(css):
    least = {}
    for mode, colors in palettes(css).items():
        for vision in VISION:
            seen_as = {name: lab(seen(colors[name], vision)) for name in CATEGORIES}
            pairs = ((distance(seen_as[a], seen_as[b]), a, b) for a, b in itertools.combinations(CATEGORIES, 2))
            least[mode, vision] = min(pairs)
    for (mode, vision), (size, a, b) in least.items():
        if size < DISTANCE_MIN:
            raise AssertionError(f"{mode} mode, {vision}: {a} and {b} differ by {size:.1f}; at least {DISTANCE_MIN}")
    return min(least.values())[0]


def check_ramp(script):
    block = re.search(r"const RAMP = \[(.*?)\];", script, re.S)[1]
    ramp = [tuple(map(int, numbers)) for numbers in re.findall(r"\[(\d+), (\d+), (\d+)\]", block)]
    if len(ramp) < 5:
        raise AssertionError(f"the ramp has {len(ramp)} colors")
    for vision in VISION:
        values = [luminance(seen(color, vision)) for color in ramp]
        if any(b <= a for a, b in zip(values, values[1:])):
            raise AssertionError(f"{vision}: the ramp does not get brighter everywhere: {values}")


def check(css, script):
    """The texts of page.css and charts.js."""
    check_ramp(script)
    return check_categories(css)
