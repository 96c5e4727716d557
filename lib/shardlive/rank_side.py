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
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Client
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from shardlab.launch import flight_recorder, local_device
from shardlab.launch.pickling import dumps
from shardlab.measure.memory import MemoryTracker
from shardlab.measure.traffic import record_traffic

GIVEN = ("torch", "dist", "rank", "world_size", "device")  # names that each rank has from the beginning
_FIRST_NUMBERS = 6
_WAITS = re.compile(r"\bwait|\.item\(|synchronize")  # a line of a cell that may wait for other ranks
_WAITING_FILES = ("/torch/distributed/", "/torch/autograd/", "/torch/_ops.py", "/shardlab/", "/shardsim/")


@dataclass(frozen=True)
class Answer:
    """A rank's reply when a cell has ended, or a value was asked for."""

    shown: str = ""  # the value of the last line, what was sent, what is held: in words
    value: bytes | None = None  # cloudpickle
    error: str = ""  # "ZeroDivisionError: division by zero"
    traceback: str = ""


@dataclass(frozen=True)
class Place:
    """A rank's place: which cell it runs, and whether it waits for other ranks there."""

    cell: int | None  # None: it runs none
    line: str  # of the cell, "line 3: dist.all_reduce(x)"
    waits: bool  # False: it computes, or is idle
    log: list[flight_recorder.Collective]


def serve(address: str, key: bytes, marker: str) -> None:
    """Run the cells that come from the session at `address`, until it closes the connection."""
    Rank(Client(address, "AF_UNIX", authkey=key), marker).work()


class Rank:
    """The names of this rank's cells, and the two threads that work with them."""

    def __init__(self, connection, marker: str) -> None:
        self.connection, self.marker, self.sending = connection, marker, threading.Lock()
        given = (torch, dist, dist.get_rank(), dist.get_world_size(), local_device())
        self.names: dict[str, Any] = dict(zip(GIVEN, given, strict=True)) | {"__name__": "__main__"}
        self.on_gpu = local_device().type == "cuda"
        self.cells: queue.SimpleQueue = queue.SimpleQueue()
        self.cell: int | None = None  # the number of the cell that runs
        self.failed: BaseException | None = None  # the last cell's error, for `debug`
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._send("here", dist.get_rank())
        threading.Thread(target=self._listen, daemon=True, name="live").start()

    def _send(self, *message) -> None:
        with self.sending:
            self.connection.send(message)

    def work(self) -> None:
        """Run the cells that the second thread receives, until the connection closes."""
        number = None
        while True:
            try:
                if (order := self.cells.get()) is None:
                    return
                number, source, options = order
                self.cell = number
                answer = self._cell(number, source, options)
                self.cell = None
                self._send("done", number, answer)
            except KeyboardInterrupt as error:  # it came when the cell had just ended
                if self.cell is not None:
                    self.cell = None
                    self._send("done", number, Answer(error=type(error).__name__))

    def _listen(self) -> None:
        try:
            while True:
                kind, *rest = self.connection.recv()
                if kind == "run":
                    self.cells.put(rest)
                elif kind == "push":
                    self.names |= cloudpickle.loads(rest[0])
                elif kind == "place":
                    self._send("place", *rest, self.place())
                elif kind == "interrupt":
                    if self.cell is not None and not self.place().waits:
                        os.kill(os.getpid(), signal.SIGINT)
                else:  # on a thread of its own: the expression may wait for other ranks
                    threading.Thread(target=self._answer, args=(kind, *rest), daemon=True).start()
        except (EOFError, OSError):
            self.cells.put(None)

    def _cell(self, number: int, source: str, options: frozenset[str]) -> Answer:
        """Run a cell. What it prints goes to the output pipe, and then the marker, which says that this was all."""
        file = f"<cell {number}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        try:
            with ExitStack() as around:
                traffic = around.enter_context(record_traffic()) if "wire" in options else None
                tracker = around.enter_context(_tracker(self.names["device"])) if "memory" in options else None
                value = _execute(source, file, self.names)
                if self.on_gpu:
                    torch.cuda.synchronize()  # a cell has ended when the device has
            parts = [] if value is None else [described(value)]
            if traffic:
                kinds = [f"{n} {kind} ({traffic.sent_bytes(kind):,.0f} bytes)" for kind, n in traffic.kinds().items()]
                parts.append(f"sent {', '.join(kinds) or 'nothing'}")
            if tracker:
                parts.append(f"holds {sum(tracker.resident.values()):,} bytes, at most {tracker.peak.peak_bytes:,}")
            return Answer("\n".join(parts))
        except BaseException as error:  # SystemExit and KeyboardInterrupt too: the rank stays
            self.failed = error
            own = error.__traceback__.tb_next and error.__traceback__.tb_next.tb_next  # without this file's frames
            text = "".join(traceback.format_exception(type(error), error, own or error.__traceback__))
            return Answer(error=f"{type(error).__name__}: {error}".rstrip(": "), traceback=text)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.write(1, f"{self.marker}{number}\n".encode())

    def _answer(self, kind: str, token: int, expression: str) -> None:
        """Answer a question: "pull" asks for a value, "debug" for one in the frame of a cell that failed last."""
        if self.on_gpu:
            torch.cuda.set_device(self.names["device"])
        try:
            names = self.names
            if kind == "debug":
                if self.failed is None:
                    raise LookupError("no cell has failed on this rank")
                frames = [frame for frame, _ in traceback.walk_tb(self.failed.__traceback__)]
                names = next((f for f in frames[::-1] if f.f_code.co_filename.startswith("<cell")), frames[-1]).f_locals
            if expression:
                value = eval(expression, self.names, dict(names))
                self._send("value", token, Answer(described(value), dumps(value)))
            else:
                own = {name: v for name, v in names.items() if name not in GIVEN and not name.startswith("__")}
                text = "\n".join(f"{name} = {described(value)}" for name, value in own.items())
                self._send("value", token, Answer(text, dumps(list(own))))
        except Exception as error:
            self._send("value", token, Answer(error=f"{type(error).__name__}: {error}"))

    def place(self) -> Place:
        """Return where the main thread is. It waits if it stands where ranks wait, and uses no CPU there."""
        log, cell = flight_recorder.collectives(last=50), self.cell
        if cell is None:
            return Place(None, "", False, log)
        main = threading.main_thread().ident
        clock = time.pthread_getcpuclockid(main)
        before = time.clock_gettime(clock)
        innermost = sys._current_frames()[main]
        while innermost.f_code.co_filename.endswith("/threading.py"):  # a simulated network waits there
            innermost = innermost.f_back
        frame = innermost
        while frame.f_back and not frame.f_code.co_filename.startswith("<cell"):
            frame = frame.f_back
        file, line = innermost.f_code.co_filename, linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        waits = bool(_WAITS.search(line)) if innermost is frame else any(part in file for part in _WAITING_FILES)
        if waits and not self.on_gpu:  # there a thread that waits for the device is busy
            time.sleep(0.02)
            waits = time.clock_gettime(clock) - before < 0.005
        return Place(cell, f"line {frame.f_lineno}: {line}", waits, log)


def _execute(source: str, file: str, names: dict[str, Any]) -> Any:
    """Execute a cell; return the value of its last line, if that is an expression without a semicolon."""
    tree = ast.parse(source, file)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, file, "exec"), names)
    value = eval(compile(ast.Expression(last.value), file, "eval"), names) if last else None
    return None if source.rstrip().endswith(";") else value


def _tracker(device: torch.device) -> MemoryTracker:
    """Return a tracker that knows every tensor that is there already."""
    tracker = MemoryTracker(nn.Module(), device=device)
    tracker.label("other", *(t for t in gc.get_objects() if issubclass(type(t), Tensor)))
    return tracker


def described(value: Any) -> str:
    """Return a value in words: a tensor by its shape, dtype and first numbers; a DTensor also by this rank's part."""
    if isinstance(value, DTensor):
        return f"DTensor {list(value.shape)} {list(value.placements)}; here {described(value.to_local().detach())}"
    if isinstance(value, Tensor):
        head = f"tensor {list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
        if value.untyped_storage().nbytes() < value.numel() * value.element_size():
            return f"{head}, freed"
        numbers = value.detach().flatten()[:_FIRST_NUMBERS].tolist()
        text = ", ".join(f"{x:.4g}" if isinstance(x, float) else str(x) for x in numbers)
        return f"{head}: {text}{', ...' if value.numel() > _FIRST_NUMBERS else ''}"
    if type(value) in (tuple, list) and any(isinstance(v, Tensor) for v in value):
        return "(" + ", ".join(map(described, value)) + ")"
    return repr(value)
