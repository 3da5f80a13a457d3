"""monitoring/: the dashboard and the rules use metrics and labels that are written, and every alert is tried."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.gpu_report.metrics import families

MONITORING = Path(__file__).resolve().parents[2] / "monitoring"
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())
RULES = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]
TRIED = yaml.safe_load((MONITORING / "alerts.test.yml").read_text())["tests"]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
_SELECTOR = re.compile(r"(gpu_host_[a-z0-9_]+)\s*(?:\{([^}]*)\})?")
_GROUPING = re.compile(r"\b(?:by|on|group_left|without|ignoring)\s*\(([^)]*)\)")


def dashboard_expressions() -> list[str]:
    found = [target["expr"] for panel in PANELS for target in panel["targets"]]
    found += [one["definition"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
    return found


def selectors(expression: str) -> Iterator[tuple[str, list[str]]]:
    """(metric, labels) of each selector."""
    for name, inside in _SELECTOR.findall(expression):
        yield name, re.findall(r"([a-z_]+)\s*(?:=~|!~|!=|=)", inside)


@pytest.mark.parametrize("expression", [*dashboard_expressions(), *(rule["expr"] for rule in RULES)])
def test_an_expression_uses_what_is_written(expression: str) -> None:
    used = list(selectors(expression))
    assert used
    known: set[str] = {"host"}
    for name, labels in used:
        assert name in families.FAMILIES, "no metric %s" % name
        assert set(labels) <= {"host", *families.FAMILIES[name].labels}, (name, labels)
        known |= set(families.FAMILIES[name].labels)
    grouped = {
        label.strip() for inside in _GROUPING.findall(expression) for label in inside.split(",") if label.strip()
    }
    assert grouped <= known, grouped - known


def test_a_metric_that_does_not_exist_would_be_found() -> None:
    for expression in ("gpu_host_redy == 0", 'gpu_host_ready{gpu="0"}', "sum by (gpu) (gpu_host_ready)"):
        with pytest.raises(AssertionError):
            test_an_expression_uses_what_is_written(expression)


def test_what_an_alert_says_are_labels_of_its_metric() -> None:
    for rule in RULES:
        labels = {
            label for name, _used in selectors(rule["expr"]) for label in ("host", *families.FAMILIES[name].labels)
        }
        told = " ".join(rule["annotations"].values())
        assert set(re.findall(r"\$labels\.(\w+)", told)) <= labels, rule["alert"]
        assert set(re.findall(r"gpu_host_[a-z0-9_]+", told)) <= families.FAMILIES.keys(), rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_every_alert_is_tried_with_what_raises_it_and_with_what_does_not() -> None:
    """What does not raise it: a series of one of its metrics whose labels are those of no alert that is expected, or a
    moment at which none is expected although there are series."""
    metrics = {rule["alert"]: {name for name, _labels in selectors(rule["expr"])} for rule in RULES}
    raised: set[str] = set()
    quiet: set[str] = set()
    for test in TRIED:
        series = [(one["series"].partition("{")[0], parse_labels(one["series"])) for one in test["input_series"]]
        for tried in test["alert_rule_test"]:
            alert, expected = tried["alertname"], [one["exp_labels"] for one in tried["exp_alerts"]]
            own = [labels for name, labels in series if name in metrics[alert]]
            if expected:
                raised.add(alert)
            if any(all(differ(labels, one) for one in expected) for labels in own):
                quiet.add(alert)
    assert metrics.keys() - raised == set() and metrics.keys() - quiet == set()


def parse_labels(series: str) -> dict[str, str]:
    return dict(re.findall(r'([a-z0-9_]+)="([^"]*)"', series))


def differ(one: dict[str, str], other: dict[str, str]) -> bool:
    return any(one[label] != other[label] for label in one.keys() & other.keys())


def test_panels_have_places_and_names_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    for one, other in itertools.combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
    assert all(place["x"] + place["w"] <= 24 for place in places)


def test_every_query_asks_the_source_that_was_chosen() -> None:
    for panel in PANELS:
        references = [target["refId"] for target in panel["targets"]]
        assert references and len(set(references)) == len(references)
        sources: list[Any] = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)
    variables = {one["name"] for one in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps([target for panel in PANELS for target in panel["targets"]])))
    assert used - {"labels"} <= variables
