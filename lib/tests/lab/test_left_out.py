"""lib/README.md lists what PyTorch's engines have and ours lack, and quotes the errors that a user meets.

Both tables have four columns: PyTorch's name (or ours, in the second), what is left out, what happens, what to use
instead. Names stand in backticks, an error's words in quotes. An empty first cell repeats the one above it.
"""

import copy
import gc
import inspect
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
import torch.distributed.algorithms._checkpoint.checkpoint_wrapper as torchs_wrapper
import torch.distributed.checkpoint as dcp
import torch.distributed.checkpoint.state_dict as dcp_state
import torch.distributed.fsdp
import torch.utils.checkpoint
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.optim import ZeroRedundancyOptimizer as TorchsZero
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from two_layers import backward, offloaded_sgd, sharded_sgd, two_layers

from shardlab import fsdp, grad_norm, launch, point_to_point_collectives, precision, recompute, state
from shardlab.cpu_offload_optimizer import CPUOffloadOptimizer
from shardlab.ddp import DDP
from shardlab.zero import ShardedDataParallel, ZeroRedundancyOptimizer

README = Path(__file__).parents[2] / "README.md"
SGD = torch.optim.SGD

# What is in the README


class Row(NamedTuple):
    apis: list[str]
    names: list[str]
    status: str
    words: str | None


def tables(text: str) -> list[list[Row]]:
    """Return the rows of each table in the section."""
    section = re.search(r"^## What ours leaves out\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)[1]
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE):
        rows: list[Row] = []
        for line in table.splitlines()[2:]:
            apis, names, here, instead = (cell.strip() for cell in line.strip("|").split("|"))
            assert instead, f"no advice: {line}"
            words = re.search(r'"(.*)"', here)
            names_of = re.compile(r"`([^`]+)`").findall
            row = Row(names_of(apis) or [apis], names_of(names), re.split(r"[:, ]", here)[0], words and words[1])
            rows.append(row._replace(apis=rows[-1].apis) if not apis else row)
        found.append(rows)
    return found


BY_NAME, OTHERS = tables(README.read_text())

# Which of ours stands for which of PyTorch's


def functions_of(module: ModuleType) -> list[str]:
    return [name for name, f in vars(module).items() if inspect.isfunction(f) and not name.startswith("_")]


def fsdp2s(module: ModuleType) -> list[str]:
    """Return the module's names that belong to FSDP2: it has FSDP1's, too."""
    return [name for name in module.__all__ if hasattr(module._fully_shard, name)]


class Policy(NamedTuple):
    """A class of PyTorch's that our code takes: ours has the fields that the code reads."""

    module: ModuleType


COLLECTIVES = ("all_reduce", "broadcast", "reduce_scatter_tensor", "all_gather_into_tensor")
PAIRS: dict[str, tuple[Any, Any]] = {
    "DistributedDataParallel": (DistributedDataParallel, DDP),
    "ZeroRedundancyOptimizer": (TorchsZero, ZeroRedundancyOptimizer),
    "fully_shard": (torch.distributed.fsdp.fully_shard, fsdp.fully_shard),
    "FSDPModule": (torch.distributed.fsdp.FSDPModule, fsdp.FSDPModule),
    "MixedPrecisionPolicy": (torch.distributed.fsdp.MixedPrecisionPolicy, Policy(fsdp)),
    "OffloadPolicy": (torch.distributed.fsdp.OffloadPolicy, Policy(fsdp)),
    "CPUOffloadPolicy": (torch.distributed.fsdp.CPUOffloadPolicy, Policy(fsdp)),
    "UnshardHandle": (torch.distributed.fsdp.UnshardHandle, fsdp.api.UnshardHandle),
    "torch.distributed.fsdp": (fsdp2s(torch.distributed.fsdp), fsdp),
    "checkpoint": (torch.utils.checkpoint.checkpoint, recompute.checkpoint),
    "create_selective_checkpoint_contexts": (
        torch.utils.checkpoint.create_selective_checkpoint_contexts,
        recompute.create_selective_checkpoint_contexts,
    ),
    "checkpoint_wrapper": (torchs_wrapper.checkpoint_wrapper, recompute.checkpoint_wrapper),
    "apply_activation_checkpointing": (
        torchs_wrapper.apply_activation_checkpointing,
        recompute.apply_activation_checkpointing,
    ),
    "torch.utils.checkpoint": (torch.utils.checkpoint.__all__, recompute),
    "GradScaler": (torch.amp.GradScaler, precision.GradScaler),
    "clip_grad_norm_": (torch.nn.utils.clip_grad_norm_, grad_norm.clip_grad_norm_),
    "torch.distributed.checkpoint": (functions_of(dcp), state),
    "save": (dcp.save, state.save),
    "load": (dcp.load, state.load),
    "get_model_state_dict": (dcp_state.get_model_state_dict, state.full_state_dict),
    "get_optimizer_state_dict": (dcp_state.get_optimizer_state_dict, state.full_optimizer_state_dict),
    "set_model_state_dict": (dcp_state.set_model_state_dict, state.load_full_state_dict),
    "set_optimizer_state_dict": (dcp_state.set_optimizer_state_dict, state.load_full_optimizer_state_dict),
    "StateDictOptions": (dcp_state.StateDictOptions, None),
}
PAIRS |= {name: (getattr(dist, name), getattr(point_to_point_collectives, name)) for name in COLLECTIVES}
OF_OTHER_FORM = {"save", "load", "set_model_state_dict", "set_optimizer_state_dict", "get_optimizer_state_dict"}


def names_in(api: Any) -> set[str]:
    """Return a function's arguments; for a class its constructor's, its public members, and theirs: `step(closure)`."""
    if api is None or isinstance(api, list):
        return set(api or ())
    if isinstance(api, ModuleType):
        return {name for name in vars(api) if not name.startswith("_")}
    if isinstance(api, Policy):
        folder = Path(api.module.__file__).parent
        return set(re.findall(r"policy\.(\w+)", "".join(f.read_text() for f in folder.glob("*.py"))))
    if not inspect.isclass(api):
        return arguments(api)
    names = arguments(api.__init__)
    for name in dir(api):
        member = inspect.getattr_static(api, name)
        if not name.startswith("_"):
            names.add(name)
            names |= {f"{name}({p})" for p in arguments(member)} if inspect.isfunction(member) else set()
    return names


def arguments(function: Callable) -> set[str]:
    """Return the names of arguments, and `**kwargs` if it takes any others, under whatever name."""
    parameters = inspect.signature(function).parameters.values()
    names = {p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    return names - {"self"} | {"**kwargs" for p in parameters if p.kind is p.VAR_KEYWORD}


def left_out(api: str) -> set[str]:
    """Return what this PyTorch has and ours lacks. A method that ours lacks stands for its arguments."""
    torchs, ours = (names_in(each) for each in PAIRS[api])
    lacking = torchs - ours - {"**kwargs"}
    return {name for name in lacking if name.partition("(")[0] == name or name.partition("(")[0] in ours}


def listed(api: str) -> dict[str, Row]:
    return {name: row for row in BY_NAME if api in row.apis for name in row.names}


def unlisted(api: str) -> set[str]:
    """Return what is left out and not listed. A method that is listed stands for its arguments."""
    return {name for name in left_out(api) if not {name, name.partition("(")[0]} & listed(api).keys()}


@pytest.mark.parametrize("api", PAIRS)
def test_the_readme_lists_what_ours_lacks(api):
    assert unlisted(api) == set()


def test_what_pytorch_adds_is_found(monkeypatch):
    class Newer(DistributedDataParallel):
        def __init__(self, module, fresh=None):
            pass

        def renew(self):
            pass

        def no_sync(self, quietly=False):
            pass

    class NewerPolicy(torch.distributed.fsdp.MixedPrecisionPolicy):
        fresh: bool = True

    added = {
        "DistributedDataParallel": ((Newer, DDP), {"fresh", "renew", "no_sync(quietly)"}),
        "MixedPrecisionPolicy": ((NewerPolicy, Policy(fsdp)), {"fresh"}),
        "torch.distributed.fsdp": (([*fsdp2s(torch.distributed.fsdp), "fresh"], fsdp), {"fresh"}),
        "all_reduce": ((lambda tensor, fresh=None: None, point_to_point_collectives.all_reduce), {"fresh"}),
    }
    for api, (pair, expected) in added.items():
        monkeypatch.setitem(PAIRS, api, pair)
        assert unlisted(api) == expected


PYTHONS_WORDS = ("unexpected keyword argument", "has no attribute", "cannot import name")


@pytest.mark.parametrize("api", PAIRS)
def test_the_readme_lists_nothing_that_ours_has(api):
    """An argument that ours takes may be listed if ours ignores it, or refuses it in words of its own."""
    has = names_in(PAIRS[api][1])
    rows = {name: row for name, row in listed(api).items() if len(row.apis) == 1}
    assert [n for n, row in rows.items() if n in has and row.status != "ignored" and row.words in PYTHONS_WORDS] == []


def test_a_row_of_several_apis_is_needed_by_one_of_them():
    rows = [row for row in BY_NAME if len(row.apis) > 1]
    assert [name for row in rows for name in row.names if not any(name in left_out(api) for api in row.apis)] == []


def test_the_readme_knows_each_api_and_says_what_happens():
    apis = {api for row in BY_NAME for api in row.apis}
    assert [api for api in apis if not listed(api).keys() & names_in(PAIRS[api][0])] == []
    assert all(row.names and row.status in ("refused", "ignored") for row in BY_NAME)
    assert all(row.status in ("refused", "ignored", "not") for row in OTHERS)
    assert all(row.words for row in BY_NAME if row.status == "refused")


def positional(function: Callable) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def shared_functions(api: str) -> list[tuple[Callable, Callable]]:
    """PyTorch's function and ours; of classes, the constructors and the methods that both have."""
    torchs, ours = PAIRS[api]
    if not inspect.isclass(torchs):
        return [(torchs, ours)] if inspect.isfunction(torchs) else []
    names = {"__init__", *vars(torchs)} & vars(ours).keys() if inspect.isclass(ours) else ()
    found = [(getattr(torchs, name), getattr(ours, name)) for name in names if name == "__init__" or name[0] != "_"]
    return [pair for pair in found if all(map(inspect.isfunction, pair))]


@pytest.mark.parametrize("api", sorted(PAIRS.keys() - OF_OTHER_FORM))
def test_an_argument_that_is_passed_by_position_is_the_same_one(api):
    """Or ours takes it by name only, so that a call by position is refused."""
    for pair in shared_functions(api):
        torchs, ours = map(positional, pair)
        assert [(a, b) for a, b in zip(torchs, ours, strict=False) if a != b] == []


MEANS_THE_SAME = {
    "broadcast_buffers": True,  # PyTorch's None, since 2.13
    "parameters_as_bucket_view": True,  # ignored
    "device": None,  # of a GradScaler: that of the parameters
    "use_reentrant": inspect.Parameter.empty,  # refused
}


@pytest.mark.parametrize("api", sorted(PAIRS.keys() - OF_OTHER_FORM))
def test_a_default_is_pytorchs_or_means_the_same(api):
    for pair in shared_functions(api):
        torchs, ours = ({n: p.default for n, p in inspect.signature(f).parameters.items()} for f in pair)
        other = {n: ours[n] for n in torchs.keys() & ours.keys() if torchs[n] != ours[n] and not callable(torchs[n])}
        assert other.items() <= MEANS_THE_SAME.items()


# Each quoted error is raised


def engine(api: str) -> Any:
    made = {
        "DistributedDataParallel": lambda: DDP(two_layers()),
        "ZeroRedundancyOptimizer": lambda: sharded_sgd(two_layers()),
        "FSDPModule": lambda: fsdp.fully_shard(two_layers()),
        "GradScaler": precision.GradScaler,
    }
    return made[api]()


def call(api: str, folder: Path, **argument) -> None:
    """Call ours with one argument that it lacks, and with all others if it takes unknown names."""
    x = torch.ones(4)
    calls = {
        "ZeroRedundancyOptimizer": lambda: ZeroRedundancyOptimizer(two_layers().parameters(), SGD, lr=1, **argument),
        "checkpoint": lambda: recompute.checkpoint(two_layers(), x, use_reentrant=False, **argument),
        "checkpoint_wrapper": lambda: recompute.checkpoint_wrapper(two_layers(), **argument)(x),
        "save": lambda: state.save(folder, 1, two_layers(), **argument),
        "load": lambda: state.load(folder, two_layers(), **argument),
        "StateDictOptions": lambda: state.full_state_dict(options=argument),
    }
    calls.get(api, lambda: PAIRS[api][1](**argument))()


def meet(api: str, name: str, words: str, folder: Path) -> None:
    """Do what a user does who expects that ours has it."""
    method, parenthesis, _ = name.partition("(")
    if words == "cannot import name":
        exec(f"from {PAIRS[api][1].__name__} import {name}")
    elif words == "has no attribute":
        getattr(engine(api), name)
    elif parenthesis:
        getattr(engine(api), method)(**{"anything": 1})
    else:
        call(api, folder, **{name: name != "early_stop"})


def said_to(attempt: Callable, *args) -> str:
    try:
        attempt(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


class Extra(nn.Linear):
    def get_extra_state(self):
        return 1


class Generates(nn.Sequential):
    def generate(self, x):
        return self[0](x)


class Remembers(SGD):
    """Its states are of another kind than its parameters."""

    def __init__(self, params, value) -> None:
        super().__init__(params, lr=1)
        for p in self.param_groups[0]["params"]:
            self.state[p]["past"] = value


def sparse(wrapper: Callable[[nn.Module], Any]) -> None:
    model = nn.Embedding(4, 2, sparse=True)
    engine = wrapper(model)
    forward = engine if isinstance(engine, nn.Module) else model
    forward(torch.tensor([1])).sum().backward()
    engine.step()


def with_attribute(name: str) -> nn.Module:
    layer = nn.Linear(4, 4)
    setattr(layer.weight, name, True)
    return layer


def hooked() -> nn.Module:
    layer = nn.Linear(4, 4)
    layer.weight.register_hook(print)
    return layer


def tensor_parallel() -> nn.Module:
    layer, mesh = nn.Linear(4, 4), init_device_mesh("cpu", (2,))
    layer.weight = nn.Parameter(DTensor.from_local(layer.weight.detach(), mesh))
    return layer


def ignoring() -> nn.Module:
    model = two_layers()
    model._ddp_params_and_buffers_to_ignore = ["0.weight"]
    return model


def a_layer_without_gradient() -> None:
    model = two_layers()
    optimizer = sharded_sgd(model)
    model[0](torch.ones(4)).sum().backward()
    optimizer.step()


def states_of_another_place() -> None:
    optimizer = sharded_sgd(two_layers())
    optimizer.load_state_dict(optimizer.state_dict() | {"rank_and_world_size": (5, 8)})


def saved_to_the_cpu() -> None:
    def policy(*_, **__):
        return torch.utils.checkpoint.CheckpointPolicy.MUST_CPU_OFFLOAD

    contexts = partial(recompute.create_selective_checkpoint_contexts, policy)
    recompute.checkpoint(two_layers(), torch.ones(4), use_reentrant=False, context_fn=contexts)


def sharded_and_remembering() -> None:
    model = fsdp.fully_shard(two_layers())
    state.sharded_state_dict(model, Remembers(model.parameters(), torch.ones(3)))


def remembering() -> None:
    model = two_layers()
    state.sharded_state_dict(model, Remembers(model.parameters(), [1]))


def flat(module: nn.Module) -> nn.Module:
    return fsdp.fully_shard(module, layout=fsdp.FlatParameter)


def stage_2(module: nn.Module) -> nn.Module:
    return ShardedDataParallel(module, sharded_sgd(module))


def reentrant_twice() -> None:
    model = DDP(two_layers(), bucket_cap_mb=1e-6)
    x = torch.ones(2, 4, requires_grad=True)
    model.module.forward = lambda x: (
        sum(recompute.checkpoint(model.module[0], factor * x, use_reentrant=True) for factor in (1, 2))
        + model.module[1](x)
    )
    model(x).sum().backward()


def thawed() -> None:
    model = two_layers()
    model[0].bias.requires_grad_(False)
    ddp = DDP(model)
    model[0].bias.requires_grad_(True)
    ddp(torch.ones(2, 4))


def replaced() -> None:
    model = fsdp.fully_shard(two_layers())
    model[0].weight = nn.Parameter(torch.ones(4, 4))
    model(torch.ones(2, 4))


def kept_from_before(wrap: Callable[[nn.Module], nn.Module]) -> None:
    """Multiply by a weight that a closure has held since before sharding."""
    layer = nn.Linear(4, 4)
    weight = layer.weight
    layer.forward = lambda x: x @ weight
    wrap(layer)(torch.ones(2, 4)).sum().backward()


def added_to_ddp() -> None:
    ddp = DDP(two_layers(), find_unused_parameters=True)
    ddp.module.append(nn.Linear(4, 4))
    ddp(torch.ones(2, 4))


def graph_of_gradients(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model = wrap(two_layers())
    model(torch.ones(2, 4)).sum().backward(create_graph=True)


def reentrant_with_keywords() -> None:
    layer = nn.Linear(4, 4)
    recompute.checkpoint_wrapper(layer, torchs_wrapper.CheckpointImpl.REENTRANT)(input=torch.ones(2, 4))


def with_a_sparse_parameter() -> nn.Module:
    model = two_layers()
    model.sparse = nn.Parameter(torch.eye(4).to_sparse())
    return model


def stepped_in_backward(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model = wrap(two_layers())
    _apply_optimizer_in_backward(SGD, list(model.parameters()), {"lr": 0.1})
    model(torch.ones(2, 4)).sum().backward()


def renormalising() -> nn.Module:
    return nn.Embedding(4, 4, max_norm=0.5)


def with_optimizer(make: Callable[[nn.Module], Any]) -> tuple[nn.Module, Any]:
    model = two_layers()
    return model, make(model)


def scaled_by_torch(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(2, 4)).sum()).backward()
    scaler.step(optimizer)


def hooked_later(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model = wrap(two_layers())
    for p in model.parameters():
        p.register_hook(lambda g: 2 * g)
    model(torch.ones(2, 4)).sum().backward()


def added(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model = wrap(two_layers())
    model[0].lora = nn.Parameter(torch.ones(4))
    model(torch.ones(2, 4))


def written(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model = wrap(renormalising())
    model(torch.tensor([1])).sum().backward()


class TwoBranches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x: torch.Tensor, which: int) -> torch.Tensor:
        return self.branches[which](x)


def another_branch_on_each_rank() -> None:
    model = fsdp.fully_shard(TwoBranches())
    model(torch.ones(2, 4), dist.get_rank()).sum().backward()


MATRIX = (torch.optim.Adafactor, torch.optim.Muon, torch.optim.LBFGS)


def stepped(wrap: Callable[[nn.Module], nn.Module], make: Callable) -> None:
    """A step with an optimizer that does not treat each element by itself; Muon takes matrices only."""
    model = wrap(nn.Linear(4, 4, bias=False))
    make(model.parameters()).step(lambda: backward(model))


def deleted() -> None:
    output = fsdp.fully_shard(two_layers())(torch.ones(2, 4))
    gc.collect()
    output.sum().backward()


def cases(folder: Path) -> dict[str, list[Callable[[], Any]]]:
    """Return what users do to meet each error of the second table. `folder` has a checkpoint of two layers."""
    return {
        "is sparse: use layers with sparse=False": [
            lambda: sparse(DDP),
            lambda: sparse(stage_2),
            lambda: sparse(sharded_sgd),
            lambda: sparse(offloaded_sgd),
            lambda: sparse(fsdp.fully_shard),
            lambda: sparse(flat),
            lambda: DDP(with_a_sparse_parameter()),
            lambda: sharded_sgd(with_a_sparse_parameter()),
            lambda: fsdp.fully_shard(with_a_sparse_parameter()),
            lambda: flat(with_a_sparse_parameter()),
        ],
        "does not wait for the mean over ranks": [
            lambda: stepped_in_backward(DDP),
            lambda: stepped_in_backward(stage_2),
            lambda: stepped_in_backward(fsdp.fully_shard),
            lambda: stepped_in_backward(flat),
        ],
        "step() without gradients": [lambda: sharded_sgd(two_layers()).step()],
        "can't be copied or pickled": [
            lambda: copy.deepcopy(DDP(two_layers())),
            lambda: copy.deepcopy(stage_2(two_layers())),
            lambda: copy.deepcopy(sharded_sgd(two_layers())),
            lambda: copy.deepcopy(offloaded_sgd(two_layers())),
        ],
        "a sharded module can't be copied": [lambda: copy.deepcopy(fsdp.fully_shard(two_layers()))],
        "positional arguments but": [
            lambda: DDP(two_layers(), None, None, 0),
            lambda: ZeroRedundancyOptimizer(two_layers().parameters(), SGD, None, True),
        ],
        "was frozen when DDP was built": [thawed, added_to_ddp],
        "averaged gradients have no graph": [lambda: graph_of_gradients(DDP), lambda: graph_of_gradients(stage_2)],
        "has max_norm": [lambda: DDP(renormalising()), lambda: stage_2(renormalising())],
        "torch.amp.GradScaler does not see the gradients": [
            lambda: scaled_by_torch(*with_optimizer(sharded_sgd)),
            lambda: scaled_by_torch(*with_optimizer(offloaded_sgd)),
        ],
        "use register_post_accumulate_grad_hook": [lambda: hooked_later(fsdp.fully_shard), lambda: hooked_later(flat)],
        "as it was before sharding": [lambda: kept_from_before(fsdp.fully_shard), lambda: kept_from_before(flat)],
        "was replaced or added after the model had been sharded": [
            replaced,
            lambda: added(fsdp.fully_shard),
            lambda: added(flat),
        ],
        "and the write is lost": [lambda: written(fsdp.fully_shard), lambda: written(flat)],
        "got a gradient on other ranks only": [another_branch_on_each_rank],
        "needs whole parameters": [
            *(partial(stepped, flat, optim) for optim in (torch.optim.Adafactor, torch.optim.LBFGS)),
            *(
                partial(stepped, fsdp.fully_shard, partial(CPUOffloadOptimizer, optimizer_class=optim))
                for optim in MATRIX
            ),
        ],
        "was deleted between its forward and backward": [deleted],
        "can't leave out": [lambda: DDP(ignoring())],
        "has no attribute": [lambda: DDP(two_layers()).process_group],
        "device_ids or output_device names": [lambda: DDP(two_layers(), device_ids=[0])],
        "can't be sharded": [
            lambda: ZeroRedundancyOptimizer(two_layers().parameters(), torch.optim.LBFGS),
            lambda: ZeroRedundancyOptimizer(two_layers().parameters(), torch.optim.SparseAdam),
        ],
        "got a second gradient in one backward": [reentrant_twice],
        "backward gave no gradient to": [a_layer_without_gradient],
        "these states are of rank": [states_of_another_place],
        "is a DTensor": [lambda: fsdp.fully_shard(tensor_parallel())],
        "is True, False or None here, not a number": [
            lambda: fsdp.fully_shard(two_layers(), reshard_after_forward=2),
        ],
        "mesh must have 1 axis": [
            lambda: fsdp.fully_shard(two_layers(), mesh=init_device_mesh("cpu", (1, 1, 2))),
        ],
        "which only PyTorch's fully_shard calls": [lambda: fsdp.fully_shard(with_attribute("fsdp_pre_all_gather"))],
        "register them afterwards": [lambda: fsdp.fully_shard(hooked())],
        "was called while its unit": [lambda: fsdp.fully_shard(Generates(nn.Linear(4, 4))).generate(torch.ones(4))],
        "in one flat parameter they would be lost": [lambda: flat(with_attribute("no_decay"))],
        "is on the meta device, and initialisers would not find it": [lambda: flat(nn.Linear(4, 4, device="meta"))],
        "missing 1 required keyword-only argument: 'use_reentrant'": [
            lambda: recompute.checkpoint(two_layers(), torch.ones(4)),
        ],
        "missing 1 required positional argument: 'function'": [lambda: recompute.checkpoint(use_reentrant=False)],
        "here it can only save or recompute": [saved_to_the_cpu],
        "keyword arguments and context_fn need use_reentrant=False": [reentrant_with_keywords],
        "is checkpointed already": [
            lambda: recompute.checkpoint_wrapper(recompute.checkpoint_wrapper(two_layers())),
        ],
        "can't be done here: SUM, AVG, PRODUCT, MIN and MAX can": [
            lambda: point_to_point_collectives.all_reduce(torch.ones(2, dtype=torch.int64), dist.ReduceOp.BAND),
        ],
        "this state is of another model": [lambda: state.load(folder, nn.Linear(4, 4))],
        "but no optim": [lambda: state.load(folder, model := two_layers(), SGD(model.parameters()))],
        "what get_extra_state returns is not saved here": [lambda: state.sharded_state_dict(Extra(4, 4))],
        "is a list: not supported": [remembering],
        "can't be cut up as the parameter is": [sharded_and_remembering],
    }


def all_said(folder: Path) -> tuple[dict[tuple[str, str], str], dict[str, list[str]], list[float]]:
    """Return what users are told, for each table; and a sum of weights that ignored options must not change."""
    state.save(folder, 1, two_layers())
    by_name = {
        (api, name): said_to(meet, api, name, row.words, folder)
        for row in BY_NAME
        for api in row.apis
        for name in row.names
        if row.status == "refused" and (len(row.apis) == 1 or name in left_out(api))
    }
    others = {words: [said_to(attempt) for attempt in attempts] for words, attempts in cases(folder).items()}
    return by_name, others, [trained(**options) for options in ({}, {"views": False}, {"pinned": False})]


def trained(views: bool = True, pinned: bool | None = None) -> float:
    model = two_layers()
    if pinned is not None:
        fsdp.fully_shard(model, offload_policy=fsdp.CPUOffloadPolicy(pin_memory=pinned))
        optimizer = SGD(model.parameters(), lr=0.1)
    else:
        options = {"lr": 0.1, "parameters_as_bucket_view": views}
        optimizer = ZeroRedundancyOptimizer(model.parameters(), SGD, **options)
    backward(model)
    optimizer.step()
    return sum(t.double().sum().item() for t in state.full_state_dict(model).values())


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    return launch(all_said, 2, tmp_path_factory.mktemp("checkpoints"), device="cpu")


def test_each_name_is_refused_in_the_words_of_the_readme(said):
    for rank_said, *_ in said:
        for (api, name), message in rank_said.items():
            row = listed(api)[name]
            assert row.words in message, f"{api} {name}: {message}"
            assert name in message or "(" in name or row.words not in PYTHONS_WORDS, f"{api} {name}: {message}"


def test_each_limit_is_refused_in_the_words_of_the_readme(said):
    for _, rank_said, _ in said:
        assert rank_said.keys() == {row.words for row in OTHERS if row.words}
        assert [(words, m) for words, messages in rank_said.items() for m in messages if words not in m] == []


def test_what_is_ignored_changes_nothing(said):
    results = said[0][2]
    assert results == pytest.approx(results[:1] * 3)
