"""A stand-in GPU: a device of its own type, with streams and events, on which code for GPUs can fail on a CPU.

`install()` makes the device `gpu`. Kernels run at once, on the CPU. But an operation that mixes devices fails, the
sanitizer looks at every kernel, and what a message brings comes late: see [Note: late data]. Call it in a rank: a
process has the device until it ends.

[Note: late data] `streams.Stream.arrivals` are messages that a stream waits for. Their tensors hold NaN until some
work on a stream that waits for the message, or the host, needs the data. So work that does not wait computes with
NaN.

[Note: which copies the host waits for] As CUDA does: `non_blocking` has an effect only between the device and pinned
memory. `item()`, `cpu()` and copies of pageable memory make the host wait for the stream.

[Note: what it can't do] An exception that a hook raises may end the process: torch asks the device's guard, which is
written in Python, while the exception is on its way. `module.to` makes new parameters, and so unties them. `t.data = `
can't move a CPU tensor here. torch.compile and CUDA graphs are unknown to it.
"""

import os
import types
from collections.abc import Callable
from functools import partial

import stand_in_streams as streams
import torch
from sanitizer import HOST, Sanitizer
from stand_in_memory import NAME, Memory, map_leaves, tensors_in
from torch import Tensor, library
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_MIXES_DEVICES = ("_copy_from", "index", "index_put_", "_index_put_impl_", "copy_", "_foreach_copy_")

_aten = torch.ops.aten
# Registered one by one: what torch.tensor(..., device=) calls, and what would else be taken to pieces.
_ONE_BY_ONE = (_aten.empty_strided.default, _aten._copy_from.default, _aten._to_copy.default)


class Gpu:
    """The device of this process: its memory, the sanitizer, and the generator of random numbers."""

    def __init__(self) -> None:
        self.sanitizer = Sanitizer()
        self.memory = Memory(lambda: streams.current_stream().number, self.sanitizer.allocated, self.sanitizer.freed)
        self.pinned: dict[int, tuple[int, Tensor]] = {}  # by address: a negative number, as blocks have, and the memory
        self.rng_state = torch.Generator().manual_seed(0).get_state()

    def kernel(self, operator: str, reads: list[Tensor], writes: list[Tensor], stream: streams.Stream | None = None):
        """Report work on the device to the sanitizer."""
        self.memory.sweep()
        stream = stream or streams.current_stream()
        numbers = [self._numbers(operator, tensors) for tensors in (reads, writes)]
        self.sanitizer.kernel(stream.number, *numbers, operator)

    def host_access(self, operator: str, reads: list[Tensor], writes: list[Tensor]) -> None:
        numbers = [self._numbers(operator, tensors) for tensors in (reads, writes)]
        if any(numbers):
            self.sanitizer.kernel(HOST, *numbers, operator)

    def _numbers(self, operator: str, tensors: list[Tensor]) -> set[int]:
        found = set()
        for t in (t for t in tensors if t.numel()):
            if t.device.type == NAME:
                block = self.memory.find(t.data_ptr())
                if block.freed:
                    self.sanitizer.used_after_free(operator)
                found.add(block.number)
            elif pinned := self.pinned.get(t.untyped_storage().data_ptr()):
                found.add(pinned[0])
        return found

    def is_pinned(self, t: Tensor) -> bool:
        return t.device.type == "cpu" and t.untyped_storage().data_ptr() in self.pinned

    def pin(self, t: Tensor) -> Tensor:
        if t.numel():
            self.pinned[t.untyped_storage().data_ptr()] = -2 - len(self.pinned), t
        return t

    # Operations

    def run(self, op, *args, **kwargs):
        """Run an operation of ATen on the device: torch calls this for each operation with a tensor there."""
        self.memory.sweep()
        name = op._schema.name.removeprefix("aten::")
        if special := _SPECIAL.get(name):
            return special(self, *args, **kwargs)
        reads, writes = accesses(op, args, kwargs)
        self._check_devices(name, (args, kwargs))
        if not op.is_view:
            streams.current_stream().take_arrivals()
        originals: dict[int, Tensor] = {}

        def to_host(x):
            if isinstance(x, Tensor) and x.device.type == NAME:
                host = self.memory.on_host(x)
                originals[id(host)] = x
                return host
            return torch.device("cpu") if isinstance(x, torch.device) and x.type == NAME else x

        host_args, host_kwargs = map_leaves(to_host, args), map_leaves(to_host, kwargs)
        host_kwargs.pop("pin_memory", None)
        results = self._with_own_generator(op, lambda: op(*host_args, **host_kwargs))

        def to_device(x):
            if not isinstance(x, Tensor) or id(x) not in originals:
                return self.memory.on_device(x) if isinstance(x, Tensor) else x
            if originals[id(x)].shape != x.shape:  # out=, which the operation has resized
                originals[id(x)].data = self.memory.on_device(x)
            return originals[id(x)]

        outputs = map_leaves(to_device, results)
        if not op.is_view:
            made = tensors_in(outputs) if not name.startswith("empty") else []
            self.kernel(str(op), reads, writes + made)
        return outputs

    def _check_devices(self, name: str, tree) -> None:
        strangers = [t for t in tensors_in(tree) if t.device.type == "cpu" and t.ndim]
        if strangers and name not in _MIXES_DEVICES:
            raise RuntimeError(f"aten::{name}: expected all tensors on the same device, found {NAME}:0 and cpu")

    def _with_own_generator(self, op, call: Callable):
        if torch.Tag.nondeterministic_seeded not in op.tags:
            return call()
        hosts = torch.get_rng_state()
        torch.set_rng_state(self.rng_state)
        try:
            return call()
        finally:
            self.rng_state = torch.get_rng_state()
            torch.set_rng_state(hosts)

    def copy(self, source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
        stream = streams.current_stream()
        stream.take_arrivals()
        hosts = [self.memory.on_host(t) if t.device.type == NAME else t for t in (target, source)]
        hosts[0].copy_(hosts[1])
        self.kernel("aten::copy_", [source], [target])
        on_host = [t for t in (source, target) if t.device.type == "cpu"]
        if on_host and not (non_blocking and self.is_pinned(on_host[0])):
            stream.synchronize()
        return target

    def to_copy(
        self, t: Tensor, *, dtype=None, layout=None, device=None, pin_memory=None, non_blocking=False, **options
    ):
        """Run `to`. As in CUDA, `non_blocking` to the host gives pinned memory, and the host does not wait."""
        made = torch.empty_like(t, dtype=dtype, device=device, **options)
        if made.device.type == "cpu" and (non_blocking or pin_memory):
            self.pin(made)
        return self.copy(t, made, non_blocking)

    def item(self, t: Tensor):
        return self.copy(t, torch.empty((), dtype=t.dtype)).item()

    def resize(self, storage: torch.UntypedStorage, n_bytes: int):
        if storage.device.type != NAME:
            return _torchs["resize_"](storage, n_bytes)
        self.memory.resize(storage.data_ptr(), n_bytes)
        return storage

    def n_bytes(self, storage: torch.UntypedStorage) -> int:
        is_here = storage.device.type == NAME and storage.data_ptr()
        block = self.memory.find(storage.data_ptr()) if is_here else None
        return 0 if block is not None and block.freed else _torchs["nbytes"](storage)

    def record_stream(self, t: Tensor, stream: streams.Stream) -> None:
        if t.device.type != NAME:
            raise RuntimeError(f"record_stream: this tensor is on {t.device}")
        if t.numel():
            self.memory.find(t.data_ptr()).recorded.add(stream.number)


_SPECIAL = {"_copy_from": Gpu.copy, "_to_copy": Gpu.to_copy, "_local_scalar_dense": Gpu.item}


def accesses(op, args: tuple, kwargs: dict) -> tuple[list[Tensor], list[Tensor]]:
    """Return the tensors that an operation reads, and those among its arguments that it writes."""
    reads, writes = [], []
    given = dict(zip([a.name for a in op._schema.arguments], args, strict=False)) | kwargs
    for argument in op._schema.arguments:
        found = tensors_in(given.get(argument.name))
        if argument.alias_info is not None and argument.alias_info.is_write:
            writes += found
        elif not op.is_view:
            reads += found
    if op._schema.name.endswith("_like") or ".new_" in str(op) or "::new_" in op._schema.name:
        reads = []
    return reads, writes


class _HostAccesses(TorchDispatchMode):
    """Shows the sanitizer what the host does with pinned memory."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented  # we shall see what it does with its local tensors
        if gpu.pinned and not func.is_view:
            reads, writes = accesses(func, args, kwargs)
            if all(t.device.type == "cpu" for t in reads + writes):
                gpu.host_access(str(func), reads, writes)
        return func(*args, **kwargs)


gpu: Gpu = None
_torchs: dict = {}


def install() -> Gpu:
    """Make the device; return it."""
    global gpu
    if gpu is None:
        gpu = Gpu()
        streams.sanitizer, streams.sweep = gpu.sanitizer, gpu.memory.sweep
        _setup_privateuseone_for_python_backend(NAME, backend_module=_module())
        fallback = library.Library("_", "IMPL")
        fallback.fallback(gpu.run, "PrivateUse1")
        aten = library.Library("aten", "IMPL")
        for op in _ONE_BY_ONE:
            aten.impl(op, partial(gpu.run, op), "PrivateUse1")
        _torchs.update(libraries=(fallback, aten), resize_=torch.UntypedStorage.resize_)
        _torchs["nbytes"] = torch.UntypedStorage.nbytes
        torch.UntypedStorage.resize_ = lambda storage, n_bytes: gpu.resize(storage, n_bytes)
        torch.UntypedStorage.size = torch.UntypedStorage.nbytes = lambda storage: gpu.n_bytes(storage)
        Tensor.record_stream = lambda t, stream: gpu.record_stream(t, stream)
        Tensor.pin_memory, Tensor.is_pinned = lambda t: gpu.pin(t.clone()), lambda t: gpu.is_pinned(t)
        for name in ("empty", "empty_like", "zeros"):
            setattr(torch, name, _pinning(getattr(torch, name)))
        _torchs["mode"] = _HostAccesses()
        _torchs["mode"].__enter__()
    return gpu


def _pinning(make: Callable) -> Callable:
    def wrapped(*args, pin_memory: bool = False, **kwargs):
        made = make(*args, **kwargs)
        return gpu.pin(made) if pin_memory else made

    return wrapped


def _module() -> types.ModuleType:
    """Return what torch.get_device_module("gpu") gives: the part of torch.cuda that our library uses."""
    module = types.ModuleType(f"torch.{NAME}")
    for each in (streams.Stream, streams.Event, streams.current_stream, streams.stream, streams.synchronize):
        setattr(module, each.__name__, each)
    module.StreamContext = streams.stream
    module.default_stream = lambda device=None: streams.default
    module.is_available = module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module.current_device, module.device_count = lambda: 0, lambda: 1
    module.set_device = module.manual_seed_all = module.manual_seed = lambda _: None
    module.get_rng_state = lambda device=None: gpu.rng_state.clone()
    module.set_rng_state = lambda state, device=None: setattr(gpu, "rng_state", state.clone())
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    module.empty_cache = lambda: None
    module.local_rank = lambda: int(os.environ.get("LOCAL_RANK", 0))
    return module
