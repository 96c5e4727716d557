"""Ask `nvidia-smi`, which comes with NVIDIA's driver, about this machine's GPUs. It opens none of them."""

import subprocess


def ask(*arguments: str) -> str:
    """Return what `nvidia-smi` prints; "" where it is missing, fails, or hangs for half a minute."""
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments], capture_output=True, text=True, timeout=30, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout.strip()


def query(field: str) -> list[str]:
    """Return a field of each GPU, in the order of their places on the bus; `nvidia-smi --help-query-gpu` lists all."""
    return [line.strip() for line in ask(f"--query-gpu={field}", "--format=csv,noheader").splitlines()]
