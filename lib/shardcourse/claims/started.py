"""Checks of starting and setting up torch's FSDP1 and DDP as the pages say, on two real ranks."""

import re
import warnings
from functools import cache
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType, _init_utils
from torch.nn.parallel import DistributedDataParallel

from shardcourse.claims.claim import Findings
from shardlab import launch
from shardlab.launch import LaunchError
from shardlab.measure.memory import MemoryTracker
from shardlab.measure.traffic import record_traffic

WIDTH = 64
PATIENCE_S = (6.0, 60.0)  # the second is used if the job had not reached the collective in question within the first


def _layers(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)))


def _fsdp(model: nn.Module, **options) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"), **options)


def _train(module: nn.Module) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    for _ in range(2):
        module(torch.ones(2, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def _full_state(module: nn.Module) -> dict:
    """Return the full state. offload_to_cpu would copy no CPU tensor: the state would go with gathered weights."""
    with FullyShardedDataParallel.state_dict_type(module, StateDictType.FULL_STATE_DICT):
        return module.state_dict()


# ---------------------------------------------------------------------------------------------------- first weights


def hangs_on_different_weights() -> Findings:
    """Check whether training hangs if every rank starts with different weights and sync_module_states=False."""
    return {"sync_module_states=False": _fate(_starts_differently, False) == "hangs"}


def starts_from_rank_0(sync: bool) -> Findings:
    """Check whether the whole model gets rank 0's weights if every rank starts with different ones."""
    return {f"sync_module_states={sync}": launch(_starts_differently, 2, sync, device="cpu", stream=False)[0]}


def _starts_differently(sync: bool) -> bool:
    own = _layers(seed=dist.get_rank())
    before = {name: weight.clone() for name, weight in own.state_dict().items()}
    with patch.object(_init_utils, "_check_module_states_for_sync_module_states"):  # demands a GPU; gloo needs none
        module = _fsdp(own, sync_module_states=sync)
    whole = _full_state(module)
    _train(module)
    return all(torch.equal(before[name], weight) for name, weight in whole.items())


# ---------------------------------------------------------------------------------------------------- state_dict


def full_state_dict(called_by: str) -> Findings:
    """Return "works" or "hangs" for a state_dict call under FULL_STATE_DICT."""
    return {f"called by {called_by}": _fate(_state_dict, called_by)}


def _state_dict(called_by: str) -> int:
    module = _fsdp(_layers())
    if called_by == "every rank" or dist.get_rank() == 0:
        _full_state(module)
    return 0


# ---------------------------------------------------------------------------------------------------- frozen weights


def frozen_beside_trained(use_orig_params: bool) -> Findings:
    """Return the fate of training a unit in which some parameters are frozen, as in LoRA."""
    return {f"use_orig_params={use_orig_params}": _fate(_half_frozen, use_orig_params)}


def _half_frozen(use_orig_params: bool) -> None:
    model = _layers()
    model[0].weight.requires_grad_(False)
    _train(_fsdp(model, use_orig_params=use_orig_params))


def _fate(fn, *args) -> str:
    """Return the outcome of a job: "works", "hangs" (a rank waits in a collective forever) or "raises ..."."""
    for patience_s in PATIENCE_S:
        try:
            launch(fn, 2, *args, device="cpu", stream=False, timeout_s=patience_s)
            return "works"
        except LaunchError as error:
            if not error.timed_out:
                return f"raises {_RAISED.search(str(error))[1]}"
            if _STUCK.search(str(error)):
                return "hangs"
    raise RuntimeError(f"the ranks did not come to {fn.__name__} within {PATIENCE_S[-1]:g} s: the machine is too busy")


_RAISED, _STUCK = re.compile(r"raised (\w+)"), re.compile(r"\bwaits? in #\d+")


# ---------------------------------------------------------------------------------------------------- settings


def use_orig_params_saves() -> Findings:
    """Check whether use_orig_params=True saves over 1% of the bytes that FSDP1 holds at the peak, or sends."""
    held = _held()
    yes, no = (
        {what: held[f"FSDP1, use_orig_params={way}, {what}"] for what in ("held", "sent")} for way in (True, False)
    )
    return {f"bytes {what}": yes[what] < 0.99 * no[what] for what in yes}


def views_save() -> Findings:
    """Return what gradient_as_bucket_view=True saves of DDP's memory after backward, as a share of the gradients."""
    held = _held()
    saved = held["DDP, gradient_as_bucket_view=False"] - held["DDP, gradient_as_bucket_view=True"]
    return {"after backward": saved / (4 * 4 * WIDTH**2)}


def default_bucket_mib() -> Findings:
    return {"nothing said": _held()["bucket"] / 2**20}


@cache
def _held() -> dict[str, float]:
    return launch(_held_by_each, 2, device="cpu", stream=False)[0]


def _held_by_each() -> dict[str, float]:
    found: dict[str, float] = {}
    for yes in (True, False):
        peak, _, sent = _backward(_fsdp(_layers(), use_orig_params=yes))
        found |= {f"FSDP1, use_orig_params={yes}, held": peak, f"FSDP1, use_orig_params={yes}, sent": sent}
        module = DistributedDataParallel(_layers(), gradient_as_bucket_view=yes)
        found[f"DDP, gradient_as_bucket_view={yes}"] = _backward(module)[1]
    return found | {"bucket": module.bucket_bytes_cap}


def _backward(module: nn.Module) -> tuple[int, int, float]:
    """Return bytes at the peak, after backward, and sent, of the second backward, when DDP's buckets are final."""
    module(torch.ones(2, WIDTH)).sum().backward()
    module.zero_grad()
    with MemoryTracker(module) as tracker, record_traffic() as traffic:
        module(torch.ones(2, WIDTH)).sum().backward()
    return tracker.peak.peak_bytes, sum(tracker.resident.values()), traffic.wire_bytes(dist.get_world_size())
