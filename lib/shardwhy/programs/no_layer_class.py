"""The class to wrap is not in the model."""

import os

import torch
from accelerate import FullyShardedDataParallelPlugin

os.environ["FSDP_AUTO_WRAP_POLICY"] = "TRANSFORMER_BASED_WRAP"
plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["LlamaDecoderLayer"]
)
plugin.set_auto_wrap_policy(torch.nn.Sequential(torch.nn.Linear(4, 4)))
