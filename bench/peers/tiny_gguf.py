"""A Llama of one layer of width 64 with random weights and this project's tokenizer, for llama.cpp's server.

    VENV/bin/python bench/peers/tiny_gguf.py OUT.gguf              needs: pip install gguf==0.19.0

The same model as vllm_null.py serves, so that the servers differ in everything but the model.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf
import numpy as np

TINY = Path(__file__).resolve().parents[2] / "models" / "tiny"
TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"
WIDTH, HEADS, EPSILON = 64, 2, 1e-6


def add_tokenizer(w: gguf.GGUFWriter) -> int:
    tokenizer = json.loads((TINY / "tokenizer.json").read_text())
    vocabulary = dict(tokenizer["model"]["vocab"])
    added = {t["content"]: t["id"] for t in tokenizer["added_tokens"]}
    by_id = {i: t for t, i in (vocabulary | added).items()}
    size = max(by_id) + 1
    names = [by_id.get(i, f"<unused {i}>") for i in range(size)]
    kinds = [gguf.TokenType.CONTROL if names[i] in added else gguf.TokenType.NORMAL for i in range(size)]
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("default")
    w.add_token_list(names)
    w.add_token_types(kinds)
    w.add_token_merges(merges)
    w.add_bos_token_id(0)
    w.add_eos_token_id(1)
    w.add_chat_template(TEMPLATE)
    return size


def main() -> None:
    w = gguf.GGUFWriter(sys.argv[1], "llama")
    size = add_tokenizer(w)
    w.add_vocab_size(size)
    w.add_context_length(4096)
    w.add_embedding_length(WIDTH)
    w.add_block_count(1)
    w.add_feed_forward_length(WIDTH)
    w.add_head_count(HEADS)
    w.add_head_count_kv(HEADS)
    w.add_layer_norm_rms_eps(EPSILON)
    w.add_rope_dimension_count(WIDTH // HEADS)
    random = np.random.default_rng(1)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        w.add_tensor(f"blk.0.{name}.weight", random.standard_normal((WIDTH, WIDTH), dtype=np.float32) / 8)
    for name in ("token_embd", "output"):
        w.add_tensor(f"{name}.weight", random.standard_normal((size, WIDTH), dtype=np.float32) / 8)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        w.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
