"""The text format of Prometheus, read strictly: what its own reader would refuse is an error here too."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_SAMPLE = re.compile(r"(%s)\{(.*)\} (\S+)" % NAME)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}

Key = tuple[str, tuple[tuple[str, str], ...]]


@dataclass
class Metrics:
    """`values`: (name, labels in order) -> number. `types` and `helps` by name."""

    types: dict[str, str] = field(default_factory=dict)
    helps: dict[str, str] = field(default_factory=dict)
    values: dict[Key, float] = field(default_factory=dict)

    def value(self, name: str, **labels: str) -> float | None:
        """The value of the one sample with these labels (among others); None where there is none."""
        found = [value for labelled, value in self.samples(name) if labels.items() <= labelled.items()]
        assert len(found) < 2, "%d samples of %s with %s" % (len(found), name, labels)
        return found[0] if found else None

    def samples(self, name: str) -> list[tuple[dict[str, str], float]]:
        wanted = "gpu_host_" + name
        return [(dict(labels), value) for (metric, labels), value in self.values.items() if metric == wanted]


def read_metrics(data: bytes) -> Metrics:
    """The metrics in `data`. AssertionError where a line has no form, a metric comes twice, or two samples are the
    same."""
    found, present = Metrics(), ""
    text = data.decode("utf-8")
    assert text == "" or text.endswith("\n")
    for line in text.split("\n")[:-1]:
        kind, _blank, rest = line.partition(" ")[2].partition(" ") if line.startswith("# ") else ("", "", "")
        name, _blank, words = rest.partition(" ")
        if kind == "HELP":
            assert name not in found.helps, "%s comes twice" % name
            found.helps[name], present = words, name
            continue
        if kind == "TYPE":
            assert name == present and name not in found.types
            found.types[name] = words
            continue
        match = _SAMPLE.fullmatch(line)
        assert match, "no sample: %r" % line[:200]
        labels = _LABEL.findall(match[2])
        assert "".join('%s="%s",' % label for label in labels).rstrip(",") == match[2].rstrip(","), line[:200]
        key = (match[1], tuple((label, re.sub(r"\\.", lambda m: _ESCAPES[m[0]], value)) for label, value in labels))
        assert match[1] == present and match[1] in found.types and key not in found.values, line[:200]
        found.values[key] = float(match[3])
    return found
