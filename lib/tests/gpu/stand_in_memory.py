"""The memory of a stand-in GPU: tensors whose device is `gpu` and whose bytes a CPU holds.

torch calls a device that is not built in PrivateUse1. Its tensors come into being here by DLPack: `on_device`
describes a CPU tensor's memory in DLPack's structure, with PrivateUse1 as its device, and torch makes a tensor of it.
`on_host` goes back by address.

[Note: when memory is freed] torch calls DLPack's deleter when it drops a tensor, on any thread and even while an
exception is on its way, where no Python can run. So the deleter is the C library's `time`, which writes the time into
the structure's first field in place of the address. `sweep` finds these structures: their first field is not what we
wrote there. It runs before each kernel and each wait, so the order of events is kept.

A block is one allocation. Tensors that are views of one another lie in one block. Memory that `resize_` has freed
stays where it is, filled with NaN, and counts as freed.

Source: DLPack's specification (dlpack.h); torch.utils.backend_registration; c10's CUDACachingAllocator.
"""

import ctypes
import threading
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

NAME = "gpu"
_PRIVATE_USE_1 = 12  # DLPack's kDLExtDev
_CODES = {torch.bool: 6, torch.bfloat16: 4, torch.uint8: 1} | dict.fromkeys((torch.float16, torch.float32), 2)
_CODES |= {torch.float64: 2} | dict.fromkeys((torch.int8, torch.int16, torch.int32, torch.int64), 0)


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _DLManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_N_TENSORS = 1 << 15  # at a time
_DELETER = ctypes.cast(ctypes.CDLL(None).time, ctypes.c_void_p).value
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


@dataclass(eq=False)
class Block:
    """One allocation: `memory` holds it, and `stream` was current when it was made."""

    memory: Tensor
    start: int
    n_bytes: int
    stream: int
    number: int
    recorded: set[int] = field(default_factory=set)  # streams that record_stream named
    n_tensors: int = 0
    freed: bool = False  # by resize_


class Memory:
    """All blocks of the device. `allocated(block)` and `freed(block)` are called when one comes and goes."""

    def __init__(self, current_stream: Callable[[], int], allocated: Callable, freed: Callable) -> None:
        self._current_stream, self._allocated, self._freed = current_stream, allocated, freed
        self._blocks: dict[int, Block] = {}  # by address
        self._starts: list[int] = []
        self._table = (_DLManagedTensor * _N_TENSORS)()
        words = ctypes.sizeof(_DLManagedTensor) // 8
        self._first_fields = np.frombuffer(self._table, dtype=np.int64).reshape(_N_TENSORS, words)[:, 0]
        self._addresses = np.zeros(_N_TENSORS, dtype=np.int64)  # as they were written there
        self._unused = list(range(_N_TENSORS))[::-1]  # low places first
        self._used = 0  # places, at most
        self._held: dict[int, tuple] = {}  # by place in the table: what a tensor needs, and its block
        self._nothing = ctypes.create_string_buffer(64)  # the memory of tensors without elements
        self._lock = threading.RLock()  # autograd's thread uses it, too
        self._number = 0

    def on_device(self, cpu: Tensor) -> Tensor:
        """Return a tensor on the device with the memory of `cpu`: a view of its block, or a new block."""
        with self._lock:
            block = self.find(cpu.data_ptr()) if cpu.numel() else None
            if block is None and cpu.numel():
                storage = cpu.untyped_storage()
                block = self._new_block(cpu, storage.data_ptr(), storage.nbytes())
            vector, place = ctypes.c_int64 * max(cpu.ndim, 1), self._unused.pop()
            self._used = max(self._used, place + 1)
            shape, strides = vector(*cpu.shape), vector(*cpu.stride())
            address = cpu.data_ptr() or ctypes.addressof(self._nothing)
            tensor = _DLTensor(address, _PRIVATE_USE_1, 0, cpu.ndim, _CODES[cpu.dtype], 8 * cpu.element_size(), 1)
            tensor.shape, tensor.strides = shape, strides
            self._table[place], self._addresses[place] = _DLManagedTensor(tensor, None, _DELETER), address
            self._held[place] = shape, strides, block
            if block:
                block.n_tensors += 1
        managed = ctypes.addressof(self._table) + place * ctypes.sizeof(_DLManagedTensor)
        return torch._C._from_dlpack(_new_capsule(managed, b"dltensor", None))

    def on_host(self, t: Tensor) -> Tensor:
        """Return a CPU tensor with the same memory as `t`."""
        if not t.numel():
            return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype)
        block = self.find(t.data_ptr())
        start = t.data_ptr() - t.storage_offset() * t.element_size()  # of its storage, which as_strided counts from
        memory = (ctypes.c_char * (block.start + block.n_bytes - start)).from_address(start)
        memory.block = block  # lives as long as the CPU tensor
        n = len(memory) // t.element_size()
        return torch.frombuffer(memory, dtype=t.dtype, count=n).as_strided(t.shape, t.stride(), t.storage_offset())

    def find(self, address: int) -> Block | None:
        with self._lock:
            i = bisect_right(self._starts, address) - 1
            block = self._blocks[self._starts[i]] if i >= 0 else None
            return block if block is not None and address < block.start + block.n_bytes else None

    def resize(self, address: int, n_bytes: int) -> None:
        """Free a block, or allocate it again, as `untyped_storage().resize_` does."""
        with self._lock:
            block = self.find(address)
            if n_bytes == 0 and not block.freed:
                self._freed(block)
                block.freed = True
                _fill_with_nan(block)
            elif n_bytes and block.freed:
                self._number += 1
                block.freed, block.recorded, block.number = False, set(), self._number
                block.stream = self._current_stream()
                self._allocated(block)

    def _new_block(self, cpu: Tensor, start: int, n_bytes: int) -> Block:
        self._number += 1
        block = self._blocks[start] = Block(cpu, start, n_bytes, self._current_stream(), self._number)
        self._starts.insert(bisect_right(self._starts, start), start)
        self._allocated(block)
        return block

    def sweep(self) -> None:
        """Free the blocks whose last tensor torch has dropped."""
        with self._lock:
            changed = self._first_fields[: self._used] != self._addresses[: self._used]
            for place in np.nonzero(changed)[0].tolist():
                self._first_fields[place] = self._addresses[place] = 0
                *_, block = self._held.pop(place)
                self._unused.append(place)
                if block:
                    block.n_tensors -= 1
                    if not block.n_tensors:
                        self._forget(block)

    def _forget(self, block: Block) -> None:
        if not block.freed:
            self._freed(block)
        del self._blocks[block.start]
        self._starts.remove(block.start)


def _fill_with_nan(block: Block) -> None:
    whole = torch.empty(0, dtype=torch.uint8)
    whole.set_(block.memory.untyped_storage(), 0, (block.n_bytes,), (1,)).fill_(255)  # NaN in all floating-point types


def map_leaves(fn: Callable, tree):
    """Apply `fn` to what is in nested lists, tuples and dicts."""
    if isinstance(tree, (list, tuple)):
        return type(tree)(map_leaves(fn, branch) for branch in tree)
    if isinstance(tree, dict):
        return {key: map_leaves(fn, branch) for key, branch in tree.items()}
    return fn(tree)


def tensors_in(tree) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [t for branch in tree for t in tensors_in(branch)] if isinstance(tree, (list, tuple)) else []
