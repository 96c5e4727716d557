"""Optimizer states outside device memory: in `host` memory, or in a `file`, which `file_layout` divides.

For parameters on the host too: `fully_shard(..., offload_policy=CPUOffloadPolicy())`.
"""

from shardlab.offload.file import FileOffloadOptimizer
from shardlab.offload.host import CPUOffloadOptimizer

__all__ = ["CPUOffloadOptimizer", "FileOffloadOptimizer"]
