"""The released checkpoint layout: tensor inventory, a writer for random weights, and a lazy reader.

The reader maps the shards and decodes a tensor when it is asked for. What it keeps decoded is one block (`layers.3.`,
`mtp.0.`) at a time, so that a layer of the released widths needs about 3 GB and not the whole model; with
`keep_all` (small checkpoints) everything stays.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from . import quant
from .config import Config
from .engram import bucket_primes

# kind -> (encode, decode): a quantised tensor X.weight is stored beside its scales X.scale
CODECS = {
    "fp8": (quant.fp8_block_encode, quant.fp8_block_decode),
    "fp8row": (quant.fp8_row_encode, quant.fp8_row_decode),
    "fp4": (quant.fp4_encode, quant.fp4_decode),
}
STORED = {"fp8": "F8_E4M3", "fp8row": "F8_E4M3", "fp4": "I8", "bf16": "BF16", "f32": "F32"}


def inventory(cfg: Config) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Every tensor of the text backbone and the draft module: name -> (kind, logical shape). Vision is left out."""
    c, d, hd, m = cfg, cfg.hidden_size, cfg.head_dim, cfg.hc_mult
    out: dict = {}

    def linear(name, rows, cols, kind="fp8"):
        out[name + ".weight"] = (kind, (rows, cols))

    def vec(name, *shape, kind="bf16"):
        out[name] = (kind, shape)

    def expert(p, kind):
        linear(p + "w1", c.moe_intermediate_size, d, kind)
        linear(p + "w2", d, c.moe_intermediate_size, kind)
        linear(p + "w3", c.moe_intermediate_size, d, kind)

    def block(p, draft):
        a = p + "attn."
        vec(a + "attn_sink", c.num_attention_heads, kind="f32")
        linear(a + "wq_a", c.q_lora_rank, d)
        vec(a + "q_norm.weight", c.q_lora_rank)
        linear(a + "wq_b", c.num_attention_heads * hd, c.q_lora_rank)
        linear(a + "wkv", hd, d)
        vec(a + "kv_norm.weight", hd)
        linear(a + "wo_a", c.o_groups * c.o_lora_rank, c.num_attention_heads * hd // c.o_groups)
        linear(a + "wo_b", d, c.o_groups * c.o_lora_rank)
        vec(p + "attn_norm.weight", d)
        vec(p + "ffn_norm.weight", d)
        for site in ("hc_attn", "hc_ffn"):
            vec(f"{p}{site}_fn", (2 + m) * m, m * d, kind="f32")
            vec(f"{p}{site}_base", (2 + m) * m, kind="f32")
            vec(f"{p}{site}_scale", 3, kind="f32")
        n = c.moe_shape(draft)[0]
        linear(p + "ffn.gate", n, d, "bf16")
        vec(p + "ffn.gate.bias", n, kind="f32")
        vec(p + "ffn.gate.bias_vl", n, kind="f32")
        expert(p + "ffn.shared_experts.", "fp8")
        for e in range(n):
            expert(f"{p}ffn.experts.{e}.", "fp4")

    linear("embed", c.vocab_size, d, "bf16")
    for i in range(c.num_hidden_layers):
        p = f"layers.{i}."
        block(p, False)
        if i in c.kv_source_layer_ids:
            linear(p + "attn.compressor.wkv", hd, d, "bf16")
            if c.compress_ratios[i] > 1:
                linear(p + "attn.compressor.wgate", hd, d, "bf16")
            vec(p + "attn.compressor.norm.weight", hd)
            linear(p + "attn.indexer.wk", c.index_head_dim, hd, "bf16")
            vec(p + "attn.indexer.k_norm.weight", c.index_head_dim)
        if i in c.index_source_layer_ids:
            linear(p + "attn.indexer.wq_b", c.index_n_heads * c.index_head_dim, c.q_lora_rank)
            linear(p + "attn.indexer.weights_proj", c.index_n_heads, d, "bf16")
        if i in c.engram_layer_ids:
            rows = c.engram_num_embeddings[c.engram_layer_ids.index(i)]
            linear(p + "engram.embed", rows, c.engram_head_dim, "fp8row")
            linear(p + "engram.wkv", d * (m + 1), (c.engram_max_ngram_size - 1) * c.engram_n_heads * c.engram_head_dim)
            vec(p + "engram.q_weight", m, d)
            vec(p + "engram.k_weight", m, d)
    vec("norm.weight", d)
    linear("head", c.vocab_size, d, "bf16")
    last = c.num_nextn_predict_layers - 1
    for s in range(c.num_nextn_predict_layers):
        p = f"mtp.{s}."
        block(p, True)
        if s == 0:
            linear(p + "main_proj", d, d * len(c.dspark_target_layer_ids))
            vec(p + "main_norm.weight", d)
        if s == last:
            vec(p + "norm.weight", d)
            linear(p + "markov_head.embed", c.vocab_size, c.dspark_markov_rank, "bf16")
            linear(p + "markov_head.head", c.vocab_size, c.dspark_markov_rank, "bf16")
            linear(p + "confidence_head.proj", 1, d + c.dspark_markov_rank, "bf16")
    return out


def scale_name(name: str) -> str:
    return name.removesuffix("weight") + "scale"


# ---- writing ----------------------------------------------------------------------------------------------------


def random_value(name: str, shape, g: torch.Generator) -> torch.Tensor:
    """Random weights: streams near unit size, every mechanism visible, sublayers small enough that rounding noise
    does not take over (a random network amplifies the flips of its discrete choices)."""
    x = torch.randn(shape, generator=g)
    if name.endswith(("norm.weight", "q_weight", "k_weight")):
        return 1 + 0.2 * x
    if name.endswith("_base"):
        return 0.7 * x
    if name.endswith("_scale"):
        return 0.5 + 0.3 * x.abs()
    if name.endswith(("gate.bias", "gate.bias_vl")):
        return 0.15 * x
    if name.endswith("attn_sink"):
        return x
    if name in ("embed.weight",) or name.endswith(("engram.embed.weight", "markov_head.embed.weight")):
        return x
    gain = 2.0 if name.startswith("head") else 0.25 if name.endswith(("wo_b.weight", "w2.weight")) else 1.0
    return gain * shape[-1] ** -0.5 * x


def write_random(cfg: Config, directory, seed: int = 0, shards: int = 3) -> None:
    """config.json, model-0000k-of-0000n.safetensors and model.safetensors.index.json; one shard in memory at a time."""
    out, g = Path(directory), torch.Generator().manual_seed(seed)
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(cfg.to_hf(), indent=2) + "\n")
    items = list(inventory(cfg).items())
    num_tensors = sum(2 if kind in CODECS else 1 for _, (kind, _) in items)
    step, where, total, part, k = -(-num_tensors // shards), {}, 0, {}, 0

    def flush(part):
        nonlocal k, total
        k += 1
        file = f"model-{k:05d}-of-{shards:05d}.safetensors"
        save_file(part, out / file, metadata={"format": "pt"})
        where.update(dict.fromkeys(part, file))
        total += sum(t.numel() * t.element_size() for t in part.values())

    for name, (kind, shape) in items:
        value = random_value(name, shape, g)
        if kind in CODECS:
            code, scale = CODECS[kind][0](value)
            new = {name: code.contiguous(), scale_name(name): scale.contiguous()}
        else:
            new = {name: value.to(torch.bfloat16 if kind == "bf16" else torch.float32)}
        for key, tensor in new.items():
            part[key] = tensor
            if len(part) == step:
                flush(part)
                part = {}
    if part:
        flush(part)
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def engram_rows(cfg: Config) -> list[int]:
    """The table sizes that the prime layout implies; the released config lists exactly these."""
    return [sum(map(sum, layer)) for layer in bucket_primes(cfg)]


# ---- reading ----------------------------------------------------------------------------------------------------


class Weights:
    """Checkpoint name -> exact value as a `dtype` tensor (fp32, or fp64 for the checks of replay)."""

    def __init__(self, directory, cfg: Config, dtype=torch.float32, keep_all: bool = True):
        root = Path(directory)
        where = json.loads((root / "model.safetensors.index.json").read_text())["weight_map"]
        self.dtype, self.keep_all, self.kinds = dtype, keep_all, inventory(cfg)
        self.files = {file: safe_open(root / file, framework="pt") for file in sorted(set(where.values()))}
        self.where = {name.removeprefix("model."): (name, self.files[file]) for name, file in where.items()}
        self.decoded: dict[str, torch.Tensor] = {}
        self.block = ""
        self._check()
        # the matrices whose input is rounded to FP8 (spec/model.md 6.2, `act`)
        self.quantised = {
            name
            for name, (kind, _) in self.kinds.items()
            if kind in CODECS and not name.endswith(("wo_a.weight", "engram.embed.weight"))
        }

    def _check(self) -> None:
        """Names, dtypes and shapes, from the headers alone."""
        expected = set(self.kinds) | {scale_name(n) for n, (kind, _) in self.kinds.items() if kind in CODECS}
        missing = sorted(expected - set(self.where))
        unknown = [n for n in self.where if n not in expected and not n.startswith(("vision.", "aligner.", "image_"))]
        if missing or unknown:
            raise ValueError(f"missing tensors: {missing[:5]}, unknown tensors: {unknown[:5]}")
        for name, (kind, shape) in self.kinds.items():
            stored, file = self.where[name]
            view = file.get_slice(stored)
            want = list(shape[:-1]) + [shape[-1] // 2] if kind == "fp4" else list(shape)
            if view.get_dtype() != STORED[kind] or view.get_shape() != want:
                raise ValueError(f"{name}: {view.get_dtype()} {view.get_shape()}, expected {STORED[kind]} {want}")

    def _raw(self, name: str) -> torch.Tensor:
        stored, file = self.where[name]
        return file.get_tensor(stored)

    def __getitem__(self, name: str) -> torch.Tensor:
        if name in self.decoded:
            return self.decoded[name]
        block = ".".join(name.split(".")[:2]) if name.startswith(("layers.", "mtp.")) else self.block
        if block != self.block and not self.keep_all:
            self.decoded.clear()
        self.block = block
        kind, value = self.kinds[name][0], self._raw(name)
        if kind in CODECS:
            value = CODECS[kind][1](value, self._raw(scale_name(name)))
        self.decoded[name] = value.to(self.dtype)
        return self.decoded[name]

    def rows(self, name: str, ids: torch.Tensor) -> torch.Tensor:
        """Rows `ids` (any shape) of a large table, [..., columns], without decoding the rest of it."""
        kind, flat = self.kinds[name][0], ids.flatten()
        value = self._raw(name)[flat] if kind != "fp8row" else self._raw(name).view(torch.uint8)[flat]
        if kind == "fp8row":
            scale = self._raw(scale_name(name)).view(torch.uint8)[flat]
            value = quant.fp8_row_decode(value.view(torch.float8_e4m3fn), scale)
        return value.to(self.dtype).reshape(*ids.shape, -1)


def load(directory, dtype=torch.float32, keep_all: bool = True) -> tuple[Config, Weights]:
    """(config, weights); checks the names, shapes and dtypes of every tensor."""
    cfg = Config.load(directory)
    return cfg, Weights(directory, cfg, dtype, keep_all)
