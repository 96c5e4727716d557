"""Replicas that may be killed and started again while the others go on, which `launch` does not allow. Lesson 22."""

import multiprocessing as mp
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

from shardlab import warm_up
from shardlab.launch.pickling import dumps

Body = Callable[[dist.Store, int, bool], Any]  # (store, number of the replica, whether it was started again)
LONGEST_S = 90.0


def run_replicas(body: Body, n: int, dies: int, back_after: int) -> tuple[list[Any], int]:
    """Run `body` in `n` processes. When replica `dies` has ended, start it again.

    It comes back when the store's number "steps", to which each replica adds 1 in a step, has grown by `back_after`.
    Return what each replica returns, and the exit code of the one that ended first. No process is left.
    """
    warm_up()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = mp.get_context("forkserver")
    results = context.Queue()

    def started(me: int, back_at: int = 0) -> mp.process.BaseProcess:
        process = context.Process(target=_run, args=(dumps(body), store.port, me, back_at, results), daemon=True)
        process.start()
        return process

    processes = [started(me) for me in range(n)]
    try:
        processes[dies].join(LONGEST_S)
        code = processes[dies].exitcode
        processes.append(started(dies, store.add("steps", 0) + back_after))
        found = dict(results.get(timeout=LONGEST_S) for _ in range(n))
        return [cloudpickle.loads(found[me]) for me in range(n)], code
    finally:
        for process in processes:
            process.kill()
            process.join()


def group_of(store: dist.Store, name: str, rank: int, size: int) -> dist.ProcessGroupGloo:
    """Return a new gloo group of `size` processes that meet under `name`. A lost peer raises RuntimeError soon."""
    return dist.ProcessGroupGloo(dist.PrefixStore(name, store), rank, size, timedelta(seconds=5))


def gradient(w: torch.Tensor, step: int, me: int) -> torch.Tensor:
    """Return replica `me`'s gradient of a linear regression with 8 weights, on its 16 samples of a step."""
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1000 * step + me))
    return 2 * x.T @ (x @ w - x.sum(1, keepdim=True)) / 16


def _run(body: bytes, port: int, me: int, back_at: int, results: Any) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=30))
    while store.add("steps", 0) < back_at:
        time.sleep(0.05)
    results.put((me, dumps(cloudpickle.loads(body)(store, me, back_at > 0))))
