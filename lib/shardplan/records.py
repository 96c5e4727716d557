"""Records of a plan: memory as terms at named moments of a step, speed as spans of a timeline."""

from dataclasses import asdict, dataclass
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING

from shardlab.measure.ledger import CATEGORIES
from shardtrace.timeline import Timeline

if TYPE_CHECKING:
    from shardplan.planned_job import Setup


@dataclass(frozen=True)
class Term:
    """One summand of a rank's memory, with the words that derive it: "logits, B T V in fp32"."""

    category: str  # one of shardlab.measure.ledger.CATEGORIES
    words: str
    n_bytes: float
    pool: str = "compute"  # of the allocator, one for each CUDA stream: "all_gather" and "reduce_scatter" under FSDP

    def __post_init__(self) -> None:
        if self.category not in CATEGORIES:
            raise ValueError(f"no category {self.category!r}; there are {', '.join(CATEGORIES)}")


@dataclass(frozen=True)
class Point:
    """A point of one part's forward or backward: what is live there of this part alone."""

    name: str  # "feed_forward.down"
    terms: tuple[Term, ...]  # activations and temporaries
    gradients: tuple[str, ...] = ()  # names of the part's parameters whose gradients backward has made by then


@dataclass(frozen=True)
class Part:
    """Tensors that the embedding, a block, or the output layer with its loss makes for one micro-batch on one rank."""

    kept: tuple[Term, ...]  # from its forward until its backward
    forward: Point  # the fullest
    backward: tuple[Point, ...]  # the terms include what is left of `kept`
    until_loss: tuple[Term, ...] = ()  # from its forward until the loss is made: autocast's casts of weights


@dataclass(frozen=True)
class Moment:
    """All that is live at the fullest point of one part of a step."""

    name: str  # "forward of block 3", "loss", "backward of the output layer", "optimizer"
    phase: str  # forward, backward, optimizer
    terms: tuple[Term, ...]
    part: str = ""  # of the step; it may have several moments: "backward of block 3" includes its all_gather

    @cached_property
    def n_bytes(self) -> float:
        return sum(t.n_bytes for t in self.terms)

    def by_category(self) -> dict[str, float]:
        return {c: sum(t.n_bytes for t in self.terms if t.category == c) for c in CATEGORIES}


@dataclass(frozen=True)
class MemoryPlan:
    """Memory of the fullest rank: bytes on its device, and on the host and an NVMe disk."""

    moments: tuple[Moment, ...]  # in the order of a step
    reserved_bytes: tuple[float, float]  # by the caching allocator: the least and the most
    context_bytes: float  # CUDA's context, NCCL's buffers, libraries' workspaces
    host_bytes: float = 0.0
    nvme_bytes: float = 0.0
    workspaces_bytes: float = 0.0  # the part of `context_bytes` that the caching allocator gives to cuBLAS

    @cached_property
    def peak(self) -> Moment:
        return max(self.moments, key=lambda m: m.n_bytes)

    @property
    def allocated_bytes(self) -> float:
        """Bytes of all tensors."""
        return self.peak.n_bytes

    @property
    def max_memory_allocated(self) -> float:
        """Bytes that the function of torch.cuda reports: tensors, and workspaces."""
        return self.allocated_bytes + self.workspaces_bytes

    @property
    def device_bytes(self) -> tuple[float, float]:
        """Range of bytes that nvidia-smi would show: (low, high)."""
        low, high = self.reserved_bytes
        return low + self.context_bytes, high + self.context_bytes


@dataclass(frozen=True)
class SpeedPlan:
    """Speed of a whole step: all its micro-batches and the optimizer. Seconds, bytes of one rank."""

    parts_s: dict[str, float]  # computation, exposed communication, optimizer, offload, bubble, launch; sum: step_s
    waits_s: dict[str, float]  # exposed communication, by message; the longest first
    timeline: Timeline  # of the last micro-batch
    bytes_by_link: dict[str, float]  # "inside" and "between" nodes, "host", "nvme": sent by a rank in a step
    tokens: float  # of one GPU in a step: the job's tokens / its GPUs
    model_flops: float  # of a GPU in a step, recomputation not counted
    hardware_flops: float  # recomputation counted
    peak_flops: float  # of the GPU, a second
    range_s: tuple[float, float] = (
        0.0,
        0.0,
    )  # of a step: as fast and as slow as programs are: see `shardplan.speed.spread`

    @property
    def step_s(self) -> float:
        return sum(self.parts_s.values())

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of one GPU."""
        return self.tokens / self.step_s

    @property
    def tokens_per_s_range(self) -> tuple[float, float]:
        """The least and the most tokens per second of one GPU."""
        fast_s, slow_s = self.range_s
        return self.tokens / slow_s, self.tokens / fast_s

    @property
    def mfu(self) -> float:
        return self.model_flops / self.step_s / self.peak_flops

    @property
    def hfu(self) -> float:
        return self.hardware_flops / self.step_s / self.peak_flops


@dataclass(frozen=True)
class Plan:
    setup: "Setup"
    memory: MemoryPlan
    speed: SpeedPlan
    bottleneck: str = ""
    advice: tuple[str, ...] = ()
    options: tuple[str, ...] = ()  # the advice as options of `shardlab plan`

    @property
    def margin_bytes(self) -> tuple[float, float]:
        """Free bytes on the device (below 0 if short) with the allocator's largest reserve, and with no reserve. The
        allocator gives its reserve back before it runs out of memory."""
        there, memory = self.setup.machine.memory_bytes, self.memory
        return there - memory.device_bytes[1], there - memory.allocated_bytes - memory.context_bytes

    @property
    def host_margin_bytes(self) -> float:
        """Free bytes of a node's memory; infinite if the size of that memory is not known."""
        machine = self.setup.machine
        if machine.host_memory_bytes is None:
            return inf
        return machine.host_memory_bytes - min(machine.gpus_per_node, self.setup.world_size) * self.memory.host_bytes

    @property
    def fits(self) -> str:
        """Verdict: "yes", "maybe" (it depends on the allocator) or "no"."""
        worst, best = self.margin_bytes
        if best < 0 or self.host_margin_bytes < 0:
            return "no"
        return "yes" if worst >= 0 else "maybe"

    @property
    def job_tokens_per_s(self) -> float:
        return self.speed.tokens_per_s * self.setup.world_size

    def as_json(self) -> dict:
        """Return plain figures, in bytes and seconds, for json.dumps."""
        setup = self.setup
        return {
            "model": {name: getattr(setup.shape, name) for name in ("name", "n_params", "active_params")},
            "machine": {"name": setup.machine.name, "memory_bytes": setup.machine.memory_bytes},
            "world_size": setup.world_size,
            "strategy": asdict(setup.strategy),
            "fits": self.fits,
            "margin_bytes": self.margin_bytes,
            "memory": _memory_as_json(self.memory),
            "speed": _speed_as_json(self.speed) | {"job_tokens_per_s": self.job_tokens_per_s},
            "bottleneck": self.bottleneck,
            "advice": list(self.advice),
            "options": list(self.options),
        }


def _memory_as_json(memory: MemoryPlan) -> dict:
    plain = (
        "allocated_bytes",
        "max_memory_allocated",
        "reserved_bytes",
        "context_bytes",
        "device_bytes",
        "host_bytes",
        "nvme_bytes",
    )
    return {name: getattr(memory, name) for name in plain} | {
        "peak": {"name": memory.peak.name, "phase": memory.peak.phase, "terms": [asdict(t) for t in memory.peak.terms]},
        "moments": [{"name": m.name, "phase": m.phase, "bytes": m.by_category()} for m in memory.moments],
    }


def _speed_as_json(speed: SpeedPlan) -> dict:
    plain = ("step_s", "parts_s", "waits_s", "tokens", "tokens_per_s", "mfu", "hfu", "model_flops", "hardware_flops")
    return {name: getattr(speed, name) for name in (*plain, "tokens_per_s_range", "peak_flops", "bytes_by_link")}
