"""Glibc's assert fails in a child process, as in compiled code of a library."""

import subprocess
import sys

CODE = """
import ctypes
ctypes.CDLL(None).__assert_fail(b"srcLayout.isAmpere()", b"Allocation.cpp", 43, b"getCvtOrder")
"""
done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
sys.exit(done.stderr.strip().splitlines()[0])
