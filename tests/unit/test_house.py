"""The rooms of module_utils/ and the direction of imports between them.

See CONTRIBUTING.md, "The way through the house".
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UTILS = ROOT / "module_utils"
# Package -> the packages of ours that its files may import.
ALLOWED = {
    "gpu_host": {"gpu_host"},
    "gpu_checks": {"gpu_checks", "gpu_host"},
    "gpu_compare": {"gpu_compare", "gpu_checks", "gpu_host"},
    "gpu_report": {"gpu_report", "gpu_compare", "gpu_checks", "gpu_host"},
    "gpu_server": {"gpu_server", "gpu_host"},
    "gpu_provision": {"gpu_provision", "gpu_host"},
    "gpu_probe": {"gpu_probe"},
    "gpu_gather": {"gpu_gather", "gpu_host", "gpu_server", "gpu_probe"},
}
FILES = sorted(path for path in UTILS.rglob("*.py") if path.name != "__init__.py")
# What Ansible ships beside ours under the same name, ansible.module_utils.
NOT_OURS = {"basic", "common"}


def imported_modules(path: Path) -> list[tuple[str, ...]]:
    """The modules of ours that a file imports, as paths below module_utils/."""
    package = path.relative_to(UTILS).parts[:-1]
    found: list[tuple[str, ...]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom):
            continue
        module = tuple((node.module or "").split(".")) if node.module else ()
        if node.level:
            module = package[: len(package) - node.level + 1] + module
        elif module[:2] == ("ansible", "module_utils") and module[2] not in NOT_OURS:
            module = module[2:]
        else:
            continue
        for alias in node.names:
            inner = UTILS.joinpath(*module, alias.name)
            found.append((*module, alias.name) if inner.with_suffix(".py").exists() else module)
    return found


def depth(module: tuple[str, ...]) -> int:
    """Within gpu_host: 2 for a reader, 1 for what readers are made of, 0 for evidence/."""
    if len(module) == 2:
        return 2
    return 0 if module[1] == "evidence" else 1


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(UTILS)))
def test_a_file_imports_downwards_only(path: Path) -> None:
    own = path.relative_to(UTILS).with_suffix("").parts
    for module in imported_modules(path):
        assert module[0] in ALLOWED[own[0]], "%s imports %s" % ("/".join(own), "/".join(module))
        if own[0] == module[0] == "gpu_host":
            assert depth(module) <= depth(own), "%s imports %s, which is above it" % ("/".join(own), "/".join(module))


def test_no_file_imports_itself_over_others() -> None:
    graph = {path.relative_to(UTILS).with_suffix("").parts: set(imported_modules(path)) for path in FILES}
    done: set[tuple[str, ...]] = set()

    def visit(module: tuple[str, ...], way: tuple[tuple[str, ...], ...]) -> None:
        assert module not in way, "a circle: %s" % " -> ".join("/".join(step) for step in (*way, module))
        if module in done:
            return
        for other in graph.get(module, ()):
            visit(other, (*way, module))
        done.add(module)

    for module in graph:
        visit(module, ())


def test_the_readers_are_in_no_room() -> None:
    """gpu_host/*.py are the readers, one for each subject, besides the two that join them."""
    readers = {path.stem for path in UTILS.glob("gpu_host/*.py")} - {"__init__", "gather", "cross_facts"}
    for name in readers:
        tree = ast.parse((UTILS / "gpu_host" / (name + ".py")).read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert "gather" in functions, "gpu_host/%s.py is no reader: it has no gather()" % name


def test_every_room_says_what_it_holds() -> None:
    rooms = {path.parent for path in FILES}
    for room in rooms:
        assert ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))), (
            "%s/__init__.py has no docstring" % room
        )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(UTILS)))
def test_a_function_can_be_searched_for(path: Path) -> None:
    """A public function is named by a verb and a noun; `gather` is what every reader is called by, `main` a program."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"}
    single = {name for name in functions - {"gather", "main"} if "_" not in name}
    prepositions = {name for name in functions if name.startswith(("of_", "for_", "as_", "with_", "from_", "to_"))}
    assert single | prepositions == set()


def test_one_place_puts_our_code_in_reach_of_ansible() -> None:
    """Each plugin that would do so itself would do so in its own way."""
    plugins = [*ROOT.glob("plugins/**/*.py"), *ROOT.glob("callback_plugins/*.py")]
    extending = [path.name for path in plugins if "module_utils.__path__" in path.read_text(encoding="utf-8")]
    assert extending == ["gpu_host_action.py"]


# Numbers that a pattern of at most so many ASCII digits has found, that are fields of a struct, or of our own making.
OWN_NUMBERS = {
    "gpu_host/evidence",
    "gpu_host/pcie/config_space.py",
    "gpu_host/pcie/gpu_addresses.py",
    "gpu_host/pcie/lspci.py",
    "gpu_host/linux/versions.py",
    "gpu_host/log",
    "gpu_host/pcie/pci_names.py",  # the keys of a table of its own
    "gpu_host/device_nodes.py",  # asks for the last character of a node's name
}


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.relative_to(UTILS).parts[0] in ("gpu_host", "gpu_server")], ids=str
)
def test_numbers_are_read_in_one_place(path: Path) -> None:
    """`int`, `float` and `str.isdigit` raise on, or take, what no tool prints; evidence/values.py does not."""
    name = path.relative_to(UTILS).as_posix()
    if any(name == known or name.startswith(known + "/") for known in OWN_NUMBERS):
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            assert called not in ("int", "float", "isdigit", "isdecimal", "isnumeric"), (
                "%s line %d: %s(): use evidence/values.py" % (name, node.lineno, called)
            )
