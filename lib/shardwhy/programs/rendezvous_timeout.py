"""torchrun waits for a second node that never comes."""

import subprocess
import sys

torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--rdzv-backend=c10d"]
where = ["--rdzv-endpoint=localhost:0", "--rdzv-conf=is_host=1,join_timeout=3"]
sys.exit(subprocess.run([*torchrun, *where, __file__]).returncode)
