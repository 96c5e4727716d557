"""DDP computes what torch's DistributedDataParallel computes, sends what the formula says, and keeps no more memory."""

import copy
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch.utils.checkpoint import checkpoint
from training import CLOSE, train, train_alone, uneven

from shardbench.ddp import NaiveDDP
from shardlab import LaunchError, launch, text_batches
from shardlab.ddp import DDP
from shardlab.measure.memory import MemoryTracker
from shardlab.measure.traffic import record_traffic
from shardlab.model import Transformer, preset


def small_model(**changes) -> nn.Module:
    """0.6 M parameters; every rank draws other weights, so that the first broadcast shows."""
    torch.manual_seed(dist.get_rank())
    return Transformer(preset("1M", **{"n_layers": 2} | changes))


def backward(model: nn.Module, step: int) -> None:
    """A loss of this rank's own samples, and its gradients."""
    draw = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    tokens = torch.randint(256, (2, 17), generator=draw)
    model(tokens[:, :-1], tokens[:, 1:]).backward()


def state(model: nn.Module) -> dict[str, torch.Tensor | None]:
    """Parameters, buffers and gradients by name."""
    return model.state_dict() | {f"{name}.grad": p.grad for name, p in model.named_parameters()}


def differing(a: nn.Module, b: nn.Module, same=torch.equal) -> list[str]:
    """Names of what the two wrapped models do not share."""
    a, b = state(a.module), state(b.module)
    assert a.keys() == b.keys()
    return [n for n in a if (a[n] is None) != (b[n] is None) or (a[n] is not None and not same(a[n], b[n]))]


def compare(make, *, wrap=DDP, run=backward, steps=4, settled=2, same=torch.equal, set_to_none=True, **options):
    """On a rank: train ours and torch's side by side on fixed weights; (step, name) of all that differs.

    torch regroups its buckets when its second step begins, so that sums of three and more ranks are only added up in
    our order from then on: earlier steps are not compared.
    """
    ours, theirs = wrap(make(), **options), TorchDDP(make(), **options)
    found = []
    for step in range(steps):
        for model in (ours, theirs):
            model.zero_grad(set_to_none)
            run(model, step)
        found += [(step, name) for name in differing(ours, theirs, same) if step >= settled]
    return found


def close(a, b) -> bool:
    return torch.allclose(a, b, rtol=1e-5, atol=1e-7)


NIGHT = pytest.mark.night
SIZES = [2, 3, pytest.param(1, marks=NIGHT), pytest.param(4, marks=NIGHT)]


def differing_cases(cases: dict, **options) -> dict:
    """On a rank: in which cases, each with options of its own for `compare`, something differs, and what."""
    return {name: found for name, case in cases.items() if (found := compare(**options | case))}


def assert_no_difference(world_size: int, cases: dict, **options) -> None:
    assert launch(partial(differing_cases, cases, **options), world_size) == [{}] * world_size


# Equal to one process (see training.py's note on tolerance)


def assert_as_one_process(world_size: int, steps: int) -> None:
    """AdamW on the same global batches: the losses and the weights."""

    def trained(wrap):
        model = wrap(uneven(seed=dist.get_rank()))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        return torch.tensor(train(model, optimizer, steps)), model.module.state_dict()

    def alone():
        model = uneven()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        return torch.tensor(train_alone(model, optimizer, world_size, steps)), model.state_dict()

    same = {"rtol": 0, "atol": 0} if world_size <= 2 else CLOSE
    [expected] = launch(alone, 1)
    for by_wrapper in launch(lambda: {wrap.__name__: trained(wrap) for wrap in (NaiveDDP, DDP)}, world_size):
        for name, found in by_wrapper.items():
            torch.testing.assert_close(found, expected, **same, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("world_size", [2, 3])
def test_training_equals_one_process(world_size):
    assert_as_one_process(world_size, 5)


@pytest.mark.night
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_training_equals_one_process_for_20_steps(world_size):
    assert_as_one_process(world_size, 20)


# Equal to torch, to the bit


def accumulate(model: nn.Module, step: int) -> None:
    with model.no_sync():
        backward(model, 10 * step)
        backward(model, 10 * step + 1)
    backward(model, 10 * step + 2)


@pytest.mark.parametrize("world_size", SIZES)
def test_gradients_equal_torchs(world_size):
    """In buckets of every size; as views of the buckets; of a tied weight, which counts once; of micro-batches."""
    cases = {f"buckets of {cap} MiB": {"bucket_cap_mb": cap} for cap in (0.05, 0.5, None)}
    views = {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.5}
    cases |= {"views": views, "views zeroed in place": views | {"set_to_none": False}}
    cases |= {"accumulated views": views | {"run": accumulate}}
    cases |= {"accumulated": {"bucket_cap_mb": 0.5, "run": accumulate}}
    cases |= {"tied": {"bucket_cap_mb": 0.5, "make": partial(small_model, tied=True)}}
    cases |= {"one by one": {"wrap": NaiveDDP, "same": close}}  # cut up among the ranks in other places than a bucket
    if world_size == 2:  # any sum of two is right: the rest by three
        cases = {name: cases[name] for name in ("buckets of 0.5 MiB", "views", "accumulated", "one by one")}
    assert_no_difference(world_size, cases, make=small_model, steps=3)


def test_buckets_have_torchs_sizes():
    """The all_reduces of a settled step, in order."""

    def sizes(wrap, bucket_cap_mb):
        model = wrap(small_model(n_layers=4), bucket_cap_mb=bucket_cap_mb)
        for step in range(2):
            backward(model, step)
        with record_traffic() as traffic:
            backward(model, 2)
        return [c.input_bytes for c in traffic.collectives if c.kind == "all_reduce"]

    def ranks():
        return [(cap, sizes(DDP, cap), sizes(TorchDDP, cap)) for cap in (0.05, 0.5, 1, 25, None)]

    for found in launch(ranks, 2):
        for cap, ours, theirs in found:
            assert ours == theirs, cap


@pytest.mark.parametrize(
    ("world_size", "steps", "lr"),
    [(2, 10, 1e-2), pytest.param(2, 50, 1e-3, marks=NIGHT), pytest.param(4, 50, 1e-3, marks=NIGHT)],
)
def test_loss_curves_equal_torchs(world_size, steps, lr):
    """AdamW on the 1M preset, on real text, after the two steps in which torch settles its buckets."""

    def losses(wrap):
        torch.manual_seed(0)
        model = wrap(Transformer(preset("1M")), bucket_cap_mb=1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        backward(model, 0)
        backward(model, 1)
        return [train_step(model, optimizer, step) for step in range(steps)]

    def train_step(model, optimizer, step):
        tokens, targets = text_batches.batch(0, step, dist.get_rank(), world_size, global_batch=world_size, seq_len=16)
        loss = model(tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    for ours, theirs in launch(lambda: (losses(DDP), losses(TorchDDP)), world_size):
        assert ours == theirs
        assert ours[-1] < ours[0] - 0.3  # the text is Python's own, another one in each version


def test_frozen_parameters_stay_out():
    def make():
        model = small_model()
        model.embedding.requires_grad_(False)
        model.blocks[0].attention.requires_grad_(False)
        return model

    assert_no_difference(2, {"frozen": {}}, make=make, bucket_cap_mb=0.5)


class MixedDtypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(dist.get_rank())
        self.layers = nn.ModuleList(nn.Linear(8, 8, dtype=d) for d in (torch.bfloat16, torch.float32) * 2)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x.to(layer.weight.dtype))
        return x


class Normalised(nn.Sequential):
    """Its BatchNorm keeps statistics of the samples that this rank saw: buffers."""

    def __init__(self) -> None:
        torch.manual_seed(dist.get_rank())
        super().__init__(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))


def two_layers() -> nn.Module:
    torch.manual_seed(dist.get_rank())
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))


def own_vectors(step: int) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(1000 * step + dist.get_rank()))


def vector_backward(model: nn.Module, step: int) -> None:
    model(own_vectors(step)).sum().backward()


def test_mixed_dtypes_go_into_buckets_of_their_own():
    assert_no_difference(2, {"mixed": {}}, make=MixedDtypes, run=vector_backward, bucket_cap_mb=0.0005)


def test_buffers_are_rank_0s_if_asked_for():
    cases = {f"broadcast_buffers={asked}": {"broadcast_buffers": asked} for asked in (True, False)}
    assert_no_difference(2, cases, make=Normalised, run=vector_backward)


# Parameters that a step does not use


class Branches(nn.Module):
    """Three layers, of which each forward uses those that it is told to."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(dist.get_rank())
        self.branches = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x, use: str):
        return sum(self.branches[int(i)](x).square().sum() for i in use)


# One string a micro-batch and rank: the branches used. The last micro-batch of a step synchronises.
SCHEDULE = [
    [("012", "012")],
    [("01", "02")],
    [("0", "0")],  # neither rank uses 1 and 2: what they hold of earlier steps must not count
    [("012", "0"), ("0", "0")],  # rank 0 used 1 and 2 in a micro-batch that was not synchronised
    [("2", "0"), ("0", "1"), ("01", "01")],
]


def follow_schedule(model: nn.Module, step: int) -> None:
    *local, last = SCHEDULE[step]
    for micro_batch in local:
        with model.no_sync():
            model(own_vectors(step), micro_batch[dist.get_rank()]).backward()
    model(own_vectors(step), last[dist.get_rank()]).backward()


def test_unused_parameters_equal_torchs():
    """Gradients, and whether there is one. With two ranks the order of a sum does not matter: all steps count."""
    cases = {
        f"set_to_none={to_none}, gradient_as_bucket_view={view}": {
            "set_to_none": to_none,
            "gradient_as_bucket_view": view,
        }
        for to_none in (True, False)
        for view in (True, False)
    }
    options = {"find_unused_parameters": True, "steps": len(SCHEDULE), "settled": 0}
    assert_no_difference(2, cases, make=Branches, run=follow_schedule, **options)


def test_an_unused_parameter_is_named():
    """torch's message tells its number, and comes one step later."""

    def step():
        model = DDP(Branches())
        model(own_vectors(0), "02" if dist.get_rank() == 1 else "012").backward()

    with pytest.raises(LaunchError) as caught:
        launch(step, 2)
    assert caught.value.rank == 1
    error = "rank 1: backward gave no gradient to branches.1.bias, branches.1.weight"
    assert error in str(caught.value) and "find_unused_parameters=True" in str(caught.value)


def test_a_model_without_trainable_parameters_is_refused():
    with pytest.raises(LaunchError, match="no parameter of the module requires a gradient"):
        launch(lambda: DDP(small_model().requires_grad_(False)), 1)


# Which backwards communicate


def test_no_gradients_are_sent_under_no_sync():
    """Buffers are, before the first forward: three of a BatchNorm."""

    def counts():
        model = DDP(Normalised())
        with record_traffic() as inside, model.no_sync():
            vector_backward(model, 0)
            vector_backward(model, 1)
        with record_traffic() as outside:
            vector_backward(model, 2)
        return dict(inside.kinds()), dict(outside.kinds())

    assert launch(counts, 2) == [({"broadcast": 3}, {"all_reduce": 1})] * 2


def forward_decides(model: nn.Module, step: int) -> None:
    """The backward of a forward under no_sync stays local, wherever it is called; that of another is sent."""
    with model.no_sync():
        loss = model(own_vectors(step))
    loss.sum().backward()
    loss = model(own_vectors(step))
    with model.no_sync():
        loss.sum().backward()


def two_forwards_one_backward(model: nn.Module, step: int) -> None:
    (model(own_vectors(step)).sum() + model(own_vectors(step + 1)).sum()).backward()


def recover(model: nn.Module, step: int) -> None:
    """A backward that breaks off half-way, as when memory runs out, and the step once more."""

    def fail(_):
        raise MemoryError

    x = own_vectors(step).requires_grad_()
    x.register_hook(fail)
    try:
        model.module(x).sum().backward()
    except MemoryError:
        model.zero_grad()
    vector_backward(model, step)


def test_unusual_steps_equal_torchs():
    """A second backward through one forward is in test_autograd_beside: torch's DDP leaves its gradients unaveraged."""
    runs = (forward_decides, two_forwards_one_backward, recover)
    assert_no_difference(2, {run.__name__: {"run": run} for run in runs}, make=two_layers, settled=0)


def test_evaluation_sends_nothing():
    def evaluate():
        model = DDP(small_model())
        with record_traffic() as traffic, torch.no_grad():
            model(torch.zeros(1, 4, dtype=torch.long))
        return traffic.count()

    assert launch(evaluate, 2) == [0, 0]


# What is sent, and what is kept


@pytest.mark.parametrize("world_size", SIZES)
def test_traffic_is_the_formulas(world_size):
    """2 (N-1)/N times the gradients' bytes, in one all_reduce a bucket, and nothing else."""

    def measure(bucket_cap_mb):
        model = DDP(small_model(), bucket_cap_mb=bucket_cap_mb)
        with record_traffic() as traffic:
            backward(model, 0)
        n_bytes = sum(p.grad.nbytes for p in model.parameters())
        formula = 2 * (world_size - 1) / world_size * n_bytes
        return dict(traffic.kinds()) == {"all_reduce": len(model.buckets)}, traffic.wire_bytes(world_size) / max(
            1, formula
        )

    for found in launch(lambda: {cap: measure(cap) for cap in (0.1, 1, None)}, world_size):
        for cap, (only_buckets, ratio) in found.items():
            assert only_buckets, cap
            assert ratio == pytest.approx(1 if world_size > 1 else 0), cap


def test_naive_ddp_sends_each_gradient_by_itself():
    def measure():
        model = NaiveDDP(small_model())
        with record_traffic() as traffic:
            backward(model, 0)
        parameters = list(model.parameters())
        return traffic.kinds(), sorted(c.input_bytes for c in traffic.collectives), sorted(p.nbytes for p in parameters)

    for kinds, sent, sizes in launch(measure, 2):
        assert kinds == {"all_reduce": len(sizes)}
        assert sent == sizes


def test_gradients_live_in_the_buckets():
    def shared():
        model = DDP(small_model(), bucket_cap_mb=0.5, gradient_as_bucket_view=True)
        backward(model, 0)
        buckets = {b.flat.untyped_storage().data_ptr() for b in model.buckets}
        return {p.grad.untyped_storage().data_ptr() for p in model.parameters()} == buckets

    assert launch(shared, 2) == [True, True]


def test_memory_is_at_most_torchs():
    """At the peak of a settled step; and as views, gradients and buckets together are the model's size once."""

    def peak(wrap, as_views):
        model = wrap(small_model(), gradient_as_bucket_view=as_views)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(2):
            optimizer.zero_grad()
            backward(model, step)
        with MemoryTracker(model) as tracker:
            optimizer.zero_grad()
            backward(model, 2)
            optimizer.step()
        held = tracker.resident["gradients"] + tracker.resident["buckets"]
        return tracker.peak.peak_bytes, held / tracker.resident["parameters"]

    for found in launch(lambda: {view: (peak(DDP, view), peak(TorchDDP, view)) for view in (True, False)}, 2):
        for as_views, ((ours, held), (theirs, _)) in found.items():
            assert ours <= theirs, as_views
            assert held == (1 if as_views else 2)


# Groups, and models that differ


def test_a_group_of_ranks_trains_by_itself():
    """Ranks 0 and 2, and ranks 1 and 3, each as torch does, and apart from each other."""

    def train():
        groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        group = groups[dist.get_rank() % 2]
        found = compare(small_model, settled=0, process_group=group, bucket_cap_mb=0.5)
        model = DDP(small_model(), process_group=group)
        backward(model, 0)
        return found, [p.grad.sum().item() for p in model.parameters()]

    results = launch(train, 4)
    assert all(found == [] for found, _ in results)
    gradients = [g for _, g in results]
    assert gradients[0] == gradients[2] != gradients[1] == gradients[3]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: setattr(m, "norm", nn.Linear(4, 4)), "norm.weight [4, 4] torch.float32 trained"),
        (
            lambda m: m.blocks[1].attention.key.bfloat16(),
            "blocks.1.attention.key.weight [64, 128] torch.bfloat16 trained",
        ),
        (lambda m: m.norm.requires_grad_(False), "norm.weight [128] torch.float32"),
        (lambda m: setattr(m, "extra", nn.Linear(4, 4)), "extra.weight [4, 4] torch.float32 trained"),
        (lambda m: m.register_buffer("steps", torch.zeros(3)), "steps [3] torch.float32"),
    ],
    ids=["shape", "dtype", "frozen", "more", "buffer"],
)
def test_a_model_that_differs_between_ranks_is_named(change, says):
    def wrap():
        model = small_model()
        if dist.get_rank() == 1:
            change(model)
        DDP(model)

    with pytest.raises(LaunchError, match="the model differs between ranks") as caught:
        launch(wrap, 2)
    assert f"rank 1 has {says}" in str(caught.value)


class EndsInReentrantCheckpoints(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        first, *others = self.layers
        x = first(x)
        for layer in others:
            x = checkpoint(layer, x, use_reentrant=True)
        return x


def test_the_last_layers_may_be_checkpointed_reentrantly():
    """Their backwards run inside of backward, and the first of them ends before most gradients are there."""

    def gradients(wrap):
        torch.manual_seed(0)
        model = wrap(EndsInReentrantCheckpoints())
        model(torch.ones(2, 4) * (1 + dist.get_rank())).sum().backward()
        return [p.grad for p in model.parameters()]

    def ranks():
        return [torch.equal(*pair) for pair in zip(gradients(DDP), gradients(TorchDDP), strict=True)]

    assert launch(ranks, 2) == [[True] * 6] * 2


# The comparison itself: wrappers with one mistake each must not pass it


class NeverSends(DDP):
    def _prepare_backward(self):
        pass


class ForgetsToDivide(NaiveDDP):
    def _average(self, p):
        dist.all_reduce(p.grad)


class AveragesTheParameter(NaiveDDP):
    def _average(self, p):
        dist.all_reduce(p.data)
        p.data.div_(dist.get_world_size())


class KeepsItsOwnWeights(NaiveDDP):
    def __init__(self, module):
        own = copy.deepcopy(module.state_dict())
        super().__init__(module)
        module.load_state_dict(own)


class ForgetsTheLastBucket(DDP):
    def __init__(self, module):
        super().__init__(module, bucket_cap_mb=0.5)
        self.buckets.pop()


def test_a_wrapper_with_a_mistake_is_caught():
    """On each rank, and by the looser of the two comparisons."""
    twins = (NeverSends, ForgetsToDivide, AveragesTheParameter, KeepsItsOwnWeights, ForgetsTheLastBucket)
    cases = {twin.__name__: {"wrap": twin} for twin in twins}
    for found in launch(partial(differing_cases, cases, make=small_model, same=close, steps=3), 2):
        assert found.keys() == cases.keys()
