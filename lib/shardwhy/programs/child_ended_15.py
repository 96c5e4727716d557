"""Under torchrun, rank 1 fails while rank 0 works: torchrun ends rank 0 with SIGTERM, exitcode -15."""

import os
import subprocess
import sys
import time

if "RANK" not in os.environ:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    torchrun += ["--nproc-per-node=2", __file__]
    sys.exit(subprocess.run(torchrun).returncode)
if os.environ["RANK"] == "1":
    raise ValueError("the real error")
time.sleep(30)
