"""Inductor finds no C++ compiler."""

import torch
import torch._inductor.config

from shardlab import launch


def train():
    torch._inductor.config.cpp.cxx = ("no-such-compiler",)
    torch._inductor.config.force_disable_caches = True
    torch.compile(torch.sin)(torch.ones(8))


launch(train, 1, device="cpu", timeout_s=25)
