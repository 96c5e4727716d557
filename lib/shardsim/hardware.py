"""Figures of real GPUs, from their data sheets: dense, decimal units.

There are three ways to misread a data sheet, each by a factor of two:

- Tensor-core figures are printed "with sparsity" (2:4 structured, which training doesn't use). Halve them.
- GeForce cards multiply in 16 bits twice as fast when they also accumulate in 16 bits. Training accumulates in 32.
- NVLink is quoted in both directions together, networks in one, and in bits (see `link_speeds`).

`memory_bytes` is the total that torch.cuda reports. It is less than the figure on the box, as ECC and firmware take a
part. It was read from out-of-memory messages that people published, "GPU 0 has a total capacity of 79.15 GiB". It
differs by 0.1 GiB or so between drivers; the smaller figures are here.

`capability` is from NVIDIA's table "CUDA GPU compute capability". From (8, 0) on a card multiplies bf16 itself; torch
emulates it on older ones, slower than fp32 (pytorch/pytorch#148322). AMD's cards state their gfx version: 90a, 942.
"""

from dataclasses import dataclass

GIB = 1 << 30


@dataclass(frozen=True)
class Gpu:
    """One device as torch counts them; for an MI250X, one of its two dies."""

    name: str
    words: str
    memory_bytes: int
    hbm_bandwidth: float  # bytes/s
    flops: dict[str, float]  # a second, by dtype: bf16, fp16, tf32, fp32, fp8; dense, accumulated in fp32
    power_w: float  # the most it may draw
    link: str  # to the other GPUs of its box, a key of link_speeds.LINKS
    host_link: str  # to the host's memory, likewise
    source: str
    capability: tuple[int, int]  # compute capability, as torch.cuda.get_device_capability returns it
    rated_power_w: float = 0.0  # at which the data sheet's FLOP/s hold, if this card is limited to less
    pace: float = 1.0  # measured speed of computing over the planned one

    @property
    def half_flops(self) -> float:
        """FLOP/s of bf16, or of fp16 on cards from before bf16 (V100, T4)."""
        return self.flops.get("bf16", self.flops.get("fp16", 0.0))

    @property
    def power_share(self) -> float:
        """Share of the power for which its FLOP/s are quoted that the card may draw."""
        return self.power_w / (self.rated_power_w or self.power_w)

    def __hash__(self) -> int:
        return hash(self.name)


def _gib(n: float) -> int:
    return int(n * GIB)


def _flops(half: float, bf16: bool = True, **others: float) -> dict[str, float]:
    """FLOP/s by dtype, from TFLOP/s: `half` for fp16 and, if the card has it, bf16; `others` by name."""
    tera = {"fp16": half} | ({"bf16": half} if bf16 else {}) | others
    return {dtype: n * 1e12 for dtype, n in tera.items()}


# fmt: off
GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("V100-16GB", "V100 SXM2: fp16 only, there is no bf16",
            _gib(15.77), 900e9, _flops(125, fp32=15.7, bf16=False), 300,
            "NVLink 2", "PCIe 3", "NVIDIA Tesla V100 data sheet", (7, 0)),
        Gpu("V100-32GB", "V100 SXM2: fp16 only, there is no bf16",
            _gib(31.73), 900e9, _flops(125, fp32=15.7, bf16=False), 300,
            "NVLink 2", "PCIe 3", "NVIDIA Tesla V100 data sheet", (7, 0)),
        Gpu("T4", "Turing: fp16 only, there is no bf16; free notebooks have one",
            _gib(14.74), 320e9, _flops(65, fp32=8.1, bf16=False), 70,
            "PCIe 3", "PCIe 3", "NVIDIA T4 data sheet", (7, 5)),
        Gpu("A10", "Ampere, PCIe",
            _gib(22.05), 600e9, _flops(125, tf32=62.5, fp32=31.2), 150,
            "PCIe 4", "PCIe 4", "NVIDIA A10 data sheet", (8, 6)),
        # AWS's own card: more power than the A10, but little more than half of its tensor figure
        Gpu("A10G", "Ampere, PCIe, AWS g5",
            _gib(22.05), 600e9, _flops(70, tf32=35, fp32=31.5), 300,
            "PCIe 4", "PCIe 4", "NVIDIA A10G data sheet (AWS)", (8, 6)),
        Gpu("L4", "Ada, PCIe; the sheet prints sparse figures only: 242 for bf16",
            _gib(22.03), 300e9, _flops(121, tf32=60, fp32=30.3, fp8=242.5), 72,
            "PCIe 4", "PCIe 4", "NVIDIA L4 data sheet", (8, 9)),
        Gpu("L40S", "Ada, PCIe",
            _gib(44.39), 864e9, _flops(362.05, tf32=183, fp32=91.6, fp8=733), 350,
            "PCIe 4", "PCIe 4", "NVIDIA L40S data sheet (bf16: 362.05 | 733 with sparsity)", (8, 9)),
        # 142 if fp16 is accumulated in fp16
        Gpu("RTX-3090", "GeForce, Ampere",
            _gib(23.56), 936e9, _flops(71, tf32=35.6, fp32=35.6), 350,
            "PCIe 4", "PCIe 4", "NVIDIA Ampere GA102 GPU architecture whitepaper, appendix A", (8, 6)),
        # 330.3 if fp16 is accumulated in fp16; no NVLink, and no peer-to-peer over PCIe
        Gpu("RTX-4090", "GeForce, Ada",
            _gib(23.52), 1008e9, _flops(165.2, tf32=82.6, fp32=82.6, fp8=330.3), 450,
            "PCIe 4", "PCIe 4", "NVIDIA Ada GPU architecture whitepaper, appendix A", (8, 9)),
        # 419 if fp16 is accumulated in fp16
        Gpu("RTX-5090", "GeForce, Blackwell",
            _gib(31.36), 1792e9, _flops(209.5, tf32=104.8, fp32=104.8, fp8=419), 575,
            "PCIe 5", "PCIe 5", "NVIDIA RTX Blackwell GPU architecture whitepaper, appendix A", (12, 0)),
        Gpu("RTX-A6000", "workstation, Ampere",
            _gib(47.4), 768e9, _flops(154.8, tf32=77.4, fp32=38.7), 300,
            "PCIe 4", "PCIe 4", "NVIDIA Ampere GA102 GPU architecture whitepaper, appendix B", (8, 6)),
        # a workstation card: accumulating in fp32 does not halve the rate
        Gpu("RTX-6000-Ada", "workstation, Ada",
            _gib(47.4), 960e9, _flops(364.2, tf32=182.1, fp32=91.1, fp8=728.5), 300,
            "PCIe 4", "PCIe 4", "NVIDIA Ada GPU architecture whitepaper for professional graphics, appendix A", (8, 9)),
        Gpu("A100-40GB", "A100 SXM4",
            _gib(39.39), 1555e9, _flops(312, tf32=156, fp32=19.5), 400,
            "NVLink 3", "PCIe 4", "NVIDIA A100 Tensor Core GPU data sheet", (8, 0)),
        Gpu("A100-80GB", "A100 SXM4",
            _gib(79.15), 2039e9, _flops(312, tf32=156, fp32=19.5), 400,
            "NVLink 3", "PCIe 4", "NVIDIA A100 Tensor Core GPU data sheet", (8, 0)),
        Gpu("A100-40GB-PCIe", "A100 PCIe: the same peak on 250 W, which long products don't hold",
            _gib(39.39), 1555e9, _flops(312, tf32=156, fp32=19.5), 250,
            "PCIe 4", "PCIe 4", "NVIDIA A100 Tensor Core GPU data sheet", (8, 0), rated_power_w=400),
        Gpu("A100-80GB-PCIe", "A100 PCIe: the same peak on 300 W, which long products don't hold",
            _gib(79.15), 1935e9, _flops(312, tf32=156, fp32=19.5), 300,
            "PCIe 4", "PCIe 4", "NVIDIA A100 Tensor Core GPU data sheet", (8, 0), rated_power_w=400),
        Gpu("H100-80GB", "H100 SXM5",
            _gib(79.1), 3350e9, _flops(989.4, tf32=494.7, fp32=66.9, fp8=1978.9), 700,
            "NVLink 4", "PCIe 5", "NVIDIA H100 Tensor Core GPU architecture whitepaper, table 2 (dense)", (9, 0)),
        Gpu("H100-80GB-PCIe", "H100 PCIe: 114 multiprocessors of the SXM's 132, at a lower clock",
            _gib(79.1), 2000e9, _flops(756, tf32=378, fp32=51.2, fp8=1513), 350,
            "PCIe 5", "PCIe 5", "NVIDIA H100 Tensor Core GPU data sheet (2022; 1,513 with sparsity for bf16)", (9, 0)),
        # no data sheet of NVIDIA's has this card. Its users say that its peak lies between the SXM's and the NVL's, and
        # that they don't know where: this is the middle of 989.4 and 835
        Gpu("H100-96GB-500W", "H100 SXM with HBM2e, held to 500 W of its 700, in Meta's Grand Teton",
            _gib(95), 2400e9, _flops(912, tf32=456, fp32=63.5, fp8=1825), 500,
            "NVLink 4", "PCIe 5", "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, hardware and footnote 2",
            (9, 0), rated_power_w=700),
        Gpu("H200-141GB", "H200 SXM",
            _gib(139.72), 4800e9, _flops(989.4, tf32=494.7, fp32=66.9, fp8=1978.9), 700,
            "NVLink 4", "PCIe 5", "NVIDIA H200 Tensor Core GPU data sheet", (9, 0)),
        Gpu("B200-180GB", "B200 SXM in an HGX board",
            _gib(178.35), 7700e9, _flops(2250, tf32=1125, fp32=75, fp8=4500), 1000,
            "NVLink 5", "PCIe 5", "NVIDIA HGX B200 data sheet (sparse figures halved)", (10, 0)),
        Gpu("GB200-186GB", "B200 beside a Grace processor, in racks of 72 on one NVLink",
            _gib(184.31), 8000e9, _flops(2500, tf32=1250, fp32=80, fp8=5000), 1200,
            "NVLink 5", "NVLink-C2C", "NVIDIA GB200 NVL72 data sheet (sparse halved, of a rack over 72)", (10, 0)),
        Gpu("B300-288GB", "B300 SXM in an HGX board",
            _gib(267.69), 8000e9, _flops(2250, tf32=1125, fp32=75, fp8=4500), 1100,
            "NVLink 5", "PCIe 5", "NVIDIA HGX B300 data sheet (sparse figures halved)", (10, 3)),
        Gpu("GB300-288GB", "B300 beside a Grace processor, in racks of 72 on one NVLink",
            _gib(276.5), 8000e9, _flops(2500, tf32=1250, fp32=80, fp8=5000), 1400,
            "NVLink 5", "NVLink-C2C", "NVIDIA GB300 NVL72 data sheet (sparse halved, of a rack over 72)", (10, 3)),
        # the package is sold as 128 GB, 383 TFLOP/s and 3.2 TB/s, which is two devices
        Gpu("MI250X-64GB", "one die of an MI250X",
            _gib(63.98), 1600e9, _flops(191.5, fp32=23.95), 280,
            "xGMI 2", "PCIe 4", "AMD Instinct MI250X data sheet, halved", (9, 0)),
        # 2,614.9 for bf16 is with sparsity
        Gpu("MI300X-192GB", "MI300X OAM",
            _gib(191.98), 5300e9, _flops(1307.4, tf32=653.7, fp32=163.4, fp8=2614.9), 750,
            "xGMI 3", "PCIe 5", "AMD Instinct MI300X data sheet", (9, 4)),
        Gpu("MI325X-256GB", "MI325X OAM: an MI300X with more memory",
            _gib(255.98), 6000e9, _flops(1307.4, tf32=653.7, fp32=163.4, fp8=2614.9), 1000,
            "xGMI 3", "PCIe 5", "AMD Instinct MI325X data sheet", (9, 4)),
        Gpu("MI355X-288GB", "MI355X OAM",
            _gib(287.98), 8000e9, _flops(2516.6, fp32=157.3, fp8=5033.2), 1400,
            "xGMI 4", "PCIe 5", "AMD Instinct MI355X data sheet", (9, 5)),
    )
}
# fmt: on
