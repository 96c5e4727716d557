"""torch's CUDA sanitizer is told which stream waits for which collective, and of no wait that was not made."""

from deadlines import deadline_s

from shardlab import launch


def _seen() -> list[str]:
    import os

    import torch
    import torch.distributed as dist

    from shardbench import visible_waits
    from shardlab.shard_groups import all_gather, reduce_scatter

    seen: list[str] = []

    class Stream:
        def record_event(self) -> int:
            seen.append("records")
            return 1

        def wait_event(self, event: int) -> None:
            seen.append("waits")

    class Device:
        current_stream = staticmethod(Stream)

    torch.get_device_module = lambda: Device
    visible_waits.show_waits()  # nothing, as the sanitizer does not run
    part, whole = torch.ones(2), torch.empty(2 * dist.get_world_size())
    all_gather(whole, part)
    os.environ[visible_waits.VARIABLE] = "1"
    visible_waits.show_waits.cache_clear()
    visible_waits.show_waits()
    for begin in (
        lambda: all_gather(whole, part, async_op=True),
        lambda: reduce_scatter(part, whole, async_op=True),
        lambda: dist.all_reduce(part, async_op=True),
    ):
        work = begin()
        seen.append("works")
        work.wait()
        work.wait()
    dist.all_reduce(part, async_op=True)  # which nobody waits for
    return seen


def test_each_wait_is_seen_once_and_no_other():
    expected = ["records", "works", "waits"] * 3 + ["records"]
    assert launch(_seen, 2, device="cpu", timeout_s=deadline_s(60)) == [expected] * 2
