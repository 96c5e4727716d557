"""A training goes on from a checkpoint as if it had never stopped: anywhere, and whatever killed it while saving."""

import hashlib
import io
import os
import re
import resource
import shutil
import signal
import sys
import types
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import training
from strategies import at, ddp, flat_fsdp, fsdp, single, torch_fsdp, zero_1
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from training import CLOSE, decoder, train, train_alone, uneven

from shardlab import LaunchError, launch
from shardlab.state import checkpoint, sharded_state_dict


def digest(model, optimizer=None) -> str:
    """Of every byte that this rank holds."""
    total = hashlib.sha256()

    def add(value, key=""):
        if isinstance(value, dict):
            for inner in sorted(value):
                add(value[inner], f"{key}.{inner}")
        elif torch.is_tensor(value):
            for part in getattr(value, "pieces", {0: value}).values():
                part = part.to_local() if hasattr(part, "to_local") else part
                total.update(f"{key}{list(part.shape)}".encode() + part.detach().contiguous().numpy().tobytes())
        else:
            total.update(f"{key}={value}".encode())

    add({k: v if isinstance(v, dict) else dict(enumerate(v)) for k, v in _parts(model, optimizer).items()})
    return total.hexdigest()


def _parts(model, optimizer) -> dict:
    state = sharded_state_dict(model, optimizer)
    return {"model": state["model"], **state.get("optim", {})}


# Elastic: saved by any, loaded by any


def saves(root, make, chosen) -> dict:
    """On n ranks: train under each strategy, save, go on. What the resumed are to equal: what is held, and losses."""
    found = {}
    for strategy in chosen:
        model, optimizer = strategy(make())
        train(model, optimizer, 2)
        name = f"{strategy.__name__}-{dist.get_world_size()}"
        checkpoint.save(root / name, 2, model, optimizer)
        found[name] = digest(model, optimizer), train(model, optimizer, 2, first=2)
    return found


def resumes(root, make, chosen, names: list[str], wanted) -> dict:
    """On n ranks: load each checkpoint under each strategy, with other weights and rates there before; go on."""
    found = {}
    for strategy in chosen:
        resumed_as = f"{strategy.__name__}-{dist.get_world_size()}"
        for name in names:
            if not wanted(resumed_as, name):
                continue
            model, optimizer = strategy(make(seed=1))
            optimizer.param_groups[0]["lr"] = 1.0
            assert checkpoint.load(root / name, model, optimizer) == 2
            held = digest(model, optimizer)
            found[resumed_as, name] = held, train(model, optimizer, 2, first=2)
    return found


def any_pair(resumed_as: str, saved_as: str) -> bool:
    return True


def check_elastic(root, make, same, chosen: dict[int, tuple], wanted=any_pair) -> int:
    """The wanted pairs of strategies and numbers of ranks; where nothing changes, to the bit. Returns how many."""
    [expected] = launch(lambda: train_alone(*single(make()), 1, 4)[2:], 1)
    saved, resumed = {}, {}
    for n, strategies_at_n in chosen.items():
        by_rank = launch(saves, n, root, make, strategies_at_n)
        saved |= {name: [rank[name] for rank in by_rank] for name in by_rank[0]}
    for n, strategies_at_n in chosen.items():
        by_rank = launch(resumes, n, root, make, strategies_at_n, list(saved), wanted)
        resumed |= {pair: [rank[pair] for rank in by_rank] for pair in by_rank[0]}
    for (resumed_as, saved_as), ranks in resumed.items():
        what = f"saved as {saved_as}, resumed as {resumed_as}"
        if resumed_as == saved_as:
            assert [held for held, _ in ranks] == [held for held, _ in saved[saved_as]], what
            if not resumed_as.startswith("torch_ddp"):  # it deals out its buckets anew after its first backward
                assert ranks == saved[saved_as], what
        torch.testing.assert_close(ranks[0][1], expected, **same, msg=lambda m, what=what: f"{what}: {m}")
    return len(resumed)


CHOSEN = {1: (single,), 2: (ddp, zero_1, fsdp, flat_fsdp), 3: (torch_fsdp,)}


def test_a_training_resumes_under_another_strategy_and_number_of_ranks(tmp_path):
    """AdamW in float64: as close to one process as if it had never stopped.

    One process reads what each has saved; each reads what it saved itself, and what is cut in the oddest ways.
    """

    def wanted(resumed_as, saved_as):
        return resumed_as in (saved_as, "single-1") or saved_as == "flat_fsdp-2"

    assert check_elastic(tmp_path, partial(uneven, n_blocks=1), CLOSE, CHOSEN, wanted) == 15


@pytest.mark.night
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("make", "same", "ranks", "pairs"),
    [(uneven, CLOSE, (1, 2, 3, 4), 841), (decoder, {"rtol": 1e-4, "atol": 1e-4}, (1, 3), 100)],
)
def test_a_training_resumes_under_any_strategy_and_number_of_ranks(make, same, ranks, pairs, tmp_path):
    assert check_elastic(tmp_path, make, same, {n: at(n) for n in ranks}) == pairs


class Noisy(nn.Module):
    """Its losses depend on every random number that was drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.blocks = uneven(n_blocks=1), []
        self.dropout = nn.Dropout(0.5)

    def forward(self, tokens, targets):
        return self.dropout(torch.ones(100, dtype=torch.float64)).mean() * self.inner(tokens, targets)


def test_random_numbers_and_schedule_go_on_where_they_were(tmp_path):
    """The same losses to the bit, each rank with random numbers of its own; nothing else was seeded."""

    def build(strategy):
        model, optimizer = strategy(Noisy())
        return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def steps(model, optimizer, scheduler, first):
        losses = []
        for step in range(first, first + 2):
            losses += train(model, optimizer, 1, first=step)
            scheduler.step()
        return losses, optimizer.param_groups[0]["lr"]

    def uninterrupted(strategy):
        torch.manual_seed(dist.get_rank())
        parts = build(strategy)
        torch.manual_seed(10 + dist.get_rank())
        steps(*parts, 0)
        checkpoint.save(tmp_path / strategy.__name__, 2, *parts[:2], scheduler=parts[2])
        return steps(*parts, 2)

    def resumed(strategy):
        parts = build(strategy)
        assert checkpoint.load(tmp_path / strategy.__name__, *parts[:2], scheduler=parts[2]) == 2
        return steps(*parts, 2)

    def each(run):
        return {strategy.__name__: run(strategy) for strategy in (ddp, torch_fsdp)}

    expected = launch(each, 2, uninterrupted)
    assert launch(each, 2, resumed) == expected
    assert {rate for _, rate in expected[0].values()} == {1e-2 / 2**4}


# torch's own


@pytest.mark.parametrize(
    ("world_size", "strategy"), [(1, single), (3, torch_fsdp), pytest.param(2, torch_fsdp, marks=pytest.mark.night)]
)
def test_torch_reads_what_we_write_and_we_what_torch_writes(world_size, strategy, tmp_path):
    """As its tutorial has it, plain and under FSDP2; every byte, and the rate."""

    def parts(strategy):
        model, optimizer = strategy(uneven(n_blocks=2))
        train(model, optimizer, 2)
        return model, optimizer

    def other(strategy):
        model, optimizer = strategy(uneven(seed=1, n_blocks=2))
        optimizer.param_groups[0]["lr"] = 1.0
        return model, optimizer

    def both_ways(strategy):
        trained = parts(strategy)
        expected = digest(*trained)
        n = dist.get_world_size()
        ours = checkpoint.save(tmp_path / f"ours-{strategy.__name__}-{n}", 2, *trained)
        theirs = tmp_path / f"theirs-{strategy.__name__}-{n}"
        state = dict(zip(("model", "optim"), get_state_dict(*trained), strict=True))
        dcp.save(state, checkpoint_id=theirs)

        model, optimizer = other(strategy)
        state = dict(zip(("model", "optim"), get_state_dict(model, optimizer), strict=True))
        dcp.load(state, checkpoint_id=ours)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
        read_by_torch = digest(model, optimizer)

        model, optimizer = other(strategy)
        assert checkpoint.load_from(theirs, model, optimizer) is None
        return expected == read_by_torch == digest(model, optimizer)

    assert launch(both_ways, world_size, strategy) == [True] * world_size


# Killed while saving

SYSTEM = {"open", "fsync", "close", "mkdir", "rename", "replace", "unlink", "rmdir", "scandir"}


class Moments:
    """A profiler: `act(k)` before the k-th call that may change files, every 100th write of data included."""

    def __init__(self, act) -> None:
        self.act, self.calls, self.writes = act, 0, 0

    def __call__(self, frame, event, called) -> None:
        if event == "c_call" and self.counts(getattr(called, "__self__", None), called.__name__):
            self.calls += 1
            self.act(self.calls)

    def counts(self, owner, name: str) -> bool:
        if isinstance(owner, io.BufferedWriter) and name == "write":
            self.writes += 1
            return self.writes % 100 == 0
        return isinstance(owner, io.TextIOWrapper) or (isinstance(owner, types.ModuleType) and name in SYSTEM)


def small(seed: int) -> tuple:
    return torch_fsdp(uneven(seed, n_blocks=1))


def watched_save(folder, act) -> int:
    """Resume, take a step, save; `act(k)` in the k-th moment. Returns how many there are."""
    model, optimizer = small(1)
    step = checkpoint.load(folder, model, optimizer)
    train(model, optimizer, 1, first=step)
    moments = Moments(act)
    sys.setprofile(moments)
    checkpoint.save(folder, step + 1, model, optimizer, keep=1)
    sys.setprofile(None)
    return moments.calls


def copying_save(folder, copies) -> int:
    """What a kill of rank 0 would leave on the disk in each of its moments goes into a copy."""
    return watched_save(folder, lambda k: shutil.copytree(folder, copies / f"{k}") if dist.get_rank() == 0 else None)


def dying_save(folder, k: int, victims: set[int]) -> None:
    def die(moment):
        if moment == k and dist.get_rank() in victims:
            os.kill(os.getpid(), signal.SIGKILL)

    watched_save(folder, die)


def look(folders) -> list[tuple[int, str]]:
    """Step and digest of the latest checkpoint in each; and in each another save works, and is loaded again."""
    found = []
    for folder in folders:
        model, optimizer = small(2)
        step = checkpoint.load(folder, model, optimizer)
        found.append((step, digest(model, optimizer)))
        train(model, optimizer, 1)
        checkpoint.save(folder, step + 1, model, optimizer, keep=1)
        left = sorted(os.listdir(folder)) if dist.get_rank() == 0 else []
        again, optimizer = small(2)
        found[-1] += (checkpoint.load(folder, again, optimizer) == step + 1, left)
    return found


def killed(tmp_path, k: int, victims: set[int]):
    """The folder in which victims died in their k-th moment."""
    folder = tmp_path / f"{k}-{sorted(victims)}"
    shutil.copytree(tmp_path / "start", folder)
    with pytest.raises(LaunchError, match="was killed|SIGKILL"):
        launch(dying_save, 2, folder, k, victims)
    return folder


def start(folder) -> str:
    model, optimizer = small(0)
    train(model, optimizer, 1)
    checkpoint.save(folder, 1, model, optimizer)
    return digest(model, optimizer)


def check_kills(tmp_path, choose):
    """After every kill the former step or the new one is there, whole, and the next save works; and both happen.

    `choose(calls)`, of the number of each rank's moments: copies to look at, and (moment, victims) of real kills.
    """
    before = launch(start, 2, tmp_path / "start")
    shutil.copytree(tmp_path / "start", tmp_path / "finished")
    (tmp_path / "copies").mkdir()
    copies, kills = choose(launch(copying_save, 2, tmp_path / "finished", tmp_path / "copies"))
    folders = [tmp_path / "copies" / f"{k}" for k in copies] + [killed(tmp_path, *kill) for kill in kills]
    steps = set()
    for rank, ((step, after, *_), *found) in enumerate(launch(look, 2, [tmp_path / "finished", *folders])):
        assert step == 2
        for folder, (step, held, usable, left) in zip(folders, found, strict=True):
            assert held == {1: before[rank], 2: after}[step], folder
            assert usable, folder
            assert len([name for name in left if name.startswith("step")]) <= 2, folder
            steps.add(step)
    assert steps == {1, 2}


def test_a_kill_while_saving_loses_no_checkpoint(tmp_path):
    """Every fourth moment of rank 0's after the data are written; and each rank killed in earnest, in the midst."""

    def choose(calls):
        return range(calls[0], 0, -4)[:6], [(calls[0] - 8, {0}), (calls[1] // 2, {1})]

    check_kills(tmp_path, choose)


@pytest.mark.night
@pytest.mark.timeout(1800)
def test_a_kill_at_any_moment_of_a_save_loses_no_checkpoint(tmp_path):
    def choose(calls):
        kills = [(k, victims) for victims in ({0}, {1}, {0, 1}) for k in range(1, calls[min(victims)] + 1)]
        return range(1, calls[0] + 1), kills

    check_kills(tmp_path, choose)


# Which checkpoints stay


def test_keep_and_the_order_of_checkpoints(tmp_path):
    """The last one saved counts as newest, whatever its step; leftovers of a killed save go; names are not reused."""
    model, optimizer = single(uneven())
    (tmp_path / "step-9.unfinished").mkdir()
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, step, model, optimizer)
    assert sorted(os.listdir(tmp_path)) == ["latest", "step-1", "step-2", "step-3"]
    checkpoint.save(tmp_path, 2, model, optimizer, keep=2)
    assert sorted(os.listdir(tmp_path)) == ["latest", "step-2.1", "step-3"]
    assert (tmp_path / "latest").read_text() == "step-2.1\nstep-3\n"
    assert checkpoint.latest(tmp_path) == tmp_path / "step-2.1"
    assert checkpoint.load(tmp_path, model, optimizer) == 2
    with pytest.raises(ValueError, match="keep=0"):
        checkpoint.save(tmp_path, 3, model, optimizer, keep=0)


# What can go wrong


def test_a_save_that_fails_on_one_rank_fails_on_all_and_the_next_one_works(tmp_path):
    """Rank 1's disk is full: a limit on the size of its files stands for that."""

    def ranks():
        model, optimizer = torch_fsdp(uneven())
        checkpoint.save(tmp_path, 1, model, optimizer)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        if dist.get_rank() == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
        try:
            checkpoint.save(tmp_path, 2, model, optimizer)
            said = None
        except RuntimeError as error:
            said = str(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        survived = checkpoint.load(tmp_path, model, optimizer)
        checkpoint.save(tmp_path, 3, model, optimizer)
        return said, survived, checkpoint.load(tmp_path, model, optimizer)

    for said, survived, after in launch(ranks, 2):
        assert "step-2.unfinished failed: rank 1: " in said
        assert (survived, after) == (1, 3)
    assert sorted(os.listdir(tmp_path)) == ["latest", "step-1", "step-3"]


def cut(path):
    os.truncate(next(path.glob("*.distcp")), 100)


def lose(path):
    next(path.glob("*.distcp")).unlink()


def forget(path):
    (path / ".metadata").unlink()


def garble(path):
    (path / ".metadata").write_bytes(b"not a pickle")


def unlist(path):
    (path.parent / "latest").unlink()


DAMAGES = {
    cut: r"step-1/__._0.distcp is damaged: \d+ bytes or more were written, 100 are there",
    lose: r"step-1/__._0.distcp is damaged: .* 0 are there",
    forget: "step-1 is not a finished checkpoint",
    garble: "step-1/.metadata is damaged",
    unlist: "holds no finished checkpoint: there is no file `latest`",
}


def test_a_damaged_checkpoint_is_named_and_nothing_is_changed(tmp_path):
    """On every rank; by the errors that load's docstring names."""

    def ranks():
        model, optimizer = torch_fsdp(uneven())
        before, found = digest(model, optimizer), {}
        for damage in DAMAGES:
            folder = tmp_path / damage.__name__
            path = checkpoint.save(folder, 1, model, optimizer)
            if dist.get_rank() == 0:
                damage(path)
            try:
                checkpoint.load(folder, model, optimizer)
            except (RuntimeError, FileNotFoundError) as error:
                found[damage.__name__] = str(error), digest(model, optimizer) == before
        return found

    for found in launch(ranks, 2):
        for damage, says in DAMAGES.items():
            said, unchanged = found[damage.__name__]
            assert re.search(says, said), damage
            assert unchanged, damage


def other_sizes():
    return training.Uneven(dim=8)


def one_block_more():
    return uneven(n_blocks=4)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (other_sizes, r"blocks.0.down.bias is \[9\] in the state, \[8\] in the model; .* and \d+ more"),
        (one_block_more, "another model: the model has blocks.3.down.bias, the state does not"),
    ],
)
def test_another_model_is_refused_and_unchanged(make, says, tmp_path):
    checkpoint.save(tmp_path, 1, *single(uneven()))
    model, optimizer = single(make())
    before = digest(model, optimizer)
    with pytest.raises(ValueError, match=says):
        checkpoint.load(tmp_path, model, optimizer)
    assert digest(model, optimizer) == before


def test_what_was_not_saved_is_named(tmp_path):
    model, optimizer = single(uneven())
    checkpoint.save(tmp_path, 1, model)
    with pytest.raises(ValueError, match="step-1 holds model, random, step, but no optim, scheduler"):
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
        checkpoint.load(tmp_path, model, optimizer, scheduler=scheduler)


def test_groups_that_were_cut_otherwise_are_refused(tmp_path):
    """One rate can't be taken from two groups."""
    model = uneven()
    parameters = list(model.parameters())
    checkpoint.save(tmp_path, 1, model, torch.optim.SGD([{"params": parameters[:3]}, {"params": parameters[3:]}], lr=1))
    with pytest.raises(ValueError, match="one parameter group here was 2 groups when it was saved"):
        checkpoint.load(tmp_path, model, torch.optim.SGD(parameters, lr=1))


def test_one_rank_alone_is_told(tmp_path):
    """And the others, which came to a barrier instead, go on; the right call works afterwards."""

    def ranks():
        model, optimizer = torch_fsdp(uneven())
        checkpoint.save(tmp_path, 1, model, optimizer)
        found = []
        for step, call in (
            (3, lambda: checkpoint.save(tmp_path, 2, model, optimizer, timeout_s=0.2)),
            (5, lambda: checkpoint.load(tmp_path, model, optimizer, timeout_s=0.2)),
        ):
            said = None
            if dist.get_rank() == 0:
                try:
                    call()
                except RuntimeError as error:
                    said = str(error)
            dist.barrier()
            checkpoint.save(tmp_path, step, model, optimizer)
            found.append((said, checkpoint.load(tmp_path, model, optimizer)))
        return found

    first, *others = launch(ranks, 3)
    missing = "ranks 1, 2 did not within 0.2 s: call it on every rank, outside of `if rank == 0`"
    assert first == [(f"rank 0 called save, {missing}", 3), (f"rank 0 called load, {missing}", 5)]
    assert others == [[(None, 3), (None, 5)]] * 2


# What could not be loaded is not saved


class Empty:
    """An object without a state, as a GradScaler that is switched off."""

    loaded = False

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, state: dict) -> None:
        self.loaded = state == {}


def test_an_object_without_a_state_is_saved_and_loaded(tmp_path):
    model, scaler = nn.Linear(2, 2), torch.amp.GradScaler("cpu", enabled=False)
    checkpoint.save(tmp_path, 1, model, scaler=scaler, empty=Empty())
    checkpoint.load(tmp_path, model, scaler=scaler, empty=(empty := Empty()))
    assert empty.loaded
    with pytest.raises(ValueError, match="empty, model, optim|empty, model, random, scaler, step, but no another"):
        checkpoint.load(tmp_path, model, another=Empty())


@pytest.mark.parametrize(
    ("others", "error", "words"),
    [
        ({"epoch": 3}, TypeError, "epoch=3 has no state_dict"),
        ({"best": "a.pt"}, TypeError, "has no state_dict"),
        ({"random": Empty()}, ValueError, "random is a part that every checkpoint has"),
        ({"optim": Empty()}, ValueError, "optim is a part"),
    ],
)
def test_what_could_not_be_given_back_is_refused(others, error, words, tmp_path):
    with pytest.raises(error, match=words):
        checkpoint.save(tmp_path, 1, nn.Linear(2, 2), **others)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("step", ["warm up", 1.5, None])
def test_a_step_is_a_whole_number(step, tmp_path):
    with pytest.raises(TypeError, match="is no whole number"):
        checkpoint.save(tmp_path, step, nn.Linear(2, 2))
    assert not list(tmp_path.iterdir())


def test_an_optimizer_state_that_is_a_list_is_refused_before_it_is_written(tmp_path):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.LBFGS(model.parameters())
    optimizer.step(lambda: model(torch.ones(1, 2)).pow(2).sum())
    model.zero_grad()

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(1, 2)).pow(2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    with pytest.raises(ValueError, match="the optimizer state"):
        checkpoint.save(tmp_path, 1, model, optimizer)
    assert not (tmp_path / "latest").exists()


def test_tensors_and_dicts_are_filled_in_place(tmp_path):
    model, best = nn.Linear(2, 2), torch.arange(3.0)
    checkpoint.save(tmp_path, 1, model, best=best, counts={"epoch": 3, "seen": torch.ones(2)})
    counts = {"epoch": 0, "seen": torch.zeros(2)}
    checkpoint.load(tmp_path, model, best=(found := torch.zeros(3)), counts=counts)
    assert (found.tolist(), counts["epoch"], counts["seen"].tolist()) == ([0, 1, 2], 3, [1, 1])
