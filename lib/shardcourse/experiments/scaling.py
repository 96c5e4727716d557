"""Scaling efficiency: the share of N ranks' computing power that remains despite communication.

    efficiency(N) = throughput of N ranks / (N x throughput of one)

In weak scaling every rank has the same batch size, so the global batch grows with N. In strong scaling the ranks divide
one batch, so the costs that do not shrink with the batch weigh more and more (Amdahl's law).

    def make_step(batch_size):  # runs on a rank
        model = DistributedDataParallel(...)
        return lambda: train_on(batch_size)

    print(scaling(make_step, batch_size=4, seq_len=128, network=simulated("1 Gb/s, 50 us")))

[Note: what can be measured on a laptop] N ranks that compute share one machine's cores: efficiency falls to cores / N
whatever the network does, and says nothing about a cluster. Sleep the computation (`shardsim.slept_computation`), as if
each rank had its own device. The loss of efficiency is then the cost of communication.

Source: Amdahl 1967; Gustafson 1988, for weak scaling.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from shardlab.launch import launch
from shardlab.measure.step_time import median_interval, time_step

_PER = {"weak": "a rank", "strong": "in all"}


@dataclass(frozen=True)
class Row:
    """The result for one number of ranks. The efficiency lies between `low` and `high` with about `confidence`."""

    ranks: int
    step_s: float  # median over the rounds
    tokens_per_second: float  # of all ranks together
    efficiency: float  # median over the rounds; 1.0 for one rank
    low: float
    high: float
    confidence: float  # attained: less than asked for if rounds are few


@dataclass(frozen=True)
class Scaling:
    mode: str  # "weak" or "strong"
    batch_size: int  # sequences: of each rank (weak), or of all together (strong)
    seq_len: int
    rounds: int
    rows: tuple[Row, ...]

    def __getitem__(self, ranks: int) -> Row:
        return next(row for row in self.rows if row.ranks == ranks)

    def __str__(self) -> str:
        batch = f"{self.batch_size} x {self.seq_len} tokens {_PER[self.mode]}"
        lines = [f"{self.mode} scaling, {batch}, {self.rounds} rounds", "ranks    step ms    tokens/s    efficiency"]
        return "\n".join(lines + [_line(row) for row in self.rows])


def _line(row: Row) -> str:
    cells = f"{row.ranks:5}{row.step_s * 1e3:11.1f}{row.tokens_per_second:12.0f}{row.efficiency:14.2f}"
    interval = f"  ({row.low:.2f} to {row.high:.2f}, {row.confidence:.0%} sure)"
    return cells if row.ranks == 1 else cells + interval


def scaling(
    make_step: Callable[[int], Callable[[], object]],
    batch_size: int,
    seq_len: int,
    *,
    world_sizes: Sequence[int] = (1, 2, 4),
    mode: str = "weak",
    network=None,
    rounds: int = 7,
    steps: int = 5,
    warmup: int = 1,
    confidence: float = 0.95,
    **launch_options,
) -> Scaling:
    """Measure efficiency. Each round launches every number of ranks, so that a busy machine disturbs all alike.

    `make_step(sequences)` is called on each rank with this rank's number of sequences, and returns the step to time. A
    round keeps the median of `steps` steps after `warmup` uncounted ones. `network` is the argument of `launch`, or a
    function that returns it for a number of ranks, for a topology that grows. A single rank uses the network too, so
    that all run on the same kind of process group. A confidence of 95% needs at least six rounds.

    Raises ValueError if efficiency is undefined: no launch of one rank, or a batch that the ranks cannot divide.
    """
    sequences = _sequences(batch_size, seq_len, world_sizes, mode)
    _at_least_one(rounds=rounds, steps=steps)
    times: dict[int, list[float]] = {n: [] for n in sequences}
    for turn in range(rounds):
        for n in sorted(sequences, reverse=bool(turn % 2)):
            here = network(n) if callable(network) else network
            options = {"network": here} | launch_options
            times[n].append(launch(_timed, n, make_step, sequences[n], steps, warmup, **options)[0])
    tokens = {n: n * each * seq_len for n, each in sequences.items()}
    return Scaling(mode, batch_size, seq_len, rounds, efficiencies(times, tokens, confidence))


def efficiencies(times: dict[int, list[float]], tokens: dict[int, int], confidence: float = 0.95) -> tuple[Row, ...]:
    """Return a row for each number of ranks n. `times[n][i]` is a step's seconds in round i, `tokens[n]` its tokens.

    Raises ValueError if times of one rank are missing, if the numbers of rounds differ, or if a time is not above 0.
    """
    if 1 not in times:
        raise ValueError(f"efficiency is relative to one rank: times of 1 are missing, there are {sorted(times)}")
    if len({len(rounds) for rounds in times.values()}) > 1 or not times[1]:
        raise ValueError(f"every number of ranks needs one time a round, not { {n: len(t) for n, t in times.items()} }")
    if not all(t > 0 for rounds in times.values() for t in rounds):
        raise ValueError(f"a step takes more than 0 seconds, not {min(map(min, times.values()))}")
    speeds = {n: [tokens[n] / t for t in times[n]] for n in sorted(times)}
    return tuple(_row(n, times[n], speeds[n], speeds[1], confidence) for n in speeds)


def _row(n: int, times: list[float], speeds: list[float], alone: list[float], confidence: float) -> Row:
    shares = [speed / (n * one) for speed, one in zip(speeds, alone, strict=True)]
    low, high, attained = (1.0, 1.0, 1.0) if n == 1 else median_interval(shares, confidence)
    return Row(n, median(times), median(speeds), median(shares), low, high, attained)


def _timed(make_step: Callable[[int], Callable[[], object]], sequences: int, steps: int, warmup: int) -> float:
    step = make_step(sequences)
    if not callable(step):
        raise TypeError(f"make_step(batch_size) must return a function that runs one step, not {step!r}")
    return median([time_step(step) for _ in range(warmup + steps)][warmup:])


def _sequences(batch_size: int, seq_len: int, world_sizes: Sequence[int], mode: str) -> dict[int, int]:
    """Return {number of ranks: sequences of each rank}."""
    if mode not in _PER:
        raise ValueError(f'mode must be "weak" (a batch for each rank) or "strong" (one for all), not {mode!r}')
    _at_least_one(batch_size=batch_size, seq_len=seq_len, world_size=min(world_sizes, default=1))
    if 1 not in world_sizes:
        raise ValueError(f"efficiency is relative to one rank: add 1 to world_sizes={tuple(world_sizes)}")
    odd = [n for n in world_sizes if mode == "strong" and batch_size % n]
    if odd:
        raise ValueError(f"strong scaling divides the batch: {batch_size} sequences can't be shared by {odd} ranks")
    return {n: batch_size // n if mode == "strong" else batch_size for n in world_sizes}


def _at_least_one(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, not {count!r}")
