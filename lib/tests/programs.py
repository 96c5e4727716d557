"""Small training programs, drawn by a seed: odd models, and what people do between two steps.

A program runs on every engine with two ranks, and once more in one process on the samples of both, in float64. Allowed
is that an engine's weights, losses and outputs are those of one process, or that it raises an error of our own that
says what it can't do. Another number, a hang, an error from inside of torch or memory that stays is a finding.
"""

import copy
import dataclasses
import gc
import random
import tempfile
import traceback
from collections import namedtuple
from contextlib import nullcontext, suppress
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from shardlab.ddp import DDP
from shardlab.fsdp import CPUOffloadPolicy, FlatParameter, fully_shard
from shardlab.grad_norm import clip_sharded_, common_dtype
from shardlab.offload import CPUOffloadOptimizer
from shardlab.recompute import checkpoint
from shardlab.shard_groups import local, shard_groups
from shardlab.state import checkpoint as checkpoints
from shardlab.state import full_state_dict, load_full_state_dict
from shardlab.zero import ShardedDataParallel, ZeroRedundancyOptimizer

DIM, SAMPLES = 5, 4
CLOSE = {"rtol": 1e-8, "atol": 1e-10}
REFUSALS = (RuntimeError, ValueError, TypeError)
Named = namedtuple("Named", "h other")


@dataclasses.dataclass
class Data:
    h: Tensor


class Plain:
    def __init__(self, h) -> None:
        self.h = h


class Slotted:
    __slots__ = ("h",)

    def __init__(self, h) -> None:
        self.h = h


PACK = {
    "tensor": lambda h: h,
    "tuple": lambda h: (h, None),
    "dict": lambda h: {"h": h, "n": 1},
    "named": lambda h: Named(h, "x"),
    "data": Data,
    "object": Plain,
    "slots": Slotted,
    "list in an object": lambda h: Plain([1, h]),
}


def unpack(x) -> Tensor:
    x = getattr(x, "h", x)
    x = x["h"] if isinstance(x, dict) else x
    x = x[0] if isinstance(x, tuple) else x
    return x[1] if isinstance(x, list) else x


@dataclasses.dataclass(frozen=True)
class BlockSpec:
    output: str
    keeps: bool  # an auxiliary loss, as an attribute
    twice: bool  # its linear layer is used twice
    checkpoint: str  # "", "whole", "inside"
    rrelu: bool
    frozen: bool
    mark: bool


class Block(nn.Module):
    def __init__(self, spec: BlockSpec) -> None:
        super().__init__()
        self.spec, self.up, self.gain = spec, nn.Linear(DIM, DIM), nn.Parameter(torch.ones(DIM))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        if spec.mark:
            self.gain.no_decay = True
        if spec.frozen:
            self.up.requires_grad_(False)

    def forward(self, x):
        x = unpack(x)
        run = self.compute
        h = checkpoint(run, x, use_reentrant=False) if self.spec.checkpoint == "inside" else run(x)
        if self.spec.keeps:
            self.auxiliary = h.pow(2).mean()
        self.calls += 1
        return PACK[self.spec.output](h)

    def compute(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.up(x)) * self.gain
        h = torch.tanh(self.up(h)) if self.spec.twice else h
        return nn.functional.rrelu(h, 0.3, 0.3, training=True) if self.spec.rrelu else h


class Net(nn.Module):
    def __init__(self, specs: tuple[BlockSpec, ...], tied: bool) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block(spec) for spec in specs), nn.Linear(DIM, DIM)
        self.scale = nn.Parameter(torch.ones(1))
        if tied:
            self.blocks[-1].up.weight = self.blocks[0].up.weight

    def forward(self, x: Tensor, skip: int | None = None, breaks: bool = False):
        for i, block in enumerate(self.blocks):
            if i == skip:
                continue
            if breaks and i == len(self.blocks) - 1:
                raise KeyError("broken off")
            if block.spec.checkpoint == "whole":
                x = checkpoint(block, unpack(x), use_reentrant=False)
            else:
                x = block(x)
        return self.head(unpack(x)) * self.scale

    def auxiliary(self, skip: int | None) -> Tensor | float:
        kept = [b.auxiliary for i, b in enumerate(self.blocks) if b.spec.keeps and i != skip]
        return 0.1 * sum(kept) if kept else 0.0


@dataclasses.dataclass(frozen=True)
class Program:
    seed: int
    specs: tuple[BlockSpec, ...]
    tied: bool
    optimizer: str
    actions: tuple[tuple, ...]


def draw(seed: int) -> Program:
    """Return the program of this seed."""
    r = random.Random(seed)
    specs = tuple(_block(r) for _ in range(r.choice((1, 2, 3))))
    actions = [_action(r, len(specs)) for _ in range(r.randint(2, 6))]
    return Program(seed, specs, r.random() < 0.1, r.choice(("sgd", "adamw")), (*actions, ("train", 1, None, "", False)))


def _block(r: random.Random) -> BlockSpec:
    output = r.choice(list(PACK)) if r.random() < 0.5 else "tensor"
    odd = [r.random() < chance for chance in (0.2, 0.2, 0.15, 0.1, 0.05)]
    where = r.choice(("whole", "inside")) if r.random() < 0.2 else ""
    keeps = odd[0] and where != "whole"  # a checkpointed block keeps a tensor of another graph
    return BlockSpec("tensor" if where == "whole" else output, keeps, odd[1], where, odd[2], odd[3], odd[4])


def _action(r: random.Random, n_blocks: int) -> tuple:
    train = ("train", r.choice((1, 1, 2, 3)), _skipped(r, n_blocks), _extra(r), r.random() < 0.2)
    others = [("evaluate", mode) for mode in ("no_grad", "inference", "grad")]
    others += [("train", 1, None, "auxiliary alone", False)]
    others += [("broken forward",), ("copy",), ("full state",), ("checkpoint",), ("saliency",)] * 2
    others += [("learning rate", r.choice((0.3, 0.05))), (r.choice(("freeze", "thaw")), r.randrange(n_blocks))]
    return train if r.random() < 0.6 else r.choice(others)


def _skipped(r: random.Random, n_blocks: int) -> int | None:
    return r.randrange(n_blocks) if n_blocks > 1 and r.random() < 0.04 else None


def _extra(r: random.Random) -> str:
    return r.choice(("penalty", "saliency", "twice", "two forwards")) if r.random() < 0.25 else ""


# Engines: (model, optimizer) from a Net


def _optimizer(program: Program):
    return (SGD, {"lr": 0.1, "momentum": 0.9}) if program.optimizer == "sgd" else (AdamW, {"lr": 0.05})


def alone(net: Net, program: Program):
    cls, options = _optimizer(program)
    return net, cls(net.parameters(), **options)


def ddp(net: Net, program: Program, **options):
    return DDP(net, **options), alone(net, program)[1]


def zero_1(net: Net, program: Program):
    cls, options = _optimizer(program)
    return net, ZeroRedundancyOptimizer(net.named_parameters(), cls, bucket_cap_mb=1e-4, **options)


def zero_2(net: Net, program: Program):
    optimizer = zero_1(net, program)[1]
    return ShardedDataParallel(net, optimizer), optimizer


def fsdp(net: Net, program: Program, **options):
    shared = [net.blocks[0], net.blocks[-1]] if program.tied and len(net.blocks) > 1 else []
    for block in net.blocks:
        if block not in shared:
            fully_shard(block, **options)
    fully_shard([*shared, net] if shared else net, **options)
    return alone(net, program)


def offloaded(net: Net, program: Program):
    cls, options = _optimizer(program)
    model, _ = fsdp(net, program)
    return model, CPUOffloadOptimizer(model.parameters(), cls, **options)


ENGINES = {
    "ddp": ddp,
    "ddp, unused": lambda net, p: ddp(net, p, find_unused_parameters=True, bucket_cap_mb=1e-4),
    "ddp, views": lambda net, p: ddp(net, p, gradient_as_bucket_view=True),
    "zero 1": zero_1,
    "zero 2": zero_2,
    "fsdp": fsdp,
    "fsdp, kept": lambda net, p: fsdp(net, p, reshard_after_forward=False),
    "flat": lambda net, p: fsdp(net, p, layout=FlatParameter),
    "fsdp, host": lambda net, p: fsdp(net, p, offload_policy=CPUOffloadPolicy()),
    "offloaded": offloaded,
}


# A run: the same code for one process and for ranks


class Run:
    """A program under way: with `ranks`, on this rank's samples; without, on those of all."""

    def __init__(self, program: Program, engine, ranks: int) -> None:
        self.program, self.engine, self.ranks = program, engine, ranks
        self.model, self.optimizer = self.build(program.seed)
        self.seen: list[Tensor] = []  # losses and outputs
        self.switched: list[tuple[str, int]] = []  # what was frozen and thawed, in order

    def build(self, seed: int):
        torch.manual_seed(seed)
        return self.engine(Net(self.program.specs, self.program.tied).double(), self.program)

    @property
    def net(self) -> Net:
        return getattr(self.model, "module", self.model)

    def samples(self, *key) -> Tensor:
        torch.manual_seed(hash((self.program.seed, *key)) % (1 << 31))
        everything = torch.randn(2 * SAMPLES, DIM, dtype=torch.float64)
        return everything[dist.get_rank() :: 2] if self.ranks else everything

    def mean(self, loss: Tensor) -> Tensor:
        loss = loss.detach().clone()
        if self.ranks:
            dist.all_reduce(loss, op=dist.ReduceOp.AVG)
        return loss

    def go(self) -> None:
        for i, (what, *arguments) in enumerate(self.program.actions):
            getattr(self, what.replace(" ", "_"))(i, *arguments)

    def loss(self, x: Tensor, skip: int | None, auxiliary_alone: bool = False) -> Tensor:
        output, auxiliary = self.model(x, skip), self.net.auxiliary(skip)
        if auxiliary_alone and torch.is_tensor(auxiliary):
            return auxiliary
        return output.pow(2).mean() + auxiliary

    def train(self, i: int, n_micro: int, skip: int | None, extra: str, clips: bool) -> None:
        total = 0.0
        for micro in range(n_micro):
            with self.synced(micro == n_micro - 1):
                x = self.samples(i, micro).requires_grad_(extra in ("penalty", "saliency"))
                loss = self.loss(x, skip, extra == "auxiliary alone") / n_micro
                if extra == "two forwards":
                    loss = loss + self.loss(self.samples(i, micro, "again"), skip) / n_micro
                if extra in ("penalty", "saliency"):
                    [g] = torch.autograd.grad(loss, x, create_graph=extra == "penalty", retain_graph=True)
                    per_rank = (
                        1.0 if self.ranks else 4.0
                    )  # each of the ranks' losses is a mean over half as many samples
                    loss = loss + (
                        g.pow(2).sum() * per_rank / (1.0 if self.ranks else 2.0) if extra == "penalty" else 0
                    )
                loss.backward(retain_graph=extra == "twice")
                if extra == "twice":
                    loss.backward()
                total = total + self.mean(loss)
        if clips:
            self.seen.append(self.clip().detach().clone())
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.seen.append(total)

    def synced(self, last: bool):
        if hasattr(self.model, "set_requires_gradient_sync"):
            self.model.set_requires_gradient_sync(last)
        return self.model.no_sync() if hasattr(self.model, "no_sync") and not last else nullcontext()

    def clip(self) -> Tensor:
        if hasattr(self.optimizer, "clip_grad_norm_"):
            return self.optimizer.clip_grad_norm_(0.05)
        params = [p for group in self.optimizer.param_groups for p in group["params"]]
        if not self.ranks or isinstance(self.model, DDP):
            return nn.utils.clip_grad_norm_(params, 0.05)
        held = [(shard_groups(p), None if p.grad is None else local(p.grad)) for p in params]
        return clip_sharded_(held, 0.05, 2.0, common_dtype(params), "cpu")

    def evaluate(self, i: int, mode: str) -> None:
        modes = {"no_grad": torch.no_grad, "inference": torch.inference_mode, "grad": nullcontext}
        torch.manual_seed(i)
        with modes[mode]():
            self.seen.append(self.model(torch.randn(3, DIM, dtype=torch.float64)).detach().clone())

    def saliency(self, i: int) -> None:
        torch.manual_seed(i)
        x = torch.randn(3, DIM, dtype=torch.float64, requires_grad=True)
        [g] = torch.autograd.grad(self.model(x).sum(), x)
        self.seen.append(g.clone())

    def freeze(self, i: int, block: int) -> None:
        self.switch("freeze", block)

    def thaw(self, i: int, block: int) -> None:
        self.switch("thaw", block)

    def switch(self, what: str, block: int) -> None:
        if not self.program.tied:  # a flat parameter can't be frozen in part, and here one has all
            self.net.blocks[block].requires_grad_(what == "thaw")
            self.switched.append((what, block))

    def learning_rate(self, i: int, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def broken_forward(self, i: int) -> None:
        with suppress(KeyError):
            self.model(self.samples(i), breaks=True)

    def copy(self, i: int) -> None:
        if any(hasattr(block, "auxiliary") for block in self.net.blocks):
            return  # torch copies no tensor that has a history
        for attempt in (copy.deepcopy, lambda model: model.__reduce_ex__(4)):
            try:
                attempt(self.model)
            except REFUSALS as error:
                assert ours(error), error

    def full_state(self, i: int) -> None:
        if not self.ranks:
            return
        load_full_state_dict(self.model, full_state_dict(self.model))

    def checkpoint(self, i: int) -> None:
        """Go on in another model and another optimizer, with what was saved. Freezing and learning rates are not."""
        folder = [tempfile.mkdtemp()] if not dist.get_rank() or not self.ranks else [None]
        if self.ranks:
            dist.broadcast_object_list(folder, 0)
        if not self.ranks:
            states = copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))
            self.model, self.optimizer = self.build(self.program.seed + 1)
            self.model.load_state_dict(states[0])
            self.optimizer.load_state_dict(states[1])
        else:
            checkpoints.save(folder[0], i, self.model, self.optimizer)
            self.model, self.optimizer = self.build(self.program.seed + 1)
            checkpoints.load(folder[0], self.model, self.optimizer)
        for what, block in list(self.switched):
            getattr(self, what)(i, block)


def ours(error: BaseException) -> bool:
    """Return whether a `raise` of ours raised the error: torch's C++ raises its own in lines of ours, too."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return "/shardlab/" in frame.filename and frame.line.startswith("raise")


def compare(program: Program, name: str) -> str:
    """On a rank: run a program on an engine and alone. Return the error by which the engine refused it, or ''.

    Raises AssertionError if it did something else than one process, and whatever else came up.
    """
    if name == "flat" and program.tied:  # in one flat parameter what is not used gets a gradient of zeros, not none
        actions = [(*a[:2], None, *a[3:]) if a[0] == "train" else a for a in program.actions]
        program = dataclasses.replace(program, actions=tuple(actions))
    expected = Run(program, alone, ranks=0)
    expected.go()
    try:
        found = Run(program, ENGINES[name], ranks=dist.get_world_size())
        found.go()
    except REFUSALS as error:
        if not ours(error):
            raise
        return str(error)
    for i, (a, b) in enumerate(zip(found.seen, expected.seen, strict=True)):
        assert torch.allclose(a, b, **CLOSE), f"number {i} of what was seen is {a}, not {b}"
    state = full_state_dict(found.model)
    for key, value in expected.model.state_dict().items() if not dist.get_rank() else ():
        assert torch.allclose(state[key], value, **CLOSE), f"{key} is {state[key]}, not {value}"
    return ""


def live_bytes() -> int:
    """Bytes of all tensors that this process holds."""
    gc.collect()
    tensors = [t for t in gc.get_objects() if type(t) in (Tensor, nn.Parameter)]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def bytes_after(program: Program, name: str) -> int:
    compare(program, name)
    return live_bytes()


def many(name: str, seeds: list[int], progress: str) -> None:
    """On a rank: compare the programs of these seeds, until the engine refuses one.

    `progress`: a file to which rank 0 writes the seed that it has begun.
    """
    for seed in seeds:
        if not dist.get_rank():
            Path(progress).write_text(str(seed))
        program = draw(seed)
        if words := compare(program, name):
            raise Refused(words)
        if seed % 20 == 0:
            held = [bytes_after(program, name) for _ in range(4)]
            assert min(held[1:]) <= held[0], f"more and more bytes stay: {held}"


class Refused(Exception):
    """An engine refused a program by an error of its own, which is allowed; its ranks can't go on."""
