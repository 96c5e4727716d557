"""Write traces as torch.profiler does on CUDA and ROCm, without a GPU.

Source: Kineto's output_json.cpp (the fields; kernels and launches share `correlation`; a kernel's pid is the device,
its tid the stream), GenericTraceActivity; c10d's ParamCommsUtils.hpp (the kernels' arguments) and Ops.cpp (the calls'
arguments: outputs first). Times are in microseconds. As on a GPU, autograd has a thread of its own.
"""

import json
import time
from pathlib import Path

HOST, AUTOGRAD, GLOO = 1, 2, 3  # threads
COMPUTE, COMMUNICATE = 7, 20  # streams


class Trace:
    """Events of one rank; each method adds some."""

    def __init__(self, backend: str = "cpu:gloo,cuda:nccl", rank: int = 1, world_size: int = 4) -> None:
        self.info = {"backend": backend, "rank": rank, "world_size": world_size}
        self.events: list[dict] = []

    def event(self, category: str, name: str, ts: float, dur: float, thread: int = HOST, **args) -> None:
        where = {"pid": 0 if category in ("kernel", "gpu_memcpy", "gpu_memset") else 4711, "tid": thread}
        self.events.append({"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, "args": args} | where)

    def label(self, name: str, ts: float, dur: float, thread: int = HOST) -> None:
        self.event("user_annotation", name, ts, dur, thread)

    def backward(self, ts: float, dur: float) -> None:
        self.event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", ts, dur, AUTOGRAD)

    def kernel(self, name: str, asked: float | None, ts: float, dur: float, thread: int = HOST, **args) -> None:
        """A kernel, and its launch at `asked`; None: a launch that the trace does not have."""
        number = len(self.events)
        if asked is not None:
            self.event("cuda_runtime", "cudaLaunchKernelExC", asked, 1, thread, correlation=number)
        stream = COMMUNICATE if "nccl" in name else COMPUTE
        self.event("kernel", name, ts, dur, stream, correlation=number, device=0, stream=stream, **args)

    def copy(self, name: str, asked: float, ts: float, dur: float, n_bytes: int) -> None:
        number = len(self.events)
        self.event("cuda_runtime", "cudaMemcpyAsync", asked, 1, correlation=number)
        category = "gpu_memset" if name.startswith("Memset") else "gpu_memcpy"
        self.event(category, name, ts, dur, COMPUTE, correlation=number, bytes=n_bytes)

    def collective(
        self,
        kernel: str,
        asked: float,
        ts: float,
        dur: float,
        call: str = "",
        annotation: str = "",
        dims: list | None = None,
        types: list | None = None,
        thread: int = HOST,
        **args,
    ) -> None:
        """A collective: the host's c10d call with its shapes, inside it NCCL's annotation, inside that the launch."""
        shapes = {"Input Dims": dims, "Input type": types} if dims is not None else {}
        if call:
            self.event("cpu_op", f"c10d::{call}", asked - 3, 8, thread, **shapes)
        if annotation:
            first = [t for t in types or [] if t not in ("", "TensorList", "Scalar")]
            of_annotation = {"Input Dims": [[1]], "Input type": first or ["float"]} if dims is not None else {}
            self.event("user_annotation", f"nccl:{annotation}", asked - 1, 4, thread, **of_annotation)
        self.kernel(kernel, asked, ts, dur, thread, **args)

    def write(self, path: Path, base_ns: int | None = None) -> Path:
        """Write the file; times begin at `base_ns` after the epoch, or now."""
        base = {"baseTimeNanoseconds": time.time_ns() if base_ns is None else base_ns}
        path.write_text(
            json.dumps({"schemaVersion": 1, "distributedInfo": self.info, "traceEvents": self.events} | base)
        )
        return path


def said_by_c10d(name: str, into: int, out: int, dtype: str = "BFloat16") -> dict:
    """Arguments of a kernel whose process group told its size (`record_param_comms`)."""
    sizes = {"In msg nelems": into, "Out msg nelems": out, "dtype": dtype}
    return {"Collective name": name, **sizes, "Group size": 4, "Process Group Name": "0"}
