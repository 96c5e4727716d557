"""State of a training by name: the same for every strategy, in torch.distributed.checkpoint's own form.

    {"model": {"blocks.0.up.weight": tensor, ...},
     "optim": {"state": {"blocks.0.up.weight": {"exp_avg": tensor, "step": tensor}, ...},
               "param_groups": [{"lr": 1e-3, ..., "params": ["blocks.0.up.weight", ...]}]}}

Vocabulary. A *name* is a parameter's fully qualified name in the bare model, without any wrapper's prefix. A tensor of
the *sharded* state is this rank's part and knows its place in the whole: a plain tensor (all of it), a DTensor, or a
`Part`. `full_state` assembles whole tensors from it; `checkpoint` writes it to files.

[Note: views] An optimizer has parameters in the form in which they are held: a whole one, a shard, a flat buffer of
many. For each of those, `_views_of` lists the named parameters in it, and how to view a tensor of the same layout as a
part of each. Both uses go through these views: reading a state, and allocating memory for a state, which is then filled
in place.

Source: torch.distributed.checkpoint.state_dict (get_state_dict and its kin), whose format this is.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from shardlab.bucketed_backward import BucketedBackward
from shardlab.fsdp.flat_parameter import PREFIX, FlatParameter
from shardlab.shard_groups import hyperparameters, local
from shardlab.state.barrier_and_rank_0_result import rank
from shardlab.state.flat_interval_chunks import Part
from shardlab.zero import ZeroRedundancyOptimizer

Views = dict[str, Callable[[Tensor], Tensor]]  # by name
Described = tuple[torch.Size, torch.dtype]


def sharded_state_dict(model: nn.Module, optimizer: Optimizer | None = None) -> dict:
    """Return this rank's state by name; tensors are the live ones, not copies. Not a collective."""
    state: dict = {"model": model_state(model)}
    if optimizer:
        state["optim"] = optimizer_state(model, optimizer)
    return state


# Names, and how this rank holds the named tensors


# Wrappers that add their child's name to the names of parameters. AveragedModel is not one: it has its own state.
_REPLICAS = (BucketedBackward, nn.parallel.DistributedDataParallel, nn.DataParallel)
_OTHERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")  # torch.compile's, and private ones


def _wrapped_child(module: nn.Module) -> str | None:
    if isinstance(module, _REPLICAS):
        return "module"
    return next((name for name in _OTHERS if name in getattr(module, "_modules", ())), None)


def bare(model: nn.Module) -> nn.Module:
    """Return the model without DDP and torch.compile around it."""
    while _wrapped_child(model) in ("module", "_orig_mod"):
        model = getattr(model, _wrapped_child(model))
    return model


def model_state(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name; parameters inside flat ones are taken out of them.

    Raises ValueError for a module with a state that is no tensor (get_extra_state).
    """
    model = bare(model)
    state = {_cleaned(model, name): value for name, value in model.state_dict().items()}
    names = _names_of_flat(model)
    for interval in flat_intervals(model):
        for name in names[interval.name]:
            state[name] = _view_of_flat(interval)(interval.shard.detach())
    if extra := [name for name, value in state.items() if not isinstance(value, Tensor)]:
        raise ValueError(
            f"rank {rank()}: {listed(extra)} is no tensor: what get_extra_state returns is not saved here. "
            "Make it a buffer, or save an object of your own with state_dict() and load_state_dict() beside the model"
        )
    return {name: value for name, value in state.items() if not name.rpartition(".")[2].startswith(PREFIX)}


def _names_of_flat(model: nn.Module) -> dict[str, list[str]]:
    """Map the first name of each parameter inside a flat one to all its names (several if it is tied)."""
    paths: dict[nn.Module, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        paths.setdefault(module, []).append(path)
    layouts = [layout for m in model.modules() if hasattr(m, "_fsdp_unit") for layout in m._fsdp_unit.layouts]
    params = [p for layout in layouts if isinstance(layout, FlatParameter) for p in layout.params]
    all_names = [[f"{path}.{name}" for m, name in p.places for path in paths[m]] for p in params]
    return {names[0]: names for names in ([_cleaned(model, name.lstrip(".")) for name in names] for names in all_names)}


@dataclass(frozen=True, eq=False)
class FlatInterval:
    """This rank holds elements [start, end) of a flattened parameter, in `shard[offset : offset + end - start]`."""

    name: str
    shape: torch.Size
    start: int
    end: int
    shard: nn.Parameter  # the one that the optimizer has
    offset: int
    aliases: tuple[str, ...]  # further names, if it is tied


def flat_intervals(model: nn.Module) -> Iterator[FlatInterval]:
    """Yield where each original parameter's part lies on this rank, for all flat parameters of the model."""
    names = {m: name for name, m in model.named_modules()}
    for m in model.modules():
        for layout in m._fsdp_unit.layouts if hasattr(m, "_fsdp_unit") else []:
            if isinstance(layout, FlatParameter):
                for p, (start, end, offset) in zip(layout.params, layout.intervals(), strict=True):
                    all_names = [f"{names[module]}.{name}".lstrip(".") for module, name in p.places]
                    first, *aliases = [_cleaned(model, name) for name in all_names]
                    yield FlatInterval(first, p.shape, start, end, layout.sharded_params[0], offset, tuple(aliases))


def weights_have_changed(model: nn.Module) -> None:
    """Mark weights as changed, for autograd (no backward through an older forward) and for CPUOffloadOptimizer."""
    torch.autograd.graph.increment_version(list(bare(model).parameters()))


def _views_of(model: nn.Module) -> dict[nn.Parameter, Views]:
    """Map each parameter that optimizers know to the views of the named parameters in it; see [Note: views]."""
    model = bare(model)
    model.state_dict()  # makes FSDP reshard: the optimizer knows only shards
    views: dict[nn.Parameter, Views] = {p: {_cleaned(model, name): _view_of(p)} for name, p in model.named_parameters()}
    flat: dict[nn.Parameter, Views] = {}
    for interval in flat_intervals(model):
        flat.setdefault(interval.shard, {})[interval.name] = _view_of_flat(interval)
    return views | flat


def _cleaned(model: nn.Module, name: str) -> str:
    """Return a parameter's name in the bare model: without the names of wrappers' children."""
    parts, module = [], model
    for part in name.split("."):
        if part != _wrapped_child(module):
            parts.append(part)
        module = getattr(module, part, None)
    return ".".join(parts)


def _view_of(p: nn.Parameter) -> Callable[[Tensor], Tensor]:
    if not isinstance(p, DTensor):
        return lambda t: t
    [chunk] = p.__create_chunk_list__()
    return lambda t: t if isinstance(t, DTensor) else Part(p.shape, t, {chunk.offsets: t})


def _view_of_interval(shape: torch.Size, start: int) -> Callable[[Tensor], Tensor]:
    return lambda t: Part.interval(shape, start, t.view(-1))


def _view_of_flat(interval: FlatInterval) -> Callable[[Tensor], Tensor]:
    end = interval.offset + interval.end - interval.start
    return lambda t: Part.interval(interval.shape, interval.start, t[interval.offset : end])


def _held_by(model: nn.Module, optimizer: Optimizer) -> Iterator[tuple[int, Tensor, Views]]:
    """Yield (number in the optimizer's state_dict, parameter or shard, views) for all that it updates on this rank."""
    views = _views_of(model)
    if isinstance(optimizer, ZeroRedundancyOptimizer):
        for shard in optimizer.shards():
            [name] = _known(views, shard.param)
            views[shard.shard_param] = {name: _view_of_interval(shard.param.shape, shard.start)}
        optimizer = optimizer.optim
    number = count()
    for group in optimizer.param_groups:
        for p in group["params"]:
            yield next(number), p, _known(views, p)


def _known(views: dict[nn.Parameter, Views], p: Tensor) -> Views:
    if p not in views:
        raise ValueError(
            f"rank {rank()}: the optimizer has a parameter of shape {list(p.shape)} that is not the model's: "
            "make the optimizer after sharding or wrapping the model, from its parameters"
        )
    return views[p]


def optimizer_state(model: nn.Module, optimizer: Optimizer) -> dict:
    views, packed, state = _views_of(model), optimizer.state_dict()["state"], {}
    for number, p, names in _held_by(model, optimizer):
        for name, view in names.items() if number in packed else ():
            state[name] = {k: view(v) if _laid_out_as(p, v) else v for k, v in packed[number].items()}
            for key, value in state[name].items():
                if isinstance(value, (list, tuple, dict)):
                    raise ValueError(f"the optimizer state {key} of {name} is a {type(value).__name__}: not supported")
                if type(value) is Tensor and not _laid_out_as(p, value):
                    _check_whole(p, view(p), f"{key} of {name}", value.shape)
    groups = [
        hyperparameters(group) | {"params": [name for p in group["params"] for name in _known(views, p)]}
        for group in optimizer.param_groups
    ]
    return {"state": state, "param_groups": groups}


def _laid_out_as(p: Tensor, value: Any) -> bool:
    """Return whether a state has one number for each of p's on this rank; others belong to the whole parameter."""
    return torch.is_tensor(value) and value.shape == (p if isinstance(value, DTensor) else local(p)).shape


def _check_whole(p: Tensor, seen: Tensor, what: str, shape: torch.Size) -> None:
    """Raise ValueError for a shard: a state of another shape, such as Adafactor's rows, can't be cut as p is."""
    if shape and (isinstance(p, DTensor) or p.numel() < seen.numel()):
        raise ValueError(f"the optimizer state {what}, of shape {list(shape)}, can't be cut up as the parameter is")


class OptimizerMemory:
    """Memory for an optimizer's states, allocated in this rank's layout, to be filled by name.

    `by_name[name][key]` are plain tensors, DTensors and Parts; put values that are not tensors there, too.
    Keeps: the states once more, if the optimizer has some already; nothing is changed before `give_to_optimizer`.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, saved: dict[str, dict[str, Described | None]]) -> None:
        self.optimizer, self._views = optimizer, _views_of(model)
        self.by_name: dict[str, dict[str, Any]] = {}
        self._states: dict[int, tuple[str, dict[str, Tensor | None]]] = {}
        known = {name for names in self._views.values() for name in names}
        if foreign := [name for name in saved if name not in known]:
            raise ValueError(f"the optimizer state has names that the model does not know: {listed(foreign)}")
        for number, p, names in _held_by(model, optimizer):
            if any(name in saved for name in names):
                self._allocate(number, p, names, saved)

    def _allocate(self, number: int, p: Tensor, names: Views, saved: dict) -> None:
        first = next(name for name in names if name in saved)
        states: dict[str, Tensor | None] = {}
        for key, described in saved[first].items():
            states[key] = described and self._empty(p, names[first], f"{key} of {first}", *described)
        for name in names.keys() & saved.keys():
            self.by_name[name] = {k: names[name](t) if _laid_out_as(p, t) else t for k, t in states.items()}
        self._states[number] = first, states

    def _empty(self, p: Tensor, view: Callable, what: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        on_host = getattr(self.optimizer, "states_on_host", False)
        t = torch.zeros_like(local(p) if on_host else p, dtype=dtype, device="cpu" if on_host else None)
        if view(t).shape == shape:
            return t.detach()
        _check_whole(p, view(t), what, shape)
        return torch.empty(shape, dtype=dtype)

    def give_to_optimizer(self, saved_groups: list[dict]) -> None:
        in_file = getattr(self.optimizer, "states_in_file", False)  # after a failed step its state_dict raises
        packed = Optimizer.state_dict(self.optimizer) if in_file else self.optimizer.state_dict()
        packed["state"] = {
            number: {key: self.by_name[first][key] if t is None else t for key, t in states.items()}
            for number, (first, states) in self._states.items()
        }
        for ours, group in zip(packed["param_groups"], self.optimizer.param_groups, strict=True):
            names = {name for p in group["params"] for name in _known(self._views, p)}
            found = [saved for saved in saved_groups if names & set(saved["params"])]
            if len(found) > 1:
                raise ValueError(f"one parameter group here was {len(found)} groups when it was saved: {listed(names)}")
            for saved in found:
                ours.update(hyperparameters(saved))
        self.optimizer.load_state_dict(packed)


def check_names(mine: dict[str, torch.Size], saved: dict[str, torch.Size]) -> None:
    """Raise ValueError that lists the names which only one side has, or which differ in shape."""
    problems = [f"the model has {name}, the state does not" for name in mine if name not in saved]
    problems += [f"the state has {name}, the model does not" for name in saved if name not in mine]
    both = [name for name in mine if name in saved and mine[name] != saved[name]]
    problems += [f"{name} is {list(saved[name])} in the state, {list(mine[name])} in the model" for name in both]
    if problems:
        raise ValueError(f"this state is of another model: {listed(problems, '; ')}")


def listed(items, separator: str = ", ") -> str:
    items = sorted(items)
    return separator.join(items[:5]) + (f"{separator}and {len(items) - 5} more" if len(items) > 5 else "")
