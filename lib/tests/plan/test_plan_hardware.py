"""Cards, links and machines: figures consistent with each other and with arithmetic, names that forgive."""

import re

import pytest

from shardsim.hardware import GIB, GPUS
from shardsim.link_speeds import DRIVES, LINKS
from shardsim.machines import MACHINES, machine
from shardsim.network import Network

HALF = ("bf16", "fp16")


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: gpu.name)
class TestEveryCard:
    def test_can_use_a_little_less_than_its_name_promises(self, gpu):
        """ECC and firmware have their part, on cards with ECC in the memory itself a sixteenth (A10, L4, L40S)."""
        sold = {"T4": 16, "A10": 24, "A10G": 24, "L4": 24, "L40S": 48, "RTX-3090": 24, "RTX-4090": 24, "RTX-5090": 32}
        sold |= {"RTX-A6000": 48, "RTX-6000-Ada": 48}
        named = re.search(r"(\d+)GB", gpu.name)
        gib = int(named[1]) if named else sold[gpu.name]
        assert 0.91 * gib * GIB < gpu.memory_bytes <= max(gib * GIB, gib * 1e9)

    def test_multiplies_in_16_bits_at_least_as_fast_as_in_32(self, gpu):
        halves = {gpu.flops[d] for d in HALF if d in gpu.flops}
        assert halves == {gpu.half_flops}, "the same rate for both"
        assert gpu.half_flops >= gpu.flops.get("tf32", 0) >= 0
        assert gpu.half_flops > gpu.flops["fp32"]

    def test_quotes_dense_figures(self, gpu):
        """On every generation tf32 is half of bf16 and fp8 twice: a sparse figure among them would break that."""
        if "tf32" in gpu.flops:
            assert gpu.half_flops / gpu.flops["tf32"] == pytest.approx(2, rel=0.03)
        if "fp8" in gpu.flops:
            assert gpu.flops["fp8"] / gpu.half_flops == pytest.approx(2, rel=0.03)

    def test_computes_hundreds_of_flops_for_each_byte_of_memory(self, gpu):
        assert 70 < gpu.half_flops / gpu.hbm_bandwidth < 450

    def test_has_links_that_are_known_and_a_source(self, gpu):
        assert gpu.link in LINKS and gpu.host_link in LINKS and gpu.source
        assert 0 < gpu.power_share <= 1


def test_of_cards_held_to_less_power_the_share_is_known():
    assert GPUS["H100-96GB-500W"].power_share == pytest.approx(500 / 700)
    assert GPUS["H100-80GB"].power_share == 1


def test_figures_of_the_sheets_as_they_are_known_by_heart():
    assert GPUS["A100-40GB"].half_flops == 312e12 and GPUS["A100-40GB"].hbm_bandwidth == 1555e9
    assert GPUS["H100-80GB"].half_flops == pytest.approx(989e12, rel=1e-3)
    assert GPUS["V100-32GB"].half_flops == 125e12, "fp16: a V100 has no bf16"
    assert "bf16" not in GPUS["V100-32GB"].flops and "bf16" not in GPUS["T4"].flops
    # clock x multiprocessors x FLOPs of each in a cycle: an H100 SXM's 1830 MHz, 132, 4096
    assert GPUS["H100-80GB"].half_flops == pytest.approx(1.83e9 * 132 * 4096, rel=1e-2)
    assert GPUS["A100-80GB"].half_flops == pytest.approx(1.41e9 * 108 * 2048, rel=1e-2)
    assert GPUS["RTX-4090"].half_flops == pytest.approx(2.52e9 * 128 * 512, rel=1e-2), "added up in fp32"


def test_links_by_arithmetic():
    """PCI Express: transfers a second x lanes x 128/130 of them data, in bits. NVLink: links of 25 GB/s, or 50."""
    for version, giga in ((3, 8), (4, 16), (5, 32)):
        assert LINKS[f"PCIe {version}"].bandwidth == pytest.approx(giga * 1e9 * 16 * 128 / 130 / 8, rel=1e-3)
    for version, links, each in ((2, 6, 25e9), (3, 12, 25e9), (4, 18, 25e9), (5, 18, 50e9)):
        assert LINKS[f"NVLink {version}"].bandwidth == links * each
    for name, gigabits in (("InfiniBand HDR", 200), ("InfiniBand NDR", 400), ("25 GbE", 25)):
        assert LINKS[name].bandwidth == gigabits * 1e9 / 8


def test_drives_read_no_faster_than_their_slots():
    for drive in DRIVES.values():
        lanes = LINKS["PCIe 3" if "3.0" in drive.source else "PCIe 4"].bandwidth / 4
        assert drive.write < drive.read < lanes


@pytest.mark.parametrize("m", MACHINES.values(), ids=lambda m: m.name)
def test_every_machine_has_a_card_of_the_table_and_plausible_links(m):
    assert m.gpu is GPUS[m.gpu.name] and m.flops == m.gpu.half_flops and m.memory_bytes == m.gpu.memory_bytes
    node = m.nics_per_node * m.between.bandwidth_bytes_per_s
    assert 3e9 <= node <= 72 * 100e9
    assert m.between.bandwidth_bytes_per_s <= m.inside.bandwidth_bytes_per_s
    assert m.host_memory_bytes > m.gpu.memory_bytes
    assert (m.nvme_read > m.nvme_write > 0) == bool(m.drive)
    assert hash(m), "plans of a setup are kept by it"


def test_machines_that_lessons_use_are_as_they_were():
    """Name: GPUs, bytes/s inside and between, cards, FLOP/s."""
    was = {
        "dgx-h100": (8, 450e9, 50e9, 8, 989e12),
        "dgx-a100": (8, 300e9, 25e9, 8, 312e12),
        "pcie-box": (4, 25e9, 12.5e9, 1, 362e12),
        "cloud-25gbe": (4, 25e9, 3.125e9, 1, 125e12),
    }
    for name, (gpus, inside, between, cards, flops) in was.items():
        m = MACHINES[name]
        links = (m.inside.bandwidth_bytes_per_s, m.between.bandwidth_bytes_per_s)
        assert (m.gpus_per_node, *links, m.nics_per_node) == pytest.approx((gpus, inside, between, cards))
        assert m.flops == pytest.approx(flops, rel=1e-3)


@pytest.mark.parametrize(
    ("words", "gpu", "n", "between"),
    [
        ("H100-80GB", "H100-80GB", 1, None),
        ("h100-80gb x 8", "H100-80GB", 8, None),
        ("A10G x4", "A10G", 4, None),
        ("H100-80GB x 8, 400 Gb/s each", "H100-80GB", 8, (50e9, 8)),
        ("RTX-4090 x 2, 25 Gb/s", "RTX-4090", 2, (3.125e9, 1)),
        (" DGX-H100 ", "H100-80GB", 8, (50e9, 8)),
    ],
)
def test_cards_in_words(words, gpu, n, between):
    m = machine(words)
    assert (m.gpu.name, m.gpus_per_node) == (gpu, n)
    assert m.between is None if between is None else (m.between.bandwidth_bytes_per_s, m.nics_per_node) == between
    assert machine(m.name) == m, "its name means itself"


@pytest.mark.parametrize(
    ("typo", "near"),
    [
        ("H10", "'H100-80GB'"),
        ("dgx-h10", "'dgx-h100'"),
        ("RTX4099", "'RTX-4090'"),
        ("a100-8gb x 8", "'A100-80GB'"),
        ("dgx-h100 x 2", "'dgx-h100'"),
        ("", "did you mean"),
    ],
)
def test_a_typo_is_answered_with_the_nearest_name(typo, near):
    with pytest.raises(ValueError, match=r"^machine=") as error:
        machine(typo)
    assert near in str(error.value).split("?")[0]


def test_a_box_has_a_gpu():
    with pytest.raises(ValueError, match="at least 1 GPU"):
        machine("T4 x 0")


def test_a_machines_words_make_the_network_that_is_imitated():
    network = Network.parse("aws-p5, 2x8 nodes", 16)
    assert network.between == MACHINES["aws-p5"].between and network.nics_per_node == 8
