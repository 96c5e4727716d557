"""Check of lesson 16's exercise: a moving average of the weights that is sharded, saved, and loaded on other ranks."""

import tempfile
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from shardcourse.experiments.whole_job import script_module
from shardlab import LaunchError, launch

DECAY, UPDATES = 0.75, 3
SIZES = Namespace(dim=24, layers=1, heads=2, dropout=0.0, replicas=1, precision="fp32", recompute="none", compile=None)
Average = Callable[[nn.Module, float], Any]  # the reader's class


def check_average(average: Average) -> str:
    """Return in words what is wrong with the class `average(model, decay)`, or that it is right.

    Two ranks update and save it, three ranks load it. The model is the training script's.
    """
    with tempfile.TemporaryDirectory() as name:
        try:
            for case, ranks in ((_updated, 2), (_swapped, 2), (_saved, 2), (_loaded, 3)):
                said = launch(partial(case, average), ranks, Path(name) / "saved", device="cpu", stream=False)
                if problem := next(filter(None, said), ""):
                    return problem
        except LaunchError as error:
            return f"It fails. {str(error).strip().splitlines()[-1]}"
    return "Right: each rank averages its own shards, and three ranks load what two ranks saved."


def _updated(average: Average, folder: Path) -> str:
    """Compare the averages after some updates with those of whole tensors, computed by the formula."""
    model = _model()
    mine = average(model, DECAY)
    if problem := _not_shards(mine.state_dict(), model):
        return problem
    expected = _train(model, mine)
    for name, tensor in mine.state_dict().items():
        if torch.equal(_whole(tensor), _whole(dict(model.named_parameters())[name])):
            return f"After {UPDATES} updates the average of {name} equals the weights: was it copied when you began?"
        if not torch.allclose(_whole(tensor), expected[name], atol=1e-6):
            return f"The average of {name} is not decay * average + (1 - decay) * weights after {UPDATES} updates."
    return ""


def _not_shards(state: dict[str, Tensor], model: nn.Module) -> str:
    weights = dict(model.named_parameters())
    if state.keys() != weights.keys():
        return f"state_dict() should have the model's {len(weights)} names; it has {len(state)}: {', '.join(state):.60}"
    for name, tensor in state.items():
        if not isinstance(tensor, DTensor):
            size = "whole" if tensor.shape == weights[name].shape else "this rank's part"
            return (
                f"state_dict() has a plain tensor for {name}, {size}. DCP must see a DTensor to know whose rows it has."
            )
        if tensor.placements != weights[name].placements:
            return f"The average of {name} is not sharded like the weight: {tensor.placements}."
        if tensor.requires_grad:
            return f"The average of {name} requires a gradient: it keeps a graph of all steps."
    return ""


def _swapped(average: Average, folder: Path) -> str:
    """Check that the model has the averages inside the block, and its own weights after it.

    Also if an error ends the block, and if a forward without a backward has left the root whole, before or inside.
    """
    model = _model()
    mine = average(model, DECAY)
    _train(model, mine)
    before, averages = _all_whole(dict(model.named_parameters())), _all_whole(mine.state_dict())
    for evaluates, ends in ((False, "left by an error"), (True, "with an evaluation before and inside it")):
        if evaluates:
            _evaluate(model)
        try:
            with mine.swapped():
                inside = _all_whole(dict(model.named_parameters()))
                if evaluates:
                    _evaluate(model)
                raise KeyError("planted")
        except KeyError:
            pass
        except RuntimeError as error:
            return f"`with swapped()`, {ends}, fails: {str(error).splitlines()[0]}"
        model.reshard()
        after = _all_whole(dict(model.named_parameters()))
        for name in before:
            if not torch.equal(inside[name], averages[name]):
                return f"Inside `with swapped()`, {ends}, the model's {name} is not the average."
            if not torch.equal(after[name], before[name]):
                return f"After `with swapped()`, {ends}, the model's {name} is not what it was."
    changed = [name for name, tensor in mine.state_dict().items() if not torch.equal(_whole(tensor), averages[name])]
    return f"`with swapped()` changes the average of {changed[0]}." if changed else ""


@torch.no_grad()
def _evaluate(model: nn.Module) -> None:
    """Run a forward without a backward: the root's weights stay whole."""
    model(torch.arange(8)[None])


def _saved(average: Average, folder: Path) -> str:
    model = _model()
    mine = average(model, DECAY)
    expected = _train(model, mine)
    dcp.save({"average": mine.state_dict(), "expected": expected}, checkpoint_id=folder)
    return ""


def _loaded(average: Average, folder: Path) -> str:
    """Check that the averages are those that two ranks saved, and that the object itself has them."""
    model = _model(seed=1)
    mine = average(model, DECAY)
    expected = {name: torch.empty(p.shape) for name, p in model.named_parameters()}
    copies = {name: tensor.clone() for name, tensor in mine.state_dict().items()}
    state = {"average": copies, "expected": expected}
    dcp.load(state, checkpoint_id=folder)
    mine.load_state_dict(state["average"])
    for name, tensor in mine.state_dict().items():
        if not torch.allclose(_whole(tensor), expected[name], atol=1e-6):
            return f"Three ranks load what two ranks saved: the average of {name} is not the saved one."
    return ""


def _model(seed: int = 0) -> nn.Module:
    return script_module().sharded_model(Namespace(**vars(SIZES), seed=seed), torch.device("cpu"))


@torch.no_grad()
def _train(model: nn.Module, mine: Any) -> dict[str, Tensor]:
    """Change the weights and update the average, some times; return the whole averages by the formula."""
    draw = torch.Generator().manual_seed(7)
    expected = _all_whole(dict(model.named_parameters()))
    for _ in range(UPDATES):
        for name, p in model.named_parameters():
            change = torch.randn(p.shape, generator=draw)
            p.add_(distribute_tensor(change, p.device_mesh, p.placements, src_data_rank=None))
            expected[name] = DECAY * expected[name] + (1 - DECAY) * _whole(p)
        mine.update()
    return expected


def _all_whole(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: _whole(tensor) for name, tensor in tensors.items()}


def _whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()
