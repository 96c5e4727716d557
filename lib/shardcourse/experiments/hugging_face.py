"""Hugging Face's libraries for lesson 20, quiet and offline: a short training, and their calls of `fully_shard`."""

import logging
import os
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed.fsdp as torch_fsdp
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from shardlab.launch.notebook_tracebacks import without_frames
from shardlab.text_batches import batch

BATCH, SEQ_LEN, STEPS, LR = 8, 32, 3, 1e-3
PACKAGES = ("transformers", "accelerate", "safetensors")
Call = tuple[list[str], dict[str, Any]]  # the names of a unit's modules, and the arguments of `fully_shard`


def require() -> None:
    """Make the libraries quiet and offline. Raises ModuleNotFoundError, in one sentence, if one is not installed."""
    if missing := [name for name in PACKAGES if not find_spec(name)]:
        words = (
            f"this lesson needs {' and '.join(missing)}: pip install 'transformers>=5.24,<6' accelerate, then restart"
        )
        raise without_frames(ModuleNotFoundError(words), words)
    os.environ["HF_HUB_OFFLINE"] = "1"
    for name in ("torchao", "torch.utils._pytree"):  # transformers imports torchao, which warns of its own extensions
        logging.getLogger(name).setLevel(logging.ERROR)
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()


def samples(seed: int, rank: int = 0, ranks: int = 1) -> list[torch.Tensor]:
    """Return this rank's tokens of each step: (BATCH / ranks, SEQ_LEN)."""
    return [batch(seed, step, rank, ranks, global_batch=BATCH, seq_len=SEQ_LEN)[0] for step in range(STEPS)]


def losses_of(model: nn.Module, seed: int, rank: int = 0, ranks: int = 1) -> list[float]:
    """Train for some steps with AdamW, without weight decay. Return the mean losses of all ranks."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer, seen = torch.optim.AdamW(trained, lr=LR, weight_decay=0.0), []
    for tokens in samples(seed, rank, ranks):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(loss.detach() / ranks)
    losses = torch.stack(seen)
    if ranks > 1:
        dist.all_reduce(losses)
    return losses.tolist()


def compare(name: str, losses: list[float], expected: list[float]) -> None:
    """Print the losses and the first step that differs from `expected` by more than ten roundings in fp32."""
    tolerance = 10 * torch.finfo(torch.float32).eps * expected[0]
    wrong = [i + 1 for i, (a, b) in enumerate(zip(losses, expected, strict=True)) if abs(a - b) > tolerance]
    words = f"wrong from step {wrong[0]} on" if wrong else "equal"
    print(f"{name:18s}", *(f"{loss:.5f}" for loss in losses), "", words)


@torch.no_grad()
def start_lora(model: nn.Module, seed: int) -> None:
    """Draw each `lora_a`, and let `lora_b` be zero. A rank draws the whole tensor and keeps its rows."""
    draw = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        if "lora_" not in name:
            continue
        values = torch.randn(p.shape, generator=draw) / 8 if "lora_a" in name else torch.zeros(p.shape)
        if isinstance(p, DTensor):
            values = distribute_tensor(values, p.device_mesh, p.placements, src_data_rank=None)
        p.copy_(values)


def as_torchrun() -> None:
    """Set the variables that torchrun sets for each rank: accelerate reads them."""
    rank, ranks = str(dist.get_rank()), str(dist.get_world_size())
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "localhost"}
    os.environ.setdefault("MASTER_PORT", "29500")  # never used: the process group is there


def training_arguments(folder: str, **settings: Any):
    """Return the settings of `losses_of` for `Trainer` on CPU ranks. Nothing is saved, clipped, decayed, shuffled."""
    from transformers import TrainingArguments

    share = BATCH // dist.get_world_size()
    same: dict[str, Any] = {
        "max_steps": STEPS,
        "learning_rate": LR,
        "per_device_train_batch_size": share,
        "use_cpu": True,
    }
    same |= {"max_grad_norm": 0.0, "lr_scheduler_type": "constant", "train_sampling_strategy": "sequential"}
    silent = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1}
    return TrainingArguments(str(folder), **same, **silent, **settings)


def by_trainer(model: nn.Module, seed: int, args: Any) -> tuple[str, list[float]]:
    """Train with `Trainer`. Return the kind of the model that it made, and the mean losses."""
    from transformers import Trainer
    from transformers.trainer_callback import PrinterCallback

    data = [{"input_ids": tokens, "labels": tokens} for tokens in torch.cat(samples(seed))]
    trainer = Trainer(model=model, args=args, train_dataset=data)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return kind(trainer.model_wrapped), losses


def kind(model: nn.Module) -> str:
    """Return the classes of a model and of its parameters: they say whether it is sharded."""
    return f"{type(model).__name__} of {type(next(model.parameters())).__name__}s"


def show(calls: list[Call]) -> None:
    """Print a line for each call of `fully_shard`."""
    for names, given in calls:
        policy, short = given["mp_policy"], [name.removeprefix("model.") for name in names]
        dtypes = policy.param_dtype, policy.reduce_dtype
        reshard = given.get("reshard_after_forward", "not given")
        print(f"  {', '.join(short):30s} reshard_after_forward {reshard!s:9s} mp_policy {dtypes}")


def sharded_by_accelerate(model: nn.Module, args: Any) -> list[Call]:
    """Shard the model as accelerate does for `Trainer` on GPUs, and return its calls of `fully_shard`."""
    from accelerate import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model

    plugin = FullyShardedDataParallelPlugin(**args.fsdp_plugin_args)
    precision = "bf16" if args.bf16 else "no"
    if args.bf16:
        plugin.set_mixed_precision("bf16")
    names, calls = {module: name or "the model" for name, module in model.named_modules()}, []
    torchs = torch_fsdp.fully_shard

    def noted(modules, **arguments):
        listed = modules if isinstance(modules, list | tuple) else [modules]
        calls.append(([names[module] for module in listed], arguments))
        return torchs(modules, **arguments)

    asked = SimpleNamespace(fsdp_plugin=plugin)
    on_cpu = {"device": torch.device("cpu"), "is_main_process": dist.get_rank() == 0}
    with mock.patch.object(torch_fsdp, "fully_shard", noted):
        fsdp2_prepare_model(SimpleNamespace(state=asked, mixed_precision=precision, **on_cpu), model)
    return calls
