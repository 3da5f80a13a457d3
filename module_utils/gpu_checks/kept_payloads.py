"""What Ansible makes of our modules in order to send them, kept for the runs to come.

Ansible parses a module and all that it imports at its first use in a run: 2 s for host_facts, whose 265 files are the
same each time. It has what it made in a directory of that run (`ansiballz_cache` in ansible/executor/module_common.py).
`carry_in` puts there what an earlier run kept, `carry_out` keeps what is there. Where a release of Ansible has it
elsewhere or under other names, it finds nothing there, and makes it anew as before.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
from pathlib import Path

import ansible.release
from ansible import constants

from . import installation, kept_files

KEPT = os.path.join(kept_files.DIRECTORY, "payloads")
_KEPT_FILES = 24
_SUM_BYTES = 32  # of a SHA-256 before the content
_MODULE_UTILS = Path(__file__).resolve().parents[1]
_MODULES = (installation.ROOT / "library", installation.ROOT / "plugins" / "modules")  # of a clone, of a collection


def carry_in(source: str | None) -> None:
    """Give Ansible what an earlier run kept of the module whose file is `source`."""
    prefix = _find_prefix(source)
    if not prefix or _list_made(source):
        return
    with contextlib.suppress(OSError):
        os.makedirs(_find_directory(), exist_ok=True)
        for name in os.listdir(KEPT):
            if name.startswith(prefix):
                _copy_in(os.path.join(KEPT, name), os.path.join(_find_directory(), name[len(prefix) :]))


def _copy_in(path: str, target: str) -> None:
    kept = kept_files.read_kept(path) or b""
    content = kept[_SUM_BYTES:]  # it is unpickled, and what was cut off by a crash would fail every run
    if hashlib.sha256(content).digest() == kept[:_SUM_BYTES]:
        temporary = "%s.%d-part" % (target, os.getpid())
        with open(temporary, "wb") as handle:
            handle.write(content)
        os.replace(temporary, target)


def carry_out(source: str | None) -> None:
    """Keep what Ansible made of that module, where nothing is kept yet."""
    prefix = _find_prefix(source)
    for path in _list_made(source) if prefix else ():
        kept = os.path.join(KEPT, prefix + os.path.basename(path))
        if not os.path.exists(kept):
            with contextlib.suppress(OSError):
                content = Path(path).read_bytes()
                kept_files.write_kept(kept, hashlib.sha256(content).digest() + content, _KEPT_FILES)


def _list_made(source: str | None) -> list[str]:
    """The files in which this run has what Ansible made of the module, without its lock and what is written now."""
    part = ".%s-" % Path(source or "").stem
    try:
        names = os.listdir(_find_directory())
    except OSError:
        return []
    made = [name for name in names if part in "." + name and not name.endswith((".lock", "-part"))]
    return [os.path.join(_find_directory(), name) for name in made]


def _find_directory() -> str:
    return os.path.join(constants.DEFAULT_LOCAL_TMP, "ansiballz_cache")


def _find_prefix(source: str | None) -> str:
    """A number for all that the payload depends on. Empty where that cannot be told, and for a module that is not
    ours: it is not kept then."""
    if not source or Path(source).resolve().parent not in _MODULES or not find_tree():
        return ""
    try:
        return hashlib.sha256(find_tree() + Path(source).read_bytes()).hexdigest()[:32] + "."
    except OSError:
        return ""


@functools.cache
def find_tree() -> bytes:
    """The same for what every module of ours may import. To read all of it takes 20 ms."""
    version = ansible.release.__version__
    paths = constants.config.get_config_value("DEFAULT_MODULE_UTILS_PATH")
    digest = hashlib.sha256(repr((version, sys.version, paths)).encode())
    try:
        for path in sorted(_MODULE_UTILS.rglob("*.py")):
            content = path.read_bytes()
            digest.update(b"%s\0%d\0%s" % (str(path).encode(), len(content), content))
    except OSError:
        return b""
    return b"" if "dev" in version else digest.digest()
