"""Tell whether two runs draw the same numbers: a digest of where a rank's random generators stand."""

from hashlib import sha256

import torch

from shardlab import local_device


def digest() -> str:
    """Return a digest of the states of the CPU's generator and, on a GPU, of that GPU's."""
    states = [torch.get_rng_state()]
    if local_device().type == "cuda":
        states.append(torch.cuda.get_rng_state())
    return sha256(b"".join(bytes(state.tolist()) for state in states)).hexdigest()
