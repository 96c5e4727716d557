"""The stand-in GPU and its backend: mistakes are seen, and what is right is not reported."""

import platform
import time

import pytest
from on_gpus import on_gpus


def one_gpu(fn) -> list[str]:
    """Run fn(torch, device module) on one rank; return what the sanitizer reported."""

    def on_rank():
        import stand_in_gpu
        import torch

        fn(torch, torch.gpu)
        torch.empty(1, device="gpu")  # gives freed memory to somebody else
        with torch.gpu.stream(_side(torch)):
            torch.empty(1, device="gpu")
        return [report.what for report in stand_in_gpu.gpu.sanitizer.reports]

    def _side(torch):
        return getattr(torch.gpu, "side", None) or torch.gpu.Stream()

    return on_gpus(on_rank, 1)[0]


def reads_on_another_stream(torch, gpu, *, waits: bool, records: bool = True, holds: bool = False):
    side = gpu.side = gpu.Stream()
    a = torch.ones(1000, device="gpu")
    if waits:
        side.wait_stream(gpu.current_stream())
    with gpu.stream(side):
        b = a + 1
    if records:
        a.record_stream(side)
    if holds:
        gpu.current_stream().wait_stream(side)
    del a, b


@pytest.mark.parametrize(
    ("waits", "records", "holds", "reported"),
    [
        (True, True, False, ""),
        (True, False, True, ""),
        (False, True, False, "aten.add.out on stream 1 (read) has no order after"),
        (
            True,
            False,
            False,
            "memory of stream 0 was freed, and can be used again, before aten.add.out on stream 1 (read)",
        ),
    ],
)
def test_reports_races_and_memory_freed_too_early(waits, records, holds, reported):
    found = one_gpu(lambda torch, gpu: reads_on_another_stream(torch, gpu, waits=waits, records=records, holds=holds))
    assert len(found) == bool(reported) and all(what.startswith(reported) for what in found)


@pytest.mark.parametrize("synchronizes", [True, False])
def test_reports_a_host_that_reads_pinned_memory_too_early(synchronizes):
    def program(torch, gpu):
        host = torch.empty(10, pin_memory=True)
        host.copy_(torch.ones(10, device="gpu"), non_blocking=True)
        if synchronizes:
            gpu.current_stream().synchronize()
        host.sum()

    found = one_gpu(program)
    assert found == [] if synchronizes else "on the host (read) has no order after aten::copy_ on stream 0" in found[0]


def test_resized_memory_is_freed_and_holds_nothing():
    def program(torch, gpu):
        a = torch.ones(10, device="gpu")
        a.untyped_storage().resize_(0)
        assert a.untyped_storage().nbytes() == 0
        a.untyped_storage().resize_(a.nbytes)
        assert a.isnan().all()
        a.untyped_storage().resize_(0)
        a + 1

    assert one_gpu(program) == ["aten.add.out uses memory that resize_ has freed"]


def test_tensors_of_two_devices_can_not_be_mixed():
    def program(torch, gpu):
        with pytest.raises(RuntimeError, match="same device"):
            torch.ones(2, device="gpu") + torch.ones(2)
        with pytest.raises(RuntimeError, match="same device"):
            torch.nn.functional.embedding(torch.zeros(2, dtype=torch.int64), torch.ones(3, 2, device="gpu"))

    assert one_gpu(program) == []


def test_backward_runs_on_a_thread_of_its_own_as_on_a_gpu():
    def program(torch, gpu):
        import threading

        threads = []
        a = torch.ones(2, device="gpu", requires_grad=True)
        b = a * 2
        b.register_hook(lambda g: threads.append(threading.get_ident()))
        b.sum().backward()
        assert threads and threads != [threading.get_ident()]

    assert one_gpu(program) == []


# NCCL's manners


def _late_peer():
    """Rank 1 comes a second late: what rank 0 has to wait for, in seconds, and what it reads."""
    import stand_in_gpu
    import torch
    import torch.distributed as dist

    took = {}

    def timed(what, call):
        began = time.monotonic()
        result = call()
        took[what] = time.monotonic() - began
        return result

    x, y = (torch.full((3,), float(dist.get_rank() + 1), device="gpu") for _ in range(2))
    dist.all_reduce(torch.zeros(1, device="gpu"))  # makes the communicator
    dist.barrier()
    time.sleep(1.0 * dist.get_rank())
    assert timed("synchronous", lambda: dist.all_reduce(x)) is None
    work = timed("asynchronous", lambda: dist.all_reduce(y, async_op=True))
    too_early = timed("kernel", lambda: y * 2)  # queued behind the synchronous one
    timed("wait", work.wait)
    values = timed("read", lambda: (y * 2).tolist())
    reports = [report.what for report in stand_in_gpu.gpu.sanitizer.reports]
    return took, values, x.tolist(), too_early.isnan().all().item(), reports


def test_collectives_block_the_stream_and_not_the_host():
    for rank, (took, values, x, was_nan, reports) in enumerate(on_gpus(_late_peer, 2)):
        assert values == [6.0, 6.0, 6.0] and x == [3.0, 3.0, 3.0] and was_nan
        assert reports == ["aten.mul.out on stream 0 (read) has no order after nccl:allreduce on stream 1 (write)"]
        if rank == 0:
            assert took["synchronous"] < 0.5 and took["asynchronous"] < 0.5 and took["wait"] < 0.5
            assert sum(took.values()) > 0.5  # somewhere it has waited for its peer


def _creation():
    import torch
    import torch.distributed as dist

    x, began = torch.ones(1, device="gpu"), time.monotonic()
    dist.all_reduce(torch.ones(1))
    on_cpu, began = time.monotonic() - began, time.monotonic()
    dist.all_reduce(x)
    first, began = time.monotonic() - began, time.monotonic()
    dist.all_reduce(x)
    return on_cpu, first, time.monotonic() - began


def test_the_first_collective_makes_the_communicator():
    for on_cpu, first, second in on_gpus(_creation, 2, creation_s=2.0):
        assert first > 2.0 > max(on_cpu, second)


def _records():
    import pickle

    import torch
    import torch._C._distributed_c10d as c10d
    import torch.distributed as dist

    def gpu(*shape):
        return torch.ones(shape, device="gpu")

    dist.all_gather([gpu(2, 3), gpu(2, 3)], gpu(2, 3))
    dist.reduce_scatter(gpu(1 + dist.get_rank()), [gpu(1), gpu(2)])
    (dist.send if dist.get_rank() else dist.recv)(gpu(4), 1 - dist.get_rank())
    dist.barrier()
    with pytest.raises(ValueError, match="contiguous"):
        dist.all_reduce(gpu(2, 3).t())
    entries = pickle.loads(c10d._dump_nccl_trace())["entries"]
    keys = ("profiling_name", "collective_seq_id", "input_sizes", "output_sizes")
    return [tuple(entry[key] for key in keys) for entry in entries]


def test_records_have_nccls_names_and_shapes():
    zero, one = on_gpus(_records, 2)
    assert zero == [
        ("nccl:all_gather", 1, [[2, 3]], [[2, 2, 3]]),
        ("nccl:_reduce_oop", 2, [[1]], [[1]]),
        ("nccl:_reduce_oop", 2, [[2]], [[1]]),
        ("nccl:REDUCE_SCATTER_coalesced", 2, [], []),
        ("nccl:recv 0<-1", 2, [[4]], [[4]]),
    ]
    assert one[-1] == ("nccl:send 1->0", 2, [[4]], [[4]])


def test_memory_at_a_low_address_is_freed_with_its_last_tensor():
    """Where Python is no position-independent program, as Debian's is not, the heap begins just above it."""

    def on_rank():
        import mmap

        import stand_in_gpu
        import torch

        map_32bit = 0x40  # on x86-64
        low = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | map_32bit)
        cpu, memory = torch.frombuffer(low, dtype=torch.float32), stand_in_gpu.gpu.memory
        tensors, found = [memory.on_device(cpu)], []
        for _ in range(2):
            memory.sweep()
            found.append(memory.find(cpu.data_ptr()) is not None)
            tensors.clear()
        return cpu.data_ptr(), found

    address, found = on_gpus(on_rank, 1)[0]
    assert found == [True, False]
    assert address < 1 << 32 or platform.machine() != "x86_64"
