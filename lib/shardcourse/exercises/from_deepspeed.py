"""The check of lesson 14b's exercise: a function that turns DeepSpeed's configuration into the planner's fields."""

from collections.abc import Callable

Translate = Callable[[dict, int], dict]
BF16, STAGE_3 = {"bf16": {"enabled": True}}, {"zero_optimization": {"stage": 3}}
MICRO, STEPS, WHOLE = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"


def _fields(sharding="FULL_SHARD", precision="fp32", offload="none", micro_batch=1, accumulation=1) -> dict:
    return locals()


_CASES: dict[str, tuple[dict, dict | None]] = {  # what is tried: (configuration for 8 GPUs, fields; None: ValueError)
    "stage 3 in bf16": ({MICRO: 2, **BF16, **STAGE_3}, _fields(precision="bf16-master", micro_batch=2)),
    "no zero_optimization at all": ({MICRO: 1}, _fields("DDP")),
    "stage 1": ({MICRO: 1, "zero_optimization": {"stage": 1}}, _fields("ZERO_1")),
    "stage 2": ({MICRO: 1, "zero_optimization": {"stage": 2}}, _fields("ZERO_2")),
    "bf16 that is not enabled": ({MICRO: 1, "bf16": {"enabled": False}, **STAGE_3}, _fields()),
    "the optimizer on the host": (
        {MICRO: 1, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}},
        _fields(offload="cpu"),
    ),
    "train_batch_size alone": ({WHOLE: 32, **STAGE_3}, _fields(micro_batch=4)),
    "train_batch_size and micro-batch": ({WHOLE: 64, MICRO: 2, **STAGE_3}, _fields(micro_batch=2, accumulation=4)),
    "train_batch_size and accumulation": ({WHOLE: 64, STEPS: 2, **STAGE_3}, _fields(micro_batch=4, accumulation=2)),
    "micro-batch and accumulation": ({MICRO: 3, STEPS: 5, **STAGE_3}, _fields(micro_batch=3, accumulation=5)),
    "three numbers that agree": ({WHOLE: 64, MICRO: 1, STEPS: 8, **STAGE_3}, _fields(accumulation=8)),
    "three numbers that do not agree": ({WHOLE: 64, MICRO: 2, STEPS: 8, **STAGE_3}, None),
    "12 sequences for 8 GPUs": ({WHOLE: 12, MICRO: 1, **STAGE_3}, None),
}


def verdict(translate: Translate) -> str:
    """Say in words what is right or wrong with `translate(config, gpus)`."""
    for name, (config, expected) in _CASES.items():
        try:
            found = translate(config, 8)
        except ValueError as error:
            if expected is not None:
                return f"{name}: it raises ValueError, and the configuration is good: {error}"
            continue
        except Exception as error:  # the reader's own: it is shown, and the notebook goes on
            return f"{name}: it stops with {type(error).__name__}: {error}"
        if expected is None:
            return f"{name}: it returns {found}, and should raise ValueError: DeepSpeed refuses {config}"
        if found != expected:
            return f"{name}: {_difference(found, expected)}"
    return f"Right: {len(_CASES)} configurations for 8 GPUs, and those that contradict themselves are refused."


def _difference(found: object, expected: dict) -> str:
    if not isinstance(found, dict):
        return f"it returns {found!r}, and not a dict of the fields {', '.join(expected)}"
    wrong = [
        f"{key}={found.get(key)!r}, expected {value!r}" for key, value in expected.items() if found.get(key) != value
    ]
    return "; ".join(wrong) or f"it has other fields than {', '.join(expected)}"
