"""The Python package on the built-in model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from deepinfer import LLM, RequestOutput, SamplingParams

ROOT = Path(__file__).resolve().parents[2]
STORY = "Once upon a time"
GREEDY = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    llm = LLM(num_threads=2)
    yield llm
    llm.close()


def outputs(llm: LLM, *args: object, **kwargs: object) -> list[RequestOutput]:
    results = llm.generate(*args, **kwargs)  # type: ignore[arg-type]
    assert all(isinstance(r, RequestOutput) for r in results)
    return results  # type: ignore[return-value]


def test_one_output_a_prompt_in_order(llm: LLM) -> None:
    prompts = [STORY, "<｜User｜>What is 27 + 15?<｜Assistant｜></think>", "In a little town"]
    together = outputs(llm, prompts, GREEDY)
    assert [o.prompt for o in together] == prompts
    for prompt, output in zip(prompts, together, strict=True):
        (alone,) = outputs(llm, prompt, GREEDY)
        assert alone.outputs[0].token_ids == output.outputs[0].token_ids
        assert output.outputs[0].finish_reason in ("stop", "length")
    assert "42" in together[1].outputs[0].text


def test_one_params_a_prompt(llm: LLM) -> None:
    results = outputs(
        llm,
        [STORY, STORY],
        [SamplingParams(max_tokens=3, ignore_eos=True), SamplingParams(max_tokens=5, ignore_eos=True)],
    )
    assert [len(r.outputs[0].token_ids) for r in results] == [3, 5]
    with pytest.raises(ValueError, match="1 sampling_params for 2 prompts"):
        llm.generate([STORY, STORY], [GREEDY])


def test_several_answers(llm: LLM) -> None:
    (result,) = outputs(llm, STORY, SamplingParams(n=3, seed=7, max_tokens=20))
    assert [c.index for c in result.outputs] == [0, 1, 2]
    assert len({tuple(c.token_ids) for c in result.outputs}) == 3


def test_logprobs(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=True, top_logprobs=3, prompt_logprobs=True)
    (result,) = outputs(llm, STORY, params)
    answer = result.outputs[0]
    assert len(answer.logprobs) == len(answer.top_logprobs) == len(answer.token_ids) == 6
    for token, value, top in zip(answer.token_ids, answer.logprobs, answer.top_logprobs, strict=True):
        assert len(top) == 3 and top[0] == (token, pytest.approx(value))
    assert len(result.prompt_logprobs) == len(result.prompt_token_ids) - 1
    assert outputs(llm, STORY, GREEDY)[0].outputs[0].logprobs == []


def test_token_ids_in(llm: LLM) -> None:
    (text,) = outputs(llm, STORY, GREEDY)
    (one,) = outputs(llm, prompt_token_ids=text.prompt_token_ids, sampling_params=GREEDY)
    both = outputs(llm, prompt_token_ids=[text.prompt_token_ids] * 2, sampling_params=GREEDY)
    assert one.prompt is None
    assert one.outputs[0].text == both[1].outputs[0].text == text.outputs[0].text


def test_decode_sequence_gives_strings(llm: LLM) -> None:
    strings = LLM(decode_sequence=True, num_threads=1, max_num_seqs=2)
    assert strings.generate([STORY], GREEDY) == [outputs(llm, STORY, GREEDY)[0].outputs[0].text]


def test_seeds_repeat(llm: LLM) -> None:
    def tokens(**kwargs: int) -> list[int]:
        return outputs(llm, STORY, SamplingParams(max_tokens=20, **kwargs))[0].outputs[0].token_ids

    assert tokens(seed=3) == tokens(seed=3) == tokens(seq_seed=3)
    assert tokens(seed=3) != tokens(seed=4)


def test_stop(llm: LLM) -> None:
    text = outputs(llm, STORY, SamplingParams(temperature=0, max_tokens=30))[0].outputs[0].text
    stop = text[10:16]
    answer = outputs(llm, STORY, SamplingParams(temperature=0, max_tokens=30, stop=stop))[0].outputs[0]
    assert answer.text == text[: text.index(stop)] and answer.finish_reason == "stop"


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"temperature": -1}, ("temperature", "-1", "[0, 100]")),
        ({"temperature": float("nan")}, ("temperature", "nan")),
        ({"temperature": "hot"}, ("temperature", "'hot'", "a number")),
        ({"top_p": 0}, ("top_p", "0", "(0, 1]")),
        ({"top_k": 0}, ("top_k", "0")),
        ({"max_tokens": -1}, ("max_tokens", "-1")),
        ({"max_tokens": 10**9}, ("max_tokens", "1000000000")),
        ({"max_tokens": 10**12}, ("max_tokens", "1000000000000")),
        ({"n": 0}, ("n 0", "1..128")),
        ({"n": 10**6}, ("n 1000000", "1..128")),
        ({"seed": -1}, ("seed", "-1", "2**64 - 1")),
        ({"stop": [""]}, ("stop",)),
        ({"stop": 5}, ("stop", "5")),
        ({"stop_token_ids": [99999]}, ("stop_token_ids", "99999")),
        ({"logit_bias": {5: 500}}, ("logit_bias", "500", "[-100, 100]")),
        ({"top_logprobs": 1001}, ("top_logprobs", "1001", "1000")),
        ({"cache_mode": "some"}, ("cache_mode", "'some'", "'exact'")),
        ({"deadline_ms": 0}, ("deadline_ms", "0")),
        ({"so_args": {"schema_type": "regex"}}, ("so_args", "schema")),
        ({"so_args": {"schema_type": "regexp", "schema": "a+"}}, ("so_args.schema_type", "regexp")),
    ],
    ids=str,
)
def test_wrong_parameters_name_field_value_and_limit(
    llm: LLM, params: dict[str, object], words: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError) as error:
        llm.generate(STORY, SamplingParams(**params))  # type: ignore[arg-type]
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"model": "/no/such/place"}, ("/no/such/place",)),
        ({"model": "owner/absent-name"}, ("owner/absent-name", "hf download")),
        ({"numerics": "exact"}, ("exact", "vendor")),
        ({"max_model_len": 1 << 30}, ("max_model_len",)),
        ({"max_num_seqs": 0}, ("max_num_seqs", "0")),
        ({"gpu_memory_utilization": 1.5}, ("gpu_memory_utilization", "1.5")),
        ({"gpu_memory_utilization": 1e-6}, ("not enough memory",)),
        ({"truncation": "some"}, ("truncation", "compact")),
        ({"context_parallel_size": 2}, ("context_parallel_size", "2")),
        ({"engine_type": "PROMPT"}, ("engine_type", "PROMPT")),
    ],
    ids=str,
)
def test_wrong_engine_arguments(arguments: dict[str, object], words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError) as error:
        LLM(**arguments)  # type: ignore[arg-type]
    assert all(word in str(error.value) for word in words), error.value


def test_unknown_engine_argument() -> None:
    with pytest.raises(TypeError, match="max_seq_len"):
        LLM(max_seq_len=5)


def test_a_bad_prompt_fails_alone(llm: LLM) -> None:
    (good,) = outputs(llm, STORY, GREEDY)
    results = outputs(llm, [STORY, "", STORY], GREEDY)
    assert [r.outputs[0].finish_reason for r in results] == ["length", "error", "length"]
    assert "empty" in results[1].outputs[0].error
    assert results[2].outputs[0].text == good.outputs[0].text
    ids = good.prompt_token_ids
    limit = llm.engine.max_model_len
    results = outputs(llm, prompt_token_ids=[ids, [5, 10**6], [7] * limit, ids], sampling_params=GREEDY)
    assert [r.outputs[0].finish_reason for r in results] == ["length", "error", "error", "length"]
    assert "1000000" in results[1].outputs[0].error
    assert results[2].outputs[0].error.count(str(limit)) == 2


def test_prompts_of_the_wrong_kind(llm: LLM) -> None:
    for prompts in (["a\ud800"], [b"a"], [5]):
        with pytest.raises(ValueError, match="prompt 0"):
            llm.generate(prompts, GREEDY)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="prompt 0"):
        llm.generate(prompt_token_ids=[[5, 2**40]])
    with pytest.raises(ValueError, match="not both"):
        llm.generate("a", GREEDY, prompt_token_ids=[5])
    with pytest.raises(ValueError, match="give prompts"):
        llm.generate()
    assert llm.generate([]) == []


def test_tokenizer(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    text = "naïve — 日本語 😀 <｜User｜>"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode([10**6, -1]) == ""
    assert isinstance(tokenizer.decode(tokenizer.encode("😀")[:1]), str)
    assert tokenizer.eos_token_id == 1


def test_other_threads_run_while_the_engine_works(llm: LLM) -> None:
    ticks = []
    done = threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.002)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        begin = time.monotonic()
        outputs(llm, [STORY] * 8, SamplingParams(max_tokens=150, ignore_eos=True))
        seconds = time.monotonic() - begin
    finally:
        done.set()
        thread.join()
    assert sum(t >= begin for t in ticks) > 20 * min(seconds, 1)


def test_two_threads_share_an_engine(llm: LLM) -> None:
    results: dict[int, str] = {}

    def work(i: int) -> None:
        results[i] = outputs(llm, STORY, GREEDY)[0].outputs[0].text

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 4 and len(set(results.values())) == 1


def test_ctrl_c_raises_keyboard_interrupt() -> None:
    program = (
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job inherits it ignored
        "from deepinfer import LLM, SamplingParams\n"
        "llm = LLM(num_threads=1)\n"
        "print('ready', flush=True)\n"
        "try:\n"
        "    llm.generate(['Once upon a time'] * 64, SamplingParams(max_tokens=1500, ignore_eos=True))\n"
        "except KeyboardInterrupt:\n"
        "    text = llm.generate(['Once'], SamplingParams(max_tokens=2, ignore_eos=True))[0].outputs[0].token_ids\n"
        "    print('interrupted', len(text), flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.3)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    assert out == "interrupted 2\n" and err == ""


def test_closed(llm: LLM) -> None:
    other = LLM(num_threads=1, max_num_seqs=1)
    other.close()
    with pytest.raises(RuntimeError, match="closed"):
        other.generate("a")


def test_the_example_runs_three_ways(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--deepseek-ai--DeepSeek-V4.1-Flash-1017" / "snapshots" / "abc"
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(ROOT / "models" / "tiny")
    tiny = str(ROOT / "models" / "tiny")
    hub = {"HF_HUB_CACHE": str(tmp_path)}
    texts = []
    for extra, args in (
        ({}, []),
        ({"DEEPINFER_HF_MODEL_DIR": tiny}, []),
        (hub, ["deepseek-ai/DeepSeek-V4.1-Flash-1017"]),
    ):
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples" / "offline_inference.py"), *args],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=tmp_path,
            env={**os.environ, **extra},
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        texts.append(done.stdout)
    assert "42" in texts[0] and texts[0] == texts[1] == texts[2]


def test_the_package_is_typed() -> None:
    package = ROOT / "python" / "deepinfer"
    assert (package / "py.typed").exists()
    stub = (package / "_core.pyi").read_text()
    assert "class Engine" in stub and "def generate" in stub
