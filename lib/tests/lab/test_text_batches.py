"""A batch is a function of (seed, step, rank), and every world size trains on the same global batch."""

import random
import sysconfig
from itertools import product

import pytest
import torch

from shardlab.text_batches import VOCAB_SIZE, batch, corpus

SIZES = {"global_batch": 12, "seq_len": 40}


def global_batch(world_size: int, seed: int = 3, step: int = 5) -> list[torch.Tensor]:
    """Sample i of the global batch, as rank i % N got it: tokens and targets one below the other."""
    ranks = [torch.stack(batch(seed, step, r, world_size, **SIZES), dim=1) for r in range(world_size)]
    return [ranks[i % world_size][i // world_size] for i in range(SIZES["global_batch"])]


@pytest.mark.parametrize("world_size", [2, 3, 4, 6, 12])
def test_any_world_size_sees_the_same_global_batch(world_size):
    assert torch.equal(torch.stack(global_batch(world_size)), torch.stack(global_batch(1)))


def test_a_batch_depends_on_seed_step_and_rank_and_on_nothing_else():
    arguments = list(product((0, 1), (0, 1, 2), (0, 1)))
    first = {a: batch(*a, 2, **SIZES)[0] for a in arguments}
    torch.manual_seed(99)
    random.Random(0).shuffle(arguments)
    for a in arguments:
        torch.rand(3)
        assert torch.equal(batch(*a, 2, **SIZES)[0], first[a])
    assert len({tuple(t.flatten().tolist()) for t in first.values()}) == len(arguments)


def test_the_global_generator_is_left_alone():
    before = torch.random.get_rng_state()
    batch(0, 0, 0, 1, **SIZES)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_targets_are_the_bytes_that_follow():
    tokens, targets = batch(0, 0, 1, 3, **SIZES)
    assert tokens.shape == targets.shape == (4, 40)
    assert tokens.dtype == targets.dtype == torch.int64
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    assert 0 <= int(tokens.min()) <= int(tokens.max()) < VOCAB_SIZE
    text = bytes(corpus().tolist())
    assert all(bytes([*t.tolist(), int(last)]) in text for t, last in zip(tokens, targets[:, -1], strict=True))


def test_the_corpus_is_python():
    text = bytes(corpus().tolist())
    assert 100_000 <= len(text) <= 4_000_000
    assert b"def __init__(self" in text


@pytest.mark.parametrize(
    ("rank", "world_size", "changes", "words"),
    [
        (0, 5, {}, "12 samples does not divide over 5 ranks"),
        (0, 1, {"global_batch": 0}, "0 samples"),
        (2, 2, {}, "no rank 2 among 2 ranks"),
        (-1, 2, {}, "no rank -1 among 2"),
        (0, 0, {}, "no rank 0 among 0"),
        (0, 1, {"seq_len": 0}, "seq_len=0 must lie between 1 and"),
        (0, 1, {"seq_len": 10**9}, "seq_len=1000000000 must lie"),
    ],
)
def test_arguments_that_make_no_sense_are_named(rank, world_size, changes, words):
    with pytest.raises(ValueError, match=words):
        batch(0, 0, rank, world_size, **(SIZES | changes))


def test_the_corpus_is_what_lies_in_the_standard_library_and_not_where_its_links_lead(tmp_path, monkeypatch):
    (tmp_path / "python").mkdir()
    (tmp_path / "site.py").write_text("#" * 200_000)
    (tmp_path / "python" / "sitecustomize.py").symlink_to(tmp_path / "site.py")
    (tmp_path / "python" / "nowhere.py").symlink_to(tmp_path / "gone.py")
    (tmp_path / "python" / "real.py").write_text("x" * 150_000)
    (tmp_path / "python" / "same.py").symlink_to("real.py")
    (tmp_path / "link").symlink_to("python")  # the folder itself may be one
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "link"))
    corpus.cache_clear()
    try:
        assert bytes(corpus().tolist()) == b"x" * 300_000
    finally:
        corpus.cache_clear()
