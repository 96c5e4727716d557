"""A trainer looks for a GPU in a process from which all are hidden."""

import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""
import torch

if not torch.cuda.is_available():
    raise RuntimeError("this trainer found no usable GPU")
