#!/usr/bin/env python3
"""Runs everything that needs a GPU, in one call, on a machine with any number of them, and writes what it saw.

    python3 tests/hardware/run_on_gpu_machine.py OUTPUT_DIRECTORY [--only STEP,STEP]

Needs Python 3.9 and the NVIDIA driver. What a step needs beside that (PyTorch, NCCL's library, a second GPU), it says
where it is missing, and is listed as skipped. On one GPU the probe measures the GPU with itself and its link to the
host, and nothing between GPUs. Writes OUTPUT_DIRECTORY/report.json and report.txt; exits 1 if an expectation failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Callable

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import between_hosts as two_hosts
import probe as benchmark  # type: ignore[import-not-found]

benchmark.importable()
from ansible.module_utils.gpu_host import p2p_probe
from ansible.module_utils.gpu_host.evidence import bundle
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.probe import all_reduce, engine_all_reduce, nccl_library, worker_run
from ansible.module_utils.gpu_probe import plan

# Holds most of each GPU's memory and keeps every GPU busy until standard input ends, as a loaded server does.
HOLDER = """
import sys, threading, torch
left_mib = int(sys.argv[1])
held = []
for index in range(torch.cuda.device_count()):
    with torch.cuda.device(index):
        matrix = torch.ones(2048, 2048, device="cuda")
        matrix @ matrix
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        held.append((torch.empty(max(0, free - left_mib * 2**20), dtype=torch.uint8, device="cuda"), matrix))
print("holding", flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), stop.append(1)), daemon=True).start()
stop = []
while not stop:
    for index, (block, matrix) in enumerate(held):
        with torch.cuda.device(index):
            matrix @ matrix
            torch.cuda.synchronize()
print("intact", flush=True)
"""


class Skipped(Exception):
    """What a step needs is not on this machine."""


class Machine:
    """Collects what every step saw and which expectations held."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.report: dict[str, Any] = {"steps": {}, "failed": [], "skipped": {}}
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        print(text, flush=True)
        self.lines.append(text)

    def expect(self, held: bool, what: str) -> None:
        self.say("  %s %s" % ("ok    " if held else "FAILED", what))
        if not held:
            self.report["failed"].append(what)

    def step(self, name: str, work: Callable[[Machine], Any]) -> None:
        self.say("== " + name)
        began = time.monotonic()
        try:
            seen = work(self)
        except Skipped as reason:
            seen = self.report["skipped"][name] = str(reason)
            self.say("  skipped: %s" % reason)
        except Exception:  # one step's fault must not cost the others, nor the time on the machine
            seen = {"traceback": traceback.format_exc()}
            self.expect(False, "%s: %s" % (name, seen["traceback"].strip().splitlines()[-1]))
            self.say(seen["traceback"])
        self.report["steps"][name] = {"seconds": round(time.monotonic() - began, 2), "seen": seen}
        self.write()

    def write(self) -> None:
        (self.directory / "report.json").write_text(json.dumps(self.report, indent=1, default=str) + "\n")
        (self.directory / "report.txt").write_text("\n".join(self.lines) + "\n")


def output_of(*argv: str, timeout: float = 60) -> str:
    try:
        done = subprocess.run(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout.decode("utf-8", "replace")


def facts(
    limit_s: float = 180, collective: bool = False, force: bool = False, **options: Any
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The probe's facts as the module makes them, and the records that a bundle would hold."""
    evidence = worker_run.ProbeEvidence({"buffer_mib": 256, "init_limit_s": 60, **options}, limit_s)
    evidence.commands[all_reduce.COLLECTIVE_COMMAND] = all_reduce.make_command(None, None, {})
    recorder = bundle.RecordingEvidence(evidence)
    errors = Errors("probe")
    params = {"when_busy": "force" if force else "skip", "collective": "auto" if collective else "false"}
    found = p2p_probe.gather(recorder, params, errors, evidence.only_initialise)
    found["errors"] = errors.entries
    return found, recorder.records


def require_two_gpus() -> list[str]:
    """The PCI addresses of the GPUs."""
    addresses = [row["pci_address"] for row in worker_run.read_signature()]
    if len(addresses) < 2:
        raise Skipped("it needs two GPUs, and %d are here" % len(addresses))
    return addresses


def require_nccl(machine: Machine) -> dict[str, Any]:
    """``{path, source, owner, reason}`` of NCCL's library."""
    found = nccl_library.find_library(None, None)
    machine.say("  NCCL: %s" % found)
    if found["path"] is None:
        raise Skipped("it needs NCCL's library: %s" % found["reason"])
    return found


def require_torch() -> str:
    python = find_torch()
    if python is None:
        raise Skipped("it needs a Python with PyTorch")
    return python


def find_torch() -> str | None:
    """A Python with PyTorch: this one or `python3`."""
    for path in filter(None, (sys.executable, shutil.which("python3"))):
        script = "import importlib.util as u; print(u.find_spec('torch') is not None)"
        if output_of(path, "-c", script).strip() == "True":
            return path
    return None


def memory_used() -> list[int]:
    text = output_of("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
    return [int(line) for line in text.split() if line.isdigit()]


def workers() -> list[int]:
    """Processes of the probe that are still there."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if b"from gpu_probe." in Path("/proc", entry, "cmdline").read_bytes():
                    found.append(int(entry))
            except OSError:
                continue
    return found


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


# -- the steps
# ------------------------------------------------------------------------------------------------------------------


def environment(machine: Machine) -> Any:
    commands = {
        "python": (sys.executable, "-V"),
        "list": ("nvidia-smi", "-L"),
        "topology": ("nvidia-smi", "topo", "-m"),
        "p2p read": ("nvidia-smi", "topo", "-p2p", "r"),
        "nvlink": ("nvidia-smi", "nvlink", "-s"),
        "gate processes": p2p_probe.APPS_COMMAND,
        "gate GPUs": p2p_probe.GPUS_COMMAND,
        "signature": worker_run.SIGNATURE_COMMAND,
    }
    seen = {name: output_of(*argv) for name, argv in commands.items()}
    links = {}
    for device in sorted(Path("/sys/bus/pci/devices").glob("*")):
        if (device / "vendor").read_text().strip() == "0x10de":
            for name in ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width"):
                path = device / name
                links["%s/%s" % (device.name, name)] = path.read_text().strip() if path.exists() else None
    machine.say(seen["list"].strip())
    machine.report["gpus"] = sum(line.startswith("GPU ") for line in seen["list"].splitlines())
    return {**seen, "links": links}


def idle(machine: Machine) -> Any:
    before = memory_used()
    found, records = facts()
    machine.expect(len(found["devices"]) == machine.report["gpus"], "CUDA has every GPU that nvidia-smi lists")
    machine.expect(
        found["cuda"]["initialised"] is True, "cuInit succeeds in the child (%s s)" % found["cuda"]["seconds"]
    )
    machine.expect(found["ran"] is True, "the probe ran: %s" % found["skipped_reason"])
    machine.expect(not found["events"], "no stage hung or crashed: %s" % found["events"])
    refused = [
        device["opened"]["kernels_error"]
        for device in found["devices"].values()
        if (device.get("opened") or {}).get("kernels_error")
    ]
    machine.expect(not refused, "the driver took the PTX kernels %s" % refused)
    for key, part in {**found["pairs"], **found["loopback"]}.items():
        delivered = {method: result.get("status") for method, result in (part.get("delivered") or {}).items()}
        machine.expect(
            delivered == dict.fromkeys(("copy_engine", "sm_store", "sm_load"), "ok"),
            "%s delivered: %s" % (key, delivered),
        )
        rates = {name: figure["median"] for name, figure in (part.get("bandwidth_gb_s") or {}).items()}
        times = {name: figure.get("median") for name, figure in (part.get("latency_us") or {}).items()}
        control = {name: figure.get("median") for name, figure in (part.get("control_latency_us") or {}).items()}
        machine.say("  %s GB/s %s us %s control us %s" % (key, rates, times, control))
        machine.expect(bool(rates) and all(rates.values()), "%s bandwidths measured" % key)
        machine.expect(bool(times) and all(times.values()), "%s latencies measured" % key)
    for key, pair in found["pairs"].items():
        machine.expect(pair["verdict"] == "ok", "%s: %s: %s" % (key, pair["verdict"], pair["reason"]))
    machine.say("  all at once %s" % json.dumps(found["all_at_once"]))
    machine.say("  stages %s total %s s" % (found["stages"], found["seconds"]))
    machine.expect(wait_until(lambda: not workers(), 3), "no worker is left")
    machine.expect(
        wait_until(lambda: all(now <= then + 16 for now, then in zip(memory_used(), before)), 10),
        "GPU memory as before: %s" % before,
    )
    replayed = p2p_probe.gather(
        bundle.BundleEvidence({"captured_at": 0.0}, records), {"collective": "false"}, Errors("probe")
    )
    same = all(replayed[name] == found[name] for name in ("pairs", "loopback", "verdicts", "cuda", "devices"))
    machine.expect(same, "a bundle of it replays to the same facts")
    (machine.directory / "probe-records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return found


def visible_devices(machine: Machine) -> Any:
    seen = {}
    for value in ("", "0", "7"):
        os.environ["CUDA_VISIBLE_DEVICES"] = value
        os.environ["CUDA_DEVICE_ORDER"] = "FASTEST_FIRST"
        raw = worker_run.Probe({"only_initialise": True}, 60).run()
        seen[value] = sorted(raw["devices"])
    del os.environ["CUDA_VISIBLE_DEVICES"], os.environ["CUDA_DEVICE_ORDER"]
    machine.expect(
        all(len(found) == machine.report.get("gpus") for found in seen.values()),
        "all GPUs whatever CUDA_VISIBLE_DEVICES says: %s" % seen,
    )
    return seen


def properties(machine: Machine) -> Any:
    """What the binding reads against what PyTorch reads."""
    script = (
        "import json, torch\n"
        "found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))\n"
        "print(json.dumps([[p.name, p.multi_processor_count, '%d.%d' % (p.major, p.minor), "
        "'%04x:%02x:%02x.0' % (p.pci_domain_id, p.pci_bus_id, p.pci_device_id), p.total_memory >> 20] for p in found]))"
    )
    python = require_torch()
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    theirs = json.loads(output_of(python, "-c", script).strip().splitlines()[-1])
    found, _ = facts(buffer_mib=4)
    ours = [
        [
            device["name"],
            device["multiprocessors"],
            device["compute_capability"],
            address,
            device["opened"]["memory_total_mib"],
        ]
        for address, device in sorted(found["devices"].items(), key=lambda item: item[1]["cuda_index"])
    ]
    machine.expect(
        ours == theirs,
        "names, processors, capabilities, addresses and memory as PyTorch reads them: %s / %s" % (ours, theirs),
    )
    return {"ours": ours, "torch": theirs}


def busy(machine: Machine) -> Any:
    """Beside a process that holds all but 2.5 GB of every GPU.

    Skipped by default, measured when forced, and the process unharmed.
    """
    python = require_torch()
    seen = {}
    for left_mib in (2500, 700):
        holder = subprocess.Popen([python, "-c", HOLDER, str(left_mib)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert holder.stdin and holder.stdout
        try:
            machine.expect(
                holder.stdout.readline() == b"holding\n", "a process holds the GPUs' memory (%d MiB left)" % left_mib
            )
            skipped, _ = facts()
            machine.expect(
                not skipped["ran"] and bool(skipped["skipped_reason"]), "skipped: %s" % skipped["skipped_reason"]
            )
            known = skipped["cuda"]["initialised"] is True and len(skipped["devices"]) == machine.report.get("gpus")
            machine.expect(known, "CUDA and the claims are known all the same")
            forced, _ = facts(force=True)
            buffers = {
                name: (device.get("opened") or {}).get("buffer_mib") or device.get("error")
                for name, device in forced["devices"].items()
            }
            machine.say(
                "  forced with %d MiB left: ran %s, buffers %s, skipped %s"
                % (left_mib, forced["ran"], buffers, forced["skipped_gpus"])
            )
            good = forced["ran"] and not forced["undelivered_pairs"] and not forced["events"]
            machine.expect(good or bool(forced["skipped_gpus"]), "measured when forced, or left out with the reason")
            seen[left_mib] = {"skipped": skipped["skipped_reason"], "gate": skipped["gate"], "forced": forced}
        finally:
            holder.stdin.close()
            machine.expect(holder.stdout.read() == b"intact\n" and holder.wait(60) == 0, "the process was not harmed")
    return seen


def killed(machine: Machine) -> Any:
    """The parent is killed while its child works: the child goes too and the memory comes back."""
    before = memory_used()
    script = "import sys; sys.path.insert(0, %r); import probe; probe.probe()" % str(ROOT / "benchmarks")
    seen = []
    for delay in (0.1, 0.3, 0.6):
        parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.DEVNULL)
        wait_until(lambda: bool(workers()), 5)
        time.sleep(delay)
        running = workers()
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        gone = wait_until(lambda: not workers(), 10)
        seen.append({"delay": delay, "workers": running, "gone": gone})
        machine.expect(gone, "killed after %g s: worker %s is gone" % (delay, running))
    machine.expect(
        wait_until(lambda: all(now <= then + 16 for now, then in zip(memory_used(), before)), 10),
        "GPU memory as before",
    )
    return seen


def limits(machine: Machine) -> Any:
    """Time limits that cannot be kept: reported as such, and nothing left behind."""
    short, _ = facts(init_limit_s=0.05)
    machine.expect(
        short["cuda"]["hung"] is True and not short["ran"],
        "cuInit over its limit is reported: %s" % short["cuda"]["detail"],
    )
    machine.expect(wait_until(lambda: not workers(), 5), "no worker is left")
    cut, _ = facts(limit_s=1.5)
    machine.expect(
        [event["kind"] for event in cut["events"]] in (["out_of_time"], []),
        "the whole limit is kept: %s" % cut["events"],
    )
    machine.expect(wait_until(lambda: not workers(), 5), "no worker is left")
    return {"init": short["cuda"], "whole": cut["events"], "seconds": cut["seconds"]}


def collective(machine: Machine) -> Any:
    """The all-reduce by NCCL's own library in its three arms, and a whole probe with it inside eight seconds."""
    addresses = require_two_gpus()
    found = require_nccl(machine)
    before = memory_used()
    raw = all_reduce.run_all_reduce(found["path"], addresses, {}, owner=found["owner"])
    summary = all_reduce.summarise_all_reduce(raw, None)
    machine.say("  three arms in %s s" % raw["seconds"])
    for name, arm in raw["arms"].items():
        shown = ("state", "start_seconds", "seconds", "nccl", "cuda", "detail")
        machine.say("  %s: %s" % (name, {key: arm[key] for key in shown}))
        for size, figures in arm["sizes"].items():
            rates = [figures.get(key) for key in ("latency_us", "algorithm_bandwidth_gb_s", "bus_bandwidth_gb_s")]
            machine.say("    %s bytes: %s us, algbw %s, busbw %s GB/s, wrong %s" % (size, *rates, figures["wrong"]))
        machine.say("    transports %s warnings %s errors %s" % (arm["transports"], arm["warnings"], arm["errors"]))
        machine.expect(len(arm["sizes"]) == len(all_reduce.SIZES), "%s: all sizes measured" % name)
    machine.expect(
        summary["verdict"] == "ok", "the all-reduce is right: %s %s" % (summary["verdict"], summary["explanation"])
    )
    machine.expect(not summary["pairs_without_p2p"], "NCCL uses P2P: %s" % summary["pairs_without_p2p"])
    control = raw["arms"]["p2p_disabled"]["transports"].values()
    machine.expect(bool(control) and not any("P2P" in way for ways in control for way in ways), "the control does not")
    machine.expect(
        wait_until(lambda: all(now <= then + 16 for now, then in zip(memory_used(), before)), 10),
        "GPU memory as before",
    )
    began = time.monotonic()
    whole, _ = facts(collective=True)
    seconds = time.monotonic() - began
    machine.say("  stages of the probe: %s" % whole["stages"])
    verdict = whole["collective"]["verdict"]
    machine.expect(verdict == "ok", "the probe with its all-reduce: %s" % whole["collective"]["reason"])
    machine.expect(len(addresses) > 2 or seconds <= 8, "the probe with its all-reduce took %.1f s of 8" % seconds)
    return {"raw": raw, "seconds": seconds}


def collective_faults(machine: Machine) -> Any:
    """Faults that can be made on good GPUs: a rank that is stopped, one that is killed, a library that is none."""
    addresses = require_two_gpus()
    found = require_nccl(machine)
    seen = {}
    for name, number in (("stopped", signal.SIGSTOP), ("killed", signal.SIGKILL)):
        arm = all_reduce._Arm(found["path"], addresses, {}, all_reduce.SIZES, found["owner"], False)
        arm.start()
        wait_until(lambda one=arm: one.is_ready(), 60)
        arm.processes[1].send_signal(number)
        seen[name] = arm.run()
        arm.end()
        machine.say("  %s: %s %s" % (name, seen[name]["state"], seen[name]["detail"]))
        machine.say("    RAS: %s" % seen[name]["ras"])
    machine.expect(seen["stopped"]["state"] == "hung", "a stopped rank is a hang")
    machine.expect(
        seen["killed"]["state"] == "failed" and seen["killed"]["failure"]["kind"] == "signal"
        and seen["killed"]["failure"]["rank"] == 1, "a killed rank is named: %s" % seen["killed"]["failure"],
    )  # fmt: skip
    raw = all_reduce.run_all_reduce("/etc/passwd", addresses, {})
    summary = all_reduce.summarise_all_reduce(raw, None)
    no_library = summary["ran"] is None and summary["failure"]["kind"] == "library"
    machine.expect(no_library, "no library: %s" % summary["reason"])
    machine.expect(wait_until(lambda: not workers(), 10), "no rank is left")
    return seen


def engine_own(machine: Machine) -> Any:
    """SGLang's own all-reduce, by both of its kernels. GPU_HOST_ENGINE_PATH: where its packages are (PYTHONPATH)."""
    environment = {"PYTHONPATH": os.environ.get("GPU_HOST_ENGINE_PATH", "/tmp/site")}
    # Where GPUs are shared, multicast objects are left alone.
    for name, value in (
        ("NCCL_NVLS_ENABLE", "0"),
        ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"),
        ("NVSHMEM_DISABLE_NVLS", "1"),
    ):
        environment[name] = os.environ.get(name, value)
    addresses = require_two_gpus()
    found = engine_all_reduce.find_engine(require_torch(), environment)
    machine.say("  %s" % found)
    if found["engine"] is None:
        raise Skipped("it needs SGLang: %s" % found["reason"])
    seen = {}
    for name, more in (("its choice", {}), ("the older kernel", {"SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2": "0"})):
        raw = engine_all_reduce.run_engine(found["python"], found["engine"], addresses, {**environment, **more})
        seen[name] = raw
        summary = engine_all_reduce.summarise_engine(raw, None)
        shown = ("verdict", "needed", "version", "kind", "used", "why_not", "largest_bytes", "explanation", "reason")
        machine.say("  %s: %s s, %s" % (name, raw["seconds"], {key: summary[key] for key in shown}))
        for size, ways in summary["sizes"].items():
            for how, calls in ways.items():
                told = [calls.get(key) for key in ("calls", "wrong_calls", "latency_us", "skipped")]
                machine.say("    %s bytes, %s: %s calls, %s wrong, %s us, skipped: %s" % (size, how, *told))
        machine.expect(summary["verdict"] == "ok", "%s: %s" % (name, summary["verdict"]))
    machine.expect(wait_until(lambda: all(used < 1024 for used in memory_used()), 10), "no rank is left")
    return seen


def ratios(machine: Machine) -> Any:
    path = machine.directory / "benchmark.json"
    text = output_of(sys.executable, str(ROOT / "benchmarks" / "probe.py"), "--json", str(path), timeout=300)
    machine.say(text)
    records = json.loads(path.read_text()) if path.exists() else []
    for record in records:
        if record["met"] is None:
            continue  # told and not judged
        machine.expect(record["met"], "%s: %s (wanted %s)" % (record["target"], record["measured"], record["wanted"]))
    machine.expect(bool(records), "the benchmark ran")
    return records


def phases(machine: Machine) -> Any:
    """Every phase's time and budget, the host's links, the path classes and what the links counted, with the spread."""
    told: list[str] = []
    evidence = worker_run.ProbeEvidence({"buffer_mib": 256, "init_limit_s": 60}, 180, progress=told.append)
    errors = Errors("probe")
    found = p2p_probe.gather(evidence, {"collective": "false"}, errors, evidence.only_initialise)
    for sentence in told:
        machine.say("  told: " + sentence)
    machine.say("  whole probe %s s; stages %s" % (found["seconds"], found["stages"]))
    machine.say("  host memory %s" % json.dumps(found["host_memory"]))
    machine.say("  sources of counters %s" % json.dumps(found["counter_sources"]))
    several = len(found["devices"]) > 1
    machine.expect(
        sorted(found["phases"]) == (sorted(plan.PHASES) if several else ["host_links"]),
        "the phases that %d GPUs need: %s" % (len(found["devices"]), ", ".join(found["phases"])),
    )
    machine.expect(sorted(found["host_links"]) == sorted(found["devices"]), "the host's link of each GPU is measured")
    for name, phase in found["phases"].items():
        machine.say("  phase %s: %s s of %s s" % (name, phase.get("seconds"), phase.get("budget_s")))
        machine.say("    counted %s" % json.dumps(phase.get("counters")))
        held = phase.get("seconds") is not None and not phase.get("left")
        machine.expect(held, "%s came to its end within its budget: left %s" % (name, phase.get("left")))
    counted = (found["phases"].get("bandwidth") or {}).get("counters") or {}
    compared = {address: gpu.get("nvlink_counters") for address, gpu in (counted.get("gpus") or {}).items()}
    on_nvlink = any(pair["path_class"] == "NVLink" for pair in found["pairs"].values())
    machine.expect(not on_nvlink or all(compared.values()), "the errors of NVLinks are counted: %s" % compared)
    for address, link in found["host_links"].items():
        machine.say("  host link %s: %s: %s" % (address, link["verdict"], link["reason"]))
        for way, figures in link["alone"].items():
            for node, figure in figures.items():
                spread = (figure["median"], figure["min"], figure["max"])
                machine.say("    %s, memory of node %s: %s GB/s (%s to %s)" % (way, node, *spread))
        for way, figure in link["at_once"].items():
            machine.say("    %s, all at once: %s GB/s (%s to %s)" % (way, *map(figure.get, ("median", "min", "max"))))
        machine.say("    expected %s GB/s, at least %s (%s)" % (link["full_gb_s"], link["least_gb_s"], link["basis"]))
        machine.expect(link["verdict"] in ("ok", "shared_uplink"), "host link %s is good" % address)
    machine.say("  path classes %s" % json.dumps(found["path_classes"]))
    for name in ("many_to_one", "one_to_many"):
        machine.say("  %s %s" % (name, json.dumps(found[name])))
    machine.say("  shared uplinks %s" % found["shared_uplinks"])
    for name in p2p_probe.LISTS:
        machine.expect(not found[name], "%s is empty: %s" % (name, found[name]))
    return {**found, "errors": errors.entries}


def between_hosts(machine: Machine) -> Any:
    """The all-reduce between two "hosts" of this machine, a GPU each, over a network: right, with one that never comes,
    and with one that stops."""
    addresses = require_two_gpus()[:2]
    found = require_nccl(machine)
    module = two_hosts.load_module()
    before, seen = memory_used(), {}
    with two_hosts.two_places(networks=2) as places:
        machine.say("  namespaces: %s" % [place.namespace for place in places])
        began = time.monotonic()
        raw, looks = two_hosts.measure(places, addresses, found["path"])
        facts_of = module.between_hosts.summarise_between(raw)
        machine.say("  %d arms in %.1f s: %s" % (len(facts_of["arms"]), time.monotonic() - began, facts_of["verdict"]))
        machine.say("  looks %s" % json.dumps(looks))
        for name, arm in facts_of["arms"].items():
            machine.say("  %s: %s over %s" % (name, arm["network"], arm["devices"]))
            for size, figures in arm["sizes"].items():
                machine.say("    %s bytes: %s" % (size, json.dumps(figures)))
        shown = ("explanation", "network", "link", "share_of_link", "slow", "faster_controls", "missing", "seconds")
        machine.say("  %s" % json.dumps({name: facts_of[name] for name in shown}))
        if facts_of["verdict"] != "ok":
            machine.say("  raw %s" % json.dumps(raw["hosts"]))
        machine.expect(facts_of["verdict"] == "ok", "the all-reduce between hosts: %s" % facts_of["explanation"])
        machine.expect(facts_of["network"]["kind"] == "Socket", "it goes over TCP: %s" % facts_of["network"])
        seen["right"] = raw
        limits = {"join_limit_s": 15.0, "step_limit_s": 5.0, "arm_limit_s": 30.0, "limit_s": 60.0}
        began = time.monotonic()
        raw, _looks = two_hosts.measure(places, addresses, found["path"], absent=True, arms=1, limits=limits)
        facts_of = module.between_hosts.summarise_between(raw)
        machine.expect(facts_of["verdict"] == "no_connection", "a host that never comes: %s" % facts_of["missing"])
        machine.say("  told after %.1f s" % (time.monotonic() - began))
        seen["absent"] = raw
        more = {"two": {"NCCL_SOCKET_IFNAME": "=nosuch0"}}
        raw, _looks = two_hosts.measure(places, addresses, found["path"], more=more, arms=1, limits=limits)
        facts_of = module.between_hosts.summarise_between(raw)
        machine.expect(facts_of["verdict"] == "no_connection", "no interface on one: %s" % facts_of["explanation"])
        seen["no interface"] = raw
    machine.expect(wait_until(lambda: not workers(), 5), "no rank is left")
    machine.expect(
        wait_until(lambda: all(now <= then + 16 for now, then in zip(memory_used(), before)), 10),
        "GPU memory as before",
    )
    return seen


STEPS = (
    environment,
    idle,
    phases,
    visible_devices,
    properties,
    busy,
    killed,
    limits,
    collective,
    collective_faults,
    engine_own,
    between_hosts,
    ratios,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--only", help="names of steps, by comma: " + ", ".join(step.__name__ for step in STEPS))
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    machine = Machine(options.directory)
    if shutil.which("nvidia-smi") is None:
        machine.say("no nvidia-smi here")
    for step in STEPS:
        if not options.only or step.__name__ in options.only.split(",") or step is environment:
            machine.step(step.__name__, step)
    for name, reason in machine.report["skipped"].items():
        machine.say("SKIPPED %s: %s" % (name, reason))
    machine.say("%d failed, %d steps skipped" % (len(machine.report["failed"]), len(machine.report["skipped"])))
    for failure in machine.report["failed"]:
        machine.say("FAILED " + failure)
    machine.write()
    return 1 if machine.report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
