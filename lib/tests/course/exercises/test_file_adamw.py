"""The exercise of lesson 9b: its reference is torch's AdamW, its answer is right, each wrong answer is told why."""

import pytest
import torch

from shardcourse.exercises.file_adamw import BETA1, BETA2, CHUNK, DECAY, EPS, LR, N, _steps, check_file_adamw


def adamw(p, g, m, v, step, correct=True, decay=True):
    m.mul_(BETA1).add_(g, alpha=1 - BETA1)
    v.mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
    p *= 1 - LR * DECAY * decay
    m_hat, v_hat = (m / (1 - BETA1**step), v / (1 - BETA2**step)) if correct else (m, v)
    p -= LR * m_hat / (v_hat.sqrt() + EPS)


def right(p, gradient, file, step, *, n=N, chunk=CHUNK, write=True, add_decay=0.0, **options):
    for start in range(0, n, chunk):
        end = min(start + chunk, n)
        m, v = file.read("m", start, end), file.read("v", start, end)
        adamw(p[start:end], gradient[start:end] + add_decay * p[start:end], m, v, step, **options)
        if write:
            file.write("m", start, m)
            file.write("v", start, v)


def reads_twice(p, gradient, file, step):
    file.read("m", 0, CHUNK)
    right(p, gradient, file, step)


def test_the_reference_is_torchs_adamw():
    torch.manual_seed(0)
    p, gradients = torch.nn.Parameter(torch.randn(N)), torch.randn(4, N)
    wanted = _steps(p.detach(), gradients)
    optimizer = torch.optim.AdamW([p], lr=LR, betas=(BETA1, BETA2), eps=EPS, weight_decay=DECAY)
    for gradient, there in zip(gradients, wanted, strict=True):
        p.grad = gradient
        optimizer.step()
        assert torch.allclose(p, there, rtol=1e-5, atol=1e-6)


def wrong(**options):
    return lambda p, gradient, file, step: right(p, gradient, file, step, **options)


@pytest.mark.parametrize(
    ("update", "words"),
    [
        (right, "Right: 3 steps"),
        (lambda p, gradient, file, step: None, "Not written yet"),
        (wrong(chunk=N), "1000 numbers at a time"),
        (wrong(n=N - N % CHUNK), "The last chunk, from 768 on"),
        (wrong(correct=False), "divide by 1 - beta^step"),
        (wrong(decay=False), "no weight decay"),
        (wrong(decay=False, add_decay=DECAY), "as in Adam"),
        (wrong(write=False), "write both back"),
        (reads_twice, "6,768 numbers were read"),
    ],
)
def test_an_answer_is_told_what_is_wrong(update, words):
    assert words in check_file_adamw(update)
