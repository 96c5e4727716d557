"""A digest of the random state changes with what has been drawn, on the CPU and on a rank's GPU."""

import torch

from grading.checks import random_state_digest


def test_the_digest_changes_with_what_is_drawn_on_the_cpu_and_on_the_gpu(monkeypatch):
    torch.manual_seed(1)
    on_cpu = random_state_digest.digest()
    assert on_cpu == random_state_digest.digest()
    gpu = {"state": torch.tensor([1, 2], dtype=torch.uint8)}
    monkeypatch.setattr(random_state_digest, "local_device", lambda: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: gpu["state"])
    first = random_state_digest.digest()
    gpu["state"] = torch.tensor([1, 3], dtype=torch.uint8)
    assert len({on_cpu, first, random_state_digest.digest()}) == 3
    torch.rand(1)
    gpu["state"] = torch.tensor([1, 2], dtype=torch.uint8)
    assert first != random_state_digest.digest()
