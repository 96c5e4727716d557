"""The picture of chunks: what is in a box is what it was given, and looks tell what a hop has changed and completed."""

from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from shardcourse import figures
from shardcourse.figures.style import BLUE, ORANGE

BEFORE = [[[0], [0]], [[1], [1]]]
AFTER = [[[0, 1], [0]], [[1], [1, 0]]]


def boxes(ax) -> dict[tuple[int, int], Rectangle]:
    """(rank, chunk) -> the box; of several in one place, the one on top."""
    found = [p for p in ax.patches if isinstance(p, Rectangle)]
    return {(round(p.get_y() + p.get_height() / 2), round(p.get_x() + p.get_width() / 2)): p for p in found}


def words(ax) -> dict[tuple[int, int], str]:
    return {(round(t.get_position()[1]), round(t.get_position()[0])): t.get_text() for t in ax.texts}


def test_each_box_says_whose_numbers_are_in_it():
    before, after = figures.chunks_over_hops({"before": BEFORE, "hop 1": AFTER}, in_a_row=2).axes
    assert words(before) == {(0, 0): "0", (0, 1): "0", (1, 0): "1", (1, 1): "1"}
    assert words(after) == {(0, 0): "01", (0, 1): "0", (1, 0): "1", (1, 1): "01"}
    assert [t.get_text() for t in before.get_yticklabels()] == ["rank 0", "rank 1"]
    assert after.get_title() == "hop 1"


def test_a_frame_tells_what_a_hop_changed_and_a_full_box_what_is_complete():
    before, after = figures.chunks_over_hops({"before": BEFORE, "hop 1": AFTER}, in_a_row=2).axes
    assert {to_hex(box.get_edgecolor()) for box in boxes(before).values()} == {BLUE}
    framed = {at for at, box in boxes(after).items() if to_hex(box.get_edgecolor()) == ORANGE}
    full = {at for at, box in boxes(after).items() if to_hex(box.get_facecolor(), keep_alpha=True) == f"{BLUE}ff"}
    assert framed == full == {(0, 0), (1, 1)}


def test_a_hop_that_changes_nothing_frames_nothing():
    fig = figures.chunks_over_hops({"before": BEFORE, "hop 1": AFTER, "hop 2": AFTER})
    third = fig.axes[2]
    assert {to_hex(box.get_edgecolor()) for box in boxes(third).values()} == {BLUE}
    assert not fig.axes[3].axison, "the place for a fourth hop stays empty"
