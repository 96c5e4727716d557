"""Recomputation gives torch.utils.checkpoint's gradients, and those without it, for the memory and FLOPs promised."""

import copy
import weakref
from functools import partial

import cloudpickle
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
import torch.utils.checkpoint as theirs
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper as torch_wrapper
from torch.distributed.fsdp import fully_shard as torch_fully_shard
from torch.utils.checkpoint import CheckpointError, CheckpointPolicy
from torch.utils.flop_counter import FlopCounterMode
from training import CLOSE, Mixer, decoder, train, train_alone, uneven

from shardlab import launch
from shardlab import recompute as ours
from shardlab.ddp import DDP
from shardlab.fsdp import fully_shard
from shardlab.measure.memory import MemoryTracker
from shardlab.measure.traffic import record_traffic
from shardlab.model import Transformer, preset


@pytest.fixture(autouse=True)
def one_thread():
    """Threads that wait for each other cost minutes on a machine that is busy with other tests."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


ATEN = torch.ops.aten
BOTH = pytest.mark.parametrize("use_reentrant", [True, False])


class Block(nn.Module):
    """Drops out twice, so that a wrong random number anywhere shows in the gradients."""

    def __init__(self, dim: int = 12, hidden: int = 20) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        h = F.dropout(F.gelu(self.up(self.norm(x))), 0.3)
        return x + scale * F.dropout(self.down(h), 0.3)


def gradients(call, *, dtype: torch.dtype | None = None, make=Block) -> list[Tensor]:
    """Of the parameters and the input, and a number drawn afterwards, when every block is run as `call(block, x)`."""
    torch.manual_seed(0)
    blocks = nn.ModuleList(make() for _ in range(3))
    x = y = torch.randn(8, 12, requires_grad=True)
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        for block in blocks:
            y = call(block, y)
    y.float().square().sum().backward()
    return [x.grad, *(p.grad for p in blocks.parameters()), torch.rand(1)]


def plain(block, x):
    return block(x)


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))


def sas(library, policy):
    """`checkpoint` of ours or torch's with a policy."""
    context_fn = partial(library.create_selective_checkpoint_contexts, policy)
    return partial(library.checkpoint, use_reentrant=False, context_fn=context_fn)


# ------------------------------------------------------------------------------------------------- the same gradients


@BOTH
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_gradients_equal_torchs_and_those_without(use_reentrant, dtype):
    """To the bit, with dropout, also under autocast; and the generator goes on from where it would be without."""
    expected = gradients(plain, dtype=dtype)
    assert same(gradients(partial(theirs.checkpoint, use_reentrant=use_reentrant), dtype=dtype), expected)
    assert same(gradients(partial(ours.checkpoint, use_reentrant=use_reentrant), dtype=dtype), expected)


@BOTH
def test_random_numbers_are_only_put_back_if_asked_for(use_reentrant):
    options = {"use_reentrant": use_reentrant, "preserve_rng_state": False}
    found = gradients(partial(ours.checkpoint, **options))
    assert same(found, gradients(partial(theirs.checkpoint, **options)))
    assert not same(found, gradients(plain))


@pytest.mark.parametrize("outer, inner", [(False, False), (True, False), (False, True), (True, True)])
def test_a_region_inside_a_region(outer, inner):
    """Gradients as without; each level is called as often as under torch."""

    def nested(library, blocks, x):
        def middle(x):
            calls["middle"] += 1
            return blocks[2](library.checkpoint(innermost, x, use_reentrant=inner))

        def innermost(x):
            calls["inner"] += 1
            return blocks[1](blocks[0](x))

        return library.checkpoint(middle, x, use_reentrant=outer)

    def three():
        return nn.Sequential(Block(), Block(), Block())

    counts = []
    for library in (theirs, ours):
        calls = {"middle": 0, "inner": 0}
        found = gradients(partial(nested, library), make=three)
        assert same(found, gradients(plain, make=three))
        counts.append(calls)
    assert counts[0] == counts[1]


def test_arguments_of_every_kind():
    """Tensors in lists, dicts and keyword arguments get their gradients; the others arrive as they are."""

    def mix(x, pair, flag, *, weights, power=2.0, nothing=None):
        assert (flag, nothing) == ("yes", None)
        return (x * pair[0] + pair[1] * weights["w"]).pow(power).sin()

    def run(call):
        torch.manual_seed(0)
        tensors = [torch.rand(5, 5, requires_grad=True) for _ in range(4)]
        x, a, b, w = tensors
        call(mix, x, [a, b], "yes", weights={"w": w}, power=3.0).sum().backward()
        return [t.grad for t in tensors]

    expected = run(lambda f, *args, **kwargs: f(*args, **kwargs))
    assert same(run(partial(ours.checkpoint, use_reentrant=False)), expected)


@BOTH
def test_several_results_of_which_some_are_not_used(use_reentrant):
    def split(x, w):
        return (x * w).sin(), "a word", x.detach(), (x + w).exp()

    def run(call):
        torch.manual_seed(0)
        x, w = (torch.rand(5, requires_grad=True) for _ in range(2))
        first, word, fixed, second = call(split, x, w)
        assert word == "a word"
        (first.sum() + fixed.sum()).backward()
        return [x.grad, w.grad]

    assert same(run(partial(ours.checkpoint, use_reentrant=use_reentrant)), run(lambda f, *args: f(*args)))


def test_without_gradients_nothing_is_kept():
    x, calls = torch.rand(3), []
    with torch.no_grad():
        y = ours.checkpoint(lambda x: calls.append(1) or x.sin(), x, use_reentrant=True)
    assert torch.equal(y, x.sin()) and len(calls) == 1 and not y.requires_grad


# -------------------------------------------------------------------------------------- every way to run a backward


def chain(x: Tensor, w: Tensor) -> Tensor:
    return ((x @ w).sin() @ w).exp().sum(1).square()


def by_grad(y, x, w):
    return torch.autograd.grad(y.sum(), [x, w])


def twice_over_one_graph(y, x, w):
    first = torch.autograd.grad(y.sum(), [x, w], retain_graph=True)
    return *first, *torch.autograd.grad(y.sum(), [x, w])


def one_input_at_a_time(y, x, w):
    """The first goes through a part of the graph alone, and leaves slots filled that it does not use."""
    return *torch.autograd.grad(y.sum(), [x], retain_graph=True), *torch.autograd.grad(y.sum(), [w])


def second_derivative(y, x, w):
    first = torch.autograd.grad(y.sum(), [x, w], create_graph=True)
    return torch.autograd.grad(first[0].square().sum() + first[1].sum(), [x, w])


@pytest.mark.parametrize("backward", [by_grad, twice_over_one_graph, one_input_at_a_time, second_derivative])
def test_backwards_of_every_kind(backward):
    def run(call):
        torch.manual_seed(0)
        x, w = torch.rand(4, 6, requires_grad=True), torch.rand(6, 6, requires_grad=True)
        return list(backward(call(chain, x, w), x, w))

    expected = run(lambda f, *args: f(*args))
    assert same(run(partial(theirs.checkpoint, use_reentrant=False)), expected)
    assert same(run(partial(ours.checkpoint, use_reentrant=False)), expected)


def test_a_backward_inside_the_region():
    def with_inner_gradient(x):
        y = x.sin().exp()
        (inner,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y.cos() * inner

    def run(call):
        x = torch.linspace(0, 1, 5, requires_grad=True)
        call(with_inner_gradient, x).sum().backward()
        return [x.grad]

    expected = run(lambda f, x: f(x))
    assert same(run(partial(ours.checkpoint, use_reentrant=False)), expected)
    assert same(run(partial(theirs.checkpoint, use_reentrant=False)), expected)


def test_recomputed_once_a_backward_and_no_further_than_needed():
    """The last operation whose input is saved breaks the second call off, as torch's; a generous `except` or not."""

    def run(library):
        steps = []

        def function(x, w):
            try:
                for step in range(3):
                    steps.append(step)
                    x = (x @ w).sin()
                x = x @ w
                steps.append("behind the last product")
                return x + 1
            except Exception:
                return x

        x, w = torch.rand(4, 4, requires_grad=True), torch.rand(4, 4, requires_grad=True)
        y = library.checkpoint(function, x, w, use_reentrant=False)
        y.sum().backward(retain_graph=True)
        y.sum().backward()
        return steps

    once = [0, 1, 2]
    assert run(ours) == [*once, "behind the last product", *once, *once]
    assert run(ours) == run(theirs)


def test_breaking_off_passes_by_an_except_of_the_function():
    caught = []

    def function(x):
        try:
            return x.sin().exp().cos()
        except Exception as error:
            caught.append(error)
            raise

    x = torch.rand(4, requires_grad=True)
    ours.checkpoint(function, x, use_reentrant=False).sum().backward()
    assert not caught


def test_what_nobody_needs_any_more_is_not_put_aside():
    """A branch of the region that leads nowhere: in the midst of backward its tensors are gone."""
    storages, alive = [], []

    def function(x):
        storages.append(weakref.ref(unused(x)))
        y = x.sin()
        y.register_hook(lambda _: alive.append(storages[-1]() is not None))
        return y.sin()

    def unused(x):
        large = x.repeat(16)
        large.sin()
        return large.untyped_storage()

    x = torch.rand(4, requires_grad=True)
    ours.checkpoint(function, x, use_reentrant=False).sum().backward()
    assert len(storages) == 2 and alive == [False]


def test_what_is_recomputed_is_freed_after_use():
    """Even if the graph is retained: afterwards a block holds its boundary, as before backward."""

    def resident(call):
        torch.manual_seed(0)
        blocks, x = nn.ModuleList(Block() for _ in range(3)), torch.rand(8, 12, requires_grad=True)
        with MemoryTracker(blocks) as tracker:
            y = x
            for block in blocks:
                y = call(block, y)
            loss = y.sum()
            before = tracker.resident["activations"]
            loss.backward(retain_graph=True)
            loss.backward(retain_graph=True)
            return before, tracker.resident["activations"]

    assert resident(plain)[1] > 5000
    found = resident(partial(ours.checkpoint, use_reentrant=False))
    assert found == resident(partial(theirs.checkpoint, use_reentrant=False))
    assert found[1] == 3 * 4 * 8 * 12 + 4  # each block's result, and the 1 that backward starts from


# ------------------------------------------------------------------------------------------------------------- errors


def backward_of_two_calls(first, second) -> None:
    """`first` in forward, `second` in backward."""
    functions = [first, second]
    x = torch.rand(4, requires_grad=True)
    ours.checkpoint(lambda x: functions.pop(0)(x), x, use_reentrant=False).sum().backward()


@pytest.mark.parametrize(
    "second, difference",
    [
        (lambda x: x.sin().exp(), "3 tensors were saved, now 2"),
        (lambda x: x.sin()[:2].sin().exp(), r"tensor 1 was \(\(4,\), torch.float32.* is \(\(2,\)"),
        (lambda x: x.sin().double().sin().exp(), "tensor 1 was .*float32.* is .*float64"),
    ],
)
def test_a_function_that_does_something_else_the_second_time(second, difference):
    with pytest.raises(CheckpointError, match=difference) as caught:
        backward_of_two_calls(lambda x: x.sin().sin().exp(), second)
    assert "must be among its arguments" in str(caught.value) and "lambda" in str(caught.value)


def test_an_input_changed_in_place_is_noticed():
    x = torch.rand(4, requires_grad=True)
    y = x + 1
    z = ours.checkpoint(torch.sin, y, use_reentrant=False)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_what_the_reentrant_version_cannot_do():
    reentrant = partial(ours.checkpoint, use_reentrant=True)
    x = torch.rand(4, requires_grad=True)
    with pytest.raises(RuntimeError, match="no argument of Linear requires grad.*use_reentrant=False"):
        reentrant(nn.Linear(4, 4), torch.rand(2, 4))
    with pytest.raises(ValueError, match="use_reentrant=False"):
        reentrant(torch.sum, x, dim=0)
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        torch.autograd.grad(reentrant(torch.sin, x).sum(), x)
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        reentrant(torch.sin, x).sum().backward(inputs=[x])


# ---------------------------------------------------------------------------------------------------- memory and FLOPs


class Chain(nn.Module):
    """Its backward needs the input and three hidden tensors."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(dim, hidden, bias=False), nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).sin().sin())


def peak_of_chain(call, n_blocks: int, batch: int, dim: int, hidden: int):
    torch.manual_seed(0)
    blocks = nn.ModuleList(Chain(dim, hidden) for _ in range(n_blocks))
    x = torch.rand(batch, dim, requires_grad=True)
    with MemoryTracker(blocks) as tracker:
        y = x
        for block in blocks:
            y = call(block, y)
        y = y.sum()
        y.backward()
    return tracker.peak.peak_bytes, max(now["activations"] for _, now in tracker.timeline())


@pytest.mark.parametrize("n_blocks", [1, 2, 4, 8])
def test_peak_is_the_closed_form(n_blocks):
    """[Note: memory] L boundaries, the hidden tensors of one block or of all, and what backward works with."""
    batch, dim, hidden = 64, 8, 32
    boundary, a_hidden = 4 * batch * dim, 4 * batch * hidden
    a_block_s_weights = 4 * 2 * dim * hidden
    scalars = 2 * 4  # the loss, and the 1 that backward starts from

    def most_activations(blocks_with_hidden):
        return (n_blocks - 1) * boundary + blocks_with_hidden * 3 * a_hidden + scalars  # the first's input is not ours

    def peak(blocks_with_hidden):
        """When the second sine of the last block goes backward."""
        return (
            n_blocks * a_block_s_weights
            + a_block_s_weights // 2  # gradient of the last weight
            + most_activations(blocks_with_hidden)
            - a_hidden  # the input of the last product is free by now
            + 3 * a_hidden  # the gradient that comes in, the cosine, the gradient that goes out
            + boundary  # the first input
        )

    sizes = (n_blocks, batch, dim, hidden)
    assert peak_of_chain(plain, *sizes) == (peak(n_blocks), most_activations(n_blocks))
    assert peak_of_chain(partial(ours.checkpoint, use_reentrant=False), *sizes) == (peak(1), most_activations(1))
    assert peak_of_chain(partial(theirs.checkpoint, use_reentrant=False), *sizes) == (peak(1), most_activations(1))


BATCH, SEQ_LEN, CONFIG = 2, 64, preset("1M", n_layers=4)


def step_of_decoder(call, every: int = 1) -> tuple[int, int]:
    """Peak bytes and FLOPs of forward and backward, with each `every`-th block run as `call(forward, ...)`."""
    torch.manual_seed(0)
    model = Transformer(CONFIG)
    for block in list(model.blocks)[every - 1 :: every]:
        block.forward = partial(call, block.forward)
    tokens = torch.randint(256, (BATCH, SEQ_LEN + 1), generator=torch.Generator().manual_seed(0))
    with FlopCounterMode(display=False) as counter:
        model(tokens[:, :-1], tokens[:, 1:]).backward()
    model.zero_grad()
    with MemoryTracker(model) as tracker:
        model(tokens[:, :-1], tokens[:, 1:]).backward()
    return tracker.peak.peak_bytes, counter.get_total_flops()


def products(c) -> tuple[int, int, int]:
    """Forward FLOPs of a block's products, of its last one, and of the output layer; not of attention."""
    tokens = BATCH * SEQ_LEN
    last = 2 * tokens * c.hidden_dim * c.dim
    attention = 2 * tokens * (2 * c.dim * c.dim + 2 * c.dim * c.n_kv_heads * c.head_dim)
    return attention + 3 * last, last, 2 * tokens * c.dim * c.vocab_size


@pytest.mark.parametrize("every", [2, pytest.param(1, marks=pytest.mark.night)])
def test_flops_are_one_more_forward_and_peaks_torchs(every):
    """Backward costs twice the forward. Recomputing adds the whole forward of a block; the non-reentrant version breaks

    off before its last product, whose result nobody saves; a policy that keeps products adds none.
    """
    block, last, output = products(CONFIG)
    n_blocks = CONFIG.n_layers // every
    without = 3 * (CONFIG.n_layers * block + output)
    options = {
        "reentrant": (lambda lib: partial(lib.checkpoint, use_reentrant=True), n_blocks * block),
        "non-reentrant": (lambda lib: partial(lib.checkpoint, use_reentrant=False), n_blocks * (block - last)),
        "selective": (lambda lib: sas(lib, ours.save_products), 0),
    }
    plain_peak, plain_flops = step_of_decoder(lambda f, *args: f(*args), every)
    assert plain_flops == without
    for name, (make, more) in options.items():
        peak, flops = step_of_decoder(make(ours), every)
        assert flops == without + more, name
        assert (peak, flops) == step_of_decoder(make(theirs), every), name
        assert peak < plain_peak, name


# ----------------------------------------------------------------------------------------------------------- selective


POLICIES = {
    "list": [ATEN.addmm.default, ATEN.gelu.default],
    "products": ours.save_products,
    "bool": lambda ctx, op, *args, **kwargs: op is ATEN.native_layer_norm.default,
    "prefer": lambda ctx, op, *args, **kwargs: (
        CheckpointPolicy.PREFER_SAVE if op is ATEN.mul.Tensor else CheckpointPolicy.MUST_RECOMPUTE
    ),
    "nothing": [],
}


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("policy", POLICIES)
def test_policies_equal_torchs(policy, dtype):
    expected = gradients(plain, dtype=dtype)
    assert same(gradients(sas(theirs, POLICIES[policy]), dtype=dtype), expected)
    assert same(gradients(sas(ours, POLICIES[policy]), dtype=dtype), expected)


def test_products_are_what_holds_the_flops():
    """Attention on the CPU and the products of experts and of fp8 are not known to torch's FLOP counter."""
    attention = ATEN._scaled_dot_product_flash_attention_for_cpu.default
    products = [ATEN.mm.default, ATEN.addmm.default, ATEN.bmm.default, ATEN.convolution.default, attention]
    products += [ATEN._grouped_mm.default, ATEN._scaled_grouped_mm.default, ATEN._scaled_mm_v2.default]
    others = [
        ATEN.gelu.default,
        ATEN.add.Tensor,
        ATEN.native_layer_norm.default,
        ATEN.view.default,
        ATEN.lgamma.default,
    ]
    saved = [op for op in products + others if ours.save_products(None, op) is CheckpointPolicy.MUST_SAVE]
    assert saved == products


def test_a_saved_operation_is_not_run_again():
    """And the others are."""
    calls = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            calls.append(op)
            return op(*args, **(kwargs or {}))

    x = torch.rand(4, 4, requires_grad=True)
    y = sas(ours, [ATEN.tanh.default])(lambda x: x.tanh().exp().tanh().square(), x).sum()
    with Watch():
        y.backward()
    assert ATEN.tanh.default not in calls and ATEN.exp.default in calls


def test_random_numbers_after_a_saved_draw():
    """The operation that drew first is passed by, and the next must not get its numbers. (torch 2.13's does.)"""

    def masked(block, x):
        return block(x * torch.bernoulli(torch.full_like(x, 0.5)))

    expected = gradients(masked)
    found = gradients(lambda block, x: sas(ours, [ATEN.bernoulli.default])(masked, block, x))
    assert same(found, expected)


def test_a_saved_result_changed_in_place_is_noticed():
    x, w = torch.rand(3, 3, requires_grad=True), torch.rand(3, 3, requires_grad=True)
    y = sas(ours, [ATEN.mm.default])(lambda x, w: torch.relu_(x @ w).sin(), x, w)
    with pytest.raises(CheckpointError, match="aten.mm.default was changed in place"):
        y.sum().backward()


def test_what_changes_its_argument_is_recomputed_whatever_the_policy():
    def function(x):
        return (x * 2).clone().mul_(3).sin()

    x = torch.rand(3, requires_grad=True)
    sas(ours, [ATEN.mul_.Tensor, ATEN.sin.default])(function, x).sum().backward()
    assert torch.equal(x.grad, (x * 6).cos() * 6)


def test_saved_results_serve_one_backward():
    x = torch.rand(3, requires_grad=True)
    y = sas(ours, [ATEN.sin.default])(lambda x: x.sin().exp(), x).sum()
    y.backward(retain_graph=True)
    with pytest.raises(CheckpointError, match="serve one backward"):
        y.backward()


def test_more_operations_in_the_second_call_are_noticed():
    functions = [lambda x: x.sin().exp().cos(), lambda x: x.sin().sin().exp().cos()]
    x = torch.rand(3, requires_grad=True)
    y = sas(ours, [ATEN.sin.default])(lambda x: functions.pop(0)(x), x).sum()
    with pytest.raises(CheckpointError, match=r"forward called aten.sin.default 1 times"):
        y.backward()


def test_operations_that_are_not_saved_may_come_more_often():
    """As those of FSDP's hooks do, when a unit lies in the region."""
    functions = [lambda x: x.sin().exp().cos(), lambda x: x.clone().sin().clone().exp().cos()]
    x = torch.rand(3, requires_grad=True)
    sas(ours, [ATEN.sin.default])(lambda x: functions.pop(0)(x), x).sum().backward()
    (expected,) = torch.autograd.grad(x.sin().exp().cos().sum(), x)
    assert torch.equal(x.grad, expected)


def test_saving_to_the_cpu_is_refused():
    offload = next((p for p in CheckpointPolicy if "OFFLOAD" in p.name), "offload")
    with pytest.raises(ValueError, match="can only save or recompute"):
        sas(ours, lambda *_, **__: offload)(torch.sin, torch.rand(3, requires_grad=True))


# -------------------------------------------------------------------------------------------------------- from outside


def test_a_list_that_names_no_operations_is_refused():
    for wrong, error in (([torch.ops.aten.mm], ValueError), ([2], ValueError), (2, TypeError)):
        with pytest.raises(error, match="no operation such as|neither a policy nor a list"):
            ours.create_selective_checkpoint_contexts(wrong)


def test_the_default_device_is_what_it_was():
    x = torch.randn(4, device="meta", requires_grad=True)
    with torch.device("meta"):
        y = ours.checkpoint(lambda x: (x * torch.ones(4)).sin(), x, use_reentrant=False)
    y.sum().backward()
    assert x.grad.is_meta and torch.get_default_device() == torch.device("cpu")


def test_a_saved_tensor_without_a_gradient_is_the_same_object():
    """As without checkpointing: it may carry attributes that a backward of a user's own reads."""
    seen = []

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.save_for_backward(factor)
            return x * factor

        @staticmethod
        def backward(ctx, gradient):
            seen.append(ctx.saved_tensors[0])
            return gradient * ctx.saved_tensors[0], None

    factor, x = torch.tensor(2.0), torch.ones(3, requires_grad=True)
    ours.checkpoint(lambda x: Scaled.apply(x, factor), x, use_reentrant=False).sum().backward()
    assert seen == [factor] and seen[0] is factor


def test_the_model_is_not_told():
    """Names, classes and results stay; hooks run once a step, outside of the region; taking it back leaves no trace."""
    model, alone = uneven(), uneven()
    before = [name for name, _ in model.named_modules()], list(model.state_dict())
    ours.checkpoint_blocks(model.blocks)
    calls = []
    model.blocks[0].register_forward_hook(lambda *_: calls.append("block"))
    model.blocks[0].up.register_forward_hook(lambda *_: calls.append("up"))
    tokens = torch.randint(257, (2, 17))
    for each in (model, alone):
        each(tokens[:, :-1], tokens[:, 1:]).backward()
    assert ([name for name, _ in model.named_modules()], list(model.state_dict())) == before
    assert same([p.grad for p in model.parameters()], [p.grad for p in alone.parameters()])
    assert calls == ["up", "block", "up"]
    for block in model.blocks:
        del block.forward
    assert all(vars(a).keys() == vars(b).keys() for a, b in zip(model.modules(), alone.modules(), strict=True))


def test_a_copy_runs_its_own_weights():
    model = uneven()
    ours.checkpoint_blocks(model.blocks)
    for other in (copy.deepcopy(model), cloudpickle.loads(cloudpickle.dumps(model))):
        assert all(b.forward.args[0].__self__ is b for b in other.blocks)


def test_every_kth_block():
    def checkpointed(every):
        model = uneven(n_blocks=5)
        ours.checkpoint_blocks(model.blocks, every)
        return [i for i, block in enumerate(model.blocks) if isinstance(block.forward, partial)]

    assert [checkpointed(every) for every in (1, 2, 3, 6)] == [[0, 1, 2, 3, 4], [1, 3], [2], []]


@pytest.mark.parametrize("impl", CheckpointImpl)
def test_the_wrapper_is_called_as_torchs(impl):
    def gradient(wrapper):
        torch.manual_seed(0)
        model = wrapper(nn.Sequential(nn.Linear(4, 4), nn.GELU()), impl)
        x = torch.ones(2, 4, requires_grad=True)
        model(x).sum().backward()
        return x.grad

    assert torch.equal(gradient(ours.checkpoint_wrapper), gradient(torch_wrapper))


def test_a_module_is_wrapped_once():
    with pytest.raises(ValueError, match="this Block is checkpointed already"):
        ours.checkpoint_wrapper(ours.checkpoint_wrapper(Block()))


@pytest.mark.parametrize("wrapper", [ours.checkpoint_wrapper, torch_wrapper])
def test_apply_by_a_condition(wrapper):
    """With our wrapper or with torch's, which puts a module of its own around."""
    model, alone = uneven(), uneven()
    ours.apply_activation_checkpointing(model, wrapper, check_fn=lambda m: isinstance(m, Mixer))
    tokens = torch.randint(257, (2, 17))
    for each in (model, alone):
        each(tokens[:, :-1], tokens[:, 1:]).backward()
    assert same([p.grad for p in model.parameters()], [p.grad for p in alone.parameters()])
    assert list(model.state_dict()) == list(alone.state_dict())
    assert sum(isinstance(b.forward, partial) or type(b).__name__ == "CheckpointWrapper" for b in model.blocks) == 3


# ------------------------------------------------------------------------------------------------------------ on ranks


def test_training_under_ddp_equals_one_process_without():
    def ranks():
        model = uneven(seed=dist.get_rank())
        ours.checkpoint_blocks(model.blocks, context_fn=partial(ours.create_selective_checkpoint_contexts, []))
        model = DDP(model)
        losses = train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), steps=5)
        return torch.tensor(losses), model.module.state_dict()

    def alone():
        model = uneven()
        losses = train_alone(model, torch.optim.AdamW(model.parameters(), lr=1e-2), 3, steps=5)
        return torch.tensor(losses), model.state_dict()

    [expected] = launch(alone, 1)
    for found in launch(ranks, 3):
        torch.testing.assert_close(found, expected, **CLOSE)


class Segment(nn.Module):
    """Several blocks in one region, hooks of FSDP included: the nesting that is not `checkpoint_wrapper`'s."""

    def __init__(self, blocks, call) -> None:
        super().__init__()
        self.blocks, self.call = nn.ModuleList(blocks), call

    def forward(self, x, cos, sin):
        return self.call(self._run, x, cos, sin)

    def _run(self, x, cos, sin):
        for block in self.blocks:
            x = block(x, cos, sin)
        return x


def sharded_step(shard, call, blocks_a_region: int) -> tuple[int, int, list[Tensor]]:
    """all_gathers, most unsharded bytes, and gradients. 0 blocks a region: inside of each unit."""
    model = decoder(n_layers=4)
    if blocks_a_region == 0:
        for block in model.blocks:
            block.forward = partial(call, block.forward)
    for block in model.blocks:
        shard(block)
    if k := blocks_a_region:
        model.blocks = nn.ModuleList(Segment(model.blocks[i : i + k], call) for i in range(0, 4, k))
    shard(model)
    tokens = torch.randint(256, (2, 17), generator=torch.Generator().manual_seed(dist.get_rank()))
    model(tokens[:, :-1], tokens[:, 1:]).backward()
    model.zero_grad()
    with record_traffic() as traffic, MemoryTracker(model) as tracker:
        model(tokens[:, :-1], tokens[:, 1:]).backward()
    unsharded = max(now["unsharded"] for _, now in tracker.timeline())
    return traffic.count("all_gather"), unsharded, [p.grad.full_tensor() for p in model.parameters()]


LIBRARIES = {"torch": torch_fully_shard, "ours": fully_shard}


K_OF_CASE = {"inside": 0, "outside": 1, "two": 2, "four": 4}


@pytest.mark.parametrize(
    ("library", "names"),
    [
        ("ours", ("inside", "four")),
        ("torch", ("two",)),
        pytest.param("ours", tuple(K_OF_CASE), marks=pytest.mark.night),
        pytest.param("torch", tuple(K_OF_CASE), marks=pytest.mark.night),
    ],
)
def test_units_are_gathered_twice_in_every_nesting(library, names):
    """Forward and backward, the root once; recomputation adds nothing. But a region of k units has them all unsharded

    at once: k - 1 units more than inside of each unit.
    """

    def cases():
        shard = LIBRARIES[library]
        without = sharded_step(shard, plain_call, 0)
        unit = sum(p.nbytes for p in decoder(n_layers=4).blocks[0].parameters())
        found = {"without": (without[0], 0, True)}
        for name in names:
            for use_reentrant in (True, False):
                call = partial(ours.checkpoint, use_reentrant=use_reentrant)
                gathers, unsharded, grads = sharded_step(shard, call, K_OF_CASE[name])
                found[name, use_reentrant] = gathers, (unsharded - without[1]) / unit, same(grads, without[2])
        return found

    expected = {"inside": 0, "outside": 0, "two": 1, "four": 3}  # units more
    gathers = 2 * 4 + 1
    for found in launch(cases, 2):
        assert found.pop("without") == (gathers, 0, True)
        assert found == {(n, r): (gathers, expected[n], True) for n in names for r in (True, False)}


def plain_call(function, *args):
    return function(*args)


def test_a_module_of_two_parents_is_checkpointed_once():
    shared = nn.Linear(4, 4)
    model = nn.Sequential(nn.Sequential(shared), nn.Sequential(shared))
    ours.apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, nn.Linear))
    model(torch.ones(2, 4)).sum().backward()
    assert model[0][0] is model[1][0] is shared
    assert isinstance(shared.forward, partial)


@pytest.mark.parametrize("of", [ours.checkpoint, theirs.checkpoint])
def test_a_checkpoint_that_compares_nothing(of):
    """The second call saves a tensor of another dtype in the place of the first one's; by default that is refused."""
    dtypes = [torch.float32, torch.float64] * 2

    def function(x):
        return (x.to(dtypes.pop(0)).sin()).sum()

    x = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError):
        of(function, x, use_reentrant=False).backward()
    of(function, x, use_reentrant=False, determinism_check="none").backward()
    assert x.grad.tolist() == pytest.approx(x.cos().tolist())


def test_a_checkpoint_without_an_early_stop_is_torchs_alone():
    with pytest.raises(ValueError, match="early_stop=False"):
        ours.checkpoint(torch.sin, torch.ones(2, requires_grad=True), use_reentrant=False, early_stop=False)
