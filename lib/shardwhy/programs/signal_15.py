"""torchrun gets SIGTERM, as from a scheduler at the end of the time limit."""

import os
import signal
import subprocess
import sys
import time

if "RANK" in os.environ:
    print("started", flush=True)
    time.sleep(60)
command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
command += ["--nproc-per-node=2", __file__]
torchrun = subprocess.Popen(command, stdout=subprocess.PIPE)
torchrun.stdout.readline()  # a rank runs
torchrun.send_signal(signal.SIGTERM)
sys.exit(torchrun.wait())
