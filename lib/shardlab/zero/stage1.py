"""ZeRO stage 1: every rank holds the whole model, updates only its share, and keeps optimizer states only for that.

Vocabulary. A *bucket* is a flat buffer that holds several parameters of one dtype, padded and cut into N equal
*slices*; rank r owns slice r. A *shard* is the part of one parameter that a rank owns: an interval of it or, for
optimizers that look at shapes, the whole. Both a parameter's `data` and the shards are views of the bucket.

    backward                  p.grad            every rank, from its own samples    psi bytes
    reduce_scatter            shard_param.grad  the mean, on the owner alone        psi/N
    optim.step                shard_param       the owner's new weights, in place
    all_gather                the bucket        all ranks' new weights, in place

An all_reduce is a reduce_scatter and then an all_gather. The owner of a slice needs only the first half. The second
half can carry new weights instead of gradients. So stage 1 sends as much as plain data parallelism, and keeps only 1/N
of the optimizer states.

Source: Rajbhandari et al. 2020, "ZeRO" (SC20), sections 5.1 and 7.2.1; torch.distributed.optim.ZeroRedundancyOptimizer.
"""

from collections.abc import Iterator
from math import inf

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from shardlab.backward_hooks import refuse_sparse, refuse_torchs_scaler
from shardlab.bucketed_backward import broadcast_tensors
from shardlab.ddp import DEFAULT_CAP_MB, FIRST_BUCKET_BYTES, MIB, assign_buckets, check_same_on_every_rank
from shardlab.grad_norm import clip_sharded_, common_dtype
from shardlab.shard_groups import all_gather, hyperparameters
from shardlab.zero.bucket_layout import Bucket, Shard

# These treat each element by itself, so parameters may be cut anywhere. Other classes get whole parameters.
ELEMENTWISE = {optim.SGD, optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adamax, optim.Adagrad}
ELEMENTWISE |= {optim.Adadelta, optim.RMSprop, optim.Rprop, optim.ASGD}
UNSHARDABLE = (optim.LBFGS, optim.SparseAdam)  # LBFGS looks at all parameters at once, SparseAdam at sparse gradients


class ZeroRedundancyOptimizer(Optimizer):
    """Shard the states of any torch optimizer over ranks, from rank 0's weights on. Every rank must make every call.

    `params` and `defaults` are those of `optimizer_class`; with `model.named_parameters()`, errors show names. `optim`
    is the local optimizer: it has the same groups, with shards instead of parameters.

    `step` averages gradients itself. DDP does that, too: with DDP, pass `gradients_averaged=True` to save the traffic.
    `elementwise` says whether parameters may be cut anywhere (None: it is known for torch's classes). If not, they stay
    whole and slices are padded to the longest. `bucket_cap_mb` is in MiB; None means DDP's sizes, or no limit if
    parameters stay whole, since many parameters fill slices most evenly. `parameters_as_bucket_view` is torch's
    argument: here they always are views.

    Sends a rank and step, with psi the `padded_bytes`: psi (N-1)/N in reduce_scatters and psi (N-1)/N in all_gathers.
    With `gradients_averaged` only the all_gathers; with DDP's all_reduces that is 3 psi (N-1)/N.
    Keeps: parameters, psi; 1/N of the states; gradients, psi. `step` reduces gradients bucket by bucket (a call of
    `clip_grad_norm_` or a GradScaler before it does this earlier), with two more buckets of memory. Then the `p.grad`
    of trained parameters is None; with `gradients_averaged` it stays.

    torch's class of this name does not average, so it trains wrongly without DDP around the model; before its
    `state_dict` you must call `consolidate_state_dict`. With float16, use `shardlab.precision.GradScaler`: `step`
    refuses torch's, which looks at `p.grad`.

    A trained parameter without a gradient is an error, since another rank may have one; one that was frozen meanwhile
    is skipped. A parameter that is frozen when it is added never takes part: add it when it is to be trained.

    Raises ValueError for optimizers that can't be sharded; RuntimeError if parameters differ between ranks, have no
    gradient, or were moved out of the bucket, for example by `module.to(...)`.
    """

    def __init__(
        self,
        params,
        optimizer_class: type[Optimizer],
        process_group: dist.ProcessGroup | None = None,
        *,
        gradients_averaged: bool = False,
        elementwise: bool | None = None,
        bucket_cap_mb: float | None = None,
        parameters_as_bucket_view: bool = True,
        **defaults,
    ) -> None:
        if "overlap_with_ddp" in defaults:
            raise ValueError("overlap_with_ddp: to reduce gradients during backward, use ShardedDataParallel")
        if issubclass(optimizer_class, UNSHARDABLE):
            name = optimizer_class.__name__
            raise ValueError(f"{name} can't be sharded: it looks at all parameters at once, or wants sparse gradients")
        self.process_group, self.gradients_averaged = process_group, gradients_averaged
        self._step_supports_amp_scaling = not gradients_averaged  # so that torch's GradScaler tells `step`
        self.elementwise = optimizer_class in ELEMENTWISE if elementwise is None else elementwise
        if bucket_cap_mb is not None:
            self._caps = (bucket_cap_mb * MIB,) * 2
        else:
            self._caps = (FIRST_BUCKET_BYTES, DEFAULT_CAP_MB * MIB) if self.elementwise else (inf, inf)
        self.buckets: list[Bucket] = []
        self.names: dict[nn.Parameter, str] = {}
        self.optim: Optimizer | None = None
        super().__init__(params, defaults)
        self.optim = optimizer_class([self._shard_group(group) for group in self.param_groups], **defaults)
        self.defaults = self.optim.defaults  # some schedulers look there
        self.state = self.optim.state
        _copy_options(self.optim.param_groups, self.param_groups)

    def add_param_group(self, param_group: dict) -> None:
        super().add_param_group(param_group)
        if self.optim is not None:  # torch's constructor calls this, too
            self.optim.add_param_group(self._shard_group(self.param_groups[-1]))
            _copy_options(self.optim.param_groups, self.param_groups)

    def _shard_group(self, group: dict) -> dict:
        """Return the local optimizer's group: the same options, with shards instead of parameters."""
        params, number = group["params"], len(self.names)
        names = group.get("param_names") or [f"parameter {number + i}" for i in range(len(params))]
        self.names |= dict(zip(params, names, strict=True))
        check_same_on_every_rank([(self.names[p], p) for p in params], self.process_group)
        broadcast_tensors([p for p in params if not p.requires_grad], self.process_group)
        dealt = assign_buckets([p for p in params if p.requires_grad], *self._caps)
        new = [Bucket(bucket, self.elementwise, self.process_group, self.names) for bucket in dealt]
        self.buckets += new
        return hyperparameters(group) | {"params": [shard.shard_param for bucket in new for shard in bucket.shards]}

    def __getstate__(self) -> dict:
        raise TypeError("ZeroRedundancyOptimizer can't be copied or pickled: save its state_dict()")

    # A step

    def step(self, closure=None):
        """Reduce the gradients that are not reduced yet, update this rank's shards, and gather all ranks' shards."""
        refuse_torchs_scaler(self)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.reduce_gradients()
        if not self.gradients_averaged and all(bucket.grad_slice is None for bucket in self.buckets):
            raise RuntimeError(f"rank {dist.get_rank()}: step() without gradients: first call backward() on all ranks")
        for bucket in self.buckets:
            bucket.check_still_in()
        _copy_options(self.param_groups, self.optim.param_groups)  # schedulers change ours
        self.optim.step()
        _copy_options(self.optim.param_groups, self.param_groups)  # some optimizers change theirs
        for bucket in self.buckets:
            bucket.drop_gradients()
        self._gather_parameters()
        return loss

    def reduce_gradients(self) -> None:
        """Reduce each p.grad to the mean over ranks, and add it to shard_param.grad. `step` calls this."""
        if self.gradients_averaged:
            return self._take_averaged()
        self.check_gradients()
        waiting: Bucket | None = None
        for bucket in self.buckets:
            bucket.reset()
            if all(p.grad is None for p in bucket.missing):
                continue
            for p in list(bucket.missing):
                bucket.take(p)
            bucket.send()
            if waiting:
                waiting.receive()
            waiting = bucket
        if waiting:
            waiting.receive()

    def held_gradients(self) -> dict[nn.Parameter, Tensor]:
        """Return reduced gradients for a GradScaler: this rank's parts, or whole ones with `gradients_averaged`."""
        if self.gradients_averaged:
            return {p: p.grad for p in self.names if p.grad is not None}
        self.reduce_gradients()
        return {s.param: s.shard_param.grad for s in self.shards() if s.shard_param.grad is not None}

    def _take_averaged(self) -> None:
        for p, name in self.names.items():
            if p.grad is not None:
                refuse_sparse(p.grad, name)
        for shard in self.shards():
            whole = shard.param.grad
            mine = None if whole is None else whole.view(-1)[shard.start : shard.end].view_as(shard.shard_param)
            shard.shard_param.grad = mine

    def _gather_parameters(self) -> None:
        works = [all_gather(b.flat, b.slice, group=self.process_group, async_op=True) for b in self.buckets]
        for work in works:
            work.wait()
        # A later backward through a forward from before the step must fail, as it does after torch's optimizers.
        torch.autograd.graph.increment_version([p for bucket in self.buckets for p in bucket.starts])

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for bucket in self.buckets:
            bucket.drop_gradients()

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float, norm_type: float | str = 2.0) -> Tensor:
        """Scale gradients so that their norm over all ranks' shards is at most max_norm; return the norm before.

        Call it between backward and step. The norm is a scalar.
        Sends: one all_reduce of one element, 4 bytes, or 8 if a parameter is float64; and the reduce_scatters, which
        `step` then does not send.
        """
        self.reduce_gradients()
        device = self.buckets[0].flat.device
        groups = ((device, self.process_group),)
        gradients = [(groups, None), *((groups, s.shard_param.grad) for s in self.shards())]  # it may own no shard
        return clip_sharded_(gradients, max_norm, norm_type, common_dtype(self.names), device)

    # What this rank owns

    def shards(self) -> Iterator[Shard]:
        """Yield (param, start, end, shard_param) for all that this rank owns: elements [start, end) of flattened param.

        `optim.state[shard_param]` holds the shard's states. Tensors of shard_param's shape have a value for each of
        these elements; any other (Adam's `step`, Adafactor's row and column statistics) belongs to the whole parameter.
        To load states, put them there. All ranks' intervals together cover each trained parameter once.
        """
        return (shard for bucket in self.buckets for shard in bucket.shards)

    @property
    def padded_bytes(self) -> int:
        """Bytes of all buckets: of the parameters, and of the padding that makes slices equal in length."""
        return sum(bucket.flat.nbytes for bucket in self.buckets)

    def state_dict(self) -> dict:
        """Return this rank's share of the state. Save one a rank; load it on the same rank and world size."""
        _copy_options(self.param_groups, self.optim.param_groups)
        return self.optim.state_dict() | {"rank_and_world_size": self._place}

    def load_state_dict(self, state_dict: dict) -> None:
        state_dict = dict(state_dict)
        if (place := tuple(state_dict.pop("rank_and_world_size"))) != self._place:
            raise ValueError(
                f"rank {self._place[0]} of {self._place[1]}: these states are of rank {place[0]} of {place[1]}: "
                "load what this rank saved, or a checkpoint of shardlab.state, which fits any number of ranks"
            )
        self.optim.load_state_dict(state_dict)
        self.state = self.optim.state
        _copy_options(self.optim.param_groups, self.param_groups)

    @property
    def _place(self) -> tuple[int, int]:
        return dist.get_rank(self.process_group), dist.get_world_size(self.process_group)

    # Checks

    def check_gradients(self) -> None:
        """Raise RuntimeError unless all trained parameters have a new gradient, or none has."""
        missing = [p for bucket in self.buckets for p in bucket.starts if p.requires_grad and p.grad is None]
        bucketed = {p for bucket in self.buckets for p in bucket.starts}
        if thawed := [name for p, name in self.names.items() if p.requires_grad and p not in bucketed]:
            raise RuntimeError(
                f"rank {dist.get_rank()}: {', '.join(thawed)} was frozen when it came to the optimizer, and isn't now: "
                "leave it out then, and add it by add_param_group when it is to be trained"
            )
        if missing and any(p.grad is not None for p in bucketed):
            raise RuntimeError(self.unused_message(missing))

    def unused_message(self, unused: list[nn.Parameter]) -> str:
        return (
            f"rank {dist.get_rank()}: backward gave no gradient to {', '.join(self.names[p] for p in unused)}. "
            "If the forward never uses them, set requires_grad=False before building the optimizer."
        )


def _copy_options(source: list[dict], target: list[dict]) -> None:
    """Copy the options of parameter groups: learning rates and the like."""
    for a, b in zip(source, target, strict=True):
        b.update(hyperparameters(a))
