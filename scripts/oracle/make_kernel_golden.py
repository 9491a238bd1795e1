"""Golden tensors for single operations: small inputs, and what the oracle makes of them in fp32, qat and vendor.

    python make_kernel_golden.py ../../tests/golden/kernels/ops.safetensors

Keys: `<case>.<input>` are shared by all presets, `<preset>.<case>.<output>` are results. Inputs that the model keeps in
bf16 are representable in it, so that every preset starts from the same bits. Tensors whose values all fit are stored as
BF16. Weights are in the checkpoint's formats, `<case>.<name>` with `<case>.<name>.scale` beside it.
"""

import math
import sys

import torch
from dsv41 import quant
from dsv41.config import tiny_config
from dsv41.model import PRESETS, Cache, Chunk, Model, rope_inv_freq, rotate
from safetensors.torch import save_file

D, HEADS, PAIRS, WINDOW = 64, 4, 8, 8  # head dim, heads, rotated pairs, window
HIDDEN, STREAMS, INDEX_DIM, INDEX_HEADS = 64, 4, 32, 4
FIRST, ROWS = 11, 12  # the batch holds positions 11 .. 22
POSITIONS = FIRST + ROWS


class SmallWeights(dict):
    """What `Net` wants of a checkpoint: decoded tensors by name, the set of coded ones, rows of tables."""

    dtype = torch.float32

    def __init__(self):
        super().__init__()
        self.quantised = set()

    def rows(self, name, ids):
        return self[name][ids]


class Maker:
    def __init__(self):
        self.rng = torch.Generator().manual_seed(20240607)
        self.out = {}
        self.w = SmallWeights()
        self.cfg = tiny_config()
        for key, value in {
            "hidden_size": HIDDEN,
            "head_dim": D,
            "num_attention_heads": HEADS,
            "qk_rope_head_dim": 2 * PAIRS,
            "sliding_window": WINDOW,
            "index_n_heads": INDEX_HEADS,
            "index_head_dim": INDEX_DIM,
            "index_topk": 4,
            "candidate_topk_blocks": 3,
            "candidate_block_size": 2,
            "moe_intermediate_size": 64,
            "engram_layer_ids": [],
        }.items():
            setattr(self.cfg, key, value)

    def randn(self, *shape, scale=1.0):
        return torch.randn(*shape, generator=self.rng) * scale

    def put(self, key, value):
        if value.dtype == torch.bool:
            value = value.to(torch.uint8)
        if value.dtype == torch.float32 and torch.equal(value.bfloat16().float(), value):
            value = value.bfloat16()
        self.out[key] = value.contiguous()

    def input(self, key, value, exact=False):
        """Registers an input; rounded to bf16 unless it is one that the model keeps in fp32."""
        value = value if exact else value.bfloat16().float()
        self.put(key, value)
        return value

    def weight(self, key, name, kind, *shape, scale=1.0):
        """A random weight of one of the checkpoint's kinds under `name`.weight of the oracle and `key` of the file."""
        value = self.randn(*shape, scale=scale)
        if kind in ("f32", "bf16"):
            self.w[name] = self.input(key, value, exact=kind == "f32")
            return
        value *= 2.0 ** torch.randint(-4, 4, (shape[0], 1), generator=self.rng)  # scales that differ
        value[:, :32] *= 0.01
        if kind == "fp8":
            codes, scales = quant.fp8_block_encode(value)
            self.w[name] = quant.fp8_block_decode(codes, scales)
        elif kind == "fp8row":
            codes, scales = quant.fp8_row_encode(value)
            self.w[name] = quant.fp8_row_decode(codes, scales)
        else:
            codes, scales = quant.fp4_encode(value)
            self.w[name] = quant.fp4_decode(codes, scales)
        self.out[key] = codes.view(torch.uint8).contiguous()
        self.out[key + ".scale"] = scales.view(torch.uint8).contiguous()
        self.w.quantised.add(name)

    def presets(self):
        for name in ("fp32", "qat", "vendor"):
            yield name, Model(self.cfg, self.w, PRESETS[name])


def rough_rows(m, rows, cols):
    """Rows of every temper: plain, zero, tiny, huge, one outlier, scales at both ends of a row."""
    x = m.randn(rows, cols)
    x[1] = 0
    x[2] *= 1e-6
    x[3] *= 3e4
    x[4, 5] = 700.0
    x[5] *= 2.0 ** torch.linspace(-40, 20, cols)
    return x


def make_formats(m):
    x = torch.cat([rough_rows(m, 8, D), m.randn(8, D, scale=8.0).round() / 4])  # the last rows are full of ties
    x = m.input("formats.x", x)
    m.put("formats.fp8", quant.round_trip_fp8(x))
    m.put("formats.fp4e8", quant.round_trip_fp4_e8m0(x))
    m.put("formats.fp4e4", quant.round_trip_fp4_e4m3(x))


def make_linear(m):
    x = m.input("linear.x", rough_rows(m, 8, 128))
    for kind in ("f32", "bf16", "fp8", "fp8row", "fp4"):
        m.weight(f"linear.{kind}", f"linear.{kind}.weight", kind, 40, 128)
    m.weight("linear.grouped", "linear.grouped", "fp8", 2 * 32, 64)
    for preset, net in m.presets():
        for kind in ("f32", "bf16", "fp8", "fp8row", "fp4"):
            m.put(f"{preset}.linear.{kind}", net.lin(f"linear.{kind}", x))
        grouped = net.w["linear.grouped"].unflatten(0, (2, -1))
        y = torch.einsum("ngd,grd->ngr", x.unflatten(1, (2, -1)), grouped).flatten(1)
        m.put(f"{preset}.linear.grouped", net.r(y))


def make_mhc(m):
    d = 32
    h = m.input("mhc.streams", rough_rows(m, 8, STREAMS * d))
    y = m.input("mhc.y", m.randn(8, d))
    post = m.input("mhc.post", 2 * torch.sigmoid(m.randn(8, STREAMS)), exact=True)
    comb = m.input("mhc.comb", m.randn(8, STREAMS, STREAMS).softmax(1), exact=True)
    pre = m.input("mhc.pre", torch.sigmoid(m.randn(8, STREAMS)), exact=True)
    rows = (2 + STREAMS) * STREAMS
    m.w["site_fn"] = m.input("mhc.fn", m.randn(rows, STREAMS * d, scale=0.2), exact=True)
    m.w["site_base"] = m.input("mhc.base", m.randn(rows), exact=True)
    m.w["site_scale"] = m.input("mhc.scale", torch.tensor([0.7, 1.1, 2.5]), exact=True)
    m.w["site_norm.weight"] = m.input("mhc.gain", 1 + m.randn(d, scale=0.1))
    for preset, net in m.presets():
        new = net.unfold(y, h.unflatten(1, (STREAMS, d)), post, comb)
        mixes = net.hc_mixes("site", new)
        folded = net.fold(new, pre)
        results = {"streams": new.flatten(1), "pre": mixes[0], "post": mixes[1], "comb": mixes[2].flatten(1)}
        for name, value in (results | {"folded": folded, "x": net.norm("site_norm", folded)}).items():
            m.put(f"{preset}.mhc.{name}", value)


def make_rope(m):
    positions = torch.tensor([0, 1, 7, 4095, 65537, 1000003, 1048575])
    m.put("rope.positions", positions)
    m.put("rope.freq", rope_inv_freq(m.cfg, True))
    angle = positions.float()[:, None] * rope_inv_freq(m.cfg, True)
    m.put("rope.cos", angle.cos())
    m.put("rope.sin", angle.sin())


def make_caches(m):
    """Window keys, and both kinds of compressed entries, of positions 0 .. 22, chunk by chunk."""
    x = m.input("cache.x", m.randn(POSITIONS, HIDDEN))
    raw = m.input("cache.raw", m.randn(POSITIONS, D))
    m.w["window.wkv.weight"] = torch.eye(D)  # the product is not what this case is about
    m.w["window.kv_norm.weight"] = m.input("cache.kv_norm", 1 + m.randn(D, scale=0.1))
    for layer, ratio in ((2, 2), (6, 1)):
        p, key = f"layers.{layer}.attn.", f"cache.ratio{ratio}."
        for name in ("wkv", "wgate") if ratio == 2 else ("wkv",):
            m.weight(key + name, f"{p}compressor.{name}.weight", "bf16", D, HIDDEN, scale=0.2)
        m.weight(key + "wk", p + "indexer.wk.weight", "bf16", INDEX_DIM, D, scale=0.2)
        m.w[p + "compressor.norm.weight"] = m.input(key + "norm", 1 + m.randn(D, scale=0.1))
        m.w[p + "indexer.k_norm.weight"] = m.input(key + "k_norm", 1 + m.randn(INDEX_DIM, scale=0.1))
    caches = {}
    for preset, net in m.presets():
        keys = net.window_kv("window.", raw, torch.arange(POSITIONS), net.freq[True])
        cache = caches[preset] = Cache()
        for layer, ratio in ((2, 2), (6, 1)):
            net.compress(layer, x[:FIRST], cache)
            net.compress(layer, x[FIRST:], cache)
            m.put(f"{preset}.cache.ratio{ratio}.entries", cache.latent[layer])
            m.put(f"{preset}.cache.ratio{ratio}.index", cache.index_k[layer])
        m.put(f"{preset}.cache.window", keys)
        cache.window = keys
    return caches


def make_select(m, caches):
    x = m.input("select.x", m.randn(ROWS, HIDDEN))
    latent = m.input("select.latent", m.randn(ROWS, 32))
    for layer in (2, 6, 8):
        m.weight(
            f"select.layer{layer}.q", f"layers.{layer}.attn.indexer.wq_b.weight", "fp8", INDEX_HEADS * INDEX_DIM, 32
        )
        m.weight(
            f"select.layer{layer}.w", f"layers.{layer}.attn.indexer.weights_proj.weight", "bf16", INDEX_HEADS, HIDDEN
        )
    for preset, net in m.presets():
        chunk = Chunk(torch.arange(FIRST, POSITIONS), trace={})
        for layer in (2, 6, 8):  # plain with ratio 2, candidate source, chooser
            chosen = net.select(layer, x, latent, chunk, caches[preset])
            m.put(f"{preset}.select.layer{layer}.score", chunk.trace[f"layers.{layer}.index_score"])
            m.put(f"{preset}.select.layer{layer}.chosen", chosen)
        m.put(f"{preset}.select.candidates", chunk.shared["candidates"])


def make_attention(m, caches):
    q = m.input("attention.q", m.randn(ROWS, HEADS * D, scale=2.0))
    m.w["a.attn_sink"] = m.input("attention.sink", torch.tensor([0.5, -3.0, 30.0, -math.inf]), exact=True)
    entries = POSITIONS // 2
    visible = torch.arange(entries) < ((torch.arange(FIRST, POSITIONS) + 1) // 2)[:, None]
    chosen = visible & (torch.rand(ROWS, entries, generator=m.rng) < 0.5)
    chosen[3] = False
    m.put("attention.chosen", chosen)
    pos = torch.arange(FIRST, POSITIONS)
    for preset, net in m.presets():
        window = caches[preset].window
        turned = net.r(rotate(q.unflatten(1, (HEADS, D)), pos, net.freq[True]))
        age = pos[:, None] - torch.arange(POSITIONS)
        mask = torch.cat([(age >= 0) & (age < WINDOW), chosen], -1)
        o = net.attend("a.", turned, torch.cat([window, caches[preset].latent[2]]), mask)
        m.put(f"{preset}.attention.out", net.r(rotate(o, pos, net.freq[True], inverse=True)).flatten(1))
        # a draft block: all rows see the block and the window before it
        keys = window[FIRST - WINDOW :]
        o = net.attend("a.", turned, keys, torch.ones(ROWS, len(keys), dtype=torch.bool))
        m.put(f"{preset}.attention.block", net.r(rotate(o, pos, net.freq[True], inverse=True)).flatten(1))


def make_experts(m):
    x = m.input("moe.x", rough_rows(m, 8, HIDDEN))
    p, width = "layers.0.ffn.", m.cfg.moe_intermediate_size
    m.weight("moe.gate", p + "gate.weight", "bf16", 8, HIDDEN)
    m.w[p + "gate.bias"] = m.input("moe.bias", m.randn(8), exact=True)
    m.w[p + "gate.bias_vl"] = m.input("moe.bias_vl", m.randn(8), exact=True)
    for e, kind in [(f"experts.{e}", "fp4") for e in range(8)] + [("shared_experts", "fp8")]:
        for name, shape in (("w1", (width, HIDDEN)), ("w2", (HIDDEN, width)), ("w3", (width, HIDDEN))):
            m.weight(f"moe.{e}.{name}", f"{p}{e}.{name}.weight", kind, *shape, scale=0.3)
    image = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1], dtype=torch.bool)
    m.put("moe.is_image", image)
    for preset, net in m.presets():
        ids, weights = net.route(p, x, image, False)
        order = ids.argsort(-1)
        m.put(f"{preset}.moe.ids", ids.gather(1, order))
        m.put(f"{preset}.moe.weights", weights.gather(1, order))
        m.put(f"{preset}.moe.z", net.moe(p, x, image))


def make_route(m):
    logits = torch.cat([m.randn(4, 8, scale=3.0), torch.zeros(1, 8), m.randn(2, 8, scale=60.0)])
    logits = m.input("route.logits", logits)
    m.w["layers.1.ffn.gate.weight"] = torch.eye(8)
    m.w["layers.1.ffn.gate.bias"] = m.input("route.bias", m.randn(8).round(), exact=True)
    net = Model(m.cfg, m.w, PRESETS["fp32"])
    for k in (1, 3):
        m.cfg.num_experts_per_tok = k
        ids, weights = net.route("layers.1.ffn.", logits, None, False)
        order = ids.argsort(-1)
        m.put(f"route.top{k}.ids", ids.gather(1, order))
        m.put(f"route.top{k}.weights", weights.gather(1, order))


def make_engram(m):
    d, dim, per_row = 32, 32, 2
    h = m.input("engram.streams", rough_rows(m, 6, STREAMS * d))
    m.weight("engram.table", "engram.embed.weight", "fp8row", 50, dim)
    m.weight("engram.wkv", "engram.wkv.weight", "fp8", (STREAMS + 1) * d, per_row * dim)
    rows = torch.randint(0, 50, (6, per_row), generator=m.rng)
    m.put("engram.rows", rows)
    m.w["engram.q_weight"] = m.input("engram.q_weight", 1 + m.randn(STREAMS, d, scale=0.3))
    m.w["engram.k_weight"] = m.input("engram.k_weight", 1 + m.randn(STREAMS, d, scale=0.3))
    image = torch.tensor([0, 0, 0, 0, 0, 1], dtype=torch.bool)
    m.put("engram.is_image", image)
    for preset, net in m.presets():
        out = net.engram("engram.", h.unflatten(1, (STREAMS, d)), rows, image)
        m.put(f"{preset}.engram.streams", out.flatten(1))
        m.put(f"{preset}.engram.mean", net.r(out.mean(1)))


def main():
    torch.set_num_threads(1)
    m = Maker()
    make_formats(m)
    make_linear(m)
    make_mhc(m)
    make_rope(m)
    caches = make_caches(m)
    make_select(m, caches)
    make_attention(m, caches)
    make_experts(m)
    make_route(m)
    make_engram(m)
    save_file(m.out, sys.argv[1])


if __name__ == "__main__":
    main()
