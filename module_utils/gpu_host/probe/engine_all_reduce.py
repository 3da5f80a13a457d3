"""The engine's own all-reduce (SGLang's and vLLM's custom all-reduce) against the exact sum, by the engine's Python.

Between cards on PCI Express it is what gives wrong answers or hangs while NCCL over the same pairs is right
(noonghunna/club-3090 issue 922: wrong data with a patched driver, right with --disable-custom-all-reduce). It imports
PyTorch and the engine, which takes half a minute, and so it runs only when it is asked for.
"""

from __future__ import annotations

import glob
import os
import pkgutil
import pwd
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any

from ..evidence import values
from . import nccl_library, rank_processes
from .rank_processes import KEPT_LINES, read_messages, read_text
from .worker_run import read_signature

ENGINE_COMMAND = ("p2p_engine_all_reduce",)  # the name under which a bundle holds the result
ENGINES = ("sglang", "vllm")
PROGRAM = "engine_all_reduce.py"
# Of a decode step of a large model (hidden size 4096 and 8192, one token and some, bfloat16), and around the sizes from
# which the kernels differ; what the engine takes at most, and half of that, are added where they are known.
SIZES = (8 * 1024, 16 * 1024, 64 * 1024, 256 * 1024, 512 * 1024, 1 << 20, 4 << 20)
MOST_BYTES = 64 << 20
CALLS = 48  # of the small sizes, each with other values, before anything is looked at
REPLAYS = 24  # of a CUDA graph with four calls
STEP_LIMIT_S = 20.0
START_LIMIT_S = 150.0  # an engine that compiles its kernels first
RUN_LIMIT_S = 420.0
FLAG = "--disable-custom-all-reduce"
HAS_ENGINE = "import importlib.util as u, sys; print(*[n for n in sys.argv[1:] if u.find_spec(n)])"
# Where the engine itself had not begun: nothing is known of its all-reduce.
_BEFORE = ("import ", "join ", "start")
HINT = "not asked for (-e probe_engine_all_reduce=true)"


def make_command(python: str | None, environment: dict[str, str]) -> Any:
    """What `ProbeEvidence.commands` runs for ENGINE_COMMAND: `run_engine`'s result, or ``{"reason": why not}``."""

    def measure() -> dict[str, Any]:
        gpus = [row["pci_address"] for row in read_signature()]
        if len(gpus) < 2:
            return {"reason": "nvidia-smi shows %d GPUs" % len(gpus)}
        found = find_engine(python, environment)
        if found["engine"] is None:
            return {"reason": found["reason"]}
        return run_engine(found["python"], found["engine"], gpus, environment, found["owner"])

    return measure


def find_engine(python: str | None, environment: dict[str, str]) -> dict[str, Any]:
    """A Python that has SGLang or vLLM: the one that is named, else one that a systemd unit starts, or one below /opt
    and /srv: ``{python, engine, owner, reason}``. `owner`: the user whose Python it is, where we are root."""
    missing = "name the inference server's Python (host_validation_probe_python)"
    nothing: dict[str, Any] = {"python": None, "engine": None, "owner": None}
    for path in [python] if python else dict.fromkeys(_candidates()):
        program = shutil.which(path) or path
        if not os.access(program, os.X_OK):
            if python:
                return {**nothing, "reason": "%s does not exist or is no program" % python}
            continue
        owner = os.stat(os.path.dirname(program)).st_uid
        taken = owner if os.geteuid() == 0 and owner else None
        asked = ask_engines(program, environment, taken)
        if asked:
            return {"python": program, "engine": asked[0], "owner": taken, "reason": None}
    return {**nothing, "reason": "%s has neither SGLang nor vLLM" % python if python else
            "no Python with SGLang or vLLM was found; " + missing}  # fmt: skip


def _candidates() -> Iterator[str]:
    for home in nccl_library.list_unit_homes():
        yield from _pythons_with_engine(home)
    for pattern in nccl_library.HOMES:
        for home in sorted(glob.glob(pattern)):
            yield from _pythons_with_engine(home)


def _pythons_with_engine(home: str) -> Iterator[str]:
    """Only what nobody else could have written is run without being named."""
    for engine in ENGINES:
        for place in sorted(glob.glob("%s/lib/python3*/site-packages/%s" % (home, engine))):
            program = home + "/bin/python3"
            if os.path.exists(program) and not nccl_library.find_objection(place):
                yield program


def ask_engines(program: str, environment: dict[str, str], owner: int | None) -> list[str]:
    try:
        asked = subprocess.run(
            [program, "-c", HAS_ENGINE, *ENGINES],
            capture_output=True,
            timeout=30,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **environment},
            cwd="/",
            **choose_user(owner),
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    return [word for word in asked.stdout.decode("utf-8", "replace").split() if word in ENGINES]


def choose_user(owner: int | None) -> dict[str, Any]:
    """Arguments of Popen that make a program run as the user `owner`."""
    if owner is None:
        return {}
    try:
        entry = pwd.getpwuid(owner)
    except KeyError:
        return {"user": owner, "group": owner, "extra_groups": []}
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return {"user": owner, "group": entry.pw_gid, "extra_groups": groups}


def run_engine(
    python: str, engine: str, addresses: Sequence[str], environment: dict[str, str], owner: int | None = None
) -> dict[str, Any]:
    """Over all GPUs, and where the engine does not use its all-reduce over more than two, over the first two as well.

    ``{engine, python, seconds, runs: [see `_Run.run`]}``.
    """
    began = time.monotonic()
    runs = [_Run(python, engine, addresses, environment, owner).run()]
    if len(addresses) > 2 and runs[0]["state"] == "finished" and runs[0]["used"] is False:
        runs.append(_Run(python, engine, addresses[:2], environment, owner).run())
    return {"engine": engine, "python": python, "seconds": round(time.monotonic() - began, 1), "runs": runs}


class _Run(rank_processes.RankProcesses):
    def __init__(
        self, python: str, engine: str, addresses: Sequence[str], environment: dict[str, str], owner: int | None
    ) -> None:
        super().__init__([[rank] for rank in range(len(addresses))], addresses, owner, None)
        self._python, self._engine, self._environment = python, engine, environment

    def launch(self, number: int) -> tuple[list[str], dict[str, str], dict[str, Any], dict[str, Any]]:
        program = os.path.join(self.directory, PROGRAM)
        if number == 0:
            data = pkgutil.get_data(__name__.rpartition(".gpu_host.")[0] + ".gpu_probe", PROGRAM)
            with open(program, "wb") as handle:
                handle.write(data or b"")
            os.chmod(program, 0o644)
        environment = {**os.environ, **self._environment}
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        environment.update(
            CUDA_DEVICE_ORDER="PCI_BUS_ID",
            RANK=str(number),
            LOCAL_RANK=str(number),
            WORLD_SIZE=str(len(self.addresses)),
            PYTHONUNBUFFERED="1",
            # What the engine notes of peer access is not to stay on the host.
            SGLANG_CACHE_DIR=os.path.join(self.directory, "cache"),
            VLLM_CACHE_ROOT=os.path.join(self.directory, "cache"),
        )
        options = {
            "engine": self._engine,
            "rank": number,
            "world": len(self.addresses),
            "store": os.path.join(self.directory, "store"),
            "sizes": list(SIZES),
            "most_bytes": MOST_BYTES,
            "calls": CALLS,
            "replays": REPLAYS,
            "step_limit_s": STEP_LIMIT_S,
            "start_limit_s": START_LIMIT_S,
        }
        return [self._python, program], environment, options, choose_user(self.owner)

    def run(self) -> dict[str, Any]:
        """What `RankProcesses.wait` gives, and ``{gpus, seconds, version, kind, used, why_not, largest_bytes, sizes:
        {bytes: {eager | graph: {wrong, wrong_calls, calls, first_wrong, got, wanted, wrong_gpus, latency_us,
        skipped}}}, errors}``."""
        try:
            self.start()
            result = self.wait(time.monotonic() + RUN_LIMIT_S)
            result["seconds"] = round(time.monotonic() - self.began, 1)
            return {**self._measured(), **result}
        finally:
            self.end()

    def _measured(self) -> dict[str, Any]:
        result: dict[str, Any] = dict.fromkeys(("version", "kind", "used", "why_not", "largest_bytes"))
        result.update(gpus=len(self.addresses), sizes={}, errors=[])
        for number, address in enumerate(self.addresses):
            for message in read_messages(self.path_of("out", number)):
                if isinstance(message.get("found"), dict):
                    result.update({key: value for key, value in message["found"].items() if key in result})
                elif "size_bytes" in message:
                    _merge(result["sizes"], message, address)
            lines = read_text(self.path_of("err", number)).strip().splitlines()
            result["errors"] += [lines[-1][:300]] if lines else []
        result["errors"] = sorted(set(result["errors"]))[:KEPT_LINES]
        return result


def _merge(sizes: dict[str, Any], message: dict[str, Any], address: str) -> None:
    calls = sizes.setdefault(str(message["size_bytes"]), {}).setdefault(str(message["how"]), {})
    if "skipped" in message:
        calls["skipped"] = message["skipped"]
        return
    if not calls:
        calls.update(wrong=0, wrong_calls=0, calls=0, wrong_gpus=[], latency_us=None)
        calls.update(dict.fromkeys(("first_wrong", "got", "wanted")))
    if message["wrong"]:
        if not calls["wrong"]:
            calls.update({key: message[key] for key in ("first_wrong", "got", "wanted")})
        calls["wrong_gpus"].append(address)
    for key in ("wrong", "wrong_calls", "calls"):
        calls[key] += message[key]
    if message["seconds"] is not None:
        calls["latency_us"] = round(max(calls["latency_us"] or 0.0, 1e6 * message["seconds"]), 2)


def summarise_engine(raw: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
    """What `run_engine` returned, as facts, or why there is nothing.

    ``{ran, reason, engine, version, python, kind, used, why_not, gpus, verdict, needed, explanation, largest_bytes,
    wrong, failure, sizes, seconds, runs}``.

    verdict: ok | wrong_values | hangs | fails (each of what the engine uses on this host by its own rules) | not_used
    (it takes NCCL here) | None. ``needed``: whether the server needs --disable-custom-all-reduce; None if unknown.
    """
    names = (
        "engine", "version", "python", "kind", "used", "why_not", "gpus", "verdict", "needed", "explanation",
        "largest_bytes", "failure", "seconds",
    )  # fmt: skip
    result: dict[str, Any] = {"ran": raw is not None, "reason": reason, **dict.fromkeys(names)}
    result.update(wrong=[], sizes={}, runs=[])
    if raw is None:
        return result
    runs = [run for run in raw.get("runs") or () if run]
    if not runs:
        return {**result, "ran": None, "reason": "its result cannot be read"}
    result.update(reason=None, runs=runs, **{name: raw.get(name) for name in ("engine", "python", "seconds")})
    # What was used decides; where nothing was, what was tried first says why.
    run = next((one for one in runs if one.get("used") or one.get("state") != "finished"), runs[0])
    result.update({name: run.get(name) for name in ("version", "kind", "used", "why_not", "gpus", "failure")})
    result.update(largest_bytes=run.get("largest_bytes"), sizes=run.get("sizes") or {})
    stage = str((run.get("failure") or {}).get("stage") or "start")
    if run.get("state") == "failed" and run.get("used") is None and stage.startswith(_BEFORE):
        return {**result, "ran": None, "reason": "not available: %s" % (run.get("detail") or "it did not begin")}
    figures = [
        (size, how, calls)
        for size, ways in sorted(result["sizes"].items(), key=lambda item: values.number_in_name(item[0]))
        for how, calls in (ways or {}).items()
        if calls and not calls.get("skipped")
    ]
    result["wrong"] = [_describe_wrong(size, how, calls) for size, how, calls in figures if calls.get("wrong")]
    if result["wrong"]:
        result["verdict"] = "wrong_values"
    elif run.get("state") in ("hung", "left_behind"):
        result["verdict"] = "hangs"
    elif run.get("state") == "failed":
        result["verdict"] = "fails"
    elif run.get("used") is False:
        result["verdict"] = "not_used"
    elif run.get("used") and figures and all(calls.get("wrong") == 0 for _, _, calls in figures):
        result["verdict"] = "ok"
    bad = result["verdict"] in ("wrong_values", "hangs", "fails")
    result["needed"] = None if result["verdict"] is None else bad
    if bad:
        said = [*result["wrong"], run.get("detail"), *(run.get("errors") or [])[:1] * (run.get("state") == "failed")]
        result["explanation"] = "; ".join(filter(None, said))
    return result


def _describe_wrong(size: str, how: str, calls: dict[str, Any]) -> str:
    gpus = " on %s" % ", ".join(calls["wrong_gpus"]) if calls.get("wrong_gpus") else ""
    where = " in a CUDA graph" if how == "graph" else ""
    return "%s bytes%s: %s of %s calls give wrong values%s, the first %s in place of %s" % (
        size, where, calls.get("wrong_calls"), calls.get("calls"), gpus, calls.get("got"), calls.get("wanted"),
    )  # fmt: skip
