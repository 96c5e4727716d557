"""The process that hosts the store ends; the others lose their connection to it."""

import datetime
import subprocess
import sys
import time

import torch.distributed as dist

if len(sys.argv) > 1:  # the host: rank 0, for example
    host = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    print(host.port, flush=True)
    time.sleep(60)
with subprocess.Popen([sys.executable, __file__, "host"], stdout=subprocess.PIPE, text=True) as host:
    port = int(host.stdout.readline())
    store = dist.TCPStore("localhost", port, is_master=False, timeout=datetime.timedelta(seconds=5))
    host.kill()
    host.wait()
    while True:
        store.set("step", "1")
