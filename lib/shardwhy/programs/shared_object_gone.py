"""A process gets the name of a tensor in shared memory whose file is gone."""

import torch

manager, _, size, *_ = torch.zeros(8).untyped_storage()._share_filename_cpu_()
torch.UntypedStorage._new_shared_filename_cpu(manager, b"/torch_1_1_1", size)
