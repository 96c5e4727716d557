"""The table of other courses in course/README.md: it is the file's, and each cell has its evidence."""

import re
from itertools import zip_longest

import pytest

from shardcourse.peers import BLOCK, README, WORDS, block, load

TEXT = README.read_text()


def outdated(found: dict) -> list[str]:
    """Lines that the README has otherwise than the file makes them."""
    lines = zip_longest(BLOCK.search(TEXT)[0].splitlines(), block(found).splitlines())
    return [f"{written} / {made}" for written, made in lines if written != made]


def unfounded(found: dict) -> list[str]:
    """Cells that are not a word, one of the peer's places, and a path or a section in it."""
    peers, wrong = found["peers"], []
    for topic in found["topics"]:
        for key in topic.keys() - {"topic", "ours"}:
            word, place, where = [*topic[key].split(" ", 2), "", ""][:3]
            if word not in WORDS or place not in peers.get(key, {"places": ()})["places"] or not where.strip():
                wrong.append(f"{topic['topic']}: {key}")
    return wrong


def unclear(found: dict) -> list[str]:
    """Topics that stand there twice or nowhere, and peers without an address or a place that no cell names."""
    topics, cells = [topic["topic"] for topic in found["topics"]], str(found["topics"])
    twice = {name for name in topics if topics.count(name) > 1}
    empty = {topic["topic"] for topic in found["topics"] if len(topic) == 2 and not topic["ours"]}
    peers = found["peers"].items()
    unaddressed = {key for key, peer in peers if not re.fullmatch(r"https://[^ ]+", peer["address"])}
    unused = {place for _, peer in peers for place in peer["places"] if f" {place} " not in cells}
    return sorted(twice | empty | unaddressed | unused)


CHECKS = outdated, unfounded, unclear


@pytest.mark.parametrize("check", CHECKS)
def test_the_table_is_as_the_file_says(check):
    assert check(load()) == []


@pytest.mark.parametrize(
    ("check", "change"),
    [
        (outdated, lambda f: f["topics"][0].update(book="runs jax-ml/scaling-book sharding.md")),
        (outdated, lambda f: f["topics"][0].update(ours="2a")),
        (outdated, lambda f: f["peers"]["uva"].update(better_for="everything")),
        (outdated, lambda f: f["topics"].pop()),
        (outdated, lambda f: f["topics"].reverse()),
        (unfounded, lambda f: f["topics"][0].update(book="tells")),
        (unfounded, lambda f: f["topics"][0].update(book="tells jax-ml/scaling-book")),
        (unfounded, lambda f: f["topics"][0].update(book="tells pytorch/tutorials sharding.md")),
        (unfounded, lambda f: f["topics"][0].update(book="shows jax-ml/scaling-book sharding.md")),
        (unfounded, lambda f: f["topics"][0].update(boook="tells jax-ml/scaling-book sharding.md")),
        (unclear, lambda f: f["topics"].append(f["topics"][0])),
        (unclear, lambda f: f["topics"].append({"topic": "nobody's", "ours": ""})),
        (unclear, lambda f: f["peers"]["uva"].update(address="phlippe/uvadlc_notebooks")),
        (unclear, lambda f: f["peers"]["uva"]["places"].append("phlippe/other")),
    ],
)  # fmt: skip
def test_a_planted_mistake_is_found(check, change):
    found = load()
    change(found)
    assert check(found)


def test_a_lesson_that_is_not_there_is_no_cell():
    found = load()
    found["topics"][0]["ours"] = "25"
    with pytest.raises(ValueError, match="unpack"):
        block(found)
