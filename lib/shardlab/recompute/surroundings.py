"""State that a call depends on besides its arguments: the random number generators, and autocast.

The generators are the CPU's and those of the arguments' devices. A function that moves its input to another device and
applies dropout there draws different numbers the second time, as under torch's checkpoint.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch
from torch import Tensor

CPU = torch.device("cpu")


def remember_surroundings(leaves: Iterable, preserve_rng_state: bool) -> Callable[[], AbstractContextManager]:
    """Return a context manager that sets the generators and autocast to their present state for its duration."""
    devices = _devices(leaves)
    rng_states = get_rng_states(devices) if preserve_rng_state else {}
    autocasts = [_autocast_options(device_type) for device_type in {d.type for d in devices}]

    @contextmanager
    def restored():
        with ExitStack() as stack:
            for options in autocasts:
                stack.enter_context(torch.autocast(**options))
            stack.callback(set_rng_states, get_rng_states(rng_states))
            set_rng_states(rng_states)
            yield

    return restored


def rng_states_of(leaves: Iterable) -> dict[torch.device, Tensor]:
    return get_rng_states(_devices(leaves))


def get_rng_states(devices: Iterable[torch.device]) -> dict[torch.device, Tensor]:
    return {d: torch.get_rng_state() if d == CPU else torch.get_device_module(d).get_rng_state(d) for d in devices}


def set_rng_states(states: dict[torch.device, Tensor]) -> None:
    for device, state in states.items():
        if device == CPU:
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)


def _devices(leaves: Iterable) -> set[torch.device]:
    return {CPU} | {leaf.device for leaf in leaves if isinstance(leaf, Tensor) and not leaf.is_meta}


def _autocast_options(device_type: str) -> dict:
    enabled, dtype = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
    cached = torch.is_autocast_cache_enabled()
    return {"device_type": device_type, "enabled": enabled, "dtype": dtype, "cache_enabled": cached}
