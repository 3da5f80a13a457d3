"""Templates as Jinja compiled them, kept for the runs to come: to compile those of the pages takes 0.4 s."""

from __future__ import annotations

import io
import os

import jinja2
from jinja2.bccache import Bucket

from ..gpu_checks import kept_files

KEPT = os.path.join(kept_files.DIRECTORY, "templates")
_KEPT_FILES = 64


class KeptTemplates(jinja2.BytecodeCache):
    """Jinja's own cache of compiled templates, which looks at the content of the template, in files of ours.

    `settings` name what else the code depends on: of the environment.
    """

    def __init__(self, settings: str) -> None:
        self._settings = "%s %s" % (jinja2.__version__, settings)

    def get_cache_key(self, name: str, filename: str | None = None) -> str:
        return super().get_cache_key("%s %s" % (self._settings, name), filename)

    def load_bytecode(self, bucket: Bucket) -> None:
        kept = kept_files.read_kept(self._path(bucket))
        if kept is not None:
            bucket.load_bytecode(io.BytesIO(kept))

    def dump_bytecode(self, bucket: Bucket) -> None:
        kept_files.write_kept(self._path(bucket), bucket.bytecode_to_string(), _KEPT_FILES)

    @staticmethod
    def _path(bucket: Bucket) -> str:
        return os.path.join(KEPT, bucket.key)
