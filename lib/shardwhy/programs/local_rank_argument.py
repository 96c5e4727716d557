"""torch.distributed.launch passes --local-rank to a script that knows --local_rank only."""

import argparse
import os
import subprocess
import sys

if "RANK" not in os.environ:
    launcher = [sys.executable, "-m", "torch.distributed.launch", "--nproc-per-node=2", "--master-port=0", __file__]
    sys.exit(subprocess.run(launcher).returncode)
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
parser.parse_args()
