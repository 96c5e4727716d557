"""The exercise of lesson 9b: AdamW with its states in a file, chunk by chunk, and its check.

print(check_file_adamw(fn))  # in words: "right", or what is wrong
"""

from collections.abc import Callable

import torch
from torch import Tensor

LR, BETA1, BETA2, EPS, DECAY = 0.01, 0.9, 0.999, 1e-8, 0.1
N, CHUNK, STEPS = 1000, 256, 3  # the last chunk is shorter
Update = Callable[[Tensor, Tensor, "StatesFile", int], None]


class StatesFile:
    """The states "m" and "v" of so many parameters, zero at first. It hands out at most `chunk` numbers at a time."""

    def __init__(self, n: int, chunk: int) -> None:
        self.n, self.chunk = n, chunk
        self.n_read = self.n_written = 0  # numbers, since the beginning
        self._states = {"m": torch.zeros(n), "v": torch.zeros(n)}

    def read(self, name: str, start: int, end: int) -> Tensor:
        """Return a copy of the numbers from `start` to `end`."""
        self._check(end - start)
        self.n_read += end - start
        return self._states[name][start:end].clone()

    def write(self, name: str, start: int, values: Tensor) -> None:
        self._check(len(values))
        self.n_written += len(values)
        self._states[name][start : start + len(values)] = values

    def _check(self, count: int) -> None:
        if count > self.chunk:
            raise ValueError(f"{count} numbers at a time; the buffer in memory has room for {self.chunk}")


def check_file_adamw(update: Update) -> str:
    """Run `update(p, gradient, file, step)` beside torch's AdamW; say what is wrong, the likely cause first."""
    torch.manual_seed(0)
    start, gradients, file = torch.randn(N), torch.randn(STEPS, N), StatesFile(N, CHUNK)
    p = start.clone()
    right = _steps(start, gradients)
    for step, gradient in enumerate(gradients, 1):
        try:
            update(p, gradient.clone(), file, step)
        except Exception as error:  # the reader's code may raise anything
            return f"It raised {type(error).__name__}: {error}"
        if torch.equal(p, start) and not file.n_read:
            return "Not written yet: nothing was read, and no parameter has changed."
        if not _close(p, right[step - 1]):
            return f"Step {step} is wrong. {_cause(p, start, gradients[:step])}".rstrip()
    for n, verb in ((file.n_read, "read"), (file.n_written, "written")):
        if n != 2 * N * STEPS:
            return f"The parameters are right, but {n:,d} numbers were {verb}, where {2 * N * STEPS:,d} are enough."
    return f"Right: {STEPS} steps in chunks of {CHUNK}, and each state is read and written once a step."


def _steps(p: Tensor, gradients: Tensor, **options) -> list[Tensor]:
    """Return the parameters after each step of AdamW, if wanted with a mistake: see `_step`."""
    p, m, v, found = p.clone(), torch.zeros(N), torch.zeros(N), []
    for step, gradient in enumerate(gradients, 1):
        p, m, v = _step(p, m, v, gradient, step, **options)
        found.append(p)
    return found


def _step(p, m, v, gradient, step, *, decay="apart", correct=True, keep_states=True):
    if decay == "in the gradient":
        gradient = gradient + DECAY * p
    new_m = BETA1 * m + (1 - BETA1) * gradient
    new_v = BETA2 * v + (1 - BETA2) * gradient**2
    m_hat, v_hat = (new_m / (1 - BETA1**step), new_v / (1 - BETA2**step)) if correct else (new_m, new_v)
    shrunk = p * (1 - LR * DECAY) if decay == "apart" else p
    p = shrunk - LR * m_hat / (v_hat.sqrt() + EPS)
    return (p, new_m, new_v) if keep_states else (p, m, v)


def _cause(found: Tensor, start: Tensor, gradients: Tensor) -> str:
    """Name the mistake that gives these parameters, if it is a known one."""
    last = N - N % CHUNK
    if torch.equal(found[last:], start[last:]):
        return f"The last chunk, from {last} on, has not changed: it is shorter than the others."
    known = {
        "The states are not corrected for their start at zero: divide by 1 - beta^step.": {"correct": False},
        "There is no weight decay.": {"decay": "none"},
        "The decay is in the gradient, as in Adam: AdamW shrinks the parameter itself.": {"decay": "in the gradient"},
        "The new states are not in the file: write both back.": {"keep_states": False},
    }
    return next((words for words, wrong in known.items() if _close(found, _steps(start, gradients, **wrong)[-1])), "")


def _close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-5, atol=1e-6)
