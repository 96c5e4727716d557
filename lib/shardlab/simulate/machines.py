"""Machines whose networks can be imitated: what a GPU computes, and what its links carry, from their data sheets.

Bandwidths are of one direction. 400 Gb/s of InfiniBand are 50 GB/s: vendors count networks in bits and NVLink in bytes
of both directions together (900 GB/s of NVLink 4 are 450 each way).

Latencies are of one message as NCCL sends it, software included; they are round figures of the right size, as no data
sheet has them. The share of the peak that training reaches (`mfu`) is an assumption too. Measure both on your machine.
"""

from dataclasses import dataclass

from shardlab.simulate.link import Link


@dataclass(frozen=True)
class Machine:
    name: str
    words: str
    gpus_per_node: int
    flops: float  # of one GPU a second: bf16, dense, the data sheet's
    mfu: float  # model FLOPs utilisation: the part of it that training reaches
    memory_bytes: int  # of one GPU
    inside: Link  # a GPU's port to the others of its node
    between: Link | None  # one network card
    nics_per_node: int

    @property
    def compute_flops(self) -> float:
        return self.flops * self.mfu


MACHINES = {
    machine.name: machine
    for machine in (
        Machine(
            "dgx-h100",
            "8 H100 SXM with NVLink 4, a 400 Gb/s InfiniBand card for each",
            gpus_per_node=8,
            flops=989e12,
            mfu=0.4,
            memory_bytes=80 << 30,
            inside=Link(450e9, 3e-6),
            between=Link(50e9, 10e-6),
            nics_per_node=8,
        ),
        Machine(
            "dgx-a100",
            "8 A100 SXM with NVLink 3, a 200 Gb/s InfiniBand card for each",
            gpus_per_node=8,
            flops=312e12,
            mfu=0.5,
            memory_bytes=80 << 30,
            inside=Link(300e9, 3e-6),
            between=Link(25e9, 10e-6),
            nics_per_node=8,
        ),
        Machine(
            "pcie-box",
            "4 L40S on PCIe 4.0 x16, one 100 GbE card",
            gpus_per_node=4,
            flops=362e12,
            mfu=0.35,
            memory_bytes=48 << 30,
            inside=Link(25e9, 8e-6),
            between=Link(12.5e9, 20e-6),
            nics_per_node=1,
        ),
        Machine(
            "cloud-25gbe",
            "4 A10 on PCIe 4.0 x16, one 25 GbE card",
            gpus_per_node=4,
            flops=125e12,
            mfu=0.35,
            memory_bytes=24 << 30,
            inside=Link(25e9, 8e-6),
            between=Link(3.125e9, 30e-6),
            nics_per_node=1,
        ),
    )
}


def machine(name: str) -> Machine:
    if name not in MACHINES:
        raise ValueError(f"no machine {name!r}; there are {', '.join(MACHINES)}")
    return MACHINES[name]
