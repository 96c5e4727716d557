"""A child process is ended by signal 8, as when code in C divides an integer by zero."""

import signal
import subprocess
import sys

code = f"import os; os.kill(os.getpid(), {int(signal.SIGFPE)})"
subprocess.run([sys.executable, "-c", code], check=True)
