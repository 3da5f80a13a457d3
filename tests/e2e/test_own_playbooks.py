"""A playbook in a directory of the user's own gets the verdict of the clone, with the collection and without it.

What is set there is read out of docs/in-your-own-playbooks.md.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PAGE = (ROOT / "docs" / "in-your-own-playbooks.md").read_text()
WITH, WITHOUT = PAGE.split("## Without the collection")
NAME = "gpu_host.validation."
HOSTS = ROOT / "tests" / "fixtures" / "hosts"
BUNDLE = HOSTS / "bare-metal.jsonl.gz"
SOME = "h200-x2,llm-vm,pve1"  # of the example inventory: ready and not, with NVLink, a guest and its Proxmox host
MODULES = sorted(path.stem for path in (ROOT / "library").glob("*.py"))

Run = Callable[..., str]
pytestmark = pytest.mark.xdist_group("collection")  # on one worker: the collection is built and installed once


def block(page: str, language: str) -> str:
    found = re.search(r"```%s\n(.*?)```" % language, page, re.S)
    assert found
    return found[1]


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory, an empty home and a place for collections, none of them near the clone."""
    directory = tmp_path_factory.mktemp("elsewhere")
    for name in ("home", "collections", "cwd"):
        (directory / name).mkdir()
    return directory


@pytest.fixture(scope="module")
def run(elsewhere: Path) -> Run:
    """Run a program there. It may warn of nothing."""

    def run(*words: str, rc: int = 0, cwd: Path = elsewhere / "cwd", **settings: str) -> str:
        environment = {
            "PATH": "%s:/usr/bin:/bin" % BIN, "HOME": str(elsewhere / "home"), "LC_ALL": "C.UTF-8", "NO_COLOR": "1",
            "ANSIBLE_COLLECTIONS_PATH": str(elsewhere / "collections"), **settings,
        }  # fmt: skip
        done = subprocess.run(
            [str(BIN / words[0]), *words[1:]], cwd=cwd, env=environment, capture_output=True, text=True, check=False
        )
        # ansible-doc 2.21 warns of a collection inside ansible-core that has no version.
        errors = re.sub(r"^\[WARNING\]: Collection at '\S*/ansible/_internal/.*\n", "", done.stderr, flags=re.M)
        assert done.returncode == rc, done.stdout + errors
        assert "[WARNING" not in done.stdout + errors and "[DEPRECATION" not in done.stdout + errors
        assert rc or errors == ""
        return done.stdout + errors

    return run


@pytest.fixture(scope="module")
def collection(elsewhere: Path, run: Run) -> Path:
    """The installed collection; its files are no longer those of the clone."""
    built = elsewhere / "built"
    run("python", str(ROOT / "scripts" / "build_collection.py"), "--output", str(built))
    [archive] = built.glob("*.tar.gz")
    run("ansible-galaxy", "collection", "install", str(archive), "-p", str(elsewhere / "collections"), "--offline")
    return elsewhere.joinpath("collections", "ansible_collections", *NAME.strip(".").split("."))


@pytest.fixture(scope="module")
def verdict_of_the_clone(elsewhere: Path, run: Run) -> dict[str, Any]:
    reports = elsewhere / "of-the-clone"
    run("ansible-playbook", "validate.yml", "-l", SOME, rc=2, cwd=ROOT, GPU_HOST_REPORTS_DIR=str(reports))
    return read_verdict(reports)


def read_verdict(reports: Path) -> dict[str, Any]:
    """The hosts of a report, with the commands as the clone has them."""
    text = (reports / "report.json").read_text()
    hosts = json.loads(re.sub(r"(ansible-playbook )%s(\w+)" % re.escape(NAME), r"\1\2.yml", text))["hosts"]
    assert hosts
    for host in hosts.values():
        del host["facts"]["evidence"]["seconds"]
    return dict(hosts)


def write_own_playbook(directory: Path, settings: str, playbook: str) -> None:
    directory.mkdir()
    (directory / "ansible.cfg").write_text(settings)
    (directory / "own.yml").write_text(playbook)


@pytest.mark.slow
def test_the_lines_of_the_page_are_enough_without_the_collection(elsewhere: Path, run: Run) -> None:
    settings = block(WITHOUT, "ini").replace("/opt/gpu-host-validation", str(ROOT))
    assert settings.count(str(ROOT)) == 6
    own = elsewhere / "without"
    write_own_playbook(own, settings, block(WITH, "yaml").replace(NAME, "").replace("gpu_hosts", "all"))
    said = run("ansible-playbook", "own.yml", "-i", "case,", "-e", "gpu_host_bundle=%s" % BUNDLE, cwd=own)
    assert "The host is ready." in said and "Show what comes after a good verdict" in said
    [host] = read_verdict(own / "reports").values()
    assert "pass" in {result["status"] for result in host["results"]}
    from_the_fragment = "A bundle on the controller to read instead of the host."
    assert from_the_fragment in " ".join(run("ansible-doc", "gpu_facts", cwd=own).split())


@pytest.mark.slow
def test_without_the_lines_the_message_names_the_page(elsewhere: Path, run: Run) -> None:
    own = elsewhere / "neither"
    write_own_playbook(own, "[defaults]\nroles_path = %s\n" % (ROOT / "roles"), "- hosts: all\n  roles: [pci_acs]\n")
    said = run("ansible-playbook", "own.yml", "-i", "case,", rc=4, cwd=own)
    assert "couldn't resolve module/action 'host_facts'" in said and "docs/in-your-own-playbooks.md" in said


@pytest.mark.parametrize("role", sorted(path.name for path in (ROOT / "roles").iterdir()))
def test_every_role_begins_with_such_a_message(role: str) -> None:
    """Ansible reads tasks/main.yml before it runs anything, and shows two lines above a task that it cannot read."""
    tasks = ROOT / "roles" / role / "tasks"
    ours = re.compile(r"\s+(- )?(%s):" % "|".join(MODULES))
    uses = any(ours.match(line) for path in tasks.glob("*.yml") for line in path.read_text().splitlines())
    if not uses or "internal to" in (ROOT / "roles" / role / "meta" / "main.yml").read_text():
        return
    lines = (tasks / "main.yml").read_text().splitlines()
    first = next((number for number, line in enumerate(lines) if ours.match(line)), None)
    assert first is not None, "%s/tasks/main.yml names no module of ours: the message would come in the middle" % role
    task = max(number for number in range(first) if lines[number].lstrip().startswith("- "))
    shown = "\n".join(lines[max(0, task - 2) : task])
    assert "docs/in-your-own-playbooks.md" in shown, "%s/tasks/main.yml line %d" % (role, task + 1)


@pytest.mark.slow
def test_the_playbook_gives_the_verdict_of_the_clone(
    elsewhere: Path, collection: Path, run: Run, verdict_of_the_clone: dict[str, Any]
) -> None:
    own = elsewhere / "playbook"
    write_own_playbook(own, block(WITH, "ini"), "")
    run("ansible-playbook", NAME + "validate", "-i", str(ROOT / "inventory"), "-l", SOME, rc=2, cwd=own)
    assert read_verdict(own / "reports") == verdict_of_the_clone


@pytest.mark.slow
def test_the_role_in_a_foreign_playbook_gives_the_verdict_of_the_clone(
    elsewhere: Path, collection: Path, run: Run, verdict_of_the_clone: dict[str, Any]
) -> None:
    own = elsewhere / "role"
    write_own_playbook(own, block(WITH, "ini"), block(WITH, "yaml"))
    said = run("ansible-playbook", "own.yml", "-i", str(ROOT / "inventory"), "-l", "h200-x2", cwd=own)
    assert "Show what comes after a good verdict" in said
    assert read_verdict(own / "reports") == {"h200-x2": verdict_of_the_clone["h200-x2"]}


@pytest.mark.slow
def test_a_module_alone_reads_a_live_host(collection: Path, run: Run) -> None:
    """The one whose own child imports what Ansible sent to the host."""
    said = run(
        "ansible", "all", "-i", "localhost,", "-c", "local", "-m", NAME + "p2p_facts",
        "-e", "ansible_python_interpreter=" + sys.executable,
    )  # fmt: skip
    facts = json.loads(said.partition("=>")[2])["ansible_facts"]["p2p_probe"]
    assert "start" in facts["stages"] and "No module named" not in said


@pytest.mark.slow
def test_every_file_finds_what_it_imports(elsewhere: Path, collection: Path, run: Run) -> None:
    """As files of a collection, none of which sees the clone."""
    names = [
        ".".join(path.relative_to(elsewhere / "collections").with_suffix("").parts)
        for folder in ("modules", "module_utils")
        for path in collection.glob("plugins/%s/**/*.py" % folder)
    ]
    assert len(names) > 200
    program = "import importlib, sys; sys.path.insert(0, %r); [importlib.import_module(name) for name in sys.argv[1:]]"
    run("python", "-c", program % str(elsewhere / "collections"), *names)


@pytest.mark.long
@pytest.mark.slow
def test_a_module_alone_reads_a_recorded_host(collection: Path, run: Run) -> None:
    said = run("ansible", "all", "-i", "x,", "-m", NAME + "gpu_facts", "-a", "bundle=%s" % BUNDLE)
    assert json.loads(said.partition("=>")[2])["ansible_facts"]["gpu_host"]["gpus"]["count"] == 8


@pytest.mark.long
@pytest.mark.slow
def test_every_plugin_is_documented(collection: Path, run: Run) -> None:
    folders = {"module": "modules", "callback": "callback", "filter": "filter"}
    for kind, folder in folders.items():
        names = sorted(NAME + path.stem for path in collection.glob("plugins/%s/*.py" % folder))
        documented = json.loads(run("ansible-doc", "-t", kind, "--json", *names))
        assert sorted(documented) == names
        assert [name for name, found in documented.items() if not found["doc"]["description"]] == []
    roles = sorted(NAME + path.name for path in collection.glob("roles/*"))
    assert sorted(json.loads(run("ansible-doc", "-t", "role", "--json", *roles))) == roles


@pytest.mark.slow
def test_no_short_name_is_left(collection: Path) -> None:
    short = re.compile(r"^\s*(- )?(%s):" % "|".join(MODULES), re.M)
    files = [*collection.glob("roles/*/tasks/*.yml"), *collection.glob("playbooks/**/*.yml")]
    assert len(files) > 20
    # A fact that a role gives the play may have the name of a module.
    texts = {path.name: path.read_text().replace('inference_server_container: "{{', "") for path in files}
    assert [name for name, text in texts.items() if short.search(text)] == []
    code = [path for path in collection.rglob("*.py") if "ansible.module_utils.gpu_" in path.read_text()]
    assert code == []
    manifest = yaml.safe_load((collection / "MANIFEST.json").read_text())["collection_info"]
    assert 'version = "%s"' % manifest["version"] in (ROOT / "pyproject.toml").read_text()
