"""perftest (ib_write_bw and its kin), SuperBench, `dcgmi diag`, and benchmarks of SGLang and vLLM."""

from __future__ import annotations

import json
import re
from typing import Any

from ..evidence import values
from .output import BANDWIDTH, BOTH_WAYS, COLLECTIVE, NETWORK, Figures, Output, parse_count, parse_figure

_PERFTEST_ROW = re.compile(r"^\s{0,8}(\d{1,12})\s+\d{1,12}\s+([\d.]+)\s+([\d.]+)\s+[\d.]+", re.M)
_FIGURE = r"(?::\d{1,9})?\"?\s{0,8}[:,= ]\s{0,8}([\d.]+)"
_COPY = re.compile(
    r"gpu(\d{1,3})_to_gpu(\d{1,3})_(?:(?P<way>read|write)_)?by_(?:gpu\d{1,3}_using_)?(?P<engine>sm|dma)"
    r"(?:_under_numa\d{1,2})?(?:_(?P<ways>uni|bi))?(?:_bw)?" + _FIGURE
)
_NV_PAIR = re.compile(
    r"device_to_device_(?P<both>bidirectional_)?memcpy_(?P<way>read|write)_(?P<engine>ce|sm)_"
    r"(?:bandwidth_|bw_)?gpu(\d{1,3})_gpu(\d{1,3})(?:_bw)?" + _FIGURE
)
_COLLECTIVE = re.compile(
    r"(?:nccl-bw|rccl-bw)[\w:-]{0,60}/(?:operation:)?(?P<op>[a-z_]{1,40}?)_(?P<size>\d{1,14})_busbw" + _FIGURE
)
_SERVER_LINES = {
    "output_tokens_per_s": r"^Output token throughput \(tok/s\):\s+([\d.]+)",
    "total_tokens_per_s": r"^Total (?:T|t)oken throughput \(tok/s\):\s+([\d.]+)",
    "requests_per_s": r"^Request throughput \(req/s\):\s+([\d.]+)",
    "requests": r"^Successful requests:\s+(\d{1,9})",
    "failed_requests": r"^Failed requests:\s+(\d{1,9})",
    "concurrency": r"^Max request concurrency:\s+(\d{1,9})",
    "first_token_ms": r"^Median TTFT \(ms\):\s+([\d.]+)",
    "token_ms": r"^Median (?:TPOT|ITL) \(ms\):\s+([\d.]+)",
}
_SERVER_KEYS = {
    "output_tokens_per_s": ("output_throughput",),
    "total_tokens_per_s": ("total_token_throughput", "total_throughput"),
    "requests_per_s": ("request_throughput",),
    "requests": ("completed",),
    "failed_requests": ("failed",),
    "concurrency": ("max_concurrency",),
    "first_token_ms": ("median_ttft_ms",),
    "token_ms": ("median_tpot_ms", "median_itl_ms"),
}


def read_perftest(text: str) -> Output:
    """Bandwidth between a network card and memory; a figure only where that memory is a GPU's."""
    found = Output("perftest")
    gpu = re.search(
        r"--use_cuda(?:_dmabuf)?[= ](\d{1,3})|Using GPU[^\n]{0,40}?(\d{1,3})|Picking "
        r"(?:device|GPU)[^\n]{0,20}?(\d{1,3})|creating CUDA Ctx",
        text,
    )
    rows = _PERFTEST_ROW.findall(text)
    if not rows or gpu is None:
        return found
    size, _peak, average = max(rows, key=lambda row: parse_count(row[0]))
    gbits = "Gb/sec" in text
    value = parse_figure(average)
    if value is not None:
        card = re.search(r"Device\s+: (\S{1,40})", text)
        method = "%s, GPU %s" % (
            card.group(1) if card else "a network card",
            next((part for part in gpu.groups() if part), "?"),
        )
        gb_s = value / 8 if gbits else value * (1 << 20) / 1e9
        found.figures.append(Figures(NETWORK, method, None, {}, round(gb_s, 3), parse_count(size)))
    if re.search(r"Couldn't|Unable to|Failed to|error", text):
        found.failed.append("perftest: it ended with an error")
    return found


def read_superbench(text: str) -> Output:
    """Results of SuperBench, as JSON Lines, as lines of a log, or as gpu_copy prints them."""
    found = Output("superbench")
    tests: dict[tuple[str, str], Figures] = {}
    for source, target, way, engine, ways, value in _COPY.findall(text):
        if source != target:
            kind = BOTH_WAYS if ways == "bi" else BANDWIDTH
            _add(
                tests,
                kind,
                "%s%s" % ("copy engine" if engine == "dma" else "kernel", ", " + way if way else ""),
                (parse_count(source), parse_count(target)),
                value,
            )
    for both, way, engine, first, second, value in _NV_PAIR.findall(text):
        if first != second:
            # nvbandwidth's rows and columns: a read goes from row to column, a write from column to row.
            pair = (
                (parse_count(first), parse_count(second))
                if way == "read"
                else (parse_count(second), parse_count(first))
            )
            _add(
                tests,
                BOTH_WAYS if both else BANDWIDTH,
                "%s, %s" % ("copy engine" if engine == "ce" else "kernel", way),
                pair,
                value,
            )
    found.figures += tests.values()
    best: dict[str, tuple[int, float]] = {}
    for operation, size, value in _COLLECTIVE.findall(text):
        figure = parse_figure(value)
        if figure and (parse_count(size), figure) > best.get(operation, (0, 0.0)):
            best[operation] = (parse_count(size), figure)
    found.figures += [Figures(COLLECTIVE, name, None, {}, value, size) for name, (size, value) in best.items()]
    for name, code in re.findall(r'(?<![\w:/-])([\w:/-]{3,80})/return_code"?\s{0,8}[:,= ]\s{0,8}(-?\d{1,9})', text):
        if parse_count(code):
            found.failed.append("%s: return code %s" % (name, code))
    return found


def _add(tests: dict[tuple[str, str], Figures], kind: str, method: str, pair: tuple[int, int], text: str) -> None:
    value = parse_figure(text)
    if value:
        figures = tests.setdefault((kind, method), Figures(kind, method, True))
        figures.pairs[pair] = max(value, figures.pairs.get(pair, 0.0))


def read_dcgm(text: str) -> Output:
    """`dcgmi diag -j` of DCGM 2 to 4 (its JSON has changed its shape), and the table that it prints without -j."""
    found = Output("dcgmi diag")
    start = text.find("{")
    content: Any = None
    if start >= 0:
        try:
            content, _end = json.JSONDecoder().raw_decode(text[start:])
        except ValueError:
            found.failed.append("dcgmi diag: its JSON cannot be read")
    tests = list(_tests(content, 0))
    for name, result in tests:
        status = str(result.get("status", "")).strip().lower()
        if status in ("fail", "failed", "error"):
            found.failed.append("%s%s: Fail%s" % (name, _entity(result), _warnings(result)))
        elif status in ("skip", "skipped", "not run"):
            found.waived.append("%s%s" % (name, _entity(result)))
    for name, status in re.findall(r"^\|\s{0,4}([\w /()-]{3,40}?)\s+\|\s(Fail|Skip)[^|]{0,60}\|", text, re.M):
        (found.failed if status == "Fail" else found.waived).append(
            "%s: %s" % (name.strip(), status) if status == "Fail" else name.strip()
        )
    found.complete = bool(tests) or "|" in text
    return found


def _tests(node: Any, depth: int) -> Any:
    """(name of a test, one of its results), wherever they stand."""
    if depth > 6:
        return
    if isinstance(node, list):
        for part in node[:2000]:
            yield from _tests(part, depth + 1)
    elif isinstance(node, dict):
        results = node.get("results")
        name = node.get("name") or node.get("test_name")
        if name and isinstance(results, list):
            yield from ((str(name), result) for result in results if isinstance(result, dict))
            summary = node.get("test_summary")
            if isinstance(summary, dict) and not results:
                yield str(name), summary
            return
        for key, part in node.items():
            if key not in ("info", "warnings"):
                yield from _tests(part, depth + 1)


def _entity(result: dict[str, Any]) -> str:
    where = result.get("gpu_id", result.get("gpu_ids", result.get("entity_id")))
    return " on GPU %s" % where if where not in (None, "") else ""


def _warnings(result: dict[str, Any]) -> str:
    told = result.get("warnings") or result.get("warning") or []
    told = told if isinstance(told, list) else [told]
    words = [str(one.get("warning", one)) if isinstance(one, dict) else str(one) for one in told]
    return " (%s)" % "; ".join(words)[:300] if words else ""


def read_server_benchmark(text: str) -> Output:
    """What a server's own load generator printed, or its JSON (a document, or one a line)."""
    found = Output("server benchmark")
    for block in re.split(r"^=+ (?=(?:Serving|Offline Throughput) Benchmark Result)", text, flags=re.M)[1:]:
        figures = {
            name: parse_figure(match.group(1))
            for name, line in _SERVER_LINES.items()
            if (match := re.search(line, block, re.M))
        }
        if figures:
            backend = re.search(r"^Backend:\s+(\S+)", block, re.M)
            found.server.append({"engine": backend.group(1) if backend else None, **figures})
    for line in text.split("\n") if "{" in text else ():
        _add_document(line, found)
    if not found.server and "{" in text:
        _add_document(text, found)
    throughput = re.search(
        r"^Throughput: ([\d.]+) requests/s, ([\d.]+) total tokens/s(?:, ([\d.]+) output tokens/s)?", text, re.M
    )
    if throughput:
        names = ("requests_per_s", "total_tokens_per_s", "output_tokens_per_s")
        found.server.append(
            {"engine": "vllm", **{name: parse_figure(part) for name, part in zip(names, throughput.groups()) if part}}
        )
    found.failed += [
        "%d requests failed" % one["failed_requests"] for one in found.server if one.get("failed_requests")
    ]
    return found


def _add_document(text: str, found: Output) -> None:
    if text.lstrip()[:1] != "{" or len(text) > 4_000_000:
        return
    try:
        content = values.json_value(text)
    except ValueError:
        return
    if not isinstance(content, dict):
        return
    figures = {
        name: value
        for name, keys in _SERVER_KEYS.items()
        if (
            value := next(
                (parse_figure(content[key]) for key in keys if isinstance(content.get(key), (int, float))), None
            )
        )
        is not None
    }
    if "output_tokens_per_s" in figures or "total_tokens_per_s" in figures:
        backend = content.get("backend") or content.get("endpoint_type")
        found.server.append({"engine": str(backend) if backend else None, **figures})
