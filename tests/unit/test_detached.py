"""Following what runs detached on a host: it ends, it is killed, it takes too long, the connection breaks."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import action_loader
from ansible.template import Templar


@pytest.fixture
def step() -> Callable[..., Any]:
    """A long_step whose host is this machine."""

    def make(script: str, **more: Any) -> Any:
        loader = DataLoader()
        arguments = {"argv": ["sh", "-c", script], "label": "a step", **more}
        task = SimpleNamespace(
            args=arguments,
            action="long_step",
            async_val=0,
            check_mode=False,
            environment=[],
            delegate_to=None,
            diff=False,
        )
        plugin = action_loader.get(
            "long_step",
            task=task,
            connection=SimpleNamespace(_shell=SimpleNamespace(tmpdir="/nowhere"), transport="ssh"),
            play_context=SimpleNamespace(),
            loader=loader,
            templar=Templar(loader=loader),
            shared_loader_obj=None,
        )
        plugin.commands = []

        def execute(command: str) -> dict[str, Any]:
            plugin.commands.append(command)
            done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
            return {"rc": done.returncode, "stdout": done.stdout, "stderr": done.stderr}

        plugin._low_level_execute_command = execute
        return plugin

    return make


def followed(plugin: Any) -> dict[str, Any]:
    result: dict[str, Any] = plugin.run(task_vars={"inventory_hostname": "gpu1"})
    return result


def test_it_ends(step: Any) -> None:
    result = followed(step("echo one; echo state-ended:; echo two"))
    assert (result["rc"], result["stdout"], result["changed"]) == (0, "one\nstate-ended:\ntwo", True)


def test_it_fails_and_says_why(step: Any) -> None:
    result = followed(step("echo working; echo E: no such package; exit 3", hint="Look again."))
    assert result["failed"] is True
    assert result["msg"] == "a step ended with 3 after %.0f s: E: no such package Look again." % result["seconds"]


@pytest.mark.slow
def test_it_is_killed_from_outside(step: Any) -> None:
    plugin = step("echo beginning; sleep 60")
    look = plugin.follow_detached

    def kill_first(directory: str, **more: Any) -> Any:
        os.killpg(int(Path(directory, "pid").read_text()), signal.SIGKILL)
        return look(directory, **more)

    plugin.follow_detached = kill_first
    with pytest.raises(AnsibleActionFail, match=r"a step was ended from outside .*: beginning"):
        followed(plugin)


def test_its_directory_is_gone(step: Any, tmp_path: Path) -> None:
    plugin = step("true")
    with pytest.raises(AnsibleActionFail, match="was ended from outside"):
        plugin.follow_detached(
            str(tmp_path / "gone"),
            output="log",
            end="code",
            label="a load",
            limit=60,
            look=lambda _text, _seconds: None,
        )


def test_it_takes_too_long_and_is_ended(step: Any) -> None:
    began = time.monotonic()
    result = followed(step("echo slow; sleep 60", timeout=1))
    assert (result["rc"], result["failed"]) == (None, True)
    assert "did not end within 1 s and was stopped: slow" in result["msg"]
    assert time.monotonic() - began < 30


def test_a_connection_that_breaks_for_a_moment_does_not_end_it(step: Any) -> None:
    plugin = step("sleep 1; echo done")
    execute, broken = plugin._low_level_execute_command, []

    def break_twice(command: str) -> Any:
        if command.startswith("if cd") and len(broken) < 2:
            broken.append(command)
            raise AnsibleConnectionFailure("gone")
        return execute(command)

    plugin._low_level_execute_command = break_twice
    assert followed(plugin)["stdout"] == "done"
    assert len(broken) == 2


def test_what_it_left_is_removed(step: Any) -> None:
    plugin = step("pwd")
    assert not Path(followed(plugin)["stdout"]).exists()
