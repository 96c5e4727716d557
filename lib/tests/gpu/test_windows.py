"""On Windows, which has no fcntl, the first import says what to use instead."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("first", ["import shardlab", "import shardcourse.cli.app"])
def test_without_fcntl_wsl_is_named(first):
    source = f"import sys; sys.modules['fcntl'] = None; {first}"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ImportError: shardlab runs on Linux and macOS" in done.stderr and "wsl --install" in done.stderr
