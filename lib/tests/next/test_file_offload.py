"""FileOffloadOptimizer trains as the optimizer in memory does, to the bit, in bounded memory, and its bytes add up."""

import copy
import os
import resource
import threading
from functools import partial
from tempfile import gettempdir

import pytest
import torch
import torch.distributed as dist
from deadlines import deadline_s
from torch import nn
from torch.distributed.fsdp import fully_shard
from training import decoder, train, uneven

from shardlab import LaunchError, launch
from shardlab.shard_groups import local
from shardnext import file_offload
from shardnext.file_layout import ALIGN
from shardnext.file_offload import FileOffloadOptimizer

OPTIMIZERS = {
    "AdamW": (torch.optim.AdamW, {"lr": 1e-2}, 2),  # class, options, states of a parameter's size
    "AdamW, fused": (torch.optim.AdamW, {"lr": 1e-2, "fused": True}, 2),
    "Adam, amsgrad": (torch.optim.Adam, {"lr": 1e-2, "amsgrad": True}, 3),
    "SGD": (torch.optim.SGD, {"lr": 1e-1, "momentum": 0.9}, 1),
    "Adagrad": (torch.optim.Adagrad, {"lr": 1e-2, "initial_accumulator_value": 0.1}, 1),  # begins at something
    "RMSprop": (torch.optim.RMSprop, {"lr": 1e-3, "centered": True, "momentum": 0.5}, 3),
}
SMALL = 3 * ALIGN * 8 * 3  # bytes: the largest parameter is cut into many pieces, several small ones share a chunk


def sharded(model):
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def weights(model) -> list[torch.Tensor]:
    return [local(p).clone() for p in model.parameters()]


def same(a, b) -> bool:
    return all(map(torch.equal, a, b))


def held_elements(model) -> int:
    return sum(local(p).numel() for p in model.parameters())


# Equal to the optimizer in memory, to the bit


def assert_as_in_memory(make, folder, steps: int, cases: dict[int, list[str]]) -> None:
    """Losses and weights; and the bytes: states are written in every step and read in all but the first.

    `cases`: names of optimizers by number of ranks.
    """

    def ranks(names):
        results, wrap = {}, sharded if dist.get_world_size() > 1 else lambda model: model
        for name in names:
            optimizer_class, defaults, n_states = OPTIMIZERS[name]
            model, twin = wrap(make()), wrap(make())
            expected = train(model, optimizer_class(model.parameters(), **defaults), steps)
            optimizer = FileOffloadOptimizer(twin.parameters(), optimizer_class, folder, SMALL, **defaults)
            losses = train(twin, optimizer, steps)
            n_bytes = n_states * sum(local(p).nbytes for p in model.parameters())
            as_said = ((steps - 1) * n_bytes, steps * n_bytes)
            bytes_as_said = (optimizer.bytes_read, optimizer.bytes_written) == as_said
            cut = len(optimizer._chunks) > 4
            results[name] = losses == expected and same(weights(model), weights(twin)), bytes_as_said, cut
        return results

    for world_size, names in cases.items():
        for found in launch(ranks, world_size, names):
            assert found == dict.fromkeys(names, (True, True, True))


def test_training_equals_the_optimizer_in_memory(tmp_path):
    """Three steps: float64 by most optimizers, in shards by the one that keeps most."""
    whole = ["AdamW", "AdamW, fused", "SGD", "Adagrad"]
    assert_as_in_memory(partial(uneven, n_blocks=1), tmp_path, 3, {1: whole, 2: ["Adam, amsgrad"]})


@pytest.mark.night
@pytest.mark.parametrize("make", [uneven, decoder])
def test_training_equals_the_optimizer_in_memory_for_6_steps(make, tmp_path):
    assert_as_in_memory(make, tmp_path, 6, {1: list(OPTIMIZERS), 2: list(OPTIMIZERS)})


def test_groups_schedulers_and_parameters_without_gradient(tmp_path):
    """Options by group; a rate that begins at 0; a parameter whose gradient comes every other step only."""

    def run(build):
        model = uneven(tied=True)
        parameters = list(model.parameters())
        optimizer = build([{"params": parameters[:4]}, {"params": parameters[4:], "weight_decay": 0.0}])
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 4)
        for step in range(5):
            draw = torch.Generator().manual_seed(step)
            tokens = torch.randint(256, (2, 9), generator=draw)
            model(tokens[:, :-1], tokens[:, 1:]).backward()
            if step % 2:
                parameters[5].grad = None
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        return weights(model)

    def ranks():
        expected = run(lambda groups: torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.1))
        build = lambda groups: FileOffloadOptimizer(  # noqa: E731
            groups, torch.optim.AdamW, tmp_path, SMALL, lr=1e-2, weight_decay=0.1
        )
        return same(expected, run(build))

    assert launch(ranks, 1) == [True]


def test_state_dict_moves_between_memory_and_file(tmp_path):
    """Saved by either, loaded by either: all go on to the same bits."""

    def ranks():
        def fresh(in_file):
            model = uneven()
            if in_file:
                return model, FileOffloadOptimizer(model.parameters(), torch.optim.AdamW, tmp_path, SMALL, lr=1e-2)
            return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

        def resumed(in_file, saved):
            model, optimizer = fresh(in_file)
            optimizer.param_groups[0]["lr"] = 1.0
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(copy.deepcopy(saved[1]))  # which the optimizer may go on in
            train(model, optimizer, 3, first=3)
            return weights(model)

        ends = []
        for in_file in (False, True):
            model, optimizer = fresh(in_file)
            train(model, optimizer, 3)
            saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
            train(model, optimizer, 3, first=3)
            ends += [weights(model), resumed(False, saved), resumed(True, saved)]
        return all(same(end, ends[0]) for end in ends)

    assert launch(ranks, 1) == [True]


# Memory, order, files


def test_memory_is_three_buffers(tmp_path):
    """Between steps the buffers are all that is held, beside one number of steps a parameter."""
    model = uneven()
    optimizer = FileOffloadOptimizer(model.parameters(), torch.optim.Adam, tmp_path, SMALL)
    model(torch.zeros(1, 4, dtype=torch.int64), torch.zeros(1, 4, dtype=torch.int64)).backward()
    optimizer.step()
    assert [buffer.nbytes for buffer in optimizer._buffers] == [SMALL] * 3
    assert all(states.keys() == {"step"} for states in optimizer.state.values())
    assert optimizer.n_bytes == 2 * 8 * held_elements(model) > 20 * SMALL


def test_reads_and_writes_overlap_the_update(tmp_path):
    """While chunk i is updated, chunk i+1 is read and chunk i-1 written: the three meet, or the step would fail."""

    class SlowFile(FileOffloadOptimizer):
        def _meet(self, middle: int) -> None:
            if 1 <= middle <= len(self._chunks) - 2:
                meeting = self.meetings.setdefault(middle, threading.Barrier(3))
                meeting.wait(timeout=deadline_s(20))  # BrokenBarrierError: one of the three waits for another to end

        def _read(self, chunk, *args):
            if self.meetings is not None:
                self._meet(self._chunks.index(chunk) - 1)
            return super()._read(chunk, *args)

        def _update(self, chunk, *args):
            if self.meetings is not None:
                self._meet(self._chunks.index(chunk))
            super()._update(chunk, *args)

        def _write(self, chunk, *args):
            if self.meetings is not None:
                self._meet(self._chunks.index(chunk) + 1)
            return super()._write(chunk, *args)

    SlowFile.meetings = {}
    p = nn.Parameter(torch.ones(10 * ALIGN))
    optimizer = SlowFile([p], torch.optim.Adam, tmp_path, 8 * ALIGN)
    assert len(optimizer._chunks) == 10
    p.grad = torch.ones_like(p)
    optimizer.step()
    assert sorted(SlowFile.meetings) == list(range(1, 9))


def test_a_buffer_is_not_read_into_before_it_has_been_written(tmp_path):
    """A writer that is held back until nothing else can go on: results are the same, so no buffer was overrun."""

    class SlowWriter(FileOffloadOptimizer):
        def _write(self, chunk, buffer):
            idle.wait(timeout=0.05)
            return super()._write(chunk, buffer)

    idle = threading.Event()
    p, q = (nn.Parameter(torch.linspace(0, 1, 10 * ALIGN)) for _ in range(2))
    slow = SlowWriter([p], torch.optim.Adam, tmp_path, 8 * ALIGN)
    adam = torch.optim.Adam([q])
    for step in range(3):
        for parameter, optimizer in ((p, slow), (q, adam)):
            parameter.grad = torch.linspace(-1, step, 10 * ALIGN)
            optimizer.step()
    assert torch.equal(p, q)


@pytest.mark.parametrize("keep", [False, True])
def test_the_file_goes_or_stays_as_asked(tmp_path, keep):
    """Without `keep` it is gone though the process was killed."""

    def ranks():
        p = nn.Parameter(torch.ones(100))
        optimizer = FileOffloadOptimizer([p], torch.optim.Adam, tmp_path, keep=keep)
        p.grad = torch.ones_like(p)
        optimizer.step()
        os.kill(os.getpid(), 9)

    with pytest.raises(LaunchError):
        launch(ranks, 2)
    sizes = [(path.name[:22], path.stat().st_size) for path in sorted(tmp_path.iterdir())]
    if keep:
        assert ("optimizer_states_rank0", 800) in sizes or ("optimizer_states_rank1", 800) in sizes
    else:
        assert not sizes


# What can go wrong


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere .*make it first"):
        FileOffloadOptimizer([nn.Parameter(torch.ones(2))], torch.optim.Adam, tmp_path / "nowhere")


def test_a_full_disk_is_found_before_the_training(tmp_path):
    """The system's limit on the size of a file stands for the disk's end; nothing is left behind."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(OSError, match="rank 0 has no room for 80000 bytes of optimizer states"):
            FileOffloadOptimizer([nn.Parameter(torch.ones(10_000))], torch.optim.Adam, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


def test_a_file_cut_short_is_found_before_anything_is_updated(tmp_path):
    p = nn.Parameter(torch.ones(1000))
    optimizer = FileOffloadOptimizer([p], torch.optim.Adam, tmp_path, keep=True)
    p.grad = torch.ones_like(p)
    optimizer.step()
    before = p.clone()
    os.truncate(optimizer.path, 5000)
    for use in (optimizer.step, optimizer.state_dict):
        with pytest.raises(RuntimeError, match="optimizer states are lost: .* from 8000 bytes to 5000"):
            use()
    assert torch.equal(p, before)


def test_after_a_failure_midway_the_optimizer_refuses(tmp_path, monkeypatch):
    p = nn.Parameter(torch.ones(10 * ALIGN))
    optimizer = FileOffloadOptimizer([p], torch.optim.Adam, tmp_path, 8 * ALIGN)
    p.grad = torch.ones_like(p)
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    written = []

    def broken(fd, buffers, offset):
        written.append(offset)
        if len(written) > 5:
            raise OSError(5, "Input/output error")
        return os.pwrite(fd, buffers[0], offset)

    with monkeypatch.context() as patch:
        patch.setattr(file_offload.os, "pwritev", broken)
        with pytest.raises(OSError, match="Input/output error"):
            optimizer.step()
    for use in (optimizer.step, optimizer.state_dict):
        with pytest.raises(RuntimeError, match="failed midway: load the last checkpoint"):
            use()
    optimizer.load_state_dict(saved)
    assert torch.equal(optimizer.state_dict()["state"][0]["exp_avg"], saved["state"][0]["exp_avg"])
    optimizer.step()


@pytest.mark.parametrize(
    ("optimizer_class", "says"),
    [
        (torch.optim.Adafactor, "must be element-wise"),
        (torch.optim.SGD, "keeps no states"),
        (torch.optim.LBFGS, "element-wise"),
    ],
)
def test_other_optimizers_are_refused(optimizer_class, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        FileOffloadOptimizer([nn.Parameter(torch.ones(2, 2))], optimizer_class, tmp_path)


def test_a_buffer_that_is_too_small_is_refused(tmp_path):
    with pytest.raises(ValueError, match="buffer_bytes=100 does not hold the states of 64 elements"):
        FileOffloadOptimizer([nn.Parameter(torch.ones(2))], torch.optim.Adam, tmp_path, 100)


def test_states_that_were_never_made_are_loaded_as_such(tmp_path):
    """A state_dict from before the first step: the next step is a first one again."""

    def stepped(optimizer, p):
        with torch.no_grad():
            p.fill_(1.0)
        p.grad = torch.full((200,), 0.5)
        optimizer.step()
        return p.detach().clone()

    p = nn.Parameter(torch.ones(200))
    optimizer = FileOffloadOptimizer([p], torch.optim.AdamW, tmp_path)
    untouched = copy.deepcopy(optimizer.state_dict())
    first, second = stepped(optimizer, p), stepped(optimizer, p)
    assert not torch.equal(optimizer.state[p]["step"], torch.tensor(1.0)) and second.shape == first.shape
    optimizer.load_state_dict(untouched)
    assert p not in optimizer.state
    assert torch.equal(stepped(optimizer, p), first)
    assert optimizer.state[p]["step"] == 1


def steps_of_one_row() -> float:
    """Two ranks share one row: the second holds nothing of it."""
    model = fully_shard(nn.Linear(2, 1, bias=False))
    optimizer = FileOffloadOptimizer(model.parameters(), torch.optim.AdamW, gettempdir())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return float(optimizer.state[model.weight].get("step", 0))


def test_a_rank_without_elements_of_a_parameter_counts_its_steps():
    """So that every rank has the same states to save."""
    assert launch(steps_of_one_row, 2) == [1.0, 1.0]
