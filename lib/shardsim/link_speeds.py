"""Bandwidths of real links and drives, from their data sheets: decimal bytes a second, one direction.

Data sheets quote NVLink and xGMI in both directions together, and networks in one direction and in bits. A misread
figure is off by a factor of 2 or 8.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class LinkSpeed:
    """A kind of link: `bandwidth` in bytes/s, each way, of one GPU's port or one network card, headers included."""

    name: str
    bandwidth: float
    source: str


@dataclass(frozen=True)
class Nvme:
    """A kind of NVMe drive, with the sequential bandwidth of one, bytes/s."""

    name: str
    capacity_bytes: float
    read: float
    write: float
    source: str


_PCIE = "PCI-SIG, PCI Express base specification: {} GT/s a lane, 128b/130b, 16 lanes"
_BITS = "its name: {} Gb/s over 8"

LINKS = {
    link.name: link
    for link in (
        LinkSpeed("NVLink 2", 150e9, "NVIDIA Tesla V100 data sheet: 300 GB/s, both ways"),
        LinkSpeed("NVLink 3", 300e9, "NVIDIA A100 data sheet: 600 GB/s, both ways"),
        LinkSpeed("NVLink 4", 450e9, "NVIDIA H100 data sheet: 900 GB/s, both ways"),
        LinkSpeed("NVLink 5", 900e9, "NVIDIA HGX B200 data sheet: 1.8 TB/s, both ways"),
        LinkSpeed("NVLink bridge", 56.25e9, "NVIDIA GA102 whitepaper: 112.5 GB/s, both ways, between two cards only"),
        LinkSpeed("NVLink-C2C", 450e9, "NVIDIA Grace Hopper whitepaper: 900 GB/s, both ways"),
        # for one of a package's two dies; between the dies of one package there is more
        LinkSpeed("xGMI 2", 150e9, "AMD CDNA 2 whitepaper: 50 GB/s a link each way, 3 to 4 links a die"),
        LinkSpeed("xGMI 3", 448e9, "AMD Instinct MI300X data sheet: 7 links of 128 GB/s, both ways"),
        LinkSpeed("xGMI 4", 537.6e9, "AMD Instinct MI355X data sheet: 7 links of 153.6 GB/s, both ways"),
        LinkSpeed("PCIe 3", 15.75e9, _PCIE.format(8)),
        LinkSpeed("PCIe 4", 31.5e9, _PCIE.format(16)),
        LinkSpeed("PCIe 5", 63.0e9, _PCIE.format(32)),
        LinkSpeed("InfiniBand HDR", 25e9, _BITS.format(200)),
        LinkSpeed("InfiniBand NDR", 50e9, _BITS.format(400)),
        LinkSpeed("InfiniBand XDR", 100e9, _BITS.format(800)),
        LinkSpeed("RoCE 200", 25e9, _BITS.format(200)),
        LinkSpeed("RoCE 400", 50e9, _BITS.format(400)),
        LinkSpeed("EFA 100", 12.5e9, "AWS EC2 documentation: p4d has 4 cards of 100 Gb/s, p5 has 32"),
        LinkSpeed("25 GbE", 3.125e9, _BITS.format(25)),
        LinkSpeed("100 GbE", 12.5e9, _BITS.format(100)),
    )
}

DRIVES = {
    drive.name: drive
    for drive in (
        Nvme("PM983", 3.84e12, 3.0e9, 1.9e9, "Samsung PM983 data sheet, 3.84 TB, PCIe 3.0 x4"),
        Nvme("PM9A3", 3.84e12, 6.8e9, 4.0e9, "Samsung PM9A3 data sheet, 3.84 TB, PCIe 4.0 x4"),
        Nvme("980 PRO", 2.0e12, 7.0e9, 5.1e9, "Samsung 980 PRO data sheet, 2 TB, PCIe 4.0 x4"),
        Nvme("990 PRO", 2.0e12, 7.45e9, 6.9e9, "Samsung 990 PRO data sheet, 2 TB, PCIe 4.0 x4"),
    )
}
