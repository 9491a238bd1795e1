"""The text backbone: one sequence, any chunking. A forward over a chunk gives the same result as token by token.

    embed -> layer 0 .. n-1 -> head          `Model.forward` runs all; `Model.layer` runs one on given streams

Bounded replay (spec/replay.md, spec/serving.md 2.4) is three numbers of a `Chunk`, in the `mask` form: every row runs
through every layer, and what a compact engine would not compute is made invisible instead. The layers from `boundary`
on (the first of ratio 1) are the consumers.

    visible_from   no layer sees a window key below it        (producers re-run after a prefix hit)
    keep_from      no consumer sees a window key below it     (L - K; logits and features below it mean nothing)
    write_from     compressed rows below it exist already     (the hit H; they are shared, and never written again)
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field

import torch

from . import quant
from .checkpoint import Weights
from .config import Config
from .engram import DEAD, NgramHasher, engram_gate


@dataclass(frozen=True)
class Numerics:
    """Which roundings to emulate. Weights are always the exact values the checkpoint encodes."""

    kv_quant: bool = False  # round trips of the window KV, the compressed KV and the index queries/keys
    act_fp8: bool = False  # FP8 round trip of the input of every FP8 or FP4 matrix product
    wo_a_fp8: bool = False  # the same for wo_a (DeepInfer); the vendor's reference keeps that product in bf16
    bf16: bool = False  # round every materialised activation to bf16
    exact: bool = False  # long sums and exponentials in double, rounded once; otherwise as PyTorch's kernels do them


PRESETS = {
    "fp32": Numerics(),
    "qat": Numerics(kv_quant=True),
    "vendor": Numerics(kv_quant=True, act_fp8=True, bf16=True),
    "deepinfer": Numerics(kv_quant=True, act_fp8=True, wo_a_fp8=True, bf16=True),
}


def rope_inv_freq(cfg: Config, compressed: bool) -> torch.Tensor:
    """Angular frequency of each rotated pair: plain for window-only layers, YaRN for layers with compressed KV."""
    d = cfg.qk_rope_head_dim
    base = cfg.compress_rope_theta if compressed else cfg.rope_theta
    freq = 1.0 / (base ** (torch.arange(0, d, 2, dtype=torch.float32) / d))
    if compressed and cfg.rope_scaling:
        y = cfg.rope_scaling

        def dim_of(turns):
            return d * math.log(y["original_max_position_embeddings"] / (turns * 2 * math.pi)) / (2 * math.log(base))

        low, high = max(math.floor(dim_of(y["beta_fast"])), 0), min(math.ceil(dim_of(y["beta_slow"])), d - 1)
        ramp = ((torch.arange(d // 2, dtype=torch.float32) - low) / max(high - low, 1e-3)).clamp(0, 1)
        freq = freq / y["factor"] * ramp + freq * (1 - ramp)
    return freq


def rotate(x: torch.Tensor, pos: torch.Tensor, freq: torch.Tensor, inverse: bool = False) -> torch.Tensor:
    """Rotate the last 2*len(freq) channels as adjacent pairs. x: [n, d] or [n, heads, d]; pos: [n]."""
    rd = 2 * freq.numel()
    angle = (pos.float()[:, None] * freq.float()).to(freq.dtype)  # an fp32 product, whatever the rest is computed in
    cos, sin = angle.double().cos().to(freq.dtype), angle.double().sin().to(freq.dtype) * (-1 if inverse else 1)
    if x.dim() == 3:
        cos, sin = cos[:, None], sin[:, None]
    a, b = x[..., -rd::2], x[..., -rd + 1 :: 2]
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)
    return torch.cat([x[..., :-rd], turned], dim=-1)


def top_mask(score: torch.Tensor, k: int) -> torch.Tensor:
    """Mask of the k largest entries of each row, -inf never chosen; equal scores: the lower index wins."""
    order = score.sort(dim=-1, descending=True, stable=True).indices[..., :k]
    keep = torch.zeros_like(score, dtype=torch.bool).scatter_(-1, order, True)
    return keep & (score > -math.inf)


def candidate_mask(score: torch.Tensor, visible: torch.Tensor, blocks: int, size: int) -> torch.Tensor:
    """Level one of the two-level selection. score: [n, t], -inf where invisible; visible: [n] entry counts."""
    t = score.shape[-1]
    padded = torch.nn.functional.pad(score, (0, -t % size), value=-math.inf)
    best = padded.unflatten(-1, (-1, size)).amax(-1)
    newest = ((visible - 1) // size)[:, None]
    best = best.masked_fill(torch.arange(best.shape[-1]) == newest, math.inf)  # always keep the newest block
    return top_mask(best, blocks).repeat_interleave(size, -1)[:, :t]


@dataclass
class Cache:
    """Everything one sequence carries between forwards."""

    pos: int = 0
    window: dict = field(default_factory=dict)  # layer -> (positions [k], rotated KV [k, head_dim]), k <= window
    latent: dict = field(default_factory=dict)  # KV source -> rotated compressed KV [entries, head_dim]
    index_k: dict = field(default_factory=dict)  # KV source -> rotated index keys [entries, index_head_dim]
    partial: dict = field(default_factory=dict)  # KV source -> (kv, gate) rows of an unfinished group
    history: list = field(default_factory=list)  # compressed token ids, DEAD inside image spans


class Net:
    """The operations shared by backbone layers and draft stages, in the dtype of the weights."""

    def __init__(self, cfg: Config, w: Weights, numerics: Numerics = Numerics()):
        self.cfg, self.w, self.num = cfg, w, numerics
        self.freq = {flag: rope_inv_freq(cfg, flag).to(w.dtype) for flag in (False, True)}

    def r(self, x):
        return x.bfloat16().to(x.dtype) if self.num.bf16 else x

    # ---- sums and exponentials ----

    def wide(self, x):
        return x.double() if self.num.exact else x

    def exp(self, x):
        return self.wide(x).exp().to(x.dtype)

    def sigmoid(self, x):
        return 1 / (1 + self.exp(-x)) if self.num.exact else torch.sigmoid(x)

    def silu(self, x):
        return x / (1 + self.exp(-x)) if self.num.exact else torch.nn.functional.silu(x)

    def softplus(self, x):
        if not self.num.exact:
            return torch.nn.functional.softplus(x)
        return torch.where(x > 20, x, self.exp(x).double().log1p().to(x.dtype))

    def short_sum(self, x, dim: int):
        """Sum of a few values, in ascending order; keeps the dimension."""
        return functools.reduce(torch.add, x.split(1, dim)) if self.num.exact else x.sum(dim, keepdim=True)

    def softmax(self, x, dim: int):
        if not self.num.exact:
            return x.softmax(dim)
        e = self.exp(x - x.amax(dim, keepdim=True))
        return e / self.short_sum(e, dim)

    def product(self, x, weight):
        """x [n, k] times weight [o, k] transposed"""
        return (self.wide(x) @ self.wide(weight).T).to(x.dtype)

    def einsum(self, equation: str, a, b):
        return torch.einsum(equation, self.wide(a), self.wide(b)).to(a.dtype)

    def inverse_rms(self, x):
        return torch.rsqrt(self.wide(x).square().mean(-1, keepdim=True).to(x.dtype) + self.cfg.rms_norm_eps)

    def embed(self, ids: list[int]):
        """Streams [n, m, d] and fold weights [n, m] that enter the first block."""
        h = self.w.rows("embed.weight", torch.tensor(ids))[:, None].repeat(1, self.cfg.hc_mult, 1)
        pre = h.new_zeros(len(ids), self.cfg.hc_mult)
        pre[:, 0] = 1.0  # the first sublayer reads stream 0 alone
        return h, pre

    def lin(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """x @ W^T for the checkpoint tensor `name`.weight; FP8/FP4 weights see an FP8 input when emulated."""
        name += ".weight"
        if self.num.act_fp8 and name in self.w.quantised:
            x = quant.round_trip_fp8(x)
        return self.r(self.product(x, self.w[name]))

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return self.r(self.w[name + ".weight"] * (x * self.inverse_rms(x)))

    # ---- manifold hyper-connections; streams h: [n, m, d] ----

    def sinkhorn(self, logits: torch.Tensor) -> torch.Tensor:
        """[..., m, m] -> close to doubly stochastic: softmax over columns, then alternate column and row sums."""
        eps = self.cfg.hc_eps

        def divide(c, dim):
            return c / (self.short_sum(c, dim) + eps)

        c = divide(self.softmax(logits, -1) + eps, -2)
        for _ in range(self.cfg.hc_sinkhorn_iters - 1):
            c = divide(divide(c, -1), -2)
        return c

    def hc_mixes(self, p: str, h: torch.Tensor):
        """(pre [n, m], post [n, m], comb [n, m, m]) of the site `p` from the streams themselves."""
        m, flat = self.cfg.hc_mult, h.flatten(1)
        mix = self.product(flat, self.w[p + "_fn"]) * self.inverse_rms(flat)
        scale, base = self.w[p + "_scale"], self.w[p + "_base"]
        pre = self.sigmoid(mix[:, :m] * scale[0] + base[:m]) + self.cfg.hc_eps
        post = 2 * self.sigmoid(mix[:, m : 2 * m] * scale[1] + base[m : 2 * m])
        comb = (mix[:, 2 * m :] * scale[2] + base[2 * m :]).unflatten(-1, (m, m))
        return pre, post, self.sinkhorn(comb)

    def fold(self, h: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
        return self.r((self.wide(pre)[..., None] * self.wide(h)).sum(1).to(h.dtype))

    def unfold(self, y, h, post, comb) -> torch.Tensor:
        """new[j] = post[j] * y + sum_i comb[i, j] * h[i]"""
        mixed = torch.einsum("nij,nid->njd", self.wide(comb), self.wide(h))
        return self.r((self.wide(post)[..., None] * self.wide(y)[:, None] + mixed).to(h.dtype))

    def block(self, p: str, h: torch.Tensor, pre: torch.Tensor, attention, image_mask=None, draft=False, trace=None):
        """One layer. `pre` comes from the previous sublayer; the fold weights computed here serve the next one."""
        next_pre, post, comb = self.hc_mixes(p + "hc_attn", h)
        x = self.norm(p + "attn_norm", self.fold(h, pre))
        y = attention(x)
        h = self.unfold(y, h, post, comb)
        pre, post, comb = self.hc_mixes(p + "hc_ffn", h)
        u = self.norm(p + "ffn_norm", self.fold(h, next_pre))
        z = self.moe(p + "ffn.", u, image_mask, draft)
        if trace is not None:
            trace.update({p + "attn_in": x, p + "attn_out": y, p + "streams_mid": h, p + "ffn_in": u, p + "ffn_out": z})
        return self.unfold(z, h, post, comb), pre

    # ---- experts ----

    def expert(self, p: str, x: torch.Tensor, weight=None) -> torch.Tensor:
        lim = self.cfg.swiglu_limit
        gate, up = self.lin(p + "w1", x), self.lin(p + "w3", x)
        if lim > 0:
            gate, up = gate.clamp(max=lim), up.clamp(-lim, lim)
        a = self.silu(gate) * up
        return self.lin(p + "w2", self.r(a if weight is None else weight * a))

    def route(self, p: str, x: torch.Tensor, image_mask, draft: bool):
        """(expert ids [n, k], weights [n, k])"""
        logits = self.product(x, self.w[p + "gate.weight"])
        score = self.softplus(logits / self.cfg.gate_temp).sqrt()
        bias = self.w[p + "gate.bias"]
        if image_mask is not None:
            bias = torch.where(image_mask[:, None], self.w[p + "gate.bias_vl"], bias)
        k = self.cfg.moe_shape(draft)[1]
        ids = (score + bias).sort(dim=-1, descending=True, stable=True).indices[:, :k]
        weight = score.gather(1, ids)  # the bias only steers the choice
        if self.cfg.norm_topk_prob and k > 1:
            weight = weight / (self.wide(weight).sum(-1, keepdim=True).to(weight.dtype) + 1e-20)
        return ids, weight * self.cfg.routed_scaling_factor

    def moe(self, p: str, x: torch.Tensor, image_mask=None, draft=False) -> torch.Tensor:
        ids, weight = self.route(p, x, image_mask, draft)
        y = torch.zeros_like(x)
        for e in ids.unique().tolist():
            row, slot = torch.where(ids == e)
            y[row] += self.expert(f"{p}experts.{e}.", x[row], weight[row, slot, None])
        return self.r(y + self.expert(p + "shared_experts.", x))

    # ---- attention pieces ----

    def queries(self, p: str, x, pos, freq):
        """(query latent [n, q_lora_rank], rotated heads [n, heads, head_dim]); there is no per-head query norm."""
        latent = self.norm(p + "q_norm", self.lin(p + "wq_a", x))
        q = self.lin(p + "wq_b", latent).unflatten(-1, (-1, self.cfg.head_dim))
        return latent, self.r(rotate(q, pos, freq))

    def window_kv(self, p: str, x, pos, freq):
        kv = self.r(rotate(self.norm(p + "kv_norm", self.lin(p + "wkv", x)), pos, freq))
        return self.r(quant.round_trip_fp8(kv)) if self.num.kv_quant else kv

    def attend(self, p: str, q, keys, mask):
        """Keys double as values. The learned sink adds exp(sink) to the denominator and nothing to the sum."""
        s = self.einsum("nhd,td->nht", q, keys) * self.cfg.head_dim**-0.5
        s = s.masked_fill(~mask[:, None], -math.inf)
        top = s.amax(-1, keepdim=True).clamp_min(-1e30)
        e = self.exp(s - top)
        total = self.wide(e).sum(-1, keepdim=True).to(e.dtype) + self.exp(self.w[p + "attn_sink"][:, None] - top)
        return self.r(self.einsum("nht,td->nhd", self.r(e), keys) / total)

    def output(self, p: str, o, pos, freq):
        """Undo the query rotation on the values, then the grouped low-rank projection."""
        g = self.cfg.o_groups
        o = self.r(rotate(o, pos, freq, inverse=True)).flatten(1).unflatten(-1, (g, -1))
        if self.num.wo_a_fp8:
            o = quant.round_trip_fp8(o)
        wo_a = self.w[p + "wo_a.weight"].unflatten(0, (g, -1))
        return self.lin(p + "wo_b", self.r(self.einsum("ngd,grd->ngr", o, wo_a).flatten(1)))


@dataclass
class Chunk:
    """What every layer of one forward knows about its rows. The last three are described at the top of this file."""

    pos: torch.Tensor  # [n] positions
    image_mask: torch.Tensor | None = None  # [n] bool: rows of an image span
    engram_rows: torch.Tensor | None = None  # [engram layers, n, (n-gram sizes) * heads]
    shared: dict = field(default_factory=dict)  # what index sources hand down: "chosen", "candidates" [n, entries]
    trace: dict | None = None
    visible_from: int = 0
    keep_from: int = 0
    write_from: int = 0


class Model(Net):
    def __init__(self, cfg, w, numerics=Numerics(), token_map=None):
        super().__init__(cfg, w, numerics)
        self.hasher = NgramHasher(cfg, token_map) if cfg.engram_layer_ids else None

    def compressed_ids(self, ids: list[int], image_mask=None) -> list[int]:
        """The n-gram history that `ids` stand for; empty without Engram."""
        if not self.hasher:
            return []
        dead = image_mask.tolist() if image_mask is not None else [False] * len(ids)
        return [DEAD if d else self.hasher.token_map[t] for t, d in zip(ids, dead, strict=True)]

    def begin(self, ids: list[int], cache: Cache, image_mask=None, trace=None, **floors) -> Chunk:
        """The chunk of the next len(ids) positions of `cache`, whose n-gram history it extends."""
        chunk = Chunk(torch.arange(cache.pos, cache.pos + len(ids)), image_mask, trace=trace, **floors)
        if self.hasher:
            known = len(cache.history)
            cache.history += self.compressed_ids(ids, image_mask)
            chunk.engram_rows = self.hasher.rows(cache.history, known)
        cache.pos += len(ids)
        return chunk

    def forward(self, ids: list[int], cache: Cache, image_mask=None, trace: dict | None = None, **floors):
        """Logits [n, vocab] of every position of the chunk, and the draft features [n, targets * d].

        `floors`: visible_from, keep_from, write_from of the chunk."""
        chunk = self.begin(ids, cache, image_mask, trace, **floors)
        h, pre = self.embed(ids)
        features = []
        for i in range(self.cfg.num_hidden_layers):
            h, pre, feature = self.layer(i, h, pre, chunk, cache)
            if feature is not None:
                features.append(feature)
        if trace is not None and self.hasher:
            trace["engram_rows"] = chunk.engram_rows
        return self.head(h, pre, trace), torch.cat(features, -1) if features else None

    def layer(self, i: int, h, pre, chunk: Chunk, cache: Cache):
        """Layer i on its input streams: (streams [n, m, d], fold weights [n, m], draft feature [n, d] or None)."""
        cfg, p = self.cfg, f"layers.{i}."
        if i in cfg.engram_layer_ids:
            rows = chunk.engram_rows[cfg.engram_layer_ids.index(i)]
            h = self.engram(p + "engram.", h, rows, chunk.image_mask)
        feature = self.r(self.short_sum(h, 1).squeeze(1) / cfg.hc_mult) if i in cfg.dspark_target_layer_ids else None
        h, pre = self.block(
            p, h, pre, lambda x: self.attention(i, x, chunk, cache), chunk.image_mask, trace=chunk.trace
        )
        if chunk.trace is not None:
            chunk.trace[p + "streams"], chunk.trace[p + "pre"] = h, pre
        return h, pre, feature

    def head(self, h, pre, trace=None) -> torch.Tensor:
        """Logits [n, vocab] from the last streams."""
        x = self.norm("norm", self.fold(h, pre))
        if trace is not None:
            trace["final"] = x
        return self.product(x, self.w["head.weight"])

    def engram(self, p: str, h, rows, image_mask):
        kv = self.lin(p + "wkv", self.r(self.w.rows(p + "embed.weight", rows).flatten(1)))
        out = self.r(engram_gate(self, h, kv, self.w[p + "q_weight"] * self.w[p + "k_weight"]))
        return out if image_mask is None else torch.where(image_mask[:, None, None], h, out)

    def attention(self, i: int, x, chunk: Chunk, cache: Cache):
        cfg, p, ratio, pos = self.cfg, f"layers.{i}.attn.", self.cfg.compress_ratios[i], chunk.pos
        freq = self.freq[ratio > 0]
        latent, q = self.queries(p, x, pos, freq)
        old_pos, old_kv = cache.window.get(i, (pos[:0], x.new_zeros(0, cfg.head_dim)))
        key_pos, keys = torch.cat([old_pos, pos]), torch.cat([old_kv, self.window_kv(p, x, pos, freq)])
        consumer = cfg.boundary is not None and i >= cfg.boundary
        real = key_pos >= max(chunk.visible_from, chunk.keep_from if consumer else 0)
        key_pos, keys = key_pos[real], keys[real]
        cache.window[i] = (key_pos[-cfg.sliding_window :], keys[-cfg.sliding_window :])
        age = pos[:, None] - key_pos
        mask = (age >= 0) & (age < cfg.sliding_window)
        if ratio:
            if i in cfg.kv_source_layer_ids:
                self.compress(i, x[pos >= chunk.write_from], cache)
            if i in cfg.index_source_layer_ids:
                chunk.shared["chosen"] = self.select(i, x, latent, chunk, cache)
            keys = torch.cat([keys, cache.latent[cfg.kv_source(i)]])
            mask = torch.cat([mask, chunk.shared["chosen"]], -1)
        return self.output(p, self.attend(p, q, keys, mask), pos, freq)

    def compress(self, i: int, x, cache: Cache):
        """Extend the compressed KV and the index keys of source layer i by the groups this chunk completes."""
        cfg, p, ratio = self.cfg, f"layers.{i}.attn.", self.cfg.compress_ratios[i]
        if i not in cache.latent:
            cache.latent[i] = x.new_zeros(0, cfg.head_dim)
            cache.index_k[i] = x.new_zeros(0, cfg.index_head_dim)
        first = len(cache.latent[i])
        if ratio == 1:
            c = self.lin(p + "compressor.wkv", x)
        else:  # pool each finished group with a softmax over its tokens, separately in every channel
            kv, gate = (self.product(x, self.w[f"{p}compressor.{n}.weight"]) for n in ("wkv", "wgate"))
            if i in cache.partial:
                kv, gate = torch.cat([cache.partial[i][0], kv]), torch.cat([cache.partial[i][1], gate])
            whole = len(kv) // ratio * ratio
            cache.partial[i] = (kv[whole:], gate[whole:])
            kv, gate = kv[:whole].unflatten(0, (-1, ratio)), gate[:whole].unflatten(0, (-1, ratio))
            c = self.r(self.short_sum(kv * self.softmax(gate, 1), 1).squeeze(1))
        c = self.norm(p + "compressor.norm", c)
        pos = (first + torch.arange(len(c))) * ratio  # a group takes the position of its first token
        k = self.norm(p + "indexer.k_norm", self.lin(p + "indexer.wk", c))  # from the latent before rotation
        k, c = (self.r(rotate(t, pos, self.freq[True])) for t in (k, c))
        if self.num.kv_quant:
            k, c = self.r(quant.round_trip_fp4_e8m0(k)), self.r(quant.round_trip_fp4_e4m3(c))
        cache.latent[i] = torch.cat([cache.latent[i], c])
        cache.index_k[i] = torch.cat([cache.index_k[i], k])

    def select(self, i: int, x, latent, chunk: Chunk, cache: Cache):
        """Mask [n, entries] of the compressed positions each query attends to."""
        cfg, p, ratio = self.cfg, f"layers.{i}.attn.indexer.", self.cfg.compress_ratios[i]
        pos, shared, trace = chunk.pos, chunk.shared, chunk.trace
        keys = cache.index_k[cfg.kv_source(i)]
        q = self.lin(p + "wq_b", latent).unflatten(-1, (cfg.index_n_heads, -1))
        q = self.r(rotate(q, pos, self.freq[True]))
        if self.num.kv_quant:
            q = self.r(quant.round_trip_fp4_e8m0(q))
        head = self.r(self.lin(p + "weights_proj", x) * (cfg.index_head_dim * cfg.index_n_heads) ** -0.5)
        s = self.r(self.einsum("nhd,td->nht", q, keys)).relu()
        score = self.r(self.wide(self.r(s * head[..., None])).sum(1).to(s.dtype))
        visible = (pos + 1) // ratio  # a group is visible once its last token is at or before the query
        score = score.masked_fill(torch.arange(len(keys)) >= visible[:, None], -math.inf)
        if i == cfg.candidate_source_layer_id:
            shared["candidates"] = candidate_mask(score, visible, cfg.candidate_topk_blocks, cfg.candidate_block_size)
        elif 0 <= cfg.candidate_source_layer_id < i:
            score = score.masked_fill(~shared["candidates"], -math.inf)
        chosen = top_mask(score, cfg.index_topk)
        if trace is not None:
            trace[f"layers.{i}.index_score"], trace[f"layers.{i}.chosen"] = score, chosen
            if i == cfg.candidate_source_layer_id:
                trace[f"layers.{i}.candidates"] = shared["candidates"]
        return chosen
