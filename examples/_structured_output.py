"""Structured output: a regular expression, a JSON schema, a grammar, and one that starts behind a trigger.

    python examples/_structured_output.py

The model is the built-in tiny one or the directory in DEEPINFER_HF_MODEL_DIR.
"""

import json
import os
import re

from deepinfer import LLM, SamplingParams

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 16},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"enum": ["cats", "dogs", "foxes"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "likes"],
}
GRAMMAR = """
root ::= "Shopping list:\\n" item{2,4}
item ::= "- " [1-9] " " ("apple" | "nut" | "book") "s\\n"
"""


def main() -> None:
    llm = LLM(model=os.environ.get("DEEPINFER_HF_MODEL_DIR"))
    prompt = "Once upon a time there was a little"

    def answer(so_args: dict[str, object]) -> str:
        params = SamplingParams(temperature=0.8, seed=1, max_tokens=200, so_args=so_args)
        output = llm.generate(prompt, params, use_tqdm=False)[0].outputs[0]
        assert output.finish_reason == "stop", output
        return output.text

    date = answer({"schema_type": "regex", "schema": r"20\d\d-(0[1-9]|1[0-2])-[0-2][1-8]"})
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", date)
    print("regex   ", date)

    person = json.loads(answer({"schema_type": "json", "schema": PERSON}))
    assert set(person) == {"name", "age", "likes"}
    print("json    ", person)

    shopping = answer({"schema_type": "ebnf", "schema": GRAMMAR})
    print("ebnf    ", repr(shopping))

    # Free text until the first full stop; that forces the trigger, behind which the grammar rules.
    tokenizer = llm.get_tokenizer()
    moral = answer(
        {
            "schema_type": "choice",
            "schema": [" be kind.", " be brave.", " be patient."],
            "trigger_token_ids": tokenizer.encode("\nThe moral:"),
            "bound_token_id": tokenizer.encode(".")[0],
        }
    )
    assert re.search(r"\nThe moral: be (kind|brave|patient)\.$", moral)
    print("trigger ", repr(moral))
    llm.close()


if __name__ == "__main__":
    main()
