"""Tries an apt repository and an installation in a scratch directory, before anything of the host is changed.

apt itself judges: it fetches the repository's index, verifies its signature with the key that was given, and works out
what would be installed, against copies of the host's sources and preferences. The host's own files stay as they are.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from typing import Any

from . import apt_parsing

LISTS = "/var/lib/apt/lists"
ARCHIVES = "/var/cache/apt/archives"
ENVIRONMENT = {"LC_ALL": "C", "LANGUAGE": "", "DEBIAN_FRONTEND": "noninteractive", "APT_LISTCHANGES_FRONTEND": "none"}


@dataclass
class Source:
    """A deb822 source and the file of its key; `key` is empty where `signed_by` names a keyring that the host has."""

    name: str
    uris: str
    suites: str
    components: str = ""
    architectures: str = ""
    key: bytes = b""
    signed_by: str = ""

    @property
    def key_path(self) -> str:
        return self.signed_by or "/etc/apt/keyrings/%s.asc" % self.name

    @property
    def path(self) -> str:
        return "/etc/apt/sources.list.d/%s.sources" % self.name

    def text(self, key_path: str = "") -> str:
        """The content of the .sources file."""
        lines = [
            "# Written by Ansible; changes are overwritten.",
            "Types: deb",
            "URIs: " + self.uris,
            "Suites: " + self.suites,
        ]
        lines += ["Components: " + self.components] if self.components else []
        lines += ["Architectures: " + self.architectures] if self.architectures else []
        return "\n".join([*lines, "Signed-By: " + (key_path or self.key_path)]) + "\n"


@dataclass
class Result:
    """`problem` says why it cannot work; otherwise what would happen."""

    problem: str = ""
    steps: list[dict[str, Any]] = field(default_factory=list)
    download_bytes: int | None = None
    disk_bytes: int | None = None


class Trial:
    """A scratch copy of the host's apt configuration.

    Use as a context manager; the scratch directory goes away with it, unless it is kept.
    """

    def __init__(self, source: Source | None, pin: tuple[str, str] | None, run: Any = None) -> None:
        self._source = source
        self._pin = pin
        self._run = run or run_apt
        self._kept = False

    def __enter__(self) -> Trial:
        self._directory = tempfile.mkdtemp(prefix="gpu-host-apt-")
        os.chmod(self._directory, 0o755)  # noqa: S103  apt fetches as the user _apt, which must see the key
        for name in ("lists/partial", "cache/archives/partial", "only", "all", "preferences", "empty"):
            os.makedirs(os.path.join(self._directory, name))
        _copy_files("/etc/apt/sources.list.d", self._path("all"))
        _copy_files("/etc/apt/preferences.d", self._path("preferences"))
        if self._source:
            key_path = self._source.signed_by
            if self._source.key:
                key_path = self._path("key.asc")
                _write(key_path, self._source.key)
            for name in ("only", "all"):
                _write(self._path("%s/%s.sources" % (name, self._source.name)), self._source.text(key_path).encode())
        if self._pin:
            _write(self._path("preferences/" + os.path.basename(self._pin[0])), self._pin[1].encode())
        for name in os.listdir(LISTS) if os.path.isdir(LISTS) else ():
            if name not in ("partial", "lock", "auxfiles"):
                os.symlink(os.path.join(LISTS, name), self._path("lists/" + name))
        return self

    def __exit__(self, *_ignored: Any) -> None:
        if not self._kept:
            shutil.rmtree(self._directory, ignore_errors=True)

    def keep(self, packages: list[str], recommends: bool) -> dict[str, Any]:
        """``{directory, argv}``: the command that downloads what the installation needs, and nothing else.

        It reads the scratch directory, which the caller removes. The archives land where the real installation takes
        them from. One retry and short time limits: a mirror that is down costs seconds.
        """
        self._kept = True
        settings = ["Dir::Cache::archives=%s/" % ARCHIVES, "DPkg::Lock::Timeout=300", "Acquire::Retries=1"]
        settings += ["Acquire::%s::Timeout=20" % method for method in ("http", "https")]
        argv = ["apt-get", "--yes", "--quiet", *self._options("all"), *install_options(recommends)]
        argv += [word for setting in settings for word in ("-o", setting)]
        return {"directory": self._directory, "argv": [*argv, "--download-only", "install", *packages]}

    def update(self, everything: bool) -> str:
        """Fetch the index of the source (of all sources with `everything`).

        The problem in one line, or the empty string.
        """
        options = self._options("all" if everything else "only")
        if not everything:
            options += ["-o", "Dir::Etc::sourcelist=/dev/null"]
        argv = [
            "apt-get",
            *options,
            "-o",
            "APT::Get::List-Cleanup=0",
            "-o",
            "Acquire::Retries=2",
            "-o",
            "APT::Update::Error-Mode=any",
            "update",
        ]
        code, text = self._run(argv)
        # `update` ends with 0 for some failures: an index that could not be fetched is only a warning to it.
        if code or "\nErr:" in "\n" + text or "\nW: Failed to fetch" in "\n" + text:
            return apt_parsing.find_problem(text)
        return ""

    def available(self, package: str) -> list[str]:
        """All versions of a package that the sources offer, newest first."""
        _code, text = self._run(["apt-cache", *self._options("all"), "madison", package])
        versions = [line.split("|")[1].strip() for line in text.splitlines() if line.count("|") >= 2]
        return list(dict.fromkeys(versions))

    def candidates(self, packages: list[str]) -> dict[str, str]:
        """Package -> the version that apt would choose under the pin; packages without one are left out."""
        _code, text = self._run(["apt-cache", *self._options("all"), "policy", *packages])
        found, name = {}, ""
        for line in text.splitlines():
            if line and not line[0].isspace():
                name = line.rstrip(":")
            elif line.strip().startswith("Candidate:") and "(none)" not in line:
                found[name] = line.split()[1]
        return found

    def install(self, packages: list[str], recommends: bool) -> Result:
        """What `apt-get install` of the packages would do."""
        argv = ["apt-get", *self._options("all"), *install_options(recommends)]
        code, text = self._run([*argv, "-s", "-o", "Debug::NoLocking=1", "install", *packages])
        if code:
            return Result(problem=apt_parsing.find_problem(text))
        _code, installed = self._run(apt_parsing.DPKG_QUERY)
        steps = apt_parsing.parse_steps(text, apt_parsing.parse_installed(installed))
        _code, text = self._run([*argv, "--assume-no", "-o", "Debug::NoLocking=1", "install", *packages])
        download, disk = apt_parsing.parse_sizes(text)
        return Result(steps=steps, download_bytes=download, disk_bytes=disk)

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _options(self, sources: str) -> list[str]:
        settings = ["Dir::State::lists=" + self._path("lists"), "Dir::Cache=" + self._path("cache")]
        settings += [
            "Dir::Etc::sourceparts=" + self._path(sources),
            "Dir::Etc::preferencesparts=" + self._path("preferences"),
        ]
        return [word for setting in settings for word in ("-o", setting)]


def install_options(recommends: bool) -> list[str]:
    """The options of the real installation, so that the trial answers for it."""
    choice = "--install-recommends" if recommends else "--no-install-recommends"
    # Without --ignore-hold the held libraries of a driver would keep its other packages from changing with them.
    return [choice, "--allow-downgrades", "--allow-change-held-packages", "--ignore-hold"]


def run_apt(argv: list[str]) -> tuple[int, str]:
    environment = dict(os.environ, **ENVIRONMENT)
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            timeout=300,
            check=False,
        )
    except FileNotFoundError:
        return 127, "E: no program %s" % argv[0]
    except subprocess.TimeoutExpired:
        return 124, "E: %s did not end within 300 s" % argv[0]
    return done.returncode, done.stdout.decode("utf-8", "replace")


def _copy_files(source: str, target: str) -> None:
    for name in os.listdir(source) if os.path.isdir(source) else ():
        path = os.path.join(source, name)
        if os.path.isfile(path):
            shutil.copyfile(path, os.path.join(target, name))


def _write(path: str, content: bytes) -> None:
    with open(path, "wb") as handle:
        handle.write(content)
    os.chmod(path, 0o644)
