"""A process whose user number has no name, as in a container with --user 12345, is asked for the name."""

import getpass
import os

for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
    os.environ.pop(name, None)
os.getuid = lambda: 12345  # a container that was started with --user 12345

print(f"/tmp/torchinductor_{getpass.getuser()}")  # how torch 2.11 names the folder of its compiler's cache
