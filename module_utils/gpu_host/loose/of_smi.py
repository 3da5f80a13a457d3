"""What nvidia-smi printed: the table, -q, -q -x, --query-gpu, -L, topo and nvlink."""

from __future__ import annotations

import re

from ..smi import log_text, log_xml, nvlink, plain_table, query_csv, topo_matrix
from ..smi.topo_matrix import Matrix
from . import command_lines
from .piece import Piece, Recognised, run_record

# As gpus.py, p2p.py and topology.py ask for them.
XML = ("nvidia-smi", "-q", "-x")
TEXT = ("nvidia-smi", "-q")
TABLE = ("nvidia-smi",)
LIST = ("nvidia-smi", "-L")
INDEX = (
    "nvidia-smi",
    "--query-gpu=index,pci.bus_id,uuid,name,driver_version,memory.total,memory.used,utilization.gpu",
    "--format=csv",
)
MATRIX = ("nvidia-smi", "topo", "-m")
NVLINK = ("nvidia-smi", "nvlink", "-s")
CAPABILITIES = {"r": "read", "w": "write", "n": "nvlink", "a": "atomics", "p": "pcie"}
_STATUSES = frozenset(("OK", "CNS", "GNS", "TNS", "DR", "NS", "U"))
_PATHS = re.compile(r"NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|SOC|PSB")
# `nvidia-smi -q` from which somebody cut the first line.
_HEADLESS_LOG = re.compile(r"^Attached GPUs {1,60}: \d{1,3}\s*^GPU [0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:", re.M)
_LINKS = re.compile(r"^\s*Link \d{1,3}: (?:\d|<?inactive)|^\s*nvlink quer|nvlink information", re.M | re.I)
# (what nvidia-smi says where it fails, its exit code where that is known)
_FAILURES = (
    ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver", 9),
    ("Failed to initialize NVML: Driver/library version mismatch", 18),
    ("Failed to initialize NVML: Insufficient Permissions", 4),
    ("Failed to initialize NVML", None),
)
_NAMED_CAPABILITY = re.compile(
    r"p2p[-_ .]{0,3}(?:status)?[-_ "
    r".=]{0,3}(?:(?P<letter>[rwnap])(?![a-z])|(?P<word>read|write|nvlink|atomic|pcie|prop))",
    re.I,
)


def recognise_piece(piece: Piece) -> Recognised | None:
    text = piece.text
    for look in (_log, _table, _failure, _nvlink, _matrix, _csv):
        found = look(piece, text)
        if found is not None:
            return found
    return None


def _log(piece: Piece, text: str) -> Recognised | None:
    filtered = command_lines.is_filtered(piece.command)
    if "<nvidia_smi_log" in text and log_xml.parse_log_xml(piece.data) is not None:
        return Recognised("nvidia-smi -q -x", (run_record(XML, piece.data),), "gpus", filtered, len(piece.data))
    if "NVSMI LOG" not in text and not _HEADLESS_LOG.search(text):
        return None
    if "Attached GPUs" not in text and "Attached Units" in text:
        return Recognised("nvidia-smi -q -u (units: nothing is read from it)")
    if log_text.parse_log_text(piece.data) is None:
        return None
    part = re.search(r"(?:^|\s)-d\s+\S", piece.command)
    what = "nvidia-smi -q%s" % (" (a part of it, -d)" if part else "")
    return Recognised(what, (run_record(TEXT, piece.data),), "gpus", bool(part) or filtered, len(piece.data))


def _table(piece: Piece, text: str) -> Recognised | None:
    if not re.search(r"^\s*\|\s*NVIDIA-SMI \d", text, re.M) or plain_table.parse_plain_table(piece.data) is None:
        return None
    return Recognised("nvidia-smi (the table)", (run_record(TABLE, piece.data),), "gpus", False, len(piece.data))


def _failure(piece: Piece, text: str) -> Recognised | None:
    said = text.strip()
    if len(said) > 4000 or "nvidia-smi" not in (piece.command or "nvidia-smi"):
        return None
    if re.search(r"^\s*No devices were found", said, re.M):
        return Recognised("nvidia-smi: no devices were found", (run_record(TABLE, piece.data, 6),), "gpus")
    for words, code in _FAILURES:
        if re.search("^" + re.escape(words), said, re.M):
            record = {**run_record(XML, piece.data), "rc": code}
            return Recognised("nvidia-smi, which failed", (record,), "gpus")
    if re.search(
        r"^(?:\S{1,20}: )?(?:line \d+: )?(?:nvidia-smi: command not found|Command 'nvidia-smi' not found|nvidia-smi: "
        r"not found)",
        said,
        re.M,
    ):
        record = {"run": list(XML), "status": "absent", "reason": "no program nvidia-smi on the search path"}
        return Recognised("nvidia-smi, which is not installed", (record,), "gpus")
    return None


def _nvlink(piece: Piece, text: str) -> Recognised | None:
    if not re.search(r"^GPU \d{1,3}: ", text, re.M):
        return None
    if _LINKS.search(text) and nvlink.parse_nvlink(piece.data):
        partial = command_lines.is_filtered(piece.command)
        return Recognised("nvidia-smi nvlink -s", (run_record(NVLINK, piece.data),), "topology", partial)
    if re.search(r"^GPU \d{1,3}: .{1,120}\(UUID: ", text, re.M) and "Link" not in text:
        return Recognised("nvidia-smi -L", (run_record(LIST, piece.data),))
    return None


def _matrix(piece: Piece, text: str) -> Recognised | None:
    matrix = topo_matrix.parse_matrix(piece.data)
    if matrix is None or not matrix.rows:
        return None
    kind = _kind_of(matrix)
    command = piece.command if "topo" in piece.command else ""
    if kind is None:
        kind = "p2p" if "p2p" in command + piece.name else "topo" if matrix.headings or command else None
    if kind == "p2p":
        return _p2p(piece)
    if kind is None:
        return None
    mp = ("NV#" not in text and "Legend" in text) or re.search(
        r"topo[-_ ]{1,2}mp\b|--matrix_pci", command or piece.name
    )
    what = "nvidia-smi topo -mp (PCI Express only: it says nothing of NVLink)" if mp else "nvidia-smi topo -m"
    records = (run_record(MATRIX, piece.data),)
    return Recognised(what, records, "topology", command_lines.is_filtered(piece.command), 0 if mp else 1)


def _kind_of(matrix: Matrix) -> str | None:
    seen: set[str] = set()
    for label, cells in matrix.rows.items():
        if label.startswith("GPU"):
            seen.update(
                cell for column, cell in zip(matrix.columns, cells) if column.startswith("GPU") and column != label
            )
    if seen & _STATUSES:
        return "p2p"
    return "topo" if any(_PATHS.fullmatch(cell) for cell in seen) else None


def _p2p(piece: Piece) -> Recognised:
    said = command_lines.find_option(piece.command, "-p2p", "--p2pstatus") or ""
    letter, assumed = said[:1], ""
    if letter not in CAPABILITIES:
        named = _NAMED_CAPABILITY.search(piece.name)
        letter = (named["letter"] or named["word"][0]).lower() if named else ""
    if letter not in CAPABILITIES:
        letter, assumed = (
            "r",
            ": taken for reads, as neither its name nor a command line says which capability it shows",
        )
    what = "nvidia-smi topo -p2p %s%s" % (letter, assumed)
    rank = 0 if assumed else 1
    return Recognised(what, (run_record(("nvidia-smi", "topo", "-p2p", letter), piece.data),), "p2p", False, rank)


def _csv(piece: Piece, text: str) -> Recognised | None:
    columns = command_lines.find_option(piece.command, "--query-gpu", "-query-gpu")
    data = piece.data
    if columns and not re.match(r"\s*%s\b" % re.escape(columns.split(",")[0]), text):
        data = columns.replace(",", ", ").encode("utf-8") + b"\n" + data.lstrip()
    lines = data.decode("utf-8", "replace").lstrip().split("\n")
    head = lines[0]
    if re.fullmatch(r"(?:NVIDIA|Tesla|Quadro) [^,\n]{2,60}(?:, [^,\n]{1,40}){2,20}", head.strip()):
        return Recognised("a row of nvidia-smi --query-gpu without its heading: nothing tells its columns apart")
    if head.count(",") < 1 or not re.search(r"\b(?:pci\.bus_id|uuid|index|name|driver_version|memory\.total)\b", head):
        return None
    if "pci.bus_id" in head and query_csv.parse_devices(data):
        rank = head.count(",")
        return Recognised("nvidia-smi --query-gpu", (run_record(INDEX, data.lstrip()),), "gpus", False, rank)
    known = re.findall(
        r"\b(?:memory\.\w+|driver_version|utilization\.\w+|pcie\.link\.[\w.]+|temperature\.gpu|power\.\w+)\b", head
    )
    if len(known) > 1 or columns:
        return Recognised("nvidia-smi --query-gpu without pci.bus_id: nothing tells its rows apart")
    return None
