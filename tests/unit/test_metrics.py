"""reports/metrics.prom: names and units, what is unknown, hostile text, how many samples there are."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible.module_utils.gpu_report import matrix, metrics_report, watched_facts
from ansible.module_utils.gpu_report.metrics import families

from . import hostile_report, metrics_reader
from . import report_samples as samples
from .test_report_matrix import address, host, pair, probed

ROOT = Path(__file__).resolve().parents[2]
HOSTS = 500
COUNTS = {"gpu_host_unknown_values"}  # more of it is worse news


def read(report: dict[str, Any]) -> metrics_reader.Metrics:
    return metrics_reader.read_metrics(metrics_report.render_metrics(report))


def arm(*sizes: str) -> dict[str, Any]:
    figures = {"bus_bandwidth_gb_s": 40.0, "latency_us": {"median": 900.0}, "wrong": 0}
    return {"state": "finished", "sizes": {size: dict(figures) for size in sizes}}


def full_facts(count: int = 8) -> dict[str, Any]:
    """Facts of a host of which everything is known."""
    facts = probed(host(count), p0_1=pair(30.0, 13.7, "staged"))
    facts["p2p"]["read"][address(0)][address(1)] = "NS"
    facts["gpus"].update(count=count, installed=True, models=["RTX PRO 6000"])
    for gpu in facts["gpus"]["devices"].values():
        gpu.update(
            name="RTX PRO 6000", uuid="GPU-1", vbios_version="98.02", lost=False, temperature_c=38,
            memory_temperature_c="n/a", memory_total_mib=97887, bar1_mib=131072, power_limit_w=600.0, link_width=16,
            link_width_max=16, link_generation=1, link_generation_max=5, link_replays=2,
            ecc_volatile={"correctable": 1, "uncorrectable": 0}, ecc_aggregate={"correctable": 1, "uncorrectable": 0},
            remapped_rows={"correctable": 0, "uncorrectable": 0},
        )  # fmt: skip
    link = {"near_gb_s": {"to_gpu": 55.25, "from_gpu": 55.15}, "at_once_gb_s": {"to_gpu": 54.0, "from_gpu": 53.0}}
    links = {address(number): {**copy.deepcopy(link), "least_gb_s": 47.9} for number in range(count)}
    sizes = ("12288", "268435456")
    facts["probe"].update(
        host_links=links,
        collective={"ran": True, "verdict": "ok", "arms": {"configured": arm(*sizes), "p2p_disabled": arm(*sizes)}},
        between_hosts={"asked": True, "group": "glm", "verdict": "ok",
                       "bus_bandwidth_gb_s": {"median": 41.2, "size_bytes": 268435456}},
    )  # fmt: skip
    facts["virtualization"] = {"placement": "kvm"}
    facts["driver"] = {"version": "580.159.04"}
    facts["evidence"] = {"recorded": True, "taken_at": 1795974890.36}
    xid = {"address": address(1), "xid": 79, "severity": "fatal", "count": 2}
    facts["kernel_log"] = {"covers_boot": True, "xids": [xid]}
    facts["server"] = {
        "state": "ready", "engine": "sglang", "version": "0.5.17", "model": "glm-5", "in_container": False,
        "started_at": 1795970000.0, "settings": {"tp": "8", "host": "127.0.0.1"}, "differences": 0,
        "decode_tokens_per_s": 168.5,
        "generation": {"ran": True, "answered": True, "sane": True, "finite": True, "tokens_per_s": 100.0,
                       "first_token_s": 0.09},
    }  # fmt: skip
    return facts


def report_of(facts: dict[str, Any], **changed: Any) -> dict[str, Any]:
    """A report of one host, gpu1, that is ready."""
    found = samples.run()
    found.results("gpu1", {**samples.judged([samples.result("driver_loaded"), samples.chipset("pass")], facts=facts)})
    made = found.report(samples.RUN)
    made["hosts"]["gpu1"].update(changed)
    return made


def test_names_and_units_are_those_of_prometheus() -> None:
    """What `promtool check metrics` says too (tests/e2e/test_metrics.py), where it is not installed."""
    units = (
        "milli",
        "micro",
        "giga",
        "mib",
        "_gb",
        "_ms",
        "_us",
        "_kib",
        "percent",
        "_c_",
        "_count",
        "_sum",
        "_bucket",
    )
    for name, family in families.FAMILIES.items():
        assert re.fullmatch(r"gpu_host_[a-z0-9]+(_[a-z0-9]+)*", name)
        assert (family.type == "counter") == name.endswith("_total")
        assert not [unit for unit in units if unit in name], name
        assert "host" not in family.labels and len(set(family.labels)) == len(family.labels)
        assert family.help.endswith(".") and family.most > 0
        assert not name.endswith("_info") or "always 1" in family.help


def test_each_kind_of_host() -> None:
    found = read(samples.report())
    assert {labels["host"] for (_name, labels) in ((name, dict(labels)) for name, labels in found.values)} == {
        "gpu2",
        "gpu3",
        "gpu10",
    }
    assert [found.value("ready", host=name) for name in ("gpu2", "gpu10", "gpu3")] == [1, 0, None]
    assert [found.value("reachable", host=name) for name in ("gpu2", "gpu10", "gpu3")] == [1, 1, 0]
    assert [found.value("validated", host=name) for name in ("gpu2", "gpu10", "gpu3")] == [1, 1, 0]
    assert found.value("last_run_timestamp_seconds", host="gpu3") == 1767323045 + 4.2
    # of a host that could not be reached nothing else is known, and that is said
    assert found.value("unknown_values", host="gpu3", metric="gpu_host_ready") == 1
    told = {name for (name, labels) in found.values if ("host", "gpu3") in labels}
    assert told == {"gpu_host_" + name for name in ("last_run_timestamp_seconds", "run_complete", "reachable",
                                                    "validated", "problems", "unknown_values")}  # fmt: skip
    assert found.value("unready_causes", host="gpu10") == 2  # the chipset, and what needs root
    assert found.value("check_passed", host="gpu10", check="chipset_supports_p2p") == 0
    for check in ("p2p_fast", "acs_redirect_off", "memlock_unlimited", "nvlink_expected"):
        assert found.value("check_passed", host="gpu10", check=check) is None
    assert found.value("unknown_values", host="gpu10", metric="gpu_host_check_passed") == 2
    shown = {
        labels["check"]: labels["status"] for labels, _one in found.samples("finding_info") if labels["host"] == "gpu10"
    }
    assert shown["p2p_fast"] == "unknown" and shown["memlock_unlimited"] == "waived" and "driver_loaded" not in shown
    assert found.value("checks", host="gpu10", status="unknown") == 2


def test_a_part_that_is_ready_is_no_host_that_is() -> None:
    facts = full_facts(2)
    part = read(report_of(facts, part="only 12 of 243 checks were chosen"))
    assert part.value("ready") is None and part.value("partial_validation") == 1
    assert part.value("unknown_values", metric="gpu_host_ready") == 1
    assert read(report_of(facts, part="x", state="not_ready")).value("ready") == 0
    assert read(report_of(facts)).value("ready") == 1


def test_the_collector_keeps_that_it_was_a_part_until_all_of_it_was_judged() -> None:
    found = samples.run()
    found.results("gpu1", {**samples.judged([samples.result("driver_loaded")]), "part": "only 1 of 2"})
    assert found.report(samples.RUN)["hosts"]["gpu1"]["part"] == "only 1 of 2"
    found.results("gpu1", samples.judged([samples.result("driver_loaded"), samples.result("p2p_fast")]))
    assert "part" not in found.report(samples.RUN)["hosts"]["gpu1"]


def test_values_are_in_base_units() -> None:
    found = read(report_of(full_facts()))
    ends = {"source": address(1), "destination": address(0)}
    assert found.value("p2p_pair_bandwidth_bytes_per_second", **ends) == 55.4e9
    assert found.value("p2p_pair_latency_seconds", **ends) == 0.94e-6
    assert found.value("gpu_memory_bytes", gpu=address(0)) == 97887 * 2**20
    assert found.value("host_link_bandwidth_bytes_per_second", gpu=address(0), direction="to_gpu") == 55.25e9
    assert found.value("all_reduce_duration_seconds", arm="configured", size_bytes="12288") == 900e-6
    assert found.value("gpu_temperature_celsius", gpu=address(0), sensor="gpu") == 38
    assert found.value("evidence_timestamp_seconds") == 1795974890.36
    assert found.value("server_start_time_seconds") == 1795970000


def test_pairs_links_gpus_and_server() -> None:
    found = read(report_of(full_facts()))
    bad, good = ({"source": address(a), "destination": address(b)} for a, b in ((0, 1), (1, 0)))
    assert [found.value("p2p_pair_granted", **ends) for ends in (bad, good)] == [0, 1]
    assert [found.value("p2p_pair_proven", **ends) for ends in (bad, good)] == [0, 1]
    info = next(labels for labels, _one in found.samples("p2p_pair_info") if bad.items() <= labels.items())
    assert (info["driver_status"], info["verdict"], info["source_index"]) == ("NS/OK", "staged", "0")
    assert len(found.samples("p2p_pair_info")) == 56
    assert found.value("gpu_xid_events_total", gpu=address(1), severity="fatal") == 2
    assert found.value("gpu_xid_events_total", gpu=address(0), severity="fatal") == 0
    assert found.value("gpu_xid_info", gpu=address(1), xid="79") == 1
    assert found.value("server_ready") == 1 and found.value("server_state", state="stalled") == 0
    assert found.value("server_setting_info", setting="tp", value="8") == 1
    # "n/a" is no value that is missing
    assert found.value("gpu_temperature_celsius", gpu=address(0), sensor="memory") is None
    assert found.samples("unknown_values") == []


def test_a_server_that_is_not_there_is_not_unready() -> None:
    facts = full_facts(2)
    facts["server"]["state"] = "absent"
    found = read(report_of(facts))
    assert found.value("server_ready") is None and found.value("server_state", state="absent") == 1
    assert found.samples("server_info") == [] and found.samples("unknown_values") == []
    facts["server"]["state"] = None
    found = read(report_of(facts))
    assert found.value("unknown_values", metric="gpu_host_server_ready") == 1


def test_a_probe_that_did_not_run_leaves_every_pair_unknown() -> None:
    facts = {**full_facts(), "probe": {"ran": False, "pairs": full_facts()["probe"]["pairs"]}}
    found = read(report_of(facts))
    assert found.samples("p2p_pair_proven") == [] and len(found.samples("p2p_pair_granted")) == 56
    assert found.value("unknown_values", metric="gpu_host_p2p_pair_proven") == 56
    assert found.value("unknown_values", metric="gpu_host_all_reduce_correct") == 1


def test_a_log_that_does_not_reach_back_to_the_boot_shows_what_it_holds_and_no_zero() -> None:
    facts = full_facts(2)
    facts["kernel_log"]["covers_boot"] = False
    found = read(report_of(facts))
    assert [value for _labels, value in found.samples("gpu_xid_events_total")] == [2]
    assert found.value("unknown_values", metric="gpu_host_gpu_xid_events_total") == 5
    facts["kernel_log"] = {"covers_boot": None, "xids": None}
    assert read(report_of(facts)).value("unknown_values", metric="gpu_host_gpu_xid_events_total") == 6


def leaves(facts: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where each part of the facts stands. Of GPUs and pairs that are alike, the first is enough."""
    if isinstance(facts, dict):
        for key, value in facts.items():
            if not str(key).startswith(address(1)):
                yield (*path, key)
                yield from leaves(value, (*path, key))


# Facts that say whether something was looked at: where they are not known, nothing says that a value is missing.
SAYS_WHETHER = {("evidence", "recorded"), ("probe", "between_hosts", "asked")}


def test_a_fact_that_is_not_known_never_makes_a_sample_better() -> None:
    """Each part of the facts in turn is unknown: no value appears or changes, and those that go are counted."""
    facts = full_facts(2)
    whole = read(report_of(facts)).values
    tried = 0
    for path in leaves(facts):
        changed = copy.deepcopy(facts)
        part = changed
        for key in path[:-1]:
            part = part[key]
        single = not isinstance(part[path[-1]], dict)
        part[path[-1]] = None if single else {}
        found = read(report_of(changed)).values
        tried += 1
        counted = sum(value for (name, _labels), value in found.items() if name in COUNTS)
        values = {key: value for key, value in found.items() if key[0] not in COUNTS and not key[0].endswith("_info")}
        assert values.items() <= whole.items(), (path, values.items() - whole.items())
        gone = [key for key in whole if key not in found and not key[0].endswith("_info")]
        if single and gone and path not in SAYS_WHETHER:
            assert counted > 0, (path, gone)
    assert tried > 100


def test_odd_values_are_no_faults() -> None:
    """Each value of the facts in turn is none of its kind: the file stays one that Prometheus reads."""
    odd = itertools.cycle(["text", float("nan"), float("inf"), [], "ERR!", -1, 10**30])
    facts = full_facts(2)
    text = {name: value for name, value in facts.items() if name not in ("topology", "p2p")}  # those hold texts only
    for path in [path for path in leaves(text) if len(path) > 1 and path[-1] != "index"]:
        changed = copy.deepcopy(facts)
        part = changed
        for key in path[:-1]:
            part = part[key]
        if not isinstance(part[path[-1]], dict):
            part[path[-1]] = next(odd)
            read(report_of(changed))


def test_captured_text_is_a_label() -> None:
    report = hostile_report.report()
    found = read(report)
    names = {dict(labels)["host"] for _name, labels in found.values}
    assert names == {name.encode("utf-8", "replace").decode()[:200] for name in report["hosts"]}
    text = metrics_report.render_metrics(report).decode()
    assert "\x1b" not in text and "\x00" not in text and "\u202e" not in text
    assert max(map(len, text.splitlines())) < 3000


def test_two_hosts_or_gpus_that_look_the_same_do_not_spoil_the_file() -> None:
    """Prometheus refuses a whole file in which one sample comes twice."""
    report = report_of(full_facts(2))
    report["hosts"]["gpu1\x00"] = report["hosts"]["gpu1"]
    report["hosts"]["gpu1\x01"] = report["hosts"]["gpu1"]
    read(report)


def test_the_number_of_samples_is_bounded_and_said() -> None:
    facts = full_facts()
    facts["server"]["settings"] = {"setting%d" % number: "x" for number in range(500)}
    facts["server"] = {**facts["server"], "settings": watched_facts.digest_server(
        {"process": {"settings": facts["server"]["settings"]}})["settings"]}  # fmt: skip
    checks = [samples.result("check_%d" % number, "fail") for number in range(families.CHECKS)]
    found = samples.run()
    found.results("gpu1", samples.judged(checks, facts=facts))
    counts: dict[str, int] = {}
    for name, _labels in read(found.report(samples.RUN)).values:
        counts[name] = counts.get(name, 0) + 1
    assert {name: count for name, count in counts.items() if count > families.FAMILIES[name].most} == {}
    # without findings on every check, as a host is
    usual = len(read(report_of(facts)).values)
    page = (ROOT / "docs" / "metrics.md").read_text()
    most = families.count_most_samples()
    assert "%s samples" % format(most, ",") in page, format(most, ",")
    assert "%s samples" % format(most * HOSTS, ",") in page, format(most * HOSTS, ",")
    assert usual < most


def test_the_table_of_metrics_is_current() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    table = "\n".join(families.list_table_lines())
    assert table in page, "docs/metrics.md needs this table:\n" + table


def test_network_cards_are_no_gpus() -> None:
    """nvidia-smi topo -m has rows for them beside those of the GPUs."""
    facts = host(2)
    links = facts["topology"]["links"]
    for name in ("NIC0", "NIC1"):
        links[name] = {address(0): "PIX", address(1): "SYS"}
        for number in range(2):
            links[address(number)][name] = "PIX"
    facts["topology"]["nics"] = {"NIC0": "mlx5_0", "NIC1": "mlx5_1"}
    assert [gpu.address for gpu in matrix.list_gpus(facts)] == [address(0), address(1)]
    assert len(read(report_of(facts)).samples("p2p_pair_info")) == 2


def test_gpus_of_which_no_pair_is_known_count_as_unknown() -> None:
    facts = {"gpus": host(4)["gpus"]}
    found = read(report_of(facts))
    assert found.value("unknown_values", metric="gpu_host_p2p_pair_granted") == 12


def test_an_interrupted_run_says_so() -> None:
    found = samples.run()
    found.results("gpu1", samples.judged([samples.result("driver_loaded")]))
    found.seen("gpu2")
    told = read(found.report({**samples.RUN, "complete": False}))
    assert told.value("run_complete", host="gpu2") == 0 and told.value("validated", host="gpu2") == 0
    assert read({**samples.report(), "hosts": {}}).values == {}


def test_what_is_kept_of_the_server_holds_no_secret() -> None:
    settings = {"api-key": "hunter2", "hf-token": "hunter2", "tp": 8, "trust-remote-code": True, "x": ["a", "b"]}
    found = watched_facts.digest_server({"process": {"settings": settings}, "state": "ready"})
    assert found["settings"] == {"tp": "8", "trust-remote-code": "true", "x": "a b"}
    assert watched_facts.digest_server({"process": None})["settings"] is None


def test_what_is_kept_of_the_kernel_log() -> None:
    xid = {"address": "0000:01:00.0", "xid": 31, "severity": "application", "count": 3, "text": "long"}
    kept = watched_facts.digest_kernel_log({"covers_boot": True, "by_kind": {"xid": [xid], "fallen_off_bus": []}})
    assert kept == {
        "covers_boot": True,
        "xids": [{name: xid[name] for name in ("address", "xid", "severity", "count")}],
    }
    unread = watched_facts.digest_kernel_log({"covers_boot": None, "by_kind": {"xid": None, "fallen_off_bus": None}})
    assert unread == {"covers_boot": None, "xids": None}
    assert watched_facts.digest_watched({"kernel_log": "not kept"}) == {}
