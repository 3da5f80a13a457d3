"""Downloads a model into the cache of the hub, and prints how far it is.

It runs in the engine's own Python, as the server's user, in a sandbox as its unit has. What downloads is
huggingface_hub's snapshot_download; it skips files that are whole. A connection that breaks goes on by a Range request
inside of one run, in every version; a run after this one goes on inside of a file with versions up to 1.17, and begins
a file that was cut off anew from 1.18 on. With --own it needs no huggingface_hub: the package gpu_provision beside it
(module_utils/gpu_provision of this project) downloads, and goes on inside of a file in every case.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import threading
import time

# Of blobs/ETAG.RANDOM.incomplete, which no run continues: a run that was killed left it.
LEFT_BEHIND = re.compile(r".*\.[0-9a-f]{8}\.incomplete\Z")
WAITS = (5, 10, 20, 40, 60)
# Answers that another try does not change.
FINAL = ("RepositoryNotFoundError", "GatedRepoError", "RevisionNotFoundError", "DisabledRepoError", "BadRequestError")
# The same as our own client names them (gpu_provision/hub_client.py).
FINAL_KINDS = ("gated", "unauthorized", "not_found", "no_revision")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repository", required=True)
    parser.add_argument("--revision", required=True)
    parser.add_argument("--cache", required=True)
    parser.add_argument("--left-out", action="append", default=[])
    parser.add_argument("--files", type=int, required=True)
    parser.add_argument("--present-files", type=int, required=True)
    parser.add_argument("--total-bytes", type=int, required=True)
    parser.add_argument("--present-bytes", type=int, required=True)
    parser.add_argument("--program", help="hf or huggingface-cli, where this Python has no huggingface_hub")
    parser.add_argument("--own", action="store_true", help="by the package beside this file")
    parser.add_argument("--interval", type=float, default=2.0)
    parser.add_argument("--patience", type=float, default=900.0, help="seconds without a new byte until it gives up")
    return parser.parse_args()


def measure(blobs: str) -> tuple[int, int]:
    """(bytes, whole files). Blocks count where they are fewer: a file may be made as long as it will be."""
    size = whole = 0
    try:
        entries = list(os.scandir(blobs))
    except OSError:
        return 0, 0
    for entry in entries:
        try:
            found = entry.stat()
        except OSError:
            continue  # renamed meanwhile
        partial = entry.name.endswith(".incomplete")
        size += min(found.st_size, found.st_blocks * 512) if partial else found.st_size
        whole += not partial
    return size, whole


class Progress(threading.Thread):
    """Prints a line every few seconds; `moved_at`: when the last byte came."""

    def __init__(self, options: argparse.Namespace, blobs: str) -> None:
        super().__init__(daemon=True)
        self.options, self.blobs = options, blobs
        self.before = measure(blobs)
        self.began = self.moved_at = time.monotonic()
        self.seen = self.before[0]

    def run(self) -> None:
        while True:
            time.sleep(self.options.interval)
            self.show()

    def show(self) -> None:
        size, whole = measure(self.blobs)
        if size != self.seen:
            self.moved_at, self.seen = time.monotonic(), size
        done = self.options.present_bytes + max(0, size - self.before[0])
        files = min(self.options.files, self.options.present_files + max(0, whole - self.before[1]))
        came = max(0, size - self.before[0])
        speed = came / max(0.001, time.monotonic() - self.began)
        total = self.options.total_bytes  # 0 where the hub lists no sizes
        left = max(0, total - done) if came > total / 100 else 0
        line = format_bytes(done)
        if total:
            line = "%s of %s (%d %%)" % (
                format_bytes(min(done, total)),
                format_bytes(total),
                min(100, 100 * done // total),
            )
        line += ", %d of %d files, %s/s" % (files, self.options.files, format_bytes(speed))
        print(line + (", %s left" % format_seconds(left / speed) if speed and left else ""), flush=True)


def format_bytes(number: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return "%.1f %s" % (number / size, unit)
    return "%d bytes" % number


def format_seconds(seconds: float) -> str:
    if seconds < 90:
        return "%d s" % seconds
    return "%d min" % (seconds / 60) if seconds < 5400 else "%.1f h" % (seconds / 3600)


def remove_what_was_left(blobs: str) -> None:
    try:
        names = os.listdir(blobs)
    except OSError:
        return
    for name in names:
        if LEFT_BEHIND.match(name):
            os.unlink(os.path.join(blobs, name))


def download(options: argparse.Namespace) -> None:
    if options.own:
        from gpu_provision import hub_client, hub_download  # noqa: PLC0415  it was brought to lie beside this file

        hub_download.download_repository(
            options.repository, options.revision, options.cache, options.left_out, hub_client.Hub(dict(os.environ))
        )
        return
    if options.program:
        words = [options.program, "download", options.repository, "--revision", options.revision]
        words += ["--cache-dir", options.cache]
        words += ["--exclude", *options.left_out] if options.left_out else []
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        return
    from huggingface_hub import snapshot_download  # noqa: PLC0415  where a program does it, this Python has none

    snapshot_download(
        options.repository, revision=options.revision, cache_dir=options.cache, ignore_patterns=options.left_out or None
    )


def is_final(error: BaseException) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    code = getattr(getattr(error, "response", None), "status_code", None)
    return (
        bool(names & {*FINAL, "PermissionError", "ImportError", "TypeError"})
        or getattr(error, "kind", "") in FINAL_KINDS
        or code in (400, 401, 403, 404)
        or getattr(error, "errno", None) in (28, 30, 122)  # ENOSPC, EROFS, EDQUOT
    )


def describe(error: BaseException) -> str:
    if type(error).__name__ == "LocalEntryNotFoundError" and error.__cause__ is not None:
        error = error.__cause__  # what kept it from asking the hub says more than that the cache lacks it
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "%s: %s" % (type(error).__name__, " ".join(lines)[:400] or "no more is said")


def main() -> int:
    options = parse_arguments()
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    blobs = os.path.join(options.cache, "models--" + options.repository.replace("/", "--"), "blobs")
    remove_what_was_left(blobs)
    progress = Progress(options, blobs)
    progress.start()
    for number in range(1000):
        try:
            download(options)
            break
        except Exception as error:
            progress.show()
            quiet = time.monotonic() - progress.moved_at
            if is_final(error) or quiet > options.patience:
                print("ERROR: %s" % describe(error), flush=True)
                return 1
            wait = WAITS[min(number, len(WAITS) - 1)]
            print("broken off, goes on in %d s: %s" % (wait, describe(error)), flush=True)
            time.sleep(wait)
    progress.show()
    return 0


if __name__ == "__main__":
    sys.exit(main())
