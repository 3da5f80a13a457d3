"""What would be asked of dnf on RHEL and its rebuilds, from the table alone. It was never run on such a system.

Sources: NVIDIA driver installation guide (580 to 620), "Kernel Modules" and "Advanced Options" (streams up to RHEL 9,
version locks from RHEL 10 on); NVIDIA/yum-packaging-precompiled-kmod, issues 43 (RHEL's own kernels only), 57 (those
modules are proprietary) and 67 (who signs them); the spec files of NVIDIA/yum-packaging-nvidia-driver.
"""

from __future__ import annotations

from typing import Any

from .systems import PlanError, fill_architecture

REPOSITORY = "gpu-host-nvidia"


def plan_packages(entry: dict[str, Any], system: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """``{family, entry, repository, needs, plugins, stream, packages, lock, lines}``.

    `repository` ({name, uris, key_url, fingerprints}); `needs`: repositories that must be enabled beside it, in words;
    `stream`: the module stream to enable, "" where there are none; `lock`: patterns for `dnf versionlock`; `lines`: the
    commands that come to the same, one a line. PlanError says why there is no plan.
    """
    if options["source"] != "nvidia":
        raise PlanError(
            "there is no driver of the distribution in the table for %s; known there: nvidia." % entry["label"]
        )
    version = options["version"]
    branch = version.partition(".")[0]
    flavour = options["package_set"].partition("_")[2] or "userspace"
    kind = flavour
    if options.get("precompiled") and flavour != "userspace":
        kind = "precompiled"
        _refuse_precompiled(entry, system, flavour)
    packages = _choose_packages(entry, branch, kind, options)
    repository = {
        "name": REPOSITORY,
        **fill_architecture(entry.get("repository", {}), system["architecture"]),
        **{name: value for name, value in options["repository"].items() if value not in (None, "", [])},
    }
    stream = str(entry.get("streams", {}).get(kind, "")).format(branch=branch)
    lock = [pattern.format(version=version) for pattern in entry["lock"]] if options["hold"] else []
    plan = {
        "family": "dnf",
        "entry": entry,
        "repository": repository,
        "needs": [text.format(architecture=system["architecture"]) for text in entry["needs"].get(kind, ())],
        "plugins": list(entry["plugins"]) if lock else [],
        "stream": "nvidia-driver:" + stream if stream else "",
        "packages": [_at_version(name, version, entry) for name in packages],
        "lock": lock,
    }
    plan["lines"] = _describe(plan)
    return plan


def _refuse_precompiled(entry: dict[str, Any], system: dict[str, Any], flavour: str) -> None:
    own = entry.get("precompiled", {})
    if system["architecture"] not in own.get("architectures", ()) or system.get("distribution") != "rhel":
        raise PlanError(
            "modules that are built already are to be had on %s for the kernels of RHEL itself on %s, and this is %s "
            "on %s. Set nvidia_driver_precompiled: false, and DKMS builds them."
            % (entry["label"], ", ".join(own.get("architectures", ())), system["label"], system["architecture"])
        )
    if flavour != own["flavour"]:
        raise PlanError(
            "the modules that are built already for %s are the %s ones, and nvidia_driver_open_modules asks for the "
            "others. Set nvidia_driver_precompiled: false, and DKMS builds them." % (entry["label"], own["flavour"])
        )


def _choose_packages(entry: dict[str, Any], branch: str, kind: str, options: dict[str, Any]) -> list[str]:
    fabric = "nvidia-fabricmanager"
    if branch.isdigit() and int(branch) < entry["fabric_manager_renamed_in"]:
        fabric = "nvidia-fabric-manager"
    names = [fabric if name == "nvidia-fabricmanager" else name for name in options["packages"]]
    names = [*entry["packages"][kind], *names]
    if options["headers"] and kind != "precompiled":
        names += entry["headers"]
    return list(dict.fromkeys(names))


def _at_version(name: str, version: str, entry: dict[str, Any]) -> str:
    """`nvidia-driver-cuda-580*` is dnf's spelling of a name and the beginning of its version.

    `-580.*` for a branch, so that 5800 is none of it.
    """
    if name not in entry["versioned"]:
        return name
    return "%s-%s%s" % (name, version, "-*" if "." in version else ".*")


def _describe(plan: dict[str, Any]) -> list[str]:
    repository = plan["repository"]
    lines = ["enable %s" % text for text in plan["needs"]]
    lines += ["rpm --import %s  # %s" % (repository["key_url"], ", ".join(repository.get("fingerprints", ())) or
                                         "its fingerprint is to be given")]  # fmt: skip
    lines += ["dnf config-manager --add-repo %s" % repository["uris"]]
    lines += ["dnf module enable %s" % plan["stream"]] if plan["stream"] else []
    lines += ["dnf install %s" % " ".join(plan["packages"])]
    lines += ["dnf install %s" % " ".join(plan["plugins"])] if plan["plugins"] else []
    lines += ["dnf versionlock add %s" % " ".join("'%s'" % pattern for pattern in plan["lock"])] if plan["lock"] else []
    return lines
