"""Number formats of the released checkpoint: quantizers, their inverse, and straight-through versions.

Power-of-two scales (ue8m0) are the smallest power of two that keeps the group
inside the format's range.  All of it is plain torch, so it runs anywhere.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

E4M3_MAX, E2M1_MAX = 448.0, 6.0
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def pow2_scale(amax: torch.Tensor, top: float) -> torch.Tensor:
    """2**ceil(log2(amax / top)), exact: the exponent is read from the bits of an fp32 number."""
    bits = (amax.float() * (1.0 / top)).contiguous().view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)
    return (exponent.clamp(1, 254) << 23).view(torch.float32)


def round_e2m1_index(x: torch.Tensor) -> torch.Tensor:
    """Index of the nearest FP4 magnitude for |x| <= 6, ties to the even index."""
    a = x.abs()
    index = torch.zeros_like(a, dtype=torch.uint8)
    for i in range(7):
        middle = (E2M1[i] + E2M1[i + 1]) / 2
        # the upper neighbour wins a tie when its index is even
        index += (a >= middle if i % 2 == 1 else a > middle).to(torch.uint8)
    return index


def round_e2m1(x: torch.Tensor) -> torch.Tensor:
    """The nearest FP4 value: steps of 1/2 below 2, of 1 below 4, of 2 above (all with ties to even)."""
    a = x.abs()
    step = torch.where(a < 2, 0.5, torch.where(a < 4, 1.0, 2.0))
    return torch.copysign((a / step).round() * step, x)


# --- quantize to codes and scales -------------------------------------------------------------


def quant_fp8_blocks(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, cols] -> e4m3 codes and fp32 power-of-two scales of 32x32 blocks."""
    rows, cols = w.shape
    x = F.pad(w.float(), (0, -cols % 32, 0, -rows % 32)).unflatten(1, (-1, 32)).unflatten(0, (-1, 32))  # R 32 C 32
    scale = pow2_scale(x.abs().amax(dim=(1, 3)).clamp_min(1e-4), E4M3_MAX)
    codes = (x / scale[:, None, :, None]).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    codes = codes.view(torch.uint8).flatten(2, 3).flatten(0, 1)[:rows, :cols].contiguous()
    return codes.view(torch.float8_e4m3fn), scale


def quant_fp8_rows(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[..., cols] -> e4m3 codes and scales of 32 neighbours of a row."""
    x = w.float().unflatten(-1, (-1, 32))
    scale = pow2_scale(x.abs().amax(-1).clamp_min(1e-4), E4M3_MAX)
    codes = (x / scale.unsqueeze(-1)).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return codes.flatten(-2), scale


def quant_fp4_rows(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[..., cols] -> packed int8 (even column in the low nibble) and scales of 32 neighbours of a row."""
    x = w.float().unflatten(-1, (-1, 32))
    scale = pow2_scale(x.abs().amax(-1).clamp_min(E2M1_MAX * 2.0**-126), E2M1_MAX)
    q = (x / scale.unsqueeze(-1)).clamp(-E2M1_MAX, E2M1_MAX).flatten(-2)
    code = round_e2m1_index(q) | ((q < 0).to(torch.uint8) << 3)
    return (code[..., 0::2] | (code[..., 1::2] << 4)).view(torch.int8), scale


def scale_bytes(scale: torch.Tensor) -> torch.Tensor:
    """fp32 powers of two -> F8_E8M0."""
    return (scale.contiguous().view(torch.int32) >> 23).to(torch.uint8).view(torch.float8_e8m0fnu)


def scale_values(e8m0: torch.Tensor) -> torch.Tensor:
    return (e8m0.view(torch.uint8).to(torch.int32) << 23).view(torch.float32)


def dequant_fp8_blocks(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    rows, cols = codes.shape
    full = scale.repeat_interleave(32, 0)[:rows].repeat_interleave(32, 1)[:, :cols]
    return codes.float() * full


def dequant_fp8_rows(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (codes.float().unflatten(-1, (-1, 32)) * scale.unsqueeze(-1)).flatten(-2)


def dequant_fp4_rows(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    table = torch.tensor(E2M1 + tuple(-v for v in E2M1), device=packed.device)
    raw = packed.contiguous().view(torch.uint8)
    values = torch.stack((table[(raw & 15).long()], table[(raw >> 4).long()]), -1).flatten(-2)
    return (values.unflatten(-1, (-1, 32)) * scale.unsqueeze(-1)).flatten(-2)


# --- fake quantization with a straight-through gradient ------------------------------------------


class _Replace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, q):
        return q

    @staticmethod
    def backward(ctx, grad):
        return grad, None


@torch.no_grad()
def _fp8_rows_value(x):
    g = x.float().unflatten(-1, (-1, 32))
    scale = pow2_scale(g.abs().amax(-1, keepdim=True).clamp_min(1e-4), E4M3_MAX)
    return ((g / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).float() * scale).flatten(-2).to(x.dtype)


@torch.no_grad()
def _fp4_rows_value(x):
    g = x.float().unflatten(-1, (-1, 32))
    scale = pow2_scale(g.abs().amax(-1, keepdim=True).clamp_min(E2M1_MAX * 2.0**-126), E2M1_MAX)
    return (round_e2m1((g / scale).clamp(-E2M1_MAX, E2M1_MAX)) * scale).flatten(-2).to(x.dtype)


@torch.no_grad()
def _nvfp4_value(x):
    """FP4 with an e4m3 scale for 16 neighbours (compressed KV)."""
    g = x.float().unflatten(-1, (-1, 16))
    amax = g.abs().amax(-1, keepdim=True).clamp_min(E2M1_MAX * 2.0**-9)
    scale = (amax / E2M1_MAX).to(torch.float8_e4m3fn).float()
    return (round_e2m1((g / scale).clamp(-E2M1_MAX, E2M1_MAX)) * scale).flatten(-2).to(x.dtype)


@torch.no_grad()
def _fp8_blocks_value(w):
    codes, scale = quant_fp8_blocks(w)
    return dequant_fp8_blocks(codes, scale).to(w.dtype)


def fake_fp8_rows(x):
    return _Replace.apply(x, _fp8_rows_value(x))


def fake_fp4_rows(x):
    return _Replace.apply(x, _fp4_rows_value(x))


def fake_nvfp4(x):
    return _Replace.apply(x, _nvfp4_value(x))


def fake_fp8_blocks(w):
    return _Replace.apply(w, _fp8_blocks_value(w))
