"""The check of lesson 20's exercise: it accepts the answer, and names what is wrong with other loaders."""

import json

import pytest
import torch
from lesson_answers import answer as folded
from lesson_answers import defined

from shardcourse.exercises.load_fused import INDEX, check_loader, checked, write_files

answer = defined(folded("20_a_real_model.ipynb", "def my_load"), "my_load", torch=torch, json=json, INDEX=INDEX)


def where(folder):
    return json.loads((folder / INDEX).read_text())["weight_map"]


def names_of_the_model(folder, mine, source, open_file):
    answer(folder, mine, {}, open_file)


def without_the_start(folder, mine, source, open_file):
    answer(folder, mine, {name: (in_file, 0) for name, (in_file, _) in source.items()}, open_file)


def without_the_first_row(folder, mine, source, open_file):
    answer(folder, {name: (0, rows) for name, (_, rows) in mine.items()}, source, open_file)


def whole_tensors(folder, mine, source, open_file):
    for name, (first, rows) in mine.items():
        in_file, start = source.get(name, (name, 0))
        with open_file(folder / where(folder)[in_file]) as f:
            rows.copy_(f.get_tensor(in_file)[start + first : start + first + len(rows)])


def twice(folder, mine, source, open_file):
    for name, (first, rows) in mine.items():
        in_file, start = source.get(name, (name, 0))
        with open_file(folder / where(folder)[in_file]) as f:
            rows.copy_(f.get_slice(in_file)[start + first : start + first + len(rows)])


def every_file(folder, mine, source, open_file):
    for file in set(where(folder).values()):
        open_file(folder / file)
    answer(folder, mine, source, open_file)


def another_tensor(folder, mine, source, open_file):
    copies = {name: (first, rows.clone()) for name, (first, rows) in mine.items()}
    answer(folder, copies, source, open_file)


def not_through_open_file(folder, mine, source, open_file):
    from safetensors import safe_open

    answer(folder, mine, source, lambda file: safe_open(file, "pt"))


WRONG = {
    names_of_the_model: "As rank 0 of 1: your loader raised KeyError: 'q_proj.weight'",
    without_the_start: "As rank 0 of 1: k_proj.weight: row 0 has the values of q_proj.weight's row 0",
    without_the_first_row: "As rank 1 of 3: embed_tokens.weight: row 4 has the values of embed_tokens.weight's row 0",
    whole_tensors: "As rank 0 of 1: your loader read 924 bytes; its rows have 408, with shared rows read once",
    twice: "As rank 0 of 1: your loader read 540 bytes; its rows have 408, with shared rows read once",
    every_file: "As rank 4 of 5: your loader opened model-1.safetensors, which has none of its rows",
    another_tensor: "As rank 0 of 1: embed_tokens.weight: row 0 was not filled",
    not_through_open_file: "As rank 0 of 1: your loader read 0 bytes; its rows have 408, and not all went through "
    "open_file",
}


def test_the_answer_is_right():
    assert check_loader(answer) == "Right: each rank reads its own rows, once."


@pytest.mark.parametrize("loader", WRONG, ids=lambda f: f.__name__)
def test_what_is_wrong_is_named(loader, tmp_path):
    assert checked(loader, tmp_path, write_files(tmp_path)) == WRONG[loader]
