"""What people hand in is taken apart and recognised: bug reports, archives, folders, pasted text; bounded, and never a
traceback."""

from __future__ import annotations

import gzip
import io
import random
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import loose_inputs
import pytest
from ansible.module_utils.gpu_host import kernel_log, virtualization
from ansible.module_utils.gpu_host.evidence import bundle
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.gather import gather
from ansible.module_utils.gpu_host.loose import case, command_lines, of_pci, sources, split

ROOT = Path(__file__).resolve().parents[2]
HOSTS = ROOT / "tests" / "fixtures" / "hosts"
LOOSE = ROOT / "tests" / "fixtures" / "loose"
XID = (
    "[  812.000001] NVRM: Xid (PCI:0000:00:10): 119, pid=1, name=x, Timeout after 6s of waiting for RPC response "
    "from GPU0 GSP!\n"
)


def recorded(name: str) -> bundle.BundleEvidence:
    return bundle.load_bundle(str(HOSTS / (name + ".jsonl.gz")))


def loaded(tmp_path: Path, data: str | bytes, name: str = "file") -> Any:
    path = tmp_path / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return case.load_case(str(path))


def whats(evidence: Any) -> list[str]:
    return [piece["what"] for piece in evidence.manifest["loose"]["recognised"]]


# Bug reports


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_a_bug_report_of_a_broken_guest(tmp_path: Path, old: bool, packed: bool) -> None:
    text = loose_inputs.bug_report(recorded("kvm-story"), old=old, more=XID)
    evidence = loaded(
        tmp_path, gzip.compress(text.encode()) if packed else text, "nvidia-bug-report.log" + (".gz" if packed else "")
    )
    facts = gather(evidence)
    assert facts["virtualization"]["chipset"] == "i440fx" and facts["virtualization"]["vm"] is True
    assert facts["gpus"]["count"] == 8 == len(facts["pci"]["gpus"])
    assert [item["code"] for item in facts["kernel_log"]["fatal_xids"]] == ["119"]  # not the 79 of the boot before
    assert facts["driver"]["version"] == recorded("kvm-story").read("/sys/module/nvidia/version").text.strip()
    assert facts["kernel"]["cmdline"] and facts["modules"]["nvidia_uvm"]["loaded"] is True
    unread = evidence.manifest["loose"]["unrecognised"]
    assert any("rocm-smi" in name for name in unread)
    assert facts["errors"] == [entry for entry in facts["errors"] if "a fault in the reader" not in entry["problem"]]


def test_a_bug_report_of_a_healthy_host(tmp_path: Path) -> None:
    facts = gather(loaded(tmp_path, loose_inputs.bug_report(recorded("bare-metal"))))
    assert facts["virtualization"]["chipset"] is None and facts["gpus"]["count"] == 8
    log = facts["kernel_log"]
    assert log["covers_boot"] is True and log["fatal_xids"] == [] and not any(log["by_kind"].values())
    assert facts["driver"]["flavor"] == "open" and facts["p2p"]["all_granted"] is None


def test_a_bug_report_that_ends_early_is_cut(tmp_path: Path) -> None:
    whole = loose_inputs.bug_report(recorded("bare-metal"))
    cut = whole[: whole.index("dmesg:") + 400]
    log = gather(loaded(tmp_path, cut))["kernel_log"]
    assert log["fatal_xids"] is None and log["by_kind"]["aer"] is None


# Archives and folders


def tar(files: dict[str, str], mode: str = "w:gz") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz", "w:bz2"])
def test_a_sosreport(tmp_path: Path, mode: str) -> None:
    host = recorded("bare-metal")
    facts = gather(loaded(tmp_path, tar(loose_inputs.sos_tree(host), mode), "sosreport.tar"))
    whole = gather(host)
    assert [facts["p2p"][name] for name in ("read", "write", "all_granted")] == [
        whole["p2p"][name] for name in ("read", "write", "all_granted")
    ]
    without = {"nvlink": None, "nvlink_whole": None, "nvlink_errors": None}
    assert {**facts["topology"], **without} == {**whole["topology"], **without}
    assert facts["gpus"]["devices"] == whole["gpus"]["devices"]
    assert facts["kernel"]["words"] == whole["kernel"]["words"] and facts["system"]["os"] == whole["system"]["os"]
    assert facts["modules"]["nvidia_uvm"]["options"]["uvm_disable_hmm"]["configured"] is True


def test_a_zip_and_a_folder_say_the_same(tmp_path: Path) -> None:
    files = {path.name: path.read_text() for path in (LOOSE / "folder").iterdir() if path.is_file()}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr("case/" + name, text)
    assert sorted(whats(loaded(tmp_path, out.getvalue(), "x.zip"))) == sorted(
        what for what in whats(case.load_case(str(LOOSE / "folder"))) if "modprobe" not in what
    )


def test_names_that_lead_out_links_and_nesting_are_said(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        matrix = (LOOSE / "matrix-blocked.txt").read_bytes()
        for name in ("../../etc/passwd", "/etc/shadow", "good.txt"):
            info = tarfile.TarInfo(name)
            info.size = len(matrix)
            archive.addfile(info, io.BytesIO(matrix))
        link = tarfile.TarInfo("link.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        inner = tar({"deep.txt": matrix.decode()})
        info = tarfile.TarInfo("inner.tgz")
        info.size = len(inner)
        archive.addfile(info, io.BytesIO(inner))
    loose = loaded(tmp_path, out.getvalue(), "case.tgz").manifest["loose"]
    assert sorted(piece["name"] for piece in loose["recognised"]) == ["deep.txt", "good.txt"]
    assert {(name, why.split(",")[0]) for name, why in loose["left_out"]} == {
        ("../../etc/passwd", "a name that leads out of the archive"),
        ("/etc/shadow", "a name that leads out of the archive"),
        ("link.txt", "a link"),
    }


def test_a_link_in_a_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "case").mkdir()
    (tmp_path / "case" / "matrix").write_bytes((LOOSE / "matrix-blocked.txt").read_bytes())
    (tmp_path / "case" / "out").symlink_to("/etc/passwd")
    loose = case.load_case(str(tmp_path / "case")).manifest["loose"]
    assert loose["left_out"] == [["out", "a link, not followed"]] and len(loose["recognised"]) == 1


def test_bombs_end_at_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "FILE_LIMIT_BYTES", 1 << 20)
    monkeypatch.setattr(sources, "TOTAL_LIMIT_BYTES", 4 << 20)
    monkeypatch.setattr(sources, "FILES_LIMIT", 50)
    bomb = gzip.compress(b"0" * (64 << 20))
    handed = sources.open_path(str(written(tmp_path, "bomb.gz", bomb)))
    assert handed.total <= 2 << 20 and "longer than 1 MiB" in handed.left_out[0][1]
    many = sources.open_path(str(written(tmp_path, "many.tgz", tar({"f%d" % number: "x" for number in range(200)}))))
    assert len(many.files) == 50 and "beyond the limit" in many.left_out[0][1]
    nested = b"x"
    for _level in range(9):
        nested = gzip.compress(nested)
    assert sources.open_path(str(written(tmp_path, "n.gz", nested))).left_out == [("n", "packed more than 6 times")]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(12):
            archive.writestr("%d" % number, b"0" * (8 << 20))
    assert sources.open_path(str(written(tmp_path, "b.zip", out.getvalue()))).total <= 5 << 20


def written(tmp_path: Path, name: str, data: bytes) -> Path:
    (tmp_path / name).write_bytes(data)
    return tmp_path / name


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "the file is empty"),
        (b"\x00\xff\x13junk" * 50, "not a bundle: neither gzip nor JSON"),
        (b"A friend told me that GPUs are fast.\n", "no output or file of a host that is known here"),
        (b'{"hello": 1}\n', "line 1: not a bundle manifest"),
        (tar({"a": "nothing", "b": "either"}), "nothing in it is an output or a file of a host"),
        (tar({"a": "nothing"})[:60], "nothing in it is an output"),
        (b"PK\x03\x04" + b"\x00" * 100, "nothing in it is an output"),
        (b"\x28\xb5\x2f\xfd" + b"\x00" * 100, "packed with zstd"),
    ],
    ids=range(8),  # packed data holds the time, which would be part of a name
)
def test_what_is_nothing_is_said(tmp_path: Path, data: bytes, says: str) -> None:
    with pytest.raises(bundle.BundleError, match=says) as caught:
        loaded(tmp_path, data, "thing")
    assert str(tmp_path / "thing") in str(caught.value)


def test_an_empty_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(bundle.BundleError, match="it is empty"):
        case.load_case(str(tmp_path))


def test_a_damaged_packed_file_gives_what_it_has(tmp_path: Path) -> None:
    text = (LOOSE / "matrix-blocked.txt").read_text() + "".join(
        "%s\n" % random.Random(1).random() for _ in range(20_000)
    )
    packed = gzip.compress(text.encode())
    loose = loaded(tmp_path, packed[: len(packed) // 2], "cut.txt.gz").manifest["loose"]
    assert loose["recognised"] and "ends early" in loose["left_out"][0][1]


def test_hostile_bytes_never_raise(tmp_path: Path) -> None:
    rng = random.Random(7)
    inputs = [path.read_bytes() for path in LOOSE.glob("*.txt")]
    for number in range(150):
        data = bytearray(rng.choice(inputs))
        for _change in range(rng.randrange(1, 40)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        data = data[: rng.randrange(1, len(data))]
        try:
            evidence = loaded(tmp_path, bytes(data), "f%d" % number)
        except bundle.BundleError:
            continue
        facts = gather(evidence)
        assert not [entry for entry in facts["errors"] if "a fault in the reader" in entry["problem"]], bytes(data)


# Commands and content


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("root@pve1:~# nvidia-smi topo -p2p r", "nvidia-smi topo -p2p r"),
        ("[root@gpu1 ~]# lspci -nnvvv", "lspci -nnvvv"),
        ("(base) user@host:/srv/x$ sudo dmesg | grep NVRM", "sudo dmesg | grep NVRM"),
        ("user@host:~$ ", ""),
        ("$ nvidia-smi", "nvidia-smi"),
        ("# cat /proc/cmdline", "cat /proc/cmdline"),
        ("nvidia-smi topo -p2p r", "nvidia-smi topo -p2p r"),
        ("=== nvidia-smi topo -m ===", "nvidia-smi topo -m"),
        ("==> /etc/modprobe.d/nvidia.conf <==", "/etc/modprobe.d/nvidia.conf"),
        ("# /etc/default/grub", "/etc/default/grub"),
        ("nvidia-smi shows nothing at all", None),
        ("# TEST: Config with q35, NUMA", None),
        ("# a comment about options", None),
        ("GPU0\t X \tPHB", None),
        ("lspci is fine too, I think", None),
        ("00:00.0 Host bridge: Intel Corporation", None),
    ],
)
def test_command_lines(line: str, command: str | None) -> None:
    assert command_lines.find_command(line) == command


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("sosreport-x/etc/modprobe.d/nvidia.conf", "/etc/modprobe.d/nvidia.conf"),
        ("case/proc/cmdline", "/proc/cmdline"),
        ("proc/driver/nvidia/version", "/proc/driver/nvidia/version"),
        ("etc/pve/qemu-server/101.conf", "/etc/pve/qemu-server/101.conf"),
        ("etcetera/modprobe.d/x", ""),
        ("notes.txt", ""),
    ],
)
def test_paths_in_a_copied_tree(name: str, path: str) -> None:
    assert split.find_host_path(name) == path


@pytest.mark.parametrize(
    ("name", "letter"),
    [
        ("topo-p2p-w.txt", "w"),
        ("p2p_read.log", "r"),
        ("nvidia-smi_topo_-p2p_n.txt", "n"),
        ("p2p_atomics", "a"),
        ("matrix.txt", "r"),
        ("topo_p2p_pcie.txt", "p"),
        ("p2p.txt", "r"),
    ],
)
def test_a_matrix_is_told_by_its_name_where_no_command_stands_with_it(tmp_path: Path, name: str, letter: str) -> None:
    evidence = loaded(tmp_path, (LOOSE / "matrix-blocked.txt").read_bytes(), name)
    assert evidence.run(("nvidia-smi", "topo", "-p2p", letter)).ok
    assumed = name in ("matrix.txt", "p2p.txt")
    assert ("taken for reads" in whats(evidence)[0]) is assumed


def test_a_command_beats_a_name(tmp_path: Path) -> None:
    text = "$ nvidia-smi topo --p2pstatus w\n" + (LOOSE / "matrix-blocked.txt").read_text()
    assert loaded(tmp_path, text, "p2p-r.txt").run(("nvidia-smi", "topo", "-p2p", "w")).ok


def test_outputs_one_after_another_without_a_prompt(tmp_path: Path) -> None:
    table = (ROOT / "tests/fixtures/loose/matrix-granted.txt").read_text().partition("\n")[2]
    topo = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tSYS\t0-3\nGPU1\tSYS\t X \t4-7\n"
    links = (
        "GPU 0: NVIDIA A100 (UUID: GPU-0)\n\t Link 0: 25 GB/s\nGPU 1: NVIDIA A100 (UUID: GPU-1)\n\t Link 0: 25 GB/s\n"
    )
    kernel = "[    1.000000] Linux version 6.8.0-64-generic (x) #1\n[    2.000000] NVRM: loading NVIDIA UNIX x86_64\n"
    found = whats(loaded(tmp_path, table + "\n" + topo + "\n" + links + "\n" + kernel))
    assert [what.split(":")[0].split(",")[0] for what in found] == [
        "nvidia-smi topo -p2p r",
        "nvidia-smi topo -m",
        "nvidia-smi nvlink -s",
        "kernel log",
    ]


def test_windows_text_is_read(tmp_path: Path) -> None:
    text = (LOOSE / "matrix-blocked.txt").read_text().replace("\n", "\r\n")
    assert whats(loaded(tmp_path, text.encode("utf-16")))[0].startswith("nvidia-smi topo -p2p r")


def test_an_excerpt_of_the_log_proves_nothing_absent(tmp_path: Path) -> None:
    facts = gather(loaded(tmp_path, XID))["kernel_log"]
    assert [item["code"] for item in facts["fatal_xids"]] == ["119"] and facts["other_xids"] is None
    assert facts["by_kind"]["io_page_fault"] is None


@pytest.mark.parametrize("command", ["dmesg", "journalctl -k -b", "dmesg -T"])
def test_a_log_is_whole_by_its_command(tmp_path: Path, command: str) -> None:
    text = (
        "root@h:~# %s\n[    0.000000] Linux version 6.8.0-64-generic (x) #1\n[    0.000001] Command line: ro iommu=pt\n"
        % command
    )
    evidence = loaded(tmp_path, text)
    assert gather(evidence)["kernel_log"]["fatal_xids"] == []
    assert (
        evidence.read("/proc/cmdline").text == "ro iommu=pt\n"
        and evidence.read("/proc/sys/kernel/osrelease").text == "6.8.0-64-generic\n"
    )
    filtered = loaded(tmp_path, text.replace(command, command + " | grep -i iommu"), "filtered")
    assert gather(filtered)["kernel_log"]["fatal_xids"] is None


def test_the_kernel_names_the_machine(tmp_path: Path) -> None:
    stamp = "[    0.000000] "
    text = (
        stamp
        + "Linux version 6.8.0 (x)\n"
        + stamp
        + "DMI: QEMU Standard PC (Q35 + ICH9, 2009), BIOS rel-1.16 04/01/2014\n"
    )
    facts = virtualization.gather(loaded(tmp_path, text), Errors("virtualization"))
    assert (facts["vm"], facts["chipset"]) == (True, "q35")


@pytest.mark.parametrize(
    ("text", "placement"),
    [
        ("$ systemd-detect-virt\nkvm\n", "kvm"),
        ("$ systemd-detect-virt --vm\nkvm\n", None),
        ("$ systemd-detect-virt\nlxc\n", "lxc"),
        ("$ systemd-detect-virt\nnone\n", "bare_metal"),
    ],
)
def test_where_it_runs(tmp_path: Path, text: str, placement: str | None) -> None:
    assert virtualization.gather(loaded(tmp_path, text), Errors("virtualization"))["placement"] == placement


def test_of_two_outputs_of_one_kind_it_is_said_which_counts(tmp_path: Path) -> None:
    matrix = (LOOSE / "matrix-blocked.txt").read_text()
    (tmp_path / "a-p2p-r.txt").write_text(matrix)
    (tmp_path / "b-p2p-r.txt").write_text(matrix.replace("NS", "OK"))
    evidence = case.load_case(str(tmp_path))
    assert evidence.manifest["loose"]["left_out"] == [
        ["b-p2p-r.txt", "not counted: a-p2p-r.txt is taken for this output"]
    ]


def test_listings_of_lspci_become_one() -> None:
    short = (
        b"00:00.0 Host bridge [0600]: Intel Corporation Device [8086:29c0]\n01:00.0 3D controller [0302]: NVIDIA "
        b"Corporation Device [10de:2330]\n"
    )
    long = (
        b"01:00.0 3D controller: NVIDIA Corporation Device 2330 (rev a1)\n\tControl: I/O+ Mem+\n\tLnkSta:\tSpeed "
        b"32GT/s, Width x8\n"
    )
    merged = of_pci.merge_listings([short, long]).decode()
    assert "[10de:2330]" in merged and "Width x8" in merged and merged.count("01:00.0") == 1 and "00:00.0" in merged


def test_a_missing_program_and_a_failing_driver(tmp_path: Path) -> None:
    facts = gather(loaded(tmp_path, "$ nvidia-smi\nbash: nvidia-smi: command not found\n"))["gpus"]
    assert facts["installed"] is False
    said = (
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
        "one runs.\n"
    )
    facts = gather(loaded(tmp_path, said, "b"))["gpus"]
    assert (facts["answered"], facts["exit_code"]) == (False, 9)


def test_a_part_of_a_directory_is_not_the_directory(tmp_path: Path) -> None:
    evidence = loaded(tmp_path, "options nvidia_uvm uvm_disable_hmm=1\n", "uvm.conf")
    listing = evidence.list("/etc/modprobe.d")
    assert not listing.ok and list(listing.entries) == ["uvm.conf"]
    options = gather(evidence)["modules"]
    assert options["nvidia_uvm"]["options"]["uvm_disable_hmm"]["configured"] is True


def test_secrets_in_pieces_are_masked(tmp_path: Path) -> None:
    evidence = loaded(
        tmp_path,
        "[2026-01-01 00:00:00] server_args=ServerArgs(api_key='hunter2hunter2')\nUvicorn running on http://x "
        "--api-key hunter2hunter2\n",
    )
    assert "hunter2" not in evidence.read("/loose/server.log").text


def test_a_capture_of_pieces_stays_pieces(tmp_path: Path) -> None:
    source = case.load_case(str(LOOSE / "pasted-session.txt"))
    recorder = bundle.RecordingEvidence(source)
    first = gather(recorder)
    again = loaded(
        tmp_path, bundle.dump_bundle({"loose": recorder.source_manifest["loose"]}, recorder.records), "again.jsonl"
    )
    second = gather(again)
    for subject in ("p2p", "topology", "kernel_log", "modules", "virtualization"):
        assert first[subject] == second[subject], subject
    assert second["evidence"]["loose"]["from"] == "pasted-session.txt"


def test_the_journal_of_another_boot_is_left_out(tmp_path: Path) -> None:
    text = (
        "root@h:~# journalctl -k -b -1\nApr 08 10:00:00 h kernel: NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has "
        "fallen off the bus.\n"
    )
    facts = kernel_log.gather(loaded(tmp_path, text), Errors("kernel_log"))
    assert facts["findings"] is None
