"""Is the planner true? Beside real ranks, beside a trace of the real FSDP2, and beside what others have published.

    measured    peak bytes of CPU ranks (`plan_measured`)
    gpu         peak bytes and seconds on one GPU, where there is one (`plan_gpu`)
    traced      peak bytes of models too large for this machine, on up to 512 ranks (`plan_trace`)
    published   memory and speed of other people's runs, hits and misses (`plan_published`)
    matrix      their decision matrix, planned (`plan_matrix`)

A row says what was predicted and what was found, and their ratio. No prediction is made from what it is compared with;
the published runs that constants were fitted on are marked, and are no evidence.
"""

from types import ModuleType

import torch

from shardbench import environment, plan_gpu, plan_matrix, plan_measured, plan_published, plan_trace

PARTS: dict[str, ModuleType] = {
    "measured": plan_measured,
    "traced": plan_trace,
    "published": plan_published,
    "matrix": plan_matrix,
}


def run() -> dict:
    """Takes about ten minutes, of which real ranks are the half."""
    before = environment()
    parts = PARTS | ({"gpu": plan_gpu} if torch.cuda.is_available() else {})
    return {"benchmark": "plan", "environment": before} | {name: part.run() for name, part in parts.items()}


def show(result: dict) -> None:
    for name, part in (PARTS | {"gpu": plan_gpu}).items():
        if name in result:
            part.show(result[name])
    if "gpu" not in result:
        print("one GPU: not measured, for there is none here")
