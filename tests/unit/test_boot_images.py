"""Which initramfs is built anew, and by what: decided by state, with programs that fail or are killed half way."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from ansible.module_utils.gpu_provision import boot_images

FILE = "/etc/modprobe.d/gpu-host-nvidia.conf"
OTHER = "/etc/modprobe.d/gpu-host-nouveau.conf"
KERNELS = ("6.1.0-1-amd64", "6.8.12-4-pve")
FORMS = {"update-initramfs": "initrd.img-%s", "dracut": "initramfs-%s.img"}


class Host:
    """A root directory with kernels, their images and a builder, which `run` carries the commands out with."""

    def __init__(self, root: Path, builder: str, form: str = "") -> None:
        self.root, self.path = str(root), root
        self.form = form or FORMS.get(builder, "initrd.img-%s")
        for kernel in KERNELS:
            (root / "lib/modules" / kernel).mkdir(parents=True)
        for name in ("boot", "usr/sbin", "etc/modprobe.d", "etc/kernel", "etc/dracut.conf.d"):
            (root / name).mkdir(parents=True)
        for number, kernel in enumerate(KERNELS):
            self.write("/boot/" + self.form % kernel, "built without options\n", 1000.0 + number)
        if builder:
            self.add_program(builder)

    def add_program(self, name: str) -> None:
        program = self.path / "usr/sbin" / name
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)

    def write(self, path: str, text: str, modified: float = 0.0) -> None:
        place = self.path / path.lstrip("/")
        place.write_text(text)
        os.utime(place, (modified, modified) if modified else None)

    def image(self, number: int) -> str:
        return "/boot/" + self.form % KERNELS[number]

    def plan(self, *files: str) -> dict[str, object]:
        return boot_images.plan_builds(files or (FILE,), root=self.root)

    def run(self, *files: str, stop_before: int = 99) -> list[str]:
        """One run of the role's step, ended before the command `stop_before`; the commands that ran."""
        names = files or (FILE,)
        plan = boot_images.plan_builds(names, root=self.root)
        if not plan["commands"]:
            return []
        boot_images.begin_builds(names, plan["because"], self.root)
        for row in plan["inclusions"]:
            self.write(row["path"], row["content"])
        ran = []
        for number, row in enumerate(plan["commands"]):
            if number == stop_before:
                return ran
            ran.append(" ".join(row["argv"]))
            path = next((path for path in plan["stale"] if path in row["argv"] or path.endswith(row["argv"][-1])), "")
            for image in [path] if path else plan["stale"] if row["argv"][0] == "mkinitcpio" else []:
                self.write(image, "built with options\n")
        boot_images.finish_builds(names, self.root)
        return ran


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.mark.parametrize(
    ("builder", "form", "commands"),
    [
        ("update-initramfs", "", ["update-initramfs -u -k " + kernel for kernel in KERNELS]),
        ("dracut", "", ["dracut --force /boot/initramfs-%s.img %s" % (kernel, kernel) for kernel in KERNELS]),
        # dracut in the place of initramfs-tools, on Debian.
        ("dracut", "initrd.img-%s", ["dracut --force /boot/initrd.img-%s %s" % (kernel, kernel) for kernel in KERNELS]),
    ],
)
def test_the_builder_that_is_there_builds_what_is_older(
    root: Path, builder: str, form: str, commands: list[str]
) -> None:
    host = Host(root, builder, form)
    assert host.run() == []  # no file, nothing to hold
    host.write(FILE, "options\n")
    assert host.run() == commands
    assert host.run() == []


def test_dracut_is_told_to_take_the_files_along(root: Path) -> None:
    """Debian's does not build for its host alone, and leaves /etc/modprobe.d out: a newer image would hold nothing."""
    host = Host(root, "dracut")
    host.write(FILE, "options\n", 900.0)  # older than each image
    plan = host.plan()
    [row] = plan["inclusions"]  # type: ignore[misc]
    assert row["path"] == "/etc/dracut.conf.d/gpu-host-nvidia.conf"
    assert 'install_optional_items+=" %s "' % FILE in row["content"]
    assert plan["because"] == "dracut does not take %s along by itself" % FILE and len(plan["stale"]) == 2  # type: ignore[arg-type]
    assert len(host.run()) == 2 and host.run() == []
    host.write(row["path"], "")
    assert host.plan()["inclusions"] == [row] and len(host.run()) == 2
    for other in ("update-initramfs", "mkinitcpio"):
        assert boot_images.find_inclusions(other, [FILE], host.root) == []


def test_mkinitcpio_builds_its_presets(root: Path) -> None:
    host = Host(root, "mkinitcpio", "initramfs-%s.img.old")
    (root / "etc/mkinitcpio.d").mkdir()
    host.write(
        "/etc/mkinitcpio.d/linux.preset",
        'PRESETS=(\'default\')\ndefault_image="/boot/initramfs-linux.img"\nfallback_image="/boot/initramfs-old.img"\n',
    )
    host.write("/boot/initramfs-linux.img", "old\n", 1000.0)
    host.write("/boot/initramfs-old.img", "of a preset that is switched off\n", 1000.0)
    host.write(FILE, "options\n")
    assert host.plan()["stale"] == ["/boot/initramfs-linux.img"]
    assert host.run() == ["mkinitcpio -P"]
    assert host.run() == []


@pytest.mark.parametrize("builder", FORMS)
@pytest.mark.parametrize("stop", [0, 1])
def test_a_run_that_is_killed_half_way_is_finished_by_the_next(root: Path, builder: str, stop: int) -> None:
    host = Host(root, builder)
    host.write(FILE, "options\n")
    assert len(host.run(stop_before=stop)) == stop
    assert len(host.run()) == 2  # the mark: what the killed command left of its image is not known
    assert "built with options" in (root / host.image(0)[1:]).read_text() + (root / host.image(1)[1:]).read_text()
    assert host.run() == []


def test_one_stale_image_of_two_is_seen(root: Path) -> None:
    host = Host(root, "update-initramfs")
    host.write(FILE, "options\n", 1000.5)
    assert host.plan()["stale"] == [host.image(0)]
    assert host.plan()["because"] == FILE + " was changed after it was built"


def test_a_step_that_failed_after_the_image_was_written_is_repeated(root: Path) -> None:
    """A hook that copies the image to the partition of the firmware fails: the image is new, the step is not done."""
    host = Host(root, "update-initramfs")
    host.add_program("proxmox-boot-tool")
    host.write("/etc/kernel/proxmox-boot-uuids", "AAAA-0001\n")
    host.write(FILE, "options\n")
    assert len(host.run(stop_before=2)) == 2  # both images, and not the refresh
    assert host.plan()["because"] == "an earlier run did not come to the end of this step"
    assert host.run()[-1] == "proxmox-boot-tool refresh"
    assert host.run() == []


def test_proxmox_boot_tool_is_asked_where_it_manages_the_partitions_only(root: Path) -> None:
    host = Host(root, "update-initramfs")
    host.add_program("proxmox-boot-tool")
    host.write(FILE, "options\n")
    assert not any("proxmox" in command for command in host.run())


def test_an_end_without_an_error_that_built_nothing_is_a_failure(root: Path) -> None:
    host = Host(root, "update-initramfs")
    host.write(FILE, "options\n")
    boot_images.begin_builds((FILE,), "", host.root)
    with pytest.raises(boot_images.BuildError, match=r"still older than .*update_initramfs=no"):
        boot_images.finish_builds((FILE,), host.root)
    assert host.plan()["commands"]


def test_no_builder_and_an_image_that_is_older_is_said(root: Path) -> None:
    host = Host(root, "")
    assert host.run() == []
    host.write(FILE, "options\n")
    with pytest.raises(boot_images.BuildError, match=r"has none of update-initramfs, dracut, mkinitcpio"):
        host.plan()


def test_what_is_left_of_a_removed_kernel_is_not_built(root: Path) -> None:
    host = Host(root, "dracut")
    host.write("/boot/initramfs-5.0.0-gone.img", "old\n", 1000.0)
    host.write("/boot/initramfs-0-rescue-abc.img", "old\n", 1000.0)
    host.write(FILE, "options\n")
    assert host.run() and host.run() == []


def test_a_file_of_a_clock_that_was_ahead_does_not_keep_the_step_from_its_end(root: Path) -> None:
    host = Host(root, "update-initramfs")
    host.write(FILE, "options\n", time.time() + 86400)
    assert len(host.run()) == 2
    assert host.run() == []


def test_files_of_two_roles(root: Path) -> None:
    host = Host(root, "update-initramfs")
    host.write(OTHER, "blacklist nouveau\n")
    assert host.run(FILE) == []
    assert len(host.run(FILE, OTHER)) == 2
