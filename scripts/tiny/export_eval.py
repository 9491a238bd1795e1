"""Write the held-out items of every task, and held-out stories, as token ids for evaluations outside of Python.

    python export_eval.py ../../models/tiny ../../eval/tiny [--per-task 128] [--stories 40]

items.jsonl    {"task", "prompt_ids", "answer_ids", "answer"}; answer_ids ends with the end token
stories.jsonl  {"ids"}; from the first to the end token

The items are those of training's own evaluation (`corpus.task_items`, seed 1): none of them, nor any document with the
same key, was ever trained on.  An item counts as right when greedy decoding gives exactly `answer_ids`, which one pass
over prompt and answer decides: every answer token must be the first choice after the tokens before it.
"""

from __future__ import annotations

import argparse
import json
import os

import corpus
from tokenizers import Tokenizer

END = 1


def compact(value: dict) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("tokenizer", help="folder with tokenizer.json")
    ap.add_argument("out")
    ap.add_argument("--per-task", type=int, default=128)
    ap.add_argument("--stories", type=int, default=40)
    args = ap.parse_args()
    tok = Tokenizer.from_file(os.path.join(args.tokenizer, "tokenizer.json"))

    def ids(text: str) -> list[int]:
        return tok.encode(text, add_special_tokens=False).ids

    os.makedirs(args.out, exist_ok=True)
    with open(os.path.join(args.out, "items.jsonl"), "w", encoding="utf-8") as f:
        for task in corpus.TASKS:
            for item in corpus.task_items(task, args.per_task, seed=1):
                f.write(
                    compact(
                        {
                            "task": task,
                            "prompt_ids": ids(item["prompt"]),
                            "answer_ids": ids(item["answer"]) + [END],
                            "answer": item["answer"],
                        }
                    )
                )
    with open(os.path.join(args.out, "stories.jsonl"), "w", encoding="utf-8") as f:
        for text in corpus.heldout_stories(args.stories, seed=1):
            f.write(compact({"ids": ids(text)}))


if __name__ == "__main__":
    main()
