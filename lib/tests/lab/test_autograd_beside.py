"""What programs do beside a plain backward: penalties, odd outputs, tensors that modules keep, deleted engines.

Each case gives on every engine what one process gives, or an error that names the cause.
"""

import copy
import weakref
from functools import partial

import pytest
import torch
import torch.distributed as dist
from programs import ENGINES, BlockSpec, Net, Program, live_bytes
from programs.engines import alone
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shardlab import launch
from shardlab.cpu_offload_optimizer import CPUOffloadOptimizer
from shardlab.ddp import DDP
from shardlab.fsdp import FlatParameter, PerParameter, fully_shard
from shardlab.precision import GradScaler, MasterWeights
from shardlab.recompute import checkpoint
from shardlab.state import full_state_dict
from shardlab.zero import ShardedDataParallel, ZeroRedundancyOptimizer
from shardnext.file_offload import FileOffloadOptimizer

LAYOUTS = {"each": PerParameter, "flat": FlatParameter}
PLAIN = BlockSpec()


def build(name: str, output: str = "tensor", keeps: bool = False):
    """(model, optimizer) of an engine: two blocks that return their output in this form, and may keep a tensor."""
    spec = BlockSpec(output, keeps="on the way" if keeps else "")
    torch.manual_seed(0)
    return ENGINES[name](Net((spec, spec), False).double(), Program(0, (spec, spec)))


def own_samples() -> torch.Tensor:
    torch.manual_seed(1 + dist.get_rank())
    return torch.randn(4, 5, dtype=torch.float64)


def output_after(model, optimizer, step) -> float:
    for _ in range(2):
        step(model)
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        return float(model(torch.ones(1, 5, dtype=torch.float64)).sum())


def on_engines(step) -> dict[str, float]:
    return {name: output_after(*build(name), step) for name in ENGINES}


def in_one_process(step, n: int = 2) -> float:
    """What the mean over ranks of the step's gradients gives, one rank's samples after the other's."""

    def steps() -> float:
        spec, by_rank = PLAIN, []
        torch.manual_seed(0)
        net, optimizer = alone(Net((spec, spec), False).double(), Program(0, (spec, spec)))

        def all_ranks(model) -> None:
            for rank in range(n):
                by_rank.append(rank)
                dist.get_rank, own = (lambda rank=rank: rank), dist.get_rank
                step(model)
                dist.get_rank = own
            for p in model.parameters():
                p.grad /= n

        return output_after(net, optimizer, all_ranks)

    [found] = launch(steps, 1, device="cpu")
    return found


def penalty(model) -> None:
    x = own_samples().requires_grad_()
    loss = model(x).sum()
    [g] = torch.autograd.grad(loss, x, create_graph=True)
    (loss + g.pow(2).sum()).backward()


def penalty_beside_another_forward(model) -> None:
    """One backward through a graph that a backward has made, and through a forward that came after it."""
    x = own_samples().requires_grad_()
    [g] = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    (model(2 * own_samples()).sum() + g.pow(2).sum()).backward()


def saliency_first(model) -> None:
    x = own_samples().requires_grad_()
    loss = model(x).sum()
    torch.autograd.grad(loss, x, retain_graph=True)
    loss.backward()


def backward_twice(model) -> None:
    loss = model(own_samples()).pow(2).sum()
    loss.backward(retain_graph=True)
    loss.backward()


def two_forwards_two_backwards(model) -> None:
    first, second = model(own_samples()).sum(), model(2 * own_samples()).sum()
    second.backward()
    first.backward()


@pytest.mark.parametrize(
    "step", [penalty, penalty_beside_another_forward, saliency_first, backward_twice, two_forwards_two_backwards]
)
def test_another_use_of_autograd_beside_the_training_backward(step):
    expected = in_one_process(step)
    for found in launch(on_engines, 2, step, device="cpu"):
        assert found == pytest.approx(dict.fromkeys(ENGINES, expected), rel=1e-9)


class Keeps(nn.Module):
    """Keeps an intermediate result as an attribute, and may hand it out by a closure only."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(5, 5).double(), nn.Linear(5, 5).double()

    def forward(self, x, hides: bool = False):
        h = torch.tanh(self.first(x))
        y = torch.tanh(self.second(h))
        if hides:
            return y.detach(), lambda: y
        self.kept = [{"h": h}]
        return y


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Keeps(), Keeps()

    def forward(self, x, hides: bool = False):
        y = self.a(x, hides)
        return self.b(y[0].detach() if hides else y.detach()), y


def kept(layout, resharded: bool) -> list[float]:
    """Norms of all gradients, of two steps whose loss is made of a tensor that was kept and one that was returned."""
    model = Two()
    for m in (model.a, model.b, model):
        fully_shard(m, layout=layout, reshard_after_forward=resharded)
    found = []
    for _ in range(2):
        output, _ = model(own_samples())
        (model.a.kept[0]["h"].pow(2).sum() + output.pow(2).sum()).backward()
        found.append(gradient_norm(model))
        model.zero_grad()
    return found


def gradient_norm(model) -> float:
    norm = torch.zeros((), dtype=torch.float64)
    for p in model.parameters():
        if p.grad is not None:
            norm += (p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad).pow(2).sum()
    dist.all_reduce(norm)
    return float(norm)


def kept_in_ddp() -> list[float]:
    model = Two()
    ddp, found = DDP(model, find_unused_parameters=True), []
    for _ in range(2):
        output, _ = ddp(own_samples())
        (model.a.kept[0]["h"].pow(2).sum() + output.pow(2).sum()).backward()
        found.append(sum(float(p.grad.pow(2).sum()) for p in model.parameters() if p.grad is not None))
        model.zero_grad()
    return found


def test_a_loss_of_a_tensor_that_a_module_kept():
    """Also the second step's gradients are the second step's."""

    def ranks():
        return kept_in_ddp(), [kept(layout, resharded) for layout in LAYOUTS.values() for resharded in (True, False)]

    for expected, found in launch(ranks, 2, device="cpu"):
        assert expected[0] == pytest.approx(expected[1]) and expected[0] > 0
        for norms in found:
            assert norms == pytest.approx(expected)


def hidden(layout, resharded: bool, alone: bool) -> float:
    """Norm of all gradients of a loss that is made of a tensor in a closure, alone or with the output."""
    model = Two()
    for m in (model.a, model.b, model) if layout else ():
        fully_shard(m, layout=layout, reshard_after_forward=resharded)
    output, (_, closure) = model(own_samples(), True)
    (closure().pow(2).sum() + (0 if alone else output.pow(2).sum())).backward()
    if layout:
        return gradient_norm(model)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    for gradient in gradients:
        dist.all_reduce(gradient, op=dist.ReduceOp.AVG)
    return sum(float(gradient.pow(2).sum()) for gradient in gradients)


@pytest.mark.parametrize("alone", [False, True])
def test_an_output_that_nobody_can_see(alone):
    """Two.a returns a tensor without history, and another one in a closure: a stays whole until backward."""

    def ranks():
        expected = hidden(None, False, alone)
        return expected, [hidden(layout, again, alone) for layout in LAYOUTS.values() for again in (True, False)]

    for expected, found in launch(ranks, 2, device="cpu"):
        assert found == pytest.approx([expected] * 4) and expected > 0


@pytest.mark.parametrize("output", ["object", "slots", "data", "list in an object", "dict", "named"])
def test_blocks_that_return_objects(output):
    def norms():
        found = []
        for name in ENGINES:
            model, optimizer = build(name, output)
            model(own_samples()).sum().backward()
            optimizer.step()
            with torch.no_grad():
                found.append(float(model(torch.ones(1, 5, dtype=torch.float64)).sum()))
        return found

    for found in launch(norms, 2, device="cpu"):
        assert found == pytest.approx([found[0]] * len(found), rel=1e-12)


def states_after_forward(output: str) -> list[str]:
    model, _ = build("fsdp", output)
    model(own_samples())
    return [block._fsdp_unit.state.name for block in model.blocks]


@pytest.mark.parametrize("output", ["object", "slots", "list in an object", "tensor"])
def test_blocks_that_return_objects_are_freed_after_forward(output):
    assert launch(states_after_forward, 2, output, device="cpu") == [["SHARDED", "SHARDED"]] * 2


def evaluated_first(name: str) -> float:
    model, optimizer = build(name)
    with torch.inference_mode():
        model(torch.ones(2, 5, dtype=torch.float64))
    return output_after(model, optimizer, lambda model: model(own_samples()).sum().backward())


def test_training_after_an_evaluation_in_inference_mode():
    """What was allocated there would be an inference tensor, which autograd can't save."""
    expected = in_one_process(lambda model: model(own_samples()).sum().backward())
    for found in launch(lambda: {name: evaluated_first(name) for name in ENGINES}, 2, device="cpu"):
        assert found == pytest.approx(dict.fromkeys(ENGINES, expected), rel=1e-9)


# Lifetimes


def stays(name: str, keeps: str) -> tuple[list[bool], int]:
    """Whether model and optimizer are still there after they were deleted, and the bytes that stayed."""

    def once() -> list:
        model, optimizer = build(name, keeps="inside" in keeps)
        output_after(model, optimizer, lambda model: model(own_samples()).sum().backward())
        output = model(own_samples())
        if "output" in keeps:
            getattr(model, "module", model).last = output
        return [weakref.ref(model), weakref.ref(optimizer)]

    references = once()
    held = [live_bytes()]
    for _ in range(3):
        once()
        held.append(live_bytes())
    return [reference() is not None for reference in references], max(0, min(held[1:]) - held[0])


NIGHTS = [pytest.param(keeps, marks=pytest.mark.night) for keeps in ("nothing", "something inside", "its output")]


@pytest.mark.parametrize("keeps", ["something inside and its output", *NIGHTS])
def test_a_deleted_engine_is_freed_to_the_byte(keeps):
    """Also if a module keeps a tensor of the last forward, whose graph has hooks of the engine."""
    for found in launch(lambda: {name: stays(name, keeps) for name in ENGINES}, 2, device="cpu"):
        assert found == dict.fromkeys(ENGINES, ([False, False], 0))


def copies() -> list[str]:
    said = []
    for name in ENGINES:
        for trained in (False, True):
            model, optimizer = build(name)
            if trained:
                model(own_samples()).sum().backward()
            for each in (model, optimizer):
                for attempt in (copy.copy, copy.deepcopy, lambda each: each.__reduce_ex__(4)):
                    try:
                        attempt(each)
                    except (RuntimeError, TypeError) as error:
                        said.append(str(error))
    file = FileOffloadOptimizer(nn.Linear(2, 2).parameters(), torch.optim.AdamW, "/tmp")
    with pytest.raises(TypeError, match="save its state_dict"):
        copy.deepcopy(file)
    return said


def test_engines_refuse_copies_by_name():
    """A copy would have no hooks, or share the original's buffers."""
    for said in launch(copies, 2, device="cpu"):
        known = (
            "can't be copied",
            "Attempted to call copy_() on an invalid python storage",
        )  # the second: of a DTensor
        assert [words for words in said if not any(part in words for part in known)] == []
        assert len(said) >= 6 * len(ENGINES)


def sparse() -> list[str]:
    """What each engine says to the gradient of an embedding with sparse=True."""
    engines = {
        "ddp": lambda m: (DDP(m), None),
        "zero 1": lambda m: (m, ZeroRedundancyOptimizer(m.parameters(), torch.optim.SGD, lr=0.1)),
        "averaged": lambda m: (
            m,
            ZeroRedundancyOptimizer(m.parameters(), torch.optim.SGD, gradients_averaged=True, lr=0.1),
        ),
        "each": lambda m: (fully_shard(m), None),
        "flat": lambda m: (fully_shard(m, layout=FlatParameter), None),
        "file": lambda m: (m, FileOffloadOptimizer(m.parameters(), torch.optim.AdamW, "/tmp")),
        "masters": lambda m: (m, MasterWeights(m.parameters(), torch.optim.SGD, lr=0.1)),
        "scaler": lambda m: (m, Scaled(m)),
    }
    said = []
    for make in engines.values():
        model, optimizer = make(nn.Embedding(8, 4, sparse=True))
        with pytest.raises(RuntimeError) as error:
            model(torch.tensor([1, 2])).sum().backward()
            optimizer.step()
        said.append(str(error.value))
    model = nn.Embedding(8, 4, sparse=True)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    with pytest.raises(RuntimeError) as error:
        stage_2 = ShardedDataParallel(model, optimizer)
        stage_2(torch.tensor([1, 2])).sum().backward()
    return [*said, str(error.value)]


class Scaled:
    def __init__(self, model: nn.Module) -> None:
        self.optimizer, self.scaler = torch.optim.SGD(model.parameters(), lr=0.1), GradScaler()

    def step(self) -> None:
        self.scaler.step(self.optimizer)


def test_sparse_gradients_are_refused_by_name():
    [said] = launch(sparse, 1, device="cpu")
    assert [words for words in said if "is sparse: use layers with sparse=False" not in words] == []


# Marks, hooks, extensions


def marked(name: str) -> list[bool]:
    torch.manual_seed(0)
    net = Net((PLAIN,), False).double()
    for p in net.parameters():
        p.no_decay = p.ndim == 1 if name != "flat" else True
    model, _ = ENGINES[name](net, Program(0, (PLAIN,)))
    return [getattr(p, "no_decay", None) == (p.ndim == 1 or name == "flat") for p in model.parameters()]


def test_marks_on_parameters_stay():
    for found in launch(lambda: {name: all(marked(name)) for name in ENGINES}, 2, device="cpu"):
        assert found == dict.fromkeys(ENGINES, True)


def test_marks_are_there_inside_of_forward():
    class Asks(nn.Linear):
        def forward(self, x):
            assert self.weight.no_decay
            return super().forward(x)

    def ranks():
        for layout in LAYOUTS.values():
            model = Asks(4, 4)
            for p in model.parameters():
                p.no_decay = True
            fully_shard(model, layout=layout)(torch.ones(1, 4)).sum().backward()

    launch(ranks, 2, device="cpu")


class Extended(torch.Tensor):
    def fsdp_pre_all_gather(self, mesh):
        raise AssertionError("never called")


def refusals() -> list[str]:
    said = []

    def refused(make) -> None:
        with pytest.raises((ValueError, RuntimeError)) as error:
            make()
        said.append(str(error.value))

    def with_hook():
        model = nn.Linear(4, 4)
        model.weight.register_hook(lambda g: 2 * g)
        fully_shard(model)

    def extended():
        model = nn.Linear(4, 4)
        model.weight = nn.Parameter(model.weight.detach().as_subclass(Extended))
        fully_shard(model)

    def marks_differ():
        model = nn.Linear(4, 4)
        model.bias.no_decay = True
        fully_shard(model, layout=FlatParameter)

    def replaced_before_forward(layout):
        model = fully_shard(nn.Linear(4, 4), layout=layout)
        model.weight = nn.Parameter(torch.ones(4, 4))
        model(torch.ones(1, 4))

    def ignores():
        model = nn.Linear(4, 4)
        model._ddp_params_and_buffers_to_ignore = ["bias"]
        DDP(model)

    def thawed():
        model = nn.Linear(4, 4)
        model.bias.requires_grad_(False)
        ddp = DDP(model, find_unused_parameters=True)
        model.bias.requires_grad_(True)
        ddp(torch.ones(1, 4))

    for make in (with_hook, extended, marks_differ, ignores, thawed):
        refused(make)
    for layout in LAYOUTS.values():
        refused(lambda layout=layout: replaced_before_forward(layout))
    return said


def test_what_would_be_ignored_in_silence_is_refused():
    words = ["has hooks", "fsdp_pre_all_gather", "in one flat parameter", "can't leave out bias", "was frozen when DDP"]
    words += ["weight was replaced"] * 2
    for said in launch(refusals, 2, device="cpu"):
        assert [part for part, told in zip(words, said, strict=True) if part not in told] == [], said


def test_a_unit_of_siblings_and_their_parent_has_names():
    """The first module of the list is not the root; and the root's forward does not end with the first module's."""

    def ranks():
        torch.manual_seed(0)
        model = Net((PLAIN, PLAIN), True).double()
        fully_shard([model.blocks[0], model.blocks[1], model])
        plain = Net((PLAIN, PLAIN), True).double()
        plain.load_state_dict(full_state_dict(model) or plain.state_dict())
        for trains in (False, True):
            with torch.set_grad_enabled(trains):
                output = model(own_samples())
            assert dist.get_rank() or torch.equal(output, plain(own_samples()))
        output.sum().backward()
        return sorted(p.name for p in model._fsdp_unit.layouts[0].params)[:2]

    assert launch(ranks, 2, device="cpu") == [["blocks.0.gain", "blocks.0.up.bias"]] * 2


# Recomputation, compiled models


@pytest.mark.parametrize("twice", [False, True])
def test_a_recomputed_operation_may_write_after_it_saved(twice):
    """rrelu saves its slopes before it draws them: the second call must not end in between."""

    def function(x):
        y = nn.functional.rrelu(x * 2, 0.1, 0.9, training=True)
        return nn.functional.rrelu(y, 0.1, 0.9, training=True) if twice else y

    gradients = []
    for run in (lambda x: function(x), lambda x: checkpoint(function, x, use_reentrant=False)):
        x = torch.linspace(-2, 1, 7, dtype=torch.float64).requires_grad_()
        torch.manual_seed(3)
        run(x).sum().backward()
        gradients.append(x.grad.tolist())
    assert gradients[0] == gradients[1]


def compiled(engine: str, how: str) -> float:
    torch.manual_seed(0)
    net = Net((PLAIN, PLAIN), False).double()
    if how == "blocks":
        net.blocks = nn.ModuleList(torch.compile(block, backend="aot_eager") for block in net.blocks)
    model, optimizer = ENGINES[engine](net, Program(0, (PLAIN, PLAIN)))
    if how == "outside":
        model = torch.compile(model, backend="aot_eager")
    if how == "in place":
        model.compile(backend="aot_eager")
    return output_after(model, optimizer, lambda model: model(own_samples()).sum().backward())


@pytest.mark.parametrize("how", ["blocks", "outside", "in place"])
def test_compiled_models(how):
    expected = in_one_process(lambda model: model(own_samples()).sum().backward())

    def ranks():
        return {name: compiled(name, how) for name in ("ddp", "zero 2", "fsdp", "flat")}

    for found in launch(ranks, 2, device="cpu"):
        assert found == pytest.approx(dict.fromkeys(found, expected), rel=1e-9)


class ReturnsNone(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return None


class HalfUndefined(nn.Module):
    """Its first layer's gradients are undefined, as torch calls it: autograd calls hooks, and `p.grad` is None."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(5, 5).double(), nn.Linear(5, 5).double()

    def forward(self, x):
        return self.second(x) + ReturnsNone.apply(self.first(x))


def undefined_gradients() -> dict[str, float]:
    found = {}

    def train(name: str, model: nn.Module, optimizer) -> None:
        output_after(model, optimizer, lambda model: model(own_samples()).pow(2).sum().backward())
        found[name] = float(model(torch.ones(1, 5, dtype=torch.float64)).sum())

    def sgd(model: nn.Module):
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    train("torch", *sgd(DistributedDataParallel(HalfUndefined())))
    for options in ({}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}):
        train(f"DDP {options}", *sgd(DDP(HalfUndefined(), **options)))
    for layout in LAYOUTS.values():
        train(f"fully_shard {layout}", *sgd(fully_shard(HalfUndefined(), layout=layout)))
    module = HalfUndefined()
    optimizer = ZeroRedundancyOptimizer(module.parameters(), torch.optim.SGD, lr=0.1, gradients_averaged=False)
    train("ZeRO-2", ShardedDataParallel(module, optimizer), optimizer)
    module = HalfUndefined()
    train("host", DDP(module), CPUOffloadOptimizer(module.parameters(), torch.optim.SGD, lr=0.1))
    return found


def test_undefined_gradients_count_as_none_or_as_zero():
    for found in launch(undefined_gradients, 2, device="cpu"):
        assert found == pytest.approx(dict.fromkeys(found, found["torch"]), rel=1e-12) and len(found) == 8


class Hides(nn.Module):
    """Returns its output in a closure, where no engine can see it."""

    def __init__(self, keeps: bool, frozen: bool) -> None:
        super().__init__()
        self.layer, self.keeps = nn.Linear(5, 5), keeps
        self.requires_grad_(not frozen)

    def forward(self, x):
        h = torch.tanh(self.layer(x() if callable(x) and not torch.is_tensor(x) else x))
        y = torch.tanh(self.layer(h))
        self.kept = h.pow(2).mean() if self.keeps else 0.0
        return lambda: y


class Hidden(nn.Module):
    def __init__(self, keeps: bool, frozen: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(5, 5), nn.Linear(5, 5)
        self.blocks = nn.ModuleList(Hides(keeps, frozen) for _ in range(2))
        self.double()

    def forward(self, x):
        return self.last(self.blocks[1](self.blocks[0](self.first(x)))())


def with_hidden_outputs(wrap, keeps: bool, frozen: bool) -> float:
    model = Hidden(keeps, frozen)
    if wrap:
        for unit in (model.first, *model.blocks, model):
            wrap(unit)

    def step(model) -> None:
        loss = model(torch.ones(4, 5, dtype=torch.float64)).pow(2).mean()
        (loss + model.blocks[0].kept).backward()

    return output_after(model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1), step)


@pytest.mark.parametrize(("keeps", "frozen"), [(False, False), (True, False), (False, True)])
def test_blocks_that_hide_their_output_keep_a_tensor_or_are_frozen(keeps, frozen):
    """They stay whole until backward: a forward that made a graph may be part of it."""

    def ranks() -> list[float]:
        layouts = [partial(fully_shard, layout=layout) for layout in LAYOUTS.values()]
        return [with_hidden_outputs(wrap, keeps, frozen) for wrap in (None, *layouts)]

    for alone_, *sharded in launch(ranks, 2, device="cpu"):
        assert sharded == pytest.approx([alone_] * 2, rel=1e-12)


# What a hostile reading of the above found


class Called(dict):
    def __call__(self):
        raise AssertionError("never")


class ReturnsParameter(Net):
    def forward(self, x):
        return Called(h=super().forward(x), weight=self.head.weight, parameters=[list(self.parameters())])


def returning_parameters(engine: str) -> list[float]:
    """Three micro-batches, and two backwards through the last forward, of a model that also returns parameters."""
    torch.manual_seed(0)
    net = ReturnsParameter((PLAIN, PLAIN), False).double()
    model, optimizer = ENGINES[engine](net, Program(0, (PLAIN, PLAIN)))

    def loss(factor: int) -> torch.Tensor:
        return model(factor * own_samples())["h"].pow(2).sum()

    loss(1).backward()
    optimizer.step()
    optimizer.zero_grad()
    no_sync = getattr(model, "no_sync", None)
    if no_sync:
        with no_sync():
            loss(2).backward()
    else:
        loss(2).backward()
    last = loss(3)
    last.backward(retain_graph=True)
    last.backward()
    optimizer.step()
    with torch.no_grad():
        return float(model(torch.ones(1, 5, dtype=torch.float64))["h"].sum())


def test_a_forward_may_return_parameters():
    def ranks():
        return [returning_parameters(name) for name in ("zero 1", "ddp", "ddp, unused", "zero 2")]

    for found in launch(ranks, 2, device="cpu"):
        assert found == pytest.approx([found[0]] * 4, rel=1e-12)


def broken_off_then_local() -> float:
    """ZeRO-2: a backward that an exception ends, a micro-batch under no_sync, and one that is sent."""
    model, optimizer = build("zero 2")

    def fail(_):
        raise MemoryError

    x = own_samples().requires_grad_()
    x.register_hook(fail)
    with pytest.raises(MemoryError):
        model(x).sum().backward()
    model.zero_grad()
    return two_batches(model, optimizer)


def two_batches(model, optimizer) -> float:
    """A micro-batch under no_sync, one that is sent, and a step: what the model then makes of ones."""
    with model.no_sync():
        model(own_samples()).sum().backward()
    model(2 * own_samples()).sum().backward()
    optimizer.step()
    with torch.no_grad():
        return float(model(torch.ones(1, 5, dtype=torch.float64)).sum())


def test_a_micro_batch_after_a_backward_that_was_broken_off():
    for found, expected in launch(lambda: (broken_off_then_local(), two_batches(*build("ddp"))), 2, device="cpu"):
        assert found == pytest.approx(expected, rel=1e-12)


def evaluated_between(hides: bool) -> float:
    """An evaluation, and another optimizer's step, between a forward and a backward that need the whole parameters."""
    model = Two()
    for m in (model.a, model.b, model):
        fully_shard(m)
    x = own_samples().requires_grad_()
    output, (_, closure) = model(x, True)
    loss = closure().pow(2).sum() if hides else output.pow(2).sum()
    if not hides:
        output, y = model(x)
        [g] = torch.autograd.grad((output.sum() + y.sum()), x, create_graph=True)
        loss = g.pow(2).sum()
    with torch.no_grad():
        model(own_samples())
    other = nn.Linear(1, 1)
    other(torch.ones(1, 1)).backward()
    torch.optim.SGD(other.parameters(), lr=0.1).step()
    loss.backward()
    return gradient_norm(model)


@pytest.mark.parametrize("hides", [True, False])
def test_an_evaluation_between_a_forward_and_its_backward(hides):
    for found in launch(evaluated_between, 2, hides, device="cpu"):
        assert found > 0


def test_a_second_call_may_save_more_than_the_first():
    """Also where the last operation saves tensors of its own, as a LayerNorm does."""
    calls = []

    def function(x):
        y = nn.functional.layer_norm(x * 2, (4,))
        calls.append(None)
        return y + y.pow(2).sum() if len(calls) % 2 == 0 else y

    x = torch.randn(3, 4, requires_grad=True)
    checkpoint(function, x, use_reentrant=False).sum().backward()
    assert x.grad is not None


def test_a_critic_that_is_frozen_for_a_step():
    def ranks():
        model, _ = build("ddp")
        model.requires_grad_(False)
        x = own_samples().requires_grad_()
        model(x).sum().backward()
        model.requires_grad_(True)
        model(own_samples()).sum().backward()
        return float(x.grad.norm()) > 0

    assert launch(ranks, 2, device="cpu") == [True, True]
