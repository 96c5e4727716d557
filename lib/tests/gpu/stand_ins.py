"""Networks and devices that set up slowly, as a GPU node's do. A module of its own: each rank imports it."""

import os
import time

import torch


class SlowNetwork:
    """gloo, but rank `rank` sleeps for `seconds` before it makes its process group."""

    backend, device = "gloo", "cpu"

    def __init__(self, seconds: float, rank: int) -> None:
        self.seconds, self.rank = seconds, rank

    def for_ranks(self, world_size: int) -> "SlowNetwork":
        return self

    def install(self) -> None:
        if int(os.environ["RANK"]) == self.rank:
            self.sleep()

    def sleep(self) -> None:
        time.sleep(self.seconds)


class SlowCards(SlowNetwork):
    """Makes a rank believe in CUDA: its tensors on "cuda" are the CPU's, and rank `rank`'s card takes long to open."""

    device = "cuda"

    def install(self) -> None:
        zeros, open_slowly = torch.zeros, super().install
        torch.cuda.device_count = lambda: 8
        torch.cuda.set_device = lambda number: open_slowly()
        torch.zeros = lambda *size, device=None, **options: zeros(*size, **options)


class SlowFirstCollective(SlowCards):
    """As NCCL does, rank `rank` makes its connections when it first sends something."""

    def install(self) -> None:
        rank, self.rank = self.rank, -1
        super().install()
        first, connect = torch.distributed.all_reduce, self.sleep

        def all_reduce(*arguments, **options):
            torch.distributed.all_reduce = first
            if int(os.environ["RANK"]) == rank:
                connect()
            return first(*arguments, **options)

        torch.distributed.all_reduce = all_reduce
