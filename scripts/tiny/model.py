"""The V4.1 architecture as a trainable torch program, for tiny dimensions.

Parameters carry the tensor names of the released checkpoint (routed experts of
a layer stacked in one tensor).  One forward handles a batch of packed rows:
`doc` numbers the document each token belongs to, nothing crosses a document.

What makes it fast on one GPU without own kernels: the sliding window is
computed on blocks of `window` queries against two blocks of keys, compressed
keys are masked rather than gathered, and all experts are evaluated as two wide
matrix products whose unselected columns are zeroed (16 small experts cost less
than a dispatch).

The indexer gets no gradient from the language loss (a hard top-k stands in
between).  It is trained on its own: its softmax over all visible compressed
positions follows the mass that the layers of its group would put there if
they attended to everything.  The scores that choose the candidates follow the
later groups too, since these can select only what the candidates hold.

`segment` cuts documents for the layers from the boundary on, as a prompt
prefill with a bounded replay does: their windows never cross a cut.
"""

from __future__ import annotations

import math

import numpy as np
import quant
import torch
import torch.nn.functional as F
from torch import nn

# --- configuration ------------------------------------------------------------------------------


def tiny_config(
    vocab: int = 3072, image_token: int = 3056, noise_token: int = 3005, compressed_vocab: int = 3072
) -> dict:
    """config.json of the embedded model: the released keys, small numbers."""
    engram_ids, heads, rows = [1, 3], 2, 1000
    text = dict(
        model_type="deepseek_v41_text",
        vocab_size=vocab,
        hidden_size=256,
        moe_intermediate_size=128,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=1,
        head_dim=128,
        qk_rope_head_dim=32,
        q_lora_rank=128,
        o_lora_rank=64,
        o_groups=2,
        hidden_act="silu",
        swiglu_limit=10.0,
        rms_norm_eps=1e-20,
        attention_bias=False,
        attention_dropout=0.0,
        initializer_range=0.02,
        use_cache=True,
        tie_word_embeddings=False,
        max_position_embeddings=65536,
        rope_theta=10000.0,
        rope_scaling=dict(
            rope_type="yarn", factor=16, beta_fast=32, beta_slow=1, original_max_position_embeddings=4096
        ),
        n_routed_experts=16,
        n_shared_experts=1,
        num_experts_per_tok=3,
        scoring_func="sqrtsoftplus",
        topk_method="noaux_tc",
        norm_topk_prob=True,
        routed_scaling_factor=1.5,
        sliding_window=128,
        compress_ratios=[0, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0],
        compress_rope_theta=160000.0,
        kv_source_layer_ids=[1, 3, 4],
        index_source_layer_ids=[1, 3, 4, 6],
        index_n_heads=8,
        index_head_dim=64,
        index_topk=64,
        candidate_source_layer_id=4,
        candidate_topk_blocks=16,
        candidate_block_size=8,
        hc_mult=4,
        hc_sinkhorn_iters=20,
        hc_eps=1e-6,
        engram_layer_ids=engram_ids,
        engram_num_embeddings=[],
        engram_max_ngram_size=4,
        engram_vocab_size=rows,
        engram_n_heads=heads,
        engram_head_dim=32,
        engram_pad_token_id=2,
        engram_compressed_vocab_size=compressed_vocab,
        num_nextn_predict_layers=3,
        dspark_block_size=5,
        dspark_noise_token_id=noise_token,
        dspark_target_layer_ids=[5, 6, 7],
        dspark_markov_rank=32,
        dspark_n_routed_experts=8,
        dspark_num_experts_per_tok=2,
        dtype="bfloat16",
        pad_token_id=2,
        bos_token_id=0,
        eos_token_id=1,
    )
    primes = engram_primes(text)
    text["engram_num_embeddings"] = [int(p.sum()) for p in primes]
    return wrap(text, image_token)


def shrunk(config: dict) -> dict:
    """The same structure with toy sizes, for tests on a CPU."""
    text = dict(
        config["text_config"],
        hidden_size=64,
        moe_intermediate_size=32,
        num_attention_heads=4,
        head_dim=32,
        qk_rope_head_dim=16,
        q_lora_rank=32,
        o_lora_rank=32,
        n_routed_experts=4,
        num_experts_per_tok=2,
        sliding_window=32,
        index_n_heads=2,
        index_head_dim=32,
        index_topk=16,
        candidate_topk_blocks=4,
        candidate_block_size=4,
        engram_vocab_size=300,
        dspark_n_routed_experts=4,
    )
    text["engram_num_embeddings"] = [int(p.sum()) for p in engram_primes(text)]
    return dict(config, text_config=text)


def wrap(text: dict, image_token: int) -> dict:
    return dict(
        architectures=["DeepseekV41ForCausalLM"],
        model_type="deepseek_v41",
        dtype="bfloat16",
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        image_token_id=image_token,
        tie_word_embeddings=False,
        tokenizer_compatibility="native",
        quantization_config=dict(
            quant_method="fp8",
            fmt="e4m3",
            activation_scheme="dynamic",
            weight_block_size=[32, 32],
            scale_fmt="ue8m0",
            expert_dtype="fp4",
        ),
        text_config=text,
        vision_config=dict(
            model_type="deepseek_v41_vision",
            num_hidden_layers=0,
            hidden_size=64,
            num_attention_heads=4,
            intermediate_size=128,
            patch_size=14,
            rope_theta=10000.0,
            downsample_ratio=3,
            max_image_tokens=64,
            min_pixels=1764,
        ),
    )


# --- n-gram hashing --------------------------------------------------------------------------------


def is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))


def engram_primes(text: dict) -> np.ndarray:
    """[layer, order, head]: all different, handed out upwards from the vocabulary size for every order anew."""
    seen, out = set(), []
    for _ in text["engram_layer_ids"]:
        layer = []
        for _ in range(text["engram_max_ngram_size"] - 1):
            n, heads = text["engram_vocab_size"] - 1, []
            while len(heads) < text["engram_n_heads"]:
                n += 1
                if is_prime(n) and n not in seen:
                    seen.add(n)
                    heads.append(n)
            layer.append(heads)
        out.append(layer)
    return np.array(out, dtype=np.int64)


def engram_multipliers(text: dict) -> np.ndarray:
    """[layer, look-back]: odd numbers from a per-layer generator, bounded against overflow."""
    bound = max(1, (np.iinfo(np.int64).max // text["engram_compressed_vocab_size"]) // 2)
    rows = [
        np.random.default_rng(10007 * layer).integers(0, bound, size=text["engram_max_ngram_size"], dtype=np.int64) * 2
        + 1
        for layer in text["engram_layer_ids"]
    ]
    return np.stack(rows)


def compressed_tokens(tokenizer) -> tuple[list[int], int]:
    """Token id -> id of its normalized text (case, accents and spaces fold together), and how many there are."""
    from tokenizers import Regex
    from tokenizers import normalizers as n

    mark = "\ue000"
    fold = n.Sequence(
        [
            n.NFKC(),
            n.NFD(),
            n.StripAccents(),
            n.Lowercase(),
            n.Replace(Regex(r"[ \t\r\n]+"), " "),
            n.Replace(Regex(r"^ $"), mark),
            n.Strip(),
            n.Replace(mark, " "),
        ]
    )
    ids: dict[str, int] = {}
    table = []
    for i in range(tokenizer.get_vocab_size()):
        text = tokenizer.decode([i], skip_special_tokens=False)
        key = tokenizer.id_to_token(i) if "\ufffd" in text else (fold.normalize_str(text) or text)
        table.append(ids.setdefault(key, len(ids)))
    return table, len(ids)


# --- small pieces ----------------------------------------------------------------------------------


def rmsnorm(x, weight, eps):
    v = x.float()
    return (v * torch.rsqrt(v.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


def rope_angles(text: dict, positions, compressed: bool):
    """[..., pairs] phases; layers with compressed keys use the long-context base and its YaRN ramp."""
    dim = text["qk_rope_head_dim"]
    theta = text["compress_rope_theta"] if compressed else text["rope_theta"]
    freq = 1.0 / theta ** (torch.arange(0, dim, 2, device=positions.device, dtype=torch.float32) / dim)
    scaling = text.get("rope_scaling")
    if compressed and scaling:

        def correction(rotations):
            return (
                dim
                * math.log(scaling["original_max_position_embeddings"] / (rotations * 2 * math.pi))
                / (2 * math.log(theta))
            )

        low, high = (
            max(math.floor(correction(scaling["beta_fast"])), 0),
            min(math.ceil(correction(scaling["beta_slow"])), dim - 1),
        )
        ramp = (
            (torch.arange(dim // 2, device=positions.device, dtype=torch.float32) - low) / max(high - low, 1e-3)
        ).clamp(0, 1)
        freq = freq / scaling["factor"] * ramp + freq * (1 - ramp)
    return positions.float().unsqueeze(-1) * freq


def rope(x, angles, inverse=False):
    """Rotate neighbouring pairs of the last channels; angles broadcast over the axes between."""
    n = angles.shape[-1] * 2
    pairs = x[..., -n:].float().unflatten(-1, (-1, 2))
    cos, sin = angles.cos(), angles.sin()
    if inverse:
        sin = -sin
    a, b = pairs[..., 0], pairs[..., 1]
    turned = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    return torch.cat((x[..., :-n], turned.to(x.dtype)), -1)


def softmax_forward(near, far, near_mask, far_mask, sink, scale: float):
    """Softmax over two groups of logits [B, T, H, *] and a sink of each head; masks are [B, T, *]."""
    a = (near.float() * scale).masked_fill(~near_mask.unsqueeze(2), -1e30)
    b = (far.float() * scale).masked_fill(~far_mask.unsqueeze(2), -1e30)
    top = torch.maximum(a.amax(-1, keepdim=True), sink.view(1, 1, -1, 1))
    if b.shape[-1]:
        top = torch.maximum(top, b.amax(-1, keepdim=True))
    a, b, s = (a - top).exp(), (b - top).exp(), (sink.view(1, 1, -1, 1) - top).exp()
    total = a.sum(-1, keepdim=True) + b.sum(-1, keepdim=True) + s
    return (a / total).to(near.dtype), (b / total).to(near.dtype), s / total


def softmax_backward(pa, pb, ps, ga, gb, scale: float):
    dot = (ga.float() * pa.float()).sum(-1, keepdim=True) + (gb.float() * pb.float()).sum(-1, keepdim=True)
    return (
        (pa.float() * (ga.float() - dot) * scale).to(pa.dtype),
        (pb.float() * (gb.float() - dot) * scale).to(pb.dtype),
        -(ps * dot).sum((0, 1, 3)),
    )


class SinkSoftmax(torch.autograd.Function):
    """Keeps only the rounded probabilities, which the following products keep anyway."""

    @staticmethod
    def forward(ctx, near, far, near_mask, far_mask, sink, scale):
        pa, pb, ps = softmax_forward(near, far, near_mask, far_mask, sink, scale)
        ctx.save_for_backward(pa, pb, ps)
        ctx.scale = scale
        return pa, pb

    @staticmethod
    def backward(ctx, ga, gb):
        da, db, ds = softmax_backward(*ctx.saved_tensors, ga, gb, ctx.scale)
        return da, db, None, None, ds, None


def far_mass(near, far, near_mask, visible, sink, scale: float):
    """Mass of all heads on every compressed position [B, T, S] when all visible ones are attended."""
    return softmax_forward(near, far, near_mask, visible, sink, scale)[1].sum(2, dtype=torch.float32)


def index_kl(scores, mass, visible, weight):
    """Weighted mean of KL(mass | softmax(scores)) over rows, and its gradient."""
    total = mass.sum(-1, keepdim=True)
    target = mass / total.clamp_min(1e-6)
    s = scores.float().masked_fill(~visible, -1e30)
    top = s.amax(-1, keepdim=True)
    e = (s - top).exp() * visible
    norm = e.sum(-1, keepdim=True).clamp_min(1e-30)
    logp = s - top - norm.log()
    kl = torch.where(target > 0, target * (target.clamp_min(1e-20).log() - logp), 0.0).sum(-1)
    share = weight * total.squeeze(-1)  # rows whose heads put little mass there have little to teach
    share = share / share.sum().clamp_min(1e-6)
    return (kl * share).sum(), ((e / norm - target) * share.unsqueeze(-1)).to(torch.bfloat16)


class IndexLoss(torch.autograd.Function):
    """Keeps the gradient instead of what it is made from."""

    @staticmethod
    def forward(ctx, scores, mass, visible, weight):
        loss, grad = index_kl(scores, mass, visible, weight)
        ctx.save_for_backward(grad)
        return loss

    @staticmethod
    def backward(ctx, g):
        (grad,) = ctx.saved_tensors
        return grad.float() * g, None, None, None


def hc_mix(h, fn, base, scale, eps, hc_eps, iters):
    """Coefficients of one sublayer from all streams: read, write, and a doubly stochastic carry."""
    m = h.shape[-2]
    flat = h.flatten(-2).float()
    mixes = F.linear(flat, fn) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + eps)
    return hc_split(mixes, base, scale, hc_eps, iters, m)


class Sinkhorn(torch.autograd.Function):
    """Softmax over columns, then alternating column and row normalization.

    The backward of y = x / (sum(x) + eps) is (g - sum(g * y)) / (sum(x) + eps): written by
    hand it needs a third of the kernels that recording every operation would.
    """

    @staticmethod
    def forward(ctx, logits, iters, eps):
        prob = logits.softmax(-1)
        c = prob + eps
        trail = []
        for step in range(2 * iters - 1):
            d = c.sum(-1 if step % 2 else -2, keepdim=True) + eps
            c = c / d
            trail += [c, d]
        ctx.save_for_backward(prob, *trail)
        return c

    @staticmethod
    def backward(ctx, grad):
        prob, *trail = ctx.saved_tensors
        for step in reversed(range(len(trail) // 2)):
            c, d = trail[2 * step : 2 * step + 2]
            grad = (grad - (grad * c).sum(-1 if step % 2 else -2, keepdim=True)) / d
        return prob * (grad - (grad * prob).sum(-1, keepdim=True)), None, None


def hc_split(mixes, base, scale, hc_eps: float, iters: int, m: int):
    pre = torch.sigmoid(mixes[..., :m] * scale[0] + base[:m]) + hc_eps
    post = 2 * torch.sigmoid(mixes[..., m : 2 * m] * scale[1] + base[m : 2 * m])
    comb = Sinkhorn.apply((mixes[..., 2 * m :] * scale[2] + base[2 * m :]).unflatten(-1, (m, m)), iters, hc_eps)
    return pre, post, comb


def hc_read(h, pre):
    return (pre.unsqueeze(-1) * h.float()).sum(-2).to(h.dtype)


def hc_write(y, h, post, comb):
    """streams[o] = post[o] * y + sum_i comb[i, o] * streams[i]"""
    out = post.unsqueeze(-1) * y.float().unsqueeze(-2)
    for i in range(h.shape[-2]):  # a few fused multiply-adds beat one batched product of 4x4 matrices
        out = out + comb[..., i, :].unsqueeze(-1) * h[..., i, :].float().unsqueeze(-2)
    return out.to(h.dtype)


def engram_write(h, kv, q_weight, k_weight, eps):
    m, d = h.shape[-2:]
    key, value = kv.split([m * d, d], -1)
    key, v = key.float().unflatten(-1, (m, d)), h.float()
    norm = torch.rsqrt(v.square().mean(-1) + eps) * torch.rsqrt(key.square().mean(-1) + eps)
    dot = (v * (q_weight.float() * k_weight.float()) * key).sum(-1) * norm * d**-0.5
    gate = torch.sigmoid(torch.copysign(dot.abs().clamp_min(1e-6).sqrt(), dot))
    return (v + gate.unsqueeze(-1) * value.float().unsqueeze(-2)).to(h.dtype)


COMPILED = (
    "rmsnorm",
    "hc_read",
    "hc_write",
    "engram_write",
    "rope",
    "softmax_forward",
    "softmax_backward",
    "far_mass",
    "index_kl",
)


def use_triton_sinkhorn(device) -> bool:
    """Take the Triton version where it runs and agrees."""
    global Sinkhorn
    try:
        from sinkhorn_triton import Sinkhorn as Fast

        x = torch.randn(100, 4, 4, device=device, requires_grad=True)
        g = torch.randn(100, 4, 4, device=device)
        results = []
        for version in (Sinkhorn, Fast):
            y = version.apply(x, 20, 1e-6)
            results.append((y.detach(), torch.autograd.grad(y, x, g)[0]))
        ok = all(torch.allclose(a, b, atol=1e-5, rtol=1e-4) for a, b in zip(*results, strict=False))
        if ok:
            Sinkhorn = Fast
        return ok
    except Exception as error:  # noqa: BLE001
        print(f"the Triton Sinkhorn is not usable ({type(error).__name__}: {str(error)[:200]})")
        return False


def compile_pieces(device) -> bool:
    """Fuse the element-wise pieces; stay with plain torch when the compiler is not usable here."""
    here = globals()
    places = [(here, n) for n in COMPILED] + [
        (vars(quant), n) for n in ("_fp8_rows_value", "_fp4_rows_value", "_nvfp4_value")
    ]
    saved = [space[name] for space, name in places]
    try:
        torch._dynamo.config.suppress_errors = True  # a piece that does not compile runs as it is
        torch._dynamo.config.recompile_limit = 64
        for (space, name), plain in zip(places, saved, strict=False):
            space[name] = torch.compile(plain)
        x = torch.randn(8, 64, device=device, dtype=torch.bfloat16, requires_grad=True)
        rmsnorm(x, torch.ones(64, device=device), 1e-6).sum().backward()
        quant.fake_fp8_rows(x).sum().backward()
        return True
    except Exception as error:  # noqa: BLE001
        print(f"torch.compile is not usable ({type(error).__name__}: {str(error)[:200]}); going on without it")
        for (space, name), plain in zip(places, saved, strict=False):
            space[name] = plain
        return False


# --- the model ----------------------------------------------------------------------------------------


class Tiny(nn.Module):
    """All parameters in a flat dict under their checkpoint names."""

    def __init__(self, config: dict, token_map: list[int], seed: int = 0) -> None:
        super().__init__()
        self.config, self.text = config, config["text_config"]
        self.boundary = self.text["compress_ratios"].index(1)  # later layers read this one's compressed keys
        self.p = nn.ParameterDict()
        self.bias: dict[str, torch.Tensor] = {}
        self.fake_weights = False  # round weights to the checkpoint's formats in the forward
        self.fake_acts = False  # round activations of quantized linears to FP8 groups of 32
        self.fake_cache = False  # round KV and indexer vectors as the caches do
        self.sparse = False  # use the indexer's selection (False: all visible compressed positions)
        self.stable = False  # equal index scores: the lower position wins (slower; what inference promises)
        self._weights: dict[str, torch.Tensor] = {}
        t = self.text
        primes = engram_primes(t).reshape(len(t["engram_layer_ids"]), -1)
        self.register_buffer("primes", torch.from_numpy(primes), persistent=False)
        self.register_buffer("offsets", torch.from_numpy(np.cumsum(primes, 1) - primes), persistent=False)
        self.register_buffer("multipliers", torch.from_numpy(engram_multipliers(t)), persistent=False)
        self.register_buffer("token_map", torch.tensor(token_map, dtype=torch.int64), persistent=False)
        self._init(torch.Generator().manual_seed(seed))
        self.names = [k.replace("/", ".") for k in self.p]

    # names and shapes

    def _init(self, g: torch.Generator) -> None:
        t = self.text
        d, hd, heads, ql = t["hidden_size"], t["head_dim"], t["num_attention_heads"], t["q_lora_rank"]
        m = t["hc_mult"]

        def mat(name, *shape, std=None):
            std = std if std is not None else 0.6 / math.sqrt(shape[-1])
            self.add(name, torch.randn(*shape, generator=g) * std)

        def ones(name, n):
            self.add(name, torch.ones(n))

        def block(prefix, index, experts, draft):
            ratio = 0 if draft else t["compress_ratios"][index]
            a = prefix + "attn."
            mat(a + "wq_a.weight", ql, d)
            ones(a + "q_norm.weight", ql)
            mat(a + "wq_b.weight", heads * hd, ql)
            mat(a + "wkv.weight", hd, d)
            ones(a + "kv_norm.weight", hd)
            mat(a + "wo_a.weight", t["o_groups"] * t["o_lora_rank"], heads * hd // t["o_groups"])
            mat(
                a + "wo_b.weight",
                d,
                t["o_groups"] * t["o_lora_rank"],
                std=0.3 / math.sqrt(t["o_groups"] * t["o_lora_rank"]),
            )
            self.add(a + "attn_sink", torch.zeros(heads))
            if not draft and index in t["kv_source_layer_ids"]:
                mat(a + "compressor.wkv.weight", hd, d)
                ones(a + "compressor.norm.weight", hd)
                if ratio > 1:
                    mat(a + "compressor.wgate.weight", hd, d, std=0.1 / math.sqrt(d))
            if not draft and index in t["index_source_layer_ids"]:
                ih, idim = t["index_n_heads"], t["index_head_dim"]
                mat(a + "indexer.wq_b.weight", ih * idim, ql)
                mat(a + "indexer.weights_proj.weight", ih, d)
                if index in t["kv_source_layer_ids"]:
                    mat(a + "indexer.wk.weight", idim, hd)
                    ones(a + "indexer.k_norm.weight", idim)
            if not draft and index in t["engram_layer_ids"]:
                where = t["engram_layer_ids"].index(index)
                cols = (t["engram_max_ngram_size"] - 1) * t["engram_n_heads"]
                mat(prefix + "engram.embed.weight", t["engram_num_embeddings"][where], t["engram_head_dim"], std=0.5)
                mat(
                    prefix + "engram.wkv.weight",
                    (m + 1) * d,
                    cols * t["engram_head_dim"],
                    std=0.3 / math.sqrt(cols * t["engram_head_dim"]),
                )
                self.add(prefix + "engram.q_weight", torch.ones(m, d))
                self.add(prefix + "engram.k_weight", torch.ones(m, d))
            ones(prefix + "attn_norm.weight", d)
            ones(prefix + "ffn_norm.weight", d)
            f = t["moe_intermediate_size"]
            mat(prefix + "ffn.gate.weight", experts, d)
            self.bias[prefix + "ffn.gate.bias"] = torch.zeros(experts)
            for w, shape in (("w1", (f, d)), ("w3", (f, d)), ("w2", (d, f))):
                std = 0.3 / math.sqrt(f) if w == "w2" else None
                mat(prefix + f"ffn.experts.{w}", experts, *shape, std=std)
                mat(prefix + f"ffn.shared_experts.{w}.weight", *shape, std=std)
            for site in ("attn", "ffn"):
                mat(prefix + f"hc_{site}_fn", (2 + m) * m, m * d, std=1 / math.sqrt(m * d))
                base = torch.cat(
                    (
                        torch.full((m,), -1.1) + 0.5 * torch.randn(m, generator=g),
                        0.5 * torch.randn(m, generator=g),
                        (torch.eye(m) * 4 - 2 + 0.2 * torch.randn(m, m, generator=g)).flatten(),
                    )
                )
                self.add(prefix + f"hc_{site}_base", base)
                self.add(prefix + f"hc_{site}_scale", torch.full((3,), 0.2))

        mat("embed.weight", t["vocab_size"], d, std=1.0)
        for i in range(t["num_hidden_layers"]):
            block(f"layers.{i}.", i, t["n_routed_experts"], False)
        ones("norm.weight", d)
        mat("head.weight", t["vocab_size"], d, std=0.02)
        last = t["num_nextn_predict_layers"] - 1
        for i in range(t["num_nextn_predict_layers"]):
            block(f"mtp.{i}.", t["num_hidden_layers"] + i, t["dspark_n_routed_experts"], True)
        mat("mtp.0.main_proj.weight", d, d * len(t["dspark_target_layer_ids"]))
        ones("mtp.0.main_norm.weight", d)
        ones(f"mtp.{last}.norm.weight", d)
        mat(f"mtp.{last}.markov_head.embed.weight", t["vocab_size"], t["dspark_markov_rank"], std=1.0)
        mat(f"mtp.{last}.markov_head.head.weight", t["vocab_size"], t["dspark_markov_rank"], std=0.01)
        mat(f"mtp.{last}.confidence_head.proj.weight", 1, d + t["dspark_markov_rank"], std=0.01)

    def add(self, name, value):
        self.p[name.replace(".", "/")] = nn.Parameter(value)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.p[name.replace(".", "/")]

    def items(self):
        return ((k.replace("/", "."), v) for k, v in self.p.items())

    def to(self, *args, **kwargs):
        super().to(*args, **kwargs)
        device = next(self.parameters()).device
        self.bias = {k: v.to(device) for k, v in self.bias.items()}
        return self

    def state(self) -> dict:
        return {**{k: v.detach() for k, v in self.items()}, **self.bias}

    def load_state(self, state: dict) -> None:
        with torch.no_grad():
            for k, v in self.items():
                v.copy_(state[k])
            for k in self.bias:
                self.bias[k].copy_(state[k])

    # weights as the forward sees them

    @staticmethod
    def weight_format(name: str) -> str:
        """fp8 (32x32 blocks), fp4 (rows), fp8rows (n-gram tables), f32 or bf16, as in the released files."""
        if ".ffn.experts." in name:
            return "fp4"
        if name.endswith("engram.embed.weight"):
            return "fp8rows"
        tail = name.split(".", 2)[-1] if name.startswith(("layers.", "mtp.")) else name
        if (
            tail
            in (
                "attn.wq_a.weight",
                "attn.wq_b.weight",
                "attn.wkv.weight",
                "attn.wo_a.weight",
                "attn.wo_b.weight",
                "attn.indexer.wq_b.weight",
                "engram.wkv.weight",
                "main_proj.weight",
            )
            or ".shared_experts." in name
        ):
            return "fp8"
        if "hc_" in name or name.endswith(("attn_sink", "gate.bias", "gate.bias_vl")):
            return "f32"
        return "bf16"

    def prepare(self, dtype, part: str = "all") -> None:
        """Round and cast the weights of the backbone, the draft blocks ("draft") or all; once per step.

        Weights of one format and shape are rounded together.
        """
        self.dtype = dtype
        names = [n for n in self.names if part == "all" or n.startswith("mtp.") == (part == "draft")]
        rounded: dict[str, torch.Tensor] = {}
        if self.fake_weights:
            groups: dict = {}
            for name in names:
                groups.setdefault((self.weight_format(name), tuple(self[name].shape)), []).append(name)
            with torch.no_grad():
                for (kind, shape), members in groups.items():
                    if kind == "f32":
                        continue
                    values = torch.stack([self[n] for n in members])
                    if kind == "bf16":
                        values = values.to(torch.bfloat16)
                    elif kind == "fp8" and shape[0] % 32 == 0:
                        values = quant._fp8_blocks_value(values.flatten(0, 1)).view_as(values)
                    elif kind == "fp8":
                        values = torch.stack([quant._fp8_blocks_value(v) for v in values])
                    else:
                        values = (quant._fp4_rows_value if kind == "fp4" else quant._fp8_rows_value)(values)
                    rounded.update(zip(members, values.float().unbind(0), strict=False))
        for name in names:
            value = self[name]
            if name in rounded:
                value = quant._Replace.apply(value, rounded[name])
            self._weights[name] = value.float() if self.weight_format(name) == "f32" else value.to(dtype)

    def w(self, name):
        return self._weights[name]

    def act(self, x):
        return quant.fake_fp8_rows(x) if self.fake_acts else x

    def lin(self, x, name):
        """A linear whose weight is FP8: the input is rounded too when asked."""
        return F.linear(self.act(x), self.w(name))

    # sublayers

    def hashes(self, tokens, start):
        """[B, T, layers, columns] table rows; look-back stops where a document begins."""
        t = self.text
        ids = self.token_map[tokens]
        pad = self.token_map[t["engram_pad_token_id"]]
        index = torch.arange(tokens.shape[1], device=tokens.device)
        grams = []
        for shift in range(t["engram_max_ngram_size"]):
            moved = torch.roll(ids, shift, 1)
            grams.append(torch.where(index - shift >= start, moved, pad))
        products = torch.stack(grams, -1).unsqueeze(2) * self.multipliers  # B T L n
        rolling, out = products[..., 0], []
        heads = t["engram_n_heads"]
        for n in range(1, t["engram_max_ngram_size"]):
            rolling = rolling ^ products[..., n]
            out.append(rolling.unsqueeze(-1) % self.primes[:, (n - 1) * heads : n * heads])
        return torch.cat(out, -1) + self.offsets

    def engram(self, h, prefix, rows):
        memory = F.embedding(rows, self.w(prefix + "engram.embed.weight")).flatten(-2)
        kv = self.lin(memory.to(self.dtype), prefix + "engram.wkv.weight")
        return engram_write(
            h, kv, self.w(prefix + "engram.q_weight"), self.w(prefix + "engram.k_weight"), self.text["rms_norm_eps"]
        )

    def mixes(self, h, prefix, site):
        t = self.text
        names = [f"{prefix}hc_{site}_{s}" for s in ("fn", "base", "scale")]
        return hc_mix(h, *[self.w(n) for n in names], t["rms_norm_eps"], t["hc_eps"], t["hc_sinkhorn_iters"])

    def moe(self, x, prefix, top, loads=None):
        t = self.text
        scores = torch.sqrt(F.softplus(F.linear(x.float(), self.w(prefix + "ffn.gate.weight").float())))
        chosen = (scores + self.bias[prefix + "ffn.gate.bias"]).topk(top, -1).indices
        picked = scores.gather(-1, chosen)
        weight = torch.zeros_like(scores).scatter(
            -1, chosen, picked / picked.sum(-1, keepdim=True) * t["routed_scaling_factor"]
        )
        if loads is not None:
            loads[prefix] = (weight > 0).flatten(0, -2).float().mean(0)
        xq = self.act(x)
        w1, w3, w2 = (self.w(prefix + f"ffn.experts.{k}") for k in ("w1", "w3", "w2"))
        limit = t["swiglu_limit"]
        gate = F.linear(xq, w1.flatten(0, 1)).clamp(max=limit)
        up = F.linear(xq, w3.flatten(0, 1)).clamp(-limit, limit)
        inner = (F.silu(gate) * up).unflatten(-1, (w1.shape[0], -1)) * weight.unsqueeze(-1).to(x.dtype)
        y = F.linear(self.act(inner.flatten(-2)), w2.transpose(0, 1).flatten(1, 2))
        s = prefix + "ffn.shared_experts."
        gate = F.linear(xq, self.w(s + "w1.weight")).clamp(max=limit)
        up = F.linear(xq, self.w(s + "w3.weight")).clamp(-limit, limit)
        return y + self.lin(F.silu(gate) * up, s + "w2.weight")

    def project_out(self, o, prefix, angles):
        t = self.text
        o = rope(o, angles.unsqueeze(-2), inverse=True).flatten(-2).unflatten(-1, (t["o_groups"], -1))
        wo_a = self.w(prefix + "attn.wo_a.weight").unflatten(0, (t["o_groups"], -1))
        # the vendor's reference leaves the input of wo_a in bf16
        return self.lin(torch.einsum("...gi,goi->...go", o, wo_a).flatten(-2), prefix + "attn.wo_b.weight")

    def queries(self, x, prefix, angles):
        t = self.text
        latent = rmsnorm(
            self.lin(x, prefix + "attn.wq_a.weight"), self.w(prefix + "attn.q_norm.weight"), t["rms_norm_eps"]
        )
        q = self.lin(latent, prefix + "attn.wq_b.weight").unflatten(-1, (t["num_attention_heads"], -1))
        return latent, rope(q, angles.unsqueeze(-2))

    def window_kv(self, x, prefix, angles):
        kv = rmsnorm(
            self.lin(x, prefix + "attn.wkv.weight"), self.w(prefix + "attn.kv_norm.weight"), self.text["rms_norm_eps"]
        )
        kv = rope(kv, angles)
        return quant.fake_fp8_rows(kv) if self.fake_cache else kv

    def compress(self, x, prefix, ratio):
        c = prefix + "attn.compressor."
        if ratio == 1:
            pooled = F.linear(x, self.w(c + "wkv.weight"))
        else:
            v = F.linear(x.float(), self.w(c + "wkv.weight").float()).unflatten(1, (-1, ratio))
            s = F.linear(x.float(), self.w(c + "wgate.weight").float()).unflatten(1, (-1, ratio))
            pooled = (v * s.softmax(2)).sum(2).to(x.dtype)
        return rmsnorm(pooled, self.w(c + "norm.weight"), self.text["rms_norm_eps"])

    def attention(self, x, prefix, index, shared, rows, aux):
        """One attention sublayer; `shared` carries what the source layers publish."""
        t = self.text
        ratio, heads, win = t["compress_ratios"][index], t["num_attention_heads"], t["sliding_window"]
        b, n, _ = x.shape
        angles = rows["angles_c"] if ratio else rows["angles"]
        latent, q = self.queries(x, prefix, angles)
        kv = self.window_kv(x, prefix, angles)

        blocks = n // win
        kvb = kv.unflatten(1, (blocks, win))
        keys = torch.cat((F.pad(kvb, (0, 0, 0, 0, 1, 0))[:, :-1], kvb), 2)  # B nb 2W D
        qb = q.unflatten(1, (blocks, win)).flatten(2, 3)  # B nb W*H D
        near = (qb @ keys.transpose(-1, -2)).unflatten(2, (win, heads)).flatten(1, 2)  # B T H 2W
        if ratio:
            if index in t["kv_source_layer_ids"]:
                pooled = self.compress(x, prefix, ratio)
                group_angles = rows["angles_c"][:, ::ratio]
                ckv = rope(pooled, group_angles)
                shared.update(
                    ckv=quant.fake_nvfp4(ckv) if self.fake_cache else ckv,
                    candidates=None,
                    visible=rows["visible"][ratio],
                )
                k = F.linear(pooled.detach(), self.w(prefix + "attn.indexer.wk.weight"))
                k = rope(rmsnorm(k, self.w(prefix + "attn.indexer.k_norm.weight"), t["rms_norm_eps"]), group_angles)
                shared["index_keys"] = quant.fake_fp4_rows(k) if self.fake_cache else k
            if index in t["index_source_layer_ids"]:
                self.select(x.detach(), latent.detach(), prefix, index, angles, shared)
                if rows["dense"] is not None:  # these rows attend to everything
                    shared["selected"] = shared["selected"] | (shared["visible"] & rows["dense"][:, None, None])
            ckv, chosen = shared["ckv"], shared["selected"]
        else:  # no compressed keys: an empty second part
            ckv, chosen = kv[:, :0], rows["window"].new_zeros(b, n, 0)
        far = (q.flatten(1, 2) @ ckv.transpose(-1, -2)).unflatten(1, (n, heads))  # B T H S
        seen = rows["window" if index < self.boundary else "window_cut"].flatten(1, 2)
        sink, scale = self.w(prefix + "attn.attn_sink"), t["head_dim"] ** -0.5
        if ratio and aux is not None:
            with torch.no_grad():
                mass = far_mass(near, far, seen, shared["visible"], sink, scale)
            for scores in shared["taught"]:
                aux.append(IndexLoss.apply(scores, mass, shared["visible"], rows["teach"]))
        near, far = SinkSoftmax.apply(near, far, seen, chosen, sink, scale)
        o = (near.unflatten(1, (blocks, win)).flatten(2, 3) @ keys).unflatten(2, (win, heads)).flatten(1, 2)
        if ratio:
            o = o + (far.flatten(1, 2) @ ckv).unflatten(1, (n, heads))
        return self.project_out(o, prefix, angles)

    def select(self, x, latent, prefix, index, angles, shared):
        """Index scores (with gradient) and the hard selection (without)."""
        t = self.text
        heads, hd = t["index_n_heads"], t["index_head_dim"]
        q = rope(self.lin(latent, prefix + "attn.indexer.wq_b.weight").unflatten(-1, (heads, hd)), angles.unsqueeze(-2))
        if self.fake_cache:
            q = quant.fake_fp4_rows(q)
        weights = F.linear(x, self.w(prefix + "attn.indexer.weights_proj.weight")) * (hd**-0.5 * heads**-0.5)
        n = x.shape[1]
        dots = (q.flatten(1, 2) @ shared["index_keys"].transpose(-1, -2)).unflatten(1, (n, heads)).relu()
        scores = torch.einsum("bnhs,bnh->bns", dots, weights).float().masked_fill(~shared["visible"], -1e30)
        shared["selected"] = shared["visible"]
        if index == t["candidate_source_layer_id"]:
            shared["source_scores"] = scores
        # what this group attends to teaches its own scores and those that limit its candidates
        shared["taught"] = [scores] + ([shared["source_scores"]] if index > t["candidate_source_layer_id"] >= 0 else [])
        if not self.sparse:
            return
        with torch.no_grad():
            s = scores.detach()
            source = t["candidate_source_layer_id"]
            if index == source:
                size = t["candidate_block_size"]
                best = F.pad(s, (0, -s.shape[-1] % size), value=-1e30).unflatten(-1, (-1, size)).amax(-1)
                behind = shared["visible"].flip(-1).to(torch.uint8).argmax(-1)  # invisible positions after the newest
                last = (s.shape[-1] - 1 - behind) // size
                ids = torch.arange(best.shape[-1], device=s.device)
                best = best.masked_fill(ids == last.unsqueeze(-1), 1e30)
                keep = torch.zeros_like(best, dtype=torch.bool)
                keep.scatter_(-1, self.top(best, t["candidate_topk_blocks"]), True)
                shared["candidates"] = keep.repeat_interleave(size, -1)[..., : s.shape[-1]]
            elif 0 <= source < index:
                s = s.masked_fill(~shared["candidates"], -1e30)
            chosen = torch.zeros_like(shared["visible"]).scatter_(-1, self.top(s, t["index_topk"]), True)
            shared["selected"] = chosen & shared["visible"] & (s > -1e29)

    def top(self, scores, count):
        count = min(count, scores.shape[-1])
        if self.stable:
            return scores.sort(dim=-1, descending=True, stable=True).indices[..., :count]
        return scores.topk(count, -1).indices

    # whole passes

    def rows(self, tokens, doc, segment=None, teach=None, dense=None):
        """Masks and phases shared by all layers; doc < 0 marks padding.

        `segment` numbers the stretches of tokens that the windows from the boundary on keep
        apart, `teach` weighs the tokens in the index loss, `dense` marks rows without selection.
        """
        t = self.text
        b, n = tokens.shape
        win = t["sliding_window"]
        pos = torch.arange(n, device=tokens.device)
        first = torch.cat((torch.ones_like(doc[:, :1], dtype=torch.bool), doc[:, 1:] != doc[:, :-1]), 1)
        start = torch.where(first, pos, 0).cummax(1).values
        position = (pos - start).clamp_min(0)
        blocks = n // win
        docb = doc.unflatten(1, (blocks, win))
        key_doc = torch.cat((F.pad(docb, (0, 0, 1, 0), value=-2)[:, :-1], docb), 2)
        delta = torch.arange(win, device=doc.device)[:, None] + win - torch.arange(2 * win, device=doc.device)[None]
        near = (delta >= 0) & (delta < win)
        out = dict(
            position=position,
            start=start,
            real=(doc >= 0).float(),
            window=near & (key_doc.unsqueeze(2) == docb.unsqueeze(3)),
            angles=rope_angles(t, position, False),
            angles_c=rope_angles(t, position, True),
            visible={},
        )
        for ratio in sorted(set(t["compress_ratios"][: t["num_hidden_layers"]]) - {0}):
            last = pos[ratio - 1 :: ratio]  # a group is seen once its last token is there
            same = doc[:, ::ratio].unsqueeze(1) == doc.unsqueeze(2)
            out["visible"][ratio] = (last[None, None] <= pos[None, :, None]) & same
        crowded = torch.where(position < t["index_topk"], 0.2, 1.0)  # before that everything is selected anyway
        out.update(
            window_cut=out["window"],
            floor=start,
            dense=dense,
            teach=out["real"] * (crowded if teach is None else teach * crowded),
        )
        if segment is not None:
            cut = segment.unflatten(1, (blocks, win))
            key_cut = torch.cat((F.pad(cut, (0, 0, 1, 0), value=-2)[:, :-1], cut), 2)
            out["window_cut"] = out["window"] & (key_cut.unsqueeze(2) == cut.unsqueeze(3))
            fresh = first | torch.cat((torch.ones_like(first[:, :1]), segment[:, 1:] != segment[:, :-1]), 1)
            out["floor"] = torch.where(fresh, pos, 0).cummax(1).values
        return out

    def backbone(self, tokens, doc, loads=None, aux=None, segment=None, teach=None, dense=None):
        """Final normalized hidden states, and the stream means the draft model listens to."""
        t = self.text
        rows = self.rows(tokens, doc, segment, teach, dense)
        hashes = self.hashes(tokens, rows["start"])
        h = F.embedding(tokens, self.w("embed.weight")).unsqueeze(2).expand(-1, -1, t["hc_mult"], -1).contiguous()
        pre = torch.zeros(*tokens.shape, t["hc_mult"], device=tokens.device)
        pre[..., 0] = 1
        shared: dict = {}
        taps = []
        for i in range(t["num_hidden_layers"]):
            prefix = f"layers.{i}."
            if i in t["engram_layer_ids"]:
                h = self.engram(h, prefix, hashes[:, :, t["engram_layer_ids"].index(i)])
            if i in t["dspark_target_layer_ids"]:
                taps.append(h.float().mean(2).to(h.dtype))
            h, pre = self.block(
                h,
                pre,
                prefix,
                t["num_experts_per_tok"],
                loads,
                lambda x, i=i, prefix=prefix: self.attention(x, prefix, i, shared, rows, aux),
            )
        out = rmsnorm(hc_read(h, pre), self.w("norm.weight"), t["rms_norm_eps"])
        return out, torch.cat(taps, -1), rows

    def block(self, h, pre, prefix, top, loads, attend):
        eps = self.text["rms_norm_eps"]
        next_pre, post, comb = self.mixes(h, prefix, "attn")
        y = attend(rmsnorm(hc_read(h, pre), self.w(prefix + "attn_norm.weight"), eps))
        h = hc_write(y, h, post, comb)
        pre, next_pre = next_pre, None
        next_pre, post, comb = self.mixes(h, prefix, "ffn")
        y = self.moe(rmsnorm(hc_read(h, pre), self.w(prefix + "ffn_norm.weight"), eps), prefix, top, loads)
        return hc_write(y, h, post, comb), next_pre

    def logits(self, hidden):
        return F.linear(hidden.float(), self.w("head.weight").float())

    def draft(self, taps, rows, tokens, anchors, loads=None):
        """Draft blocks after `anchors` [B, A]: the last position the backbone has seen.

        The next token (at anchor + 1) is given; slot i sits at position anchor + 1 + i and
        predicts the token after it.  Returns the states before and after the last norm.
        """
        t = self.text
        size, win, heads = t["dspark_block_size"], t["sliding_window"], t["num_attention_heads"]
        eps = t["rms_norm_eps"]
        b, a = anchors.shape
        main = rmsnorm(self.lin(taps, "mtp.0.main_proj.weight"), self.w("mtp.0.main_norm.weight"), eps)
        slots = torch.full((b, a, size), t["dspark_noise_token_id"], device=tokens.device)
        slots[..., 0] = tokens.gather(1, anchors + 1)
        h = F.embedding(slots, self.w("embed.weight")).unsqueeze(3).expand(-1, -1, -1, t["hc_mult"], -1).contiguous()
        pre = torch.zeros(b, a, size, t["hc_mult"], device=tokens.device)
        pre[..., 0] = 1
        first = rows["start"].gather(1, anchors)
        where = anchors.unsqueeze(-1) + torch.arange(1 - win, 1, device=anchors.device)
        seen = where >= rows["floor"].gather(1, anchors).unsqueeze(-1)
        where = where.clamp_min(0)
        local = anchors - first
        angles = rope_angles(t, local.unsqueeze(-1) + torch.arange(1, size + 1, device=anchors.device), False)
        mask = torch.cat((seen, torch.ones(b, a, size, dtype=torch.bool, device=anchors.device)), -1)

        def attend(x, prefix):
            _, q = self.queries(x, prefix, angles)
            own = self.window_kv(x, prefix, angles)
            past = self.window_kv(main, prefix, rows["angles"])
            past = past.gather(1, where.flatten(1).unsqueeze(-1).expand(-1, -1, past.shape[-1])).unflatten(1, (a, win))
            keys = torch.cat((past, own), 2)
            logits = (q.flatten(2, 3) @ keys.transpose(-1, -2)).unflatten(2, (size, heads)) * t["head_dim"] ** -0.5
            logits = logits.float().masked_fill(~mask[:, :, None, None], -1e30)
            sink = self.w(prefix + "attn.attn_sink").view(1, 1, 1, heads, 1).expand(b, a, size, heads, 1)
            prob = torch.cat((logits, sink), -1).softmax(-1)[..., :-1].to(self.dtype)
            return self.project_out((prob.flatten(2, 3) @ keys).unflatten(2, (size, heads)), prefix, angles)

        for i in range(t["num_nextn_predict_layers"]):
            prefix = f"mtp.{i}."
            h, pre = self.block(
                h, pre, prefix, t["dspark_num_experts_per_tok"], loads, lambda x, p=prefix: attend(x, p)
            )
        state = hc_read(h, pre)
        return state, rmsnorm(state, self.w(f"mtp.{t['num_nextn_predict_layers'] - 1}.norm.weight"), eps)

    def draft_heads(self, state, normed, previous):
        """Logits with the first-order correction, and the confidence logit, given the preceding tokens."""
        last = f"mtp.{self.text['num_nextn_predict_layers'] - 1}."
        seen = F.embedding(previous, self.w(last + "markov_head.embed.weight"))
        logits = self.logits(normed) + F.linear(seen, self.w(last + "markov_head.head.weight")).float()
        both = torch.cat((state.float(), seen.float()), -1)
        return logits, F.linear(both, self.w(last + "confidence_head.proj.weight").float()).squeeze(-1)


def size_report(model: Tiny) -> tuple[int, dict]:
    """Bytes of the exported tensors by kind."""
    bytes_of = {"fp8": 1 + 1 / 1024, "fp4": 0.5 + 1 / 32, "fp8rows": 1 + 1 / 32, "f32": 4, "bf16": 2}
    groups: dict[str, float] = {}
    for name, value in model.items():
        key = (
            "experts"
            if ".ffn.experts." in name
            else "embed+head"
            if name in ("embed.weight", "head.weight")
            else "engram"
            if "engram" in name
            else "hc"
            if "hc_" in name
            else "attention"
            if ".attn." in name
            else "shared experts"
            if "shared" in name
            else "draft heads"
            if "markov" in name or "main_proj" in name
            else "other"
        )
        groups[key] = groups.get(key, 0) + value.numel() * bytes_of[model.weight_format(name)]
    return int(sum(groups.values())), {k: int(v) for k, v in sorted(groups.items(), key=lambda kv: -kv[1])}
