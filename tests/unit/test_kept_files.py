"""What is kept for the runs to come is read only where nobody else could have written it, and is bounded."""

from __future__ import annotations

import os
from pathlib import Path

import jinja2
import pytest
from ansible.module_utils.gpu_checks import kept_files
from ansible.module_utils.gpu_report import kept_templates


def test_what_is_kept_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a"
    assert kept_files.write_kept(str(path), b"one", 2)
    assert kept_files.read_kept(str(path)) == b"one"
    assert [entry.name for entry in path.parent.iterdir()] == ["a"], "nothing unfinished beside it"
    path.chmod(0o664)
    assert kept_files.read_kept(str(path)) is None
    assert kept_files.read_kept(str(tmp_path / "absent")) is None


def test_the_oldest_go(tmp_path: Path) -> None:
    for age, name in enumerate("abc"):
        (tmp_path / name).write_bytes(b"")
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    assert kept_files.write_kept(str(tmp_path / "d"), b"", 2)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a", "d"]


def test_what_cannot_be_kept_is_left(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert not kept_files.write_kept(str(tmp_path / "file" / "a"), b"", 2)
    (tmp_path / "directory").mkdir()
    assert not kept_files.write_kept(str(tmp_path / "directory"), b"", 9)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["directory", "file"]


def test_a_template_is_compiled_once_for_the_same_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_templates, "KEPT", str(tmp_path / "kept"))
    source = tmp_path / "page.j2"
    source.write_text("{{ 'abc' }} {{ x }}")
    compiled: list[str] = []

    def render(length: int) -> str:
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(tmp_path),
            autoescape=True,
            finalize=lambda value: str(value)[:length],
            bytecode_cache=kept_templates.KeptTemplates("longest=%d" % length),
        )
        real = environment.compile
        environment.compile = lambda *args, **more: compiled.append("") or real(*args, **more)  # type: ignore[method-assign,func-returns-value]
        return environment.get_template("page.j2").render(x="xyz")

    assert [render(2), render(2), len(compiled)] == ["ab xy", "ab xy", 1]
    assert [render(1), len(compiled)] == ["a x", 2], "a constant is shortened when it is compiled"
    source.write_text("{{ x }}")
    assert [render(2), len(compiled)] == ["xy", 3]
    for kept in (tmp_path / "kept").iterdir():
        kept.write_bytes(b"damaged")
    assert [render(2), len(compiled)] == ["xy", 4]
