"""The check of lesson 11a's exercise: it accepts the answer, and names what is wrong with other loaders."""

from contextlib import suppress

import pytest
import torch
from lesson_answers import answer as folded
from lesson_answers import defined

from shardcourse.exercises import load_rows
from shardcourse.exercises.load_rows import _checked, check_loader, save_rows
from shardlab import launch

answer = defined(folded("11a_state.ipynb", "def my_load"), "my_load", torch=torch)


def from_the_first_file_that_fits(folder, index, mine):
    for name, (first, rows) in mine.items():
        for file, start, n in index[name]:
            if start <= first < start + n:
                piece = torch.load(folder / file)[name][first - start :][: len(rows)]
                rows[: len(piece)] = piece


def from_every_file(folder, index, mine):
    files = {file: torch.load(folder / file) for pieces in index.values() for file, _, _ in pieces}
    for name, (first, rows) in mine.items():
        rows.copy_(torch.cat([files[file][name] for file, _, _ in index[name]])[first : first + len(rows)])


def never_missing(folder, index, mine):
    with suppress(ValueError):
        answer(folder, index, mine)


def at_the_piece_s_own_place(folder, index, mine):
    for name, (first, rows) in mine.items():
        for file, start, n in index[name]:
            low, high = max(first, start), min(first + len(rows), start + n)
            if low < high:
                rows[low - first : high - first] = torch.load(folder / file)[name][: high - low]


WRONG = {
    from_the_first_file_that_fits: "As rank 0 of 3: embedding.weight: row 64 was not filled",
    from_every_file: "As rank 0 of 3: your loader opened rank-2.pt, rank-3.pt, which has none of its rows",
    never_missing: "The index lacks rows 64 to 127 of embedding.weight, and your loader did not raise ValueError.",
    at_the_piece_s_own_place: "As rank 1 of 3: embedding.weight: row 86 has the values of row 64",
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    launch(save_rows, 4, folder, device="cpu", stream=False)
    return folder


def test_the_answer_is_right():
    assert check_loader(answer) == "Right: 3 ranks hold the weights that 4 ranks saved."


@pytest.mark.parametrize("loader", WRONG, ids=lambda f: f.__name__)
def test_what_is_wrong_is_named(loader, saved):
    assert _checked(loader, saved) == WRONG[loader]


def test_ranks_without_rows_are_among_those_that_are_tried():
    assert load_rows._span(4, 3, 7) == (3, 4) and load_rows._span(4, 6, 7) == (4, 4)
