# %% one_rank
from shardlab.model import ModelConfig
from shardplan.memory import memory_plan
from shardplan.planned_job import Setup as PlanSetup
from shardplan.shape import Shape
from shardplan.strategy import Strategy
from shardsim.machines import machine


def planned(s, sharding):
    shape = Shape.of("mine", ModelConfig(s.V, s.D, s.L, s.H, s.K, s.F, s.T))
    strategy = Strategy(sharding, precision="fp32", micro_batch=s.B, seq_len=s.T, optimizer_kernel="fused")
    return memory_plan(PlanSetup(shape, machine("dgx-h100"), s.N, strategy))


def predict_one_rank(s):
    return 12 * (s.L * block_params(s) + root_params(s)), planned(s, "NONE").peak.n_bytes


# %% ddp
def predict_ddp(s):
    import subprocess
    import sys

    shape = f"{s.V}, {s.D}, {s.L}, {s.H}, {s.K}, {s.F}, {s.T}"
    code = f"from shardlab.model import ModelConfig; print(ModelConfig({shape}).n_params)"
    n_params = int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    return 16 * n_params, 16 * n_params + s.L * kept_bytes(s)


# %% fsdp
def predict_fsdp(s):
    import torch

    import shardlab.model

    with torch.device("meta"):
        config = shardlab.model.ModelConfig(s.V, s.D, s.L, s.H, s.K, s.F, s.T)
        n_bytes = 4 * sum(p.numel() for p in shardlab.model.Transformer(config).parameters())
    return 3 * n_bytes / s.N, 3 * n_bytes / s.N + n_bytes + s.L * kept_bytes(s)
