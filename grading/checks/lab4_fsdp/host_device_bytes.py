"""Count the bytes that a step asks to copy between device and host; this needs no GPU."""

import sys
from types import FrameType

import torch
from torch import Tensor, nn

from shardlab.nested_tensors import plain_tensors


class Crossings:
    """Context that adds up the bytes of floating-point tensors for which FSDP calls `.to(device)` or `.cpu()`.

    Calls from other code, such as a hook of the submission, move nothing for FSDP and do not count. A tensor in a
    parameter's own memory goes to the device, any other to the host. On a CPU both are the same memory and the call
    returns its own tensor; it is counted all the same.
    """

    def __init__(self, model: nn.Module) -> None:
        self.to_device_bytes = self.to_host_bytes = 0
        self._shards = {t.untyped_storage().data_ptr() for p in model.parameters() for t in plain_tensors(p)}

    def __enter__(self) -> "Crossings":
        to, cpu = Tensor.to, Tensor.cpu

        def counted_to(t, *args, **kwargs):
            to_somewhere = "device" in kwargs or any(isinstance(a, (str, torch.device)) for a in args)
            if to_somewhere and _is_fsdp(sys._getframe(1)):
                self._count(t)
            return to(t, *args, **kwargs)

        def counted_cpu(t, *args, **kwargs):
            if _is_fsdp(sys._getframe(1)):
                self._count(t)
            return cpu(t, *args, **kwargs)

        Tensor.to, Tensor.cpu = counted_to, counted_cpu  # in every thread, backward's too
        return self

    def __exit__(self, *_) -> None:
        del Tensor.to, Tensor.cpu  # uncovers the methods of the base class

    def _count(self, t: Tensor) -> None:
        if type(t) not in (Tensor, nn.Parameter) or not t.is_floating_point():
            return
        if t.untyped_storage().data_ptr() in self._shards:
            self.to_device_bytes += t.nbytes
        else:
            self.to_host_bytes += t.nbytes


def _is_fsdp(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").startswith("torch.distributed.fsdp.")
