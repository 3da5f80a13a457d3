"""The files of the history: one per run, the last so many, each there whole or not at all.

They belong to the directory of the reports, and nothing else knows of them: the folder may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from typing import Any

from .. import files
from . import record

_NAME = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{8}\.json\.gz")
_UNFINISHED = re.compile(r"\.\d{8}T\d{6}Z-[0-9a-f]{8}\.json\.gz\..*")
_UNFINISHED_S = 3600.0  # seconds after which what a killed run was writing is removed
_LARGEST = 512 * 1024 * 1024  # bytes of one file


def write_run(directory: str, report: dict[str, Any], rendered: str) -> str:
    """Write the file of a run; `rendered`: the path of its report.json. Its name; OSError where it cannot be done."""
    digits = re.sub(r"\D", "", str(report["run"].get("started_at")))[:14].ljust(14, "0")
    # Of runs that began within one second, the one that is written first sorts first.
    name = "%sT%sZ-%08x.json.gz" % (digits[:8], digits[8:], time.time_ns() // 1000 % 2**32)
    data = record.encode_record(record.make_summary(report), record.pack_report(rendered))
    files.write_file(os.path.join(directory, name), data)
    return name


def list_runs(directory: str) -> list[str]:
    """The names of the files, the oldest run first. OSError where the folder cannot be read."""
    return sorted(name for name in os.listdir(directory) if _NAME.fullmatch(name))


def remove_old_runs(directory: str, kept: int, newest: str) -> None:
    """Remove all but the last `kept` runs. `newest` stays even where a clock that was set back makes it the oldest."""
    names = [name for name in list_runs(directory) if name != newest]
    for name in names[: max(len(names) - (kept - 1), 0)]:
        with contextlib.suppress(FileNotFoundError):  # another run removed it
            os.unlink(os.path.join(directory, name))
    for name in filter(_UNFINISHED.fullmatch, os.listdir(directory)):
        path = os.path.join(directory, name)
        with contextlib.suppress(FileNotFoundError):
            if time.time() - os.lstat(path).st_mtime > _UNFINISHED_S:
                os.unlink(path)


def read_runs(directory: str) -> Iterator[tuple[str, dict[str, Any] | None, str]]:
    """(file name, summary, what is wrong with the file) of each run, the oldest first, one at a time."""
    for name in list_runs(directory):
        try:
            with open(os.path.join(directory, name), "rb") as handle:
                data = handle.read(_LARGEST)
            yield name, record.decode_summary(data), ""
        except FileNotFoundError:  # another run removed it meanwhile
            continue
        except OSError as error:
            yield name, None, error.strerror or str(error)
        except record.RecordError as error:
            yield name, None, str(error)
