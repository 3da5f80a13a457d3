"""A load generator as a process.

What it measured, and what is said where it dies, hangs, writes rubbish, or nobody looks any more.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from ansible.module_utils.gpu_host.linux import detached
from ansible.module_utils.gpu_server.load import generator_find, generator_run
from ansible.module_utils.gpu_server.load.job import Job
from engine_standin import ENGINE, Server, hub, running

pytestmark = pytest.mark.slow

KEY = "the-key-of-the-api"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("server"), "healthy", speed=60, STANDIN_TOKEN_S="0.005") as found:
        found.listens()
        yield found


def job(server: Server, **other: Any) -> Job:
    made = {
        "concurrency": 2,
        "requests": 4,
        "prompt_tokens": 16,
        "output_tokens": 12,
        "time_limit": 60,
        "seed": 7,
        "tokenizer": str(ENGINE),
    }
    return Job("http://127.0.0.1:%d" % server.port, "glm-5", **{**made, **other})


def facts(**other: Any) -> dict[str, Any]:
    made = {
        "engine": "sglang", "python": sys.executable, "user_id": os.geteuid(), "tokenizer": str(ENGINE),
        "trust_remote_code": False,
        "environment": {"PYTHONPATH": str(ENGINE)},
    }  # fmt: skip
    return {**made, **other}


def find(
    server: Server, directory: Path, wanted: str = "auto", named: str | None = None, **other: Any
) -> generator_find.Found:
    made = facts(**other)
    return generator_find.find_generator(wanted, named, made, job(server, tokenizer=made["tokenizer"]), str(directory))


def measure(server: Server, directory: Path, how: dict[str, Any], **other: Any) -> dict[str, Any]:
    (directory / "alive").touch()
    generator_run.run_load(str(directory), generator_run.Order(job(server, **other), how, facts(), KEY))
    found: dict[str, Any] = json.loads((directory / "result.json").read_text())
    return found


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the stand-in's generator reads what shall go wrong with it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "run").mkdir()
    return tmp_path


def test_the_generator_of_the_engine_measures(server: Server, home: Path) -> None:
    found = find(server, home)
    assert (found.name, found.version, found.why) == ("sglang", "0.5.23", [])
    assert found.start[1:] == ["-m", "sglang.bench_serving"]  # the newer name is not in this version
    done = measure(server, home / "run", found.facts())
    cell, command = done["cell"], done["command"]
    assert (cell["completed"], cell["failed"], cell["output_tokens"], cell["prompt_tokens"]) == (4, 0, 48, 64)
    assert cell["output_tokens_per_s"] > 0 and cell["first_token_s"]["median"] > 0
    assert 20 < cell["per_stream_tokens_per_s"] < 210  # a token every 5 ms, or later on a busy machine
    assert command[command.index("--random-range-ratio") + 1] == "1.0"
    assert KEY not in json.dumps(done)
    assert json.loads((home / "run" / "progress").read_text())["done"] in (None, 0, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("die", "sglang ended with 1; its last lines: ValueError: Warmup failed - Please make sure"),
        ("rubbish", "sglang ended well, but its result cannot be read: it is not JSON"),
        ("nothing", "sglang ended well, but its result cannot be read: [Errno 2] No such file"),
        ("nan", "it holds no `completed` and `duration`"),
    ],
)
def test_a_generator_that_fails_says_why(server: Server, home: Path, mode: str, text: str) -> None:
    (home / "generator-mode").write_text(mode)
    cell = measure(server, home / "run", find(server, home).facts())["cell"]
    assert (cell["completed"], cell["failed"], cell["seconds"], cell["output_tokens_per_s"]) == (0, 4, None, None)
    [problem] = cell["problems"]
    assert text in problem
    assert "Traceback" not in problem and 'File "' not in problem


def test_what_it_prints_is_shown_without_the_key(server: Server, home: Path) -> None:
    (home / "generator-mode").write_text("chatty")
    done = measure(server, home / "run", find(server, home).facts())
    [problem] = done["cell"]["problems"]
    assert "Authorization: Bearer ***" in problem
    assert KEY not in json.dumps(done)
    assert not any(
        KEY in path.read_text(errors="replace")
        for path in (home / "run").iterdir()
        if path.is_file() and path.name != "log"
    )


@pytest.mark.parametrize("mode", ["hang", "deaf"])
def test_a_generator_that_hangs_is_ended(server: Server, home: Path, mode: str) -> None:
    (home / "generator-mode").write_text(mode)
    how = find(server, home).facts()
    began = time.monotonic()
    [problem] = measure(server, home / "run", how, time_limit=3)["cell"]["problems"]
    assert "sglang did not end within 3 s (1 of 4 requests)" in problem
    assert time.monotonic() - began < 25
    assert not _running(str(home / "run"))


def test_a_load_that_nobody_looks_at_ends(server: Server, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "generator-mode").write_text("hang")
    monkeypatch.setattr(generator_run, "ALONE_SECONDS", 1.0)
    [problem] = measure(server, home / "run", find(server, home).facts())["cell"]["problems"]
    assert "nobody looked at it any more" in problem
    assert not _running(str(home / "run"))


def test_a_load_whose_directory_was_removed_ends(server: Server, home: Path) -> None:
    """As an interrupted playbook leaves it."""
    (home / "generator-mode").write_text("hang")
    place, how = home / "run", find(server, home).facts()
    (place / "alive").touch()
    thread = threading.Thread(
        target=generator_run.run_load, args=(str(place), generator_run.Order(job(server), how, facts(), KEY))
    )
    thread.start()
    until = time.monotonic() + 20
    while not _running(str(place)) and time.monotonic() < until:
        time.sleep(0.05)
    assert _running(str(place))
    place.rename(home / "away")  # at once: what is written while a tree is removed would stay
    shutil.rmtree(home / "away", ignore_errors=True)
    thread.join(20)
    assert not thread.is_alive()
    assert not _running(str(place))


def test_a_look_keeps_it_going(server: Server, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "generator-mode").write_text("hang")
    monkeypatch.setattr(generator_run, "ALONE_SECONDS", 2.0)
    alive, stop = home / "run" / "alive", threading.Event()

    def look() -> None:
        while not stop.wait(0.3):
            alive.touch()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        [problem] = measure(server, home / "run", find(server, home).facts(), time_limit=5)["cell"]["problems"]
    finally:
        stop.set()
        thread.join()
    assert "did not end within 5 s" in problem


def test_a_result_that_nobody_fetches_is_removed(server: Server, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(home))
    monkeypatch.setattr(generator_run, "ALONE_SECONDS", 1.0)
    directory = Path(generator_run.run_detached(lambda place: (Path(place) / "result.json").touch()))
    until = time.monotonic() + 20
    while directory.exists() and time.monotonic() < until:
        time.sleep(0.1)
    assert not directory.exists()


def test_a_detached_load_writes_its_result(server: Server, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(home))
    order = generator_run.Order(job(server), {"name": "builtin"}, facts())
    directory = Path(generator_run.run_detached(lambda place: generator_run.run_load(place, order)))
    until = time.monotonic() + 30
    while not (directory / "result.json").exists() and time.monotonic() < until:
        time.sleep(0.1)
    assert json.loads((directory / "result.json").read_text())["cell"]["completed"] == 4
    assert int((directory / "pid").read_text()) != os.getpid()
    shutil.rmtree(directory)  # as who fetches a result does; until then the process waits for three minutes


def test_what_runs_detached_keeps_nothing_of_its_caller_open(tmp_path: Path) -> None:
    """Else whoever reads what the caller printed (a pipe, a connection) waits for the detached process too."""
    reader, writer = os.pipe()
    try:
        detached.run_detached(str(tmp_path), lambda: time.sleep(60))
        os.close(writer)
        assert select.select([reader], [], [], 10)[0] and os.read(reader, 1) == b""
    finally:
        os.close(reader)
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_an_option_with_another_name_is_said_before_anything_runs(server: Server, home: Path) -> None:
    (home / "generator-mode").write_text("old")
    found = find(server, home)
    assert found.name == "builtin"
    assert [one["name"] for one in found.why] == ["sglang", "guidellm"]
    assert "0.5.23 does not fit: it knows no --random-range-ratio" in found.why[0]["why"]
    assert "not on the PATH" in found.why[1]["why"]
    with pytest.raises(generator_find.NoGeneratorError, match="--random-range-ratio"):
        find(server, home, "sglang")


@pytest.mark.parametrize(
    ("server_facts", "wanted", "text"),
    [
        ({"environment": {}}, "sglang", "has no sglang"),
        ({"python": "/nowhere/bin/python"}, "sglang", "there is no /nowhere/bin/python on this host"),
        ({"python": None}, "sglang", "does not say which Python"),
        ({"tokenizer": None}, "vllm", "does not say where that is"),
        (
            {"tokenizer": "/models/gone"},
            "sglang",
            "the tokenizer /models/gone of the server's command line is not on this host, or not to be seen",
        ),
        (
            {"tokenizer": "org/not-here"},
            "sglang",
            "the tokenizer org/not-here of the server's command line is not in the hub's cache",
        ),
        ({"engine": "transformers"}, "guidellm", "refuses its requests"),
    ],
)
def test_why_a_generator_cannot_be_used(
    server: Server, home: Path, server_facts: dict[str, Any], wanted: str, text: str
) -> None:
    with pytest.raises(generator_find.NoGeneratorError, match=text):
        find(server, home, wanted, **server_facts)
    found = find(server, home, **{"engine": wanted, **server_facts})
    assert found.name == "builtin" and found.why


def test_a_tokenizer_in_the_cache_of_the_server_is_enough(server: Server, home: Path) -> None:
    settings = {"PYTHONPATH": str(ENGINE), "HF_HOME": str(hub(home / "theirs"))}
    assert find(server, home, tokenizer="lukealonso/GLM-5-NVFP4", environment=settings).name == "sglang"


def test_guidellm_is_taken_where_the_engine_has_none(server: Server, home: Path) -> None:
    text = (Path(__file__).parents[1] / "fixtures" / "generators" / "guidellm-0.8.1" / "help.txt").read_text()
    (home / "bin").mkdir()
    program = home / "bin" / "guidellm"
    (home / "help").write_text(text)
    program.write_text(
        "#!/bin/sh\nif [ \"$1\" = --version ]; then echo 'guidellm version: 0.8.1'; else exec /bin/cat %s; fi\n"
        % (home / "help")
    )
    program.chmod(0o755)
    found = find(server, home, engine="vllm")
    assert (found.name, found.version, found.start) == ("guidellm", "0.8.1", [str(program), "run"])
    assert [one["name"] for one in found.why] == ["vllm"]


def test_the_servers_python_runs_as_the_servers_user() -> None:
    """What the server's user may write to must not run as root; where we are not root there is nothing to change."""
    nobody = 65534
    python, user = generator_find._python_of_server({"python": "/usr/bin/python3", "user_id": nobody})
    assert (python, user) == ("/usr/bin/python3", nobody if os.geteuid() == 0 else None)
    directory = tempfile.mkdtemp()
    try:
        code, text = generator_find._run(["/bin/sh", "-c", "id -u; pwd; touch written"], 10, facts(), user, directory)
        assert code == 0, text
        uid, place = text.split()
        assert int(uid) == (os.geteuid() if user is None else user)
        assert os.stat(os.path.join(place, "written")).st_uid == int(uid)
        assert place != generator_find.make_workplace(directory, None) or user is None
    finally:
        shutil.rmtree(directory)


@pytest.mark.parametrize(
    ("python", "environment", "expected"),
    [
        ("/opt/engine/bin/python3", {}, "/opt/engine/bin/python3"),
        ("/opt/engine/bin/vllm", {}, "/opt/engine/bin/python"),
        ("python3", {"VIRTUAL_ENV": "/opt/engine"}, "/opt/engine/bin/python3"),
        ("python3", {"PATH": "/nowhere"}, None),
        ("bin/python", {}, None),
        (None, {}, None),
    ],
)
def test_the_python_of_the_server(python: str | None, environment: dict[str, str], expected: str | None) -> None:
    assert generator_find._python_of_server({"python": python, "environment": environment, "user_id": 0})[0] == expected


def _running(place: str) -> list[str]:
    """Processes that stand in this directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (
                    os.readlink(entry / "cwd").startswith(place)
                    and "Z" not in (entry / "stat").read_text().rpartition(")")[2].split()[:1]
                ):
                    found.append(entry.name)
            except OSError:
                continue
    return found
