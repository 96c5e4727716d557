"""Under torchrun, rank 1 reads a mapped file behind its new end: exitcode -7, a bus error, as if /dev/shm were full."""

import mmap
import os
import subprocess
import sys
import tempfile

if "RANK" not in os.environ:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    torchrun += ["--nproc-per-node=2", __file__]
    sys.exit(subprocess.run(torchrun).returncode)
if os.environ["RANK"] == "1":
    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        memory = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        memory[0]
