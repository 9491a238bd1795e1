"""Write a trained model as a released-format checkpoint, and read such a checkpoint back."""

from __future__ import annotations

import json
import os
import shutil

import quant
import torch
from safetensors import safe_open
from safetensors.torch import save_file

SHARD = 15 * 1024 * 1024


def tensors_of(net) -> dict[str, torch.Tensor]:
    """Name -> stored tensor, quantized ones with their scales beside them."""
    out: dict[str, torch.Tensor] = {}

    def put(name, value, kind):
        scale = name.removesuffix("weight") + "scale"
        if kind == "fp8":
            codes, s = quant.quant_fp8_blocks(value)
        elif kind == "fp8rows":
            codes, s = quant.quant_fp8_rows(value)
        elif kind == "fp4":
            codes, s = quant.quant_fp4_rows(value)
        else:
            out[name] = value.to(torch.float32 if kind == "f32" else torch.bfloat16).contiguous()
            return
        out[name], out[scale] = codes.contiguous(), quant.scale_bytes(s).contiguous()

    for name, value in net.items():
        value = value.detach().float().cpu()
        if ".ffn.experts." in name:
            prefix, which = name.rsplit(".", 1)
            for e in range(value.shape[0]):
                put(f"{prefix}.{e}.{which}.weight", value[e], "fp4")
        else:
            put(name, value, net.weight_format(name))
    for name, bias in net.bias.items():
        out[name] = bias.detach().float().cpu().clone()
        out[name + "_vl"] = out[name].clone()  # no images were seen: route them like text
    return out


def export(net, folder: str, tokenizer: str | None = None) -> int:
    os.makedirs(folder, exist_ok=True)
    tensors = tensors_of(net)
    shards: list[dict] = [{}]
    size = 0
    for name in sorted(tensors):
        n = tensors[name].numel() * tensors[name].element_size()
        if size + n > SHARD and shards[-1]:
            shards.append({})
            size = 0
        shards[-1][name] = tensors[name]
        size += n
    weight_map = {}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, os.path.join(folder, file), metadata={"format": "pt"})
        weight_map.update({name: file for name in shard})
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}, f)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(net.config, f, indent=2)
    if tokenizer:
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(os.path.join(tokenizer, file), os.path.join(folder, file))
    return sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))


def load_checkpoint(net, folder: str) -> None:
    """The stored values, dequantized, into a model of the same configuration."""
    with open(os.path.join(folder, "model.safetensors.index.json")) as f:
        where = json.load(f)["weight_map"]
    raw = {}
    for file in sorted(set(where.values())):
        with safe_open(os.path.join(folder, file), framework="pt") as f:
            raw.update({k: f.get_tensor(k) for k in f.keys()})

    def value(name, kind):
        t = raw[name]
        if kind in ("f32", "bf16"):
            return t.float()
        scale = quant.scale_values(raw[name.removesuffix("weight") + "scale"])
        return {"fp8": quant.dequant_fp8_blocks, "fp8rows": quant.dequant_fp8_rows, "fp4": quant.dequant_fp4_rows}[
            kind
        ](t, scale)

    state = {}
    for name, p in net.items():
        if ".ffn.experts." in name:
            prefix, which = name.rsplit(".", 1)
            state[name] = torch.stack([value(f"{prefix}.{e}.{which}.weight", "fp4") for e in range(p.shape[0])])
        else:
            state[name] = value(name, net.weight_format(name))
    for name in net.bias:
        state[name] = raw[name].float()
    net.load_state(state)
