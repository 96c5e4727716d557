"""A program asks for a name that this version of PyTorch does not have."""

from torch.distributed.fsdp import fully_shard_of_another_version  # noqa: F401
