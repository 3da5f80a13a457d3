"""From what is wanted to what apt would do on this host, and every reason not to begin. Reads only; see `apt_trial`."""

from __future__ import annotations

import os
import re
from typing import Any, Callable

from . import apt_parsing, dnf_planning, openpgp
from .apt_sources import armor_key, fetch_key, find_mirror, pin_text, read_content
from .apt_trial import LISTS, Source, Trial, run_apt
from .systems import PlanError, choose_headers, choose_system, fill_architecture, read_system

# Kept free beside what apt says that it needs: for dpkg, for the build of the modules, for the new initramfs.
RESERVE_BYTES = 200 * 1000**2
BUILD_BYTES = 600 * 1000**2
BOOT_BYTES = 100 * 1000**2
TERMINAL_LOG = "/var/log/apt/term.log"
# The subnet manager of NVLink 5 boards: NVIDIA's repository has it from branch 570 on, under a version that is a date.
NVLSM = "nvlsm"
_RUNFILE_TRACES = ("/usr/bin/nvidia-uninstall", "/usr/bin/nvidia-installer")


class Planner:
    """One plan. `options` are the arguments of the apt_plan module; `opener` fetches an address."""

    def __init__(self, options: dict[str, Any], opener: Callable[[str], bytes], run: Any = run_apt) -> None:
        self._options = options
        self._opener = opener
        self._run = run
        self._independent: list[str] = []
        self._rival = ""
        self._optional: set[str] = set()
        _code, text = run(apt_parsing.DPKG_QUERY)
        self.installed = apt_parsing.parse_installed(text)
        self.system = read_system(packages=self.installed)

    def plan(self) -> dict[str, Any]:
        """The plan as the module returns it. PlanError names the first reason not to begin."""
        entry = choose_system(self.system, self._options["systems"])
        if entry.get("family", "apt") != "apt":
            return {"changes": False, **dnf_planning.plan_packages(entry, self.system, self._options)}
        # Packages that belong to the driver and have versions of their own in this source.
        self._independent = list(entry.get("independent", {}).get(self._options["source"], ()))
        self._rival = str(entry.get("rivals", {}).get(self._options["source"], ""))
        if self._options.get("precompiled"):
            raise PlanError(
                "NVIDIA has no modules that are built already for %s. Set nvidia_driver_precompiled: false, and DKMS "
                "builds them." % entry["label"]
            )
        self._refuse_leftovers()
        wanted = self._packages(entry)
        pin = self._pin()
        current, missing = self._current(wanted), [name for name in wanted if name not in self.installed]
        files_current = self._repository_is_current(entry) and (pin is None or read_content(pin[0]) == pin[1].encode())
        plan: dict[str, Any] = {
            "family": "apt",
            "entry": entry,
            "packages": wanted,
            "steps": [],
            "files": [],
            "full_update": False,
            "source_path": "",
            "download": None,
        }
        plan.update(repository_changed=not files_current, download_bytes=0, disk_bytes=0)
        if not files_current or not current or self._options["upgrade"]:
            source = self._source(entry)
            plan["source_path"] = source.path if source else ""
            self._try(plan, source, pin, wanted)
            plan["files"] = [] if files_current else self._files(source, pin)
        plan["installed_version"] = self._installed_version()
        plan["planned_version"] = self._planned_version(plan["steps"]) or plan["installed_version"]
        self._holds(plan)
        plan["missing"] = missing
        plan["changes"] = bool(plan["steps"] or plan["files"] or plan["hold"] or plan["unhold"])
        return plan

    # what is wanted -------------------------------------------------------------------------------------------------

    def _packages(self, entry: dict[str, Any]) -> list[str]:
        names = list(self._options["packages"])
        if NVLSM in names:
            names += entry.get("nvlsm_needs", [])
        chosen = self._options["package_set"]
        if chosen:
            sets = entry.get("packages", {})
            if chosen not in sets:
                text = "there are no packages for %s on %s; known there: %s."
                raise PlanError(
                    text % (chosen.replace("_", " "), entry["label"], ", ".join(sorted(sets)).replace("_", " "))
                )
            names = [*sets[chosen], *names]
        branch = self._options["version"].partition(".")[0]
        if branch.isdigit() and int(branch) < entry.get("suffixed_below", 0):
            names = [
                entry["suffixed"].get(name.rstrip("?"), name.rstrip("?")) + "?" * name.endswith("?") for name in names
            ]
        own = self._options["source"] == "distribution" and entry.get("fabric_manager_of_distribution")
        if own or (branch.isdigit() and int(branch) < entry.get("fabric_manager_suffixed_below", 0)):
            names = ["nvidia-fabricmanager-{branch}" if name == "nvidia-fabricmanager" else name for name in names]
        names = [name.format(branch=branch, kernel=self.system["kernel"]) for name in names]
        # NAME? is taken where the sources offer it.
        self._optional = {name.rstrip("?") for name in names if name.endswith("?")}
        names = [name.rstrip("?") for name in names]
        if self._options["headers"]:
            wanted = choose_headers(self.system, self.installed)
            names += [*wanted["running"], *wanted["coming"]]
        return list(dict.fromkeys(names))

    def _pin(self) -> tuple[str, str] | None:
        if not self._options["pin_path"] or not self._options["version"]:
            return None
        return self._options["pin_path"], pin_text(
            self._options["managed"],
            [*self._options["exempt"], *self._independent],
            self._options["version"],
            self._rival,
        )

    def _managed(self, name: str) -> bool:
        return apt_parsing.matches_pattern(name, self._options["managed"]) and not apt_parsing.matches_pattern(
            name, self._options["exempt"]
        )

    def _versioned(self, name: str) -> bool:
        """Whether a package must have the driver's version, rather than only belong to it."""
        return self._managed(name) and not apt_parsing.matches_pattern(name, self._independent)

    def _current(self, wanted: list[str]) -> bool:
        """Everything is there, of the wanted version, and all of one version."""
        version = self._options["version"]
        own = {name: value for name, value in self.installed.items() if self._versioned(name)}
        versions = {apt_parsing.upstream_version(value["version"]) for name, value in own.items() if name in wanted}
        fits = (
            all(apt_parsing.version_fits(value["version"], version) for name, value in own.items() if name in wanted)
            if version
            else True
        )
        there = all(name in self.installed or name in self._optional for name in wanted)
        return there and fits and (len(versions) <= 1 or not version) and not self._strays([])

    def _strays(self, steps: list[dict[str, Any]]) -> list[str]:
        """Installed packages of a driver that would be of another version than is wanted, after these steps.

        From branch 590 on Ubuntu's packages have no branch in their names: nothing ties the old ones to the new.
        """
        version = self._options["version"]
        moved = {step["package"] for step in steps}
        return sorted(
            name
            for name, value in self.installed.items()
            if version
            and self._versioned(name)
            and name not in moved
            and not apt_parsing.version_fits(value["version"], version)
        )

    # the repository -------------------------------------------------------------------------------------------------

    def _source(self, entry: dict[str, Any]) -> Source | None:
        wanted = self._repository(entry)
        if wanted is None:
            return None
        source = _source_of(wanted)
        if not source.signed_by:
            source.key = fetch_key(wanted["key_url"], wanted["fingerprints"], self._opener)
        return source

    def _repository(self, entry: dict[str, Any]) -> dict[str, Any] | None:
        if self._options["source"] == "none":
            return None
        if self._options["source"] == "distribution":
            own = entry.get("distribution")
            if own is None:
                return None  # its standard sources already hold the driver
            uris = self._options["repository"].get("uris") or find_mirror(self.system["codename"])
            if not uris:
                raise PlanError(
                    "the sources of apt do not say where %s comes from. Set nvidia_driver_repository.uris."
                    % self.system["label"]
                )
            return {
                "name": "gpu-host-distribution",
                "uris": uris,
                "suites": self.system["codename"],
                **own,
                **_given(self._options["repository"]),
            }
        own = fill_architecture(entry.get("repository", {}), self.system["architecture"])
        return {"name": "gpu-host-nvidia", **own, **_given(self._options["repository"])}

    def _repository_is_current(self, entry: dict[str, Any]) -> bool:
        wanted = self._repository(entry)
        if wanted is None:
            return True
        source = _source_of(wanted)
        if read_content(source.path) != source.text().encode():
            return False
        if source.signed_by:
            return True
        try:
            found = openpgp.read_fingerprints(read_content(source.key_path) or b"")
        except openpgp.KeyFileError:
            return False
        return set(found) <= {"".join(fingerprint.split()).upper() for fingerprint in wanted["fingerprints"]}

    def _files(self, source: Source | None, pin: tuple[str, str] | None) -> list[dict[str, str]]:
        files = []
        if source and source.key:
            files.append({"path": source.key_path, "content": armor_key(source.key)})
        if source:
            files.append({"path": source.path, "content": source.text()})
        if pin:
            files.append({"path": pin[0], "content": pin[1]})
        return files

    # the trial ------------------------------------------------------------------------------------------------------

    def _try(self, plan: dict[str, Any], source: Source | None, pin: tuple[str, str] | None, wanted: list[str]) -> None:
        if source and source.key:
            source.key = armor_key(source.key).encode()
        plan["full_update"] = not any(
            name.endswith(("_Packages", "_Packages.lz4", "_Packages.gz"))
            for name in (os.listdir(LISTS) if os.path.isdir(LISTS) else ())
        )
        with Trial(source, pin, self._run) as trial:
            if source or plan["full_update"]:
                problem = trial.update(plan["full_update"])
                if problem:
                    where = source.uris if source else "the sources of this host"
                    raise PlanError(
                        "the package repository %s cannot be used: %s. Nothing was changed."
                        % (where, problem.rstrip("."))
                    )
            there = trial.candidates(wanted)
            wanted = [name for name in wanted if name in there or name not in self._optional]
            plan["packages"] = wanted
            self._refuse_missing(trial, [name for name in wanted if name not in there])
            result = trial.install(wanted, self._options["recommends"])
            strays = [] if result.problem else self._strays(result.steps)
            if strays:
                # What the sources have in the wanted version comes along; the rest goes ("NAME-" is apt's spelling).
                offered = trial.candidates(strays)
                wanted = wanted + [name if self._comes_along(name, offered) else name + "-" for name in strays]
                plan["packages"] = wanted
                result = trial.install(wanted, self._options["recommends"])
            if result.problem:
                raise PlanError(
                    "apt cannot install %s: %s.%s Nothing was changed."
                    % (" ".join(wanted), result.problem.rstrip("."), self._name_pin(trial, pin, result.problem))
                )
            plan.update(steps=result.steps, download_bytes=result.download_bytes, disk_bytes=result.disk_bytes)
            self._refuse_steps(result.steps)
            self._refuse_full_disk(result.steps, result.download_bytes, result.disk_bytes)
            if self._options.get("download") and any(step["to"] for step in result.steps):
                plan["download"] = trial.keep(wanted, self._options["recommends"])

    def _comes_along(self, name: str, offered: dict[str, str]) -> bool:
        return name in offered and apt_parsing.version_fits(offered[name], self._options["version"])

    def _name_pin(self, trial: Trial, pin: tuple[str, str] | None, problem: str) -> str:
        """A sentence on what the pin keeps out of an unmet dependency; empty where it is not that."""
        version = self._options["version"]
        for name in dict.fromkeys(re.findall(r"Depends: (\S+)", problem)) if pin and version else ():
            offered = trial.available(name) if self._versioned(name) else []
            if offered and not any(apt_parsing.version_fits(found, version) for found in offered):
                return " The pin that keeps other branches out (%s) lets in %s %s only, and the sources offer %s." % (
                    pin[0] if pin else "",
                    name,
                    version,
                    ", ".join(offered),
                )
        return ""

    def _refuse_missing(self, trial: Trial, missing: list[str]) -> None:
        if not missing:
            return
        version = self._options["version"]
        for name in missing:
            if name in choose_headers(self.system, self.installed)["running"] and name not in self.installed:
                raise PlanError(
                    "no package %s is to be had, so no module can be built for the running kernel %s. "
                    "Upgrade the kernel and reboot into it first, or set nvidia_driver_headers: false."
                    % (name, self.system["kernel"])
                )
            others = [apt_parsing.upstream_version(found) for found in trial.available(name)]
            if others and version:
                raise PlanError(
                    "no version of %s fits %s. The repository offers: %s." % (name, version, ", ".join(others))
                )
        fabric = [name for name in missing if name == NVLSM or name.startswith("nvidia-fabricmanager")]
        if fabric and self._options["source"] == "distribution":
            raise PlanError(
                "%s, which the NVLink fabric of this host needs, is not to be had from the distribution. Set "
                "nvidia_driver_source: nvidia, or nvidia_driver_fabric_manager: false for a host that runs without."
                % " and ".join(fabric)
            )
        raise PlanError(
            "no package %s is to be had from the sources of this host. Check the name, and that contrib and non-free "
            "are enabled." % ", ".join(missing)
        )

    def _refuse_steps(self, steps: list[dict[str, Any]]) -> None:
        forbidden = [
            step["package"]
            for step in steps
            if step["action"] != "remove" and apt_parsing.matches_pattern(step["package"], self._options["forbid"])
        ]
        if forbidden:
            raise PlanError("this would install %s. %s" % (", ".join(forbidden[:8]), self._options["forbid_reason"]))
        removed = [
            step["package"] for step in steps if step["action"] == "remove" and not self._managed(step["package"])
        ]
        if removed:
            raise PlanError(
                "this would remove %s, which does not belong to the driver. Remove it by hand if that is right."
                % ", ".join(removed[:8])
            )
        held = [
            step["package"]
            for step in steps
            if self.installed.get(step["package"], {}).get("held") and not self._managed(step["package"])
        ]
        if held:
            raise PlanError(
                "this would change %s, which is held on this host for another reason. Release it first (apt-mark "
                "unhold) if that is right." % ", ".join(held[:8])
            )
        if not self._options["allow_downgrade"]:
            self._refuse_going_back(steps)

    def _refuse_going_back(self, steps: list[dict[str, Any]]) -> None:
        back = [step for step in steps if step["action"] == "downgrade" and self._managed(step["package"])]
        old, new = self._installed_version(), self._planned_version(steps)
        if back:
            old, new = apt_parsing.upstream_version(back[0]["from"]), apt_parsing.upstream_version(back[0]["to"])
        elif not (old and new and apt_parsing.is_newer(old, new)):
            return
        # A change of names is no downgrade to apt: the old packages go and others come.
        number = len(back) or sum(1 for step in steps if self._versioned(step["package"]))
        raise PlanError(
            "this would go back from %s to %s (%d packages). Set nvidia_driver_allow_downgrade: true if that is right."
            % (old, new, number)
        )

    def _refuse_full_disk(self, steps: list[dict[str, Any]], download: int | None, disk: int | None) -> None:
        needs = {"/var/cache/apt/archives": download or 0, "/usr": disk + RESERVE_BYTES if disk and disk > 0 else 0}
        if any(step["to"] and "dkms" in step["package"] for step in steps):
            needs.update({"/var/lib/dkms": BUILD_BYTES, "/boot": BOOT_BYTES})
        by_device: dict[int, list[Any]] = {}
        for path, need in needs.items():
            there = path
            while not os.path.isdir(there):
                there = os.path.dirname(there)
            row = by_device.setdefault(os.stat(there).st_dev, [there, 0])
            row[1] += need
        for path, need in by_device.values():
            free = os.statvfs(path)
            left = free.f_bavail * free.f_frsize
            if left < need:
                raise PlanError(
                    "the file system of %s has %d MB free and %d MB are needed. Nothing was changed. "
                    "Make room (apt-get clean, old kernels), then run again." % (path, left // 10**6, need // 10**6)
                )

    def _refuse_leftovers(self) -> None:
        broken = [name for name, value in self.installed.items() if value["broken"]]
        if broken:
            said = apt_parsing.find_failed_script(_read_end(TERMINAL_LOG))
            halfway = [name for name, value in self.installed.items() if value["halfway"]]
            # dpkg configures nothing that depends on a package of which a part of the files is missing.
            command = "apt-get install --reinstall " + " ".join(halfway) if halfway else "dpkg --configure -a"
            again = "`%s` on this host tries it again." % command
            raise PlanError(
                "dpkg was interrupted: %s is not configured. %s"
                % (
                    ", ".join(broken[:8]),
                    "What failed is %s. Mend that first; then %s" % (said.rstrip("."), again)
                    if said
                    else "Run `%s` on this host first." % command,
                )
            )
        traces = [
            path
            for path in _RUNFILE_TRACES
            if os.path.exists(path) and not any(self._managed(name) for name in self.installed)
        ]
        if traces and self._options["refuse_runfile"]:
            raise PlanError(
                "a driver from NVIDIA's .run installer is there (%s) and would be mixed with packages. "
                "Run nvidia-uninstall first, or set nvidia_driver_source: runfile." % traces[0]
            )

    # afterwards -----------------------------------------------------------------------------------------------------

    def _installed_version(self) -> str | None:
        versions = [
            apt_parsing.upstream_version(value["version"])
            for name, value in sorted(self.installed.items())
            if self._versioned(name)
        ]
        return max(set(versions), key=versions.count) if versions else None

    def _planned_version(self, steps: list[dict[str, Any]]) -> str | None:
        versions = [
            apt_parsing.upstream_version(step["to"])
            for step in steps
            if step["to"] and self._versioned(step["package"])
        ]
        return max(set(versions), key=versions.count) if versions else None

    def _holds(self, plan: dict[str, Any]) -> None:
        gone = {step["package"] for step in plan["steps"] if step["action"] == "remove"}
        names = {name for name in self.installed if self._managed(name)} - gone
        names |= {step["package"] for step in plan["steps"] if step["to"] and self._managed(step["package"])}
        # apt takes the hold off what it changes.
        held = {name for name, value in self.installed.items() if value["held"]} - {
            step["package"] for step in plan["steps"]
        }
        wanted = self._options["hold"]
        plan["hold"] = sorted(names - held) if wanted else []
        plan["unhold"] = sorted(names & held) if wanted is False else []


def summarise_steps(steps: list[dict[str, Any]]) -> str:
    """`install 9, upgrade 2`; the empty string for no step."""
    actions = [step["action"] for step in steps]
    return ", ".join("%s %d" % (action, actions.count(action)) for action in dict.fromkeys(actions))


def describe_steps(steps: list[dict[str, Any]]) -> list[str]:
    """One line a step: `upgrade libcuda1 580.65.06-1 -> 580.95.05-1`."""
    return [
        "%s %s %s" % (step["action"], step["package"], " -> ".join(text for text in (step["from"], step["to"]) if text))
        for step in steps
    ]


def _source_of(repository: dict[str, Any]) -> Source:
    return Source(
        repository["name"],
        repository["uris"],
        repository["suites"],
        repository.get("components", ""),
        repository.get("architectures", ""),
        signed_by=repository.get("signed_by", ""),
    )


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, "", [])}


def _read_end(path: str, limit: int = 65536) -> str:
    """The end of a file; empty where it cannot be read."""
    try:
        with open(path, "rb") as handle:
            handle.seek(max(0, os.fstat(handle.fileno()).st_size - limit))
            return handle.read().decode("utf-8", "replace")
    except OSError:
        return ""
