# %% largest_ddp_depth
from shardplan.api import setup_of
from shardplan.memory import memory_plan
from shardplan.shape import Shape


def largest_ddp_depth(budget_bytes, config, micro_batch, seq_len):
    def fits(n):
        shape = Shape.of("drawn", replace(config, n_layers=n))
        setup = setup_of(
            shape,
            "dgx-h100",
            2,
            sharding="DDP",
            precision="fp32",
            optimizer_kernel="forloop",
            micro_batch=micro_batch,
            seq_len=seq_len,
        )
        return memory_plan(setup).peak.n_bytes <= budget_bytes

    n = 1
    while fits(n + 1):
        n += 1
    return n


# %% shard
import warnings
from functools import partial

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

per_block = partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})


def shard(model, lr):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model = FSDP(model, auto_wrap_policy=per_block, device_id=local_device())
    return model, torch.optim.AdamW(model.parameters(), lr=lr)


# %% shard_and_checkpoint
def shard_and_checkpoint(model, lr):
    model, _ = shard(model, lr)
    apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Block))
    return model, torch.optim.AdamW(model.parameters(), lr=lr)


# %% offload_price
def offload_price(config, world_size, link_bytes_per_s, host_memory_bytes_per_s):
    with torch.device("meta"):
        model = Transformer(config)
    in_blocks = sum(p.nbytes for p in model.blocks.parameters()) / world_size
    in_root = sum(p.nbytes for p in model.parameters()) / world_size - in_blocks
    price = {"to_device_bytes": 2 * in_blocks + in_root, "to_host_bytes": in_blocks + in_root}
    update_s = 7 * world_size * (in_blocks + in_root) / host_memory_bytes_per_s
    return price | {"seconds": sum(price.values()) / link_bytes_per_s + update_s}


# %% efficiency
from statistics import median


def efficiency(runs):
    def per_rank(run):
        n_tokens = run["ranks"] * run["micro_batch"] * run["accumulation"] * run["seq_len"]
        return n_tokens / median(run["step_s"][1:]) / run["ranks"]

    yardstick = per_rank(min(runs, key=lambda run: run["ranks"]))
    return {run["ranks"]: per_rank(run) / yardstick for run in runs}
