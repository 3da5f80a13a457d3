"""Load generators: their help, their results and what they print, as real ones of several versions wrote them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpu_server.load import generators
from ansible.module_utils.gpu_server.load.generators import GENERATORS, Job
from hypothesis import given
from hypothesis import strategies as st

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "generators"
VERSIONS = sorted(path.name for path in FIXTURES.iterdir() if path.is_dir())
JOB = Job("http://127.0.0.1:8000", "glm-5", 2, 6, 32, 24, 120, 11, tokenizer="/models/tiny")
CELL = {
    "concurrency", "prompt_tokens_asked", "output_tokens_asked", "requests", "completed", "failed", "seconds", "output_tokens", "prompt_tokens",
    "output_tokens_per_s", "total_tokens_per_s", "per_stream_tokens_per_s", "first_token_s", "token_gap_ms", "problems",
}  # fmt: skip


def generator(version: str) -> generators.Generator:
    return GENERATORS[version.partition("-")[0]]


def cell(version: str, kind: str = "") -> dict[str, Any]:
    return generators.result(generator(version), (FIXTURES / version / ("result%s.json" % kind)).read_text(), JOB)


def test_the_versions_are_those_that_the_documentation_names() -> None:
    page = (FIXTURES.parents[2] / "docs" / "benchmark.md").read_text()
    assert {version.partition("-")[0] for version in VERSIONS} == set(GENERATORS)
    assert [version for version in VERSIONS if version.partition("-")[2] not in page] == []


@pytest.mark.parametrize("version", VERSIONS)
def test_the_figures_of_a_real_run(version: str) -> None:
    found = cell(version)
    assert set(found) == CELL
    assert (found["completed"], found["failed"], found["requests"], found["problems"]) == (6, 0, 6, [])
    assert found["prompt_tokens"] == pytest.approx(6 * 32, abs=6)
    # What it says of itself holds together: tokens over seconds, and two streams at a time.
    assert found["output_tokens_per_s"] == pytest.approx(found["output_tokens"] / found["seconds"], rel=0.02)
    assert found["total_tokens_per_s"] == pytest.approx(
        (found["output_tokens"] + found["prompt_tokens"]) / found["seconds"], rel=0.02
    )
    assert found["output_tokens_per_s"] < 2 * found["per_stream_tokens_per_s"]
    assert 0 < found["first_token_s"]["median"] <= found["first_token_s"]["p95"] < found["seconds"]
    assert 0 < found["token_gap_ms"]["median"] <= found["token_gap_ms"]["p95"] < 1000 * found["seconds"]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_generators_own_figures_are_the_same(version: str) -> None:
    found, text = cell(version), (FIXTURES / version / "result.json").read_text()
    theirs = json.loads(text)
    if version.startswith("guidellm"):
        metrics = theirs["benchmarks"][0]["metrics"]
        assert found["first_token_s"]["p95"] == pytest.approx(
            metrics["time_to_first_token_ms"]["successful"]["percentiles"]["p95"] / 1000, abs=1e-4
        )
        assert found["output_tokens"] == metrics["output_token_count"]["successful"]["total_sum"]
        return
    assert found["first_token_s"]["median"] == pytest.approx(theirs["median_ttft_ms"] / 1000, abs=1e-4)
    assert found["output_tokens_per_s"] == pytest.approx(theirs["output_throughput"], rel=1e-3)
    assert found["per_stream_tokens_per_s"] == pytest.approx(1000 / theirs["median_tpot_ms"], rel=1e-3)
    assert found["token_gap_ms"]["median"] == pytest.approx(theirs["median_itl_ms"], rel=1e-3)


@pytest.mark.parametrize(
    "version", [version for version in VERSIONS if (FIXTURES / version / "result-failures.json").exists()]
)
def test_requests_that_failed(version: str) -> None:
    found = cell(version, "-failures")
    assert (found["completed"], found["failed"]) == (4, 2)
    [problem] = found["problems"]
    assert "Internal Server Error" in problem
    # A nought in the lists is a failed request, not a fast one.
    assert found["first_token_s"]["median"] > 0.05
    assert found["output_tokens_per_s"] == pytest.approx(found["output_tokens"] / found["seconds"], rel=0.02)


@pytest.mark.parametrize("version", ["vllm-0.33.0", "guidellm-0.8.1"])
def test_a_run_in_which_nothing_went_well_has_no_rates(version: str) -> None:
    found = cell(version, "-refused")
    assert (found["completed"], found["failed"]) == (0, 6)
    assert [
        found[name]
        for name in ("output_tokens_per_s", "total_tokens_per_s", "per_stream_tokens_per_s", "first_token_s")
    ] == [None] * 4
    assert "Unprocessable Entity" in found["problems"][0]


def test_without_details_the_generators_own_percentiles_are_taken() -> None:
    theirs = json.loads((FIXTURES / "vllm-0.33.0" / "result.json").read_text())
    text = json.dumps({name: value for name, value in theirs.items() if not isinstance(value, list)})
    found = generators.result(generators.GENERATORS["vllm"], text, JOB)
    assert found["first_token_s"] == {
        "median": round(theirs["median_ttft_ms"] / 1000, 4),
        "p95": round(theirs["p95_ttft_ms"] / 1000, 4),
    }
    assert found["token_gap_ms"] == {"median": round(theirs["median_itl_ms"], 4), "p95": round(theirs["p95_itl_ms"], 4)}


HELPS = ["sglang-0.4.6.post5/help.txt", "sglang-0.5.23/help.txt", "vllm-0.33.0/help-all.txt", "guidellm-0.8.1/help.txt"]


@pytest.mark.parametrize("name", HELPS)
def test_the_installed_version_knows_every_option(name: str) -> None:
    text, one = (FIXTURES / name).read_text(), generator(name)
    assert generators.faults(one, text, JOB) == []
    assert generators.known_options(one, text, JOB) == [option for option, _value in one.optional(JOB)]


@pytest.mark.parametrize("name", HELPS)
def test_each_required_option_is_missed_where_the_help_lacks_it(name: str) -> None:
    text, one = (FIXTURES / name).read_text(), generator(name)
    for option in {option for option, _value in one.required(JOB)}:
        other = re.sub(r"(?<![\w-])%s(?![\w-])" % re.escape(option), option + "s", text)
        [fault] = generators.faults(one, other, JOB)
        assert fault == "it knows no %s (it has %ss)" % (option, option)


@pytest.mark.parametrize("name", HELPS)
def test_each_choice_is_missed_where_the_help_lacks_it(name: str) -> None:
    text, one = (FIXTURES / name).read_text(), generator(name)
    for option, choice in one.choices.items():
        other = re.sub(r"(?<![\w-])%s(?![\w-])" % re.escape(choice), "something", text)
        assert generators.faults(one, other, JOB) == ["its %s does not offer %s" % (option, choice)]


def test_the_short_help_of_vllm_is_not_enough() -> None:
    text = (FIXTURES / "vllm-0.33.0" / "help.txt").read_text()
    assert "it knows no --base-url" in generators.faults(generators.GENERATORS["vllm"], text, JOB)
    assert generators.GENERATORS["vllm"].helps[0] == "--help=all"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_command_line_is_the_one_that_really_ran(version: str) -> None:
    ran = (FIXTURES / version / "command.txt").read_text().split()
    one = generator(version)
    words = generators.command(one, [], [option for option, _value in one.optional(JOB)], JOB)
    assert [word for word in words if word.startswith("--")] == [word for word in ran if word.startswith("--")]


def test_an_option_that_is_not_there_is_left_out() -> None:
    words = generators.command(generators.GENERATORS["vllm"], ["vllm", "bench", "serve"], ["--tokenizer"], JOB)
    assert words[:3] == ["vllm", "bench", "serve"]
    assert "--save-detailed" not in words and words[words.index("--tokenizer") + 1] == "/models/tiny"


def test_guidellm_takes_no_name_that_its_options_would_cut() -> None:
    text = (FIXTURES / "guidellm-0.8.1" / "help.txt").read_text()
    [fault] = generators.faults(generators.GUIDELLM, text, Job("http://x", "a,b", 1, 1, 1, 1, 1, 1, tokenizer="/t"))
    assert "comma" in fault


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("sglang-0.5.23/log.txt", 6),
        ("vllm-0.33.0/log.txt", 6),
        ("guidellm-0.8.1/log.txt", 6),
        ("sglang-0.5.23/log-refused.txt", None),
    ],
)
def test_progress_in_what_was_really_printed(name: str, last: int | None) -> None:
    text = (FIXTURES / name).read_bytes().decode()
    assert generators.progress(text, 6) == last
    assert generators.progress(text, 7) is None or name.startswith("guidellm")  # a bar of something else
    seen = [
        count for count in (generators.progress(text[:end], 6) for end in range(0, len(text), 97)) if count is not None
    ]
    assert seen == sorted(seen)


@pytest.mark.parametrize("version", ["sglang-0.4.6.post5", "sglang-0.5.23"])
def test_the_last_lines_say_what_went_wrong(version: str) -> None:
    shown = generators.tail((FIXTURES / version / "log-refused.txt").read_text())
    assert "Warmup failed" in shown
    assert "Namespace(" not in shown and 'File "' not in shown
    assert len(shown) <= generators.TAIL_CHARACTERS


def test_the_last_lines_of_nothing() -> None:
    assert generators.tail("\n\n\r  0%|   | 0/6 [00:00<?, ?it/s]\n====\n") == "it printed nothing"
    assert generators.redacted("Bearer abc", "abc") == "Bearer ***"
    assert generators.redacted("Bearer abc", None) == "Bearer abc"


@pytest.mark.parametrize(
    ("engine", "words", "expected"),
    [
        ("sglang", ["python", "-m", "sglang.launch_server", "--model-path", "/m", "--port", "1"], "/m"),
        ("sglang", ["python", "-m", "sglang.launch_server", "--model=/m", "--tokenizer-path", "/t"], "/t"),
        ("vllm", ["/opt/v/bin/python", "/opt/v/bin/vllm", "serve", "org/model", "--port", "1"], "org/model"),
        ("vllm", ["vllm", "serve", "org/model", "--tokenizer", "/t"], "/t"),
        ("vllm", ["vllm", "serve", "--port", "1", "--model", "/m"], "/m"),
        ("transformers", ["transformers", "serve", "/m"], "/m"),
        ("vllm", ["vllm", "serve", "--port", "1"], None),
        (None, [], None),
    ],
)
def test_where_the_tokenizer_is(engine: str | None, words: list[str], expected: str | None) -> None:
    assert generators.tokenizer_of(engine, words) == expected


def test_facts_of_a_server_that_are_missing_are_no_fault() -> None:
    assert generators.server_of({}) == {
        "engine": None, "python": None, "environment": {}, "user_id": None, "tokenizer": None, "trust_remote_code": False,
    }  # fmt: skip


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(VERSIONS), st.data())
def test_a_result_with_anything_in_it_is_read_or_refused(version: str, data: st.DataObject) -> None:
    content = json.loads((FIXTURES / version / "result.json").read_text())
    inner = content["benchmarks"][0] if "benchmarks" in content else content
    inner[data.draw(st.sampled_from(sorted(inner)))] = data.draw(JSON)
    if "metrics" in inner and isinstance(inner["metrics"], dict) and inner["metrics"]:
        inner["metrics"][data.draw(st.sampled_from(sorted(inner["metrics"])))] = data.draw(JSON)
    _read(version, json.dumps(content))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("value", [True, 7, 0.5, "x", {"a": 1}, [True], [[True]], [{"a": [1]}]])
def test_every_part_of_a_result_may_be_of_another_kind(version: str, value: Any) -> None:
    content = json.loads((FIXTURES / version / "result.json").read_text())
    inner = content["benchmarks"][0] if "benchmarks" in content else content
    for part in (inner, *(inner[name] for name in ("metrics", "requests") if isinstance(inner.get(name), dict))):
        for name in list(part):
            kept, part[name] = part[name], value
            _read(version, json.dumps(content))
            part[name] = kept


@given(st.sampled_from(VERSIONS), st.integers(0, 10_000))
def test_a_result_that_is_cut_is_refused(version: str, at: int) -> None:
    text = (FIXTURES / version / "result.json").read_text()
    _read(version, text[:at])


def _read(version: str, text: str) -> None:
    try:
        found = generators.result(generator(version), text, JOB)
    except ValueError as error:
        assert str(error)
        return
    assert set(found) == CELL
    for name in ("output_tokens_per_s", "total_tokens_per_s", "per_stream_tokens_per_s", "seconds"):
        assert found[name] is None or found[name] >= 0
    json.dumps(found, allow_nan=False)
