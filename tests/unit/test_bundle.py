"""Bundles: what goes in comes out, and what is no bundle is named with file and line."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpu_host.evidence import bundle, interface
from ansible.module_utils.gpu_host.evidence.interface import Entry, Evidence, Listing, Outcome, Reading
from hypothesis import given
from hypothesis import strategies as st

MANIFEST = {"host": "h", "captured_at": 5.5, "uid": 0}


class Scripted(Evidence):
    """Answers from three tables."""

    def __init__(
        self, reads: dict[str, Reading], lists: dict[str, Listing], runs: dict[tuple[str, ...], Outcome]
    ) -> None:
        self.reads, self.lists, self.runs = reads, lists, runs

    def read(self, path: str, limit: int = interface.READ_LIMIT_BYTES) -> Reading:
        found = self.reads[path]
        return (
            found if found.data is None or len(found.data) <= limit else Reading(path, "ok", found.data[:limit], True)
        )

    def list(self, path: str) -> Listing:
        return self.lists[path]

    def run(self, argv: Any, timeout: float = 30.0) -> Outcome:
        return self.runs[tuple(argv)]

    def now(self) -> float:
        return 5.5


def round_trip(source: Scripted) -> bundle.BundleEvidence:
    recorder = bundle.RecordingEvidence(source)
    for path in source.reads:
        recorder.read(path)
    for path in source.lists:
        recorder.list(path)
    for argv in source.runs:
        recorder.run(argv)
    return bundle.parse_bundle(bundle.compress_bundle(bundle.dump_bundle(MANIFEST, recorder.records)))


# File names as the kernel gives them: any bytes, which Python shows with lone surrogates.
NAMES = st.binary(min_size=1, max_size=12).map(
    lambda data: data.replace(b"/", b"_").replace(b"\0", b"_").decode("utf-8", "surrogateescape")
)
PATHS = NAMES.map(lambda name: "/sys/" + name)
READINGS = st.builds(Reading, PATHS, st.just("ok"), st.binary(max_size=60), st.booleans()) | st.builds(
    Reading, PATHS, st.sampled_from(["absent", "denied", "failed"]), st.none(), st.just(False), st.text(max_size=10)
)
ENTRIES = st.builds(
    Entry,
    st.sampled_from(["file", "dir", "link", "char"]),
    st.none() | NAMES,
    st.none() | st.integers(0, 0o7777),
    st.none() | st.integers(0, 70000),
    st.none() | st.integers(0, 70000),
    st.none() | st.integers(0, 4095),
    st.none() | st.integers(0, 4095),
    st.none() | st.integers(0, 1 << 40),
    st.none() | st.floats(0, 4e9),
)
LISTINGS = st.builds(Listing, PATHS, st.just("ok"), st.dictionaries(NAMES, ENTRIES, max_size=4)) | st.builds(
    Listing, PATHS, st.just("denied")
)
OUTCOMES = st.builds(
    Outcome,
    st.lists(NAMES, min_size=1, max_size=3).map(tuple),
    st.sampled_from(["ok", "absent", "timeout", "hung"]),
    st.none() | st.integers(-64, 255),
    st.binary(max_size=60),
    st.binary(max_size=20),
    st.floats(0, 100),
    st.booleans(),
    st.text(max_size=10),
)


@given(
    readings=st.lists(READINGS, max_size=4),
    listings=st.lists(LISTINGS, max_size=4),
    outcomes=st.lists(OUTCOMES, max_size=4),
)
def test_what_goes_in_comes_out(readings: list[Reading], listings: list[Listing], outcomes: list[Outcome]) -> None:
    source = Scripted({r.path: r for r in readings}, {li.path: li for li in listings}, {o.argv: o for o in outcomes})
    loaded = round_trip(source)
    for path, reading in source.reads.items():
        assert loaded.read(path) == reading
    for path, listing in source.lists.items():
        assert loaded.list(path) == listing
    for argv, outcome in source.runs.items():
        assert loaded.run(argv) == outcome
    again = bundle.parse_bundle(bundle.dump_bundle(loaded.manifest, loaded.records()).encode())
    assert again.records() == loaded.records()
    assert loaded.now() == 5.5 and loaded.manifest["host"] == "h"


def test_what_a_bundle_lacks_is_not_captured_and_not_absent() -> None:
    empty = bundle.parse_bundle(bundle.dump_bundle(MANIFEST, ()).encode())
    for answer in (empty.read("/x"), empty.list("/x"), empty.run(["x"])):
        assert answer.status == interface.NOT_CAPTURED and not answer.ok and answer.reason


def test_of_two_readings_the_longer_is_kept() -> None:
    source = Scripted({"/f": Reading("/f", "ok", b"0123456789")}, {}, {})
    recorder = bundle.RecordingEvidence(source)
    for limit in (1, 100, 4):
        recorder.read("/f", limit)
    loaded = bundle.BundleEvidence({}, recorder.records)
    assert loaded.read("/f") == Reading("/f", "ok", b"0123456789")
    assert loaded.read("/f", 4) == Reading("/f", "ok", b"0123", True)


def test_a_copy_is_independent() -> None:
    first = bundle.BundleEvidence(MANIFEST, [{"read": "/f", "status": "ok", "text": "1"}])
    second = first.copy()
    second.add({"read": "/f", "status": "ok", "text": "2"})
    assert (first.read("/f").text, second.read("/f").text) == ("1", "2")


def test_a_bundle_from_another_hand_is_masked_too() -> None:
    records = [
        {"read": "/proc/1/environ", "status": "ok", "text": "HF_TOKEN=abcdefgh\0NCCL_DEBUG=INFO"},
        {"read": "/proc/9/cmdline", "status": "ok", "text": "x\0--api-key\0abcdefgh"},
        {"run": ["journalctl"], "status": "ok", "stdout": "token=abcdefgh\n", "stderr": "password: abcdefgh"},
    ]
    loaded = bundle.parse_bundle(bundle.dump_bundle(MANIFEST, records).encode())
    assert "abcdefgh" not in json.dumps(loaded.records())
    assert loaded.read("/proc/1/environ").text == "NCCL_DEBUG=INFO"


def test_the_same_text_gives_the_same_bytes() -> None:
    assert bundle.compress_bundle("x\n") == bundle.compress_bundle("x\n")
    assert gzip.decompress(bundle.compress_bundle("x\n")) == b"x\n"


LINE = '{"read": "/f", "status": "ok", "text": "1"}'
HEAD = json.dumps({"bundle": 1, **MANIFEST})


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "B: the file is empty"),
        (b"\n\n", "B: the file is empty"),
        (gzip.compress(b"", mtime=0), "B: the file is empty"),
        (b"\x00\x01\x02junk", "B: not a bundle: neither gzip nor JSON"),
        (b"<html>", "B: not a bundle"),
        (b"[]", "B: not a bundle"),
        (b"{]", "B line 1: not JSON"),
        (b"{}", "B line 1: not a bundle manifest"),
        (b'{"bundle": 99}', "B line 1: not a bundle manifest of format 1 (found 99)"),
        (b'{"bundle": 1, "captured_at": "yesterday"}', "B line 1: captured_at is no number"),
        ((HEAD + "\n" + LINE + "\n" + LINE[:20]).encode(), "B line 3: not JSON"),
        ((HEAD + '\n{"seen": 1}').encode(), "B line 2: not an evidence record"),
        ((HEAD + '\n{"read": "/f"}').encode(), "B line 2: not an evidence record"),
        (
            (HEAD + '\n{"read": "/f", "status": "ok"}').encode(),
            "B line 2: not an evidence record (status ok without content)",
        ),
        ((HEAD + '\n{"read": "/f", "status": "ok", "text": 5}').encode(), "B line 2: not an evidence record"),
        ((HEAD + '\n{"read": "/f", "status": "ok", "base64": "!"}').encode(), "B line 2: not an evidence record"),
        ((HEAD + '\n{"list": "/d", "status": "ok", "entries": [1]}').encode(), "B line 2: not an evidence record"),
        (
            (HEAD + '\n{"list": "/d", "status": "ok", "entries": {"a": {"colour": "red"}}}').encode(),
            "B line 2: not an evidence record",
        ),
        ((HEAD + '\n{"run": 5, "status": "ok"}').encode(), "B line 2: not an evidence record"),
        ((HEAD + '\n{"run": ["x"], "status": "ok", "seconds": "long"}').encode(), "B line 2: not an evidence record"),
        ((HEAD + "\n" + "[" * 100000).encode(), "B line 2: not JSON"),
        (gzip.compress((HEAD + "\n" + LINE).encode(), mtime=0)[:-9], "B: the gzip data ends early"),
        (gzip.compress(HEAD.encode(), mtime=0)[:-8] + b"\0\0\0\0" * 2, "B: damaged gzip data"),
    ],
)
def test_what_is_no_bundle_is_named_with_file_and_line(data: bytes, says: str) -> None:
    with pytest.raises(bundle.BundleError) as caught:
        bundle.parse_bundle(data, "B")
    assert str(caught.value).startswith(says)


def test_a_bundle_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(bundle.BundleError, match=str(path)):
            bundle.load_bundle(str(path))


def test_a_decompression_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "SIZE_LIMIT_BYTES", 100000)
    with pytest.raises(bundle.BundleError, match="larger than 100000 bytes when unpacked"):
        bundle.parse_bundle(gzip.compress(bytes(10_000_000)), "B")


def packed(*parts: bytes, times: int = 1) -> bytes:
    """gzip of the manifest and then `parts`, `times` times over, made without holding it unpacked."""
    stream = zlib.compressobj(9, wbits=31)
    chunks = [stream.compress(HEAD.encode() + b"\n")]
    chunks += [stream.compress(part) for _ in range(times) for part in parts]
    return b"".join([*chunks, stream.flush()])


BOMBS = {
    "larger than 64 MiB when unpacked": ((b'{"read": "/f", "status": "ok", "text": "' + b"a" * 2**20 + b'"}\n',), 80),
    "line 2: longer than 32 MiB": ((b" " * 2**20,), 40),
    "more than 100000 lines": ((b'{"read": "/f", "status": "absent"}\n' * 1000,), 101),
    "more than 100000 lines ": ((b"\n" * 2**20,), 20),
    "line 2: a record of more than 500000 values": ((b'{"list": "/d", "x": [' + b"[]," * 600_000 + b"0]}\n",), 1),
    "line 2: a record of more than 500000 values ": ((b'{"list": "/d", "x": [' + b"0," * 600_000 + b"0]}\n",), 1),
    "line 2: not JSON": ((b"[" * 400_000,), 1),
    "line 2: not JSON ": ((b'{"a":' * 400_000,), 1),
}
REFUSE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (500 << 20, 500 << 20))
sys.path.insert(0, sys.argv[1])
from gpu_host.evidence import bundle
bundle.SIZE_LIMIT_BYTES, bundle.LINE_LIMIT_BYTES = 64 << 20, 32 << 20
for path in sys.argv[2:]:
    try:
        bundle.load_bundle(path)
        print("taken")
    except bundle.BundleError as error:
        print(error)
"""


@pytest.mark.slow
def test_what_would_take_the_controllers_memory_is_refused_before(tmp_path: Path) -> None:
    """In a process that may have 500 MiB: most of these would take several times as much."""
    paths = []
    for number, (parts, times) in enumerate(BOMBS.values()):
        path = tmp_path / ("%d.gz" % number)
        path.write_bytes(packed(*parts, times=times))
        assert path.stat().st_size < 2**21
        paths.append(str(path))
    root = Path(__file__).resolve().parents[2] / "module_utils"
    ran = subprocess.run(
        [sys.executable, "-c", REFUSE, str(root), *paths], capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    for said, wanted in zip(ran.stdout.splitlines(), BOMBS):
        assert wanted.strip() in said, (said, wanted)


@pytest.mark.slow
def test_a_large_text_is_no_fault() -> None:
    """16 MiB of a command's output, full of what counts as structure outside of quotes."""
    text = '[1], {"a": 1}, \\"' * (2**20)
    record = json.dumps({"run": ["journalctl"], "status": "ok", "rc": 0, "stdout": text})
    assert bundle.parse_bundle((HEAD + "\n" + record).encode()).run(["journalctl"]).text == text


GOOD = bundle.compress_bundle(
    HEAD
    + "\n"
    + "\n".join(
        [
            LINE,
            '{"list": "/d", "status": "ok", "entries": {"a": {"kind": "file"}}}',
            '{"run": ["x"], "status": "ok", "rc": 0}',
        ]
    )
)


@given(cut=st.integers(0, len(GOOD)), flip=st.integers(0, len(GOOD) - 1), value=st.integers(0, 255))
def test_a_damaged_bundle_is_refused_or_read_but_never_a_crash(cut: int, flip: int, value: int) -> None:
    for data in (GOOD[:cut], GOOD[:flip] + bytes([value]) + GOOD[flip + 1 :]):
        try:
            bundle.parse_bundle(data, "B")
        except bundle.BundleError as error:
            assert str(error).startswith("B")


@given(data=st.binary(max_size=200))
def test_junk_after_the_manifest_is_refused_or_read(data: bytes) -> None:
    try:
        loaded = bundle.parse_bundle(HEAD.encode() + b"\n" + data, "B")
    except bundle.BundleError as error:
        assert str(error).startswith("B line ")
    else:
        assert loaded.records() is not None
