"""Names of a model's parameters as they were before it was wrapped."""

from collections.abc import Callable

import torch

from shardlab.model import ModelConfig, Transformer


def unwrap_names(config: ModelConfig) -> Callable[[str], str]:
    """Return the function that leaves out of a name what wrappers, torch's or the submission's own, have put into it.

    It keeps numbers and the words that occur in the names of a `Transformer` of this configuration.
    """
    with torch.device("meta"):
        words = {word for name, _ in Transformer(config).named_parameters() for word in name.split(".")}
    return lambda name: ".".join(word for word in name.split(".") if word.isdigit() or word in words)
