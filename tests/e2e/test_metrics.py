"""reports/metrics.prom as promtool and a real Prometheus read it, and the file that each host gets.

Needs the Debian package prometheus (tests/packages.txt).
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import HOSTS, LOCAL, ROOT

MONITORING = ROOT / "monitoring"
WITHOUT = [name for name in ("prometheus", "promtool") if not shutil.which(name)]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("metrics"),
    pytest.mark.skipif(bool(WITHOUT), reason="%s is not installed" % " and ".join(WITHOUT)),
]
SECONDS = 60.0


def promtool(*arguments: str, data: bytes = b"", cwd: Path = ROOT) -> str:
    done = subprocess.run(["promtool", *arguments], input=data, capture_output=True, check=False, cwd=cwd)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    return (done.stdout + done.stderr).decode()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where node_exporter of the hosts would read."""
    return tmp_path_factory.mktemp("node-exporter")


@pytest.fixture(scope="module")
def fleet(play_once: Any, directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The example fleet, and beside it hosts that have a server, a group, nothing, or cannot be reached."""
    recorded = {name: {"gpu_host_bundle": str(HOSTS / (name + ".jsonl.gz"))} for name in ("serving", "rdma")}
    hosts: dict[str, Any] = {
        **recorded,
        "here": LOCAL,
        "gone": {"ansible_host": "127.0.0.1", "ansible_port": 9},
    }
    path = tmp_path_factory.mktemp("inventory") / "more.yml"
    path.write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": {"gpu_host_metrics_directory": str(directory)}}}))
    return play_once("validate.yml", ROOT / "inventory", "-i %s" % path)


def test_promtool_finds_nothing_to_mend(fleet: Any) -> None:
    text = (fleet.reports / "metrics.prom").read_bytes()
    assert text.count(b"\n") > 1000 and promtool("check", "metrics", data=text) == ""
    assert b'gpu_host_reachable{host="gone"} 0' in text and b'gpu_host_ready{host="gone"}' not in text


def test_each_host_gets_its_own_file(fleet: Any, directory: Path) -> None:
    """Only a live one, from a look at all of it (tests/unit/test_run_checks.py)."""
    path = directory / "gpu_host_validation.prom"
    assert [one.name for one in directory.iterdir()] == [path.name]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    text = path.read_bytes()
    assert set(re.findall(rb'host="([^"]*)"', text)) == {b"here"} and promtool("check", "metrics", data=text) == ""
    # nothing that was written makes the verdict an old one
    assert not [words for words in fleet.report["hosts"]["here"]["unproven"] if "still holds" in words]


def test_the_rules_are_right_and_so_is_every_alert() -> None:
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]
    assert "%d rules found" % len(rules) in promtool("check", "rules", "monitoring/alerts.yml")
    assert "SUCCESS" in promtool("test", "rules", "alerts.test.yml", cwd=MONITORING)


class Files(http.server.SimpleHTTPRequestHandler):
    """The files of a directory, as node_exporter would hand them out."""

    extensions_map = {".prom": "text/plain; version=0.0.4"}

    def log_message(self, *_words: Any) -> None:
        """Nothing of it is for the screen."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def prometheus(fleet: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Prometheus that has read the file once, with the rules loaded."""
    home = tmp_path_factory.mktemp("prometheus")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=str(fleet.reports)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    target = {"targets": ["127.0.0.1:%d" % server.server_port]}
    scrape = {"job_name": "node", "metrics_path": "/metrics.prom", "static_configs": [target]}
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(MONITORING / "alerts.yml")],
        "scrape_configs": [scrape],
    }
    (home / "prometheus.yml").write_text(yaml.safe_dump(settings))
    base = "http://127.0.0.1:%d" % free_port()
    command = ["prometheus", "--config.file=%s" % (home / "prometheus.yml"), "--storage.tsdb.path=%s" % (home / "data")]
    command += ["--web.listen-address=%s" % base.partition("//")[2], "--log.level=warn"]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "GOMAXPROCS": "1"})
    try:
        until = time.monotonic() + SECONDS
        while not has_read(base):
            assert process.poll() is None and time.monotonic() < until, (home / "log").read_text()
            time.sleep(0.2)
        yield base
    finally:
        process.terminate()
        process.wait(timeout=20)
        server.shutdown()
        server.server_close()


def has_read(base: str) -> bool:
    """Whether the file was scraped, and the rules were evaluated on it."""
    try:
        groups = ask(base, "rules")["groups"]
    except OSError:
        return False
    states = {rule["name"]: rule["state"] for group in groups for rule in group["rules"]}
    return states.get("GpuHostNotReady") == "firing"


def ask(base: str, what: str, **parameters: str) -> Any:
    address = "%s/api/v1/%s?%s" % (base, what, urllib.parse.urlencode(parameters))
    try:
        with urllib.request.urlopen(address, timeout=20) as answer:
            said = json.load(answer)
    except urllib.error.HTTPError as error:  # not begun yet, or an expression with a fault
        error.add_note("%s: %s" % (parameters, error.read().decode()))
        raise
    assert said["status"] == "success", said
    return said["data"]


def dashboard_queries() -> list[tuple[str, str]]:
    """(panel, expression) with the variables of the dashboard filled in."""
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    return [
        (panel["title"], target["expr"].replace("$one_host", "h200-x2").replace("$host", ".+"))
        for panel in panels
        for target in panel.get("targets", ())
    ]


def test_every_panel_of_the_dashboard_shows_something(prometheus: str) -> None:
    empty = [
        (title, expression)
        for title, expression in dashboard_queries()
        if not ask(prometheus, "query", query=expression)["result"]
    ]
    assert empty == []
    pairs = next(expression for title, expression in dashboard_queries() if title.startswith("Bandwidth of"))
    cells = ask(prometheus, "query", query=pairs)["result"]
    assert {(cell["metric"]["source_index"], cell["metric"]["destination_index"]) for cell in cells} == {
        ("0", "1"),
        ("1", "0"),
    }
    for variable in json.loads((MONITORING / "dashboard.json").read_text())["templating"]["list"]:
        found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable.get("definition", ""))
        if found:
            names = ask(prometheus, "label/%s/values" % found[2], **{"match[]": found[1]})
            assert {"h200-x2", "llm-vm"} <= set(names)


def test_the_rules_run_on_the_fleet(prometheus: str) -> None:
    """Each is evaluated without a fault, on metrics that are there, and raises what this fleet has to raise."""
    rules = [rule for group in ask(prometheus, "rules")["groups"] for rule in group["rules"]]
    assert [(rule["name"], rule["lastError"]) for rule in rules if rule["health"] != "ok"] == []
    for rule in rules:
        names = set(re.findall(r"gpu_host_[a-z0-9_]+", rule["query"]))
        for name in names:
            assert ask(prometheus, "query", query="count(%s)" % name)["result"], (rule["name"], name)
    raised = {
        rule["name"]: {alert["labels"].get("host") for alert in rule["alerts"]} for rule in rules if rule["alerts"]
    }
    assert {"llm-vm", "here"} <= raised["GpuHostNotReady"] and "h200-x2" not in raised["GpuHostNotReady"]
    assert raised["GpuHostNotReached"] == {"gone"}
    assert raised["GpuHostP2pBroken"] == {"llm-vm"}
    assert raised["GpuHostNotProven"] >= {"llm-ct"}
    usual = {"GpuHostNotReady", "GpuHostNotReached", "GpuHostP2pBroken", "GpuHostNotProven", "GpuHostVerdictUnknown"}
    assert raised.keys() <= usual | {"GpuHostGpuLinkNarrow"}


def test_prometheus_has_read_all_of_the_file(prometheus: str, fleet: Any) -> None:
    """It drops the whole file at the first line that it cannot read."""
    up = ask(prometheus, "query", query='up{job="node"}')["result"]
    assert [one["value"][1] for one in up] == ["1"]
    count = ask(prometheus, "query", query='count({__name__=~"gpu_host_.+"})')["result"][0]["value"][1]
    lines = (fleet.reports / "metrics.prom").read_text().splitlines()
    assert int(count) == len([line for line in lines if not line.startswith("#")])
