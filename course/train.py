"""Train a small language model with FSDP2: one file for one process, for CPU ranks, and for the GPUs of many nodes.

    python train.py                                    one process
    torchrun --nproc-per-node=8 train.py               one node: a rank on each GPU, or CPU ranks if there is no GPU
    torchrun --nnodes=4 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 train.py     on each node
    srun --nodes=4 --ntasks-per-node=8 --gpus-per-node=8 python train.py        Slurm starts the ranks, no torchrun

The same command again continues from the last complete checkpoint in --out, on any number of ranks.
SIGTERM to a rank: all ranks save and exit with 0. Slurm sends it before the end: #SBATCH --signal=TERM@300. torchrun
passes it on, and kills its ranks 30 s later: for a longer save, torchrun --shutdown-timeout=270 (PyTorch 2.13).
SIGUSR1 to a rank: its stack goes to OUT/stack-RANK.txt. To all ranks: kill -USR1 $(pgrep -P PID_OF_TORCHRUN).
"""

import argparse
import faulthandler
import math
import os
import re
import shutil
import signal
import sys
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = {"steps": 120, "global-batch": 24, "micro-batch": 3, "lr": 4e-3, "warmup": 10, "clip": 1.0}
    numbers |= {"dim": 96, "layers": 3, "heads": 4, "seq-len": 128, "dropout": 0.0, "seed": 0, "replicas": 1}
    numbers |= {"log-every": 5, "eval-every": 20, "save-every": 20, "validation": 48, "timeout": 600}
    numbers |= {"peak-tflops": 0.0}  # what one rank could reach, by its data sheet: then MFU is printed, too
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"default: {default}")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default=("fp32", "bf16")[torch.cuda.is_available()])
    parser.add_argument("--recompute", choices=["none", "selective", "full"], default="none")
    parser.add_argument("--compile", nargs="?", const="inductor", metavar="BACKEND", help="compile each block")
    parser.add_argument("--out", type=Path, default=Path("run"), help="the folder of checkpoints and of hang reports")
    parser.add_argument("--resume", action="store_true", help="start only if --out has a checkpoint")
    parser.add_argument("--sample", metavar="TEXT", help="continue this text when training is done")
    return parser.parse_args()


def stop(message):
    """End every rank; rank 0 says why in one line."""
    sys.exit(f"train.py: {message}" if os.environ["RANK"] == "0" else 2)


def start_rank(o):
    """Join the process group and return this rank's device."""
    env = os.environ
    if "RANK" not in env and "SLURM_STEP_ID" in env:  # srun started this rank; torchrun would have set RANK
        env |= {"RANK": env["SLURM_PROCID"], "WORLD_SIZE": env["SLURM_NTASKS"], "LOCAL_RANK": env["SLURM_LOCALID"]}
        host = re.match(r"([^,\[]+)(?:\[(\d+))?", env["SLURM_STEP_NODELIST"])  # the first of gpu[07-09,12]
        env.setdefault("MASTER_ADDR", host[1] + (host[2] or ""))
        env.setdefault("MASTER_PORT", str(20_000 + int(env["SLURM_JOB_ID"]) % 10_000))
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    env |= {name: value for name, value in alone.items() if name not in env}
    if int(env["WORLD_SIZE"]) % o.replicas:
        stop(f"--replicas {o.replicas} does not divide {env['WORLD_SIZE']} ranks")
    if o.dim % (2 * o.heads):
        stop(f"--dim {o.dim} is not an even multiple of --heads {o.heads}")
    if env["RANK"] != "0":
        sys.stdout = open(os.devnull, "w")  # one rank prints; errors of all ranks go to stderr
    o.out.mkdir(parents=True, exist_ok=True)
    env.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(o.out / "flight-"))  # NCCL writes its last calls there on a time-out
    device = torch.device("cpu")
    if torch.cuda.is_available():  # % because srun may show a rank only its own GPU
        device = torch.device("cuda", int(env["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(seconds=o.timeout))
    return device


class Block(nn.Module):
    """Attention, then SwiGLU. Each reads a normed input and adds its result."""

    def __init__(self, o):
        super().__init__()
        norm, linear, hidden = partial(nn.RMSNorm, o.dim, eps=1e-5), partial(nn.Linear, bias=False), 8 * o.dim // 3
        self.norm1, self.qkv, self.out = norm(), linear(o.dim, 3 * o.dim), linear(o.dim, o.dim)
        self.norm2, self.up, self.down = norm(), linear(o.dim, 2 * hidden), linear(hidden, o.dim)
        self.heads, self.dropout = o.heads, nn.Dropout(o.dropout)

    def rotate(self, x):
        """Rotate pairs of x (batch, heads, positions, width) by their position: RoPE. In fp32, as bf16 blurs angles."""
        a, b = x.float().chunk(2, dim=-1)
        frequency = 10_000 ** -torch.linspace(0, 1, a.shape[-1], device=x.device)
        angle = torch.arange(x.shape[-2], device=x.device)[:, None] * frequency
        return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), dim=-1).type_as(x)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)
        x = x + self.dropout(self.out(y.transpose(1, 2).flatten(2)))
        gate, up = self.up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.dropout(self.down(F.silu(gate) * up))


def keep_products(context, op, *args, **kwargs):
    """Keep the results of matrix products and attention: the others are cheap to compute again."""
    is_product = re.search(r"mm\b|attention|attn", op.name())
    return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE


def sharded_model(o, device):
    """Return the model, sharded block by block. It is made without memory, so no rank ever holds all of it."""
    with torch.device("meta"):
        blocks = [Block(o) for _ in range(o.layers)]
        ends = nn.Embedding(256, o.dim), nn.RMSNorm(o.dim, eps=1e-5), nn.Linear(o.dim, 256, bias=False)  # token = byte
    sizes = o.replicas, dist.get_world_size() // o.replicas
    mesh = dist.init_device_mesh(device.type, sizes, mesh_dim_names=("replicas", "shards"))
    types = (torch.bfloat16, torch.float32) if o.precision == "bf16" else ()  # gathered weights, reduced gradients
    fsdp = {"mesh": mesh if o.replicas > 1 else mesh["shards"], "mp_policy": MixedPrecisionPolicy(*types)}
    selective = {"context_fn": partial(create_selective_checkpoint_contexts, keep_products)}
    for i, block in enumerate(blocks):
        if o.recompute != "none":
            blocks[i] = checkpoint_wrapper(block, **(selective if o.recompute == "selective" else {}))
        if o.compile:
            blocks[i].compile(backend=o.compile)
        fully_shard(blocks[i], **fsdp)
    model = fully_shard(nn.Sequential(ends[0], *blocks, *ends[1:]), **fsdp).to_empty(device=device)
    draw = torch.Generator(device).manual_seed(o.seed)
    for name, p in model.named_parameters():  # every rank draws whole tensors: the same weights on any number of ranks
        std = 0.02 / math.sqrt(2 * o.layers) if re.search("out|down", name) else 0.02
        mean, std = (0.0, std) if p.ndim > 1 else (1.0, 0.0)  # a norm's weights begin as ones
        whole = torch.normal(mean, std, p.shape, generator=draw, device=device)
        p.data.copy_(distribute_tensor(whole, p.device_mesh, p.placements, src_data_rank=None))  # keeps its own rows
    return model


class Run:
    """A training run: what its checkpoints hold, and what a step changes."""

    def __init__(self, o):
        self.o, self.device, self.rank, self.ranks = o, start_rank(o), dist.get_rank(), dist.get_world_size()
        self.step = self.position = 0  # steps done, and samples that all ranks together have read
        text = b"".join(file.read_bytes() for file in sorted(Path(os.__file__).parent.glob("*.py")))  # your data here
        windows = torch.frombuffer(bytearray(text), dtype=torch.uint8).unfold(0, o.seq_len + 1, o.seq_len)
        held_out = torch.arange(len(windows)) % (len(windows) // o.validation) == 0
        self.training, self.validation = windows[~held_out], windows[held_out]
        self.model = sharded_model(o, self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), betas=(0.9, 0.95), fused=True)
        self.random = torch.cuda if self.device.type == "cuda" else torch
        self.random.manual_seed(o.seed + self.rank)  # for dropout
        self.writing, self.writers = None, dist.new_group(backend="gloo")  # background saves have a group of their own
        self.fixed = f"--dim {o.dim} --layers {o.layers} --heads {o.heads} --seq-len {o.seq_len} --seed {o.seed}"
        self.fixed += f" and a text of {len(text):,} bytes"  # decide the model and the order of the data

    def samples(self, n):
        """Return the next n samples of the run, the same on any number of ranks. Each epoch has an order of its own."""
        epochs = range(self.position // len(self.training), (self.position + n - 1) // len(self.training) + 1)
        draws = [torch.Generator().manual_seed(self.o.seed * 1_000_003 + epoch) for epoch in epochs]
        order = torch.cat([torch.randperm(len(self.training), generator=draw) for draw in draws])
        return self.training[order[self.position % len(self.training) :][:n]]

    def losses(self, windows):
        """Yield each micro-batch's summed loss, and if it is the last: as many on each rank, since all must gather."""
        n = math.ceil(len(windows) / self.ranks / self.o.micro_batch)
        missing = n * self.ranks * self.o.micro_batch - len(windows)
        padded = F.pad(windows.long(), (0, 0, 0, missing), value=-100)  # the loss ignores targets of -100
        for i, part in enumerate(padded[self.rank :: self.ranks].to(self.device).chunk(n)):
            logits = self.model(part[:, :-1].clamp(min=0)).float()
            yield F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum"), i == n - 1

    def train_step(self):
        """Return this rank's part of the global batch's mean loss, and the whole gradient's norm before clipping."""
        cosine = math.cos(math.pi * max(0, self.step - self.o.warmup) / max(1, self.o.steps - self.o.warmup))
        self.lr = self.o.lr * min(1, (self.step + 1) / self.o.warmup, 0.55 + 0.45 * cosine)
        self.optimizer.param_groups[0]["lr"] = self.lr
        self.optimizer.zero_grad()
        windows, total = self.samples(self.o.global_batch), 0.0
        for loss, is_last in self.losses(windows):
            self.model.set_requires_gradient_sync(is_last)  # the others add to the whole gradient and send nothing
            self.model.set_is_last_backward(is_last)
            total += loss.detach() / windows[:, 1:].numel()
            (loss * self.ranks / windows[:, 1:].numel()).backward()  # times the ranks, because FSDP divides by them
        norm = nn.utils.get_total_norm([p.grad for p in self.model.parameters()]).full_tensor()
        nn.utils.clip_grads_with_norm_(self.model.parameters(), self.o.clip, norm)
        self.optimizer.step()
        self.step, self.position = self.step + 1, self.position + len(windows)
        return total, norm

    @torch.no_grad()
    def validate(self):
        """Return the mean loss of the held-out windows, each counted once."""
        self.model.eval()
        dist.all_reduce(total := sum(loss for loss, _ in self.losses(self.validation)))
        self.model.train().reshard()  # without a backward the root would stay gathered
        return total.item() / self.validation[:, 1:].numel()

    def check_sharding(self):
        """End the job if this rank holds more weights than its share. Gradients and AdamW's states go with them."""
        local = [p.to_local() if isinstance(p, DTensor) else p for p in self.model.parameters()]
        held, shards = sum(p.nbytes for p in local), self.ranks // self.o.replicas
        allowed = sum(4 * math.ceil(p.shape[0] / shards) * p.numel() // p.shape[0] for p in self.model.parameters())
        words = f"rank {self.rank} holds {held:,} bytes of weights; a share of 1/{shards} is {allowed:,}"
        sys.exit(f"train.py: not sharded: {words}") if held > allowed else print(words)

    def state(self):
        """Return all that a step reads and an earlier step has changed, by name. Random numbers are each rank's own."""
        weights, moments = get_state_dict(self.model, self.optimizer)
        progress = {"step": self.step, "position": self.position, f"random-{self.rank}": self.random.get_rng_state()}
        return {"model": weights, "optimizer": moments} | progress

    def complete(self):
        """Return the folders of complete checkpoints, the latest last. DCP writes .metadata after everything else."""
        return sorted(file.parent for file in self.o.out.glob("step-*/.metadata"))

    def save(self):
        """Copy the state, and write the copy in the background while training continues."""
        self.finish_writing()
        state, folder = self.state() | {"ranks": self.ranks, "fixed": self.fixed}, self.o.out / f"step-{self.step:08d}"
        self.writing = dcp.async_save(state, checkpoint_id=folder, process_group=self.writers)

    def finish_writing(self):
        """Wait until the last save is complete; delete all but two."""
        if self.writing:
            self.writing.result()
        for old in self.complete()[:-2] if self.rank == 0 else ():
            shutil.rmtree(old)

    def load(self):
        """Continue from the latest complete checkpoint, if there is one."""
        found = [self.complete()]
        dist.broadcast_object_list(found, group=self.writers)  # rank 0 decides: on a cluster, some see new files late
        if not found[0]:
            return stop(f"no complete checkpoint in {self.o.out}") if self.o.resume else None
        folder, saved, state = found[0][-1], {"ranks": 0, "fixed": ""}, self.state()
        dcp.load(saved, checkpoint_id=folder)
        if saved["fixed"] != self.fixed:
            stop(f"{folder} is of a run with {saved['fixed']}, and this one has {self.fixed}")
        if saved["ranks"] != self.ranks:  # then each rank begins other random numbers
            state.pop(f"random-{self.rank}")
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.step, self.position = state["step"], state["position"]
        self.random.manual_seed(self.o.seed + self.rank + 1_000_003 * self.step)
        self.random.set_rng_state(state.get(f"random-{self.rank}", self.random.get_rng_state()))
        print(f"continues from {folder}, which {saved['ranks']} ranks saved", flush=True)

    @torch.no_grad()
    def sample(self, text, n=200):
        """Return `text` continued by n bytes. Every rank calls it, because forward gathers; all draw the same bytes."""
        self.model.eval()
        tokens, draw = list(text.encode()), torch.Generator().manual_seed(self.o.seed)
        for _ in range(n):
            context = torch.tensor([tokens[-self.o.seq_len :]], device=self.device)
            logits = self.model(context)[0, -1].float().cpu()
            tokens += torch.multinomial((logits / 0.7).softmax(-1), 1, generator=draw).tolist()
        return bytes(tokens).decode(errors="replace")

    def train(self):
        """Train up to --steps, or until a rank gets SIGTERM. Return True after the last step."""
        o, told, stopping, tokens, seconds = self.o, [], 0, 0, 0.0
        signal.signal(signal.SIGTERM, lambda *_: told.append(True))
        faulthandler.register(signal.SIGUSR1, file=(stacks := open(o.out / f"stack-{self.rank}.txt", "a")))
        weights = sum(p.numel() for p in self.model.parameters()) - 256 * o.dim  # an embedding multiplies nothing
        flops = 6 * (weights + o.layers * o.dim * o.seq_len)  # of a token; the second part is causal attention
        while self.step < o.steps and not stopping:
            faulthandler.dump_traceback_later(0.8 * o.timeout, file=stacks)  # if this step has not ended by then
            began = time.perf_counter()
            part, norm = self.train_step()
            dist.all_reduce(totals := torch.stack([part, part.new_tensor(len(told))]))  # one message for both
            loss, stopping = totals.tolist()
            tokens, seconds = tokens + o.global_batch * o.seq_len, seconds + time.perf_counter() - began
            rate, is_last = tokens / seconds, self.step == o.steps or stopping
            line = {"step": self.step, "loss": loss, "norm": norm.item(), "lr": self.lr, "tokens/s": round(rate)}
            line |= {"MFU": round(rate * flops / (self.ranks * o.peak_tflops * 1e12), 4)} if o.peak_tflops else {}
            if self.step % o.eval_every == 0 or self.step == o.steps:  # not if it is told to stop: then time is short
                line["validation"] = self.validate()
            if self.step % o.log_every == 0 or is_last:
                print("  ".join(f"{name} {value:.7g}" for name, value in line.items()), flush=True)
                tokens, seconds = 0, 0.0
            if self.step % o.save_every == 0 or is_last:
                self.save()
        self.finish_writing()
        return self.step >= o.steps


if __name__ == "__main__":
    run = Run(options())
    run.load()
    run.check_sharding()
    if run.train() and run.o.sample:
        print(run.sample(run.o.sample))
    dist.destroy_process_group()
