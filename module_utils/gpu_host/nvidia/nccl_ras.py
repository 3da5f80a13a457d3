"""What a running NCCL job says of itself: RAS, the service of NCCL 2.24 and newer on a local port (28028 by default).

The exchange is text over TCP (NCCL src/ras/client.cc): greeting, limit, "VERBOSE STATUS", and the answer until the
connection ends (docs, troubleshooting/ras.rst). The answer is asked for in its form for people, which every version
has: the JSON of 2.28.9 could not be read while a rank was stopped.
"""

from __future__ import annotations

import re
import socket
import time
from typing import Any

from ..evidence import values

PORT = 28028
VARIABLE = "NCCL_RAS_ADDR"
LIMIT_S = 12.0  # NCCL's own client waits 5 s for the job and 1 s for the connection
JOB_LIMIT_S = 3
MOST_BYTES = 4 << 20
MOST_RANKS = 1 << 16


def read_address(setting: str | None) -> tuple[str, int]:
    """Of NCCL_RAS_ADDR: `host:port`, `[address]:port`, `:port`; localhost:28028 where it is unset or no address."""
    match = re.fullmatch(r"(?P<host>\[[^\]]+\]|[^:]*):(?P<port>\d{1,5})", (setting or "").strip())
    if not match or not 0 < values.number_in_name(match["port"]) < 65536:
        return "localhost", PORT
    host = match["host"].strip("[]")
    return ("localhost" if re.fullmatch(r"[0.:]*", host) else host), values.number_in_name(match["port"])


def format_address(host: str, port: int) -> str:
    return ("[%s]:%d" if ":" in host else "%s:%d") % (host, port)


def ask_status(host: str, port: int, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """The job's own report: ``{address, status: ok | absent | failed, text, reason}``, in bounded time and size.

    absent: nobody listens there.
    """
    ends = time.monotonic() + limit_s
    result: dict[str, Any] = {"address": format_address(host, port), "status": "failed", "text": None, "reason": None}
    try:
        with socket.create_connection((host, port), timeout=min(3.0, limit_s)) as connection:
            said = _exchange(connection, b"CLIENT PROTOCOL 2\n", ends)
            if not said.upper().startswith(b"SERVER PROTOCOL"):
                return {**result, "reason": "what listens there is not NCCL's RAS"}
            _exchange(connection, b"TIMEOUT %d\n" % JOB_LIMIT_S, ends)
            connection.sendall(b"VERBOSE STATUS\n")
            data = _read(connection, ends, until_newline=False)
    except ConnectionRefusedError:
        return {**result, "status": "absent", "reason": "nobody listens there"}
    except OSError as error:
        return {**result, "reason": error.strerror or str(error) or "no answer within %g s" % limit_s}
    if len(data) >= MOST_BYTES:
        return {**result, "reason": "the answer has more than %d bytes" % MOST_BYTES}
    return {**result, "status": "ok" if data else "failed", "text": data.decode("utf-8", "replace") or None,
            "reason": None if data else "the connection ended without an answer"}  # fmt: skip


def _exchange(connection: socket.socket, request: bytes, ends: float) -> bytes:
    connection.sendall(request)
    return _read(connection, ends, until_newline=True)


def _read(connection: socket.socket, ends: float, until_newline: bool) -> bytes:
    data = b""
    while len(data) < MOST_BYTES:
        left = ends - time.monotonic()
        if left <= 0:
            raise socket.timeout("no end of the answer in time")
        connection.settimeout(left)
        # A single byte of a line: what follows it belongs to the next answer.
        piece = connection.recv(1 if until_newline else 1 << 16)
        data += piece
        if not piece or (until_newline and piece == b"\n"):
            break
    return data


def summarise_status(answer: dict[str, Any] | None) -> dict[str, Any]:
    """What `ask_status` brought: ``{answered, reason, nccl, communicators, ranks, late_ranks, late, missing_ranks,
    missing, errors, counts}``.

    `late`: a sentence for each rank that has launched fewer operations than another of its communicator, `missing` for
    each that gave no answer, `errors` of ranks that report one. `counts`: by communicator, what each of its ranks
    launched last, to compare with a second answer. Lists are None where there is no answer that can be read.
    """
    result: dict[str, Any] = dict.fromkeys(
        ("reason", "nccl", "communicators", "ranks", "late_ranks", "late", "missing_ranks", "missing", "errors")
    )
    result.update(answered=False, counts={}, reason=(answer or {}).get("reason"))
    text = (answer or {}).get("text")
    if not isinstance(text, str):
        return (
            {**result, "late_ranks": [], "late": [], "missing_ranks": [], "missing": [], "errors": []}
            if (answer or {}).get("status") == "absent"
            else {**result, "late_ranks": []}
        )
    found = _read_text(text)
    if found is None:
        return {**result, "late_ranks": [], "reason": "the answer is not one that NCCL's RAS gives"}
    for name in ("late_ranks", "missing_ranks"):
        found[name] = sorted(set(found[name]))
    return {**result, "answered": True, "reason": None, **found}


def find_odd_lines(text: str) -> list[str]:
    """The lines of the table of communicators that are none: below its heading, up to the next section."""
    table = text.partition("Communicators...")[2].partition("\nErrors\n")[0].splitlines()
    begins = next((at + 1 for at, line in enumerate(table) if line.split()[:1] == ["#"]), len(table))
    return [line for line in table[begins:] if line.strip() and not _GROUP.match(line)]


def _nothing_yet() -> dict[str, Any]:
    return {
        "nccl": None, "communicators": None, "ranks": None, "late_ranks": [], "late": [], "missing_ranks": [],
        "missing": [], "errors": [], "counts": {},
    }  # fmt: skip


_VERSION = re.compile(r"^NCCL version (\S+)", re.MULTILINE)
_GROUP = re.compile(r"^\s*(\d+)\s+(\d+)\s+(\d+)\s+(\S+)\s+(\S+)\s+(\d+)\s+([A-Z]+)\s+([A-Z,]+)\s*$")
_HEADING = re.compile(r"^#(\d+)-(\d+) \(([0-9a-f]+)\) (\w+)")
_DIFFERENT = re.compile(r"ranks have different (?:(\w+) operation|collective operation|operation) counts")
_MANY = re.compile(r"^\s*(\d+) ranks have (?:launched up to operation (\d+)|not launched any operations)")
_RANK = re.compile(
    r"^\s*Rank (\d+)(?: has (?:launched up to operation (\d+)|(not launched any operations)))? -- "
    r"(?:GPUs? (\d+(?: \(NVML \d+\))?) managed by process (\d+)|\[process)"
)
_MISSING = re.compile(r"^\s*The missing ranks?: ([\d, ]+)")
_PROCESS = re.compile(r"^\s*Process (\d+) on node (\S+) managing GPUs? ([\d,]+(?: \(NVML [\d,]+\))?)")


def _read_text(text: str) -> dict[str, Any] | None:
    return _TextReader(text).found if "Communicators..." in text else None


class _TextReader:
    """The answer for people. Ranks that launched fewer operations stand in groups; of the smaller groups RAS lists the
    members."""

    def __init__(self, text: str) -> None:
        self.found = _nothing_yet()
        version = _VERSION.search(text)
        self.found["nccl"] = version[1] if version else None
        self._sizes: dict[str, int] = {}  # ranks of a communicator, by group
        self._section = self._heading = self._operation = ""
        self._launched: list[dict[str, Any]] = []  # {many, count, members} of the part that is read
        communicators = []
        for line in text.splitlines():
            group = _GROUP.match(line)
            if group:
                size = max(map(values.number_in_name, re.findall(r"\d+", group[5])), default=0)
                self._sizes[group[1]] = size
                communicators.append(values.number_in_name(group[2]) if size else 0)
            else:
                self._read_line(line)
        self._end_part()
        if communicators:
            self.found.update(communicators=sum(communicators), ranks=max(self._sizes.values()))

    def _read_line(self, line: str) -> None:
        heading, different = _HEADING.match(line), _DIFFERENT.search(line)
        if line.strip() in ("Errors", "Warnings", "INCOMPLETE", "DEAD", "TIMEOUT"):
            self._section = line.strip()
        elif heading:
            self._end_part()
            self._heading, self._section = "%s-%s" % (heading[1], heading[2]), heading[4]
            self._operation = ""
        elif different:
            self._end_part()
            self._operation = different[1] or "operation"
        elif self._operation:
            self._read_ranks(line)
        elif self._section == "ERROR" and ("rror" in line or "reported" in line) and line.startswith("  "):
            self.found["errors"].append(line.strip())
        else:
            self._read_missing(line)

    def _read_ranks(self, line: str) -> None:
        many, rank = _MANY.match(line), _RANK.match(line)
        if many:
            self._launched.append(
                {"many": values.number_in_name(many[1]), "count": values.number_in_name(many[2] or "0"), "members": []}
            )
        elif rank:
            if rank[2] or rank[3]:
                self._launched.append({"many": 1, "count": values.number_in_name(rank[2] or "0"), "members": []})
            if self._launched:
                who = "rank %s (GPU %s, process %s)" % (rank[1], rank[4] or "?", rank[5] or "?")
                self._launched[-1]["members"].append((values.number_in_name(rank[1]), who))

    def _read_missing(self, line: str) -> None:
        ranks, process, rank = _MISSING.match(line), _PROCESS.match(line), _RANK.match(line)
        if rank and rank[5] and self._section == "INCOMPLETE":  # of others 2.28.9 tells numbers that mean nothing
            self.found["missing_ranks"].append(values.number_in_name(rank[1]))
            self.found["missing"].append("rank %s (GPU %s, process %s) does not answer" % (rank[1], rank[4], rank[5]))
        elif ranks:
            numbers = [values.number_in_name(word) for word in re.findall(r"\d+", ranks[1])]
            self.found["missing_ranks"] += numbers
            self.found["missing"] += ["rank %d does not answer" % rank for rank in numbers]
        elif process and self._section in ("INCOMPLETE", "DEAD"):
            how = "is considered dead" if self._section == "DEAD" else "does not answer"
            self.found["missing"].append("process %s on %s (GPU %s) %s" % (process[1], process[2], process[3], how))

    def _end_part(self) -> None:
        """Judge the groups of one operation of one communicator."""
        groups, self._launched = self._launched, []
        if not groups:
            return
        most = max(group["count"] for group in groups)
        named = {rank for group in groups for rank, _ in group["members"]}
        for group in groups:
            if group["count"] >= most:
                continue
            members = group["members"]
            if not members:  # the ranks that are ahead were listed as the outliers
                size = self._sizes.get(self._heading.partition("-")[0], 0)
                size = size if size <= MOST_RANKS else 0
                members = [(rank, "rank %d" % rank) for rank in range(size) if rank not in named]
                members = members if len(members) == group["many"] else []
            launched = "launched %s %d of %d" % (self._operation, group["count"], most)
            self.found["late_ranks"] += [rank for rank, _ in members]
            self.found["late"] += ["%s has %s" % (who, launched) for _, who in members]
            if not members:
                self.found["late"].append("%d ranks have %s" % (group["many"], launched))
        self.found["counts"]["#%s %s" % (self._heading, self._operation)] = [
            [group["many"], group["count"]] for group in groups
        ]
