"""A test of the planner: compared with real ranks, with a trace of the real FSDP2, and with published runs.

    measured    peak bytes of CPU ranks (`plan_measured`)
    traced      peak bytes of models too large for this machine, on up to 512 ranks (`plan_trace`)
    published   memory and speed of other people's runs, hits and misses (`plan_published`)
    matrix      the pages' decision matrix, planned (`plan_matrix`)

A row holds the predicted value, the found value and their ratio. No prediction uses the value that it is compared with.
The published runs on which constants were fitted are marked, and are no evidence.
"""

from types import ModuleType

from shardbench import environment, plan_matrix, plan_measured, plan_published, plan_trace

PARTS: dict[str, ModuleType] = {
    "measured": plan_measured,
    "traced": plan_trace,
    "published": plan_published,
    "matrix": plan_matrix,
}


def run() -> dict:
    """Run all parts. Takes about ten minutes, half of them for real ranks."""
    before = environment()
    return {"benchmark": "plan", "environment": before} | {name: part.run() for name, part in PARTS.items()}


def show(result: dict) -> None:
    for name, part in PARTS.items():
        if name in result:
            part.show(result[name])
