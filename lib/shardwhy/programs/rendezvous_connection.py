"""torchrun cannot reach its endpoint."""

import socket
import subprocess
import sys

with socket.socket() as nobody:  # a port that is taken, but not listened on
    nobody.bind(("localhost", 0))
    endpoint = f"127.0.0.2:{nobody.getsockname()[1]}"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--rdzv-backend=c10d"]
    where = [f"--rdzv-endpoint={endpoint}", "--rdzv-conf=is_host=0,read_timeout=3"]
    sys.exit(subprocess.run([*torchrun, *where, __file__]).returncode)
