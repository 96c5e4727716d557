"""Draw a model, a strategy, units, accumulation, freezing, recomputation: the ranks train as one process does.

A case that fails is printed as a `Case(...)`: paste it into `differences(Case(...))` under `launch(..., world_size)`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.fsdp import fully_shard as torch_fully_shard
from training import CLOSE, Mixer, Uneven, samples

from shardbench.ddp import NaiveDDP
from shardlab import launch, recompute
from shardlab.ddp import DDP
from shardlab.fsdp import FSDPModule, fully_shard
from shardlab.fsdp.flat_parameter import FlatParameter
from shardlab.zero import ShardedDataParallel, ZeroRedundancyOptimizer

STEPS = 3
OPTIMIZERS = {
    "SGD": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "AdamW": partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1),
}


@dataclass(frozen=True, repr=False)
class Case:
    """What is trained, and how; printed as what differs from the plainest case."""

    world_size: int = 1
    strategy: str = "DDP"
    optimizer: str = "SGD"
    n_blocks: int = 1
    dim: int = 3
    hidden: int = 1
    tied: bool = False
    frozen: tuple[str, ...] = ()  # prefixes of parameter names
    micro_batches: int = 1  # a step
    sends_each: bool = False  # whether micro-batches but the last communicate, too
    recomputed: str = ""  # how blocks are checkpointed
    every: int = 1  # k: each k-th of them
    max_norm: float | None = None  # of the gradients
    units: tuple[str, ...] = ()  # what FSDP shards by itself, beside the root; inner ones first; "a+b" is one of two
    reshard_after_forward: bool = False
    n_replicas: int = 1  # ranks across which FSDP replicates
    param_dtype: str = ""  # FSDP's mixed precision, of a model in float32
    reduce_dtype: str = ""

    def __repr__(self) -> str:
        changed = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return f"Case({', '.join(f'{name}={value!r}' for name, value in changed.items())})"

    def _repr_pretty_(self, printer, cycle) -> None:  # hypothesis would print all fields
        printer.text(repr(self))


# What one process does


def build(case: Case, seed: int = 0) -> Uneven:
    torch.manual_seed(seed)
    model = Uneven(n_blocks=0, dim=case.dim, tied=case.tied)
    model.blocks.extend(Mixer(case.dim, case.hidden) for _ in range(case.n_blocks))
    model.to(torch.float32 if case.param_dtype or case.reduce_dtype else torch.float64)
    for name, p in model.named_parameters():
        p.requires_grad_(not name.startswith(case.frozen) if case.frozen else True)
    return model


def loss_of(case: Case, model: nn.Module, step: int, micro_batch: int, rank: int) -> Tensor:
    """A micro-batch's share of the step's loss."""
    return model(*samples(step * case.micro_batches + micro_batch, rank, case.world_size)) / case.micro_batches


def train_alone(case: Case) -> dict[str, Tensor]:
    model = build(case)
    optimizer = OPTIMIZERS[case.optimizer](trained(model))
    for step in range(STEPS):
        for micro_batch in range(case.micro_batches):
            for rank in range(case.world_size):
                (loss_of(case, model, step, micro_batch, rank) / case.world_size).backward()
        if case.max_norm:
            nn.utils.clip_grad_norm_(model.parameters(), case.max_norm)
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


# What N ranks do, by strategy


@dataclass
class Run:
    """A wrapped model under way, and what strategies do differently."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    local: Callable[[], AbstractContextManager] | None = None  # a micro-batch inside it does not communicate
    clip: Callable[[float], Tensor] | None = None
    after_micro_batch: Callable[[], None] = lambda: None
    full_weights: Callable[[], dict[str, Tensor]] = dict


def ddp(case: Case, wrap=DDP) -> Run:
    model = wrap(build(case, seed=dist.get_rank()))
    optimizer = OPTIMIZERS[case.optimizer](trained(model))
    return Run(model, optimizer, getattr(model, "no_sync", None), full_weights=model.module.state_dict)


def zero_1(case: Case) -> Run:
    """With `sends_each`, gradients are reduced after each micro-batch."""
    model = build(case, seed=dist.get_rank())
    optimizer = shard_optimizer(case, model)
    reduce = optimizer.reduce_gradients if case.sends_each else lambda: None
    return Run(model, optimizer, nullcontext, optimizer.clip_grad_norm_, reduce, model.state_dict)


def zero_1_under_ddp(case: Case) -> Run:
    model = DDP(build(case, seed=dist.get_rank()))
    optimizer = shard_optimizer(case, model, gradients_averaged=True)
    return Run(model, optimizer, model.no_sync, optimizer.clip_grad_norm_, full_weights=model.module.state_dict)


def zero_2(case: Case) -> Run:
    module = build(case, seed=dist.get_rank())
    optimizer = shard_optimizer(case, module)
    model = ShardedDataParallel(module, optimizer)
    return Run(model, optimizer, model.no_sync, optimizer.clip_grad_norm_, full_weights=module.state_dict)


def shard_optimizer(case: Case, model: nn.Module, **options) -> ZeroRedundancyOptimizer:
    make = OPTIMIZERS[case.optimizer]
    return ZeroRedundancyOptimizer(model.named_parameters(), make.func, **make.keywords, **options)


def fsdp(case: Case, fully_shard=fully_shard, **options) -> Run:
    model = build(case)
    recompute_blocks(case, model)
    options |= {"mesh": mesh_of(case), "reshard_after_forward": case.reshard_after_forward}
    options |= {"mp_policy": MixedPrecisionPolicy(dtype(case.param_dtype), dtype(case.reduce_dtype))}
    for unit in (*case.units, ""):
        modules = [model.get_submodule(name) for name in unit.split("+")]
        fully_shard(modules if len(modules) > 1 else modules[0], **options)

    class Local:
        def __enter__(self):
            model.set_requires_gradient_sync(False)

        def __exit__(self, *_):
            model.set_requires_gradient_sync(True)

    def full_weights():
        return {name: p.full_tensor() for name, p in model.state_dict().items()}

    return Run(model, OPTIMIZERS[case.optimizer](trained(model)), Local, full_weights=full_weights)


def flat_fsdp(case: Case) -> Run:
    run = fsdp(case, layout=FlatParameter)

    def full_weights():
        for module in run.model.modules():
            if isinstance(module, FSDPModule):
                module.unshard()
        return {name: p.detach().clone() for name, p in run.model.named_parameters(remove_duplicate=False)}

    return replace(run, full_weights=full_weights)


def dtype(name: str) -> torch.dtype | None:
    return getattr(torch, name) if name else None


def mesh_of(case: Case) -> DeviceMesh:
    if case.n_replicas == 1:
        return init_device_mesh("cpu", (case.world_size,))
    shape = (case.n_replicas, case.world_size // case.n_replicas)
    return init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))


STRATEGIES = {
    "NaiveDDP": partial(ddp, wrap=NaiveDDP),
    "DDP": ddp,
    "ZeRO-1": zero_1,
    "ZeRO-1 under DDP": zero_1_under_ddp,
    "ZeRO-2": zero_2,
    "FSDP": fsdp,
    "FSDP flat": flat_fsdp,
}
SHARDS_UNITS = {"FSDP", "FSDP flat"}
HAS_NO_NORM = {"FSDP flat"}  # whose shards torch's clip_grad_norm_ would take for whole gradients
SENDS_EACH = {"NaiveDDP"}  # it has no way to keep gradients local


def recompute_blocks(case: Case, model: Uneven) -> None:
    selective = partial(recompute.create_selective_checkpoint_contexts, recompute.save_products)
    options = {
        "non-reentrant": {},
        "reentrant": {"checkpoint_impl": CheckpointImpl.REENTRANT},
        "selective": {"context_fn": selective},
    }
    if case.recomputed:
        recompute.checkpoint_blocks(model.blocks, case.every, **options[case.recomputed])


def train_on_ranks(case: Case, **options) -> dict[str, Tensor]:
    run = STRATEGIES[case.strategy](case, **options)
    if case.strategy not in SHARDS_UNITS:
        recompute_blocks(case, getattr(run.model, "module", run.model))
    for step in range(STEPS):
        for micro_batch in range(case.micro_batches):
            last = micro_batch == case.micro_batches - 1
            with nullcontext() if last or case.sends_each else run.local():
                loss_of(case, run.model, step, micro_batch, dist.get_rank()).backward()
            run.after_micro_batch()
        if case.max_norm:
            run.clip(case.max_norm) if run.clip else nn.utils.clip_grad_norm_(run.model.parameters(), case.max_norm)
        run.optimizer.step()
        run.optimizer.zero_grad()
    return run.full_weights()


def differences(case: Case) -> list[str]:
    """On each rank: the names of weights that differ from one process's after the last step."""
    found, expected = train_on_ranks(case), train_alone(case)
    # One sum of two numbers, or a division by 2, has no order: see training.py
    exact = case.world_size <= 2 and case.micro_batches == 1 and case.max_norm is None
    equal = torch.equal if exact else partial(torch.allclose, **CLOSE)
    return [name for name in expected if not equal(found[name], expected[name])] + sorted(found.keys() - expected)


def differences_from_torch(case: Case) -> list[str]:
    """On each rank: the names of weights that differ from those under torch's own fully_shard, in any bit."""
    found, expected = train_on_ranks(case), train_on_ranks(case, fully_shard=torch_fully_shard)
    return [name for name in expected if not torch.equal(bits(found[name]), bits(expected[name]))]


def bits(t: Tensor) -> Tensor:
    """A number that overflowed is equal to itself, too."""
    return t.view(torch.int32)


# Cases


@st.composite
def cases(draw, strategy: str, world_sizes: tuple[int, int] = (1, 4)) -> Case:
    """Every combination that makes sense, of least and most ranks; shrinks towards `Case()`."""
    n_blocks, tied = draw(st.integers(1, 3)), draw(st.booleans())
    world_size = draw(st.integers(*world_sizes))
    inside = [f"blocks.{i}.{part}" for i in range(n_blocks) for part in ("norm", "up", "down")]
    blocks = [f"blocks.{i}" for i in range(n_blocks)]
    frozen = draw(some_of(["embedding.", "output.", "blocks.0.up.weight", *(f"{name}." for name in blocks)]))
    recomputations = ["", "non-reentrant", "selective"]
    if "embedding." not in frozen:
        recomputations += ["reentrant"]  # needs an input that requires grad
    n_micro_batches = draw(st.integers(1, 3))
    case = Case(
        world_size=world_size,
        strategy=strategy,
        optimizer=draw(st.sampled_from(list(OPTIMIZERS))),
        n_blocks=n_blocks,
        dim=draw(st.integers(3, 11)),
        hidden=draw(st.integers(1, 17)),
        tied=tied,
        frozen=frozen,
        micro_batches=n_micro_batches,
        sends_each=strategy in SENDS_EACH or (n_micro_batches > 1 and draw(st.booleans())),
        recomputed=draw(st.sampled_from(recomputations)),
        every=draw(st.integers(1, 2)),
        max_norm=None if strategy in HAS_NO_NORM else draw(st.sampled_from([None, 0.1])),
    )
    if len(trained(build(case))) == 0:
        case = replace(case, frozen=())
    if strategy in SHARDS_UNITS:
        ends = ["embedding+output"] if tied else ["embedding", "output"]
        case = replace(
            case,
            units=draw(some_of(inside + blocks + ends)),
            reshard_after_forward=draw(st.booleans()),
            n_replicas=draw(st.sampled_from([n for n in range(1, world_size + 1) if world_size % n == 0])),
        )
    return case


@st.composite
def mixed_cases(draw, strategy: str, world_sizes: tuple[int, int] = (1, 4)) -> Case:
    dtypes = st.sampled_from(["bfloat16", "float16", "float32", ""])
    case = replace(draw(cases(strategy, world_sizes)), param_dtype=draw(dtypes), reduce_dtype=draw(dtypes))
    return case if case.param_dtype or case.reduce_dtype else replace(case, param_dtype="bfloat16")


def some_of(names: list[str]) -> st.SearchStrategy[tuple[str, ...]]:
    """A selection, in the order given."""
    return st.sets(st.sampled_from(names)).map(lambda chosen: tuple(n for n in names if n in chosen))


REPRODUCIBLE = settings(
    derandomize=True,
    deadline=None,
    database=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)


def by_strategy(strategies, drawn_by, n_cases: int):
    """Run a test of a case for each strategy, with so many cases in all; it shrinks the case that fails."""

    def decorate(check_case):
        @pytest.mark.parametrize("strategy", strategies)
        def test(strategy):
            a_strategy_s = settings(REPRODUCIBLE, max_examples=-(-n_cases // len(strategies)))
            a_strategy_s(given(drawn_by(strategy))(check_case))()

        return test

    return decorate


BY_DAY = {"world_sizes": (2, 3)}


@by_strategy(STRATEGIES, partial(cases, **BY_DAY), n_cases=16)
def test_ranks_train_as_one_process(case):
    assert launch(differences, case.world_size, case) == [[]] * case.world_size


@by_strategy(["FSDP"], partial(mixed_cases, **BY_DAY), n_cases=3)
def test_mixed_precision_is_torchs_to_the_bit(case):
    assert launch(differences_from_torch, case.world_size, case) == [[]] * case.world_size


@pytest.mark.night
@pytest.mark.timeout(900)
@by_strategy(STRATEGIES, cases, n_cases=300)
def test_ranks_train_as_one_process_300_times(case):
    assert launch(differences, case.world_size, case) == [[]] * case.world_size


@pytest.mark.night
@pytest.mark.timeout(900)
@by_strategy(["FSDP"], mixed_cases, n_cases=50)
def test_mixed_precision_is_torchs_to_the_bit_50_times(case):
    assert launch(differences_from_torch, case.world_size, case) == [[]] * case.world_size
