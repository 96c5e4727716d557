"""One link of a network: its latency, and its bandwidth each way."""

import re
from dataclasses import dataclass

_NUMBER = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
BANDWIDTH, LATENCY = rf"{_NUMBER}\s*([KMG]?[bB]/s)", rf"{_NUMBER}\s*(ns|us|ms|s)"  # for words that contain a link
_WORDS = re.compile(rf"\s*{BANDWIDTH}\s*,\s*{LATENCY}\s*")
_BYTES = {"b/s": 1 / 8, "B/s": 1.0}
_PREFIX = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9}
_PER_SECOND = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}


@dataclass(frozen=True)
class Link:
    """A full-duplex link: both directions carry `bandwidth_bytes_per_s`, which may be infinite, at the same time."""

    bandwidth_bytes_per_s: float  # each way
    latency_s: float  # of one message, whatever its size

    def __post_init__(self) -> None:
        if not self.bandwidth_bytes_per_s > 0 or not 0 <= self.latency_s < float("inf"):
            raise ValueError(f"a link needs a bandwidth above 0 and a latency of 0 or more, not {self!r}")

    @classmethod
    def parse(cls, words: str) -> "Link":
        """Read a link such as "1 Gb/s, 50 us": b/s for bits, B/s for bytes, with K, M, G; latency in ns, us, ms, s."""
        match = _WORDS.fullmatch(words)
        if match is None:
            raise ValueError(
                f"can't read the link {words!r}: write its bandwidth in Gb/s or Mb/s (bits), or GB/s or MB/s (bytes), "
                "a comma, and its latency in us, ms or s, as in '1 Gb/s, 50 us'"
            )
        return cls(bandwidth(*match.groups()[:2]), seconds(*match.groups()[2:]))

    def __str__(self) -> str:
        return f"{self.bandwidth_bytes_per_s / 1e6:.9g} MB/s, {self.latency_s * 1e6:.9g} us"

    def carry_s(self, n_bytes: float) -> float:
        """Seconds until a message has arrived: alpha + bytes / bandwidth."""
        return self.latency_s + n_bytes / self.bandwidth_bytes_per_s

    def slower(self, times: float) -> "Link":
        """Return a link on which every message takes `times` as long."""
        return Link(self.bandwidth_bytes_per_s / times, self.latency_s * times)


def bandwidth(number: str, unit: str) -> float:
    """Bytes a second, from a number such as "1" and a unit such as "Gb/s"."""
    return float(number) * _PREFIX[unit[:-3]] * _BYTES[unit[-3:]]


def seconds(number: str, unit: str) -> float:
    return float(number) / _PER_SECOND[unit]
