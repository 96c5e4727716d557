"""Two agents of torchrun on this machine, as if they were two nodes with one rank each: the material of lesson 11b."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


def torchrun_on_two_nodes(script: Path, **second_node: str) -> Iterator[str]:
    """Run `script` under two torchrun agents in its folder; yield the lines that the first node prints.

    The job may go on with one node (`--nnodes=1:2`), and restarts at most twice. `second_node` are environment
    variables of the second node only. The agents' waits are short, for a lesson; torchrun's defaults suit clusters.
    """
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    nodes = [_agent(script, port, 1, {}), _agent(script, port, 0, second_node)]
    try:
        yield from nodes[0].stdout
        nodes[0].wait()
    finally:
        for node in nodes:
            node.kill()
            node.communicate()


def _agent(script: Path, port: int, is_host: int, environment: dict[str, str]) -> subprocess.Popen:
    options = f"--nnodes=1:2 --nproc-per-node=1 --max-restarts=2 --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:{port}"
    options += " --local-addr=127.0.0.1"  # a machine's name may have no address
    conf = f"--rdzv-conf=is_host={is_host},last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2"
    command = [sys.executable, "-m", "torch.distributed.run", *options.split(), conf, "--monitor-interval=0.2", script]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    settings = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"} | environment
    return subprocess.Popen(command, cwd=script.parent, env=settings, start_new_session=True, **pipes)
