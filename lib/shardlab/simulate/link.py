"""What a network link costs: latency, bandwidth, and how long a ring of N such links takes for each collective.

Source: Thakur, Rabenseifner & Gropp 2005, sections 4.1 to 4.5; for broadcast, NCCL's ring.
"""

import re
from dataclasses import dataclass

_UNITS = {"Gb/s": 1e9 / 8, "GB/s": 1e9, "Mb/s": 1e6 / 8, "MB/s": 1e6, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_WORDS = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([GM][bB]/s)\s*,\s*(\d+(?:\.\d+)?)\s*(us|ms|s)\s*")


@dataclass(frozen=True)
class Link:
    """A rank's full-duplex link to an ideal switch. In every method `full_bytes` is the unsharded size."""

    bandwidth_bytes_per_s: float  # each way
    latency_s: float  # of one hop

    def __post_init__(self) -> None:
        if self.bandwidth_bytes_per_s <= 0 or self.latency_s < 0:
            raise ValueError(f"a link needs a bandwidth above 0 and a latency of 0 or more, not {self}")

    @classmethod
    def parse(cls, words: str) -> "Link":
        """`Link.parse("1 Gb/s, 50 us")`: Gb/s or Mb/s for bits, GB/s or MB/s for bytes; latency in us, ms or s."""
        match = _WORDS.fullmatch(words)
        if match is None:
            raise ValueError(
                f"can't read the link {words!r}: write its bandwidth in Gb/s or Mb/s (bits), or GB/s or MB/s (bytes), "
                "a comma, and its latency in us, ms or s, as in '1 Gb/s, 50 us'"
            )
        bandwidth, per_s, latency, unit = match.groups()
        return cls(float(bandwidth) * _UNITS[per_s], float(latency) * _UNITS[unit])

    def all_gather_s(self, full_bytes: int, world_size: int) -> float:
        """N-1 steps round the ring, each with 1/N of the bytes."""
        steps = world_size - 1
        return steps * self.latency_s + steps / world_size * full_bytes / self.bandwidth_bytes_per_s

    reduce_scatter_s = all_to_all_s = all_gather_s

    def all_reduce_s(self, full_bytes: int, world_size: int) -> float:
        """A reduce_scatter and an all_gather."""
        return self.reduce_scatter_s(full_bytes, world_size) + self.all_gather_s(full_bytes, world_size)

    def barrier_s(self, full_bytes: int, world_size: int) -> float:
        """An all_reduce of next to nothing."""
        return self.all_reduce_s(0, world_size)

    def broadcast_s(self, full_bytes: int, world_size: int) -> float:
        """Along a chain of ranks, in pieces so small that all of its links work at once."""
        steps = world_size - 1
        return steps * self.latency_s + min(steps, 1) * full_bytes / self.bandwidth_bytes_per_s

    reduce_s = broadcast_s

    def send_s(self, full_bytes: int, world_size: int) -> float:
        return self.latency_s + full_bytes / self.bandwidth_bytes_per_s
