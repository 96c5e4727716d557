"""ZeRO stage 2: DDP with a reduce_scatter. Gradients are reduced to their owners during backward, bucket by bucket.

In stage 1, backward computes all gradients and `step` reduces them: psi bytes at the peak. Here a bucket's gradients
are sent as soon as it is full, in a reduce_scatter that overlaps the rest of backward, and only the owner's slice of
the mean stays. So at any moment whole gradients exist for two buckets: one that is being sent and one that is being
filled.

Source: Rajbhandari et al. 2020, "ZeRO" (SC20), sections 5.2 and 7.2.1; fairscale's ShardedDataParallel.
"""

from torch import nn

from shardlab.bucketed_backward import BucketedBackward, broadcast_tensors
from shardlab.zero.bucket_layout import Bucket
from shardlab.zero.stage1 import ZeroRedundancyOptimizer


class ShardedDataParallel(BucketedBackward):
    """Run `module`; reduce each bucket of `optimizer`, built over the module's parameters, during backward.

    Afterwards `p.grad` is None, and the optimizer's shards hold the mean until `optimizer.step()` uses it. Another
    backward before the step adds to the mean. Clip with `optimizer.clip_grad_norm_`.

    Sends: with psi the optimizer's `padded_bytes`, psi (N-1)/N a backward, in one reduce_scatter a bucket; nothing
    under `no_sync`. `optimizer.step` then only gathers: psi (N-1)/N. With `broadcast_buffers`, rank 0's buffers, before
    the same forwards as DDP.
    Keeps: psi/N of gradients; during backward, two more buckets, or one and those that other groups and dtypes are
    filling; under `no_sync`, whole gradients, psi, until a backward outside has sent them.

    Raises ValueError if an embedding has `max_norm`; RuntimeError if the optimizer and the module do not train the same
    parameters; in backward, if one of them got no gradient, or with `create_graph=True`.
    """

    def __init__(
        self, module: nn.Module, optimizer: ZeroRedundancyOptimizer, *, broadcast_buffers: bool = True
    ) -> None:
        super().__init__(module, optimizer.process_group, broadcast_buffers)
        self.optimizer = optimizer
        self._hooked: set[nn.Parameter] = set()
        self._on_its_way: Bucket | None = None
        frozen = [p for p in module.parameters() if not p.requires_grad]  # the optimizer has broadcast the others
        broadcast_tensors([*frozen, *module.buffers()], self.group)
        self._adopt_buckets()

    def take(self, p: nn.Parameter) -> None:
        self.bucket_of[p].take(p)

    def name_of(self, p: nn.Parameter) -> str:
        return self.optimizer.names[p]

    def send(self, bucket: Bucket) -> None:
        """Begin a reduce_scatter. Only one bucket is under way at a time, since each holds memory."""
        if bucket.holds_gradients:  # False if all its parameters are frozen
            self._receive()
            bucket.send()
            self._on_its_way = bucket

    def finish(self) -> None:
        """Wait for the last bucket. Then the optimizer's shards hold the mean."""
        if missing := [p for bucket in self.buckets[self._next :] for p in bucket.starts if p in bucket.missing]:
            raise RuntimeError(self.optimizer.unused_message(missing))
        self._receive()

    def _receive(self) -> None:
        if self._on_its_way:
            self._on_its_way.receive()
            self._on_its_way = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def _adopt_buckets(self) -> None:
        """Order the optimizer's buckets and register hooks. `add_param_group` may have added some."""
        names = {p: name for name, p in self.module.named_parameters()}
        self._check_same_parameters(names)
        self.optimizer.names |= names
        position = {p: i for i, p in enumerate(names)}
        # Backward starts at the model's end, so a bucket is full when its first parameter's gradient is computed.
        filled_last = {b: min(position[p] for p in b.starts) for b in self.optimizer.buckets}
        self.buckets = sorted(self.optimizer.buckets, key=filled_last.get, reverse=True)
        self.bucket_of = {p: bucket for bucket in self.buckets for p in bucket.starts}
        for p in self.bucket_of.keys() - self._hooked:
            self.hook(p)
        self._hooked |= self.bucket_of.keys()

    def _prepare_backward(self) -> None:
        known = self.optimizer.names
        if len(self.buckets) < len(self.optimizer.buckets) or any(p not in known for p in self.module.parameters()):
            self._adopt_buckets()
        self._on_its_way = None
        super()._prepare_backward()

    def _check_same_parameters(self, names: dict[nn.Parameter, str]) -> None:
        if self.optimizer.gradients_averaged:
            raise ValueError("ShardedDataParallel reduces gradients: build its optimizer with gradients_averaged=False")
        optimized = {p for bucket in self.optimizer.buckets for p in bucket.starts}
        if forgotten := [name for p, name in names.items() if p.requires_grad and p not in optimized]:
            raise RuntimeError(
                f"the optimizer does not have {', '.join(forgotten)}: "
                "build it over all parameters of the module, or set requires_grad=False before"
            )
        if strangers := [self.optimizer.names[p] for p in optimized - names.keys()]:
            raise RuntimeError(
                f"the optimizer has {', '.join(strangers)}, which the module has not: build it over the module"
            )
