"""The check that compiled code begins with, and a weight of another layer."""

import torch
from torch._C._dynamo.guards import assert_size_stride

assert_size_stride(torch.ones(768, 256), (256, 256), (256, 1))
