"""A log of megabytes is read in seconds: 100 MB in ten, so 20 MB in two seconds of this process."""

import random
import time

import pytest
from deadlines import deadline_s

from shardwhy.first_cause import diagnose
from shardwhy.index import load
from shardwhy.logs import Log

MEGABYTES = 20
LINES = (
    "[rank{rank}]: [2024-05-01 10:{a:02}:{b:02},123] [INFO] step {n} loss 2.{n} grad_norm 0.{n} lr 3e-4",
    "node{rank}:{n}:{n} [{rank}] NCCL INFO Channel {a:02}/0 : {rank}[{rank}] -> {b}[{b}] via P2P/CUMEM/read",
    "\x1b[36m(RayTrainWorker pid={n}, ip=10.0.0.{a})\x1b[0m Expected loss below 2, CUDA memory {n} MiB",
    "Epoch {a}:  {b}%|######    | {n}/500150 [6:28:43<94:39:17, loss=2.6]\rEpoch {a}:  {b}%|######    | {n}/500150",
    "W0501 10:{a:02}:{b:02}.000000 {n} elastic/multiprocessing/api.py:900] Sending process {n} closing signal",
    "DEBUG:urllib3.connectionpool:https://example.org:443 GET /api/models/{n} HTTP/1.1 200 {n}",
)
MESSAGE = "[rank5]: RuntimeError: Expected to mark a variable ready only once. This error is caused by one of"


def noise(megabytes: int, kinds=LINES) -> str:
    """Lines of a job on which nothing is wrong."""
    draw = random.Random(1)
    ready = [
        draw.choice(kinds).format(rank=draw.randrange(8), a=draw.randrange(60), b=draw.randrange(60), n=draw.random())
        for _ in range(20_000)
    ]
    block = "\n".join(ready) + "\n"
    return block * (megabytes * 1_000_000 // len(block.encode()) + 1)


def seconds_of(text: str) -> float:
    data = text.encode()
    entries = load().values()
    began = time.process_time()
    cause = diagnose([Log(data)], entries).cause
    took = time.process_time() - began
    assert cause.entry.id == "ready_only_once" and cause.rank == 5
    return took


@pytest.mark.parametrize("kinds", [LINES, LINES[3:4]], ids=["mixed", "progress bars"])
def test_a_large_log_is_read_fast(kinds):
    assert seconds_of(noise(MEGABYTES, kinds) + MESSAGE) < deadline_s(1)


def test_a_message_that_is_repeated_a_hundred_thousand_times_is_not_read_as_often():
    timeout = "[rank{}]:[E501 09:10:04.4] [Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={})\n"
    text = "".join(timeout.format(n % 8, n % 8, n) for n in range(100_000))
    assert seconds_of(text + MESSAGE) < deadline_s(1)


def test_a_log_in_one_line_is_read_fast():
    bars = "WARNING 1: 10%|#    | 5/50 [00:01<00:09] CUDA out of memory. Tried to allocate, in a text\r"
    assert seconds_of(bars * (MEGABYTES * 1_000_000 // len(bars)) + MESSAGE) < deadline_s(1)
