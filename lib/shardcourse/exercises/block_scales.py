"""Check of lesson 18's exercise: MX scales that never saturate, on four ranks beside one process."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from shardlab import LaunchError, launch
from shardlab.measure.traffic import record_traffic
from shardlab.shard_groups import all_gather

N, ROWS, COLUMNS, BLOCK = 4, 8, 96, 32
F8, LARGEST = torch.float8_e4m3fn, 448.0


def check_blocks(encode: Callable) -> str:
    """Return in words what is wrong with `encode(shard) -> (codes, scale bytes)`, or that it is right."""
    try:
        whole = encode(hard_matrix())
    except NotImplementedError:
        return "mx_encode is not written yet"
    except Exception as error:
        return f"It fails. {type(error).__name__}: {error}"
    if wrong := _wrong_form(whole) or _wrong_values(hard_matrix(), *whole):
        return wrong
    try:
        gathered, kinds = launch(_gathered, N, encode, device="cpu", stream=False)[0]
    except LaunchError as error:
        return f"It fails on ranks. {str(error).strip().splitlines()[-1]}"
    if kinds:
        return (
            f"The values are right. But a rank sends {kinds}: its blocks lie inside its rows, so it needs no message."
        )
    if not all(torch.equal(a, b.view(torch.uint8)) for a, b in zip(gathered, whole, strict=True)):
        return "Each rank encodes its own rows. What they gather is not what one process makes of the whole matrix."
    return "Right: no block saturates, no scale is larger than needed, and four ranks send what one process computes."


def hard_matrix() -> Tensor:
    """Return (8, 96) float32: blocks at the edges of the formats, an outlier, zeros, and numbers almost zero."""
    x = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0)) * 0.02
    tops = torch.tensor([448.0, 449.0, 500.0, 511.0, 256.0, 224.0, 225.0, 300.0])
    x[:, :BLOCK] *= 0.01
    x[:, 5] = tops * 2.0 ** torch.arange(-8, 8, 2)
    x[1, BLOCK : 2 * BLOCK] = 0
    x[2, BLOCK : 2 * BLOCK] = 0
    x[2, BLOCK] = 2.0**-130
    x[3, BLOCK + 3] = -1000.0
    x[4, 2 * BLOCK + 9] = 3e38
    return x


def _wrong_form(found: object) -> str:
    if not isinstance(found, tuple) or len(found) != 2:
        return "Return two tensors: the codes and the scales' bytes."
    for name, tensor, shape, dtype in zip(
        ("codes", "bytes"), found, ((ROWS, COLUMNS), (ROWS, COLUMNS // BLOCK)), (F8, torch.uint8), strict=True
    ):
        if tuple(tensor.shape) != shape:
            return (
                f"For a shard of {ROWS} x {COLUMNS} the {name} have the shape {list(tensor.shape)}, not {list(shape)}."
            )
        if tensor.dtype != dtype:
            return f"The {name} are {tensor.dtype}, not {dtype}."
    return ""


def _wrong_values(x: Tensor, codes: Tensor, scale_bytes: Tensor) -> str:
    """Judge each block: by its scale first, then by its codes."""
    for row in range(ROWS):
        for i in range(COLUMNS // BLOCK):
            part = slice(i * BLOCK, (i + 1) * BLOCK)
            words = _wrong_block(x[row, part], codes[row, part].float(), int(scale_bytes[row, i]))
            if words:
                return f"Row {row}, numbers {part.start} to {part.stop - 1}: {words}"
    return ""


def _wrong_block(x: Tensor, codes: Tensor, byte: int) -> str:
    amax, scale = x.abs().max().item(), 2.0 ** (byte - 127)
    if codes.isnan().any() or byte == 255:
        return f"a number becomes NaN; the largest |w| is {amax:g}."
    if amax == 0:
        return "" if not codes.any() else "a block of zeros does not come back as zeros."
    if byte > 200 and amax < 1:
        return f"the largest |w| is {amax:g}, and the byte is {byte}: the exponent is below -127, and wrapped around."
    if amax / scale > LARGEST * (1 + 1e-6):
        return (
            f"the largest |w| is {amax:g}, the scale 2^{byte - 127}: {amax / scale:.1f} saturates, as it is above 448."
        )
    if byte and amax / scale <= LARGEST / 2:
        return f"the largest |w| is {amax:g}, the scale 2^{byte - 127}, and half of this scale would not saturate."
    expected = (x / scale).clamp(-LARGEST, LARGEST).to(F8).float()
    if not torch.equal(codes, expected):
        return "the codes are not w divided by this scale, rounded to E4M3."
    return ""


def _gathered(encode: Callable) -> tuple[list[Tensor], dict[str, int]]:
    """Return what the ranks' encoded rows are together, as bytes, and the collectives inside `encode`."""
    mine = hard_matrix().chunk(N)[dist.get_rank()].clone()
    with record_traffic() as traffic:
        parts = encode(mine)
    whole = [torch.empty(N * len(p), *p.shape[1:], dtype=torch.uint8) for p in parts]
    for w, p in zip(whole, parts, strict=True):
        all_gather(w, p.view(torch.uint8).contiguous())
    return whole, dict(traffic.kinds())
