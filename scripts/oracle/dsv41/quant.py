"""The number formats: e4m3, e2m1 and ue8m0 codes, and the quantise/dequantise steps built on them."""

from __future__ import annotations

import torch

E4M3_MAX, E2M1_MAX = 448.0, 6.0
E2M1_VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])  # magnitude of codes 0..7; bit 3 is the sign


# ---- scalar formats -------------------------------------------------------------------------------------------


def ue8m0_decode(code: torch.Tensor) -> torch.Tensor:
    """uint8 exponent byte -> 2^(byte-127) in fp32 (255 means NaN)."""
    code = code.view(torch.uint8) if code.dtype == torch.float8_e8m0fnu else code
    value = torch.ldexp(torch.ones(code.shape), code.to(torch.int32) - 127)
    return torch.where(code == 255, torch.tensor(float("nan")), value)


def ue8m0_ceil(amax: torch.Tensor, limit: float) -> torch.Tensor:
    """Byte of the smallest power of two >= fp32(amax) * fp32(1/limit), taken from the fp32 bits (no logarithm)."""
    bits = (amax.float() * torch.tensor(1.0 / limit, dtype=torch.float32)).contiguous().view(torch.int32)
    return ((bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)).to(torch.uint8)


def e4m3_encode(x: torch.Tensor) -> torch.Tensor:
    """Round to nearest even after clamping to +-448 (the format has no infinity)."""
    return x.float().clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def e2m1_encode(x: torch.Tensor) -> torch.Tensor:
    """fp32 -> 4-bit codes in a uint8, round to nearest, ties to the even code; magnitudes above 6 saturate."""
    mag = x.abs().clamp(max=E2M1_MAX)
    step = torch.where(mag < 2, 0.5, torch.where(mag < 4, 1.0, 2.0))
    rounded = torch.round(mag / step) * step  # torch.round is half-to-even, and so is the code of the result
    code = torch.searchsorted(E2M1_VALUES, rounded.contiguous())
    return (code | (torch.signbit(x).to(torch.int64) << 3)).to(torch.uint8)


def e2m1_decode(code: torch.Tensor) -> torch.Tensor:
    value = E2M1_VALUES[(code & 7).long()]
    return torch.where((code & 8) != 0, -value, value)


def nibbles_pack(code: torch.Tensor) -> torch.Tensor:
    """Column 2k goes to the low nibble of byte k, column 2k+1 to the high nibble."""
    return (code[..., 0::2] | (code[..., 1::2] << 4)).contiguous()


def nibbles_unpack(packed: torch.Tensor) -> torch.Tensor:
    packed = packed.view(torch.uint8)
    return torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)


# ---- stored tensors -------------------------------------------------------------------------------------------


def _tile_scale(scale: torch.Tensor, rows: int, cols: int, row_block: int) -> torch.Tensor:
    s = ue8m0_decode(scale).repeat_interleave(row_block, 0)[:rows]
    return s.repeat_interleave(32, 1)[:, :cols]


def fp8_block_encode(w: torch.Tensor):
    """[R, C] -> e4m3 [R, C] and ue8m0 [ceil(R/32), ceil(C/32)], one scale per 32x32 tile."""
    rows, cols = w.shape
    padded = torch.nn.functional.pad(w.float(), (0, -cols % 32, 0, -rows % 32))
    tiles = padded.reshape(padded.shape[0] // 32, 32, padded.shape[1] // 32, 32)
    scale = ue8m0_ceil(tiles.abs().amax(dim=(1, 3)).clamp_min(1e-4), E4M3_MAX)
    return e4m3_encode(w / _tile_scale(scale, rows, cols, 32)), scale.view(torch.float8_e8m0fnu)


def fp8_block_decode(w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return w.float() * _tile_scale(scale, *w.shape, 32)


def fp8_row_encode(w: torch.Tensor):
    """Engram table rows: e4m3 [R, C] and ue8m0 [R, C/32]."""
    scale = ue8m0_ceil(w.float().unflatten(-1, (-1, 32)).abs().amax(-1).clamp_min(1e-4), E4M3_MAX)
    return e4m3_encode(w / _tile_scale(scale, *w.shape, 1)), scale.view(torch.float8_e8m0fnu)


def fp8_row_decode(w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return w.float() * _tile_scale(scale, *w.shape, 1)


def fp4_encode(w: torch.Tensor):
    """Routed expert: int8 [R, C/2] (two e2m1 codes a byte) and ue8m0 [R, C/32]."""
    amax = w.float().unflatten(-1, (-1, 32)).abs().amax(-1).clamp_min(E2M1_MAX * 2.0**-126)
    scale = ue8m0_ceil(amax, E2M1_MAX)
    packed = nibbles_pack(e2m1_encode(w.float() / _tile_scale(scale, *w.shape, 1)))
    return packed.view(torch.int8), scale.view(torch.float8_e8m0fnu)


def fp4_decode(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    values = e2m1_decode(nibbles_unpack(packed))
    return values * _tile_scale(scale, *values.shape, 1)


# ---- run-time round trips (quantise, then dequantise) -----------------------------------------------------------


def round_trip_fp8(x: torch.Tensor) -> torch.Tensor:
    """e4m3 in groups of 32 along the last axis with ue8m0 scales: GEMM inputs and the sliding-window KV."""
    g = x.float().unflatten(-1, (-1, 32))
    s = ue8m0_decode(ue8m0_ceil(g.abs().amax(-1, keepdim=True).clamp_min(1e-4), E4M3_MAX))
    return (e4m3_encode(g / s).float() * s).flatten(-2).to(x.dtype)


def round_trip_fp4_e8m0(x: torch.Tensor) -> torch.Tensor:
    """e2m1 in groups of 32 with ue8m0 scales: index queries and index keys."""
    g = x.float().unflatten(-1, (-1, 32))
    s = ue8m0_decode(ue8m0_ceil(g.abs().amax(-1, keepdim=True).clamp_min(E2M1_MAX * 2.0**-126), E2M1_MAX))
    return (e2m1_decode(e2m1_encode(g / s)) * s).flatten(-2).to(x.dtype)


def round_trip_fp4_e4m3(x: torch.Tensor) -> torch.Tensor:
    """e2m1 in groups of 16 with e4m3 scales: the compressed KV cache."""
    g = x.float().unflatten(-1, (-1, 16))
    s = e4m3_encode(g.abs().amax(-1, keepdim=True).clamp_min(E2M1_MAX * 2.0**-9) / E2M1_MAX).float()
    return (e2m1_decode(e2m1_encode(g / s)) * s).flatten(-2).to(x.dtype)
