"""The exercise of lesson 1: predict the peak of a training step of a stack of Linear and ReLU, and have it checked.

print(check_peak(fn))  # in words: "right", or what is wrong
"""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from shardlab.measure.memory import MemoryTracker

# Widths and rows of a batch: the peak lies in a ReLU's backward, in the first layer's backward, at forward's end.
SETUPS = (((64, 256, 256, 32), 512), ((64, 256, 256, 32), 16), ((64, 32, 512), 1000), ((32, 512, 16, 512, 32), 200))
_WITHIN = 0.001
Predict = Callable[[Sequence[int], int], float | None]


def linear_and_relu(widths: Sequence[int]) -> nn.Sequential:
    """Return Linear layers without bias, from each width to the next, with a ReLU between two of them."""
    layers: list[nn.Module] = []
    for a, b in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(a, b, bias=False), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def measured_peak(widths: Sequence[int], rows: int) -> int:
    """Return the most bytes in use during the second AdamW step on a batch of so many rows, in fp32."""
    model = linear_and_relu(widths)
    optimizer, x = torch.optim.AdamW(model.parameters(), fused=True), torch.randn(rows, widths[0])
    for _ in range(2):
        optimizer.zero_grad()
        with MemoryTracker(model, optimizer) as tracker:
            tracker.label("other", x)
            loss = model(x).sum()
            loss.backward()
            optimizer.step()
        del loss
    return tracker.peak.peak_bytes


def check_peak(predict: Predict) -> str:
    """Compare `predict(widths, rows)` with measured steps; say what is wrong, the likely cause first."""
    for widths, rows in SETUPS:
        predicted = predict(widths, rows)
        if predicted is None:
            return "Not written yet: the function returns None."
        measured = measured_peak(widths, rows)
        if abs(predicted - measured) > _WITHIN * measured:
            said = f"widths {widths}, {rows} rows: predicted {predicted:,.0f} bytes, measured {measured:,d}."
            return f"{said} {_cause(predicted, measured, widths, rows)}".rstrip()
    return f"Right: {len(SETUPS)} setups, each within {_WITHIN:.1%} of the measured peak."


def _cause(predicted: float, measured: int, widths: Sequence[int], rows: int) -> str:
    """Name the mistake that gives this number, if it is a known one."""
    weights = sum(a * b for a, b in zip(widths, widths[1:], strict=False))
    known = {
        measured / 4: "These are numbers, not bytes: each has 4 bytes.",
        measured - 8 * weights: "AdamW's two states of each parameter are missing.",
        measured - 4 * weights: "Something as large as the parameters is missing: they, a state, or all gradients.",
        16 * weights + 4 * rows * sum(widths): (
            "You add all gradients to all activations. In backward, gradients come as activations go."
        ),
        12 * weights + 4 * rows * sum(widths): "This is the end of forward. Another moment of this setup is fuller.",
        16 * weights + 4 * rows * widths[0]: "This is the optimizer's step. Another moment of this setup is fuller.",
    }
    return next((words for n, words in known.items() if abs(predicted - n) <= _WITHIN * measured), "")
