"""Optimizer states in host memory: the device keeps the parameters, and each gradient only until it has been copied.

Vocabulary. The *device* computes forward and backward; the *host* is its CPU. The optimizer updates a parameter's *host
copy*, which has the shape of this rank's part of the parameter: under fully_shard, its shard.

[Note: overlap and lifetimes] A gradient is copied to the host on a side stream while backward goes on. `step` updates
one parameter while the previous one is copied back. Three orders must hold. First, the side stream waits for the stream
that made a gradient before it reads the gradient, and `record_stream` keeps the gradient's memory from reuse until
then. Second, the host waits for a gradient's event before it updates. Third, parameters are copied back only after all
of backward has ended, since tied weights and recomputed blocks read them until then, and the next forward waits for the
side stream.

If the device is a CPU, device and host are the same: every copy is immediate, and nothing overlaps. This tests the
results, the bytes copied and where each tensor is kept, but not the speed.

For parameters on the host too: `fully_shard(..., offload_policy=CPUOffloadPolicy())`.

Source: Ren et al. 2021, "ZeRO-Offload" (USENIX ATC); torchao's CPUOffloadOptimizer.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from shardlab.backward_hooks import after_gradient, refuse_sparse, refuse_torchs_scaler
from shardlab.grad_norm import clip_sharded_, common_dtype
from shardlab.shard_groups import hyperparameters, local, refuse_parts, shard_groups


class CPUOffloadOptimizer(Optimizer):
    """Run `optimizer_class` on the host, one parameter at a time. The class must treat each parameter by itself.

    Takes parameters or groups of them, like any optimizer; schedulers and `state_dict` work as usual. Each gradient
    goes to the host when backward has made it, and `p.grad` is None afterwards: clip with this optimizer's own
    `clip_grad_norm_`, and scale losses with `shardlab.precision.GradScaler`. The gradients of several backwards add up
    on the host until `step` uses them.

    [Note: who averages] Under DDP a gradient is the mean over ranks only when backward has ended. So in a job of
    several ranks, plain parameters keep their gradients until `step`. Gradients of DTensor shards are final at once.

    Sends: nothing. Copies: the gradients' bytes to the host, once a backward, and the parameters' bytes back, once a
    step. `bytes_to_host` and `bytes_to_device` count them.
    Keeps: on the device only the parameters. In host memory, pinned if there is a GPU: a copy of the parameters, their
    gradients, and the states (4 + 4 + 8 bytes a float32 parameter with Adam).

    Raises ValueError for a class that needs whole parameters (Adafactor, LBFGS, Muon) if parameters are sharded.

    Source: torchao's CPUOffloadOptimizer with offload_gradients=True.
    """

    states_on_host = True
    _step_supports_amp_scaling = True  # so that torch's GradScaler tells `step`, which refuses it

    def __init__(
        self, params: Iterable, optimizer_class: Callable[..., Optimizer] = torch.optim.AdamW, **defaults
    ) -> None:
        self.bytes_to_host = self.bytes_to_device = 0  # since the beginning
        self._make = lambda group: optimizer_class([group], **defaults)
        self._host: dict[nn.Parameter, Tensor] = {}
        self._optimizers: dict[nn.Parameter, Optimizer] = {}
        self._versions: dict[nn.Parameter, tuple] = {}  # the parameter's, when its host copy was last equal
        self._arrivals: dict[nn.Parameter, torch.Event | None] = {}  # gradients on the host, until `step` uses them
        self._streams: dict[torch.device, torch.Stream] = {}
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for p in group["params"]:
            host = self._host[p] = _host_like(p).copy_(local(p))
            self._versions[p] = _version(p)
            optimizer = self._optimizers[p] = self._make(hyperparameters(group) | {"params": [host]})
            refuse_parts(optimizer, p)
            for key, value in optimizer.param_groups[0].items():  # the class's own defaults: betas, eps ...
                group.setdefault(key, value)
            if p.requires_grad and (isinstance(p, DTensor) or not _has_peers()):
                after_gradient(p, self._take_gradient)

    def __getstate__(self) -> dict:
        raise TypeError("CPUOffloadOptimizer can't be copied or pickled: save its state_dict()")

    @torch.no_grad()
    def _take_gradient(self, p: nn.Parameter) -> None:
        """Hook: send `p.grad` to the host and free it on the device."""
        if p.grad is None:  # an autograd function returned None
            return
        refuse_sparse(p.grad, f"a parameter of shape {list(p.shape)}")
        gradient, host = local(p.grad), self._host[p]
        p.grad = None
        self.bytes_to_host += gradient.nbytes
        if p in self._arrivals:  # from an earlier micro-batch: the sum must wait for both
            self._wait_for_gradient(p)
            host.grad += gradient.to(host.device)
            return
        if host.grad is None:
            host.grad = _host_like(p)
        with self._side_stream(gradient.device) as stream:
            host.grad.copy_(gradient, non_blocking=True)
            self._arrivals[p] = stream and stream.record_event()
        if stream:
            gradient.record_stream(stream)

    def _wait_for_gradient(self, p: nn.Parameter) -> None:
        if event := self._arrivals[p]:
            event.synchronize()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update each parameter that has a gradient, in the order in which the gradients came, and copy it back."""
        refuse_torchs_scaler(self)
        loss = None
        if closure:
            with torch.enable_grad():
                loss = closure()
        self._take_what_is_left()
        group_of = {p: group for group in self.param_groups for p in group["params"]}
        for p in self._arrivals:
            self._wait_for_gradient(p)
            self._update(p, group_of[p])
        self._arrivals.clear()
        for device, stream in self._streams.items():
            torch.get_device_module(device).current_stream(device).wait_stream(stream)
        return loss

    @torch.no_grad()
    def held_gradients(self) -> dict[nn.Parameter, Tensor]:
        """Return the gradients that backward has made, on the host, for a GradScaler to check and unscale."""
        self._take_what_is_left()
        for p in self._arrivals:
            self._wait_for_gradient(p)
        return {p: self._host[p].grad for p in self._host if p in self._arrivals}  # in the same order on every rank

    def _take_what_is_left(self) -> None:
        """Take the gradients that came without a hook."""
        for p in self._host:
            if p.grad is not None:
                self._take_gradient(p)

    def _update(self, p: nn.Parameter, group: dict) -> None:
        host, optimizer, on_device = self._host[p], self._optimizers[p], local(p)
        if self._versions[p] != _version(p):  # other weights have been loaded
            host.copy_(on_device)
        optimizer.param_groups[0].update(hyperparameters(group))  # a scheduler may have changed them
        optimizer.step()
        self.state[p] = optimizer.state[host]
        with self._side_stream(on_device.device):
            on_device.copy_(host, non_blocking=True)
        self._versions[p] = _version(p)
        self.bytes_to_device += host.nbytes

    @contextmanager
    def _side_stream(self, device: torch.device) -> Iterator[torch.Stream | None]:
        """Run the work issued inside after the current stream's work so far, and in parallel with its later work."""
        if device.type == "cpu":
            yield None
            return
        module = torch.get_device_module(device)
        if device not in self._streams:
            self._streams[device] = module.Stream(device)
        stream = self._streams[device]
        stream.wait_stream(module.current_stream(device))
        with module.stream(stream):
            yield stream

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self._arrivals.clear()

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float, norm_type: float | str = 2.0) -> Tensor:
        """Scale all gradients so that their norm over parameters and ranks is at most `max_norm`; return the old norm.

        Sends: one all_reduce of a number for each group over which parameters are sharded.
        Source: torch.nn.utils.clip_grad_norm_.
        """
        held = self.held_gradients()
        gradients = [(shard_groups(p), held.get(p)) for p in self._host]
        return clip_sharded_(gradients, max_norm, norm_type, common_dtype(self._host), "cpu")

    def load_state_dict(self, state_dict: dict) -> None:
        """Load states into host memory, whatever device they come from."""
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update(hyperparameters(saved))
            for p, index in zip(group["params"], saved["params"], strict=True):
                states = {0: state_dict["state"][index]} if index in state_dict["state"] else {}
                self._optimizers[p].load_state_dict({"state": states, "param_groups": [{**saved, "params": [0]}]})
                self.state[p] = self._optimizers[p].state[self._host[p]]


def _version(p: nn.Parameter) -> tuple[int, int]:
    """Return a pair that changes with every write; a DTensor and its local tensor have separate counters."""
    return p._version, local(p)._version


def _host_like(p: Tensor) -> Tensor:
    mine = local(p)
    return torch.empty_like(mine, device="cpu", pin_memory=mine.device.type != "cpu")


def _has_peers() -> bool:
    return dist.is_initialized() and dist.get_world_size() > 1
