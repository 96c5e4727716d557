"""Distributed data parallel: every rank holds the whole model, works on its own samples, and averages gradients.

Vocabulary. A *bucket* is a flat buffer that holds the gradients of several parameters; a parameter's *view* is its
slice of the bucket in the parameter's shape. A bucket is *full* when this backward has written all of its views.

One blocking all_reduce for each parameter would be correct but slow. DDP adds three ideas: it sends few large messages
(buckets), while backward still computes (overlap, see `bucketed_backward`), from memory in which the gradients are
stored anyway (views).

Source: Li et al. 2020, "PyTorch Distributed" (VLDB), sections 3.2.1 to 3.2.3; torch's DistributedDataParallel.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardlab.backward_hooks import refuse_sparse
from shardlab.bucketed_backward import BucketedBackward, broadcast_tensors
from shardlab.check_rank_consistency import difference

MIB = 1 << 20
DEFAULT_CAP_MB, FIRST_BUCKET_BYTES = 25, MIB  # torch's sizes; a small first bucket is sent early


class DDP(BucketedBackward):
    """Average gradients in buckets while backward computes; afterwards every `p.grad` is the mean over ranks.

    The arguments are torch's DistributedDataParallel's. `device_ids` may only name the one device that the module is
    on; inputs must be on it already. A bucket closes at `bucket_cap_mb` MiB (default: 25, the first one 1). For
    `broadcast_buffers` see `BucketedBackward`.

    Sends: 2 (N-1)/N times the gradients' bytes a rank and step, in one all_reduce a bucket; nothing under `no_sync`.
    With `find_unused_parameters`, one more all_reduce of 4 bytes a parameter; with `broadcast_buffers`, the buffers.
    Keeps: with `gradient_as_bucket_view`, the gradients are views of the buckets and need no other memory; without it,
    the buckets are one more copy of all gradients, for the whole training.

    Raises ValueError if `device_ids` or `output_device` names a device that the module is not on, if the module asks to
    ignore parameters, or if an embedding has `max_norm`; RuntimeError if the module differs between ranks or has no
    trained parameter, in forward if a trained parameter was frozen before or is new, and in backward with
    `create_graph=True` or if a parameter got no gradient: ranks that used it would wait for this one. With
    `find_unused_parameters`, such a gradient counts as zero, and stays None if no rank used the parameter.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: list[int | torch.device] | None = None,
        output_device: int | torch.device | None = None,
        *,
        broadcast_buffers: bool = True,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
    ) -> None:
        super().__init__(module, process_group, broadcast_buffers)
        self.find_unused_parameters = find_unused_parameters
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.names = {p: name for name, p in module.named_parameters() if p.requires_grad}  # a tied weight counts once
        if not self.names:
            raise RuntimeError("DDP has nothing to do: no parameter of the module requires a gradient")
        if ignored := getattr(module, "_ddp_params_and_buffers_to_ignore", None):
            raise ValueError(f"DDP here can't leave out {', '.join(ignored)}, as the module asks: freeze them")
        _check_device(module, [*(device_ids or []), *([] if output_device is None else [output_device])])
        check_same_on_every_rank([*module.named_parameters(), *module.named_buffers()], process_group)
        broadcast_tensors([*module.parameters(), *module.buffers()], process_group)  # or weights could differ
        caps = (FIRST_BUCKET_BYTES, DEFAULT_CAP_MB * MIB) if bucket_cap_mb is None else (int(bucket_cap_mb * MIB),) * 2
        self.buckets = [_Bucket(params) for params in assign_buckets(list(self.names), *caps)]
        self.bucket_of = {p: bucket for bucket in self.buckets for p in bucket.views}
        for p in self.names:
            self.hook(p)

    def take(self, p: nn.Parameter) -> None:
        self.bucket_of[p].take(p, dist.get_world_size(self.group), keep_view=self.gradient_as_bucket_view)

    def holds_already(self, p: nn.Parameter) -> bool:
        return self.gradient_as_bucket_view and p not in self.bucket_of[p].missing  # it has been divided by N

    def name_of(self, p: nn.Parameter) -> str:
        return self.names[p]

    def send(self, bucket: "_Bucket") -> None:
        bucket.work = dist.all_reduce(bucket.flat, group=self.group, async_op=True)

    def finish(self) -> None:
        """Wait for all buckets; then set `p.grad` to the mean, for every parameter that some rank used."""
        unused = [p for bucket in self.buckets for p in bucket.missing]
        if unused and not self.find_unused_parameters:
            raise RuntimeError(self._unused_message(unused))
        for p in unused:
            self.bucket_of[p].take(p, dist.get_world_size(self.group), keep_view=False)
        self._send_full_buckets()
        used = self._used_anywhere()
        for bucket in self.buckets:
            bucket.wait()
        if dist.get_world_size(self.group) > 1:  # with one rank the local gradient already is the mean
            self._hand_back(used)

    def _prepare_backward(self) -> None:
        trained = ((name, p) for name, p in self.module.named_parameters() if p.requires_grad)
        if new := [name for name, p in trained if p not in self.bucket_of]:
            raise RuntimeError(
                f"rank {dist.get_rank()}: {', '.join(new)} was frozen when DDP was built, or came later: its "
                "gradients would not be averaged. Build DDP again"
            )
        super()._prepare_backward()

    def _hand_back(self, used: dict[nn.Parameter, bool]) -> None:
        for bucket in self.buckets:
            for p, view in bucket.views.items():
                if not used[p]:
                    continue
                if self.gradient_as_bucket_view or p.grad is None:
                    p.grad = view if self.gradient_as_bucket_view else view.clone()
                else:
                    p.grad.copy_(view)

    def _used_anywhere(self) -> dict[nn.Parameter, bool]:
        if not self.find_unused_parameters:
            return dict.fromkeys(self.names, True)
        device = self.buckets[0].flat.device
        used = torch.tensor([p.grad is not None for p in self.names], dtype=torch.int32, device=device)
        dist.all_reduce(used, group=self.group)
        return dict(zip(self.names, used.bool().tolist(), strict=True))

    def _unused_message(self, unused: list[nn.Parameter]) -> str:
        names = ", ".join(self.names[p] for p in unused)
        return (
            f"rank {dist.get_rank()}: backward gave no gradient to {names}. "
            "If the forward does not always use them, pass find_unused_parameters=True; "
            "if it never does, set requires_grad=False before wrapping."
        )


class _Bucket:
    """A flat gradient buffer of one dtype, its views, and the all_reduce that may be under way on it."""

    def __init__(self, params: list[nn.Parameter]) -> None:
        self.flat = torch.zeros(sum(p.numel() for p in params), dtype=params[0].dtype, device=params[0].device)
        slices = self.flat.split([p.numel() for p in params])
        self.views: dict[nn.Parameter, Tensor] = {p: s.view_as(p) for p, s in zip(params, slices, strict=True)}
        self.work: dist.Work | None = None
        self.reset()

    def reset(self) -> None:
        self.wait()  # after an exception in backward: the message under way would write into the next gradients
        self.missing = set(self.views)  # parameters whose gradient this backward has still to write

    def wait(self) -> None:
        if self.work is not None:
            self.work.wait()
            self.work = None

    @torch.no_grad()
    def take(self, p: nn.Parameter, world_size: int, keep_view: bool) -> None:
        """Write p's gradient, divided by the number of ranks, into its view: the all_reduce's sum is then the mean.

        If this backward did not use p, its view gets the gradient that micro-batches under `no_sync` left, or zero.
        """
        view = self.views[p]
        if p.grad is None:
            view.zero_()
        elif p.grad.data_ptr() == view.data_ptr():  # autograd has accumulated into the view itself
            view.div_(world_size)
        else:
            torch.mul(p.grad, 1 / world_size, out=view)
        if keep_view:
            p.grad = view
        self.missing.discard(p)


def assign_buckets(params: list[nn.Parameter], first_cap_bytes: int, cap_bytes: int) -> list[list[nn.Parameter]]:
    """Return buckets of parameters, the last parameter first, since backward computes its gradient first.

    A bucket holds one dtype and device, and closes as soon as its bytes reach its cap. Buckets are returned in the
    order in which they close; those that never reach their cap come last.
    """
    closed: list[list[nn.Parameter]] = []
    opened: dict[tuple, list[nn.Parameter]] = {}
    caps: dict[tuple, int] = {}
    for p in reversed(params):
        key = (p.dtype, p.device)
        bucket = opened.setdefault(key, [])
        bucket.append(p)
        if sum(q.numel() * q.element_size() for q in bucket) >= caps.get(key, first_cap_bytes):
            closed.append(opened.pop(key))
            caps[key] = cap_bytes
    return closed + list(opened.values())


def check_same_on_every_rank(tensors: list[tuple[str, Tensor]], group: dist.ProcessGroup | None) -> None:
    """Compare names, shapes, dtypes and requires_grad. Raises RuntimeError that names the first difference."""
    for name, t in tensors:
        refuse_sparse(t, name)
    mine = [f"{name} {list(t.shape)} {t.dtype}{' trained' * t.requires_grad}" for name, t in tensors]
    device = next((t.device for _, t in tensors), torch.device("cpu"))
    if found := difference(mine, [group], device):
        rank, here, there = found
        raise RuntimeError(
            f"the model differs between ranks: rank {dist.get_rank()} has {here}, rank {rank} has {there}"
        )


def _check_device(module: nn.Module, wanted: list) -> None:
    """Raise ValueError if the module is not on the device that `device_ids` and `output_device` name."""
    found = {p.device for p in module.parameters()}
    if any(each not in (device, device.index, str(device)) for each in wanted for device in found):
        raise ValueError(
            f"rank {dist.get_rank()}: device_ids or output_device names {wanted}, but the module is on "
            f"{', '.join(map(str, found))}: move it there before, and on a CPU leave them out"
        )
