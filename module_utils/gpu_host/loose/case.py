"""The evidence in what somebody hands in: each piece recognised, and all of them together behind the calls of a bundle.

What is not handed in is "not captured". A directory of which single files are known is "not captured" too, with those
files in its listing, so that no reader takes the part for the whole.
"""

from __future__ import annotations

import calendar
import os
import re
import time
import zlib
from collections.abc import Iterable
from typing import Any

from ..evidence import bundle as bundles
from ..evidence import secrets
from ..evidence.interface import NOT_CAPTURED, Entry, Listing
from ..evidence.sides import HYPERVISOR
from . import command_lines, of_files, of_guests, of_logs, of_pci, of_servers, of_smi, of_tools, sources, split
from .piece import Piece, Recognised, Record

# In this order: the first that recognises a piece has it.
RECOGNISERS = (of_tools, of_smi, of_guests, of_pci, of_files, of_logs, of_servers)

SERVER_LOG_LIMIT = 3_500_000
_SHOWN = 400  # pieces that are named in a manifest


class LooseEvidence(bundles.BundleEvidence):
    """A host of which pieces are known. The manifest's ``loose`` says which pieces, and what is only a part."""

    def list(self, path: str) -> Listing:
        """As captured; else, with the status "not captured", the files below `path` that happen to be known."""
        found = super().list(path)
        if found.ok or found.status != NOT_CAPTURED:
            return found
        inner = path.rstrip("/") + "/"
        names: dict[str, Entry] = {}
        for known in self.paths():
            if known.startswith(inner) and self.read(known).ok:
                name, slash, _rest = known[len(inner) :].partition("/")
                names.setdefault(name, Entry("dir" if slash else "file"))
        return Listing(path, NOT_CAPTURED, names, "only single files of it were handed in" if names else found.reason)

    def copy(self) -> LooseEvidence:
        twin = LooseEvidence(dict(self.manifest), ())
        for record in self.records():
            twin.add(record)
        return twin


def load_case(path: str) -> bundles.BundleEvidence:
    """The evidence at `path`, in whatever form. BundleError names what is wrong with it."""
    if not os.path.isdir(path) and _is_bundle(path):
        bundle = bundles.load_bundle(path)
        return add_pieces(bundle) if bundle.manifest.get("loose") else bundle
    handed = sources.open_path(path)
    case = _Case(path)
    for file in handed.files:
        case.add_file(file)
    case.left_out += handed.left_out
    if not case.anything():
        return _refused(path, case)
    return case.evidence()


def add_pieces(bundle: bundles.BundleEvidence) -> LooseEvidence:
    """A capture of loose pieces is loose itself."""
    twin = LooseEvidence(bundle.manifest, ())
    for record in bundle.records():
        twin.add(record)
    return twin


def _is_bundle(path: str) -> bool:
    try:
        with open(path, "rb") as handle:
            head = handle.read(1 << 16)
    except OSError:
        return True  # bundle.py says why it cannot be read
    if head[:2] == b"\x1f\x8b":
        try:
            head = zlib.decompressobj(wbits=31).decompress(head, 1 << 16)
        except zlib.error:
            return False
    return not head or _is_manifest(head)


def _is_manifest(data: bytes) -> bool:
    return bool(re.match(rb'\s*\{"bundle":', data[:200])) or (
        data[:1] == b"{" and b'"bundle":' in data.split(b"\n", 1)[0][:4096]
    )


def _refused(path: str, case: _Case) -> bundles.BundleEvidence:
    """Nothing was recognised: what a bundle would have said, or what was there instead."""
    if os.path.isdir(path) or case.left_out or len(case.unrecognised) > 1:
        seen = secrets.redact_strings(["%s: %s" % (name, why) for name, why in case.left_out] + case.unrecognised)
        raise bundles.BundleError(
            "%s: nothing in it is an output or a file of a host that is known here%s. README.md lists what is."
            % (
                path,
                " (%s%s)" % ("; ".join(seen[:4]), " and %d more" % (len(seen) - 4) if len(seen) > 4 else "")
                if seen
                else ": it is empty",
            )
        )
    data = case.data[0] if case.data else b""
    if data.strip() and not data.lstrip().startswith(b"{"):
        raise bundles.BundleError(
            "%s: not a bundle: neither gzip nor JSON, and no output or file of a host that is known here. capture.yml "
            "writes a bundle; "
            "name that file in gpu_host_bundle. README.md lists what else can be read." % path
        )
    return bundles.parse_bundle(data, path)


class _Case:
    """Gathers what the pieces give, and decides between pieces that say the same."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._best: dict[tuple[str, ...], tuple[int, Record, str]] = {}  # what is asked -> (rank, record, side)
        self._names: dict[tuple[str, ...], str] = {}
        self._listings: dict[str, list[bytes]] = {}
        self._whole: set[str] = set()  # subjects of which a whole output is there
        self._parts: set[str] = set()
        self._logs: list[bytes] = []  # excerpts of the kernel log
        self._bundles: list[bundles.BundleEvidence] = []
        self._guests: list[dict[str, Any]] = []
        self._server: dict[str, Any] = {}
        self._dates: list[float] = []
        # Here and below, a "file" is a file and the machine whose prompt stands in it.
        self._nodes: set[str] = set()  # those that were written on a Proxmox host
        self._of_file: dict[tuple[str, ...], str] = {}
        self.recognised: list[dict[str, str]] = []
        self.unrecognised: list[str] = []
        self.left_out: list[tuple[str, str]] = []
        self.data: list[bytes] = []

    def anything(self) -> bool:
        return bool(self._best or self._bundles or self.recognised)

    def add_file(self, file: sources.File) -> None:
        self.data.append(file.data[: 1 << 20] if self.data else file.data)
        if not file.data.strip():
            self.left_out.append((file.name, "empty"))
            return
        if _is_manifest(file.data):
            self._add_bundle(file)
            return
        unknown = []
        pieces = split.split_file(file)
        for piece in pieces:
            if b"\0" in piece.data[:8192] and not piece.path.startswith("/proc/"):
                unknown.append("%s (binary)" % piece.name)
                continue
            found = recognise_piece(piece)
            if found is None:
                if piece.data.strip():
                    between = len(pieces) > 1 and piece.name == file.name
                    unknown.append(piece.name + ": text between the outputs" if between else piece.name)
            else:
                self._add(piece, found, "%s\0%s" % (file.name, piece.machine))
        # A file of which something was recognised is known; its other parts are named, not counted against it.
        self.unrecognised += dict.fromkeys(unknown)

    def _add_bundle(self, file: sources.File) -> None:
        try:
            self._bundles.append(bundles.parse_bundle(file.data, file.name))
            self.recognised.append({"name": file.name, "what": "a bundle of capture.yml"})
        except bundles.BundleError as error:
            self.left_out.append((file.name, str(error)))

    def _add(self, piece: Piece, found: Recognised, file: str) -> None:
        self.recognised.append({"name": piece.name, "what": found.what})
        extra = found.extra
        if extra.get("of_the_node") or command_lines.name_program(piece.command) in (
            "qm",
            "pct",
            "pvesh",
            "pveversion",
        ):
            self._nodes.add(file)
        if found.subject:
            (self._parts if found.partial or piece.cut else self._whole).add(found.subject)
        if extra.get("date"):
            self._dates += _times(extra["date"])
        self._dates += _times(piece.text[:20_000] if found.subject == "gpus" else "")
        self._server.update({key: extra[key] for key in ("engine", "log", "api") if key in extra})
        for record in found.records:
            if extra.get("lspci"):
                self._listings.setdefault(file, []).append(str(record["stdout"]).encode("utf-8"))
            elif extra.get("guest"):
                self._guests.append({**extra, "record": record, "file": file})
            elif found.subject == "kernel_log" and found.partial and "run" in record:
                self._logs.append(str(record["stdout"]).encode("utf-8"))
            else:
                self._keep(record, found.rank, found.side, file, piece.name)

    def _keep(self, record: Record, rank: int, side: str, file: str, name: str = "") -> None:
        kind = next(word for word in ("read", "list", "run", "fetch") if word in record)
        key = (side, kind, *(record[kind] if isinstance(record[kind], list) else [record[kind]]))
        before = self._best.get(key)
        if before is not None and name and _said(before[1]) != _said(record):
            # Two of one kind: of another machine, of another time, or the same in other words.
            counts, other = (name, self._names[key]) if rank > before[0] else (self._names[key], name)
            if other != counts:
                self.left_out.append((other, "not counted: %s is taken for this output" % counts))
        if before is None or rank > before[0]:
            self._best[key] = (rank, record, side)
            self._of_file[key], self._names[key] = file, name

    def evidence(self) -> LooseEvidence:
        self._keep_logs()
        numbers = self._number_guests()
        own, node = self._sides()
        loose: dict[str, Any] = {
            "from": os.path.basename(os.path.normpath(self._path)),
            "recognised": self.recognised[:_SHOWN],
            "unrecognised": self.unrecognised[:_SHOWN],
            "left_out": [list(entry) for entry in self.left_out[:_SHOWN]],
            "partial": sorted(self._parts - self._whole),
            "guests": numbers,
            "hypervisor": None,
            "server": dict(self._server),
            "capture": bool(self._bundles),  # a whole capture is among the pieces
        }
        if node:
            loose["hypervisor"] = "of_guest" if own else "self"
        manifest = {
            "bundle": bundles.FORMAT,
            "host": loose["from"],
            "captured_at": max(self._dates, default=0.0),
            "tool": "loose",
            "loose": loose,
        }
        if self._bundles:
            manifest = {**self._bundles[0].manifest, "loose": loose}
        # A piece is named by its command, which may hold a password (`docker login -p X`).
        manifest = secrets.redact_strings(manifest)
        found = LooseEvidence(manifest, ())
        for record in node if not own else _below_hypervisor(node):
            found.add(record)
        for record in own:
            found.add(record)
        for bundle in self._bundles:  # the better evidence
            for record in bundle.records():
                found.add(record)
        if self._server.get("log"):
            _shorten_log(found)
        return found

    def _keep_logs(self) -> None:
        """Excerpts of the kernel log count together, where there is no whole one."""
        key = ("", "run", "dmesg")
        if self._logs and key not in self._best:
            text = b"\n".join(log.strip(b"\n") for log in dict.fromkeys(self._logs)) + b"\n"
            record = {
                "run": ["dmesg"],
                "status": "ok",
                "rc": 0,
                "stdout": text.decode("utf-8", "replace"),
                "seconds": 0.0,
            }
            self._keep(record, 0, "", "")

    def _number_guests(self) -> list[str]:
        """Give every guest configuration its path; one without a number gets one that no guest of Proxmox has."""
        taken = {guest["number"] for guest in self._guests}
        free = (str(number) for number in range(1, 100) if str(number) not in taken)
        numbers = []
        for guest in self._guests:
            number = guest["number"] or next(free)
            path = str(guest["record"]["read"]).replace("NUMBER", number)
            self._keep({**guest["record"], "read": path}, 0, of_guests.SIDE, guest["file"])
            numbers.append(number)
        return sorted(set(numbers))

    def _place(
        self, record: Record, file: str, *, own: list[Record], node: list[Record], both: set[str], of_the_node: bool
    ) -> None:
        if of_the_node or file in self._nodes:
            node.append(record)
        if not of_the_node and (file not in self._nodes or file in both):
            own.append(record)

    def _sides(self) -> tuple[list[Record], list[Record]]:
        """(records of this host, records of its Proxmox host); the first is empty where all is of the Proxmox host."""
        own: list[Record] = []
        node: list[Record] = []
        # A Proxmox host on which nvidia-smi answers is a GPU host, too: its containers use the cards, or it does.
        both = {
            self._of_file[key] for key, (_rank, record, _side) in self._best.items() if _of_a_gpu_host(record)
        } & self._nodes
        for key, (_rank, record, side) in self._best.items():
            self._place(record, self._of_file[key], own=own, node=node, both=both, of_the_node=bool(side))
        for file, listings in self._listings.items():
            text = of_pci.merge_listings(listings).decode("utf-8", "replace")
            record = {"run": list(of_pci.LISTING), "status": "ok", "rc": 0, "stdout": text}
            self._place(record, file, own=own, node=node, both=both, of_the_node=False)
        own = _one_listing(own)
        node = _one_listing(node)
        if node and not any(_of_a_gpu_host(record) for record in own) and not self._bundles:
            return [], [*own, *node]
        return own, node


def _said(record: Record) -> str:
    return str(record.get("text", record.get("stdout", record.get("status")))).strip()


def recognise_piece(piece: Piece) -> Recognised | None:
    """What `piece` is; None where nothing here knows it. No piece can make this raise."""
    for recogniser in RECOGNISERS if len(piece.data) <= split.SESSION_LIMIT else (of_logs, of_servers):
        try:
            found = recogniser.recognise_piece(piece)
        except (ValueError, IndexError, KeyError, AttributeError, TypeError, RecursionError, OverflowError):
            continue  # damaged in a way that this recogniser does not expect: then it is not its own
        if found is not None:
            return found
    return None


def _one_listing(records: list[Record]) -> list[Record]:
    """Listings of lspci from several files as one."""
    listings = [record for record in records if record.get("run") == list(of_pci.LISTING)]
    if len(listings) < 2:
        return records
    merged = of_pci.merge_listings([str(record["stdout"]).encode("utf-8") for record in listings]).decode(
        "utf-8", "replace"
    )
    return [record for record in records if record not in listings] + [{**listings[0], "stdout": merged}]


def _of_a_gpu_host(record: Record) -> bool:
    """Whether a record is of a machine that uses GPUs, and so not of a Proxmox host that only passes them on."""
    words = record.get("run") or [""]
    return (
        words[0] == "nvidia-smi"
        or "fetch" in record
        or record.get("read") == of_servers.LOG
        or str(record.get("read", "")).startswith("/measured/")
    )


def _below_hypervisor(records: Iterable[Record]) -> list[Record]:
    found = []
    for record in records:
        if "read" in record:
            found.append({**record, "read": HYPERVISOR + record["read"]})
        elif "run" in record:
            found.append({**record, "run": [HYPERVISOR, *record["run"]]})
    return found


def _shorten_log(evidence: LooseEvidence) -> None:
    """The beginning, which holds the start, and the end of a long log: a reader takes no more."""
    text = evidence.read(of_servers.LOG, 1 << 30).text
    if len(text) > SERVER_LOG_LIMIT:
        head, tail = text[: SERVER_LOG_LIMIT // 3], text[-2 * SERVER_LOG_LIMIT // 3 :]
        evidence.add(
            {"read": of_servers.LOG, "status": "ok", "text": head.rpartition("\n")[0] + "\n" + tail.partition("\n")[2]}
        )


_FORMS = ("%a %b %d %H:%M:%S %Y", "%a %b %d %H:%M:%S %Z %Y", "%a %b %d %I:%M:%S %p %Z %Y")


def _times(text: str) -> list[float]:
    """Seconds since 1970 of the first date in `text`, taken as UTC: an hour more or less decides nothing here."""
    for match in re.finditer(
        r"[A-Z][a-z]{2} [A-Z][a-z]{2} {1,2}\d{1,2} [\d:]{7,8}(?: [AP]M)?(?: \S{1,6})? \d{4}", text
    ):
        words = re.sub(r" (?:[A-Z]{3,5}|[+-]\d{2,4})(?= \d{4}$)", "", match.group(0))
        for form in (_FORMS[0], "%a %b %d %I:%M:%S %p %Y"):
            try:
                parsed = time.strptime(re.sub(" +", " ", words), form)
            except ValueError:
                continue
            return [calendar.timegm(parsed)]
    return []
