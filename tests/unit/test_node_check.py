"""The scripts of recipes/ for schedulers, really run, with stand-ins for ansible-playbook and scontrol.

tests/e2e/test_recipes.py runs them with the real ansible-playbook.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NODE_CHECK = ROOT / "recipes/gpu-node-check"
SLURM = ROOT / "recipes/slurm/gpu-node"
# Writes what the callback would, says what it was called with, and ends as it is told.
ANSIBLE = """#!/bin/sh
printf '%s\\n' "$@" >"$STANDIN/arguments"
echo "$GPU_HOST_REPORTS_DIR" >"$STANDIN/work"
[ -f "$STANDIN/reason" ] && cat "$STANDIN/reason" >"$GPU_HOST_REASON_FILE"
cat "$STANDIN/output" 2>/dev/null
[ -f "$STANDIN/hang" ] && { trap '' TERM; sleep 60 & sleep 60; }
exit "$(cat "$STANDIN/status")"
"""
SCONTROL = """#!/bin/sh
case "$1" in
  show) cat "$STANDIN/node" ;;
  update) printf '%s\\n' "$@" >"$STANDIN/updated"; exit "$(cat "$STANDIN/scontrol_status" 2>/dev/null || echo 0)" ;;
esac
"""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def standin(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    for name, text in (("ansible-playbook", ANSIBLE), ("scontrol", SCONTROL), ("logger", "#!/bin/sh\n")):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "node").write_text("NodeName=node7 Arch=x86_64 State=IDLE ThreadsPerCore=1 Reason=\n")
    return tmp_path


@pytest.fixture
def run(standin: Path) -> Run:
    def call(script: Path, *arguments: str, reason: str = "", status: int = 0, **settings: str) -> object:
        (standin / "reason").unlink(missing_ok=True)
        if reason:
            (standin / "reason").write_text(reason)
        (standin / "status").write_text(str(status))
        # What Slurm gives a prolog: no HOME, no USER.
        environment = {"PATH": "%s/bin:/usr/bin:/bin" % standin, "STANDIN": str(standin), "SLURMD_NODENAME": "node7"}
        environment.update(GPU_NODE_CHECK_SETTINGS=str(standin / "none"), TMPDIR=str(standin), **settings)
        return subprocess.run(
            [str(script), *arguments], env=environment, capture_output=True, text=True, check=False, timeout=30
        )

    return call  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("reason", "status", "line", "exit_status"),
    [
        ("node7 ready \n", 0, "ready", 0),
        ("node7 not_ready gpu_not_lost: GPU 0000:91:00.0 is lost\n", 2, "gpu_not_lost: GPU 0000:91:00.0 is lost", 1),
        ("node7 not_validated Gather facts: no Python\n", 2, "could not be told: Gather facts: no Python", 2),
        ("node7 ready \n", 1, "could not be told: ansible-playbook ended with 1 on a node that is ready", 2),
        ("", 4, "could not be told: ansible-playbook ended with 4: ERROR the last words", 2),
    ],
)
def test_one_line_and_an_exit_status(
    run: Run, standin: Path, reason: str, status: int, line: str, exit_status: int
) -> None:
    (standin / "output").write_text("much\n\x1b[31mERROR `the last` $words\x1b[0m\n\n")
    done = run(NODE_CHECK, reason=reason, status=status)
    said = done.stdout if "last words" not in line else done.stdout.replace(" 31m", " ").replace(" 0m", "")
    assert (" ".join(said.split()), done.returncode) == (line, exit_status)
    assert done.stdout.count("\n") == 1 and done.stderr == ""


def test_it_asks_for_a_quick_look_that_leaves_the_gpus_alone(run: Run, standin: Path) -> None:
    run(NODE_CHECK, "-e", "@/etc/node.yml", reason="node7 ready \n")
    given = (standin / "arguments").read_text().split("\n")[:-1]
    assert given[:5] == ["validate.yml", "-i", "node7,", "-c", "local"]
    assert "probe=false" in given and "host_validation_server=false" in given
    assert given[-4:] == ["--tags", "gpus,driver,devices,health,log,nvlink,pci", "-e", "@/etc/node.yml"]


def test_its_tags_are_tags_of_checks() -> None:
    known = (ROOT / "docs/checks.md").read_text().split("Tags, for", 1)[1].split("\n")[0]
    tags = NODE_CHECK.read_text().split("GPU_NODE_CHECK_TAGS:-")[1].split("}")[0].split(",")
    assert len(tags) > 3 and [tag for tag in tags if "`%s`" % tag not in known] == []


def test_a_run_that_hangs_is_ended_in_time(run: Run, standin: Path) -> None:
    """Its children, which no signal reaches, do not keep whoever reads the line waiting."""
    (standin / "hang").touch()
    began = time.monotonic()
    done = run(NODE_CHECK, GPU_NODE_CHECK_SECONDS="0.2", GPU_NODE_CHECK_GRACE="0.2")
    assert time.monotonic() - began < 10
    assert done.returncode == 2 and done.stdout.startswith("could not be told: the checks did not end within 0.2 s")
    assert "Waiting in the kernel: nothing of NVIDIA" in done.stdout or "nvidia" in done.stdout


def test_processes_that_no_signal_ends_are_named(run: Run, standin: Path) -> None:
    for number, line in enumerate(
        ("(nvidia-smi) D 1 7", "(nvidia-persiste) S 1 8", "(kworker/1:0) D 2 0", "(nvidia-smi ")
    ):
        (standin / "proc" / str(40 + number)).mkdir(parents=True)
        (standin / "proc" / str(40 + number) / "stat").write_text("%d %s\n" % (40 + number, line))
    script = standin / "gpu-node-check"
    script.write_text(NODE_CHECK.read_text().replace("/proc/", "%s/proc/" % standin))
    script.chmod(0o755)
    (standin / "hang").touch()
    settings = {"GPU_NODE_CHECK_PROJECT": str(ROOT), "GPU_NODE_CHECK_SECONDS": "0.2", "GPU_NODE_CHECK_GRACE": "0.2"}
    done = run(script, **settings)
    assert done.returncode == 2 and done.stdout.endswith("Waiting in the kernel: nvidia-smi \n")


def test_nothing_is_left_in_tmp(run: Run, standin: Path) -> None:
    before = sorted(standin.iterdir())
    run(NODE_CHECK, reason="node7 ready \n")
    work = Path((standin / "work").read_text().strip()).parent
    assert work.parent == standin and not work.exists()
    assert {path.name for path in standin.iterdir()} - {path.name for path in before} == {
        "arguments", "reason", "status", "work",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"GPU_NODE_CHECK_PROJECT": "/nowhere"}, "no validate.yml in /nowhere"),
        ({"PATH": "TOOLS"}, "ansible-playbook is not on PATH"),
        ({"TMPDIR": "/proc"}, "no directory for temporary files"),
    ],
)
def test_what_is_missing_is_said(standin: Path, settings: dict[str, str], said: str) -> None:
    tools = standin / "tools"  # what the script uses, on a machine that has no Ansible of its own
    tools.mkdir()
    for name in ("dirname", "readlink", "uname", "tr", "cut", "mktemp", "rm"):
        (tools / name).symlink_to(str(shutil.which(name)))
    environment = {"PATH": "%s/bin:/usr/bin:/bin" % standin, "STANDIN": str(standin), **settings}
    environment["PATH"] = environment["PATH"].replace("TOOLS", str(tools))
    done = subprocess.run([str(NODE_CHECK)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and said in done.stdout and done.stdout.count("\n") == 1


# Slurm
LOST = "node7 not_ready gpu_not_lost: GPU 0000:91:00.0 is lost, and 2 more\n"


def updated(standin: Path) -> list[str]:
    path = standin / "updated"
    return path.read_text().split("\n")[:-1] if path.exists() else []


@pytest.mark.parametrize("context", ["prolog_slurmd", "epilog_slurmd", ""])
def test_slurm_leaves_a_node_that_is_ready_alone(run: Run, standin: Path, context: str) -> None:
    done = run(SLURM, reason="node7 ready \n", SLURM_SCRIPT_CONTEXT=context)
    assert done.returncode == 0 and updated(standin) == []


@pytest.mark.parametrize(("context", "status"), [("prolog_slurmd", 1), ("epilog_slurmd", 0), ("", 0)])
def test_slurm_drains_a_node_that_is_not_ready(run: Run, standin: Path, context: str, status: int) -> None:
    """A prolog fails, so that the job runs elsewhere; after a job and between jobs, draining is all."""
    settings = {"SLURM_SCRIPT_CONTEXT": context} if context else {}
    assert run(SLURM, reason=LOST, status=2, **settings).returncode == status
    reason = "Reason=GPU: gpu_not_lost: GPU 0000:91:00.0 is lost, and 2 more"
    assert updated(standin) == ["update", "NodeName=node7", "State=DRAIN", reason]


def test_slurm_leaves_the_reason_of_somebody_else(run: Run, standin: Path) -> None:
    (standin / "node").write_text(
        "NodeName=node7 State=IDLE+DRAIN Reason=new power supply [root@2026-11-30T22:03:11]\n"
    )
    assert run(SLURM, reason=LOST, status=2, SLURM_SCRIPT_CONTEXT="prolog_slurmd").returncode == 1
    assert updated(standin) == []


def test_slurm_is_told_where_the_node_could_not_be_drained(run: Run, standin: Path) -> None:
    (standin / "scontrol_status").write_text("1")
    assert run(SLURM, reason=LOST, status=2, SLURM_SCRIPT_CONTEXT="epilog_slurmd").returncode == 1


def test_slurm_drains_a_node_of_which_nothing_could_be_told_unless_told_otherwise(run: Run, standin: Path) -> None:
    assert run(SLURM, status=4, GPU_NODE_CHECK_UNKNOWN="ignore").returncode == 0
    assert updated(standin) == []
    run(SLURM, status=4)
    assert updated(standin)[-1].startswith("Reason=GPU: could not be told: ansible-playbook ended with 4")


def test_slurm_reads_its_settings_from_a_file(run: Run, standin: Path) -> None:
    (standin / "settings").write_text("GPU_NODE_CHECK_ARGUMENTS='-e @/etc/node.yml'\nGPU_NODE_CHECK_TAGS=gpus\n")
    settings = {"GPU_NODE_CHECK_SETTINGS": str(standin / "settings")}
    environment = {"PATH": "%s/bin:/usr/bin:/bin" % standin, "STANDIN": str(standin), "TMPDIR": str(standin)}
    (standin / "status").write_text("0")
    (standin / "reason").write_text("node7 ready \n")
    done = subprocess.run([str(SLURM)], env={**environment, **settings}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (standin / "arguments").read_text().split("\n")[-5:-1] == ["--tags", "gpus", "-e", "@/etc/node.yml"]


def test_the_files_to_copy_name_only_what_is_there() -> None:
    for file in ("slurm/slurm.conf", "kubernetes/node-check.yaml", "slurm/gpu-node"):
        named = re.findall(r"/opt/gpu-host-validation/([\w./-]+)", (ROOT / "recipes" / file).read_text())
        assert named and [path for path in named if not (ROOT / path).exists()] == [], file


def test_slurms_reason_fits_into_its_accounting() -> None:
    assert 'Reason="GPU: $reason"' in SLURM.read_text()
    assert len("GPU: ") + 200 <= 255 and "cut -c 1-200" in NODE_CHECK.read_text()
