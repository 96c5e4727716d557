"""A checkpoint holds an object of a class of one's own."""

import argparse
import io

import torch

from shardlab import launch


def load():
    file = io.BytesIO()
    torch.save({"weight": torch.ones(4), "options": argparse.Namespace(lr=0.1)}, file)
    file.seek(0)
    torch.load(file)


launch(load, 2, device="cpu", timeout_s=20)
