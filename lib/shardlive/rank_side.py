"""A live rank: its main thread runs cells, and a second thread answers the notebook, also while a cell waits.

All cells run on the one main thread: autograd, `no_grad` and the current device belong to a thread, and Python delivers
an interrupt to the main thread. A rank that waits in C++ releases Python's lock, so the second thread is never deaf.
"""

import ast
import gc
import linecache
import os
import queue
import re
import signal
import sys
import threading
import time
import traceback
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from shardlab.launch import flight_recorder, local_device, rank_main
from shardlab.launch.pickling import dumps
from shardlab.launch.rank_main import cut, said
from shardlab.measure.memory import MemoryTracker
from shardlab.measure.traffic import record_traffic

GIVEN = ("torch", "dist", "rank", "world_size", "device")  # names that each rank has from the beginning
_FIRST_NUMBERS = 6
_WAITS = re.compile(r"\bwait|\.item\(|synchronize")  # a line of a cell that may wait for other ranks
_WAITING_FILES = re.compile("/torch/(distributed/|autograd/|_ops.py)|/shardlab/|/shardsim/")


@dataclass(frozen=True)
class Answer:
    """A rank's reply when a cell has ended, or a value was asked for."""

    shown: str = ""  # the value of the last line, what was sent, what is held: in words
    value: bytes | None = None  # cloudpickle
    error: str = ""  # "ZeroDivisionError: division by zero"
    traceback: str = ""


@dataclass(frozen=True)
class Place:
    """A rank's place: whether it runs a cell, and whether it waits for other ranks there."""

    is_busy: bool
    line: str  # of the cell, "line 3: dist.all_reduce(x)"
    waits: bool  # False: it computes, or is idle
    log: list[flight_recorder.Collective]
    arguments: str = ""  # of the collective that it is in, as far as they are known


def serve(marker: str) -> None:
    """Run the cells that the second thread receives. After a cell's output comes the marker: this was all."""
    rank, output = Rank(), os.dup(1)  # a cell may close or replace its streams
    while True:
        number, name, source, options = rank.cells.get()
        answer = rank.run(f"<cell {name or number}>", source, options)
        with suppress(Exception):
            rank_main.flush()
        rank_main.send(("answer", (number, answer)))  # first: a process that the cell has forked ends here
        os.write(output, f"{marker}{number}\n".encode())


class Rank:
    """The names of this rank's cells, and the two threads that work with them."""

    def __init__(self) -> None:
        self.device = local_device()
        given = (torch, dist, dist.get_rank(), dist.get_world_size(), self.device)
        self.names: dict[str, Any] = dict(zip(GIVEN, given, strict=True)) | {"__name__": "__main__"}
        self.cells: queue.SimpleQueue = queue.SimpleQueue()
        self.is_busy = False  # a cell runs, and an interrupt may end it
        self.failed: BaseException | None = None  # the last cell's error, for `debug`
        signal.signal(signal.SIGINT, self._interrupted)
        threading.Thread(target=self._listen, daemon=True, name="live").start()

    def run(self, file: str, source: str, options: frozenset[str]) -> Answer:
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        try:
            self.is_busy = True
            wire = record_traffic() if "wire" in options else nullcontext()
            memory = MemoryTracker(torch.nn.Module(), device=self.device) if "memory" in options else nullcontext()
            with wire as traffic, memory as tracker:
                if tracker:  # it must know of the tensors that are there already, and of the gradients of leaves
                    tensors = [t for t in gc.get_objects() if issubclass(type(t), torch.Tensor)]
                    tracker.label("other", *tensors, *(t.grad for t in tensors if t.is_leaf and t.grad is not None))
                    del tensors  # the cell may delete some of them
                value = _execute(source, file, self.names)
                torch.get_device_module(self.device).synchronize()  # a cell has ended when the device has
            parts = [] if value is None else [described(value)]
            if traffic:
                kinds = [f"{n} {kind} ({traffic.sent_bytes(kind):,.0f} bytes)" for kind, n in traffic.kinds().items()]
                parts.append(f"sent {', '.join(kinds) or 'nothing'}")
            if tracker:
                parts.append(f"holds {sum(tracker.resident.values()):,} bytes, at most {tracker.peak.peak_bytes:,}")
            self.is_busy = False  # here: an interrupt before this is caught below, and one after it is ignored
            return Answer("\n".join(parts))
        except BaseException as error:  # SystemExit and KeyboardInterrupt too: the rank stays
            rank_main.end_if_forked(error)
            self.is_busy, self.failed = False, error
            own = error.__traceback__
            while own and not _is_of_a_cell(own.tb_frame):
                own = own.tb_next
            text = "".join(traceback.format_exception(type(error), error, own))
            return Answer(error=_said(error), traceback=cut(text))

    def _interrupted(self, *_) -> None:
        if self.is_busy:
            raise KeyboardInterrupt

    def _listen(self) -> None:
        while True:
            kind, number, *what = rank_main.orders.get()
            if kind == "run":
                self.cells.put((number, *what))
            elif kind == "place":
                rank_main.send(("answer", (number, self.place())))
            elif kind == "interrupt":
                if not self.place().waits:
                    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            else:  # on a thread of its own: the expression may wait for other ranks
                threading.Thread(target=self._answer, args=(kind, number, *what), daemon=True).start()

    def _answer(self, kind: str, number: int, what: Any) -> None:
        """Answer a question: "pull" asks for a value, "debug" for one in the frame that failed, "push" brings names."""
        try:
            torch.get_device_module(self.device).set_device(self.device)
            if kind == "push":
                pushed = cloudpickle.loads(what)
                for f in (v for v in pushed.values() if getattr(v, "__module__", "") == "__main__"):
                    for name in GIVEN:  # the notebook's function may use `rank`
                        getattr(f, "__globals__", {}).setdefault(name, self.names[name])
                self.names |= pushed
                answer = Answer()
            else:
                names = self._names_where_it_failed() if kind == "debug" else self.names
                value = eval(what, self.names, dict(names)) if what else None
                answer = Answer(described(value), dumps(value)) if what else _listed(names)
        except BaseException as error:  # SystemExit, too: the notebook waits for an answer
            answer = Answer(error=_said(error))
        rank_main.send(("answer", (number, answer)))

    def _names_where_it_failed(self) -> dict[str, Any]:
        if self.failed is None:
            raise LookupError("no cell has failed on this rank")
        frames = [frame for frame, _ in traceback.walk_tb(self.failed.__traceback__)]
        return next((frame.f_locals for frame in frames[::-1] if _is_of_a_cell(frame)), self.names)

    def place(self) -> Place:
        """Return where the main thread is, and whether it waits for other ranks there.

        On the CPU it waits if it stands where ranks wait, and uses no CPU there. A thread that waits for a GPU is busy.
        But it stays at one instruction, and NCCL's record tells whether the GPU has come to a collective.
        """
        log = flight_recorder.collectives(last=50)
        if not self.is_busy:
            return Place(not self.cells.empty(), "", False, log)
        main = threading.main_thread().ident
        top = sys._current_frames()[main]
        frames = [frame for frame, _ in traceback.walk_stack(top)]
        instruction, before = top.f_lasti, _computed_s()
        own = next(filter(_is_of_a_cell, frames), None)
        code = linecache.getline(own.f_code.co_filename, own.f_lineno).strip() if own else ""
        time.sleep(0.02)
        if self.device.type == "cpu":
            # A simulated network waits in threading.py.
            inner = next(frame for frame in frames if not frame.f_code.co_filename.endswith("/threading.py"))
            where = _WAITS.search(code) if inner is own else _WAITING_FILES.search(inner.f_code.co_filename)
            waits = bool(where) and _computed_s() - before < 0.005
        else:
            stays = sys._current_frames()[main] is top and top.f_lasti == instruction
            waits = stays and any(c.state == "started" or (c.backend, c.state) == ("gloo", "issued") for c in log)
        line = f"line {own.f_lineno}: {code}" if own else "the end of the cell"
        return Place(True, line, waits, log, _arguments(frames, log))


def _arguments(frames: list, log: list[flight_recorder.Collective]) -> str:
    """Return arguments that no flight record has, "op=MAX, group_dst=1", of torch's call in which a rank is.

    "" if the rank has other calls that are open, or none.
    """
    calls = [c.kind for c in log if c.state != "finished"]
    torchs = (f for f in frames if f.f_code.co_filename.endswith("/distributed_c10d.py"))
    names = next((f.f_locals for f in torchs if len(calls) == 1 and f.f_code.co_name.startswith(calls[0])), {})
    same_on_all = {n: names[n] for n in ("op", "group_src", "group_dst") if names.get(n) is not None}
    return ", ".join(f"{name}={str(value).split('.')[-1]}" for name, value in same_on_all.items())


def _computed_s() -> float:
    """Seconds that the main thread has computed, or would have on a machine that nobody else uses."""
    file = Path(f"/proc/self/task/{os.getpid()}/schedstat")  # a Mac has no such file
    ran_ns, waited_for_a_cpu_ns, _ = map(int, file.read_text().split() if file.exists() else (0, 0, 0))
    return (ran_ns + waited_for_a_cpu_ns) / 1e9 if ran_ns else time.process_time()


def _is_of_a_cell(frame) -> bool:
    return frame.f_code.co_filename.startswith("<cell")


def _execute(source: str, file: str, names: dict[str, Any]) -> Any:
    """Execute a cell; return the value of its last line, if that is an expression without a semicolon."""
    tree = ast.parse(source, file)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, file, "exec"), names)
    value = eval(compile(ast.Expression(last.value), file, "eval"), names) if last else None
    return None if source.rstrip().endswith(";") else value


def _said(error: BaseException) -> str:
    magic = isinstance(error, SyntaxError) and re.match(r"\s*[%!]", error.text or "")
    return cut(said(error)) + (": a rank runs plain Python, no % and no !" if magic else "")


def _listed(names: dict[str, Any]) -> Answer:
    own = {name: value for name, value in names.items() if name not in GIVEN and not name.startswith("__")}
    return Answer("\n".join(f"{name} = {described(value)}" for name, value in own.items()), dumps(list(own)))


def described(value: Any) -> str:
    """Return a value in words: a tensor by its shape, dtype and first numbers; a DTensor also by this rank's part."""
    if isinstance(value, DTensor):
        return f"DTensor {list(value.shape)} {list(value.placements)}; here {described(value.to_local().detach())}"
    if isinstance(value, torch.Tensor):
        head = f"tensor {list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
        if value.untyped_storage().nbytes() < value.numel() * value.element_size():
            return f"{head}, freed"
        numbers = value.detach().flatten()[:_FIRST_NUMBERS].tolist()
        text = ", ".join(f"{x:.4g}" if isinstance(x, float) else str(x) for x in numbers)
        return f"{head}: {text}{', ...' if value.numel() > _FIRST_NUMBERS else ''}"
    if type(value) in (tuple, list) and any(isinstance(v, torch.Tensor) for v in value):
        return "(" + ", ".join(map(described, value)) + ")"
    return cut(repr(value))
