"""The check of lesson 7a's exercise: it accepts the answer, and says of each wrong answer what is wrong."""

import pytest
import torch

from shardcourse.exercises.fp32_master import check_master


class Master:
    """The answer."""

    def __init__(self, params, lr):
        self.weights = list(params)
        self.masters = [w.detach().float().clone() for w in self.weights]
        self.adamw = torch.optim.AdamW(self.masters, lr=lr)

    @torch.no_grad()
    def step(self):
        for weight, master in zip(self.weights, self.masters, strict=True):
            master.grad = weight.grad.float()
        self.adamw.step()
        for weight, master in zip(self.weights, self.masters, strict=True):
            weight.copy_(master)
            master.grad = None

    def zero_grad(self):
        for weight in self.weights:
            weight.grad = None

    def state_dict(self):
        return {"masters": [m.clone() for m in self.masters], "adamw": self.adamw.state_dict()}

    def load_state_dict(self, state):
        for master, saved in zip(self.masters, state["masters"], strict=True):
            master.copy_(saved)
        self.adamw.load_state_dict(state["adamw"])


class Unwritten(Master):
    def step(self):
        raise NotImplementedError


class NotCopied(Master):
    @torch.no_grad()
    def step(self):
        for weight, master in zip(self.weights, self.masters, strict=True):
            master.grad = weight.grad.float()
        self.adamw.step()


class MadeAnew(Master):
    def step(self):
        for weight, master in zip(self.weights, self.masters, strict=True):
            master.copy_(weight.detach())
        super().step()


class BecomesFloat(Master):
    def step(self):
        super().step()
        for weight, master in zip(self.weights, self.masters, strict=True):
            weight.grad, weight.data = None, master.clone()


class KeepsGradients(Master):
    def zero_grad(self):
        pass


class OtherRate(Master):
    def __init__(self, params, lr):
        super().__init__(params, 2 * lr)


class NoMasterInTheState(Master):
    def load_state_dict(self, state):
        for weight, master in zip(self.weights, self.masters, strict=True):
            master.copy_(weight.detach())
        self.adamw.load_state_dict(state["adamw"])


class NoMomentsInTheState(Master):
    def load_state_dict(self, state):
        for master, saved in zip(self.masters, state["masters"], strict=True):
            master.copy_(saved)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (Master, "right"),
        (Unwritten, "not written yet"),
        (NotCopied, "no weight changes"),
        (MadeAnew, "small updates are lost"),
        (BecomesFloat, "the weights have become float32"),
        (KeepsGradients, "zero_grad leaves old gradients"),
        (OtherRate, "not as AdamW in fp32"),
        (NoMasterInTheState, "a resumed run differs"),
        (NoMomentsInTheState, "a resumed run differs"),
    ],
)
def test_the_check_names_what_is_wrong(answer, verdict):
    assert verdict in check_master(answer)
