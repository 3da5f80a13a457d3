"""What a server's log says about its last start and its work.

Phases, progress, decode statistics, faults, NCCL's transport.
"""

from __future__ import annotations

import re
import statistics
from typing import Any

from ...gpu_host.evidence import values
from ...gpu_host.nvidia import nccl_log
from .. import engines
from ..engines import Engine
from ..engines.engine import UVICORN_REQUEST
from . import log_faults
from .log_lines import UNIT_START, Line, parse_lines

LAST_BATCHES = 20  # decode lines that a median is made of
LEAST_BATCHES = 5  # fewer are a warm-up, not a throughput
CONTINUATION_LINES = 3  # of an exception whose text goes on below its name
CLOCK_SECONDS = 5.0  # a start time from jiffies, a log's whole seconds
EXCERPT = 400  # characters of a line that a report shows

_PROGRESS = re.compile(r"(?<!\d)(\d{1,9})/(\d{1,9}) \[(\d[\d:]{0,15})<([\d:]{1,16}|\?)")
_ASKED = re.compile(r'"(?:GET|HEAD) \S+ HTTP/[\d.]+" \d{3}')  # somebody looks at it: no sign of life
_CHANNEL = re.compile(r"Channel \d+(?:/\d+)? : (\d+)\[(\w+)\] -> (\d+)\[(\w+)\](?: \[\w+\])? via (\S+)")
# NCCL's src/transport/net_ib.cc and src/graph/paths.cc (ncclTopoCheckGdr); before 2.19 "Enabled for HCA 0 'mlx5_0'".
_GDR_ENABLED = re.compile(
    r"GPU Direct RDMA (?:\((?P<how>nvidia-peermem|DMABUF)\) )?[Ee]nabled for HCA \d+ (?:: )?'?(?P<hca>[\w.:-]{1,64})"
)
_GDR_DISABLED = re.compile(r"GPU Direct RDMA Disabled for HCA \d+ (?:: )?'?(?P<hca>[\w.:-]{1,64})")
_GDR_TOO_FAR = re.compile(
    r"GPU Direct RDMA Disabled for GPU (?P<gpu>\w{1,12}) / HCA (?P<hca>\w{1,12}) \(distance (?P<why>[^)]{1,40})\)"
)
GDR_LIMIT = 16  # cards and pairs that are named
_NETWORK_CHANNEL = re.compile(r"Channel \d+(?:/\d+)? : .{1,60} via NET/(?P<path>[^\r\n]{1,80})")
_NCCL_VERSION = re.compile(r"is using nccl==([\d.]+)|NCCL version ([\d.]+)")
_NCCL_ENVIRONMENT = re.compile(r"NCCL INFO (NCCL_\w+) set by environment to ([^.\s]+)")
_PREFILL = re.compile(r"Prefill batch")
_KV_TOKENS = re.compile(
    r"max_total_num_tokens=(\d+)|KV cache size: ([\d,]+) tokens|KV Cache is allocated\..*?#tokens: (\d+)"
)
_CONTEXT = re.compile(r"context_len=(\d+)|Using max model len (\d+)|n_ctx_slot = (\d+)")
# What a traceback ends with.
_EXCEPTION = re.compile(r"(?:^|[\]\s])((?:\w+\.)*\w*(?:Error|Exception)): (?P<text>.+)$")
_CAPACITY = re.compile(r"GPU (\d{1,3}) has a total capacity of")
_HOLDER = re.compile(r"\bProcess (\d{1,10}) has (\d{1,6}(?:\.\d{1,3})?) (MiB|GiB) memory in use")
# SGLang 0.5.17 says the first two; uvicorn, which serves for every engine, the third.
_STOPS = re.compile(r"SIGTERM received|Gracefully exiting|INFO:\s{1,8}Shutting down$")
_DISABLED_P2P = re.compile(r"P2P is disabled between connected GPUs (\d+) and (\d+)")
_GENERATION = re.compile(r"/generate$|/completions$|/responses$|/messages$")


def read_log(
    text: str, now: float, utc_offset_s: int = 0, engine: Engine | None = None, since: float | None = None
) -> dict[str, Any]:
    """The facts of the last start in `text`; the same keys always, None for what the log does not say.

    ``{engine, lines, ends_with_request, started_line, phase, phases, progress, ready, ready_at, last_line,
    last_line_at, decode, faults, fatal, nccl, requests, kv_tokens, context_length, stopping}``. `stopping`: the line by
    which a server that was ready says that it was told to stop.

    `nccl.diagnostics`: lines of NCCL's own diagnostics that report something (NCCL_RUN_DIAGNOSTICS, 2.31 and newer);
    None where the log has none of them.
    `nccl.gdr`: GPUDirect RDMA, ``{enabled: {device: how}, disabled: [device], too_far: [text], channels, without,
    through, used}``: channels over the network, how many of them without it, what those go `through` (IB, Socket), and
    whether it is `used` (None where no channel goes over a network).

    `phases`: ``[{name, at, seconds, line}]`` in the order in which they were reached; `seconds` None for the last one.
    With `since` (when the process started) nothing that an earlier process wrote counts, even if the new one ended
    before its first usual line.
    """
    engine = engine or engines.find_engine_of_log(text[-200000:]) or engines.find_engine_of_log(text[:200000])
    lines = _of_last_start(_not_before(list(parse_lines(text, now, utc_offset_s)), since), engine)
    state = _State(engine)
    for line in lines:
        state.take(line)
    told = [line for line in lines if not _ASKED.search(line.text)]
    last = told[-1] if told else None
    return {
        "engine": engine.name if engine else None,
        "lines": len(told),
        "ends_with_request": bool(lines) and lines[-1] is not last,
        "started_line": lines[0].number
        if engine and lines and (engine.starts.search(lines[0].text) or UNIT_START.match(lines[0].text))
        else None,
        "started_at": next((line.at for line in lines if line.at is not None), None),
        "last_line": last.text[:EXCERPT] if last else None,
        "last_line_at": last.at if last else None,
        **state.result(now),
    }


def measure_age(now: float, at: float | None) -> float | None:
    """Seconds since `at`; None where that is not known, or is still to come: the clock was set back since."""
    return None if at is None or at > now + CLOCK_SECONDS else round(max(0.0, now - at), 1)


def _not_before(lines: list[Line], since: float | None) -> list[Line]:
    if since is None:
        return lines
    older = [
        position
        for position, line in enumerate(lines)
        if line.own and line.at is not None and line.at < since - CLOCK_SECONDS
    ]
    return lines[older[-1] + 1 :] if older else lines


def _of_last_start(lines: list[Line], engine: Engine | None) -> list[Line]:
    """The lines from the last start on; all of them where the log does not show one."""
    marks = [position for position, line in enumerate(lines) if UNIT_START.match(line.text)]
    if not marks and engine is not None:
        marks = [position for position, line in enumerate(lines) if engine.starts.search(line.text)]
    return lines[marks[-1] :] if marks else lines


class _State:
    """Collects what the lines of one start say."""

    def __init__(self, engine: Engine | None) -> None:
        self._engine = engine
        self._phases: list[dict[str, Any]] = []
        self._rank = -1
        self._progress: dict[str, Any] | None = None
        self._batches: list[dict[str, Any]] = []
        self._batch_count = 0
        self._faults: dict[str, dict[str, Any]] = {}
        self._open: list[dict[str, Any]] = []  # faults whose exception may go on in the next line
        self._open_lines = 0  # for how many lines
        self._oom: dict[str, Any] | None = None  # the gpu and the other processes on it that a message names
        self._general: set[str] = set()  # kinds that say that something failed, not what
        self._nccl: dict[str, Any] = {"version": None, "transports": {}, "environment": {}, "p2p_disabled_pairs": []}
        self._nccl["diagnostics"] = None
        self._channels: dict[str, set[str]] = {}
        self._gdr: dict[str, Any] = {
            "enabled": {},
            "disabled": [],
            "too_far": [],
            "channels": 0,
            "without": 0,
            "through": [],
        }
        self._requests: dict[str, Any] = {
            "ok": 0,
            "failed": 0,
            "last_code": None,
            "last_at": None,
            "last_ok_number": None,
            "health_not_ready": 0,
        }
        self._ready_at: float | None = None
        self._ready = False
        self._kv_tokens: int | None = None
        self._context: int | None = None
        self._stopping: str | None = None

    def take(self, line: Line) -> None:
        text = line.text
        self._take_phase(line)
        self._take_fault(line)
        match = _PROGRESS.search(text)
        if match and not self._ready:
            self._progress = {
                "done": values.whole_number(match[1]),
                "total": values.whole_number(match[2]),
                "left_s": _seconds(match[4]),
                "phase": self._phase,
            }
        if "NCCL" in text or "nccl" in text or " via " in text:
            self._take_nccl(text)
        self._take_request(line)
        self._take_batch(line)
        if self._kv_tokens is None and (match := _KV_TOKENS.search(text)):
            self._kv_tokens = _number(match)
        if self._ready and self._stopping is None and _STOPS.search(text):
            self._stopping = text[:EXCERPT]
        if self._context is None and (match := _CONTEXT.search(text)):
            self._context = _number(match)

    @property
    def _phase(self) -> str | None:
        return self._phases[-1]["name"] if self._phases else None

    def _take_phase(self, line: Line) -> None:
        if self._engine is None or self._ready:
            return
        if self._engine.ready.search(line.text):
            self._ready, self._ready_at = True, line.at
        for rank, phase in enumerate(self._engine.phases):
            if rank > self._rank and phase.pattern.search(line.text):
                if self._phases and self._phases[-1]["at"] is not None and line.at is not None:
                    self._phases[-1]["seconds"] = round(line.at - self._phases[-1]["at"], 1)
                self._rank = rank
                self._phases.append({"name": phase.name, "at": line.at, "seconds": None, "line": line.text[:EXCERPT]})
                break

    def _take_fault(self, line: Line) -> None:
        fault = log_faults.find_fault(line.text, self._engine.faults if self._engine else ())
        first = next(iter(self._faults.values()), None)
        self._continue_exception(line)
        match = _EXCEPTION.search(line.text)
        if first and first["exception"] is None and match:
            first["exception"] = match[0].lstrip("] ")[:EXCERPT]  # what the traceback after it ends with
            self._open, self._open_lines = [first], CONTINUATION_LINES
        self._take_holders(line)
        if fault is None:
            return
        self._general |= {fault.kind} if fault.general else set()
        known = self._faults.get(fault.kind)
        if known:
            known["count"] += 1
            known["last_at"], known["last_number"] = line.at, line.number
            return
        meaning, advice, direction = fault.meaning, fault.advice, fault.direction
        if fault.kind == "out_of_memory":
            when = (
                "serving"
                if self._ready
                else "graphs"
                if self._phase in ("graphs", "autotune", "kv_cache")
                else "weights"
                if self._phase == "weights"
                else "unknown"
            )
            meaning, advice, direction = log_faults.OUT_OF_MEMORY[when]
            advice = (self._engine.memory_advice if self._engine else {}).get(when, advice)
        self._faults[fault.kind] = {
            "kind": fault.kind,
            "fatal": fault.fatal,
            "count": 1,
            "at": line.at,
            "last_at": line.at,
            "line": line.text[:EXCERPT],
            "number": line.number,
            "last_number": line.number,
            "phase": "serving" if self._ready else self._phase,
            "meaning": meaning,
            "advice": advice,
            "direction": direction,
            "exception": None,
        }

        if fault.kind == "out_of_memory":
            self._oom = {"gpu": None, "holders": {}}
            self._take_holders(line)
        if match and self._faults[fault.kind]["exception"] is None:
            self._faults[fault.kind]["exception"] = match[0].lstrip("] ")[:EXCERPT]
            self._open.append(self._faults[fault.kind])
            self._open_lines = CONTINUATION_LINES

    def _continue_exception(self, line: Line) -> None:
        """The text of an exception may go on in indented lines below its name."""
        indented = line.text[:1] in (" ", "\t") and not line.text.lstrip().startswith("File ")
        if not indented or self._open_lines == 0:
            self._open = []
        self._open_lines = max(0, self._open_lines - 1)
        for fault in self._open:
            fault["exception"] = ("%s %s" % (fault["exception"], line.text.strip()))[:EXCERPT]

    def _take_holders(self, line: Line) -> None:
        """Whose memory it is that ran out: PyTorch's message names the GPU and every other process on it."""
        if self._oom is None:
            return
        if self._oom["gpu"] is None and (match := _CAPACITY.search(line.text)):
            self._oom["gpu"] = match[1]
        for pid, amount, unit in _HOLDER.findall(line.text):
            size = values.decimal_number(amount) or 0.0
            self._oom["holders"].setdefault(pid, size / (1024 if unit == "MiB" else 1))

    def _name_holder(self) -> None:
        """Another process that holds much of the GPU is the cause, whatever phase the start is in."""
        holders = (self._oom or {}).get("holders") or {}
        pid = max(holders, key=lambda one: holders[one], default=None)
        if pid is None or holders[pid] < log_faults.HOLDER_GIB:
            return
        gpu = self._oom["gpu"] if self._oom else None
        where = "GPU %s" % gpu if gpu is not None else "the GPU"
        self._faults["out_of_memory"].update(
            meaning=log_faults.HELD_BY_ANOTHER[0].format(pid=pid, gib=holders[pid], where=where),
            advice=log_faults.HELD_BY_ANOTHER[1].format(pid=pid),
            direction=None,
        )

    def _take_nccl(self, text: str) -> None:
        if match := _NCCL_VERSION.search(text):
            self._nccl["version"] = match[1] or match[2]
        told = nccl_log.find_diagnostics(text)
        if told is not None:
            self._nccl["diagnostics"] = self._nccl["diagnostics"] or []
            for line in told:
                _add_new(self._nccl["diagnostics"], line)
        if match := _CHANNEL.search(text):
            self._channels.setdefault(_transport(match[5]), set()).add("%s->%s" % (match[1], match[3]))
        if "GPU Direct RDMA" in text or "via NET/" in text:
            self._take_gdr(text)
        if match := _NCCL_ENVIRONMENT.search(text):
            self._nccl["environment"][match[1]] = match[2]
        if match := _DISABLED_P2P.search(text):
            pair = "%s-%s" % (match[1], match[2])
            if pair not in self._nccl["p2p_disabled_pairs"]:
                self._nccl["p2p_disabled_pairs"].append(pair)

    def _take_gdr(self, text: str) -> None:
        """GPUDirect RDMA: for which card NCCL has it, and whether the channels over the network go that way."""
        if match := _GDR_ENABLED.search(text):
            self._gdr["enabled"][match["hca"]] = match["how"] or "enabled"
        elif match := _GDR_TOO_FAR.search(text):
            far = "GPU %s and card %s (distance %s)" % (match["gpu"], match["hca"], match["why"])
            _add_new(self._gdr["too_far"], far)
        elif match := _GDR_DISABLED.search(text):
            _add_new(self._gdr["disabled"], match["hca"])
        if match := _NETWORK_CHANNEL.search(text):
            self._gdr["channels"] += 1
            if "GDRDMA" not in match["path"]:
                self._gdr["without"] += 1
                _add_new(self._gdr["through"], match["path"].split("/", maxsplit=1)[0])

    def _take_request(self, line: Line) -> None:
        match = (self._engine.request if self._engine else UVICORN_REQUEST).search(line.text)
        if not match:
            return
        path, code = match[2].partition("?")[0], values.number_in_name(match[3])
        if path.startswith("/health") and code == 503 and not self._ready:
            self._requests["health_not_ready"] += 1  # normal until the warm-up is over
        if match[1] == "POST" and _GENERATION.search(path):
            self._requests["ok" if code < 400 else "failed"] += 1
            self._requests["last_code"], self._requests["last_at"] = code, line.at
            if code < 400:
                self._requests["last_ok_number"] = line.number

    def _take_batch(self, line: Line) -> None:
        match = self._engine.decode.search(line.text) if self._engine else None
        if not match:
            return
        usage = values.decimal_number(match["usage"])
        if usage is not None and self._engine and self._engine.usage_in_percent:
            usage = usage / 100
        self._batch_count += 1
        self._batches.append(
            {
                "at": line.at,
                "running": values.whole_number(match["running"]),
                "queue": values.whole_number(match["queue"]),
                "tokens_per_s": values.decimal_number(match["rate"]),
                "usage": usage,
                "tokens": values.whole_number(match["tokens"]),
                "graph": {"True": True, "False": False}.get(match["graph"] or ""),
            }
        )
        del self._batches[: -4 * LAST_BATCHES]

    def result(self, now: float) -> dict[str, Any]:
        self._name_holder()
        faults = list(self._faults.values())
        fatal = sorted((fault for fault in faults if fault["fatal"]), key=self._distance_from_cause)
        self._nccl["transports"] = {name: sorted(pairs) for name, pairs in sorted(self._channels.items())}
        used = None if not self._gdr["channels"] else not self._gdr["without"]
        self._nccl["gdr"] = {**self._gdr, "used": used}
        self._nccl["p2p_used"] = None if not self._channels else not {"SHM", "NET"} & set(self._channels)
        return {
            "phase": self._phase,
            "phases": self._phases,
            "progress": self._progress,
            "ready": self._ready,
            "ready_at": self._ready_at,
            "decode": self._decode(now),
            "faults": faults,
            "fatal": fatal[0] if fatal else None,
            "nccl": self._nccl,
            "requests": self._requests,
            "kv_tokens": self._kv_tokens,
            "context_length": self._context,
            "stopping": self._stopping,
        }

    def _distance_from_cause(self, fault: dict[str, Any]) -> int:
        """A rank that lost another names what it saw; before that comes what is wrong in itself, after it what only
        says
        that something failed."""
        return 2 if fault["kind"] in self._general else 1 if fault["kind"] == "peer_gone" else 0

    def _decode(self, now: float) -> dict[str, Any] | None:
        """The last decode line with its age, and the median of the last ones that had work."""
        if not self._batches:
            return None
        last = self._batches[-1]
        busy = [
            batch["tokens_per_s"] for batch in self._batches if batch["running"] and batch["tokens_per_s"] is not None
        ][-LAST_BATCHES:]
        full = last["usage"] is not None and last["usage"] >= 0.99
        return {
            **last,
            "age_s": measure_age(now, last["at"]),
            "lines": self._batch_count,
            "median_tokens_per_s": round(statistics.median(busy), 2) if len(busy) >= LEAST_BATCHES else None,
            "saturated": full and (last["queue"] or 0) > 0,
        }


def _add_new(names: list[str], name: str) -> None:
    if name not in names and len(names) < GDR_LIMIT:
        names.append(name)


def _transport(word: str) -> str:
    """P2P (through NVLink or PCIe), SHM (host memory), NET: the first part of NCCL's word, such as P2P/CUMEM."""
    return word.split("/", maxsplit=1)[0].upper()


def _number(match: re.Match[str]) -> int | None:
    return values.whole_number(next(group for group in match.groups() if group).replace(",", ""))


def _seconds(text: str) -> int | None:
    if text == "?":
        return None
    total = 0
    for part in text.split(":")[:4]:
        total = total * 60 + (values.whole_number(part) or 0)
    return total
