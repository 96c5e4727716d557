"""Machines whose networks can be imitated, and jobs planned: GPUs of `hardware`, joined by the links of `link_speeds`.

Bandwidths are for one direction. 400 Gb/s of InfiniBand are 50 GB/s: vendors count networks in bits and NVLink in bytes
of both directions together (900 GB/s of NVLink 4 are 450 each way).

Latencies are for one large message as NCCL sends it (protocol Simple), software included. NVLink's, PCIe's and
InfiniBand's are from NCCL, src/graph/tuning.cc, hwLat. EFA's was fitted on a published table of two p5 nodes. The
others are rough figures, as no data sheet has them. The share of the peak that training reaches (`mfu`) is an
assumption too. Measure both on your machine. Vendors say how many NVMe drives a machine has, but seldom which; those
named here stand for the fast ones of their generation.
"""

import re
import warnings
from dataclasses import dataclass
from difflib import get_close_matches
from os.path import commonprefix

from shardsim.card_names import cards_named, differ_in_memory_only, machine_named
from shardsim.hardware import GIB, GPUS, Gpu
from shardsim.link import Link
from shardsim.link_speeds import DRIVES, LINKS, Nvme

# Headers and acknowledgements take a fifth of a slot's bandwidth: copies over PCIe 4.0 x16 reach 25 of 31.5 GB/s
PCIE_SHARE = 25 / 31.5
LATENCY_S = {"NVLink": 3.4e-6, "xGMI": 5e-6, "PCIe": 5.7e-6, "InfiniBand": 14e-6, "RoCE": 19e-6, "EFA": 44e-6}
# A node's processors to their memory, bytes/s: sockets x channels x transfers a second x 8 bytes, from the processor's
# data sheet. A box of cards whose host is not named is taken for a server of its PCI Express generation; a GeForce is
# taken for a desktop's card.
HOST_MEMORY = {
    "Skylake": 2 * 6 * 2.666e9 * 8,  # Xeon Platinum 8100: DGX-2, p3dn
    "Cascade Lake": 2 * 6 * 2.933e9 * 8,  # Xeon Platinum 8200: p4d, a2
    "Rome": 2 * 8 * 3.2e9 * 8,  # EPYC 7002 and 7003: DGX A100, g5, g6e, p5
    "Sapphire Rapids": 2 * 8 * 4.8e9 * 8,  # Xeon Platinum 8400: DGX H100, p5en, a3, ND H100 v5, Grand Teton
    "Emerald Rapids": 2 * 8 * 5.6e9 * 8,  # Xeon Platinum 8500: DGX B200
    "Granite Rapids": 2 * 8 * 6.4e9 * 8,  # Xeon 6700P: DGX B300
    "Genoa": 2 * 12 * 4.8e9 * 8,  # EPYC 9004
    "Turin": 2 * 12 * 6.0e9 * 8,  # EPYC 9005
    "Trento": 8 * 3.2e9 * 8,  # Frontier's one socket
    "Grace": 36 * 384e9,  # of a rack; LPDDR5X, 384 GB/s with 480 GB: NVIDIA Grace CPU data sheet
    "desktop, PCIe 4": 2 * 3.2e9 * 8,
    "desktop, PCIe 5": 2 * 5.6e9 * 8,
}
OF_A_SERVER = {"PCIe 3": "Skylake", "PCIe 4": "Rome", "PCIe 5": "Sapphire Rapids", "NVLink-C2C": "Grace"}
ETHERNET_LATENCY_S = LATENCY_S["EFA"]  # there is no better figure


@dataclass(frozen=True)
class Machine:
    name: str
    words: str
    gpu: Gpu
    gpus_per_node: int
    inside: Link  # a GPU's port to the others of its node
    between: Link | None  # one network card
    nics_per_node: int
    host: Link  # a GPU's port to the memory of its host
    mfu: float = 0.4  # model FLOPs utilisation: the assumed share of the peak that training reaches, for imitations
    host_memory_bytes: int | None = None  # of a node; None: not known
    host_memory_bandwidth: float = 0.0  # bytes/s of a node's processors to their memory: see HOST_MEMORY
    drive: Nvme | None = None
    drives_per_node: int = 0
    source: str = ""
    extra_bytes: float = 0.0  # measured in use on a GPU, beyond what is planned
    reserve: float | None = None  # measured: bytes that the allocator reserves over those that its pools need

    @property
    def flops(self) -> float:
        """FLOP/s of one GPU: bf16 (fp16 on cards without it), dense, from the data sheet."""
        return self.gpu.half_flops

    @property
    def memory_bytes(self) -> int:
        """Bytes of one GPU that programs can use."""
        return self.gpu.memory_bytes

    @property
    def compute_flops(self) -> float:
        return self.flops * self.mfu

    @property
    def nvme_read(self) -> float:
        """Bytes/s of a node's drives together."""
        return self.drives_per_node * self.drive.read if self.drive else 0.0

    @property
    def nvme_write(self) -> float:
        return self.drives_per_node * self.drive.write if self.drive else 0.0


def _wire(name: str) -> Link:
    latency_s = LATENCY_S.get(name.split()[0], ETHERNET_LATENCY_S)
    share = PCIE_SHARE if name.startswith("PCIe") else 1.0
    return Link(LINKS[name].bandwidth * share, latency_s)


def _cluster(
    name: str,
    words: str,
    gpu: str,
    n: int,
    between: str | Link,
    nics: int,
    host_gib: int,
    processors: str,
    drives: tuple[int, str] | None = None,
    source: str = "",
    mfu: float = 0.4,
) -> Machine:
    network = _wire(between) if isinstance(between, str) else between
    more = {"mfu": mfu, "host_memory_bytes": host_gib * GIB, "source": source}
    more["host_memory_bandwidth"] = HOST_MEMORY[processors]
    return _machine(name, words, GPUS[gpu], n, network, nics, drives, **more)


def _machine(
    name: str, words: str, gpu: Gpu, n: int, between: Link | None, nics: int, drives: tuple[int, str] | None, **more
) -> Machine:
    n_drives, drive = (drives[0], DRIVES[drives[1]]) if drives else (0, None)
    links = {"inside": _wire(gpu.link), "between": between, "nics_per_node": nics, "host": _wire(gpu.host_link)}
    return Machine(name, words, gpu, n, **links, drive=drive, drives_per_node=n_drives, **more)


def _shared(gb_per_s: float, latency_s: float = LATENCY_S["EFA"]) -> Link:
    """Return a GPU's share of a node's network, if there are fewer or more cards than GPUs."""
    return Link(gb_per_s * 1e9, latency_s)


_AWS = "AWS EC2 documentation, accelerated computing instances"
_GCP = "Google Cloud documentation, accelerator-optimized machines"
_AZURE = "Microsoft Azure documentation, ND series"

# fmt: off
MACHINES = {
    machine.name: machine
    for machine in (
        _cluster("dgx-h100", "8 H100 SXM with NVLink 4, a 400 Gb/s InfiniBand card for each",
            "H100-80GB", 8, "InfiniBand NDR", 8, 2048, "Sapphire Rapids", (8, "PM9A3"), "NVIDIA DGX H100 data sheet"),
        _cluster("dgx-h200", "8 H200 SXM with NVLink 4, a 400 Gb/s InfiniBand card for each",
            "H200-141GB", 8, "InfiniBand NDR", 8, 2048, "Sapphire Rapids", (8, "PM9A3"), "NVIDIA DGX H200 data sheet"),
        _cluster("dgx-b200", "8 B200 SXM with NVLink 5, a 400 Gb/s InfiniBand card for each",
            "B200-180GB", 8, "InfiniBand NDR", 8, 2048, "Emerald Rapids", (8, "PM9A3"), "NVIDIA DGX B200 data sheet"),
        _cluster("gb200-nvl72", "racks of 72 GB200 on one NVLink 5 (the node), a 400 Gb/s InfiniBand card for each",
            "GB200-186GB", 72, "InfiniBand NDR", 72, 17_280, "Grace", None, "NVIDIA GB200 NVL72 data sheet"),
        _cluster("dgx-b300", "8 B300 SXM with NVLink 5, an 800 Gb/s InfiniBand card for each",
            "B300-288GB", 8, "InfiniBand XDR", 8, 2048, "Granite Rapids", (8, "PM9A3"), "NVIDIA DGX B300 data sheet"),
        _cluster("gb300-nvl72", "racks of 72 GB300 on one NVLink 5 (the node), an 800 Gb/s InfiniBand card for each",
            "GB300-288GB", 72, "InfiniBand XDR", 72, 17_280, "Grace", None, "NVIDIA GB300 NVL72 data sheet"),
        _cluster("grand-teton", "8 H100 96 GB held to 500 W, NVLink 4, 400 Gb/s for each (torchtitan's published runs)",
            "H100-96GB-500W", 8, "RoCE 400", 8, 2048, "Sapphire Rapids", None,
            "torchtitan, llama3_h100_202412_torchtitan.md, hardware"),
        _cluster("dgx-a100", "8 A100 80 GB SXM with NVLink 3, a 200 Gb/s InfiniBand card for each",
            "A100-80GB", 8, "InfiniBand HDR", 8, 2048, "Rome", (8, "PM9A3"), "NVIDIA DGX A100 data sheet", mfu=0.5),
        _cluster("dgx-a100-40gb", "8 A100 40 GB SXM with NVLink 3, a 200 Gb/s InfiniBand card for each",
            "A100-40GB", 8, "InfiniBand HDR", 8, 1024, "Rome", (4, "PM9A3"), "NVIDIA DGX A100 data sheet", mfu=0.5),
        _cluster("dgx-2", "16 V100 32 GB with NVLink 2, 8 InfiniBand cards of 100 Gb/s",
            "V100-32GB", 16, _shared(6.25, LATENCY_S["InfiniBand"]), 16, 1536, "Skylake", (8, "PM983"),
            "NVIDIA DGX-2 data sheet"),
        _cluster("aws-p3dn", "p3dn.24xlarge: 8 V100 32 GB with NVLink 2, 100 Gb/s for all of them",
            "V100-32GB", 8, "EFA 100", 1, 768, "Skylake", (2, "PM983"), _AWS),
        _cluster("aws-p4d", "p4d.24xlarge: 8 A100 40 GB with NVLink 3, 400 Gb/s for all of them",
            "A100-40GB", 8, _shared(6.25), 8, 1152, "Cascade Lake", (8, "PM983"), _AWS),
        _cluster("aws-p4de", "p4de.24xlarge: 8 A100 80 GB with NVLink 3, 400 Gb/s for all of them",
            "A100-80GB", 8, _shared(6.25), 8, 1152, "Cascade Lake", (8, "PM983"), _AWS),
        _cluster("aws-p5", "p5.48xlarge: 8 H100 SXM with NVLink 4, 3,200 Gb/s for all of them",
            "H100-80GB", 8, _shared(50), 8, 2048, "Rome", (8, "PM9A3"), _AWS),
        _cluster("aws-p5en", "p5en.48xlarge: 8 H200 with NVLink 4, 3,200 Gb/s for all of them",
            "H200-141GB", 8, _shared(50), 8, 2048, "Sapphire Rapids", (8, "PM9A3"), _AWS),
        _cluster("aws-g5", "g5.48xlarge: 8 A10G on PCIe 4.0, 100 Gb/s for all of them",
            "A10G", 8, "100 GbE", 1, 768, "Rome", (2, "PM9A3"), _AWS, mfu=0.35),
        _cluster("aws-g6e", "g6e.48xlarge: 8 L40S on PCIe 4.0, 400 Gb/s for all of them",
            "L40S", 8, _shared(6.25), 8, 1536, "Rome", (4, "PM9A3"), _AWS, mfu=0.35),
        _cluster("gcp-a2", "a2-highgpu-8g: 8 A100 40 GB with NVLink 3, 100 Gb/s for all of them",
            "A100-40GB", 8, "100 GbE", 1, 680, "Cascade Lake", None, _GCP),
        _cluster("gcp-a3-high", "a3-highgpu-8g: 8 H100 SXM with NVLink 4, 4 cards of 200 Gb/s for their traffic",
            "H100-80GB", 8, _shared(12.5, ETHERNET_LATENCY_S), 8, 1872, "Sapphire Rapids", (16, "PM983"), _GCP),
        _cluster("gcp-a3-mega", "a3-megagpu-8g: 8 H100 SXM with NVLink 4, a 200 Gb/s card for each, over TCP",
            "H100-80GB", 8, _shared(25, ETHERNET_LATENCY_S), 8, 1872, "Sapphire Rapids", (16, "PM983"), _GCP),
        _cluster("azure-nd-h100", "ND96isr H100 v5: 8 H100 SXM with NVLink 4, a 400 Gb/s InfiniBand card for each",
            "H100-80GB", 8, "InfiniBand NDR", 8, 1900, "Sapphire Rapids", (8, "PM9A3"), _AZURE),
        _cluster("mi300x-box", "8 MI300X on xGMI, a 400 Gb/s card for each",
            "MI300X-192GB", 8, "RoCE 400", 8, 2048, "Genoa", (8, "PM9A3"),
            "AMD Instinct MI300X platform data sheet", mfu=0.35),
        _cluster("mi355x-box", "8 MI355X on xGMI, a 400 Gb/s card for each",
            "MI355X-288GB", 8, "RoCE 400", 8, 2304, "Turin", (8, "PM9A3"),
            "AMD Instinct MI355X platform data sheet", mfu=0.35),
        _cluster("frontier", "4 MI250X, that is 8 devices, and 4 Slingshot cards of 200 Gb/s",
            "MI250X-64GB", 8, _shared(12.5, LATENCY_S["InfiniBand"]), 8, 512, "Trento", (2, "PM9A3"),
            "OLCF Frontier user guide, node overview", mfu=0.3),
        _cluster("pcie-box", "4 L40S on PCIe 4.0 x16, one 100 GbE card",
            "L40S", 4, Link(12.5e9, 20e-6), 1, 512, "Rome", (1, "PM9A3"), mfu=0.35),
        _cluster("cloud-25gbe", "4 A10 on PCIe 4.0 x16, one 25 GbE card",
            "A10", 4, "25 GbE", 1, 512, "Rome", (1, "PM9A3"), mfu=0.35),
    )
}
# fmt: on

_CARDS = re.compile(
    r"(?:(?P<first>\d{1,3})\s*[x*]\s*)?(?P<gpu>.+?)(?:(?:\s+|(?<=\d))[x*]\s*(?P<n>\d{1,3}))?"
    r"(?:\s*,\s*(?P<speed>\d+(?:\.\d+)?)\s*Gb/s(?P<each> each)?)?",
    re.I,
)
LARGEST_BOX = 8  # cards on PCIe that are joined without a word about a network


class TakenAs(UserWarning):
    """A name that may mean several cards was taken as one of them."""


def machine(name: str, gpus: int | None = None) -> Machine:
    """Return a machine by name or cards: "H100-80GB", "8x 4090", "H100-80GB x 8, 400 Gb/s each" (a card for each GPU).

    A card alone is one GPU. If a job of several `gpus` names only a card, it gets nodes of the vendor's (an H100: of
    dgx-h100), or a box with as many cards if the card is on PCIe.

    Raises ValueError with the nearest name to a typo. Warns (`TakenAs`) if "A100" may be a card of 40 or of 80 GB.
    """
    words = _CARDS.fullmatch(name.strip())
    card = _card(name, words["gpu"]) if words else None
    if known := machine_named(name, {m.name: m.words for m in MACHINES.values()}):
        return MACHINES[known]
    if card is None:
        by_lower = {known.lower(): known for known in (*MACHINES, *GPUS)}
        raise ValueError(_unknown(name, words["gpu"].lower() if words else name.lower(), by_lower))
    n = words["first"] or words["n"]
    if n is None and words["speed"] is None and (gpus or 1) > 1:
        nodes = (m for m in MACHINES.values() if m.gpu == card and m.between and not card.link.startswith("PCIe"))
        return next(nodes, None) or _box(card, min(gpus, LARGEST_BOX), None, False)
    return _box(card, int(n or 1), words["speed"], bool(words["each"]))


def _card(name: str, card: str) -> Gpu | None:
    """Return the card, or None. Of cards that differ in memory only, the largest."""
    found = cards_named(card, GPUS)
    if len(found) > 1 and not differ_in_memory_only(found):
        raise ValueError(f"machine={name!r} may be {' or '.join(map(repr, found))}: say which")
    if len(found) > 1:
        found.sort(key=lambda one: -GPUS[one].memory_bytes)
        others = " and ".join(found[1:])
        warnings.warn(f"machine={name!r} is taken as {found[0]}; there is {others} too", TakenAs, stacklevel=3)
    return GPUS[found[0]] if found else None


def _box(gpu: Gpu, n: int, gigabits: str | None, each: bool) -> Machine:
    if n < 1:
        raise ValueError(f"machine='{gpu.name} x {n}', but a box has at least 1 GPU")
    network = Link(float(gigabits) / 8 * 1e9, LATENCY_S["RoCE"] if each else ETHERNET_LATENCY_S) if gigabits else None
    joined = f", {gigabits} Gb/s{' each' if each else ''}" if gigabits else ""
    words = f"{n} of {gpu.name} ({gpu.words}) in one box" + (f"{joined} to others" if joined else "")
    drives = (1, "980 PRO")  # a common one; the size of the host's memory is not known
    host = f"desktop, {gpu.host_link}" if "GeForce" in gpu.words else OF_A_SERVER[gpu.host_link]
    more = {"source": gpu.source, "host_memory_bandwidth": HOST_MEMORY[host]}
    return _machine(f"{gpu.name} x {n}{joined}", words, gpu, n, network, n if each else 1, drives, **more)


def _unknown(name: str, asked: str, by_lower: dict[str, str]) -> str:
    begun = max(len(commonprefix((lower, asked))) for lower in by_lower)
    alike = [lower for lower in by_lower if len(commonprefix((lower, asked))) == begun]
    near = [by_lower[lower] for lower in get_close_matches(asked, alike, 3, 0.0)]
    return (
        f"machine={name!r} is not known; did you mean {' or '.join(map(repr, near))}? There are the machines "
        f"{', '.join(MACHINES)}, and cards in words, such as 'H100-80GB x 8', of {', '.join(GPUS)}"
    )
