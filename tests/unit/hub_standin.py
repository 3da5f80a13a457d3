"""A hub on this machine: the API of huggingface.co as far as huggingface_hub 0.36 to 2.4 and our own client use it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def make_shard(size: int, seed: int = 1) -> bytes:
    """A .safetensors file with one tensor of `size` bytes."""
    header = json.dumps({"w%d" % seed: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    content = bytes((seed + number) % 251 for number in range(256)) * (size // 256)
    return struct.pack("<Q", len(header)) + header + content


def make_model(shards: int = 3, size: int = 1 << 20) -> dict[str, bytes]:
    """A model in shards, with its index, and with the same weights in a format that is not wanted."""
    names = ["model-%05d-of-%05d.safetensors" % (number + 1, shards) for number in range(shards)]
    weights = {"w%d" % number: name for number, name in enumerate(names)}
    index = {"metadata": {"total_size": shards * size}, "weight_map": weights}
    files = {name: make_shard(size, at) for at, name in enumerate(names)}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    files["config.json"] = b'{"model_type": "glm_moe_dsa"}'
    files["original/consolidated.00.pth"] = b"x" * 1000
    return files


@dataclass
class Hub:
    """What it holds and how it answers. `requests`: (method, path, Range) of each."""

    repositories: dict[str, dict[str, bytes]]
    address: str = ""
    token: str | None = None  # one that may read everything; None: everybody may
    gated: bool = False  # it lists files to everybody
    refusal: tuple[int, dict[str, str]] | None = None  # of everything
    cut: dict[str, int] = field(default_factory=dict)  # file -> bytes after which its next answer breaks off
    bytes_per_s: dict[str, float] = field(default_factory=dict)  # of a file; without one: no limit
    sizes: bool = True  # whether its lists hold them
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)

    def count_files(self) -> dict[str, int]:
        """How often the content of each file was asked for from its beginning."""
        found: dict[str, int] = {}
        for method, path, begins in self.requests:
            if method == "GET" and "/resolve/" in path and not begins:
                found[path.rpartition("/")[2]] = found.get(path.rpartition("/")[2], 0) + 1
        return found


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, form: str, *words: Any) -> None:
        pass

    def _answer(self, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, code: int, kind: str, text: str = "") -> None:
        self._answer(code, b"{}", {"X-Error-Code": kind, "X-Error-Message": text or kind})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub = self.hub
        hub.requests.append((self.command, self.path, self.headers.get("Range")))
        given = (self.headers.get("Authorization") or "").replace("Bearer ", "") or None
        path = self.path.partition("?")[0]
        listing = path.startswith("/api/models/")
        words = path.replace("/api/models/", "/").strip("/").split("/")
        name, rest = "/".join(words[:2]), words[2:]
        if hub.refusal:
            self._answer(hub.refusal[0], b"{}", hub.refusal[1])
        elif hub.token and given and given != hub.token:
            self._refuse(401, "", "Invalid credentials in Authorization header")
        elif name not in hub.repositories:
            self._refuse(404 if given else 401, "RepoNotFound")
        elif hub.token and not given and hub.gated and not listing:
            self._refuse(401, "GatedRepo", "Access to model %s is restricted" % name)
        elif hub.token and not given and not hub.gated:
            self._refuse(401, "RepoNotFound")
        elif len(rest) > 1 and rest[1] not in ("main", COMMIT):
            self._refuse(404, "RevisionNotFound")
        elif listing:
            self._list(hub.repositories[name], name, tree=rest[0] == "tree")
        else:
            self._give(hub.repositories[name], "/".join(rest[2:]))

    def _list(self, files: dict[str, bytes], name: str, tree: bool) -> None:
        entries = []
        for path, content in sorted(files.items()):
            large = len(content) > 1000
            digest = hashlib.sha256(content).hexdigest()
            stored = {"sha256": digest, "oid": digest, "size": len(content), "pointerSize": 134} if large else None
            blob = hashlib.sha1(content).hexdigest()
            if not self.hub.sizes:
                entries.append({"rfilename": path})
                continue
            one: dict[str, Any] = {"rfilename": path, "blobId": blob, "size": len(content)}
            if tree:
                one = {"type": "file", "oid": blob, "path": path, "size": len(content)}
            entries.append({**one, "lfs": stored} if stored else one)
        body: Any = {"id": name, "modelId": name, "sha": COMMIT, "private": False, "tags": [], "siblings": entries}
        self._answer(200, json.dumps(entries if tree else body).encode(), {"Content-Type": "application/json"})

    def _give(self, files: dict[str, bytes], path: str) -> None:
        content = files.get(path)
        if content is None:
            self._refuse(404, "EntryNotFound")
            return
        large = len(content) > 1000
        etag = (hashlib.sha256(content) if large else hashlib.sha1(content)).hexdigest()
        headers = {"ETag": '"%s"' % etag, "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if large:
            headers.update({"X-Linked-Etag": '"%s"' % etag, "X-Linked-Size": str(len(content))})
        begins = self.headers.get("Range")
        first = int(begins.partition("=")[2].partition("-")[0]) if begins else 0
        if begins:
            headers["Content-Range"] = "bytes %d-%d/%d" % (first, len(content) - 1, len(content))
        self.send_response(206 if begins else 200)
        for name, value in {**headers, "Content-Length": str(len(content) - first)}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        cut = self.hub.cut.pop(path, None)
        wanted = content[first:] if cut is None else content[first : first + cut]
        step = int(self.hub.bytes_per_s.get(path, 0) / 20) or len(wanted) or 1
        with contextlib.suppress(ConnectionError):  # who asked may have been killed
            for at in range(0, len(wanted), step):
                self.wfile.write(wanted[at : at + step])
                time.sleep(0.05 if step < len(wanted) else 0)
        self.close_connection = self.close_connection or cut is not None


@contextlib.contextmanager
def running(hub: Hub, host: str = "127.0.0.1", port: int = 0) -> Iterator[Hub]:
    """`hub` behind an address of its own."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer((host, port), handler)
    server.daemon_threads = True
    hub.address = "http://%s:%d" % (host, server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


if __name__ == "__main__":  # hub_standin.py MODEL PORT, until it is ended
    with running(Hub({sys.argv[1]: make_model()}), port=int(sys.argv[2])):
        threading.Event().wait()
