"""accelerate gets a model that was loaded in 4 bits on another device than the one that trains."""

import torch
from accelerate import Accelerator

model = torch.nn.Linear(4, 4)
model.is_loaded_in_4bit, model.hf_device_map = True, {"": 1}  # what from_pretrained sets: the whole model on GPU 1
Accelerator(cpu=True).prepare(model)
