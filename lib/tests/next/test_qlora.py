"""QLoRA and 8-bit AdamW train under every strategy as in one process, and each rank holds what the formulas say."""

import importlib
import logging
import sys
from functools import cache, partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard as torch_fully_shard
from training import SINCE_2_12, decoder, train, train_alone

from shardlab import launch
from shardlab.ddp import DDP
from shardlab.fsdp import fully_shard
from shardlab.fsdp.flat_parameter import FlatParameter
from shardlab.shard_groups import local
from shardlab.state import checkpoint
from shardlab.zero import ZeroRedundancyOptimizer
from shardnext.qlora import AdamW8bit, LoRALinear, NF4Weight, add_lora

CLOSE_32 = {"rtol": 1e-5, "atol": 1e-6}  # float32, 6 steps; measured: 2e-7
SIZES = {"dim": 64, "hidden_dim": 128, "n_heads": 4, "n_kv_heads": 2}
BLOCKS = 16  # scales with a common factor: weights of a multiple of 1024 numbers can be quantised


def nf4_bytes(n: int, scaler_block_size: int = 256, itemsize: int = 4) -> int:
    """Bytes of a weight of n numbers in NF4: 1/2 each, 1 per block of 64, `itemsize` per `scaler_block_size` blocks."""
    return n // 2 + n // 64 + n // (64 * scaler_block_size) * itemsize


def qlora(seed: int = 0) -> nn.Module:
    return add_lora(decoder(seed, **SIZES), 4, targets=in_blocks, scaler_block_size=BLOCKS)


def in_blocks(name: str, linear: nn.Linear) -> bool:
    return name.startswith("blocks.")


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def units(model: nn.Module, shard) -> nn.Module:
    for block in model.blocks:
        shard(block)
    shard(model)
    return model


WRAPS = {
    "DDP": DDP,
    "ZeRO": lambda model: model,
    "torch's FSDP2": lambda model: units(model, torch_fully_shard),
    "FSDP": lambda model: units(model, fully_shard),
    "flat FSDP": lambda model: units(model, lambda module: fully_shard(module, layout=FlatParameter)),
}
PER_PARAMETER = ("torch's FSDP2", "FSDP")
QLORA = [name for name in WRAPS if SINCE_2_12 or name != "torch's FSDP2"]  # which sharded no integers before
QLORA_PER_PARAMETER = [name for name in PER_PARAMETER if name in QLORA]


def build(name: str, seed: int = 0):
    model = WRAPS[name](qlora(seed))
    if name == "ZeRO":
        return model, ZeroRedundancyOptimizer(trained(model), torch.optim.AdamW, lr=1e-2)
    return model, torch.optim.AdamW(trained(model), lr=1e-2)


def held_bytes(values) -> int:
    """Of tensors on this rank, inner ones counted: an 8-bit state's codes, scales and table."""
    total = 0
    for value in values:
        t = local(value)
        inner = [getattr(t, name) for name in t.__tensor_flatten__()[0]] if hasattr(t, "__tensor_flatten__") else [t]
        total += sum(x.nbytes for x in inner)
    return total


# By night. One launch a number of ranks serves all tests: torchao takes each rank seconds to import


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of checkpoints, each named by the number of ranks that saved it."""
    return tmp_path_factory.mktemp("checkpoints")


@cache
def one_process() -> dict:
    """Here, since torchao is imported already."""

    def alone(world_size):
        model = qlora()
        return train_alone(model, torch.optim.AdamW(trained(model), lr=1e-2), world_size, 6)

    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as on a rank
    model = eight_bits_model()
    exact = train_alone(model, torch.optim.AdamW(model.parameters(), lr=1e-2), 1, 4)
    eight = {"one": eight_bits(eight_bits_model(), partial(train_alone, world_size=1))}
    found = {"alone": {n: alone(n) for n in (2, 3)}, "32 bits": exact, "8 bits": eight}
    torch.set_num_threads(before)
    return found


@cache
def ranks(world_size: int, folder, resumes_of: int) -> list[dict]:
    """What each of so many ranks finds; they go on from the checkpoint that `resumes_of` ranks saved."""
    return launch(everything, world_size, folder, resumes_of)


def everything(folder, resumes_of: int) -> dict:
    found = {"qlora": qlora_everywhere(), "saved": saves(folder / f"{dist.get_world_size()}")}
    found["8 bits"] = {name: eight_bits(WRAPS[name](eight_bits_model())) for name in PER_PARAMETER}
    return found | {"resumed": resumes(folder / f"{resumes_of}")}


def qlora_everywhere() -> dict:
    found = {}
    for name in QLORA:
        model, optimizer = build(name)
        frozen = {n: local(p).clone() for n, p in model.named_parameters() if not p.requires_grad}
        losses = train(model, optimizer, 6)
        kept = all(torch.equal(local(p), frozen[n]) for n, p in model.named_parameters() if n in frozen)
        found[name] = losses, kept, held_bytes(model.parameters())
    return found


def saves(folder) -> list[float]:
    model, optimizer = build(QLORA_PER_PARAMETER[0])
    train(model, optimizer, 2)
    checkpoint.save(folder, 2, model, optimizer)
    return train(model, optimizer, 2, first=2)


def resumes(folder) -> dict:
    found = {}
    for name in ("DDP", "FSDP", "flat FSDP"):
        model, optimizer = build(name, seed=1)
        checkpoint.load(folder, model, optimizer)
        found[name] = train(model, optimizer, 2, first=2)
    return found


def eight_bits_model() -> nn.Module:
    """A third of its largest matrices is still large enough."""
    return decoder(**SIZES | {"hidden_dim": 192})


def eight_bits(model, train=train) -> tuple[list[float], int, list[int]]:
    """Losses, bytes of states on this rank, and the numbers of its parameters there."""
    optimizer = AdamW8bit(model.parameters(), lr=1e-2)
    losses = train(model, optimizer, steps=4)
    held = held_bytes(t for states in optimizer.state.values() for key, t in states.items() if key != "step")
    return losses, held, [local(p).numel() for p in model.parameters()]


# NF4 and LoRA


def test_nf4_is_torchaos_and_its_bytes_are_the_formulas():
    from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import to_nf4

    for dtype in (torch.float32, torch.bfloat16):
        weight = torch.randn(128, 256, dtype=dtype, generator=torch.Generator().manual_seed(0))
        nf4 = NF4Weight(weight)
        assert torch.equal(nf4().to(dtype), to_nf4(weight).to(dtype))
        assert sum(p.nbytes for p in nf4.parameters()) == nf4_bytes(weight.numel(), itemsize=dtype.itemsize)
        assert nf4_bytes(weight.numel(), itemsize=dtype.itemsize) == pytest.approx(0.516 * weight.numel(), rel=1e-3)
        assert (nf4().to(dtype) - weight).abs().max() < 0.2 * weight.abs().max()  # the table's widest gap is 0.3


def test_a_lora_linear_begins_as_the_quantised_layer_and_trains_beside_it():
    """Its value, and the gradients of x, A and B, as the formula's with W dequantised."""
    torch.manual_seed(0)
    lora = LoRALinear(nn.Linear(64, 32), rank=4, alpha=8, scaler_block_size=BLOCKS)
    weight = lora.weight().to(torch.float32)
    x = torch.randn(5, 64, requires_grad=True)
    torch.testing.assert_close(lora(x), x @ weight.T + lora.bias)
    with torch.no_grad():
        lora.lora_b.normal_()
    lora.bias.requires_grad_(False)
    lora(x).square().sum().backward()
    found = [t.grad for t in (x, lora.lora_a, lora.lora_b)]
    x.grad = lora.lora_a.grad = lora.lora_b.grad = None
    (x @ weight.T + lora.bias + 2 * x @ lora.lora_a.T @ lora.lora_b.T).square().sum().backward()
    torch.testing.assert_close(found, [t.grad for t in (x, lora.lora_a, lora.lora_b)])
    assert all(p.grad is None for p in lora.weight.parameters())


def test_what_add_lora_changes():
    """The chosen linear layers, once; tied weights and all else stay, frozen; and a seed gives the same matrices."""
    model = qlora()
    chosen = [name for name, module in decoder(**SIZES).named_modules() if type(module) is nn.Linear]
    replaced = [name for name, module in model.named_modules() if isinstance(module, LoRALinear)]
    assert replaced == [name for name in chosen if name.startswith("blocks.")]
    assert {name.split(".")[-1] for name, p in model.named_parameters() if p.requires_grad} == {"lora_a", "lora_b"}
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), qlora().parameters(), strict=True))
    tied = add_lora(decoder(**SIZES, tied=True), 4, scaler_block_size=BLOCKS)
    assert type(tied.output) is nn.Linear
    assert tied.output.weight is tied.embedding.weight
    with pytest.raises(ValueError, match=r"a weight of \[257, 64\] does not divide into 256 blocks of 64"):
        add_lora(decoder(**SIZES), 4, targets=lambda name, linear: name == "output")


@pytest.mark.night
@pytest.mark.parametrize("world_size", [2, 3])
def test_qlora_trains_as_in_one_process(world_size, folder):
    """Losses and trained weights; frozen ones keep every bit. What a rank holds, by formula, when it is sharded."""
    expected = one_process()["alone"][world_size]
    assert expected[-1] < expected[0] - 0.1
    by_rank = [found["qlora"] for found in ranks(world_size, folder, world_size)]
    parameters, whole_bytes = list(qlora().parameters()), _whole_bytes()
    for rank, found in enumerate(by_rank):
        assert list(found) == QLORA
        for name, (losses, kept, held) in found.items():
            torch.testing.assert_close(losses, expected, **CLOSE_32, msg=lambda m, name=name: f"{name}: {m}")
            assert kept, name
            if name in QLORA_PER_PARAMETER:
                assert held == sum(_chunk_bytes(p, rank, world_size) for p in parameters), name
    for name in QLORA_PER_PARAMETER:
        assert sum(found[name][2] for found in by_rank) == whole_bytes
    assert 0 <= sum(found["flat FSDP"][2] for found in by_rank) - whole_bytes < 200 * world_size  # padding


def _chunk_bytes(p: torch.Tensor, rank: int, world_size: int) -> int:
    chunks = p.detach().chunk(world_size)
    return chunks[rank].nbytes if rank < len(chunks) else 0


def _whole_bytes() -> int:
    """By formula: 4 bits and scales for the weights of blocks, 4 bytes for every other number."""
    model, plain = qlora(), decoder(**SIZES)
    in_nf4 = [m.weight for name, m in plain.named_modules() if type(m) is nn.Linear and in_blocks(name, m)]
    others = sum(p.numel() for p in plain.parameters()) - sum(w.numel() for w in in_nf4)
    lora = sum(p.numel() for p in trained(model))
    return sum(nf4_bytes(w.numel(), scaler_block_size=BLOCKS) for w in in_nf4) + 4 * (others + lora)


def assert_resumed(resumed: dict, saved: list[float]) -> None:
    assert len(resumed) == 3
    for name, losses in resumed.items():
        torch.testing.assert_close(losses, saved, **CLOSE_32, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.night
def test_a_checkpoint_of_qlora_moves_between_strategies(folder):
    """Saved under FSDP2, or ours, and resumed under three strategies, from other weights."""
    found = ranks(3, folder, 3)[0]
    assert_resumed(found["resumed"], found["saved"])


@pytest.mark.night
def test_a_checkpoint_of_qlora_moves_between_numbers_of_ranks(folder):
    saved = ranks(2, folder, 2)[0]["saved"]
    assert_resumed(ranks(3, folder, 2)[0]["resumed"], saved)


# 8-bit optimizer states


@pytest.mark.night
@pytest.mark.parametrize("world_size", [2, 3])
def test_8_bit_states_train_as_32_bit_ones_and_are_a_quarter(world_size, folder):
    """Losses within 1e-3 of AdamW's, also where shards are quantised by themselves; bytes by formula."""
    found = one_process()["8 bits"].copy()
    for rank, run in enumerate(ranks(world_size, folder, world_size)):
        found |= {f"{name}, rank {rank}": result for name, result in run["8 bits"].items()}
    assert len(found) == 1 + len(PER_PARAMETER) * world_size
    for name, (losses, held, numels) in found.items():
        expected = one_process()["32 bits"]
        torch.testing.assert_close(losses, expected, rtol=1e-3, atol=0, msg=lambda m, n=name: f"{n}: {m}")
        big = [n for n in numels if n >= 4096 and n % 256 == 0]
        assert big
        assert held == sum(2 * n + 2 * 4 * n // 256 + 2 * 1024 for n in big) + 8 * (sum(numels) - sum(big))


def imported() -> None:
    """On a rank, which has imported torch and no more: without torchao, and then with it."""
    sys.modules["torchao"] = None
    try:
        importlib.import_module("shardnext.qlora")
    except ImportError as error:
        print(error)
    del sys.modules["torchao"]
    importlib.import_module("shardnext.qlora")
    logging.getLogger("x").warning("heard")


def test_the_import_says_nothing_or_names_the_remedy(capfd):
    """torchao's warnings about other machines' kernels do not reach students, and logging works as before.

    Where there is no torchao, its name and version do.
    """
    launch(imported, 1)
    said = capfd.readouterr()
    remedy, heard = (said.out + said.err).splitlines()
    assert 'quantised needs torchao: pip install "torchao>=0.18,<0.19"' in remedy
    assert heard == "[rank 0] heard"
