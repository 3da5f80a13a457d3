"""Somebody who waits for the probe sees that it runs, and how long it may take."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import action_loader
from ansible.template import Templar


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Any:
    loader = DataLoader()
    made = action_loader.get(
        "host_facts",
        task=SimpleNamespace(args={}, action="host_facts", async_val=0, check_mode=False),
        connection=SimpleNamespace(transport="ssh"),
        play_context=SimpleNamespace(),
        loader=loader,
        templar=Templar(loader=loader),
        shared_loader_obj=None,
    )
    made.lines = []
    made.show_line = made.lines.append
    monkeypatch.setattr(type(made), "FIRST_WAIT_SECONDS", 0.05)
    monkeypatch.setattr(type(made), "NEXT_WAIT_SECONDS", 0.05)

    def execute(module_name: str, **_more: Any) -> dict[str, Any]:
        time.sleep(0.3)
        return {"module": module_name}

    made._execute_module = execute
    return made


def test_the_probe_says_how_long_it_has_run_and_may_take(plugin: Any) -> None:
    plugin.gpu_count = 8
    assert plugin.facts_of("p2p_facts", {}, None, {"inventory_hostname": "gpu1"}) == {"module": "p2p_facts"}
    assert 2 <= len(plugin.lines) <= 6
    assert plugin.lines[0].startswith("the probe of 8 GPUs has run for 0 s; its phases may take 24 s (control 5.28 s, ")
    shown = len(plugin.lines)
    time.sleep(0.15)
    assert len(plugin.lines) == shown  # nothing is shown once it has ended


def test_a_budget_that_was_given_is_the_one_that_is_told(plugin: Any) -> None:
    plugin.facts_of("p2p_facts", {"budget": 100}, None, {})
    assert "the probe of the GPUs has run for 0 s; its phases may take 100 s" in plugin.lines[0]


def test_other_facts_are_gathered_in_silence(plugin: Any) -> None:
    plugin.facts_of("gpu_facts", {}, None, {})
    assert plugin.lines == []


def test_a_module_that_fails_ends_the_lines(plugin: Any) -> None:
    def fail(**_more: Any) -> None:
        raise ValueError("lost")

    plugin._execute_module = fail
    with pytest.raises(ValueError, match="lost"):
        plugin.facts_of("p2p_facts", {}, None, {})
    time.sleep(0.15)
    assert plugin.lines == []
