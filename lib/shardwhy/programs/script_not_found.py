"""torchrun starts two ranks with a relative path, from a folder in which the script is not."""

import subprocess
import sys
import tempfile

with tempfile.TemporaryDirectory() as other_folder:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    torchrun += ["--nproc-per-node=2", "train.py"]
    subprocess.run(torchrun, cwd=other_folder)
