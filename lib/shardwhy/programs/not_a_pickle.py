"""A pointer of git-lfs was copied instead of the weights."""

import tempfile
from pathlib import Path

import torch

with tempfile.TemporaryDirectory() as folder:
    file = Path(folder, "pytorch_model.bin")
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4\n")
    torch.load(file, weights_only=False)
