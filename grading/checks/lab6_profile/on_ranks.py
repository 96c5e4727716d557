"""Lab 6 on the ranks. An answer is (build, train_step) in part 2, and a function of a trace's events in part 1.

For timing, the network is simulated and computation is slept. Bytes held and sent are the same without both.
"""

from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from grading.checks.unwrapped_names import unwrap_names
from grading.judge.tensor_projections import project
from grading.judge.timed_laps import serve_laps
from shardlab.measure.memory import MemoryTracker
from shardlab.measure.traffic import record_traffic
from shardlab.model import ModelConfig, Transformer
from shardsim import slept_computation
from shardtrace.record_timeline import record_timeline

WORLD_SIZE = 4
SLOW_LINK = "5 MB/s, 1 ms"
SLEPT_S = 0.010  # a block's forward; its backward takes twice that
N_LAYERS, N_MICRO_BATCHES = 4, 4
OTHER_LAYERS = 2  # of a second model
FIGURES = ("computes", "all_gather", "reduce_scatter", "rest", "hidden", "unit")  # keys of read_step's result
MODEL_BYTES = 854_272  # of 4 blocks
ONE_BLOCK = ModelConfig(128, 64, 1, n_heads=4, n_kv_heads=2, hidden_dim=192, max_seq_len=64)
unwrapped = unwrap_names(ONE_BLOCK)
BUDGETS = {"peak_bytes": 2_200_000, "kept_bytes": 440_000, "messages": 45, "sent_bytes": 5_700_000}  # on all tiers


def make_model(seed: int, n_layers: int, forward_s: float = 0.0) -> Transformer:
    torch.manual_seed(seed)
    model = Transformer(replace(ONE_BLOCK, n_layers=n_layers))
    if forward_s:
        for i, block in enumerate(model.blocks):
            slept_computation.sleep_in(block, forward_s, name=f"blocks.{i}")
    return model


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer whose update is linear in the gradients, so that a wrong factor shows."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def batches(seed: int, step: int, rank: int, count: int) -> list[tuple[Tensor, Tensor]]:
    """Return one rank's micro-batches of a step, of one sequence each."""
    draw = torch.Generator().manual_seed((seed * 100 + step) * 100 + rank)
    return [tuple(torch.randint(0, 128, (2, 1, 8), generator=draw)) for _ in range(count)]


def prepare(implementation, model: nn.Module):
    """Return the student's model, its optimizer, and a step function. Raises TypeError if it is no FSDP2 model."""
    if not (isinstance(implementation, tuple) and len(implementation) == 2 and all(map(callable, implementation))):
        raise TypeError("the answer is a pair of functions: (build, train_step)")
    build, train_step = implementation
    model = build(model)
    if not isinstance(model, FSDPModule):
        raise TypeError("build(model) must return the model after torch.distributed.fsdp.fully_shard(model)")
    optimizer = make_optimizer(model)

    def step(n_micro_batches: int, data_seed: int, number: int) -> float:
        loss = train_step(model, optimizer, batches(data_seed, number, dist.get_rank(), n_micro_batches))
        return float(loss) if loss is not None else float("nan")

    return model, optimizer, step


def steps(implementation, seed: int, n_layers: int, lengths: list[int]) -> list[dict]:
    """Return the loss, the projected change of the weights, and whether gradients were there, for each step.

    Another model takes a step before each, and must not matter.
    """
    *_, step_another = prepare(implementation, make_model(seed + 1, OTHER_LAYERS))
    model, optimizer, step = prepare(implementation, make_model(seed, n_layers))
    with_gradient: list[int] = []
    optimizer.register_step_pre_hook(
        lambda *_: with_gradient.append(sum(p.grad is not None for g in optimizer.param_groups for p in g["params"]))
    )
    found, before = [], whole(model)
    for number, length in enumerate(lengths):
        step_another(2, seed + 1, number)
        with_gradient.clear()
        loss = step(length, seed, number)
        after = whole(model)
        moved = [(name, after[name] - before[name]) for name in after]
        found.append({"loss": loss, "moved": project(moved, seed), "with_gradient": [*with_gradient]})
        before = after
    return found


def whole(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of the whole parameters by name, the wrappers' part of a name left out. All ranks call it."""
    parts = {unwrapped(name): p.detach() for name, p in model.named_parameters()}
    sharded = {name: p for name, p in parts.items() if is_sharded(p)}
    shards: list = [None] * (dist.get_world_size() if sharded else 0)
    if sharded:  # in one message: one for each parameter would take long
        dist.all_gather_object(shards, {name: p.to_local().clone() for name, p in sharded.items()})
    return {
        name: torch.cat([of_rank[name] for of_rank in shards], p.placements[0].dim)
        if name in sharded
        else (p.full_tensor() if isinstance(p, DTensor) else p).clone()
        for name, p in parts.items()
    }


def is_sharded(p: Tensor) -> bool:
    """Return whether each rank has its own part of the parameter, and no other."""
    if not isinstance(p, DTensor):
        return False
    return p.device_mesh.ndim == 1 and p.device_mesh.size() == dist.get_world_size() and p.placements[0].is_shard()


def record_step(implementation, seed: int) -> list[dict]:
    """Record three steps: bytes at the peak and afterwards, messages sent, forwards of blocks, and units."""
    model, forwards, found = make_model(seed, N_LAYERS), [], []
    with MemoryTracker(model) as memory:  # from the beginning: what `build` stores counts too
        model, optimizer, step = prepare(implementation, model)
        for block in model.blocks:
            block.register_forward_hook(lambda *_: forwards.append(1))
        for number in range(3):
            forwards.clear()
            began_s = memory.timeline()[-1][0]
            with record_traffic() as traffic:
                step(N_MICRO_BATCHES, seed, number)
            optimizer.zero_grad()
            held = [by_category for seconds, by_category in memory.timeline() if seconds >= began_s]
            whole_ones = [name for name, p in model.named_parameters() if not is_sharded(p)]
            found.append(
                {
                    "peak": max(held, key=lambda by_category: sum(by_category.values())),
                    "kept": held[-1],
                    "kinds": dict(traffic.kinds()),
                    "sent": traffic.sent_bytes(),
                    "sent_by": {kind: traffic.sent_bytes(kind) for kind in ("all_gather", "reduce_scatter")},
                    "forwards": len(forwards),
                    "units": sum(isinstance(m, FSDPModule) for m in model.modules()),
                    "not_sharded": whole_ones,
                }
            )
    return found


def asked(implementation, seed: int, n_layers: int, lengths: list[int]) -> list[dict]:
    """Record, after a first step, when each all_gather was requested and when each block computed, for each step."""
    model, _, step = prepare(implementation, make_model(seed, n_layers, SLEPT_S))
    step(lengths[0], seed, 0)
    found = []
    for number, length in enumerate(lengths, 1):
        slept_computation.clear()
        with record_timeline(model) as recording:
            step(length, seed, number)
        gathers = [s for s in recording.timeline.lane("link") if s.name == "all_gather"]
        computed = [[c.name, c.kind, c.started_s] for c in slept_computation.computations()]
        found.append({"gathers": [[s.unit, s.issued_s] for s in gathers], "computed": computed})
    return found


def laps(implementation, address: str) -> None:
    """Serve laps of one step each, always from the same weights; how the weights move proves the work."""
    model, optimizer, step = prepare(implementation, make_model(0, N_LAYERS, SLEPT_S))
    begin = [p.detach().clone() for p in model.parameters()]

    def lap(order: dict) -> dict:
        slept_computation.clear()
        loss = step(N_MICRO_BATCHES, order["seed"], 0)
        slept = [c.kind for c in slept_computation.computations() if c.finished_s - c.started_s > SLEPT_S / 2]
        with torch.no_grad():
            moved = {n: p - b for (n, p), b in zip(model.named_parameters(), begin, strict=True)}
            proof = waves_of({unwrapped(name): t for name, t in moved.items()}, order["seed"])
            for p, b in zip(model.parameters(), begin, strict=True):
                p.copy_(b)
        optimizer.state.clear()
        return {"loss": loss, "moved": proof, "slept": [slept.count("forward"), slept.count("backward")]}

    serve_laps(address, lap)


def waves_of(tensors: dict[str, Tensor], seed: int) -> dict[str, float]:
    """Return `wave_of` of tensors and of their magnitudes.

    Of a sum of ranks' tensors, the wave is the sum of their waves, which no rank has to exchange anything for. The
    magnitudes' wave is not.
    """
    magnitudes = {f"{name} (magnitudes)": t.abs() for name, t in tensors.items()}
    return {name: wave_of(t, seed) for name, t in (tensors | magnitudes).items()}


def wave_of(t: Tensor, seed: int) -> float:
    """Return this rank's share of the product of the whole tensor with a cosine; the sum over ranks is the product.

    Sends nothing: a message would cost time on the simulated network.
    """
    places = torch.arange(t.numel()).view(t.shape)
    if isinstance(t, DTensor):
        if not is_sharded(t):
            return float("nan")
        mine = places.chunk(dist.get_world_size(), t.placements[0].dim)[dist.get_rank() :][:1]
        places, t = mine[0] if mine else places[:0], t.to_local()
    frequency = 0.1 + (seed % 9973) / 9973
    return float(torch.cos(frequency * places.flatten()) @ t.flatten())


def read(implementation, traces: list[dict]) -> list[dict]:
    """Return the figures that the student's function finds in each trace, as plain numbers and words.

    It has read another step of each list before, of this rank and of another one, which must not matter.
    """
    return [_read_again(implementation, **trace) for trace in traces]


def _read_again(implementation, events: list[dict], rank: int, step: int) -> dict:
    steps = {(e["pid"], int(e["name"].split()[1])) for e in events if e.get("cat") == "step"}
    for other_rank in sorted({of_rank for of_rank, _ in steps}, key=lambda of_rank: of_rank == rank)[-2:]:
        implementation(events, other_rank, min(i for of_rank, i in steps if of_rank == other_rank and i != step))
    return _figures(implementation(events, rank, step))


def _figures(found) -> dict:
    if not isinstance(found, dict):
        raise TypeError(f"read_step must return a dictionary, not {type(found).__name__}")
    return {k: str(v) if k == "unit" else _number(k, v) for k, v in found.items() if k in FIGURES}


def _number(name: str, value) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"read_step's {name!r} must be a number, and is {value!r:.60}") from None


# ---------------------------------------------------------------------------------- the slow program of the notebook


def slow_build(model):
    for linear in [m for m in model.modules() if isinstance(m, nn.Linear)]:
        fully_shard(linear)
        linear.set_modules_to_backward_prefetch([linear])  # holds less
    fully_shard(model)
    model.set_modules_to_backward_prefetch([model])
    return model


def slow_train_step(model, optimizer, micro_batches):
    optimizer.zero_grad()
    losses = []
    for tokens, targets in micro_batches:
        loss = model(tokens, targets) / len(micro_batches)
        loss.backward()
        everyones = loss.detach().clone()
        dist.all_reduce(everyones)  # to see progress
        losses.append(everyones.item() / dist.get_world_size())
    optimizer.step()
    return sum(losses)


REFERENCE = dict.fromkeys(("record_step", "laps"), (slow_build, slow_train_step))
