"""What apt prints, which system a host is, what is wanted of it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.gpu_host.nvidia import driver_packages
from ansible.module_utils.gpu_provision import apt_parsing, apt_planning, apt_sources, systems, toolkits
from ansible.module_utils.gpu_provision.systems import PlanError

ROOT = Path(__file__).resolve().parent.parent.parent
TABLE = yaml.safe_load((ROOT / "roles/nvidia_apt/vars/main.yml").read_text())
SYSTEMS = TABLE["nvidia_apt_systems"]


def test_steps_of_a_simulation() -> None:
    text = (
        "NOTE: This is only a simulation!\n"
        "Inst nvidia-smi [580.65.06-1] (580.95.05-1 NVIDIA:stable [amd64]) []\n"
        "Inst dkms (3.0.12-1 Debian:12/stable [all])\n"
        "Inst libcuda1 [595.45.04-1] (580.95.05-1 NVIDIA:stable [amd64])\n"
        "Remv nouveau-firmware [1.0]\n"
        "Conf dkms (3.0.12-1 Debian:12/stable [all])\n"
    )
    found = [(step["action"], step["package"], step["to"]) for step in apt_parsing.parse_steps(text, {})]
    assert found == [
        ("upgrade", "nvidia-smi", "580.95.05-1"),
        ("install", "dkms", "3.0.12-1"),
        ("downgrade", "libcuda1", "580.95.05-1"),
        ("remove", "nouveau-firmware", None),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Need to get 16.6 MB of archives.\nAfter this operation, 65.0 MB of additional disk space will be used.\n",
            (16600000, 65000000),
        ),
        (
            "Need to get 0 B/5,234 kB of archives.\nAfter this operation, 1,024 B disk space will be freed.\n",
            (0, -1024),
        ),
        ("E: nothing\n", (None, None)),
    ],
)
def test_sizes(text: str, expected: tuple[Any, Any]) -> None:
    assert apt_parsing.parse_sizes(text) == expected


ORDERED = [
    "1.0~rc1",
    "1.0",
    "1.0-1",
    "1.0-1+b1",
    "1.0-2",
    "1.0a",
    "1.0.1",
    "1.2",
    "1.10",
    "2",
    "550.163.01-2",
    "580.65.06-1",
    "580.95.05-0ubuntu1",
    "1:0.1",
]


def test_versions_sort_as_dpkg_sorts_them() -> None:
    for left, right in zip(ORDERED, ORDERED[1:]):
        assert apt_parsing.is_newer(right, left) and not apt_parsing.is_newer(left, right), (left, right)
        assert subprocess.run(["dpkg", "--compare-versions", right, "gt", left], check=False).returncode == 0, (
            left,
            right,
        )


@pytest.mark.parametrize(
    ("version", "wanted", "expected"),
    [
        ("580.95.05-1", "580", True),
        ("580.95.05-0ubuntu0.24.04.1", "580.95.05", True),
        ("1:580.95.05-1", "580", True),
        ("5800.1-1", "580", False),
        ("595.45.04-1", "580", False),
        ("580.95.05-1", "580.95.0", False),
    ],
)
def test_fits(version: str, wanted: str, expected: bool) -> None:
    assert apt_parsing.version_fits(version, wanted) is expected


def release(tmp_path: Path, text: str) -> str:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text(text)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("text", "packages", "key"),
    [
        ('ID=debian\nVERSION_ID="12"\n', {}, "debian12"),
        ('ID=ubuntu\nVERSION_ID="24.04"\n', {}, "ubuntu2404"),
        ('ID=debian\nVERSION_ID="13"\n', {"pve-manager": {"version": "9.1.2"}}, "pve9"),
        ('ID="rocky"\nVERSION_ID="9.5"\n', {}, "rhel9"),
        ('ID="rhel"\nVERSION_ID="10.1"\n', {}, "rhel10"),
    ],
)
def test_system(tmp_path: Path, text: str, packages: dict[str, Any], key: str) -> None:
    found = systems.read_system(release(tmp_path, text), packages)
    assert found["key"] == key
    assert systems.choose_system({**found, "architecture": "x86_64"}, SYSTEMS)["label"]


def test_unsupported_system_lists_what_is_supported(tmp_path: Path) -> None:
    found = systems.read_system(release(tmp_path, 'ID=arch\nPRETTY_NAME="Arch Linux"\n'))
    with pytest.raises(
        PlanError,
        match=r"Arch Linux is not supported\. Supported are: .*Proxmox VE 9 \(tried on a rebuilt archive\), RHEL 9",
    ):
        systems.choose_system(found, SYSTEMS)
    with pytest.raises(PlanError, match="architecture riscv64"):
        systems.choose_system({**found, "key": "debian12", "architecture": "riscv64"}, SYSTEMS)


def test_every_apt_system_has_a_verified_repository_and_its_packages() -> None:
    for name, row in SYSTEMS.items():
        if row.get("family") == "dnf":
            continue
        assert row["repository"]["uris"].startswith("https://"), name
        assert all(len(fingerprint) == 40 for fingerprint in row["repository"]["fingerprints"]), name
        for source in ("nvidia", "distribution"):
            assert {"%s_%s" % (source, kind) for kind in ("open", "proprietary", "userspace")} <= set(
                row["packages"]
            ), name
        managed, exempt = TABLE["nvidia_apt_driver_packages"], TABLE["nvidia_apt_other_packages"]
        for kind in ("nvidia_open", "nvidia_proprietary", "nvidia_userspace"):
            loose = [
                package
                for package in row["packages"][kind]
                if package != "dkms" and not apt_parsing.matches_pattern(package, managed)
            ]
            assert loose == [], (name, kind)
        assert not any(
            apt_parsing.matches_pattern(package, managed) and not apt_parsing.matches_pattern(package, exempt)
            for package in ("libnvidia-container1", "nvidia-container-toolkit", "cuda-toolkit-12-8")
        )


@pytest.mark.parametrize(
    ("kernel", "packages", "running", "coming"),
    [
        (
            "6.1.0-40-amd64",
            ["linux-image-amd64", "linux-image-6.1.0-40-amd64"],
            ["linux-headers-6.1.0-40-amd64"],
            ["linux-headers-amd64"],
        ),
        (
            "6.8.0-60-generic",
            ["linux-image-generic-hwe-22.04", "linux-image-6.8.0-60-generic"],
            ["linux-headers-6.8.0-60-generic"],
            ["linux-headers-generic-hwe-22.04"],
        ),
        (
            "6.14.8-2-pve",
            ["proxmox-default-kernel", "proxmox-kernel-6.14", "proxmox-kernel-6.14.8-2-pve-signed"],
            ["proxmox-headers-6.14.8-2-pve"],
            ["proxmox-default-headers", "proxmox-headers-6.14"],
        ),
    ],
)
def test_headers(kernel: str, packages: list[str], running: list[str], coming: list[str]) -> None:
    found = systems.choose_headers({"kernel": kernel}, {name: {} for name in packages})
    assert found == {"running": running, "coming": coming}


def test_pin_lets_one_branch_in_and_nothing_else() -> None:
    text = apt_sources.pin_text(["libnvidia-*"], ["libnvidia-container*"], "580")
    records = [dict(line.split(": ", 1) for line in record.splitlines()) for record in text.strip().split("\n\n")]
    assert [(record["Package"], record["Pin"], record["Pin-Priority"]) for record in records] == [
        ("libnvidia-container*", "version *", "500"),
        ("libnvidia-*", "version 580.*", "1001"),
        ("libnvidia-*", "version *", "-1"),
    ]
    assert "Pin: version 580.95.05-*\n" in apt_sources.pin_text(["x"], [], "580.95.05")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sources.list", "deb http://mirror.example/debian bookworm main\n"),
        ("sources.list", "deb [arch=amd64 signed-by=/x] http://mirror.example/debian bookworm main\n"),
        (
            "sources.list.d/a.sources",
            "Types: deb\nURIs: http://security.example/\nSuites: bookworm-security\n\n"
            "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates\n",
        ),
    ],
)
def test_distribution_mirror(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / name).write_text(text)
    assert apt_sources.find_mirror("bookworm", str(tmp_path)) == "http://mirror.example/debian"
    assert apt_sources.find_mirror("trixie", str(tmp_path)) == ""


class FakeApt:
    """Answers for dpkg-query, apt-get and apt-cache."""

    def __init__(self, installed: str = "", simulation: str = "", policy: str = "", code: int = 0) -> None:
        self.installed, self.simulation, self.policy, self.code = installed, simulation, policy, code
        self.calls: list[list[str]] = []

    def __call__(self, argv: list[str]) -> tuple[int, str]:
        self.calls.append(argv)
        if argv[0] == "dpkg-query":
            return 0, self.installed
        if argv[0] == "apt-cache":
            return 0, self.policy if "policy" in argv else ""
        return self.code, self.simulation


def planner(apt: FakeApt, monkeypatch: pytest.MonkeyPatch, **options: Any) -> apt_planning.Planner:
    own = {"key": "debian12", "label": "Debian 12", "codename": "bookworm", "architecture": "x86_64", "kernel": "6.1.0"}
    monkeypatch.setattr(apt_planning, "read_system", lambda **_ignored: own)
    defaults: dict[str, Any] = {
        "systems": SYSTEMS, "source": "none", "repository": {}, "package_set": "", "packages": [], "headers": False,
        "version": "",
        "managed": TABLE["nvidia_apt_driver_packages"], "exempt": TABLE["nvidia_apt_other_packages"], "pin_path": "",
        "hold": None, "forbid": [],
        "forbid_reason": "", "recommends": False, "upgrade": False, "allow_downgrade": False, "refuse_runfile": False,
    }  # fmt: skip
    return apt_planning.Planner({**defaults, **options}, lambda _url: b"", apt)


INSTALLED = "nvidia-smi\t580.95.05-1\thold\tinstalled\tamd64\nlibcuda1\t580.95.05-1\thold\tinstalled\tamd64\n"


def test_nothing_is_asked_of_apt_when_all_is_as_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    apt = FakeApt(INSTALLED)
    plan = planner(apt, monkeypatch, packages=["nvidia-smi", "libcuda1"], version="580", hold=True).plan()
    assert plan["changes"] is False and plan["installed_version"] == "580.95.05"
    assert [call[0] for call in apt.calls] == ["dpkg-query"]


def test_packages_of_two_versions_are_not_as_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    torn = INSTALLED.replace("libcuda1\t580.95.05", "libcuda1\t580.65.06")
    simulation = "Inst libcuda1 [580.65.06-1] (580.95.05-1 x [amd64])\n"
    apt = FakeApt(torn, simulation, "nvidia-smi:\n  Candidate: 580.95.05-1\nlibcuda1:\n  Candidate: 580.95.05-1\n")
    plan = planner(apt, monkeypatch, packages=["nvidia-smi", "libcuda1"], version="580", hold=True).plan()
    assert plan["steps"] and plan["hold"] == ["libcuda1"]  # apt takes the hold off what it changes


@pytest.mark.parametrize(
    ("simulation", "options", "message"),
    [
        (
            "Inst nvidia-kernel-open-dkms (580.95.05-1 x [amd64])\n",
            {"forbid": ["*-dkms"], "forbid_reason": "Not here."},
            "would install nvidia-kernel-open-dkms. Not here.",
        ),
        ("Remv openssh-server [1:9]\n", {}, "would remove openssh-server, which does not belong to the driver"),
        (
            "Inst libcuda1 [595.45.04-1] (580.95.05-1 x [amd64])\n",
            {},
            r"go back from 595.45.04 to 580.95.05 \(1 packages\)",
        ),
        (
            "Inst linux-image-amd64 [1-1] (2-1 x [amd64])\n",
            {},
            "would change linux-image-amd64, which is held on this host for another reason",
        ),
    ],
)
def test_refusals(monkeypatch: pytest.MonkeyPatch, simulation: str, options: dict[str, Any], message: str) -> None:
    apt = FakeApt("linux-image-amd64\t1-1\thold\tinstalled\tamd64\n", simulation, "cuda-x:\n  Candidate: 1\n")
    with pytest.raises(PlanError, match=message):
        planner(apt, monkeypatch, packages=["cuda-x"], **options).plan()


def test_interrupted_dpkg(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PlanError, match="dpkg --configure -a"):
        planner(FakeApt("libfoo\t1\tinstall\thalf-configured\tamd64\n"), monkeypatch, packages=["x"]).plan()


def test_a_package_that_is_half_there_is_installed_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """`dpkg --configure -a` ends with 1 there, as often as one runs it."""
    text = "cuda-nvcc-12-8\t1\tinstall\thalf-installed\tamd64\ncuda-toolkit-12-8\t1\tinstall\tunpacked\tamd64\n"
    with pytest.raises(PlanError, match="apt-get install --reinstall cuda-nvcc-12-8`") as refused:
        planner(FakeApt(text), monkeypatch, packages=["x"]).plan()
    assert "dpkg --configure -a" not in str(refused.value)


def test_package_names_on_ubuntu_carry_the_branch_below_590(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, expected in (("580", "nvidia-dkms-580-open"), ("595", "nvidia-dkms-open")):
        found = planner(FakeApt(), monkeypatch, package_set="nvidia_open", version=version)._packages(
            SYSTEMS["ubuntu2404"]
        )
        assert expected in found
    found = planner(FakeApt(), monkeypatch, package_set="distribution_open", version="580")._packages(
        SYSTEMS["ubuntu2404"]
    )
    assert "nvidia-dkms-580-server-open" in found


@pytest.mark.parametrize("version", ["12", "cuda", "12.8.1", "13-1", "12.8; rm"])
def test_toolkit_versions_that_are_none(version: str) -> None:
    with pytest.raises(PlanError, match="no version of the CUDA toolkit"):
        toolkits.package_name(version)


def test_toolkit_and_driver() -> None:
    assert toolkits.package_name("12.8") == "cuda-toolkit-12-8"
    assert toolkits.make_notes(["12.8"], "580.95.05") == []
    assert "minor version compatibility" in toolkits.make_notes(["13.1"], "580.95.05")[0]
    assert "no driver is loaded" in toolkits.make_notes(["13.1"], "")[0]
    with pytest.raises(
        PlanError, match=r"CUDA 13.0 does not run on the driver 570.86.16 of this host: it needs 580.65.06 or newer"
    ):
        toolkits.make_notes(["13.0"], "570.86.16")


DPKG_OUTPUT = """Log started: 2026-11-30  10:00:00
Setting up libcuda1 (580.95.05-1) ...
Setting up nvidia-kernel-open-dkms (580.95.05-1) ...
Loading new nvidia/580.95.05 DKMS files...
Building for 6.1.0-1-amd64
Error! Bad return status for module build on kernel: 6.1.0-1-amd64 (x86_64)
Consult /var/lib/dkms/nvidia/580.95.05/build/make.log for more information.
dpkg: error processing package nvidia-kernel-open-dkms (--configure):
 installed nvidia-kernel-open-dkms package post-installation script subprocess returned error exit status 10
dpkg: dependency problems prevent configuration of nvidia-open:
 nvidia-open depends on nvidia-kernel-open-dkms
dpkg: error processing package nvidia-open (--configure):
 dependency problems - leaving unconfigured
Errors were encountered while processing:
 nvidia-kernel-open-dkms
E: Sub-process /usr/bin/dpkg returned an error code (1)
"""


def test_a_failing_script_of_a_package_is_quoted() -> None:
    found = apt_parsing.find_failed_script(DPKG_OUTPUT)
    assert found.startswith("nvidia-kernel-open-dkms: ")
    assert "Bad return status for module build | Consult" not in found  # its lines are whole
    assert "Error! Bad return status for module build on kernel: 6.1.0-1-amd64" in found
    assert found.endswith("post-installation script subprocess returned error exit status 10")
    assert apt_parsing.find_failed_script("E: Unable to locate package x\n") == ""
    # In a log of several runs, the last one counts.
    earlier = DPKG_OUTPUT.replace("nvidia-kernel-open-dkms", "something-else")
    assert apt_parsing.find_failed_script(earlier + DPKG_OUTPUT).startswith("nvidia-kernel-open-dkms: ")


def test_what_dpkg_said_stands_in_the_refusal_of_the_next_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "term.log").write_text(DPKG_OUTPUT)
    monkeypatch.setattr(apt_planning, "TERMINAL_LOG", str(tmp_path / "term.log"))
    apt = FakeApt("nvidia-kernel-open-dkms\t1\tinstall\thalf-configured\tamd64\n")
    with pytest.raises(PlanError, match=r"Bad return status for module build.*Mend that first.*dpkg --configure -a"):
        planner(apt, monkeypatch, packages=["x"]).plan()


def test_the_role_and_the_facts_mean_the_same_packages() -> None:
    assert tuple(TABLE["nvidia_apt_driver_packages"]) == driver_packages.DRIVER_PATTERNS
    assert tuple(TABLE["nvidia_apt_other_packages"]) == driver_packages.OTHER_PATTERNS


DEBIAN = {
    "debian12": ("535", "535.261.03", "535.161.07", "535.171.04"),
    "debian13": ("550", "550.163.01", "570.133.07", "550.163.01"),
}


@pytest.mark.parametrize("key", DEBIAN)
def test_debian_s_helpers_have_versions_of_their_own(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """Held like the driver, not pinned to its version: apt_preferences(5) takes the first record that fits."""
    branch, driver, modprobe, persistenced = DEBIAN[key]
    installed = "".join(
        "%s\t%s-1\thold\tinstalled\tamd64\n" % pair
        for pair in (("nvidia-smi", driver), ("nvidia-modprobe", modprobe), ("nvidia-persistenced", persistenced))
    )
    maker = planner(
        FakeApt(installed), monkeypatch, source="distribution", version=driver, hold=True, pin_path="/nowhere/pin",
        packages=["nvidia-smi", "nvidia-modprobe", "nvidia-persistenced"],
    )  # fmt: skip
    maker._independent = SYSTEMS[key]["independent"]["distribution"]
    assert maker._current(["nvidia-smi", "nvidia-modprobe", "nvidia-persistenced"])
    assert maker._installed_version() == driver
    path_and_text = maker._pin()
    assert path_and_text
    free = path_and_text[1].split("\n\n")[0]
    assert "Pin: version *\nPin-Priority: 500" in free and "nvidia-modprobe nvidia-persistenced" in free
    plan: dict[str, Any] = {"steps": []}
    maker._holds(plan)
    assert plan["hold"] == [] and maker._managed("nvidia-modprobe")
    assert branch == driver.partition(".")[0]


OLD_NAMES = (
    "libnvidia-compute-580\t580.95.05-0ubuntu1\thold\tinstalled\tamd64\n"
    "nvidia-dkms-580-open\t580.95.05-0ubuntu1\thold\tinstalled\tamd64\n"
    "nvidia-imex\t580.95.05-1\thold\tinstalled\tamd64\nlibnvidia-ml-dev\t12.4.99~12.4.1-2\tinstall\tinstalled\tamd64\n"
)
NEW_NAMES = (
    "Inst libnvidia-compute (595.45.04-1ubuntu1 x [amd64])\nInst nvidia-dkms-open (595.45.04-1ubuntu1 x [amd64])\n"
)
OFFERED = "libnvidia-compute:\n  Candidate: 595.45.04-1\nnvidia-imex:\n  Candidate: 595.45.04-1\n"


def test_packages_of_another_version_do_not_stay_beside_the_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """From branch 590 on the names on Ubuntu have no branch: apt would leave libnvidia-compute-580 where it is."""

    class Apt(FakeApt):
        def __call__(self, argv: list[str]) -> tuple[int, str]:
            code, text = super().__call__(argv)
            gone = [name[:-1] for name in argv if name.endswith("-580-") or name.endswith("-open-")]
            text += "".join("Remv %s [580.95.05-0ubuntu1]\n" % name for name in gone)
            if "nvidia-imex" in argv and argv[0] == "apt-get":
                text += "Inst nvidia-imex [580.95.05-1] (595.45.04-1 x [amd64])\n"
            return code, text

    apt = Apt(OLD_NAMES, NEW_NAMES, OFFERED)
    plan = planner(apt, monkeypatch, packages=["libnvidia-compute"], version="595").plan()
    what = {(step["action"], step["package"]) for step in plan["steps"]}
    assert {("remove", "libnvidia-compute-580"), ("remove", "nvidia-dkms-580-open")} <= what
    assert ("upgrade", "nvidia-imex") in what, "what the sources have in the wanted version comes along"
    assert plan["packages"] == ["libnvidia-compute", "libnvidia-compute-580-", "nvidia-dkms-580-open-", "nvidia-imex"]
    assert not [package for _action, package in what if package == "libnvidia-ml-dev"], "it has a version of its own"


def test_what_is_left_of_another_branch_is_not_as_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    new = "libnvidia-compute\t595.45.04-1ubuntu1\thold\tinstalled\tamd64\n"
    maker = planner(FakeApt(OLD_NAMES + new), monkeypatch, version="595")
    assert not maker._current(["libnvidia-compute"])
    assert planner(FakeApt(new), monkeypatch, version="595")._current(["libnvidia-compute"])


def test_going_back_to_older_names_is_going_back(monkeypatch: pytest.MonkeyPatch) -> None:
    new = "libnvidia-compute\t595.45.04-1ubuntu1\thold\tinstalled\tamd64\n"
    old = "Inst libnvidia-compute-580 (580.95.05-0ubuntu1 x [amd64])\nRemv libnvidia-compute [595.45.04-1ubuntu1]\n"
    apt = FakeApt(new, old, "libnvidia-compute-580:\n  Candidate: 580.95.05-0ubuntu1\n")
    options: dict[str, Any] = {"packages": ["libnvidia-compute-580"], "version": "580"}
    with pytest.raises(PlanError, match=r"go back from 595\.45\.04 to 580\.95\.05"):
        planner(apt, monkeypatch, **options).plan()
    assert planner(apt, monkeypatch, allow_downgrade=True, **options).plan()["steps"]


@pytest.mark.parametrize(("architecture", "name"), [("x86_64", "x86_64"), ("aarch64", "sbsa")])
def test_nvidia_s_repository_of_an_architecture(monkeypatch: pytest.MonkeyPatch, architecture: str, name: str) -> None:
    for key, row in SYSTEMS.items():
        if row.get("family") == "dnf":
            continue
        own = {"key": key, "label": row["label"], "codename": "x", "architecture": architecture, "kernel": "6.1.0"}
        if architecture not in row.get("architectures", ["x86_64"]):
            with pytest.raises(PlanError, match="architecture aarch64 of this host is not supported on Proxmox VE"):
                systems.choose_system(own, SYSTEMS)
            continue
        maker = planner(FakeApt(), monkeypatch, source="nvidia")
        maker.system = own
        repository = maker._repository(systems.choose_system(own, SYSTEMS))
        assert repository and "/%s/" % name in repository["uris"] and "/%s/" % name in repository["key_url"], key
        given = {"uris": "https://mirror.example/x86_64/"}
        maker._options["repository"] = given
        mirrored = maker._repository(row)
        assert mirrored and mirrored["uris"] == given["uris"]


@pytest.mark.parametrize(
    ("key", "version", "names"),
    [
        ("ubuntu2404", "575", ["nvidia-fabricmanager-575", "nvlsm", "linux-modules-extra-6.1.0"]),
        ("ubuntu2404", "595", ["nvidia-fabricmanager", "nvlsm", "linux-modules-extra-6.1.0"]),
        ("debian12", "580", ["nvidia-fabricmanager", "nvlsm"]),
    ],
)
def test_what_an_nvlink_5_board_needs(
    monkeypatch: pytest.MonkeyPatch, key: str, version: str, names: list[str]
) -> None:
    maker = planner(FakeApt(), monkeypatch, version=version, packages=["nvidia-fabricmanager", "nvlsm"])
    assert maker._packages(SYSTEMS[key]) == names
    assert maker._optional <= {"linux-modules-extra-6.1.0"}


def test_a_distribution_without_the_subnet_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    maker = planner(FakeApt(), monkeypatch, source="distribution", packages=["nvlsm"], version="580")
    monkeypatch.setattr(maker, "_source", lambda _entry: None)
    with pytest.raises(PlanError, match="nvlsm, which the NVLink fabric of this host needs, is not to be had from the"):
        maker.plan()


def test_apt_has_no_modules_that_are_built_already(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PlanError, match="nvidia_driver_precompiled: false"):
        planner(FakeApt(), monkeypatch, precompiled=True).plan()


def test_a_pin_that_is_in_the_way_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pinned(FakeApt):
        def __call__(self, argv: list[str]) -> tuple[int, str]:
            if argv[0] == "apt-cache" and "madison" in argv:
                return 0, "nvidia-modprobe | 570.133.07-1 | http://x trixie/contrib\n"
            return super().__call__(argv)

    problem = (
        "The following packages have unmet dependencies:\n"
        " nvidia-kernel-dkms : Depends: nvidia-modprobe (>= 550) but it is not installable\nE: broken\n"
    )
    apt = Pinned("", problem, "nvidia-kernel-dkms:\n  Candidate: 550.163.01-2\n", code=100)
    with pytest.raises(PlanError, match=r"\(/etc/pin\) lets in nvidia-modprobe 550 only, and the sources offer 570"):
        planner(apt, monkeypatch, packages=["nvidia-kernel-dkms"], version="550", pin_path="/etc/pin").plan()


def test_the_download_reads_the_scratch_directory_and_stores_for_the_installation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    apt = FakeApt("", "Inst cuda-x (1 x [amd64])\n", "cuda-x:\n  Candidate: 1\n")
    plan = planner(apt, monkeypatch, packages=["cuda-x"], download=True).plan()
    argv, directory = plan["download"]["argv"], Path(plan["download"]["directory"])
    try:
        assert argv[0] == "apt-get" and argv[-3:] == ["--download-only", "install", "cuda-x"]
        assert "Dir::Cache::archives=/var/cache/apt/archives/" in argv
        assert "Dir::Etc::sourceparts=%s/all" % directory in argv and (directory / "all").is_dir()
    finally:
        shutil.rmtree(directory)
    assert planner(apt, monkeypatch, packages=["cuda-x"]).plan()["download"] is None
