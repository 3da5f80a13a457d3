#!/usr/bin/env python3
"""Makes an installable Ansible collection of the files of this clone (`make collection`): the same code, laid out as
Galaxy wants it, with full names. docs/in-your-own-playbooks.md says how it is used.

.cache/collection/ansible_collections/NAMESPACE/NAME/ holds the files, .cache/collection/NAMESPACE-NAME-VERSION.tar.gz
what `ansible-galaxy collection install` takes. The namespace and the name are the two halves of the project's name in
pyproject.toml, the version is the one there. Whatever stands in library/, module_utils/, plugins/, roles/, playbooks/
and checks/ is taken; there is no list of it.
"""

from __future__ import annotations

import argparse
import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomllib
import yaml
from qualify_names import (  # type: ignore[import-not-found]
    Names,
    NamesError,
    qualify_markdown,
    qualify_python,
    qualify_yaml,
)

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ".cache/collection"
# A folder of the clone -> its folder in the collection.
FOLDERS = {
    "library": "plugins/modules",
    "module_utils": "plugins/module_utils",
    "plugins": "plugins",
    "callback_plugins": "plugins/callback",
    "roles": "roles",
    "playbooks": "playbooks",
    "checks": "checks",
    "docs": "docs",
}
# A folder of plugins inside a role -> their folder in the collection, whose roles have none of their own.
IN_ROLES = {"filter_plugins": "plugins/filter", "library": "plugins/modules", "action_plugins": "plugins/action"}
FILES = ("LICENSE", "CHANGELOG.md", "SECURITY.md")
LEFT_OUT = {"__pycache__", ".mypy_cache", ".ruff_cache", ".ansible"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / OUTPUT, help="the directory to make it in")
    output = parser.parse_args().output.resolve()
    try:
        archive = build_collection(ROOT, output)
    except (NamesError, OSError) as error:
        sys.exit("No collection was made: %s" % error)
    print("%s\nInstall it: ansible-galaxy collection install %s" % (archive, archive))
    return 0


def build_collection(root: Path, output: Path) -> Path:
    """The archive, made anew from the clone in `root`. NamesError names a file that cannot be read."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    namespace, name = name_collection(project["name"])
    target = output / "ansible_collections" / namespace / name
    shutil.rmtree(output, ignore_errors=True)
    files = dict(list_files(root))
    names = find_names("%s.%s" % (namespace, name), files)
    for inside, source in files.items():
        write_file(source, target / inside, names, inside.startswith("playbooks/"))
    described = {
        "galaxy.yml": describe_collection(namespace, name, project),
        "meta/runtime.yml": {"requires_ansible": find_supported_ansible(project["dependencies"])},
    }
    for inside, content in described.items():
        (target / inside).parent.mkdir(parents=True, exist_ok=True)
        (target / inside).write_text("---\n" + yaml.safe_dump(content, sort_keys=False, width=120), encoding="utf-8")
    (target / "README.md").write_text(write_readme(project["description"], files, names), encoding="utf-8")
    galaxy = [str(Path(sys.executable).parent / "ansible-galaxy"), "collection", "build", str(target), "--force"]
    done = subprocess.run([*galaxy, "--output-path", str(output)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NamesError((done.stdout + done.stderr).strip())
    return output / ("%s-%s-%s.tar.gz" % (namespace, name, project["version"]))


def name_collection(project: str) -> tuple[str, str]:
    """(namespace, name): gpu-host-validation is gpu_host.validation. Galaxy takes letters, digits and underscores."""
    namespace, _dash, name = project.rpartition("-")
    return namespace.replace("-", "_"), name


def list_files(root: Path) -> Iterator[tuple[str, Path]]:
    """(path in the collection, file of the clone). Links are another way to what is taken anyway."""
    for name in FILES:
        yield name, root / name
    for folder, inside in FOLDERS.items():
        for path in sorted(walk_files(root / folder)):
            parts = path.relative_to(root / folder).parts
            if folder == "roles" and len(parts) > 2 and parts[1] in IN_ROLES:
                yield "/".join((IN_ROLES[parts[1]], *parts[2:])), path
            else:
                yield "/".join((inside, *parts)), path


def walk_files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_symlink() or path.name in LEFT_OUT or path.suffix == ".pyc":
            continue
        if path.is_dir():
            yield from walk_files(path)
        else:
            yield path


def find_names(collection: str, files: dict[str, Path]) -> Names:
    """What the collection will hold, by one word."""

    def stems(folder: str, suffix: str) -> frozenset[str]:
        pattern = re.compile(re.escape(folder) + r"/([^/]+)" + re.escape(suffix))
        return frozenset(found[1] for inside in files if (found := pattern.fullmatch(inside)))

    filters = [path for inside, path in files.items() if re.fullmatch(r"plugins/filter/[^/]+\.py", inside)]
    return Names(
        collection=collection,
        modules=stems("plugins/modules", ".py"),
        actions=stems("plugins/action", ".py"),
        callbacks=stems("plugins/callback", ".py"),
        fragments=stems("plugins/doc_fragments", ".py"),
        filters=frozenset(name for path in filters for name in find_filters(path)),
        roles=frozenset(inside.split("/")[1] for inside in files if inside.startswith("roles/")),
        playbooks=stems("playbooks", ".yml"),
        utils=frozenset(inside.split("/")[2] for inside in files if inside.startswith("plugins/module_utils/")),
    )


def find_filters(path: Path) -> Iterator[str]:
    """The keys of the dictionary that ``filters`` of a file of filters returns."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name == "filters":
            for part in ast.walk(node):
                if isinstance(part, ast.Dict):
                    yield from (str(key.value) for key in part.keys if isinstance(key, ast.Constant))


def write_file(source: Path, target: Path, names: Names, in_playbooks: bool) -> None:
    """The file with full names; one that is no text of ours as it is. Its mode is kept."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
    if source.suffix not in (".py", ".yml", ".yaml", ".md"):
        return
    text = source.read_text(encoding="utf-8")
    try:
        if source.suffix == ".py":
            text = qualify_python(text, names)
        elif source.suffix == ".md":
            text = qualify_markdown(text, names)
        else:
            text = qualify_yaml(text, names, in_playbooks)
    except NamesError as error:
        raise NamesError("%s: %s" % (source, error)) from error
    target.write_text(text, encoding="utf-8")


def describe_collection(namespace: str, name: str, project: dict[str, Any]) -> dict[str, Any]:
    """galaxy.yml. There is no address in it, because the project has none."""
    return {
        "namespace": namespace,
        "name": name,
        "version": project["version"],
        "readme": "README.md",
        "authors": ["The %s authors" % project["name"]],
        "description": project["description"],
        "license": [project["license"]],
        "tags": ["nvidia", "gpu", "proxmox", "inference", "linux", "infrastructure"],
        "dependencies": {},
    }


def find_supported_ansible(dependencies: list[str]) -> str:
    """ ">=2.19.0,<2.22.0" from "ansible-core>=2.19,<2.22": Galaxy wants three numbers."""
    wanted = next(words for words in dependencies if words.startswith("ansible-core")).removeprefix("ansible-core")
    return re.sub(r"(\d+\.\d+)(?![.\d])", r"\1.0", wanted)


def write_readme(description: str, files: dict[str, Path], names: Names) -> str:
    """What is in the collection, with one line for each, and where to read more."""
    lines = ["# %s" % names.collection, "", description + ".", ""]
    lines += ["How to use it: [docs/in-your-own-playbooks.md](docs/in-your-own-playbooks.md). "]
    lines[-1] += "What is checked, why, and what to do: [docs/checks.md](docs/checks.md)."
    for title, rows in (
        ("Playbooks", _describe_playbooks(files)),
        ("Roles", _describe_roles(files)),
        ("Modules", _describe_plugins("plugins/modules", files)),
        ("Filters", _describe_plugins("plugins/filter", files)),
        ("Callbacks", _describe_plugins("plugins/callback", files)),
    ):
        lines += ["", "## " + title, "", "| name | what it does |", "|---|---|"]
        lines += ["| `%s` | %s |" % (names.qualify(name), what.replace("|", "\\|")) for name, what in sorted(rows)]
    return "\n".join(lines) + "\n"


def _describe_playbooks(files: dict[str, Path]) -> Iterator[tuple[str, str]]:
    for inside, path in files.items():
        if re.fullmatch(r"playbooks/[^/]+\.yml", inside):
            yield path.stem, yaml.safe_load(path.read_text(encoding="utf-8"))[0]["name"]


def _describe_roles(files: dict[str, Path]) -> Iterator[tuple[str, str]]:
    for inside, path in files.items():
        if re.fullmatch(r"roles/[^/]+/meta/argument_specs\.yml", inside):
            specs = yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"]
            yield inside.split("/")[1], next(iter(specs.values()))["short_description"]


def _describe_plugins(folder: str, files: dict[str, Path]) -> Iterator[tuple[str, str]]:
    for inside, path in files.items():
        if re.fullmatch(re.escape(folder) + r"/[^/]+\.py", inside):
            text = re.search(r'^DOCUMENTATION = r?"""(.*?)"""', path.read_text(encoding="utf-8"), re.M | re.S)
            document = yaml.safe_load(text[1]) if text else {}
            yield document.get("name") or path.stem, document.get("short_description", "")


if __name__ == "__main__":
    sys.exit(main())
