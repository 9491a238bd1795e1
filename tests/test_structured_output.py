"""Whatever is generated under a grammar parses and validates: many schemas, judged by independent validators."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from deepinfer import LLM, SamplingParams

CONSTRAINTS = json.loads((Path(__file__).parent / "golden/structured/constraints.json").read_text())
PROMPT = "Once upon a time"
# Sampled with drafts verified as a block; hot, so that the grammar has to forbid a lot; greedy.
RUNS = [{"temperature": 1.0, "seed": None}, {"temperature": 1.5, "seed": 3}, {"temperature": 0.0, "seed": None}]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    llm = LLM(num_threads=2, max_num_seqs=16)
    yield llm
    llm.close()


def answers(llm: LLM, kind: str, schemas: list[Any], run: dict[str, Any]) -> list[str]:
    """One complete answer a schema; those that the length cut are only counted."""
    params = [SamplingParams(max_tokens=300, so_args={"schema_type": kind, "schema": s}, **run) for s in schemas]
    outputs = [o.outputs[0] for o in llm.generate([PROMPT] * len(schemas), params, use_tqdm=False)]
    for schema, output in zip(schemas, outputs, strict=True):
        assert output.finish_reason in ("stop", "length"), (schema, output)
    return [o.text if o.finish_reason == "stop" else "" for o in outputs]


def check(texts: list[str], schemas: list[Any], most_cut: int, is_right: Any) -> None:
    """Every answer that is complete is right, and few are not complete."""
    wrong = [(s, t) for s, t in zip(schemas, texts, strict=True) if t and not is_right(s, t)]
    assert not wrong
    assert texts.count("") <= most_cut


@pytest.mark.parametrize("run", RUNS)
def test_json_validates(llm: LLM, run: dict[str, Any]) -> None:
    schemas = CONSTRAINTS["schemas"]
    assert len(schemas) == 200

    def is_valid(schema: Any, text: str) -> bool:
        try:
            jsonschema.Draft202012Validator(schema).validate(json.loads(text))
        except (ValueError, jsonschema.ValidationError):
            return False
        return True

    # Numbers without bounds and recursive schemas may go on for ever.
    check(answers(llm, "json", schemas, run), schemas, 25, is_valid)


@pytest.mark.parametrize("run", RUNS)
def test_regular_expressions_match(llm: LLM, run: dict[str, Any]) -> None:
    patterns = CONSTRAINTS["regexes"]
    assert len(patterns) == 50
    check(answers(llm, "regex", patterns, run), patterns, 8, lambda p, t: re.fullmatch(p, t, re.DOTALL))


@pytest.mark.parametrize("run", RUNS)
def test_grammars_are_followed(llm: LLM, run: dict[str, Any]) -> None:
    grammars = CONSTRAINTS["grammars"]
    assert len(grammars) == 20
    # The language itself, where it is regular; brackets that must balance for the others.
    regular = {
        0: "a|b",
        1: "x*y",
        3: "([0-9];){1,3}",
        4: "[a-z]{1,5}( [a-z]{1,5})*",
        5: r"[0-9]{1,2}([+-][0-9]{1,2})*",
        6: "<(b|i)>[a-z]*</(b|i)>",
        7: "(ab|cd)+",
        9: 'say "[a-z]+"',
        12: "1?2*3+",
        19: "((ab)|(cd))e",
    }

    def follows(grammar: str, text: str) -> bool:
        index = grammars.index(grammar)
        if index in regular:
            return re.fullmatch(regular[index], text) is not None
        return text.count("(") == text.count(")")

    check(answers(llm, "ebnf", grammars, run), grammars, 8, follows)


def test_wrong_schemas_name_the_field(llm: LLM) -> None:
    def generate(**so_args: Any) -> Any:
        return llm.generate(PROMPT, SamplingParams(so_args=so_args), use_tqdm=False)[0].outputs[0]

    with pytest.raises(ValueError, match="so_args needs the key 'schema'"):
        generate(schema_type="json")
    with pytest.raises(ValueError, match="so_args has the key 'serialized'"):
        generate(schema_type="json", schema="", serialized="x")
    with pytest.raises(ValueError, match="so_args.schema_type is 'xml'"):
        generate(schema_type="xml", schema="x")
    with pytest.raises(ValueError, match="'not' is not supported"):
        generate(schema_type="json", schema={"not": {}})
    with pytest.raises(ValueError, match=r"so_args\['trigger_token_ids'\]"):
        generate(schema_type="json", schema="", trigger_token_ids=["a"])
    late = generate(schema_type="regex", schema="(a")
    assert late.finish_reason == "error" and "so_args.schema" in late.error


def test_example_runs() -> None:
    script = Path(__file__).parents[1] / "examples/_structured_output.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["regex", "json", "ebnf", "trigger"]
