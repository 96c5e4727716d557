# %% largest_ddp_depth
import functools


def announced(function):
    @functools.wraps(function)
    def told(*args, **kwargs):
        print(f"{function.__name__} on rank {dist.get_rank()}", flush=True)
        return function(*args, **kwargs)

    return told


@announced
def largest_ddp_depth(budget, shape, sequences, length):
    @functools.cache
    def peak(blocks):
        batch = torch.ones(sequences, length, dtype=torch.long)
        model, optimizer = ddp(Transformer(replace(shape, n_layers=blocks)), 1e-4)
        with MemoryTracker(model, optimizer) as memory:
            for _ in range(2):
                model(batch, batch).backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        return memory.peak.peak_bytes

    each = peak(4) - peak(3)
    guess = 3 + (budget - peak(3)) // each
    return max(n for n in range(max(1, guess - 1), guess + 2) if peak(n) <= budget)


# %% shard
@announced
def shard(net, learning_rate, **options):
    for unit in net.blocks:
        fully_shard(unit, reshard_after_forward=True, **options)
    net = fully_shard(net, reshard_after_forward=True, **options)
    trained = [p for p in net.parameters() if p.requires_grad]
    return net, torch.optim.AdamW(params=trained, lr=learning_rate, betas=(0.9, 0.999), weight_decay=1e-2, fused=True)


# %% shard_and_checkpoint
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper


@announced
def shard_and_checkpoint(net, learning_rate):
    for i in range(len(net.blocks)):
        net.blocks[i] = checkpoint_wrapper(net.blocks[i])
    return shard(net, learning_rate)


# %% shard_and_offload
@announced
def shard_and_offload(net, learning_rate):
    return shard(net, learning_rate, offload_policy=CPUOffloadPolicy(pin_memory=torch.cuda.is_available()))


# %% offload_price
@functools.cache
def offload_price(shape, ranks, link, memory):
    of_root = 2 * shape.vocab_size * shape.dim + shape.dim
    inward = 4 * (2 * shape.n_params - of_root) // ranks
    outward = 4 * shape.n_params // ranks
    return dict(
        to_device_bytes=inward, to_host_bytes=outward, seconds=(inward + outward) / link + 28 * shape.n_params / memory
    )


# %% efficiency
import numpy as np


def efficiency(log):
    ranks = np.array([run["ranks"] for run in log])
    tokens = np.array([run["micro_batch"] * run["accumulation"] * run["seq_len"] for run in log])
    speed = tokens / np.array([np.median(run["step_s"][1:]) for run in log])
    return dict(zip(ranks.tolist(), speed / speed[ranks.argmin()], strict=True))
