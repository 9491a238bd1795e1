"""Engram: the compressed vocabulary, the n-gram hash and the gated table look-up."""

from __future__ import annotations

import torch

M32, M64, M128 = (1 << 32) - 1, (1 << 64) - 1, (1 << 128) - 1
DEAD = -1  # history entry of a position that takes part in no n-gram (image spans)


# ---- compressed vocabulary --------------------------------------------------------------------------------------


def compressed_token_map(tokenizer_json: str) -> tuple[list[int], int]:
    """token id -> compressed id, numbered in order of first appearance; also the number of compressed ids."""
    from tokenizers import Regex, Tokenizer
    from tokenizers import normalizers as N

    tok = Tokenizer.from_file(str(tokenizer_json))
    mark = "\ue000"  # stands for a lone space, so that Strip does not remove it
    clean = N.Sequence(
        [
            N.NFKC(),
            N.NFD(),
            N.StripAccents(),
            N.Lowercase(),
            N.Replace(Regex(r"[ \t\r\n]+"), " "),
            N.Replace(Regex(r"^ $"), mark),
            N.Strip(),
            N.Replace(mark, " "),
        ]
    )
    ids: dict[str, int] = {}
    table = []
    for token in range(tok.get_vocab_size(with_added_tokens=True)):
        text = tok.decode([token], skip_special_tokens=False)
        key = tok.id_to_token(token) if "\ufffd" in text else (clean.normalize_str(text) or text)
        table.append(ids.setdefault(key, len(ids)))
    return table, len(ids)


# ---- bucket sizes and multipliers ---------------------------------------------------------------------------------


def is_prime(n: int) -> bool:
    if n < 4:
        return n > 1
    return n % 2 == 1 and all(n % d for d in range(3, int(n**0.5) + 1, 2))


def bucket_primes(cfg) -> list[list[list[int]]]:
    """[engram layer][n-gram size - 2][head]: per (layer, size) the next unused primes from engram_vocab_size up."""
    used: set[int] = set()
    layers = []
    for _ in cfg.engram_layer_ids:
        layer = []
        for _ in range(cfg.engram_max_ngram_size - 1):
            sizes, p = [], cfg.engram_vocab_size - 1
            for _ in range(cfg.engram_n_heads):
                p += 1
                while p in used or not is_prime(p):
                    p += 1
                used.add(p)
                sizes.append(p)
            layer.append(sizes)
        layers.append(layer)
    return layers


def pcg64_integers(seed: int, high: int, count: int) -> list[int]:
    """What numpy.random.default_rng(seed).integers(0, high, count, dtype=int64) returns, for high > 2^32."""
    # SeedSequence: hash the seed words into a pool of four, then expand the pool to eight words
    words, h = [], 0x43B0D7E5
    while seed or not words:
        words.append(seed & M32)
        seed >>= 32
    assert len(words) <= 4 and high > 1 << 32

    def hashmix(v):
        nonlocal h
        v ^= h
        h = h * 0x931E8875 & M32
        v = v * h & M32
        return v ^ v >> 16

    pool = [hashmix(words[i] if i < len(words) else 0) for i in range(4)]
    for src in range(4):
        for dst in range(4):
            if src != dst:
                r = (0xCA01F9DD * pool[dst] - 0x4973F715 * hashmix(pool[src])) & M32
                pool[dst] = r ^ r >> 16
    h, out = 0x8B51F9DD, []
    for i in range(8):
        v = pool[i % 4] ^ h
        h = h * 0x58F38DED & M32
        v = v * h & M32
        out.append(v ^ v >> 16)
    q = [out[2 * i] | out[2 * i + 1] << 32 for i in range(4)]
    # PCG XSL-RR 128/64
    mult, inc = 0x2360ED051FC65DA44385DF649FCCF645, ((q[2] << 64 | q[3]) << 1 | 1) & M128
    state = (inc + (q[0] << 64 | q[1])) * mult + inc & M128

    def next64():
        nonlocal state
        state = state * mult + inc & M128
        x, rot = (state >> 64 ^ state) & M64, state >> 122
        return (x >> rot | x << (64 - rot & 63)) & M64

    values = []  # Lemire's multiply-and-reject
    for _ in range(count):
        m = next64() * high
        while m & M64 < ((1 << 64) - high) % high:
            m = next64() * high
        values.append(m >> 64)
    return values


def hash_multipliers(cfg) -> list[list[int]]:
    """[engram layer][look-back 0..max_ngram-1], odd and small enough that id * multiplier fits an int64."""
    bound = max(1, (2**63 - 1) // cfg.engram_compressed_vocab_size // 2)
    return [
        [2 * v + 1 for v in pcg64_integers(10007 * layer, bound, cfg.engram_max_ngram_size)]
        for layer in cfg.engram_layer_ids
    ]


class NgramHasher:
    """Compressed-id history of one sequence -> table rows of the n-grams that end at each position."""

    def __init__(self, cfg, token_map: list[int]):
        self.size, self.token_map = cfg.engram_max_ngram_size, token_map
        self.pad = token_map[cfg.engram_pad_token_id]
        self.primes, self.multipliers = bucket_primes(cfg), hash_multipliers(cfg)

    def rows(self, history: list[int], start: int) -> torch.Tensor:
        """int64 [layers, len(history) - start, (size - 1) * heads] for positions start.. of `history`."""
        out = []
        for primes, mult in zip(self.primes, self.multipliers, strict=True):
            per_pos = []
            for pos in range(start, len(history)):
                blocked, acc, row, base = False, 0, [], 0
                for back in range(self.size):
                    blocked = blocked or pos - back < 0 or history[pos - back] == DEAD
                    acc ^= (self.pad if blocked else history[pos - back]) * mult[back]
                    if back:
                        for p in primes[back - 1]:
                            row.append(base + acc % p)
                            base += p
                per_pos.append(row)
            out.append(per_pos)
        return torch.tensor(out, dtype=torch.int64)


def engram_gate(net, h: torch.Tensor, kv: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """h: streams [n, m, d]; kv: projected rows [n, (m+1)*d]; weight: q_weight * k_weight [m, d]. Returns h + gate*v.

    `net` (model.Net) knows how sums are added up."""
    n, m, d = h.shape
    key, value = kv[:, : m * d].reshape(n, m, d), kv[:, m * d :]
    rstd = (net.inverse_rms(h) * net.inverse_rms(key))[..., 0]
    dot = (net.wide(h * weight) * net.wide(key)).sum(-1).to(h.dtype) * rstd * d**-0.5
    gate = net.sigmoid(torch.copysign(dot.abs().clamp_min(1e-6).sqrt(), dot))
    return h + gate[..., None] * value[:, None, :]
