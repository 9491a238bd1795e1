"""Offline inference: a few prompts through one engine.

    python examples/offline_inference.py

The model is the built-in tiny one, the directory in DEEPINFER_HF_MODEL_DIR, or deepseek-ai/DeepSeek-V4.1-Flash-1017
where the Hugging Face cache holds it (give the name as the only argument).
"""

import os
import sys

from deepinfer import LLM, SamplingParams


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("DEEPINFER_HF_MODEL_DIR")
    llm = LLM(model=model)
    prompts = [
        "Once upon a time, there was a little",
        "<｜User｜>What is 27 + 15?<｜Assistant｜></think>",
        "<｜User｜>Sort these words by the alphabet: nut, book, hat, muffin<｜Assistant｜></think>",
    ]
    for output in llm.generate(prompts, SamplingParams(temperature=0, max_tokens=60)):
        answer = output.outputs[0]
        print(f"{output.prompt!r}\n  -> {answer.text!r} ({answer.finish_reason}, {len(answer.token_ids)} tokens)")
    llm.close()


if __name__ == "__main__":
    main()
