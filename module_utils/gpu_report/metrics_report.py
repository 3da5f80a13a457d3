"""The report as metrics.prom, for the textfile collector of node_exporter. docs/metrics.md says what is in it."""

from __future__ import annotations

import datetime
import time
from typing import Any

from .metrics import gpu_samples, host_samples, link_samples, server_samples
from .metrics.exposition import Samples, parse_number


def render_metrics(report: dict[str, Any]) -> bytes:
    """The bytes of metrics.prom: every host of the report, with the label `host`."""
    samples, run = Samples(), report["run"]
    ended_at = find_end(run)
    for name, host in report["hosts"].items():
        samples.begin_host(name)
        host_samples.add_run_samples(samples, run, ended_at, host)
        if host["state"] == "not_validated":
            continue
        facts = host["facts"]
        host_samples.add_verdict_samples(samples, report, host)
        gpu_samples.add_gpu_samples(samples, facts)
        link_samples.add_pair_samples(samples, facts)
        link_samples.add_host_link_samples(samples, facts)
        link_samples.add_all_reduce_samples(samples, facts)
        server_samples.add_server_samples(samples, facts)
    return samples.render_text()


def find_end(run: dict[str, Any]) -> float | None:
    """The Unix time at which the run ended; None where its beginning is no time."""
    try:
        began = datetime.datetime.fromisoformat(str(run.get("started_at"))).timestamp()
    except ValueError:
        return None
    return round(began + (parse_number(run.get("seconds")) or 0.0), 1)


def describe_run_of_now() -> dict[str, Any]:
    """The `run` of a report of one host that is made as soon as the host is judged."""
    now = datetime.datetime.fromtimestamp(time.time(), datetime.timezone.utc)
    return {"started_at": now.isoformat(timespec="seconds"), "seconds": 0.0, "complete": True}
