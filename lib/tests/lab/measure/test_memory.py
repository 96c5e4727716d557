"""MemoryTracker to the byte: against closed forms, alone and on ranks; the same each time; and nothing left behind."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from shardbench.ddp import NaiveDDP
from shardlab import launch
from shardlab.ddp import DDP
from shardlab.measure.ledger import CATEGORIES, Memory
from shardlab.measure.memory import MemoryTracker
from shardlab.model import ModelConfig, Transformer
from shardlab.text_batches import batch

SMALL = ModelConfig(vocab_size=256, dim=64, n_layers=2, n_heads=4, n_kv_heads=2, hidden_dim=96, max_seq_len=64)
P = 4 * SMALL.n_params  # bytes of the parameters, all float32
TENSORS = 3 + 9 * SMALL.n_layers
ADAMW = 2 * P + 4 * TENSORS  # both moments, and each parameter's step count, a float32
WORLD_SIZE = 2


def build() -> Transformer:
    torch.manual_seed(0)
    return Transformer(SMALL)


def train_step(module: nn.Module, optimizer: torch.optim.Optimizer, seq_len: int) -> MemoryTracker:
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    samples = batch(0, 0, rank, world_size, global_batch=2 * world_size, seq_len=seq_len)
    optimizer.zero_grad()
    with MemoryTracker(module, optimizer) as tracker:
        module(*samples).backward()
        optimizer.step()
    return tracker


def steps(module: nn.Module, seq_len: int = 32, n: int = 2) -> list[tuple[Memory, dict[str, int]]]:
    """Peak and what stayed, in each of n steps."""
    optimizer = AdamW(module.parameters(), foreach=False)
    return [(t.peak, t.resident) for t in (train_step(module, optimizer, seq_len) for _ in range(n))]


def held(**bytes_by_category: int) -> dict[str, int]:
    return dict.fromkeys(CATEGORIES, 0) | bytes_by_category


SAMPLES = 2 * 33 * 8  # two samples of 32 tokens and one target more, int64
ONE_PROCESS = held(parameters=P, gradients=P, optimizer_states=ADAMW, other=SAMPLES)


# -------------------------------------------------------------------------------------------------------- one process


def test_what_stays_after_a_step_is_the_closed_form():
    for _, resident in steps(build()):
        assert resident == ONE_PROCESS


def test_activations_of_a_known_chain():
    """Linear 8 > 16 > 32 > 4 with ReLU between, 64 samples: at the peak, the second ReLU's backward, there are

    the results of both ReLUs, saved for backward; the loss, and the 1 that backward starts from; the gradients of that
    ReLU's output and input; that of the last weight. The results of the Linears are gone: ReLU saves its own.
    """
    chain = nn.Sequential(*(nn.Linear(8, 16, bias=False), nn.ReLU(), nn.Linear(16, 32, bias=False), nn.ReLU()))
    chain.append(nn.Linear(32, 4, bias=False))
    x = torch.randn(64, 8)
    with MemoryTracker(chain) as tracker:
        chain(x).sum().backward()
    floats = {
        "parameters": 8 * 16 + 16 * 32 + 32 * 4,
        "gradients": 32 * 4,
        "activations": 64 * 16 + 64 * 32 + 2,
        "temporaries": 64 * 32 + 64 * 32,
        "other": 64 * 8,
    }
    assert tracker.peak.by_category() == held(**{name: 4 * n for name, n in floats.items()})
    assert tracker.peak.where == "backward"


def test_what_is_gone_before_backward_is_no_activation():
    """A thousand floats that forward needs for itself, and does not save; beside ten that it saves."""

    class Wasteful(nn.Linear):
        def forward(self, x):
            scale = torch.ones(1000).mean().item()
            return (super().forward(x) * scale).relu()

    module, x = Wasteful(10, 10, bias=False), torch.ones(1, 10)
    with MemoryTracker(module) as tracker:
        module(x).sum().backward()
    assert max(now["temporaries"] for _, now in tracker.timeline()) >= 4 * 1000
    assert 4 * 10 <= max(now["activations"] for _, now in tracker.timeline()) < 4 * 100


def test_where_the_peak_lies():
    """Few tokens: the optimizer's states and temporaries on top. Many: activations. No backward: forward."""
    module = build()
    few, many = steps(module, seq_len=1), steps(module, seq_len=64)
    assert few[-1][0].where == "optimizer"
    assert few[-1][0].gradients == P
    assert many[-1][0].where == "backward"
    module.zero_grad()
    with MemoryTracker(module) as tracker, torch.no_grad():
        module(torch.zeros(2, 64, dtype=torch.long))
    assert (tracker.peak.where, tracker.peak.gradients, tracker.peak.activations) == ("forward", 0, 0)
    assert many[-1][0].activations > 30 * few[-1][0].activations


def test_phases_come_in_the_order_of_a_step():
    module = build()
    tracker = train_step(module, AdamW(module.parameters(), foreach=False), 8)
    names = [name for _, name in tracker.phases()]
    assert names[:4] == ["other", "forward", "backward", "optimizer"]
    moments = [seconds for seconds, _ in tracker.timeline()]
    assert moments == sorted(moments)
    assert sum(tracker.timeline()[-1][1].values()) == sum(tracker.resident.values())
    assert max(sum(now.values()) for _, now in tracker.timeline()) == tracker.peak.peak_bytes


def test_gradients_are_known_even_if_they_go_as_soon_as_backward_is_through():
    module = build()
    with MemoryTracker(module) as tracker:
        module(*batch(0, 0, 0, 1, global_batch=2, seq_len=32)).backward()
        module.zero_grad()
    assert max(now["gradients"] for _, now in tracker.timeline()) == P
    assert tracker.resident["gradients"] == 0


def test_marks_and_labels():
    """What a hand-written optimizer keeps to itself, the tracker must be told."""
    module = nn.Linear(10, 10)
    with MemoryTracker(module) as tracker:
        momentum = torch.zeros(10, 10)
        tracker.mark("before")
        assert tracker.resident["optimizer_states"] == 0
        tracker.label("optimizer_states", momentum)
        tracker.mark("after")
        assert tracker.resident["optimizer_states"] == 400
    assert [name for _, name in tracker.marks] == ["before", "after"]


def test_every_category_has_its_field_and_adds_up():
    assert list(Memory().by_category()) == list(CATEGORIES)
    memory = Memory(*range(1, len(CATEGORIES) + 1), where="forward")
    assert memory.peak_bytes == sum(range(1, len(CATEGORIES) + 1))
    assert "in forward: parameters" in str(memory)


def traces(module: nn.Module) -> list:
    """Everything that a tracker changes while it is at work."""
    hooks = [module._forward_pre_hooks, module._forward_hooks]
    hooks += [_global_optimizer_pre_hooks, _global_optimizer_post_hooks]
    modes = _get_current_dispatch_mode_stack()
    return [torch.UntypedStorage.resize_, dist.Work.wait, *map(len, [*hooks, modes])]


@pytest.mark.parametrize("failure", ["nothing", "in the block", "in forward", "in backward"])
def test_nothing_stays_behind(failure):
    class Layer(nn.Linear):
        def forward(self, x):
            if failure == "in forward":
                raise ArithmeticError(failure)
            return super().forward(x)

    module = Layer(3, 3)
    before = traces(module)
    if failure == "in backward":
        module.weight.register_hook(lambda _: 1 / 0)
    try:
        with MemoryTracker(module) as tracker:
            assert traces(module) != before
            module(torch.ones(1, 3)).sum().backward()
            if failure == "in the block":
                raise ArithmeticError(failure)
    except ArithmeticError:
        assert failure != "nothing"
    else:
        assert failure == "nothing"
    assert traces(module) == before
    size = tracker.peak.peak_bytes, len(tracker.timeline())
    module.zero_grad()
    del module
    torch.ones(1000)
    assert (tracker.peak.peak_bytes, len(tracker.timeline())) == size, "nothing is counted afterwards"


def test_a_forward_that_failed_is_over():
    module = nn.Linear(3, 3)
    with MemoryTracker(module) as tracker:
        with pytest.raises(RuntimeError, match="shapes"):
            module(torch.ones(1, 4))
        with torch.no_grad():
            assert torch.ones(10).sum() == 10
    assert tracker.phases()[-1][1] == "other"


# ------------------------------------------------------------------------------------------------------------ on ranks


class Hoarder(DDP):
    """A broken twin: it keeps a copy of every gradient."""

    def _backward_done(self) -> None:
        self.hoard = None
        super()._backward_done()
        self.hoard = [p.grad.clone() for p in self.names]


def shard(module: Transformer) -> Transformer:
    for block in module.blocks:
        fully_shard(block)
    return fully_shard(module)


WRAPS = {
    "torch": lambda m: DistributedDataParallel(m, gradient_as_bucket_view=True),
    "torch, copies": DistributedDataParallel,
    "ours": lambda m: DDP(m, gradient_as_bucket_view=True),
    "ours, copies": DDP,
    "naive": NaiveDDP,
    "hoarder": lambda m: Hoarder(m, gradient_as_bucket_view=True),
    "fsdp": shard,
}


def on_a_rank() -> dict[str, list[tuple[Memory, dict[str, int]]]]:
    found = {name: steps(wrap(build()), n=5) for name, wrap in WRAPS.items()}
    found |= {f"{name}, one token": steps(WRAPS[name](build()), seq_len=1) for name in ("ours", "hoarder")}
    return found


@pytest.fixture(scope="module")
def ranks() -> list[dict]:
    return launch(on_a_rank, WORLD_SIZE, device="cpu")


REPLICATED = ONE_PROCESS
EXPECTED = {
    "torch": REPLICATED,
    "torch, copies": REPLICATED | {"buckets": P},
    "ours": REPLICATED,
    "ours, copies": REPLICATED | {"buckets": P},
    "naive": REPLICATED,
    "fsdp": held(parameters=P // 2, gradients=P // 2, optimizer_states=P + 4 * TENSORS, other=SAMPLES),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_what_stays_on_each_rank_is_the_closed_form(name, ranks):
    """Replicated, or 1/N of everything but the step counts; gradients as views of buckets cost nothing more."""
    for rank in ranks:
        assert [resident for _, resident in rank[name]] == [EXPECTED[name]] * 5


@pytest.mark.parametrize("name", WRAPS)
def test_it_measures_the_same_each_time_and_on_each_rank(name, ranks):
    """From the third step on: the first makes the optimizer's states; in the second torch's DDP deals its buckets anew,

    and whether gloo still holds the few bytes that it sends for that is a race, which the tracker can't settle.
    """
    peaks = {peak for rank in ranks for peak, _ in rank[name][2:]}
    assert len(peaks) == 1


def test_peaks_of_ddp_are_torchs(ranks):
    peak = {name: found[-1][0] for name, found in ranks[0].items()}
    assert peak["ours"] == peak["torch"]
    assert peak["ours, copies"] == peak["torch, copies"]
    assert peak["ours"].where == "backward"
    assert peak["naive"].peak_bytes < peak["ours"].peak_bytes, "its gradients come one by one, as activations go"


def test_fsdp_gathers_at_least_one_unit_and_never_the_whole_model(ranks):
    """At the peak one block, or two while the next is on its way, and what belongs to no block, stand unsharded."""
    peak = ranks[0]["fsdp"][-1][0]
    block = 4 * sum(p.numel() for p in build().blocks[0].parameters())
    root = P - SMALL.n_layers * block
    assert (peak.parameters, peak.optimizer_states) == (P // 2, P + 4 * TENSORS)
    assert block <= peak.unsharded <= root + 2 * 2 * block  # parameters and whole gradients
    assert peak.peak_bytes < ranks[0]["ours"][-1][0].peak_bytes


def test_what_stands_gathered_in_the_module_is_not_the_ranks_own():
    """Between forward and backward, FSDP that does not reshard: shards are parameters, the whole ones unsharded."""

    def between():
        module = fully_shard(build(), reshard_after_forward=False)
        with MemoryTracker(module) as tracker:
            loss = module(*batch(0, 0, dist.get_rank(), WORLD_SIZE, global_batch=WORLD_SIZE, seq_len=8))
            tracker.mark("forward is through")
            held = tracker.resident
            loss.backward()
        return held["parameters"], held["unsharded"]

    assert launch(between, WORLD_SIZE, device="cpu") == [(P // 2, P)] * WORLD_SIZE


def test_one_more_copy_of_the_gradients_shows_as_just_that(ranks):
    for rank in ranks:
        for (_, honest), (_, hoarder) in zip(rank["ours"], rank["hoarder"], strict=True):
            assert sum(hoarder.values()) - sum(honest.values()) == P
        for (honest, _), (hoarder, _) in zip(rank["ours, one token"], rank["hoarder, one token"], strict=True):
            assert honest.where == "optimizer"
            assert hoarder.peak_bytes - honest.peak_bytes == P
