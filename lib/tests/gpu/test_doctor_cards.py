"""`shardlab doctor` on made-up GPU nodes: how cards are set up and wired, and whether ranks and boxes can use them."""

from types import SimpleNamespace

import fake_nvidia_smi
import pytest
import torch
import torch.distributed as dist
from deadlines import deadline_s

from grading.boxes.sandbox import Bubblewrap
from shardcourse.cli import cards, doctor
from shardlab import launch

TOPOLOGY = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV12\tPXB\tSYS\tPXB\t0-31\t0
GPU1\tNV12\t X \tSYS\tNODE\tSYS\t0-31\t0
GPU2\tPXB\tSYS\t X \tNV6\tSYS\t32-63\t1
GPU3\tSYS\tNODE\tNV6\t X \tSYS\t32-63\t1
NIC0\tPXB\tSYS\tSYS\tSYS\t X \t\t

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks
"""


@pytest.fixture
def node(tmp_path, monkeypatch):
    """node(n, {words in a question to nvidia-smi: answer}): a machine with n cards, all of which reach each other."""

    def make(n: int, said: dict[str, str] | None = None, gib: int = 79, capability: tuple[int, int] = (9, 0)) -> None:
        card = SimpleNamespace(name="H100", total_memory=gib << 30, major=capability[0], minor=capability[1])
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: n > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: n)
        monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda a, b: True)
        fake_nvidia_smi.install(tmp_path / "bin", monkeypatch, said or {})

    return make


def settings() -> dict:
    return {f.what: f for f in cards.settings_of_cards()}


@pytest.mark.parametrize(
    ("n", "gib", "capability", "words"),
    [
        (8, 79, (9, 0), ["gpu8: 8 ranks on cuda", "bf16"]),
        (3, 79, (9, 0), ["gpu2: 2 ranks", "1 GPUs stay idle"]),
        (4, 15, (7, 5), ["gpu4-16gb: 4 ranks", "fp16, with loss scaling"]),
        (1, 4, (7, 5), ["cpu: 4 ranks on cpu"]),
    ],
)
def test_the_tier_says_what_it_uses_and_what_stays_idle(n, gib, capability, words, node):
    node(n, gib=gib, capability=capability)
    finding = doctor._tier()
    assert all(each in finding.found for each in words)
    assert finding.ok == (gib > 4) and ("needs" in finding.remedy) == (gib == 4)


def test_without_cards_nothing_is_said_or_started(node, monkeypatch):
    node(0)
    monkeypatch.setattr(cards, "launch", lambda *_, **__: pytest.fail("ranks on no GPU"))
    assert cards.settings_of_cards() == cards.ranks_on_cards() == []


@pytest.mark.parametrize("mode", ["Exclusive_Process", "Prohibited"])
def test_a_card_for_one_process_fails_with_what_to_do(mode, node):
    node(3, {"compute_mode": f"Default\n{mode}\n{mode}\n"})
    finding = settings()["compute mode"]
    assert finding.mark == "!!" and finding.found == f"{mode} on 2 of 3 GPUs"
    assert "nvidia-smi -c DEFAULT" in finding.remedy and "MPS" in finding.remedy


def test_the_usual_modes_are_not_worth_a_line(node):
    node(2, {"compute_mode": "Default\nDefault\n", "mig.mode": "[N/A]\nDisabled\n"})
    assert not {"compute mode", "MIG"} & settings().keys()


def test_divided_cards_are_told(node):
    node(2, {"mig.mode.current": "Enabled\nDisabled\n"})
    assert settings()["MIG"].mark == "--" and settings()["MIG"].found == "1 of 2 GPUs are divided"


def test_how_cards_are_wired_is_counted_from_nvidias_table(node):
    node(4, {"topo -m": TOPOLOGY})
    finding = settings()["GPU links"]
    assert finding.mark == "ok" and finding.found.startswith("12 of 12 ways are direct; pairs: ")
    assert set(finding.found.split("pairs: ")[1].split(", ")) == {"2 by NVLink", "1 by PCIe", "3 by the host"}


def test_cards_that_do_not_reach_each_other_and_a_table_of_another_machine(node, monkeypatch):
    node(2, {"topo -m": TOPOLOGY})
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda a, b: False)
    finding = settings()["GPU links"]
    assert finding.mark == "--" and finding.found == "0 of 2 ways are direct"


def test_a_compiler_is_looked_for(node, monkeypatch):
    node(1)
    assert settings()["compiler"].mark == "ok"
    monkeypatch.setattr(cards.shutil, "which", lambda name: None)
    assert settings()["compiler"].mark == "--" and "gcc" in settings()["compiler"].remedy


# Ranks on the cards. They run on CPUs here: what the doctor asks of them, and makes of their replies, is its own.


def on_cpus(fn, world_size, *, timeout_s, device):
    assert device == "cuda"
    return launch(fn, world_size, timeout_s=deadline_s(timeout_s), device="cpu", stream=False)


def ranks(monkeypatch, start=on_cpus) -> dict:
    monkeypatch.setattr(cards, "launch", start)
    monkeypatch.setattr(Bubblewrap, "obstacle", lambda: "none here")
    return {f.what: f for f in cards.ranks_on_cards()}


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (1, {"shared GPUs": "4 ranks on 1: right"}),
        (2, {"NCCL": "an all_reduce over 2 GPUs: right", "shared GPUs": "4 ranks on 2: right"}),
        (4, {"NCCL": "an all_reduce over 4 GPUs: right"}),
    ],
)
def test_all_cards_add_something_up(n, expected, node, monkeypatch):
    node(n)
    found = ranks(monkeypatch)
    assert {name: f.found for name, f in found.items()} == expected and all(f.ok for f in found.values())


def test_a_link_that_loses_data_is_found(node, monkeypatch):
    """Rank 1 gets another sum, as over a link that an IOMMU breaks."""

    def loses(fn, *arguments, **options):
        def on_a_bad_link():
            reduce = dist.all_reduce

            def all_reduce(t):
                reduce(t)
                if dist.get_rank() == 1:
                    t[-1] += 1

            dist.all_reduce = all_reduce
            return fn()

        return on_cpus(on_a_bad_link, *arguments, **options)

    node(4)
    finding = ranks(monkeypatch, loses)["NCCL"]
    assert (
        finding.mark == "!!" and finding.found.endswith("wrong on ranks [1]") and "NCCL_P2P_DISABLE" in finding.remedy
    )


def test_ranks_that_fail_are_a_finding_with_the_whole_error(node, monkeypatch):
    def refuses(*_, **__):
        raise RuntimeError("rank 1 of 4 did not get ready in 120 s: it was in its first collective\n\nits stack")

    node(4)
    finding = ranks(monkeypatch, refuses)["NCCL"]
    assert finding.mark == "!!" and finding.found.startswith("rank 1 of 4 did not get ready")
    assert "NCCL_DEBUG=INFO" in finding.remedy and finding.remedy.endswith("its stack")


@pytest.mark.skipif(bool(Bubblewrap.obstacle()), reason=Bubblewrap.obstacle() or "it works")
@pytest.mark.parametrize(
    ("inside", "mark", "found"),
    [
        ("print(2)", "ok", "2 of 2 work"),
        ("print(1)", "--", "1 of 2 work"),
        ("raise OSError('no permission')", "--", "they can't be used: OSError: no permission"),
        (None, "--", "0 of 2 work"),  # the real question, in a real box, which has none
    ],
)
def test_cards_are_counted_from_inside_a_box(inside, mark, found, node, monkeypatch):
    node(2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    if inside:
        monkeypatch.setattr(cards, "_COUNT", inside)
    (finding,) = cards._in_a_box(2)
    assert (finding.mark, finding.found) == (mark, found)


def test_dockers_shared_memory_is_too_small_for_cards(node, monkeypatch):
    """Docker gives 64 MiB unless it is asked for more."""
    usage = type("Usage", (), {"free": 64 << 20})
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage)
    node(0)
    assert [f.mark for f in doctor._shared_memory()] == ["ok"]
    node(2)
    (finding,) = doctor._shared_memory()
    assert finding.mark == "!!" and "--shm-size=1g" in finding.remedy


def test_the_doctor_has_all_of_it(node, monkeypatch):
    node(2, {"compute_mode": "Prohibited\n"})
    monkeypatch.setattr(cards, "launch", lambda fn, n, **_: [True] * n)
    monkeypatch.setattr(doctor, "launch", lambda fn, n, **_: [6] * n)
    monkeypatch.setattr(doctor, "accelerators", lambda: [])
    monkeypatch.setattr(Bubblewrap, "obstacle", lambda: "none here")
    assert {"compute mode", "GPU links", "compiler", "NCCL", "shared GPUs"} <= {f.what for f in doctor.examine()}
