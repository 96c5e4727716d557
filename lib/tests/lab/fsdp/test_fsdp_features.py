"""What models and training loops ask of fully_shard, each beside torch's: to the bit, with as many collectives."""

from collections import Counter, namedtuple
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from sharding import HYBRID, SIDES, backward, differing, full, local_state, shard, states
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.fsdp import fully_shard as torch_fully_shard
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from training import CLOSE, SINCE_2_12, Mixer, decoder, samples, train, train_alone, uneven

from shardlab import launch
from shardlab.fsdp import CPUOffloadPolicy, FlatParameter, PerParameter, fully_shard
from shardlab.launch.rank_main import stay_on_cpu
from shardlab.measure.traffic import record_traffic
from shardlab.recompute import checkpoint, checkpoint_wrapper
from shardlab.shard_groups import default_device_type
from shardsim import simulated


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


class Collectives(TorchDispatchMode):
    """Counts; quicker than the flight recorder, which tells all it knows each time."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            self.kinds[func.__name__] += 1
        return func(*args, **(kwargs or {}))


def compare(build, run=backward, steps=2) -> list:
    """On a rank: `build(fully_shard)` with ours and with torch's, trained side by side; what differs, and where."""
    models = [build(with_) for with_ in SIDES]
    optimizers = [sgd(model) for model in models]
    found = []
    for step in range(steps):
        kinds = []
        for model in models:
            with Collectives() as collectives:
                run(model, step)
            kinds.append(collectives.kinds)
        found += [(step, "collectives", *kinds)] * (kinds[0] != kinds[1])
        found += [(step, name) for name in differing(*map(local_state, models))]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return found


def outcomes(cases: dict, world_size: int = 2) -> list[dict]:
    """Of each rank: the cases in which ours and torch's differ."""

    def ranks():
        results = {name: compare(*case) for name, case in cases.items()}
        return {name: found for name, found in results.items() if found}

    return launch(ranks, world_size)


# Models


class Blocks(nn.Module):
    """Something around blocks that `through` runs."""

    def __init__(self, through, blocks=None, dtype=torch.float64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.through = through
        self.embedding = nn.Embedding(257, 9)
        self.blocks = nn.ModuleList(blocks or [Mixer(), Mixer(), Mixer()])
        self.output = nn.Linear(9, 257)
        self.register_buffer("scale", torch.full((9,), 0.5))
        self.to(dtype)

    def forward(self, tokens, targets):
        x = self.through(self, self.embedding(tokens) * self.scale)
        return F.cross_entropy(self.output(x).flatten(0, 1), targets.flatten())


class Structured(Mixer):
    """Takes and returns tensors inside of something else."""

    def __init__(self, pack, unpack) -> None:
        super().__init__()
        self.pack, self.unpack = pack, unpack

    def forward(self, packed):
        return self.pack(super().forward(self.unpack(packed)))


@dataclass
class Box:
    x: torch.Tensor
    note: str = "kept"


Pair = namedtuple("Pair", "x note")
STRUCTURES = {
    "tuple": (lambda x: (x, None), lambda t: t[0]),
    "list": (lambda x: [1, x], lambda t: t[1]),
    "dict": (lambda x: {"x": x, "n": {"more": 1}}, lambda t: t["x"]),
    "dataclass": (lambda x: Box(x), lambda b: b.x),
    "namedtuple": (lambda x: Pair(x, "n"), lambda p: p.x),
    "nested": (lambda x: {"all": [Box(x)]}, lambda t: t["all"][0].x),
}
HOLD_A_DATACLASS = ("dataclass", "nested")  # torch's FSDP2 looks into one since 2.12: before, backward crashes


def in_order(model, x):
    for block in model.blocks:
        x = block(x)
    return x


def structured(with_):
    """A block for each structure."""

    def through(model, x):
        for block in model.blocks:
            x = block.unpack(block(block.pack(x)))
        return x

    torch.manual_seed(0)
    known = [STRUCTURES[name] for name in STRUCTURES if SINCE_2_12 or name not in HOLD_A_DATACLASS]
    return shard(Blocks(through, [Structured(*pair) for pair in known]), with_)


def twice(model, x):
    return in_order(model, in_order(model, x))


def skipping(model, x):
    return model.blocks[2](model.blocks[0](x))


def branches(model, x):
    """The same unit in two branches; and one without gradient."""
    with torch.no_grad():
        y = model.blocks[1](x)
    return model.blocks[0](x) + model.blocks[0](x + 1) + model.blocks[2](y)


def frozen(names, model=uneven, **changes):
    def build(with_):
        m = model(**changes)
        for name, p in m.named_parameters():
            p.requires_grad_(not name.startswith(names))
        return shard(m, with_)

    return build


def thawed_later(with_):
    model = frozen("blocks.1.")(with_)
    for p in model.parameters():
        p.requires_grad_(True)
    return model


def hooked_before(with_):
    """A user's hook from before sharding runs when the weights are whole."""
    model = uneven()
    for block in model.blocks:
        block.register_forward_pre_hook(lambda m, args: (args[0] * m.gain,))
    return shard(model, with_)


def nested(with_):
    model = uneven()
    for block in model.blocks:
        with_(block.up)
        with_(block)
    with_([model.embedding, model.output])
    return with_(model)


def tied_together(with_):
    """One unit of the first module and the last."""
    model = uneven(tied=True)
    for block in model.blocks:
        with_(block)
    with_([model.embedding, model.output])
    return with_(model)


def ignoring(with_):
    model = uneven()
    return with_(model, ignored_params={model.blocks[0].up.weight, model.embedding.weight})


def mixed_dtypes(with_):
    """Frozen weights in bfloat16 in the same unit as trained ones in float32: they travel together, as bytes."""
    model = Blocks(in_order, dtype=torch.float32)
    for block in model.blocks:
        block.norm.requires_grad_(False).bfloat16()
        block.norm.forward = lambda x, norm=block.norm: F.layer_norm(x.bfloat16(), (9,), norm.weight, norm.bias).float()
    return shard(model, with_)


def outputs_in_float32(with_):
    model = decoder()
    for block in model.blocks:
        with_(block, mp_policy=MixedPrecisionPolicy(torch.bfloat16))
    return with_(model, mp_policy=MixedPrecisionPolicy(torch.bfloat16, output_dtype=torch.float32))


MODELS = {
    "structures": (structured,),
    "twice": (lambda with_: shard(Blocks(twice), with_),),
    "a block unused": (lambda with_: shard(Blocks(skipping), with_),),
    "branches": (lambda with_: shard(Blocks(branches), with_),),
    "frozen embedding": (frozen(("embedding.", "blocks.0")),),
    "frozen block": (frozen("blocks.1."),),
    "frozen weights": (frozen(("blocks.0.up", "blocks.2.gain", "output")),),
    "thawed": (thawed_later,),
    "tied in the root": (lambda with_: shard(uneven(tied=True), with_),),
    "tied, a unit of two": (tied_together,),
    "hooked before": (hooked_before,),
    "units in units": (nested,),
    "one unit": (lambda with_: with_(uneven()),),
    "ignored": (ignoring,),
    "mixed dtypes": (mixed_dtypes,),
    "buffers in bfloat16": (
        lambda with_: shard(
            Blocks(in_order, dtype=torch.float32), with_, mp_policy=MixedPrecisionPolicy(torch.bfloat16)
        ),
    ),
    "outputs in float32": (outputs_in_float32,),
    "inputs as they are": (
        lambda with_: shard(decoder(), with_, mp_policy=MixedPrecisionPolicy(torch.float64, cast_forward_inputs=False)),
    ),
    "offloaded": (lambda with_: shard(uneven(), with_, offload_policy=CPUOffloadPolicy(pin_memory=False)),),
}


def test_models_train_as_under_torch():
    assert outcomes(MODELS) == [{}] * 2


class View(nn.Linear):
    def forward(self, x):
        return super().forward(x.flatten(0, 1)).view(x.shape)


def test_outputs_changed_in_place():
    """A view that is written to leaves autograd's graph; torch warns that it then misses its turn to gather."""

    def through(model, x):
        for block in model.blocks:
            x = block(x)
            assert x._base is not None
            x += 1
        return x

    def build():
        torch.manual_seed(0)
        return Blocks(through, [View(9, 9) for _ in range(3)])

    def ranks():
        model = shard(build())
        return train(model, sgd(model), 3)

    def alone():
        model = build()
        return train_alone(model, sgd(model), 2, 3)

    [expected] = launch(alone, 1)
    assert launch(ranks, 2) == [expected] * 2


# Training loops


def micro_batches(model, step, *, switch, n=2):
    """The last one communicates; `switch(model, last)` says so."""
    for i in range(n):
        switch(model, i == n - 1)
        backward(model, n * step + i)


def no_sync(model, last):
    model.set_requires_gradient_sync(last)


def no_sync_kept_whole(model, last):
    model.set_requires_gradient_sync(last)
    model.set_reshard_after_backward(last)


def no_all_reduce(model, last):
    model.set_requires_all_reduce(last)
    model.set_is_last_backward(last)


def forwards_first(model, step):
    losses = [model(*samples(2 * step + i, dist.get_rank(), dist.get_world_size())) for i in range(2)]
    for loss in reversed(losses):
        loss.backward()


def retained(model, step):
    loss = model(*samples(step, dist.get_rank(), dist.get_world_size()))
    loss.backward(retain_graph=True)
    loss.backward()


def evaluated_between(model, step):
    backward(model, step)
    with torch.no_grad():
        model(*samples(99, dist.get_rank(), dist.get_world_size()))
    model.reshard()  # torch's root stays whole, and would miss the coming optimizer step


def by_hand(model, step):
    """The user gathers the first block ahead of time, and the root frees it early."""
    handle = model.blocks[0].unshard(async_op=True)
    handle.wait()
    model.set_reshard_after_forward(True, recurse=False)
    backward(model, step)


def clipped(model, step):
    backward(model, step)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    assert full(norm) > 0.1


BF16 = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
LOOPS = {
    "micro-batches": (shard, partial(micro_batches, switch=lambda *_: None)),
    "no_sync": (shard, partial(micro_batches, switch=no_sync)),
    "no_sync kept whole": (shard, partial(micro_batches, switch=no_sync_kept_whole)),
    "no_sync in float32": (lambda m, w: shard(m, w, mp_policy=BF16), partial(micro_batches, switch=no_sync)),
    "no_sync, a block unused": (
        lambda _, with_: shard(Blocks(skipping), with_),
        partial(micro_batches, switch=no_sync),
    ),
    "waits at the last": (shard, partial(micro_batches, switch=lambda m, last: m.set_is_last_backward(last))),
    "forwards first": (shard, forwards_first),
    "retained graph": (shard, retained),
    "evaluation between": (shard, evaluated_between),
    "by hand": (shard, by_hand),
    "clipped": (shard, clipped),
}


def two_blocks() -> nn.Module:
    return uneven(n_blocks=2)


def test_loops_train_as_under_torch():
    cases = {
        name: (lambda w, build=build, make=decoder if "float32" in name else two_blocks: build(make(), w), run)
        for name, (build, run) in LOOPS.items()
    }
    assert outcomes(cases) == [{}] * 2


def test_hybrid_loops_train_as_under_torch():
    """set_requires_all_reduce adds up reduce_scattered shards; no_sync whole gradients."""
    loops = {"no all_reduce": no_all_reduce, "no_sync": no_sync}
    cases = {
        n: (lambda w: shard(two_blocks(), w, **HYBRID), partial(micro_batches, switch=s)) for n, s in loops.items()
    }
    assert outcomes(cases, 4) == [{}] * 4


LAYOUTS = {"each": {}, "flat": {"layout": FlatParameter}}


def test_no_sync_sends_no_gradients():
    """Counted, since a no_sync that is ignored gives the right weights too."""

    def kinds(layout):
        model, found = shard(uneven(), **layout), []
        for last in (False, False, True):
            model.set_requires_gradient_sync(last)
            with record_traffic() as traffic:
                backward(model, 0)
            found.append(dict(traffic.kinds()))
        return found

    expected = [{"all_gather": 7}, {"all_gather": 7}, {"all_gather": 7, "reduce_scatter": 4}]
    for found in launch(lambda: {name: kinds(layout) for name, layout in LAYOUTS.items()}, 2):
        assert found == {"each": expected, "flat": expected}


def test_micro_batches_equal_one_batch():
    """Three micro-batches with and without communication, in each layout: as one process adds them up."""

    def ranks():
        models, found = {}, {}
        for name, layout in LAYOUTS.items():
            models |= {f"{name}, sync": shard(uneven(), **layout), f"{name}, no_sync": shard(uneven(), **layout)}
        for name, model in models.items():
            optimizer = sgd(model)
            switch = no_sync if "no_sync" in name else lambda *_: None
            for step in range(3):
                micro_batches(model, step, switch=switch, n=3)
                optimizer.step()
                optimizer.zero_grad()
            with torch.no_grad():
                found[name] = model(*samples(99, 0, 1)).item()
        return found

    def alone():
        model = uneven()
        optimizer = sgd(model)
        for step in range(3):
            for i in range(3):
                for rank in range(2):
                    (model(*samples(3 * step + i, rank, 2)) / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
        return model(*samples(99, 0, 1)).item()

    [expected] = launch(alone, 1)
    for found in launch(ranks, 2):
        assert len(found) == 4
        assert found == pytest.approx(dict.fromkeys(found, expected), rel=CLOSE["rtol"])


# Recomputation


def recomputing(region, pick=lambda model: model.blocks):
    """`region(call)` around each block, from outside of the unit."""

    def through(model, x):
        for block in pick(model):
            x = region(block, x)
        return x

    return lambda with_: shard(Blocks(through), with_)


def inside(wrap_block):
    def build(with_):
        model = Blocks(in_order)
        for block in model.blocks:
            wrap_block(block)
        return shard(model, with_)

    return build


def over_all(model, x):
    return torch_checkpoint(lambda x: in_order(model, x), x, use_reentrant=False)


def test_recomputation_trains_as_under_torch():
    """Ours and torch's, in both nestings: gradients, and no all_gather more."""
    cases = {
        "torch's outside": (recomputing(partial(torch_checkpoint, use_reentrant=False)),),
        "torch's outside, reentrant": (recomputing(partial(torch_checkpoint, use_reentrant=True)),),
        "ours outside": (recomputing(partial(checkpoint, use_reentrant=False)),),
        "ours outside, reentrant": (recomputing(partial(checkpoint, use_reentrant=True)),),
        "inside": (inside(checkpoint_wrapper),),
        "one region": (lambda with_: shard(Blocks(over_all), with_),),
    }
    assert outcomes(cases) == [{}] * 2


# Initialisation and state


def test_meta_initialisation():
    """Shard without memory, allocate shards, initialise: as a model that was whole before."""

    def ranks():
        found = {}
        with torch.device("meta"):
            model = decoder()
        shard(model)
        assert all(p.is_meta for p in model.parameters())
        model.to_empty(device="cpu")
        reference = decoder()
        full_weights = dict(reference.named_parameters())
        for name, p in model.named_parameters():
            with torch.no_grad():
                local = torch.distributed.tensor.distribute_tensor(
                    full_weights[name].detach(), p.device_mesh, p.placements
                )
                p.copy_(local)
        for name, b in model.named_buffers():
            b.copy_(dict(reference.named_buffers())[name])
        shard(reference)
        for m in (model, reference):
            optimizer = sgd(m)
            for step in range(2):
                backward(m, step)
                optimizer.step()
                optimizer.zero_grad()
        return differing(local_state(model), local_state(reference)), found

    assert all(differences == [] for differences, _ in launch(ranks, 3))


@pytest.mark.parametrize(("gpu", "device_type"), [(None, "cpu"), (torch.device("cuda"), "cuda")])
def test_a_build_for_gpus_shards_on_the_cpu_where_there_is_none(monkeypatch, gpu, device_type):
    """Such a build, the one that `pip install torch` takes, names CUDA as its accelerator, available or not."""
    accelerator = {False: torch.device("cuda"), True: gpu}
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda check_available=False: accelerator[check_available]
    )
    assert default_device_type() == device_type


@pytest.mark.parametrize("accelerator", ["mps", "xpu"])
def test_ranks_on_cpus_stay_there_beside_an_accelerator(accelerator):
    """Without a mesh, ours and torch's; the stand-in says what torch says on a Mac, or beside Intel's GPU."""

    def ranks():
        torch._C._get_accelerator = lambda *_: torch.device(accelerator)
        torch.accelerator.current_accelerator = lambda check_available=False: torch.device(accelerator)
        stay_on_cpu()
        found = [engine(nn.Linear(4, 4)).weight.device_mesh.device_type for engine in (fully_shard, torch_fully_shard)]
        return [default_device_type(), *found]

    assert launch(ranks, 2, device="cpu") == [["cpu"] * 3] * 2


@pytest.mark.parametrize("layout", [PerParameter, FlatParameter])
@pytest.mark.parametrize("world_size", [1, 2])
def test_whole_parameters_are_allocated_once_also_the_first_time(layout, world_size):
    """Bytes that the profiler sees allocated in a forward: as many in the first as in the second."""

    def ranks():
        model, x = nn.Linear(256, 256, bias=False).double(), torch.zeros(1, 256, dtype=torch.float64)
        policy = MixedPrecisionPolicy(param_dtype=torch.float32, cast_forward_inputs=True)  # or one rank uses its shard
        fully_shard(model, layout=layout, mp_policy=policy)
        found = []
        for _ in range(2):
            with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof, torch.no_grad():
                model(x)
                model.reshard()
            events = prof.profiler.kineto_results.events()
            found.append(sum(max(0, e.nbytes()) for e in events if e.name() == "[memory]" and e.nbytes() >= 4 * 256**2))
        return found

    for first, second in launch(ranks, world_size):
        assert first == second >= 4 * 256**2


def test_reset_parameters_after_meta():
    """A deterministic initialiser gives the same run from meta and from whole parameters."""

    def constant(model):
        with torch.no_grad():
            for i, p in enumerate(model.parameters()):
                p.fill_(0.01 * (i + 1))

    def ranks():
        models = []
        for device in ("meta", "cpu"):
            with torch.device(device):
                models.append(shard(uneven()))
            models[-1].to_empty(device="cpu") if device == "meta" else None
            constant(models[-1])
            train(models[-1], sgd(models[-1]), 2)
        return differing(*map(local_state, models))

    assert launch(ranks, 3) == [[]] * 3


def test_state_dict_round_trip():
    """Also after an evaluation, when torch's root would be whole, and a forward; loading replaces what was gathered."""

    def ranks():
        a, b = shard(uneven()), shard(uneven(seed=1))
        for model in (a, b):
            with torch.no_grad():
                model(*samples(0, 0, 1))
        a(*samples(0, 0, 1))  # the root stays whole
        state = a.state_dict()
        assert all(hasattr(t, "full_tensor") for t in state.values())
        b.load_state_dict(state)
        c = shard(uneven(seed=2))
        c.load_state_dict(state, assign=True)
        losses = [model(*samples(0, 0, 1)).item() for model in (a, b, c)]
        return losses, b.half() and {p.dtype for p in b.parameters()}, b(*samples(0, 0, 1)).dtype

    for (loss, *others), dtypes, dtype in launch(ranks, 2):
        assert others == [loss, loss]
        assert dtypes == {dtype} == {torch.float16}


def test_a_step_after_an_evaluation_is_not_missed():
    """Forward without backward leaves nothing gathered that an optimizer step would make out of date."""

    def runs(layout):
        losses = []
        for between in (lambda model: None, evaluate, forward_only):
            model = shard(uneven(), **layout)
            losses.append(train(model, sgd(model), 4, before_step=partial(between, model)))
        return losses

    def evaluate(model):
        with torch.no_grad():
            model(*samples(99, 0, 1))
        assert {m._fsdp_unit.state.name for m in (model, *model.blocks)} == {"SHARDED"}

    def forward_only(model):
        model(*samples(99, 0, 1))

    for found in launch(lambda: {name: runs(layout) for name, layout in LAYOUTS.items()}, 2):
        for name, (plain, evaluated, forwarded) in found.items():
            assert plain == evaluated == forwarded, name


def test_optimizer_in_backward():
    """Hooks on sharded parameters run when their gradient is there."""

    def ranks():
        model, names = shard(uneven()), []
        for name, p in model.named_parameters():
            p.register_post_accumulate_grad_hook(lambda p, name=name: names.append((name, p.grad.shape == p.shape)))
        backward(model, 0)
        return sorted(names)

    expected = sorted((name, True) for name, _ in uneven().named_parameters())
    assert launch(ranks, 2) == [expected] * 2


def test_a_forward_or_backward_that_was_broken_off():
    """The next step is as if nothing had been, once gradients are zeroed."""

    class Trouble(Exception):
        pass

    def raise_trouble(*_):
        raise Trouble

    def ranks():
        found = []
        for where in ("forward", "backward"):
            model = shard(uneven())
            optimizer = sgd(model)
            block = model.blocks[1]
            if where == "forward":
                handle = block.norm.register_forward_hook(raise_trouble)
            else:
                handle = block.norm.register_forward_hook(lambda m, a, out: out.register_hook(raise_trouble) and None)
            try:
                backward(model, 0)
            except Trouble:
                handle.remove()
            optimizer.zero_grad()
            found.append(train(model, optimizer, 3))
        model = shard(uneven())
        return found, train(model, sgd(model), 3)

    for found, expected in launch(ranks, 2):
        assert found == [expected, expected]


def test_what_waited_for_an_all_reduce_is_forgotten_with_a_broken_backward():
    class Trouble(Exception):
        pass

    def raise_trouble(*_):
        raise Trouble

    def losses(broken):
        model = shard(uneven(), mesh=(2, 1))
        optimizer = sgd(model)
        if broken:
            model.set_requires_all_reduce(False)
            backward(model, 0)
            model.set_requires_all_reduce(True)
            norm = model.blocks[1].norm
            handle = norm.register_forward_hook(lambda m, a, out: out.register_hook(raise_trouble) and None)
            with suppress(Trouble):
                backward(model, 1)
            handle.remove()
            optimizer.zero_grad()
        return train(model, optimizer, 3)

    assert launch(lambda: losses(True) == losses(False), 2) == [True] * 2


# Prefetching


def prefetching(model, n: int):
    blocks = list(model.blocks)
    for i, block in enumerate(blocks):
        block.set_modules_to_forward_prefetch(blocks[i + 1 : i + 1 + n])
        block.set_modules_to_backward_prefetch(blocks[max(0, i - n) : i][::-1])
    return model


def test_what_is_gathered_when():
    """Implicitly one block ahead in backward; explicitly as told; and never more than was asked for."""

    def ranks():
        return [states(shard(uneven())), *(states(prefetching(shard(uneven()), n)) for n in (1, 2))]

    backwards = {"backward 2": "SGU", "backward 1": "GUS", "backward 0": "USS"}
    none = {"forward 0": "USS", "forward 1": "SUS", "forward 2": "SSU"}
    one = {"forward 0": "UGS", "forward 1": "SUG", "forward 2": "SSU"}
    two = {"forward 0": "UGG", "forward 1": "SUG", "forward 2": "SSU", "backward 2": "GGU"}
    for found in launch(ranks, 2):
        assert found == [none | backwards, one | backwards, one | backwards | two]


def test_prefetching_hides_messages():
    """On a slow link, where a block's computation takes as long as its all_gather: the waiting falls."""

    def ranks():
        import time

        class Slow(nn.Linear):
            def forward(self, x):
                time.sleep(0.03)
                return super().forward(x)

        def build(n=None, **options):
            torch.manual_seed(0)
            model = nn.Sequential(*(Slow(256, 256, bias=False) for _ in range(5)))
            for block in model:
                fully_shard(block, **options)
            fully_shard(model)
            if n:
                for a, b in zip(model, list(model)[1:], strict=False):
                    a.set_modules_to_forward_prefetch([b])
            return model

        def forward_s(model):
            with torch.no_grad():
                model(torch.ones(1, 256))
            dist.barrier()
            start = time.perf_counter()
            with torch.no_grad():
                model(torch.ones(1, 256))
            return time.perf_counter() - start

        return forward_s(build()), forward_s(build(1))

    for without, with_prefetch in launch(ranks, 2, network=simulated("50 Mb/s, 100 us")):  # 256 KiB / 2 per rank: 21 ms
        assert with_prefetch < 0.9 * without
