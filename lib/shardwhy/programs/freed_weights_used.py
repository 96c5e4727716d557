"""A weight whose memory was freed after forward, as FSDP1 does it, is used."""

import torch

weight = torch.randn(4, 4)
view_later = weight.untyped_storage()
view_later.resize_(0)
torch.as_strided(weight, (4, 4), (1, 4)).clone()
