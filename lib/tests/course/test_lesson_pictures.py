"""The pictures that explain: each is drawn, and can be read on white and on black."""

from importlib import import_module
from pathlib import Path

import legible
import numpy as np
import pytest
from course_copy import ROOT
from matplotlib.colors import to_rgb

from shardcourse import pictures
from shardcourse.figures.diagram import LOOKS, diagram
from shardcourse.figures.style import LessonFigure

NAMES = sorted(file.stem for file in Path(pictures.__file__).parent.glob("[a-z]*.py"))
FOLDER = ROOT / "build" / "pictures"


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_can_be_read(name):
    """It is in build/pictures afterwards, on both backgrounds."""
    drawn = import_module(f"shardcourse.pictures.{name}").draw()
    assert isinstance(drawn, LessonFigure)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for background in legible.BACKGROUNDS:
        legible.picture(drawn, background).save(FOLDER / f"{name}-{background}.png")
    assert legible.problems(drawn) == []


def test_boxes_tell_where_arrows_meet_them():
    with diagram(4, 2, x=(0, 10), y=(0, 5), title="Two boxes") as d:
        a, b = d.box(0, 1, 2, 2, "a", "parameters"), d.box(6, 1, 2, 2, "b")
        d.arrow(a.right, b.left, "moves")
        d.line((0, 4), (9, 4))
    assert (a.left, a.right, a.top, a.bottom) == ((0, 2), (2, 2), (1, 1), (1, 3))
    words = [t.get_text() for t in d.figure.axes[0].texts if t.get_text()]
    assert words == ["a", "b", "moves"]
    assert d.figure.axes[0].get_ylim() == (5, 0)


@pytest.mark.parametrize("look", [name for name in LOOKS if name != "empty"])
def test_words_in_a_box_can_be_read(look):
    face, words = (legible.luminance(np.array(to_rgb(colour))) for colour in LOOKS[look])
    assert (max(face, words) + 0.05) / (min(face, words) + 0.05) >= 4.5
