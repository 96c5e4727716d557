"""What each action of a program does. The same code runs in one process and on ranks."""

import copy
import gc
import tempfile
import weakref
from contextlib import nullcontext, suppress

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from programs.draw import Program
from programs.models import DIM, Net, unpack
from programs.refusals import REFUSALS, refused_by_name
from shardlab.ddp import DDP
from shardlab.grad_norm import clip_sharded_, common_dtype
from shardlab.shard_groups import local, shard_groups
from shardlab.state import checkpoint as checkpoints
from shardlab.state import (
    full_optimizer_state_dict,
    full_state_dict,
    load_full_optimizer_state_dict,
    load_full_state_dict,
)

SAMPLES = 4
MODES = {"no_grad": torch.no_grad, "inference": torch.inference_mode, "grad": nullcontext}


class Run:
    """A program under way: with `ranks`, on this rank's samples; without, on those of all."""

    def __init__(self, program: Program, engine, ranks: int) -> None:
        self.program, self.engine, self.ranks = program, engine, ranks
        self.seen: list[Tensor] = []  # losses and outputs
        self.may_say: set[str] = set()  # words by which an engine may refuse what was done
        self.switched: list[tuple[str, int]] = []  # what was frozen and thawed, in order
        self.averaged: AveragedModel | None = None
        self.build(program.seed)

    def build(self, seed: int) -> None:
        torch.manual_seed(seed)
        net = Net(self.program.specs, self.program.tied, self.program.output).double()
        self.model, self.optimizer = self.engine(net, self.program)
        self.compiled, self.trained = False, {name for name, p in net.named_parameters() if p.requires_grad}

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

    # Training

    def loss(self, x: Tensor, skip: int | None, auxiliary_alone: bool = False) -> Tensor:
        output, auxiliary = unpack(self.model(x, skip)), self.net.auxiliary(skip)
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
                    factor = 1.0 if self.ranks else 2.0  # each rank's loss is a mean over half as many samples
                    loss = loss + (g.pow(2).sum() * factor if extra == "penalty" else 0)
                loss.backward(retain_graph=extra == "twice")
                if extra == "twice":
                    loss.backward()
                total = total + self.mean(loss)
        if not self.ranks and any(p.requires_grad and p.grad is None for p in self.net.parameters()):
            self.may_say.add("gave no gradient to")
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
        if not self.ranks or isinstance(getattr(self.model, "_orig_mod", self.model), DDP):
            return nn.utils.clip_grad_norm_(params, 0.05)
        held = [(shard_groups(p), None if p.grad is None else local(p.grad)) for p in params]
        return clip_sharded_(held, 0.05, 2.0, common_dtype(params), "cpu")

    def freeze(self, i: int, block: int) -> None:
        self.switch("freeze", block)

    def thaw(self, i: int, block: int) -> None:
        self.switch("thaw", block)

    def switch(self, what: str, block: int) -> None:
        self.net.blocks[block].requires_grad_(what == "thaw")
        self.switched.append((what, block))
        trained = {name for name, p in self.net.named_parameters() if p.requires_grad}
        self.may_say |= {"was frozen when"} if trained - self.trained else set()
        self.may_say |= {"gave no gradient to"} if self.trained - trained else set()

    def learning_rate(self, i: int, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    # Beside training

    def evaluate(self, i: int, mode: str) -> None:
        torch.manual_seed(i)
        with MODES[mode]():
            for _ in range(2):
                output = unpack(self.model(torch.randn(3, DIM, dtype=torch.float64)))
                self.seen.append(output.detach().clone())

    def saliency(self, i: int) -> None:
        torch.manual_seed(i)
        x = torch.randn(3, DIM, dtype=torch.float64, requires_grad=True)
        [g] = torch.autograd.grad(unpack(self.model(x)).sum(), x)
        self.seen.append(g.clone())

    def broken_forward(self, i: int) -> None:
        with suppress(KeyError):
            self.model(self.samples(i), breaks=True)

    def compile(self, i: int) -> None:
        if self.ranks and not self.compiled:
            self.model, self.compiled = torch.compile(self.model, backend="aot_eager"), True

    def average(self, i: int) -> None:
        """Update an average of the weights, if the engine allows its model to be copied."""
        if self.averaged is None and not self.net.keeps_graph and not self.compiled:
            with refused_by_name():
                self.averaged = AveragedModel(self.net)
        if self.averaged is not None:
            self.averaged.update_parameters(self.net)

    def copy(self, i: int) -> None:
        """Go on with copies, if the engine allows them."""
        if not self.net.keeps_graph and not self.compiled:
            with refused_by_name():
                self.model, self.optimizer = copy.deepcopy((self.model, self.optimizer))

    def another_model(self, i: int) -> None:
        """Delete model and optimizer, and go on with others."""
        references = self.forget()
        self.build(self.program.seed + 1)
        assert_gone(references)

    def forget(self) -> list[weakref.ref]:
        """Drop model and optimizer; return references to what must be gone then."""
        references = [weakref.ref(getattr(self.model, "_orig_mod", self.model)), weakref.ref(self.optimizer)]
        references = [] if self.net.keeps_itself else references
        self.model = self.optimizer = self.averaged = None
        return references

    # States

    def full_state(self, i: int, mode: str) -> None:
        if self.ranks:
            weights, states = full_state_dict(self.model), full_optimizer_state_dict(self.model, self.optimizer)
            with MODES[mode]():
                load_full_state_dict(self.model, weights)
                load_full_optimizer_state_dict(self.model, self.optimizer, states)

    def checkpoint(self, i: int, odd: str, mode: str) -> None:
        """Go on in another model and another optimizer, with what was saved. Freezing is not."""
        models = [self.model] if self.averaged is None else [self.model, self.averaged]
        if self.ranks:
            folders = [tempfile.mkdtemp(), tempfile.mkdtemp()]
            dist.broadcast_object_list(folders, 0)
            saved = self.save(folders[0], i, odd)
            for average in models[1:]:
                checkpoints.save(folders[1], i, average)
        else:
            states = copy.deepcopy([self.optimizer.state_dict(), *(model.state_dict() for model in models)])
        self.build(self.program.seed + 1)
        if self.averaged is not None:
            fresh = Net(self.program.specs, self.program.tied, self.program.output).double()
            self.averaged = AveragedModel(fresh)
        models = [self.model] if self.averaged is None else [self.model, self.averaged]
        if self.ranks:
            with MODES[mode]():
                try:
                    loaded = checkpoints.load(folders[0], self.model, self.optimizer)
                    for average in models[1:]:
                        checkpoints.load(folders[1], average)
                except REFUSALS as error:
                    raise AssertionError(f"what was saved can't be loaded: {error}") from error
            assert loaded == saved, f"of step {saved} came back {loaded}"
        else:
            self.optimizer.load_state_dict(states[0])
            for model, state in zip(models, states[1:], strict=True):
                model.load_state_dict(state)
        for what, block in list(self.switched):
            getattr(self, what)(i, block)

    def save(self, folder: str, i: int, odd: str) -> float:
        """Save the training, first with what no `load` could give back. Return the step that was saved."""
        with refused_by_name():
            if odd == "half a step":
                checkpoints.save(folder, i + 0.5, self.model, self.optimizer)
                return i + 0.5
            if odd == "a number":
                checkpoints.save(folder, i, self.model, self.optimizer, epoch=3)
                raise AssertionError("a number was saved that no load gives back")
        checkpoints.save(folder, i, self.model, self.optimizer)
        return i


def assert_gone(references: list[weakref.ref]) -> None:
    gc.collect()
    kinds = [type(reference()).__name__ for reference in references if reference() is not None]
    assert not kinds, f"deleted, and still there: {kinds}"
