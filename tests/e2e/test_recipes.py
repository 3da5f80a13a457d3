"""The recipes as their users run them: the steps of the CI files in a clone, the node check on a recorded host.

What the scripts for schedulers do with each answer is in tests/unit/test_node_check.py, with stand-ins.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest
import yaml
from ansible.module_utils.gpu_host.evidence import bundle
from ansible.module_utils.gpu_host.evidence.interface import OK, Outcome

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes"
HEALTHY = ROOT / "tests/fixtures/hosts/bare-metal.jsonl.gz"
BIN = Path(sys.executable).parent
PATH = "%s:/usr/sbin:/usr/bin:/sbin:/bin" % BIN
GITHUB = yaml.safe_load((RECIPES / "github-actions/gpu-hosts.yml").read_text())
GITLAB = yaml.safe_load((RECIPES / "gitlab/.gitlab-ci.yml").read_text())
MANIFEST = list(yaml.safe_load_all((RECIPES / "kubernetes/node-check.yaml").read_text()))
PAGE = (ROOT / "docs/recipes.md").read_text()
OFF_THE_BUS = b"[170000.5] NVRM: Xid (PCI:0000:91:00): 79, pid='<unknown>', GPU has fallen off the bus.\n"


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded host of which a card fell off the bus."""
    evidence = bundle.load_bundle(str(HEALTHY)).copy()
    log = evidence.run(["dmesg"])
    evidence.put(Outcome(log.argv, OK, log.rc, log.stdout + OFF_THE_BUS, log.stderr))
    path = tmp_path_factory.mktemp("broken") / "gpu1.jsonl"
    path.write_text(bundle.dump_bundle(evidence.manifest, evidence.records()))
    return path


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository that holds this project as it stands here, on a branch that CI can clone."""
    path = tmp_path_factory.mktemp("project")
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    for name in names:
        if name and not name.startswith(("tests/", "docs/", "molecule/")) and (ROOT / name).exists():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, path / name, follow_symlinks=False)
    git = ["git", "-C", str(path), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "init", "--quiet", "--initial-branch", "v1"], check=True)
    subprocess.run([*git, "add", "--all"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--no-verify", "--message", "all"], check=True)
    return path


def users_repository(path: Path, recorded: Path) -> Path:
    """What a user keeps: the inventory, with a host that is recorded, so that nothing is reached over the network."""
    (path / "inventory").mkdir(parents=True)
    hosts = {"gpu1": {"gpu_host_bundle": str(recorded), "gpu_host_expected": {"gpus": {"count": 8}}}}
    (path / "inventory/hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
    return path


def run_steps(steps: list[str], path: Path, environment: dict[str, str]) -> list[int]:
    """The exit status of each step, each in a shell of its own as GitHub starts it. What they print, we print."""
    statuses: list[int] = []
    for text in steps:
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text],
            cwd=path, env=environment, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        print(done.stdout, done.stderr)
        statuses.append(done.returncode)
    return statuses


def ci_environment(path: Path, **more: str) -> dict[str, str]:
    home = path.parent / "home"
    home.mkdir(exist_ok=True)
    return {"PATH": PATH, "HOME": str(home), "LC_ALL": "C.UTF-8", "PIP_NO_INDEX": "1", "ANSIBLE_NOCOLOR": "1", **more}


def shown_reason() -> str:
    """The line that docs/recipes.md shows."""
    return PAGE.split("```text\n")[1].split("\n")[0]


# GitHub Actions
def github_job() -> dict[str, Any]:
    return dict(GITHUB["jobs"]["validate"])


def fill_in(text: str, values: dict[str, str]) -> str:
    """The expressions of GitHub filled in; KeyError for one that the test does not know."""
    return re.sub(r"\$\{\{ *([\w.]+) *\}\}", lambda found: values[found[1]], text)


def run_github(path: Path, project: Path) -> tuple[list[int], Path, Path]:
    """Status of each step with `run`, the directory of the reports, and the page of the job."""
    temporary, summary = path.parent / "runner", path.parent / "summary.md"
    temporary.mkdir()
    values = {
        "github.workspace": str(path),
        "vars.GPU_HOST_VALIDATION": "file://%s" % project,
        "vars.GPU_HOST_VALIDATION_REF": "v1",
        "vars.GPU_HOSTS_KNOWN": "gpu1 ssh-ed25519 AAAA",
        "secrets.GPU_HOSTS_SSH_KEY": "-----BEGIN KEY-----\nsecret-of-the-key\n-----END KEY-----",
    }
    job = github_job()
    statuses: list[int] = []
    for step in job["steps"]:
        if "run" not in step or (any(statuses) and step.get("if") != "always()"):
            continue
        variables = {name: fill_in(value, values) for name, value in {**job["env"], **step.get("env", {})}.items()}
        variables.update(RUNNER_TEMP=str(temporary), GITHUB_STEP_SUMMARY=str(summary), GITHUB_WORKSPACE=str(path))
        environment = ci_environment(path, GPU_HOST_REASON_FILE=str(path.parent / "reasons"), **variables)
        statuses += run_steps([step["run"]], path, environment)
    assert not (temporary / "key").exists(), "the private key stays on the runner"
    return statuses, Path(fill_in(job["env"]["GPU_HOST_REPORTS_DIR"], values)), summary


@pytest.mark.slow
@pytest.mark.long
def test_the_workflow_of_github_fails_for_a_host_that_is_not_ready(tmp_path: Path, project: Path, broken: Path) -> None:
    statuses, reports, summary = run_github(users_repository(tmp_path / "repository", broken), project)
    assert statuses == [0, 2, 0]
    assert "log_no_gpu_off_bus" in summary.read_text()
    assert {path.name for path in reports.iterdir()} >= {"report.html", "report.json", "report.md", "junit.xml"}
    failed = ET.parse(reports / "junit.xml").findall("testsuite/testcase[failure]")
    assert [case.get("name") for case in failed] == ["log_no_gpu_off_bus"]
    assert (tmp_path / "reasons").read_text() == "gpu1 not_ready %s\n" % shown_reason()
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and b"secret-of-the-key" in path.read_bytes()]
    assert kept == []


@pytest.mark.slow
@pytest.mark.long
def test_the_workflow_of_github_passes_for_a_host_that_is_ready(tmp_path: Path, project: Path) -> None:
    statuses, _reports, summary = run_github(users_repository(tmp_path / "repository", HEALTHY), project)
    assert statuses == [0, 0, 0] and summary.stat().st_size > 0


def test_the_workflow_of_github_keeps_its_reports() -> None:
    uses = {step["uses"].split("@")[0]: step for step in github_job()["steps"] if "uses" in step}
    assert uses["actions/upload-artifact"]["with"]["path"] == "reports/"
    assert uses["mikepenz/action-junit-report"]["with"]["report_paths"] == "reports/junit.xml"
    for name in ("actions/upload-artifact", "mikepenz/action-junit-report"):
        assert uses[name]["if"] == "always()", "the reports are wanted where the run failed"
    # A secret or a setting is never filled into a script, where it would be run.
    assert not any("${{" in step.get("run", "") for step in github_job()["steps"])


# GitLab
def run_gitlab(path: Path, project: Path, search_path: str = PATH) -> tuple[int, Path]:
    """The status of the job, and where its reports are."""
    settings = path.parent / "settings"
    settings.mkdir()
    (settings / "key").write_text("secret-of-the-key\n")
    (settings / "known").write_text("gpu1 ssh-ed25519 AAAA\n")
    job = GITLAB["gpu-hosts"]
    values = {
        "CI_PROJECT_DIR": str(path),
        "GPU_HOST_VALIDATION": "file://%s" % project,
        "GPU_HOST_VALIDATION_REF": "v1",
        "GPU_HOSTS_SSH_KEY": str(settings / "key"),
        "GPU_HOSTS_KNOWN": str(settings / "known"),
    }
    for name, value in job["variables"].items():
        values[name] = value.replace("$CI_PROJECT_DIR", str(path))
    environment = {**ci_environment(path, **values), "PATH": search_path}
    # GitLab runs before_script and script in one shell that ends at the first failure; after_script in another.
    [status] = run_steps(["\n".join([*job["before_script"], *job["script"]])], path, environment)
    assert run_steps(job["after_script"], path, environment) == [0]
    assert not Path(str(path) + ".key").exists(), "the private key stays on the runner"
    return status, path / "reports"


@pytest.mark.slow
def test_the_job_of_gitlab_ends_as_ansible_does(tmp_path: Path) -> None:
    """With a stand-in for ansible-playbook that looks at what it is given: the key, closed to others."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "ansible.cfg").touch()
    git = ["git", "-C", str(project), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q", "-b", "v1"], ["add", "-A"], ["commit", "-q", "--no-verify", "-m", "all"]):
        subprocess.run([*git, *words], check=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ansible-playbook").write_text(
        '#!/bin/sh\n[ -f "$ANSIBLE_CONFIG" ] || exit 9\nmkdir -p "$GPU_HOST_REPORTS_DIR"\n'
        'printf "%s\\n" "$@" >"$GPU_HOST_REPORTS_DIR/arguments"\n'
        'stat -c %a "$6" >"$GPU_HOST_REPORTS_DIR/mode"\ncat "$6" >"$GPU_HOST_REPORTS_DIR/key"\nexit 2\n'
    )
    (tmp_path / "bin/ansible-playbook").chmod(0o755)
    search = "%s/bin:%s" % (tmp_path, PATH)
    status, reports = run_gitlab(users_repository(tmp_path / "repository", HEALTHY), project, search)
    assert status == 2
    assert (reports / "arguments").read_text().split("\n")[:4] == [
        "gpu-host-validation/validate.yml", "-b", "-i", "inventory",
    ]  # fmt: skip
    assert (reports / "mode").read_text() == "600\n" and (reports / "key").read_text() == "secret-of-the-key\n"


@pytest.mark.slow
@pytest.mark.long
def test_the_job_of_gitlab_passes_for_a_host_that_is_ready(tmp_path: Path, project: Path) -> None:
    status, reports = run_gitlab(users_repository(tmp_path / "repository", HEALTHY), project)
    assert status == 0
    assert GITLAB["gpu-hosts"]["artifacts"]["reports"]["junit"] == "reports/junit.xml"
    assert ET.parse(reports / "junit.xml").getroot().get("failures") == "0"


@pytest.mark.slow
@pytest.mark.long
def test_the_job_of_gitlab_fails_for_a_host_that_is_not_ready(tmp_path: Path, project: Path, broken: Path) -> None:
    status, reports = run_gitlab(users_repository(tmp_path / "repository", broken), project)
    assert status == 2 and ET.parse(reports / "junit.xml").getroot().get("failures") == "1"


def test_the_job_of_gitlab_keeps_its_reports_where_it_failed() -> None:
    assert GITLAB["gpu-hosts"]["artifacts"]["when"] == "always"
    assert GITLAB["gpu-hosts"]["artifacts"]["paths"] == ["reports/"]


# The node check with the real Ansible
def node_check(tmp_path: Path, *arguments: str, path: str = PATH, **settings: str) -> tuple[str, int]:
    done = subprocess.run(
        [str(RECIPES / "gpu-node-check"), *arguments],
        env={"PATH": path, "TMPDIR": str(tmp_path), "GPU_NODE_CHECK_SECONDS": "200", **settings},
        capture_output=True, text=True, check=False, timeout=250,
    )  # fmt: skip
    assert done.stderr == "" and done.stdout.count("\n") == 1
    return done.stdout.strip(), done.returncode


@pytest.mark.slow
@pytest.mark.long
def test_the_node_check_gives_the_reason(tmp_path: Path, broken: Path) -> None:
    assert node_check(tmp_path, "-e", "gpu_host_bundle=%s" % broken) == (shown_reason(), 1)


@pytest.mark.slow
@pytest.mark.long
def test_the_node_check_says_ready(tmp_path: Path) -> None:
    assert node_check(tmp_path, "-e", "gpu_host_bundle=%s" % HEALTHY) == ("ready", 0)


@pytest.mark.slow
@pytest.mark.long
def test_the_node_check_names_a_program_that_hangs(tmp_path: Path) -> None:
    """The reader's own limits end before that of the script where there is time for them."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvidia-smi").write_text("#!/bin/sh\ntrap '' TERM\nsleep 300\n")
    (tmp_path / "bin/nvidia-smi").chmod(0o755)
    line, status = node_check(tmp_path, path="%s/bin:%s" % (tmp_path, PATH))
    assert status == 1 and line.startswith("nvidia_smi_answers: nvidia-smi hangs")


@pytest.mark.slow
@pytest.mark.long
def test_the_node_check_ends_in_time_where_a_program_hangs(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvidia-smi").write_text("#!/bin/sh\ntrap '' TERM\nsleep 331\n")
    (tmp_path / "bin/nvidia-smi").chmod(0o755)
    line, status = node_check(tmp_path, path="%s/bin:%s" % (tmp_path, PATH), GPU_NODE_CHECK_SECONDS="10")
    assert status == 2 and line.startswith("could not be told: the checks did not end within 10 s")


# Kubernetes
def config_map() -> dict[str, str]:
    [found] = [document for document in MANIFEST if document["kind"] == "ConfigMap"]
    return dict(found["data"])


@pytest.fixture(scope="module")
def api() -> Any:
    """Of the Kubernetes API, where an unknown field is an error."""
    schema = json.loads((ROOT / "tests/fixtures/kubernetes/api-1.37.json").read_text())
    return jsonschema.Draft7Validator(schema)


@pytest.mark.parametrize("document", MANIFEST, ids=lambda document: document["kind"])
def test_the_manifest_is_as_the_api_of_kubernetes_wants_it(document: dict[str, Any], api: Any) -> None:
    assert document["kind"] in api.schema["properties"]
    assert [error.message for error in api.iter_errors({document["kind"]: document})] == []
    assert not api.is_valid({document["kind"]: {**document, "spek": {}}})


def test_the_parts_of_the_manifest_name_each_other() -> None:
    kinds = {document["kind"]: document for document in MANIFEST}
    pod = kinds["DaemonSet"]["spec"]["template"]["spec"]
    account = kinds["ServiceAccount"]["metadata"]
    assert pod["serviceAccountName"] == account["name"]
    subject = {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
    assert kinds["ClusterRoleBinding"]["subjects"] == [subject]
    labels = kinds["DaemonSet"]["spec"]["selector"]["matchLabels"]
    assert labels.items() <= kinds["DaemonSet"]["spec"]["template"]["metadata"]["labels"].items()
    [container] = pod["containers"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert {volume["name"] for volume in pod["volumes"]} == set(mounted)
    [volume] = [volume for volume in pod["volumes"] if "configMap" in volume]
    assert volume["configMap"]["name"] == kinds["ConfigMap"]["metadata"]["name"]
    [option] = [word for word in container["command"] if word.startswith("--config.custom-plugin-monitor=")]
    folder, _slash, file = option.partition("=")[2].rpartition("/")
    assert folder == mounted[volume["name"]] and file in config_map()


def test_node_problem_detector_takes_its_configuration() -> None:
    """By the rules of its reader (pkg/custompluginmonitor/types/config.go of v0.8.20)."""
    monitor = json.loads(config_map()["gpu-host.json"])
    assert set(monitor) == {"plugin", "pluginConfig", "source", "metricsReporting", "conditions", "rules"}
    known = {"invoke_interval", "timeout", "max_output_length", "concurrency", "skip_initial_status"}
    assert set(monitor["pluginConfig"]) <= {*known, "enable_message_change_based_condition_update"}
    assert monitor["plugin"] == "custom"
    [rule] = monitor["rules"]
    assert set(rule) <= {"type", "condition", "reason", "path", "args", "timeout"} and rule["type"] == "permanent"
    assert rule["condition"] in [condition["type"] for condition in monitor["conditions"]]
    assert rule["path"].replace("/opt/gpu-host-validation", str(ROOT)) == str(RECIPES / "gpu-node-check")
    limit = re.search(r"GPU_NODE_CHECK_SECONDS:-(\d+)", (RECIPES / "gpu-node-check").read_text())
    assert limit and int(limit[1]) + 5 < int(monitor["pluginConfig"]["timeout"].rstrip("s"))


@pytest.mark.slow
@pytest.mark.long
def test_the_plugin_looks_at_the_node_with_the_nodes_python(tmp_path: Path) -> None:
    """With a stand-in for nsenter that notes its options and goes on in the namespaces of the test."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nsenter").write_text(
        '#!/bin/sh\necho "$@" >%s/options\nwhile [ "$1" != -- ]; do shift; done\nshift 2\nexec %s "$@"\n'
        % (tmp_path, sys.executable)
    )
    (tmp_path / "bin/nsenter").chmod(0o755)
    (tmp_path / "node.yml").write_text(config_map()["node.yml"].replace("/opt/gpu-host-validation", str(ROOT)))
    [rule] = json.loads(config_map()["gpu-host.json"])["rules"]
    arguments = [word.replace("/config/", "%s/" % tmp_path) for word in rule["args"]]
    _line, status = node_check(tmp_path, *arguments, path="%s/bin:%s" % (tmp_path, PATH), NODE_NAME="node7")
    assert status in (0, 1), "this machine could be looked at"
    options = (tmp_path / "options").read_text().split()
    assert options[:2] == ["--target", "1"] and "--mount" in options and options[-1] != "--"


def copied_parts() -> list[str]:
    """What the image gets of this project."""
    lines = re.findall(r"^COPY (?!--from)(.*)$", (RECIPES / "kubernetes/Containerfile").read_text(), re.M)
    return [part for line in lines for part in line.split()[:-1]]


def test_the_image_gets_parts_that_are_there() -> None:
    assert len(copied_parts()) > 5 and [part for part in copied_parts() if not (ROOT / part).exists()] == []


@pytest.mark.slow
@pytest.mark.long
def test_the_parts_in_the_image_are_enough_for_the_node_check(tmp_path: Path) -> None:
    project = tmp_path / "gpu-host-validation"
    project.mkdir()
    for part in copied_parts():
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy2
        copy(ROOT / part, project / part, **({"symlinks": True} if (ROOT / part).is_dir() else {}))
    said = node_check(tmp_path, "-e", "gpu_host_bundle=%s" % HEALTHY, GPU_NODE_CHECK_PROJECT=str(project))
    assert said == ("ready", 0)


def test_the_scripts_can_be_run() -> None:
    for name in ("gpu-node-check", "slurm/gpu-node", "kubernetes/node-python"):
        assert os.access(RECIPES / name, os.X_OK), name
    shellcheck = subprocess.run(
        [str(BIN / "shellcheck"), *[str(RECIPES / name) for name in ("gpu-node-check", "slurm/gpu-node")]],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert shellcheck.returncode == 0, shellcheck.stdout


# The page
def test_the_page_names_only_what_is_there() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)", PAGE) if "://" not in link]
    assert links and [link for link in links if not (ROOT / "docs" / link).exists()] == []
    named = set(re.findall(r"\bGPU_NODE_CHECK_\w+", PAGE))
    scripts = (RECIPES / "gpu-node-check").read_text() + (RECIPES / "slurm/gpu-node").read_text()
    assert named and sorted(name for name in named if name not in scripts) == []


def test_the_page_says_the_limits_that_the_script_has() -> None:
    script = (RECIPES / "gpu-node-check").read_text()
    tags = re.search(r"GPU_NODE_CHECK_TAGS:-([\w,]+)", script)
    seconds = re.search(r"GPU_NODE_CHECK_SECONDS:-(\d+)", script)
    assert tags and seconds
    listed = PAGE.split("the checks with the tags")[1].split(".")[0]
    assert re.findall(r"`(\w+)`", listed) == tags[1].split(",")
    assert "`GPU_NODE_CHECK_SECONDS` (%s)" % seconds[1] in PAGE


def test_the_line_of_the_page_for_each_host_is_one_that_the_shell_reads(tmp_path: Path) -> None:
    [block] = [block for block in re.findall(r"```console\n(.*?)```", PAGE, re.S) if "while read" in block]
    (tmp_path / "reasons").write_text("gpu1 ready \ngpu2 not_ready %s\n" % shown_reason())
    done = subprocess.run(["sh", "-c", block.split("\n")[1]], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "gpu2: %s\n" % shown_reason()
