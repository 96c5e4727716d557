"""Cost of a training: hours, GPU hours, and dollars at a price that the user gives. Prices change; we know none."""

from dataclasses import dataclass

from shardplan.records import Plan
from shardsim.machines import Machine


@dataclass(frozen=True)
class Cost:
    seconds: float
    gpu_hours: float
    dollars: float | None = None
    tokens: float = 0.0


def cost(plan: Plan, tokens: float, dollars_per_gpu_hour: float | None = None) -> Cost:
    """Compute what it costs to train on `tokens` tokens, without any failure."""
    seconds = tokens / plan.job_tokens_per_s
    gpu_hours = seconds / 3600 * plan.setup.world_size
    return Cost(
        seconds, gpu_hours, gpu_hours * dollars_per_gpu_hour if dollars_per_gpu_hour is not None else None, tokens
    )


def affordable_gpus(dollars_per_hour: float, dollars_per_gpu_hour: float, machine: Machine) -> int:
    """Return how many GPUs the budget buys: whole nodes, if it is enough for one.

    Raises ValueError.
    """
    if dollars_per_gpu_hour <= 0:
        raise ValueError(f"dollars_per_gpu_hour={dollars_per_gpu_hour:g}, but it must be above 0")
    gpus = int(dollars_per_hour / dollars_per_gpu_hour)
    if gpus < 1:
        raise ValueError(
            f"dollars_per_hour={dollars_per_hour:g} is less than one GPU: at least {dollars_per_gpu_hour:g} are needed"
        )
    return gpus - gpus % machine.gpus_per_node if gpus >= machine.gpus_per_node else gpus
