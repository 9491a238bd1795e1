"""Model configuration: a flat view of the released config.json (see spec/model.md, section 1)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path


@dataclass
class Config:
    """Field names are the keys of `text_config`; the defaults are the released values."""

    vocab_size: int = 129280
    hidden_size: int = 5120
    num_hidden_layers: int = 40
    max_position_embeddings: int = 1048576
    rms_norm_eps: float = 1e-20
    # attention
    num_attention_heads: int = 64
    num_key_value_heads: int = 1
    head_dim: int = 512
    qk_rope_head_dim: int = 64
    q_lora_rank: int = 1280
    o_lora_rank: int = 1024
    o_groups: int = 8
    sliding_window: int = 128
    rope_theta: float = 10000.0
    compress_rope_theta: float = 160000.0
    rope_scaling: dict | None = field(
        default_factory=lambda: {
            "rope_type": "yarn",
            "factor": 16,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 65536,
        }
    )
    compress_ratios: list = field(default_factory=lambda: [0] * 2 + [2] * 18 + [1] * 20 + [0] * 3)
    kv_source_layer_ids: list = field(default_factory=lambda: [2, 8, 14, 20])
    index_source_layer_ids: list = field(default_factory=lambda: [2, 8, 14, 20, 24, 28, 32, 36])
    index_n_heads: int = 32
    index_head_dim: int = 128
    index_topk: int = 512
    candidate_source_layer_id: int = 20
    candidate_topk_blocks: int = 2048
    candidate_block_size: int = 8
    # experts
    hidden_act: str = "silu"
    swiglu_limit: float = 10.0
    moe_intermediate_size: int = 2304
    n_routed_experts: int = 384
    n_shared_experts: int = 1
    num_experts_per_tok: int = 6
    scoring_func: str = "sqrtsoftplus"
    topk_method: str = "noaux_tc"
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.5
    gate_temp: float = 1.0  # optional key, absent from the released file
    # manifold hyper-connections
    hc_mult: int = 4
    hc_sinkhorn_iters: int = 20
    hc_eps: float = 1e-6
    # engram
    engram_layer_ids: list = field(default_factory=lambda: [1, 14])
    engram_num_embeddings: list = field(default_factory=lambda: [384006168, 384016682])
    engram_max_ngram_size: int = 4
    engram_vocab_size: int = 16000000
    engram_n_heads: int = 8
    engram_head_dim: int = 256
    engram_pad_token_id: int = 2
    engram_compressed_vocab_size: int = 99092
    # DSpark
    num_nextn_predict_layers: int = 3
    dspark_block_size: int = 5
    dspark_noise_token_id: int = 128799
    dspark_target_layer_ids: list = field(default_factory=lambda: [37, 38, 39])
    dspark_markov_rank: int = 256
    dspark_n_routed_experts: int = 128
    dspark_num_experts_per_tok: int = 3
    # fixed flags that loaders should verify
    attention_bias: bool = False
    attention_dropout: float = 0.0
    tie_word_embeddings: bool = False

    @classmethod
    def from_hf(cls, hf: dict) -> Config:
        """From a parsed config.json (nested under `text_config`)."""
        q = hf.get("quantization_config", {})
        expected = {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [32, 32],
            "scale_fmt": "ue8m0",
            "expert_dtype": "fp4",
        }
        for key, value in expected.items():
            if q.get(key) != value:
                raise ValueError(f"quantization_config.{key}: {q.get(key)!r}, expected {value!r}")
        text = hf["text_config"]
        cfg = cls(**{f.name: text[f.name] for f in fields(cls) if f.name in text})
        cfg.check()
        return cfg

    @classmethod
    def load(cls, directory) -> Config:
        return cls.from_hf(json.loads((Path(directory) / "config.json").read_text()))

    def to_hf(self) -> dict:
        text = {"model_type": "deepseek_v41_text"} | {f.name: getattr(self, f.name) for f in fields(self)}
        if self.gate_temp == 1.0:
            text.pop("gate_temp")  # as in the released file
        return {
            "architectures": ["DeepseekV41ForCausalLM"],
            "model_type": "deepseek_v41",
            "dtype": "bfloat16",
            "bos_token_id": 0,
            "eos_token_id": 1,
            "pad_token_id": 2,
            "image_token_id": self.vocab_size - 1,
            "quantization_config": {
                "quant_method": "fp8",
                "activation_scheme": "dynamic",
                "weight_block_size": [32, 32],
                "scale_fmt": "ue8m0",
                "expert_dtype": "fp4",
            },
            "text_config": text,
            "vision_config": {
                "model_type": "deepseek_v41_vision",
                "num_hidden_layers": 0,
                "hidden_size": 64,
                "num_attention_heads": 4,
                "intermediate_size": 128,
                "patch_size": 14,
                "rope_theta": 10000,
                "downsample_ratio": 3,
                "max_image_tokens": 1024,
                "min_pixels": 295936,
                "max_wh_ratio": None,
            },
        }

    def check(self) -> None:
        n, ratios = self.num_hidden_layers, self.compress_ratios
        assert len(ratios) == n + self.num_nextn_predict_layers, "one ratio per backbone and draft layer"
        assert all(r in (0, 1, 2) for r in ratios) and not any(ratios[n:])
        assert self.hidden_act == "silu" and self.num_key_value_heads == 1 and self.n_shared_experts == 1
        assert self.scoring_func == "sqrtsoftplus" and self.topk_method == "noaux_tc"
        assert set(self.kv_source_layer_ids) <= set(self.index_source_layer_ids)
        for i in range(n):
            if ratios[i]:
                assert ratios[self.kv_source(i)] == ratios[i] and ratios[self.index_source(i)] == ratios[i]

    def kv_source(self, layer: int) -> int:
        """The layer whose compressor and index keys `layer` reads: the nearest source at or before it."""
        return max(s for s in self.kv_source_layer_ids if s <= layer)

    def index_source(self, layer: int) -> int:
        """The layer whose selected positions `layer` reads."""
        return max(s for s in self.index_source_layer_ids if s <= layer)

    @property
    def boundary(self) -> int | None:
        """The first consumer layer: the first of ratio 1, if everything from it on reads its compressed rows alone.

        None: the model cannot be cut (spec/replay.md 1)."""
        ratios = self.compress_ratios[: self.num_hidden_layers]
        first = ratios.index(1) if 1 in ratios else None
        if first is None or first != max(self.kv_source_layer_ids) or any(i >= first for i in self.engram_layer_ids):
            return None
        return first

    def moe_shape(self, draft: bool) -> tuple[int, int]:
        """(number of routed experts, experts per token)."""
        if draft:
            return self.dspark_n_routed_experts, self.dspark_num_experts_per_tok
        return self.n_routed_experts, self.num_experts_per_tok


def tiny_config() -> Config:
    """A small model in which every mechanism of the released one is active (about 4 MB on disk)."""
    return Config(
        vocab_size=512,
        hidden_size=128,
        num_hidden_layers=10,
        max_position_embeddings=4096,
        num_attention_heads=8,
        head_dim=64,
        qk_rope_head_dim=16,
        q_lora_rank=64,
        o_lora_rank=32,
        o_groups=4,
        sliding_window=8,
        rope_scaling={
            "rope_type": "yarn",
            "factor": 4,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 64,
        },
        compress_ratios=[0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0],
        kv_source_layer_ids=[2, 4, 6],
        index_source_layer_ids=[2, 4, 6, 8],
        index_n_heads=16,
        index_head_dim=32,
        index_topk=16,
        candidate_source_layer_id=6,
        candidate_topk_blocks=8,
        candidate_block_size=8,
        moe_intermediate_size=64,
        n_routed_experts=8,
        num_experts_per_tok=3,
        swiglu_limit=1.5,
        engram_layer_ids=[1, 4],
        engram_num_embeddings=[0, 0],
        engram_vocab_size=500,
        engram_n_heads=2,
        engram_head_dim=32,
        engram_compressed_vocab_size=0,  # the two zeros are filled in by make_fixtures
        dspark_noise_token_id=509,
        dspark_target_layer_ids=[7, 8, 9],
        dspark_markov_rank=32,
        dspark_n_routed_experts=8,
        dspark_num_experts_per_tok=2,
    )
