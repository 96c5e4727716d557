"""Optimizer states elsewhere: in `host` memory, or in a `file`, whose places `file_layout` deals out.

Parameters on the host, too: `fully_shard(..., offload_policy=CPUOffloadPolicy())`.
"""

from shardlab.offload.file import FileOffloadOptimizer
from shardlab.offload.host import CPUOffloadOptimizer

__all__ = ["CPUOffloadOptimizer", "FileOffloadOptimizer"]
