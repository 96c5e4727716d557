"""A small model that is trained in several ways on a slow network, for lesson 22: time of a step, and loss."""

import time
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from shardlab.model import Transformer, preset
from shardlab.text_batches import batch

CONFIG, SEQUENCES, SEQ_LEN, STEPS = preset("1M", n_layers=1), 2, 64, 24  # sequences of a rank in a step
TOKENS = SEQUENCES * SEQ_LEN
SAVED_AT, LOST_AT, LAST = 3, 5, 6  # steps that are done at the save, at the loss, at the end
Way = Callable[[nn.Module, torch.optim.Optimizer, int], None]  # train(model, inner optimizer, steps)


def new_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return Transformer(CONFIG)


def backward(model: nn.Module, seed: int, step: int) -> None:
    """Compute the gradients of this rank's samples of a step."""
    ranks = dist.get_world_size()
    model(*batch(seed, step, dist.get_rank(), ranks, global_batch=ranks * SEQUENCES, seq_len=SEQ_LEN)).backward()


def loss_of(model: nn.Module, seed: int) -> float:
    """Return the mean loss of all ranks' models on the same sequences, which no step has seen in this order."""
    with torch.no_grad():
        loss = model(*batch(seed + 1, 0, 0, 1, global_batch=32, seq_len=SEQ_LEN))
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size()


def measured(ways: Mapping[str, Way], seed: int) -> dict[str, tuple[float, float]]:
    """Train in each way from the same weights with AdamW. Return (seconds of a step, loss) by name."""
    found = {}
    for name, train in ways.items():
        model = new_model(seed)
        inner = torch.optim.AdamW(model.parameters(), lr=2e-3, foreach=False)
        dist.barrier()
        began = time.monotonic()
        train(model, inner, STEPS)
        dist.barrier()
        found[name] = (time.monotonic() - began) / STEPS, loss_of(model, seed)
    return found


def train_and_lose(save: Callable, restore: Callable, seed: int, lost: int | None) -> tuple[Tensor, int]:
    """Train a sharded model, save in memory, lose a rank if `lost` is one, and go back to the save.

    `save(tensors)` returns (mine, theirs, messages on their way), and `restore(tensors, mine, theirs, lost)` writes
    the saved numbers. Return all weights at the end, and the bytes of `mine`.
    """
    model = fully_shard(new_model(seed))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, foreach=False)
    again = [] if lost is None else range(SAVED_AT, LOST_AT)
    for done, step in enumerate([*range(LOST_AT), *again, *range(LOST_AT, LAST)], 1):
        backward(model, seed, step)
        optimizer.step()
        optimizer.zero_grad()
        if done == SAVED_AT:
            mine, theirs, messages = save(_shards(model, optimizer))
        if done == LOST_AT:
            for message in messages:
                message.wait()
            if lost is not None:
                restore(_shards(model, optimizer), mine, theirs, lost)
                for state in optimizer.state.values():
                    state["step"].fill_(SAVED_AT)
    return torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()]), mine.nbytes


def _shards(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return this rank's weights and moments; writing to them changes the model and the optimizer."""
    states = [optimizer.state[p][key] for p in model.parameters() for key in ("exp_avg", "exp_avg_sq")]
    return [t.to_local().detach() for t in (*model.parameters(), *states)]
