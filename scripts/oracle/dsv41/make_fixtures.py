"""Write a tiny random checkpoint and golden outputs:  python -m dsv41.make_fixtures OUT_DIR

OUT_DIR/checkpoint/   config.json, tokenizer.json, model-*.safetensors, model.safetensors.index.json
OUT_DIR/golden/       common.safetensors (inputs, engram tables) and one <preset>.safetensors per numerics preset
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from . import checkpoint
from .config import tiny_config
from .dspark import Draft, DraftCache
from .engram import bucket_primes, compressed_token_map, hash_multipliers
from .model import PRESETS, Cache, Model

PROMPT = 161  # odd, longer than 8 candidate blocks of 8, and spanning many windows of 8
SHORT = [1, 2, 3, 7, 8, 9, 15, 16, 17, 32, 33, 63, 64, 65, 71, 72, 73, 128, 129]
STEPS = 24
TEXT = """The quick brown fox jumps over the lazy dog. THE QUICK BROWN FOX; the Quick Brown Fox!
Numbers 0 1 2 3 10 100 1000 and spaces  two   three, tabs\tand lines\r\n\nnext. Café CAFÉ cafe naïve naive Ünder under.
def add(a, b): return a + b  # Add ADD add; for i in range(10): print(i)
Straße strasse ﬁne fine № No 中文 字符 中国 かな カナ. Don't DON'T dont; it's It's ITS. """


def write_tokenizer(path: Path, size: int) -> None:
    """A byte-level BPE with the special tokens of the released one at ids 0, 1, 2 and `size` ids in all."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    special = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"]
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(
        [TEXT] * 3,
        trainers.BpeTrainer(
            vocab_size=size - 12,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
            min_frequency=1,
        ),
    )
    missing = size - tok.get_vocab_size()
    tok.add_special_tokens([f"<｜place▁holder▁no▁{k}｜>" for k in range(missing)])
    assert tok.get_vocab_size() == size and [tok.token_to_id(s) for s in special] == [0, 1, 2]
    tok.save(str(path))


def prompt_ids(tok_path: Path, n: int, vocab: int) -> list[int]:
    """Text first (so that case variants meet), then random ids with a repeated stretch."""
    from tokenizers import Tokenizer

    text = [0] + Tokenizer.from_file(str(tok_path)).encode(TEXT).ids
    g = torch.Generator().manual_seed(11)
    rand = torch.randint(3, vocab - 12, (n,), generator=g).tolist()
    ids = text[: n // 2] + rand
    ids[n - 30 : n - 10] = ids[20:40]
    return ids[:n]


def run(cfg, weights, token_map, ids, numerics, keep: int) -> dict[str, torch.Tensor]:
    """Golden tensors of one preset; intermediate values for the last `keep` prompt positions only."""
    model, draft = Model(cfg, weights, numerics, token_map), Draft(cfg, weights, numerics)
    out: dict[str, torch.Tensor] = {}
    cache, trace = Cache(), {}
    logits, features = model.forward(ids, cache, trace=trace)
    out["logits"] = logits
    for name, value in trace.items():
        whole = name == "engram_rows" or name.endswith((".chosen", ".candidates"))
        out["trace." + name] = value if whole else value[-keep:]
    out["features"] = features[-keep:]
    # greedy decoding with a draft after every step; the drafts are recorded, not used
    dcache = DraftCache()
    draft.commit(features, torch.arange(len(ids)), dcache)
    token, step_logits, tokens, drafts, draft_logits, confidence = int(logits[-1].argmax()), [], [], [], [], []
    for step in range(STEPS):
        tokens.append(token)
        dtrace: dict = {}
        t, lines, c = draft.propose(token, dcache, trace=dtrace)
        drafts.append(t), draft_logits.append(lines), confidence.append(c)
        if step == 0:
            out |= {"trace." + k: v for k, v in dtrace.items()}
        pos = cache.pos
        lg, ft = model.forward([token], cache)
        draft.commit(ft, torch.tensor([pos]), dcache)
        step_logits.append(lg[0])
        token = int(lg[0].argmax())
    out |= {
        "greedy_tokens": torch.tensor(tokens),
        "greedy_logits": torch.stack(step_logits),
        "draft_tokens": torch.tensor(drafts),
        "draft_logits": torch.stack(draft_logits[:4]),
        "draft_confidence": torch.stack(confidence),
    }
    out["short_logits"] = torch.stack([model.forward(ids[:n], Cache())[0][-1] for n in SHORT])
    # 17 tokens: nothing is dropped by any selection, so even the bf16 presets can be compared closely
    small: dict = {}
    out["prefix17.logits"] = model.forward(ids[:17], Cache(), trace=small)[0]
    out |= {"prefix17." + k: v for k, v in small.items() if k.endswith(".streams")}
    # an image span: dead for the n-grams, routed with bias_vl
    mask = torch.zeros(40, dtype=torch.bool)
    mask[10:19] = True
    out["image_logits"] = model.forward(ids[:40], Cache(), image_mask=mask)[0]
    return {k: v.contiguous() for k, v in out.items()}


def main(target: str) -> None:
    torch.set_num_threads(1)  # tiny products: threads only add overhead
    root = Path(target)
    ck, gold = root / "checkpoint", root / "golden"
    ck.mkdir(parents=True, exist_ok=True)
    gold.mkdir(exist_ok=True)
    cfg = tiny_config()
    write_tokenizer(ck / "tokenizer.json", cfg.vocab_size)
    token_map, cfg.engram_compressed_vocab_size = compressed_token_map(ck / "tokenizer.json")
    cfg.engram_num_embeddings = checkpoint.engram_rows(cfg)
    cfg.check()
    checkpoint.write_random(cfg, ck)
    cfg, weights = checkpoint.load(ck)
    ids = prompt_ids(ck / "tokenizer.json", PROMPT, cfg.vocab_size)
    image_mask = torch.zeros(40, dtype=torch.bool)
    image_mask[10:19] = True
    save_file(
        {
            "input_ids": torch.tensor(ids),
            "short_lengths": torch.tensor(SHORT),
            "image_mask": image_mask,
            "token_map": torch.tensor(token_map),
            "multipliers": torch.tensor(hash_multipliers(cfg)),
            "primes": torch.tensor(bucket_primes(cfg)),
        },
        gold / "common.safetensors",
    )
    for name, numerics in PRESETS.items():
        out = run(cfg, weights, token_map, ids, numerics, keep=12 if name == "fp32" else 2)
        kept = out["trace.layers.6.candidates"].sum(-1)
        assert kept[-1] < PROMPT, "the fixture must drop candidate blocks"
        save_file(out, gold / f"{name}.safetensors")
        print(
            f"{name}: logits std {out['logits'].std():.3f}, greedy {out['greedy_tokens'][:6].tolist()}, "
            f"drafts {out['draft_tokens'][0].tolist()}, candidates kept at the end {int(kept[-1])} of {PROMPT}"
        )


if __name__ == "__main__":
    main(sys.argv[1])
