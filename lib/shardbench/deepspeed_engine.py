"""DeepSpeed's stages 0 to 3 on the same model, if it is installed (the extra `deepspeed`; see the README)."""

import importlib.util
import logging
import os
import warnings

import torch
from torch import nn

from shardbench.engines import LEARNING_RATE, Engine
from shardlab import local_device

# Bucket sizes in elements, as in the other engines. DeepSpeed's defaults are for models of billions of parameters, and
# so is its threshold, below which stage 3 leaves a parameter unsharded.
ELEMENTS = 1 << 18
BUCKETS = {
    "reduce_bucket_size": ELEMENTS,
    "allgather_bucket_size": ELEMENTS,
    "stage3_prefetch_bucket_size": ELEMENTS,
    "stage3_max_live_parameters": 2 * ELEMENTS,
    "stage3_max_reuse_distance": 2 * ELEMENTS,
    "stage3_param_persistence_threshold": 0,
}


def installed() -> bool:
    return importlib.util.find_spec("deepspeed") is not None


def deepspeed(model: nn.Module, stage: int, *, offload: bool = False, micro_batch: int = 1) -> Engine:
    """Build ZeRO of this stage around torch's AdamW. With `offload`, the optimizer's states and step are on the CPU.

    DeepSpeed's own kernels are not used, because building them needs a C++ compiler and minutes. gloo and torch replace
    them.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    zero = {"stage": stage} | BUCKETS | ({"offload_optimizer": {"device": "cpu"}} if offload else {})
    config = {
        "train_micro_batch_size_per_gpu": micro_batch,
        "zero_optimization": zero,
        "gradient_clipping": 0.0,  # none: by default it clips at 1.0
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10**9,
    }
    engine, wrapped, *_ = _quiet_import().initialize(
        model=model, optimizer=optimizer, config=config, dist_init_required=False
    )
    return Engine(engine, wrapped, backward=engine.backward, step=engine.step, zero_grad=lambda: None)


def _quiet_import():
    os.environ.setdefault("DS_ACCELERATOR", local_device().type)  # DeepSpeed reads this at import
    warnings.simplefilter("ignore")
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    return deepspeed
