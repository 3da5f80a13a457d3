"""Live evidence: whatever a path or a program does, a call answers in bounded time and never raises."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible.module_utils.gpu_host.evidence import bounded_reads, commands, interface
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.evidence.interface import ABSENT, DENIED, FAILED, HUNG, OK, TIMEOUT
from ansible.module_utils.gpu_host.evidence.live import LiveEvidence


def alive(pid: int) -> bool:
    try:
        return Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_dead(pid: int, seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


# -- files
# --------------------------------------------------------------------------------------------------------------


def test_a_file_is_read_with_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"a\xffb\0")
    reading = LiveEvidence(str(tmp_path)).read("/f")
    assert (reading.status, reading.data, reading.truncated, reading.text) == (OK, b"a\xffb\0", False, "a\ufffdb\0")


def test_a_missing_file_and_a_missing_parent_are_absent(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    live = LiveEvidence(str(tmp_path))
    assert [live.read(path).status for path in ("/none", "/none/below", "/f/below")] == [ABSENT] * 3
    assert [live.list(path).status for path in ("/none", "/f")] == [ABSENT] * 2


def test_a_directory_a_socket_and_a_nul_in_the_path_are_failures_with_a_reason(tmp_path: Path) -> None:
    live = LiveEvidence(str(tmp_path))
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "s"))
    for path in ("/", "/s", "/a\0b"):
        reading = live.read(path)
        assert reading.status == FAILED and reading.reason, path
    assert live.list("/a\0b").status == FAILED
    server.close()


def test_a_pipe_that_nobody_writes_to_does_not_stop_us(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p")
    began = time.monotonic()
    assert LiveEvidence(str(tmp_path)).read("/p").data == b""
    writer = os.open(tmp_path / "p", os.O_RDWR)  # open on both sides, and empty: a read would block
    assert LiveEvidence(str(tmp_path)).read("/p").status == FAILED
    os.close(writer)
    assert time.monotonic() - began < 2


def test_an_endless_file_is_cut_off() -> None:
    reading = LiveEvidence().read("/dev/zero", limit=1000)
    assert (reading.data, reading.truncated) == (bytes(1000), True)


def test_a_file_of_just_the_limit_is_whole(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(1000))
    reading = LiveEvidence(str(tmp_path)).read("/f", limit=1000)
    assert (len(reading.data or b""), reading.truncated) == (1000, False)


def test_a_file_of_200_mb_takes_little_memory_and_time(tmp_path: Path) -> None:
    with open(tmp_path / "big", "wb") as handle:
        handle.truncate(200 * 1024 * 1024)
    began = time.monotonic()
    reading = LiveEvidence(str(tmp_path)).read("/big")
    assert (len(reading.data or b""), reading.truncated) == (interface.READ_LIMIT_BYTES, True)
    assert time.monotonic() - began < 2


def test_a_file_that_the_user_may_not_read_is_denied(tmp_path: Path) -> None:
    """In a child process without privileges where the tests run as root."""
    os.chmod(tmp_path, 0o755)
    directory = os.open(tmp_path, os.O_RDONLY)
    (tmp_path / "f").write_text("secret")
    os.chmod(tmp_path / "f", 0)
    (tmp_path / "d").mkdir(mode=0)
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            live = LiveEvidence("/proc/self/fd/%d" % directory)  # the temporary directory above is its owner's alone
            os.write(write_end, ("%s %s" % (live.read("/f").status, live.list("/d").status)).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    answer = os.read(read_end, 100).decode()
    os.close(read_end)
    os.close(write_end)
    os.close(directory)
    assert answer == "%s %s" % (DENIED, DENIED)


def test_a_listing_shows_what_lstat_shows(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("abc")
    os.chmod(tmp_path / "f", 0o640)
    (tmp_path / "d").mkdir()
    (tmp_path / "l").symlink_to("../gone")
    os.mkfifo(tmp_path / "p")
    entries = LiveEvidence(str(tmp_path)).list("/").entries
    assert sorted(entries) == ["d", "f", "l", "p"]
    assert (entries["f"].kind, entries["f"].size, entries["f"].mode) == ("file", 3, 0o640)
    assert (entries["l"].kind, entries["l"].target) == ("link", "../gone")
    assert (entries["d"].kind, entries["p"].kind) == ("dir", "other")
    null = LiveEvidence().list("/dev").entries["null"]
    assert (null.kind, null.major, null.minor) == ("char", 1, 3)


def test_secrets_are_masked_as_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "proc" / "1").mkdir(parents=True)
    (tmp_path / "proc" / "1" / "environ").write_bytes(b"HF_TOKEN=abcdefgh\0NCCL_DEBUG=INFO\0USER=x")
    (tmp_path / "log").write_text("api_key='abcdefgh'\n")
    live = LiveEvidence(str(tmp_path))
    assert live.read("/proc/1/environ").data == b"NCCL_DEBUG=INFO"
    assert live.read("/log").data == b"api_key='********'\n"
    assert b"abcdefgh" not in live.run(["printf", "%s", "--api-key abcdefgh"]).stdout


def process_files(root: Path, *pids: int) -> None:
    for pid in pids:
        (root / "proc" / str(pid)).mkdir(parents=True)
        for name in ("cmdline", "environ"):
            (root / "proc" / str(pid) / name).write_bytes(b"NCCL_DEBUG=%d\0" % pid)


def test_a_process_whose_files_block_the_reader_costs_seconds_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_reads, "SHORTEST_SECONDS", 0.3)
    stuck = subprocess.Popen(["sleep", "60"])
    try:
        process_files(tmp_path, stuck.pid, 5)
        (tmp_path / "proc" / str(stuck.pid) / "cmdline").unlink()
        os.mkfifo(tmp_path / "proc" / str(stuck.pid) / "cmdline")  # opening it blocks until somebody writes
        live = LiveEvidence(str(tmp_path))
        live._bounded = bounded_reads.BoundedReader(0.5)
        began = time.monotonic()
        blocked = live.read("/proc/%d/cmdline" % stuck.pid)
        assert time.monotonic() - began < 4
        assert (blocked.status, blocked.data) == (TIMEOUT, None)
        assert "no answer within 0.5 s: process %d state S, waits in" % stuck.pid in blocked.reason
        began = time.monotonic()
        assert live.read("/proc/%d/environ" % stuck.pid).status == TIMEOUT  # the same lock: not asked again
        assert time.monotonic() - began < 0.2
        assert live.read("/proc/5/environ").data == b"NCCL_DEBUG=5"  # by a new child
        errors = Errors("server")
        errors.unanswered(blocked)
        assert (
            errors.entries[0]["source"] == "/proc/%d/cmdline" % stuck.pid
            and "no answer within" in errors.entries[0]["problem"]
        )
    finally:
        stuck.kill()
        stuck.wait()


def test_files_of_hundreds_of_processes_are_read_at_once_by_one_child(tmp_path: Path) -> None:
    process_files(tmp_path, *range(1, 401))
    live = LiveEvidence(str(tmp_path))
    live.read("/proc/1/environ")
    child = live._bounded._child
    began = time.monotonic()
    assert [live.read("/proc/%d/environ" % pid).data for pid in range(1, 401)] == [
        b"NCCL_DEBUG=%d" % pid for pid in range(1, 401)
    ]
    assert time.monotonic() - began < 2
    assert child is not None and live._bounded._child is child
    live.abandon()
    assert child.poll() is not None


def test_files_of_processes_are_read_as_others_are(tmp_path: Path) -> None:
    process_files(tmp_path, 7)
    live = LiveEvidence(str(tmp_path))
    assert live.read("/proc/8/environ").status == ABSENT
    (tmp_path / "proc/7/cmdline").write_bytes(b"word\0" * 60000)  # more than a pipe holds
    cut = live.read("/proc/7/cmdline", limit=1000)
    assert (len(cut.data or b""), cut.truncated) == (1000, True)
    assert len(live.read("/proc/7/cmdline").data or b"") == 300000
    (tmp_path / "proc/7/environ").unlink()
    (tmp_path / "proc/7/environ").mkdir()
    assert live.read("/proc/7/environ").status == FAILED
    own = LiveEvidence().read("/proc/%d/cmdline" % os.getpid())
    assert (own.status, own.data) == (OK, Path("/proc/self/cmdline").read_bytes())


def test_a_reading_child_that_is_killed_is_a_failure_and_then_started_anew(tmp_path: Path) -> None:
    process_files(tmp_path, 7)
    live = LiveEvidence(str(tmp_path))
    live.read("/proc/7/environ")
    assert live._bounded._child is not None
    live._bounded._child.kill()
    live._bounded._child.wait()
    assert live.read("/proc/7/environ").status == FAILED
    assert live.read("/proc/7/environ").status == OK


# -- commands
# -----------------------------------------------------------------------------------------------------------


def test_a_command_gives_output_and_exit_code() -> None:
    outcome = LiveEvidence().run(["sh", "-c", "echo out; echo err >&2; exit 7"])
    assert (outcome.status, outcome.rc, outcome.stdout, outcome.stderr) == (OK, 7, b"out\n", b"err\n")


def test_the_language_is_c_and_there_is_no_input() -> None:
    assert LiveEvidence().run(["sh", "-c", "echo $LC_ALL; cat; pwd"]).text == "C\n/\n"


def test_a_program_that_is_not_there_is_absent() -> None:
    outcome = LiveEvidence().run(["no-such-program-here", "-x"])
    assert outcome.status == ABSENT and "no-such-program-here" in outcome.reason


@pytest.mark.parametrize("content", [b"\x7fELF junk", b"#!/no/such/interpreter\n", b""])
def test_a_program_that_cannot_run_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    program = tmp_path / "broken-tool"
    program.write_bytes(content)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    outcome = LiveEvidence().run(["broken-tool"])
    assert outcome.status == FAILED and "broken-tool cannot be run" in outcome.reason
    assert LiveEvidence().run(["true", "a\0b"]).status == FAILED


def test_the_working_directory_decides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planted-tool").write_text("#!/bin/sh\necho planted\n")
    (tmp_path / "planted-tool").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    for path in ("", ".", ":/usr/bin", "relative:"):
        monkeypatch.setenv("PATH", path)
        assert LiveEvidence().run(["planted-tool"]).status == ABSENT


def test_a_command_past_its_time_is_ended_with_all_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    began = time.monotonic()
    outcome = LiveEvidence().run(["sh", "-c", "sleep 60 & echo $! $$ > %s; echo started; wait" % pids], timeout=0.5)
    assert (outcome.status, outcome.stdout) == (TIMEOUT, b"started\n")
    assert "0.5 s" in outcome.reason
    assert time.monotonic() - began < 5
    assert all(wait_until_dead(int(pid)) for pid in pids.read_text().split())


def test_a_grandchild_that_keeps_the_output_open_does_not_hold_us() -> None:
    began = time.monotonic()
    outcome = LiveEvidence().run(["sh", "-c", "setsid sleep 20 & echo done"], timeout=10)
    assert (outcome.status, outcome.stdout) == (OK, b"done\n")
    assert time.monotonic() - began < 5


def test_a_command_that_ignores_sigkill_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process ignores SIGKILL but one in the kernel; here the signal is kept from it."""
    monkeypatch.setattr(commands.os, "killpg", lambda pid, number: None)
    monkeypatch.setattr(commands, "KILL_GRACE_SECONDS", 0.2)
    began = time.monotonic()
    outcome = LiveEvidence().run(["sleep", "30"], timeout=0.2)
    assert outcome.status == HUNG and outcome.rc is None
    assert "ignores SIGKILL" in outcome.reason and "state S" in outcome.reason
    assert time.monotonic() - began < 3
    pid = int(outcome.reason.split()[1])
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_killing_anothers_process_is_no_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(pid: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(commands.os, "killpg", refused)
    monkeypatch.setattr(commands, "KILL_GRACE_SECONDS", 0.1)
    outcome = LiveEvidence().run(["sleep", "3"], timeout=0.1)
    assert outcome.status == HUNG
    os.kill(int(outcome.reason.split()[1]), signal.SIGKILL)


def test_output_is_bounded_in_memory_and_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "OUTPUT_LIMIT_BYTES", 1000)
    monkeypatch.setattr(commands, "CHILD_FILE_LIMIT_BYTES", 1024 * 1024)
    began = time.monotonic()
    outcome = LiveEvidence().run(["sh", "-c", "exec cat /dev/zero"], timeout=20)
    assert outcome.status == OK, "the kernel stops it long before its time"
    assert outcome.rc == -signal.SIGXFSZ
    assert (len(outcome.stdout), outcome.truncated) == (1000, True)
    assert time.monotonic() - began < 10


def test_started_commands_overlap() -> None:
    live = LiveEvidence()
    began = time.monotonic()
    commands = [["sh", "-c", "sleep 1; echo %d" % number] for number in range(6)]
    for argv in commands:
        live.start(argv)
    assert [live.run(argv).text for argv in commands] == ["%d\n" % number for number in range(6)]
    assert time.monotonic() - began < 5


def test_a_started_command_that_nobody_asks_for_is_ended(tmp_path: Path) -> None:
    live = LiveEvidence()
    live.start(["sh", "-c", "echo $$ > %s; exec sleep 60" % (tmp_path / "pid")])
    live.start(["no-such-program-here"])
    end = time.monotonic() + 5
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < end
        time.sleep(0.02)
    live.abandon()
    assert wait_until_dead(int((tmp_path / "pid").read_text()))


def test_a_command_that_finished_late_but_in_time_counts() -> None:
    """Collected after its time limit, because others took long: it had ended by itself."""
    live = LiveEvidence()
    live.start(["echo", "fast"], timeout=0.3)
    time.sleep(0.6)
    assert live.run(["echo", "fast"], timeout=0.3).status == OK


def test_junk_output_is_kept_as_bytes() -> None:
    outcome = LiveEvidence().run([sys.executable, "-c", "import sys; sys.stdout.buffer.write(bytes(range(256)))"])
    assert outcome.stdout == bytes(range(256))


# A program that hangs is asked once
def slow_program(directory: Path, name: str = "slow-tool") -> None:
    """Answers `quick` at once and nothing else ever; what ends it politely it ignores."""
    program = directory / name
    program.write_text(
        "#!/bin/sh\n[ \"$1\" = quick ] && { echo here; exit 0; }\ntrap '' TERM\nwhile :; do sleep 0.1; done\n"
    )
    program.chmod(0o755)


def test_a_program_that_hung_once_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_program(tmp_path)
    slow_program(tmp_path, "other-tool")
    monkeypatch.setenv("PATH", "%s:%s" % (tmp_path, os.environ["PATH"]))
    live = LiveEvidence()
    live.start(["slow-tool", "quick"])
    live.start(["slow-tool", "second"], timeout=30)
    began = time.monotonic()
    assert live.run(["slow-tool", "first"], timeout=0.5).status == TIMEOUT
    later = [live.run(["slow-tool", name], timeout=30) for name in ("second", "third")]
    assert time.monotonic() - began < 5
    assert [outcome.status for outcome in later] == [TIMEOUT, TIMEOUT]
    assert later[0].reason.startswith("not waited for: slow-tool first: no answer within 0.5 s")
    assert later[1].reason.startswith("not asked again: slow-tool first: no answer within 0.5 s")
    assert live.run(["slow-tool", "quick"]).text == "here\n", "what had answered by then counts"
    assert live.run(["other-tool", "quick"]).ok, "another program is another matter"
    assert list(live.unanswered()) == ["slow-tool"]


def test_what_another_module_found_out_is_believed() -> None:
    live = LiveEvidence(unanswered={"sleep": "sleep 1: no answer within 30 s"})
    began = time.monotonic()
    live.start(["sleep", "9"])
    outcome = live.run(["sleep", "9"])
    assert (outcome.status, outcome.reason) == (TIMEOUT, "not asked again: sleep 1: no answer within 30 s")
    assert time.monotonic() - began < 1


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (("/usr/bin/nvidia-smi", "-q"), "nvidia-smi"),
        (("sh", "-c", "sleep 9"), "sh -c sleep 9"),
        (("python3.11", "-c", "x"), "python3.11 -c x"),
        (("find", "/", "-name", "x"), "find / -name x"),
    ],
)
def test_what_a_hang_is_known_by(argv: tuple[str, ...], name: str) -> None:
    assert commands.name_program(argv) == name


def test_the_drivers_files_are_read_by_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that hangs keeps its lock, and with it whoever reads its files: one waits, the others are not tried."""
    files = tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0"
    files.mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("NVRM version: x\n")
    os.mkfifo(files / "information")
    monkeypatch.setattr(bounded_reads, "SECONDS", 0.5)
    live = LiveEvidence(str(tmp_path))
    live._bounded = bounded_reads.BoundedReader(0.5)
    assert live.read("/proc/driver/nvidia/version").text == "NVRM version: x\n"
    began = time.monotonic()
    first = live.read("/proc/driver/nvidia/gpus/0000:01:00.0/information")
    second = live.read("/proc/driver/nvidia/version")
    assert (first.status, second.status) == (TIMEOUT, TIMEOUT) and time.monotonic() - began < 3
    assert second.reason == "another read of the same driver was not answered"
    live.abandon()
