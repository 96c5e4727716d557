"""Can everybody read a figure? Each rule is a function from a figure to a list of problems.

Source: WCAG 2.2, 1.4.3 (contrast 4.5 to 1 for text); Machado, Oliveira & Fernandes 2009 (colour vision deficiencies, at
full severity); CIE 1976 for the difference of two colours.
"""

import io
from itertools import combinations

import numpy as np
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

CONTRAST = 4.5
DIFFERENCE = 15  # of CIE 1976; 2.3 is just noticeable side by side
UNITS = (
    "ms",
    ", s",
    "tokens/s",
    "GiB",
    "MiB",
    "KiB",
    "bytes",
    "ranks",
    "%",
    "ratio",
    "allocations and frees",
    "pair of laps",
)
BACKGROUNDS = {"white": (255, 255, 255), "black": (0, 0, 0)}
VISION = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}
_TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
)
_WHITE = np.array([0.95047, 1.0, 1.08883])


def picture(fig: Figure, background: str) -> Image.Image:
    drawn = Image.open(io.BytesIO(fig.png())).convert("RGBA")
    page = Image.new("RGBA", drawn.size, BACKGROUNDS[background])
    page.alpha_composite(drawn)
    return page.convert("RGB")


def texts(fig: Figure) -> list[Text]:
    """What is written, without the ticks that matplotlib keeps beyond the ends of an axis."""
    hidden = set()
    for axis in fig.findobj(Axis):
        shown = axis._update_ticks() if axis.axes.axison else []
        kept = {label for tick in shown for label in (tick.label1, tick.label2)}
        every = [*axis.majorTicks, *axis.minorTicks]
        hidden |= {label for tick in every for label in (tick.label1, tick.label2)} - kept
    return [t for t in fig.findobj(Text) if t.get_visible() and t.get_text().strip() and t not in hidden]


def _boxes(fig: Figure) -> list[tuple[Text, np.ndarray]]:
    """Left, bottom, right, top of each text, in pixels, and a pixel less on every side."""
    renderer = FigureCanvasAgg(fig).get_renderer()
    fig.draw(renderer)
    found = [(t, Text.get_window_extent(t, renderer).extents) for t in texts(fig)]  # without an annotation's arrow
    return [(t, box + [1, 1, -1, -1]) for t, box in found]


def overlapping_text(fig: Figure) -> list[str]:
    return [
        f"{a.get_text()!r} lies over {b.get_text()!r}"
        for (a, one), (b, two) in combinations(_boxes(fig), 2)
        if max(one[0], two[0]) < min(one[2], two[2]) and max(one[1], two[1]) < min(one[3], two[3])
    ]


def clipped_text(fig: Figure) -> list[str]:
    width, height = fig.get_size_inches() * fig.dpi
    inside = lambda box: box[0] >= 0 and box[1] >= 0 and box[2] <= width and box[3] <= height  # noqa: E731
    return [f"{t.get_text()!r} is cut off" for t, box in _boxes(fig) if not inside(box)]


def faint_text(fig: Figure) -> list[str]:
    """Against what is really behind it: most of that, as a line of the grid may pass."""
    boxes, found = _boxes(fig), []
    for name, behind in _without_text(fig, [t for t, _ in boxes]).items():
        for t, box in boxes:
            left, bottom, right, top = (max(0, round(x)) for x in box)
            pixels = behind[behind.shape[0] - top : behind.shape[0] - bottom, left:right].reshape(-1, 3)
            ratios = contrast(luminance(np.array(to_rgb(t.get_color()))), luminance(pixels / 255))
            if np.sum(ratios >= CONTRAST - 0.01) < 0.8 * max(1, ratios.size):
                found.append(f"{t.get_text()!r} on {name}, {ratios.round(2).tolist()[:3]}")
    return found


def _without_text(fig: Figure, written: list[Text]) -> dict[str, np.ndarray]:
    layout, dpi = fig.get_layout_engine(), fig.dpi
    fig.set_layout_engine("none")
    alphas = [t.get_alpha() for t in written]
    for t in written:
        t.set_alpha(0)
    canvas = FigureCanvasAgg(fig)
    canvas.draw()
    drawn = Image.fromarray(np.asarray(canvas.buffer_rgba()))
    for t, alpha in zip(written, alphas, strict=True):
        t.set_alpha(alpha)
    fig.set_layout_engine(layout)
    assert fig.dpi == dpi
    pages = {name: Image.new("RGBA", drawn.size, rgb) for name, rgb in BACKGROUNDS.items()}
    for page in pages.values():
        page.alpha_composite(drawn)
    return {name: np.asarray(page.convert("RGB")) for name, page in pages.items()}


def unlabelled_axes(fig: Figure) -> list[str]:
    """An axis with numbers says what they are, and in which unit."""
    found = []
    for axis in (a for a in fig.findobj(Axis) if a.get_visible() and a.axes.axison):
        ticks = [t.label1.get_text().rstrip("%") for t in axis._update_ticks() if t.label1.get_visible()]
        label = axis.get_label_text()
        if any(text and _is_number(text) for text in ticks) and not any(unit in label for unit in UNITS):
            found.append(f"an axis with {ticks[:3]} is labelled {label!r}")
    return found


def _is_number(text: str) -> bool:
    return text.replace(".", "").replace("−", "").isdigit()


def missing_in_legend(fig: Figure) -> list[str]:
    """Where there is a legend it names every look that areas have, but for those with outlines: predictions."""
    if not fig.legends:
        return []
    handles = [handle for legend in fig.legends for handle in legend.legend_handles]
    named = {look(handle) for handle in handles if hasattr(handle, "get_facecolor")}  # a line has no face
    areas = [area for ax in fig.axes for area in [*ax.patches, *ax.collections] if hasattr(area, "get_hatch")]
    drawn = {look(area) for area in areas if area.get_linewidth() in (0, [0]) and area.get_window_extent().width > 1}
    return [f"an area of {missing} has no name" for missing in drawn - named]


def look(area) -> tuple:
    face = np.atleast_2d(area.get_facecolor())[0]
    return tuple(np.round(face, 3)), area.get_hatch() or ""


PROBLEMS = (overlapping_text, clipped_text, faint_text, unlabelled_axes, missing_in_legend)


def problems(fig: Figure) -> list[str]:
    return [problem for rule in PROBLEMS for problem in rule(fig)]


# -------------------------------------------------------------------------------------------------------------- colours


def linear(rgb: np.ndarray) -> np.ndarray:
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def luminance(rgb: np.ndarray) -> np.ndarray:
    """Relative, of sRGB in 0..1 (..., 3)."""
    return linear(rgb) @ _TO_XYZ[1]


def contrast(one, two):
    return (np.maximum(one, two) + 0.05) / (np.minimum(one, two) + 0.05)


def difference(one: str, two: str, vision: str = "normal") -> float:
    a, b = (_lab(np.clip(VISION[vision] @ linear(np.array(to_rgb(color))), 0, 1)) for color in (one, two))
    return float(np.linalg.norm(a - b))


def _lab(rgb: np.ndarray) -> np.ndarray:
    xyz = _TO_XYZ @ rgb / _WHITE
    x, y, z = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz * (29 / 6) ** 2 / 3 + 4 / 29)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def alike(colors: dict[str, str]) -> list[str]:
    """Pairs that somebody can't tell apart."""
    return [
        f"{one} and {two} with {vision} vision"
        for one, two in combinations(colors, 2)
        for vision in VISION
        if difference(colors[one], colors[two], vision) < DIFFERENCE
    ]
