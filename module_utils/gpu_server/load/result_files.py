"""The result files of load generators, each in its own form, as cells: the same figures under the same names.

The forms were read in the sources of the versions that docs/benchmark.md names. A file that another program wrote may
hold anything anywhere: what is no figure is None, and what is no result is a ValueError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...gpu_host.evidence import values
from .job import Job
from .request_load import summarise_spread

# (the parsed file, the load) -> its cell
Parser = Callable[["dict[str, Any]", Job], "dict[str, Any]"]


def parse_serving(found: dict[str, Any], job: Job) -> dict[str, Any]:
    """SGLang's and vLLM's result, which have one ancestor.

    Totals, times in milliseconds and, with details, lists over the requests.
    """
    completed = _count(found.get("completed"))
    if completed is None or _number(found.get("duration")) is None:
        raise ValueError("it holds no `completed` and `duration`")
    lengths = _numbers(found.get("output_lens"))
    went_well = [length > 0 for length in lengths]
    # A request that failed stands in the lists too, as a nought.
    firsts = [value for value, good in zip(_numbers(found.get("ttfts")), went_well) if good and value > 0]
    gaps = [gap for one in _list(found.get("itls")) for gap in _numbers(one)]
    per_token = _positive(found.get("median_tpot_ms"))
    errors = [text for text in _list(found.get("errors")) if isinstance(text, str) and text.strip()]
    return _cell(
        job,
        completed=completed,
        seconds=found["duration"],
        output=found.get("total_output_tokens"),
        prompt=found.get("total_input_tokens"),
        per_stream=1000.0 / per_token if per_token else None,
        first=summarise_spread(firsts, 1.0) or _given(found, "ttft", 0.001),
        gap=summarise_spread(gaps, 1000.0) or _given(found, "itl", 1.0),
        errors=errors,
    )


def _given(found: dict[str, Any], name: str, factor: float) -> dict[str, float] | None:
    """The generator's own median and 95th percentile, where it gave no details."""
    median, high = _positive(found.get("median_%s_ms" % name)), _positive(found.get("p95_%s_ms" % name))
    return {"median": round(median * factor, 4), "p95": round(high * factor, 4)} if median and high else None


def parse_guidellm(found: dict[str, Any], job: Job) -> dict[str, Any]:
    """guidellm's result: statistics of the requests that went well, times in milliseconds."""
    try:
        one = found["benchmarks"][0]
        metrics, requests = one["metrics"], one["requests"]
        completed = _count(metrics["request_totals"]["successful"])
        duration = _number(one["duration"])
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError("it is not laid out as guidellm 0.8 writes it (%s)" % error) from error
    if completed is None or duration is None:
        raise ValueError("it holds no count of requests and no duration")

    def good(name: str) -> dict[str, Any]:
        value = metrics.get(name)
        value = value.get("successful") if isinstance(value, dict) else None
        return value if isinstance(value, dict) and value.get("count") else {}

    def middle(name: str, factor: float) -> dict[str, float] | None:
        value = good(name)
        percentiles = value.get("percentiles")
        median, high = (
            _positive(value.get("median")),
            _positive(percentiles.get("p95") if isinstance(percentiles, dict) else None),
        )
        return {"median": round(median * factor, 4), "p95": round(high * factor, 4)} if median and high else None

    gap = middle("inter_token_latency_ms", 1.0)
    failures = [
        entry
        for kind in ("errored", "incomplete")
        for entry in (_list(requests.get(kind)) if isinstance(requests, dict) else ())
    ]
    infos = [entry["info"] for entry in failures if isinstance(entry, dict) and isinstance(entry.get("info"), dict)]
    errors = [str(info.get("error") or info.get("status") or "") for info in infos]
    return _cell(
        job,
        completed=completed,
        seconds=duration,
        output=good("output_token_count").get("total_sum"),
        prompt=good("prompt_token_count").get("total_sum"),
        per_stream=1000.0 / gap["median"] if gap else None,
        first=middle("time_to_first_token_ms", 0.001),
        gap=gap,
        errors=errors,
    )


def parse_result(parse: Parser, text: str, job: Job) -> dict[str, Any]:
    """The cell of a result file, by the parser of its generator; ValueError with what is wrong with it."""
    try:
        found = values.json_value(text)
    except ValueError as error:
        raise ValueError("it is not JSON (%s)" % error) from error
    if not isinstance(found, dict):
        raise ValueError("it holds no object")
    return parse(found, job)


def make_failed_cell(job: Job, problem: str) -> dict[str, Any]:
    """A load of which nothing is known but that it did not end well."""
    cell = _cell(
        job, completed=0, seconds=None, output=None, prompt=None, per_stream=None, first=None, gap=None, errors=[]
    )
    return {**cell, "problems": [problem]}


def _cell(
    job: Job, *, completed: int, seconds: Any, output: Any, prompt: Any, per_stream: float | None,
    first: dict[str, float] | None, gap: dict[str, float] | None, errors: list[str],
) -> dict[str, Any]:  # fmt: skip
    """The figures under the names that every generator's have here; a rate only where something was completed."""
    time, out, put = _positive(seconds), _number(output), _number(prompt)
    good = completed > 0 and time is not None
    return {
        "concurrency": job.concurrency,
        "prompt_tokens_asked": job.prompt_tokens,
        "output_tokens_asked": job.output_tokens,
        "requests": job.requests,
        "completed": completed,
        "failed": max(0, job.requests - completed),
        "seconds": round(time, 2) if time else None,
        "output_tokens": round(out) if out is not None else None,
        "prompt_tokens": round(put) if put is not None else None,
        "output_tokens_per_s": round(out / time, 2) if good and time and out else None,
        "total_tokens_per_s": round((out + put) / time, 2) if good and time and out and put is not None else None,
        "per_stream_tokens_per_s": round(per_stream, 2) if good and per_stream else None,
        "first_token_s": first if good else None,
        "token_gap_ms": gap if good else None,
        "problems": sorted({_short(text) for text in errors if text.strip()})[:5],
    }


def _short(text: str) -> str:
    """The line of a traceback that says what it was."""
    return (
        [line.strip() for line in text.strip().splitlines() if line.strip()][-1][:300]
        if "Traceback" in text
        else " ".join(text.split())[:300]
    )


def _number(value: Any) -> float | None:
    """A figure that can be one, else None.

    Not NaN, which a generator divides to when nothing was completed, not negative, not a truth value.
    """
    number = None if isinstance(value, str) else values.decimal_number(value)
    return number if number is not None and number >= 0 else None


def _positive(value: Any) -> float | None:
    return _number(value) or None


def _count(value: Any) -> int | None:
    number = _number(value)
    return round(number) if number is not None else None


def _list(value: Any) -> list[Any]:
    """`value` where it is a list: a file that another program wrote may hold anything anywhere."""
    return value if isinstance(value, list) else []


def _numbers(found: Any) -> list[float]:
    return [_number(value) or 0.0 for value in _list(found)]
