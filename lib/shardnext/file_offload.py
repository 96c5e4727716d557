"""Optimizer states in a file: memory holds three buffers of them, however large the model is.

Vocabulary. A *chunk* is read, updated and written as a whole: the states of several small parameters, or of a *piece*
of a large one, as many as fit a buffer. `file_layout` says where they lie.

    chunk 0   read   update   write
    chunk 1          read     update   write
    chunk 2                   read     update   write        three buffers, taken in turn

[Note: order] Two threads carry out reads and writes; Python's lock is free while the system copies. Chunk i is updated
after its read has ended. Chunk i is read after the write of chunk i-3, which used the same buffer, has ended. Nothing
else waits. Chunks are disjoint in the file, so reads and writes never overlap there.

[Note: a failure midway] Two checks come first: the disk space is reserved when the file is made, and the file's length
is checked before every step. If a read or write still fails, some parameters have been updated and others have not. The
optimizer then refuses to go on, so that ranks do not drift apart.

The system may keep file data in unused memory (the page cache). It frees that memory when programs need it.

Source: Rajbhandari et al. 2021, "ZeRO-Infinity" (SC21), sections 5 and 6; DeepSpeed's swap_tensor.
"""

import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from shardlab.backward_hooks import refuse_sparse
from shardlab.shard_groups import hyperparameters, local
from shardnext.file_layout import Piece, Span, chunks, elementwise_states, layout, placed, rounded_up

N_BUFFERS = 3


class FileOffloadOptimizer(Optimizer):
    """Run an element-wise `optimizer_class` on chunks of parameters, with states read from a file and written back.

    Takes parameters or groups of them, like any optimizer. Parameters and gradients stay on their device and are
    updated there. Each rank has one file in `folder`. By default the file has no name, so it vanishes with the process
    however that ends. With `keep=True` it stays, at `path`. `state_dict` holds views of the file, not copies.

    Reads and writes a step: all states once; for Adam with float32 states 8 bytes a parameter each way. The first step
    reads nothing. `bytes_read` and `bytes_written` count them.
    Keeps: 3 `buffer_bytes` of host memory, pinned if there is a GPU; on the GPU, at most as much again during a step.
    States that are not of the parameter's size, such as `step`, stay in memory.

    Raises ValueError if `optimizer_class` is not element-wise or keeps no states; OSError if the folder does not exist
    or the disk is too small; RuntimeError if the file has been cut short, and in all steps after one that failed
    midway.
    """

    states_on_host = states_in_file = True

    def __init__(
        self,
        params: Iterable,
        optimizer_class: Callable[..., Optimizer],
        folder: str | os.PathLike,
        buffer_bytes: int = 64 << 20,
        *,
        keep: bool = False,
        **defaults,
    ) -> None:
        self.bytes_read = self.bytes_written = 0
        self._make = lambda group, p: optimizer_class([hyperparameters(group) | {"params": [p]}], **defaults)
        self._failed: BaseException | None = None
        super().__init__(params, defaults)
        whole = layout(self.param_groups, partial(elementwise_states, self._make))
        self._chunks = chunks(whole, buffer_bytes)
        self._spans = {piece.param: piece.spans for piece in whole}
        self.n_bytes = sum(rounded_up(span.n_bytes) for piece in whole for span in piece.spans)  # the file's length
        self.path, self._fd = _reserve(Path(folder), self.n_bytes, keep)
        weakref.finalize(self, os.close, self._fd)
        self._map = mmap.mmap(self._fd, self.n_bytes) if self.n_bytes else b""
        on_cpu = all(p.device.type == "cpu" for group in self.param_groups for p in group["params"])
        self._buffers = [torch.empty(buffer_bytes, dtype=torch.uint8, pin_memory=not on_cpu) for _ in range(N_BUFFERS)]

    def add_param_group(self, param_group: dict) -> None:
        """Add a group, at construction only, since the file is laid out once."""
        if hasattr(self, "_chunks"):
            raise RuntimeError("the file of states is laid out: give all parameters at once, also those trained later")
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            if not local(p).is_contiguous():
                raise ValueError(f"a parameter of shape {list(p.shape)} is not contiguous: make it so before")

    def __getstate__(self) -> dict:
        raise TypeError("FileOffloadOptimizer can't be copied or pickled: save its state_dict()")

    # A step

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update the parameters that have a gradient, chunk by chunk."""
        loss = None
        if closure:
            with torch.enable_grad():
                loss = closure()
        self._check_states()
        for p in self._spans:
            if p.grad is not None:
                refuse_sparse(p.grad, f"a parameter of shape {list(p.shape)}")
        with_gradient = [[piece for piece in chunk if piece.param.grad is not None] for chunk in self._chunks]
        try:
            self._walk([chunk for chunk in with_gradient if chunk])
        except BaseException as error:
            self._failed = error
            raise
        return loss

    def _check_states(self) -> None:
        if self._failed:
            raise RuntimeError("a step failed midway: load the last checkpoint and go on from there") from self._failed
        self._check_file()

    def _check_file(self) -> None:
        if (found := os.fstat(self._fd).st_size) < self.n_bytes:
            at = self.path or "its file, which has no name"
            raise RuntimeError(f"optimizer states are lost: {at} has been cut from {self.n_bytes} bytes to {found}")

    def _walk(self, chunks: list[list[Piece]]) -> None:
        known = dict(self.state)  # before this step, so that all chunks of a parameter take the same step
        buffers = [self._buffers[i % N_BUFFERS] for i in range(len(chunks) + 1)]
        writes: list[Future] = []
        with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(1) as writer:
            read = reader.submit(self._read, chunks[0], buffers[0], known) if chunks else None
            for i, chunk in enumerate(chunks):
                self.bytes_read += read.result()
                if i + 1 < len(chunks):
                    used_before = writes[i + 1 - N_BUFFERS] if i + 1 >= N_BUFFERS else None
                    read = reader.submit(self._read, chunks[i + 1], buffers[i + 1], known, used_before)
                self._update(chunk, buffers[i], known)
                writes.append(writer.submit(self._write, chunk, buffers[i]))
        self.bytes_written += sum(write.result() for write in writes)

    def _read(self, chunk: list[Piece], buffer: Tensor, known: dict, used_before: Future | None = None) -> int:
        if used_before:
            used_before.result()
        wanted = [(span, memory) for piece, span, memory in placed(chunk, buffer) if piece.param in known]
        return sum(_all_of(os.preadv, self._fd, memory, span.offset) for span, memory in wanted)

    def _write(self, chunk: list[Piece], buffer: Tensor) -> int:
        return sum(_all_of(os.pwritev, self._fd, memory, span.offset) for _, span, memory in placed(chunk, buffer))

    def _update(self, chunk: list[Piece], buffer: Tensor, known: dict) -> None:
        for piece, spans in groupby(placed(chunk, buffer), key=itemgetter(0)):
            self._update_piece(piece, {span.name: memory.view(span.dtype) for _, span, memory in spans}, known)

    def _update_piece(self, piece: Piece, in_buffer: dict[str, Tensor], known: dict) -> None:
        p, interval = piece.param, slice(piece.start, piece.end)
        part = local(p).view(-1)[interval]
        part.grad = local(p.grad).reshape(-1)[interval]
        optimizer = self._make(piece.group, part)
        if p in known:
            in_memory = {name: _copied(value) for name, value in known[p].items()}
            optimizer.state[part] = in_memory | {name: t.to(p.device) for name, t in in_buffer.items()}
        optimizer.step()
        states = optimizer.state[part]
        for name, t in in_buffer.items():
            t.copy_(states.pop(name))
        self.state[p] = states  # all pieces of a parameter give the same

    # State

    def _in_file(self, p: nn.Parameter) -> dict[str, Tensor]:
        """Return views of the file, in the shape of this rank's part of the parameter."""
        return {span.name: self._view(span).view(local(p).shape) for span in self._spans[p]}

    def _view(self, span: Span) -> Tensor:
        if not span.n_bytes:
            return torch.empty(0, dtype=span.dtype)
        count = span.n_bytes // span.dtype.itemsize
        return torch.frombuffer(self._map, dtype=span.dtype, count=count, offset=span.offset)

    def state_dict(self) -> dict:
        """Return the state; tensors of a parameter's size are views of the file: copy them before the next step."""
        self._check_states()
        packed = super().state_dict()
        params = [p for group in self.param_groups for p in group["params"]]
        for index, states in packed["state"].items():
            packed["state"][index] = states | self._in_file(params[index])
        return packed

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict) -> None:
        self._check_file()
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update(hyperparameters(saved))
            for p, index in zip(group["params"], saved["params"], strict=True):
                self.state.pop(p, None)
                if states := dict(state_dict["state"].get(index, {})):
                    for name, t in self._in_file(p).items():
                        t.copy_(local(states.pop(name)))
                    self.state[p] = {name: _copied(value) for name, value in states.items()}
        self._failed = None


def _all_of(move: Callable, fd: int, memory: Tensor, offset: int) -> int:
    """Read or write all of `memory` and return its bytes; the system may move only a part at a time."""
    rest = memoryview(memory.numpy())
    while rest:
        moved = move(fd, [rest], offset)
        if not moved:
            raise OSError("the file of optimizer states ends too early")
        rest, offset = rest[moved:], offset + moved
    return memory.numel()


def _reserve(folder: Path, n_bytes: int, keep: bool) -> tuple[Path | None, int]:
    """Make a file of n_bytes and reserve its disk space; return its path (None if it has no name) and descriptor."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is to hold optimizer states, but there is no such folder: make it first")
    rank = dist.get_rank() if dist.is_initialized() else 0
    path, fd = _open(folder, rank, keep)
    try:
        if n_bytes:
            getattr(os, "posix_fallocate", lambda fd, _, size: os.ftruncate(fd, size))(fd, 0, n_bytes)
    except OSError as error:
        os.close(fd)
        if path:
            path.unlink()
        raise OSError(
            error.errno, f"rank {rank} has no room for {n_bytes} bytes of optimizer states", folder
        ) from error
    return path, fd


def _open(folder: Path, rank: int, keep: bool) -> tuple[Path | None, int]:
    """Open a new file. Without `keep`, and if the system can, it never has a name: a killed process leaves nothing."""
    if not keep:
        with tempfile.TemporaryFile(dir=folder) as file:
            return None, os.dup(file.fileno())
    fd, path = tempfile.mkstemp(prefix=f"optimizer_states_rank{rank}_", dir=folder)
    return Path(path), fd


def _copied(value):
    return value.clone() if torch.is_tensor(value) else value
