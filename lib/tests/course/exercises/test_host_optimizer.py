"""The exercise of lesson 9a: its answer is right, and each wrong answer is told what is wrong."""

import pytest
import torch

from shardcourse.exercises.host_optimizer import check_host_optimizer


class Right:
    def __init__(self, params):
        self.host = {}
        for p in params:
            self.host[p] = p.detach().clone()
            p.register_post_accumulate_grad_hook(self.take_gradient)
        self.optimizer = torch.optim.AdamW(self.host.values())

    def take_gradient(self, p):
        host, gradient = self.host[p], p.grad.clone()
        host.grad = gradient if host.grad is None else host.grad + gradient
        p.grad = None

    @torch.no_grad()
    def step(self):
        self.optimizer.step()
        for p, host in self.host.items():
            p.copy_(host)
        self.optimizer.zero_grad()


class Empty:
    def __init__(self, params):
        pass


class KeepsGradients(Right):
    def take_gradient(self, p):
        self.host[p].grad = p.grad


class Replaces(Right):
    def take_gradient(self, p):
        self.host[p].grad, p.grad = p.grad, None


class NeverClears(Right):
    @torch.no_grad()
    def step(self):
        self.optimizer.step()
        for p, host in self.host.items():
            p.copy_(host)


class NeverCopiesBack(Right):
    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()


class Raises(Right):
    def step(self):
        raise KeyError("no such parameter")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Right, "Right: 3 steps"),
        (Empty, "Not written yet"),
        (KeepsGradients, "4 of 4 gradients are still on the device"),
        (Replaces, "replaced the gradients of the first"),
        (NeverClears, "gradients of earlier steps are still there"),
        (NeverCopiesBack, "have not changed"),
        (Raises, "It raised KeyError"),
    ],
)
def test_an_answer_is_told_what_is_wrong(make, words):
    assert words in check_host_optimizer(make)
