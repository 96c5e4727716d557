"""Checks of what the installed torch offers."""

import functools
import inspect
import mmap
import re
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import constants, fsdp
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.nn.parallel import DistributedDataParallel

from shardcourse.claims.claim import Findings, Value

_MINUTES = re.compile(r"(\d+) minutes for NCCL and (\d+) minutes for other", re.DOTALL)


def found_in(name: str, modules: list[str]) -> Findings:
    """Check for each of these modules whether it has the name."""
    return {f"in {module}": hasattr(import_module(module), name) for module in modules}


def default(argument: str) -> Findings:
    """Return the default of an argument of FullyShardedDataParallel."""
    value = inspect.signature(fsdp.FullyShardedDataParallel).parameters[argument].default
    return {"if nothing is said": value if isinstance(value, bool) else getattr(value, "name", str(value))}


def ddp_has(method: str) -> Findings:
    return {"as a method of DDP": hasattr(DistributedDataParallel, method)}


def hybrid_zero_2() -> Findings:
    return {"in ShardingStrategy": hasattr(fsdp.ShardingStrategy, "_HYBRID_SHARD_ZERO2")}


def default_timeout_minutes(backend: str) -> Findings:
    """Return torch's constant; if NCCL is not built in, the number in the documentation of init_process_group."""
    documented = dict(
        zip(("nccl", "gloo"), map(int, _MINUTES.search(_one_line(dist.init_process_group)).groups()), strict=True)
    )
    built = {"nccl": constants.default_pg_nccl_timeout, "gloo": constants.default_pg_timeout}[backend]
    return {backend: built.total_seconds() / 60 if built else documented[backend]}


def _one_line(function) -> str:
    return re.sub(r"[\s`*]+", " ", inspect.getdoc(function))


def reads_variable(name: str) -> Findings:
    """Check whether torch's distributed Python files or its libraries contain this environment variable's name."""
    root = Path(torch.__file__).parent
    files = [*(root / "distributed").rglob("*.py"), *(root / "lib").glob("libtorch*")]
    return {"in torch": any(_contains(file, name.encode()) for file in files if file.stat().st_size)}


def _contains(file: Path, word: bytes) -> bool:
    """Return True if the file contains the name as a whole word, not as a part of a longer name."""
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        at = content.find(word)
        while at >= 0:
            around = content[max(at - 1, 0) : at] + content[at + len(word) : at + len(word) + 1]
            if not re.search(rb"\w", around):
                return True
            at = content.find(word, at + 1)
    return False


def policy_from(way: str) -> Findings:
    """Check whether transformer_auto_wrap_policy gives a policy if its layer class is passed in this way."""
    layer = {"transformer_layer_cls": {nn.Linear}}
    ways = {
        "called with the class alone": lambda: transformer_auto_wrap_policy(**layer),
        "bound by functools.partial": lambda: functools.partial(transformer_auto_wrap_policy, **layer),
    }
    return {way: _is_policy(ways[way])}


def _is_policy(make) -> bool:
    try:
        policy = make()
    except TypeError:
        return False
    return bool(policy(module=nn.Linear(1, 1), recurse=False, nonwrapped_numel=0))


def file_offload() -> Findings:
    """Check whether FSDP has a policy that keeps states in files."""
    names = [name.lower() for name in dir(fsdp)]
    return {"in torch.distributed.fsdp": any("nvme" in name or "disk" in name for name in names)}


def beyond_data_parallel() -> Findings:
    """Check for each of the other parallelisms whether torch itself has it."""
    modules: dict[str, tuple[str, str]] = {
        "tensor": ("torch.distributed.tensor.parallel", "parallelize_module"),
        "pipeline": ("torch.distributed.pipelining", "Schedule1F1B"),
        "context": ("torch.distributed.tensor.experimental", "context_parallel"),
    }
    return {kind: not _absent(*where) for kind, where in modules.items()}


def _absent(module: str, name: str) -> Value:
    try:
        return not hasattr(import_module(module), name)
    except ImportError:
        return True
