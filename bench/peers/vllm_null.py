"""vLLM's HTTP server in front of an engine that answers at once, for bench/peers/run_http.sh.

    VENV/bin/python bench/peers/vllm_null.py --port 8201            the HTTP layer alone: the engine is not asked
    VENV/bin/python bench/peers/vllm_null.py --port 8201 --engine   with its engine and a model of one small layer

The model is a Llama of one layer of width 64 with random weights and this project's tokenizer, so that everything
before the engine runs as it always does: parsing, chat template, tokenizer, sampling parameters. Further arguments go
to `vllm serve`. Environment: requirements-vllm.txt.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

TINY = Path(__file__).resolve().parents[2] / "models" / "tiny"
TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"


def write_model(folder: Path) -> None:
    tokenizer = json.loads((TINY / "tokenizer.json").read_text())
    size = max([*tokenizer["model"]["vocab"].values(), *(t["id"] for t in tokenizer["added_tokens"])]) + 1
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": size,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_bytes((TINY / "tokenizer.json").read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    (folder / "template.jinja").write_text(TEMPLATE)


def answer_at_once() -> None:
    from vllm.outputs import CompletionOutput, RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM

    async def generate(self, prompt, sampling_params, request_id, **_):
        ids = prompt["prompt_token_ids"] if isinstance(prompt, dict) else prompt.prompt_token_ids
        word = CompletionOutput(0, "Once", [5], None, None, finish_reason="length")
        yield RequestOutput(request_id, None, list(ids), None, [word], finished=True, num_cached_tokens=0)

    AsyncLLM.generate = generate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8201)
    parser.add_argument("--engine", action="store_true", help="let the engine answer")
    args, rest = parser.parse_known_args()
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    os.environ.update(settings | {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"})
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        if not args.engine:
            answer_at_once()
        words = ["serve", folder, "--served-model-name", "null", "--host", "127.0.0.1", "--port", str(args.port)]
        words += ["--load-format", "dummy", "--enforce-eager", "--max-model-len", "2048", "--dtype", "bfloat16"]
        words += ["--chat-template", f"{folder}/template.jinja", "--disable-uvicorn-access-log", *rest]
        sys.argv = ["vllm", *words]
        from vllm.entrypoints.cli.main import main as vllm

        vllm()


if __name__ == "__main__":
    main()
