"""The check of lesson 12's exercise: it accepts the lesson's answer, and says what is wrong with wrong ones."""

import pytest
from torch import nn

from shardcourse.exercises.flops import problems


def counted(model, x, products, remove=True):
    """FLOPs of `products(layer, layer's input)` products a layer."""
    total = 0

    def count(layer, args, output):
        nonlocal total
        rows = output.numel() // layer.out_features
        total += products(layer, args[0]) * 2 * rows * layer.in_features * layer.out_features

    handles = [m.register_forward_hook(count) for m in model.modules() if isinstance(m, nn.Linear)]
    model(x).sum().backward()
    for handle in handles if remove else []:
        handle.remove()
    return total


def answer(model, x):
    return counted(model, x, lambda layer, x: 1 + layer.weight.requires_grad + x.requires_grad)


def always_three_products(model, x):
    return counted(model, x, lambda layer, x: 3)


def forward_only(model, x):
    return counted(model, x, lambda layer, x: 1)


def leaves_its_hooks(model, x):
    return counted(model, x, lambda layer, x: 1 + layer.weight.requires_grad + x.requires_grad, remove=False)


@pytest.mark.parametrize(
    ("count_flops", "said"),
    [
        (answer, None),
        (always_three_products, "one layer, whose input needs no gradient: it should return 2,048, and returns 3,072"),
        (forward_only, "one layer, whose input needs one: it should return 3,072, and returns 1,024"),
        (leaves_its_hooks, "hooks are left on the model"),
        (lambda model, x: None, "and returns None"),
    ],
)
def test_the_check_says_what_is_wrong(count_flops, said):
    found = problems(count_flops)
    assert found == [] if said is None else any(said in problem for problem in found)
