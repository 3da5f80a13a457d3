"""A report whose every captured text tries to be something else than text."""

from __future__ import annotations

from typing import Any

from . import report_samples as samples
from .test_report_matrix import host, pair, probed

SCRIPT = "</script></style></textarea><script>window.attacked = 1</script><img src=x onerror='window.attacked = 2'>\"'>"
MARKDOWN = (
    "``` \n```\n# heading\n| a | b |\n|---|---|\n[link](javascript:attacked) ![i](http://evil.example/x) "
    "<b>bold</b> @everyone #1 **strong** $x$ &lt;"
)
CONTROLS = "\x1b[31mred\x1b[0m \x00 \u202e ``\x1b[0m`"
TEMPLATE = "{{ 7 * 191 }} {% raw %}"  # 1337
LONG = "A" * 10_000
HOSTILE = " ".join((SCRIPT, MARKDOWN, CONTROLS, TEMPLATE))


def report() -> dict[str, Any]:
    """Two hosts of 16 GPUs with hostile text wherever a host, a device or a file name decides what stands there."""
    made = samples.report()
    name = "gpu`|<i>" + SCRIPT
    facts = probed(
        host(16),
        p0_1=pair(30.0, 13.7, "staged", reason=HOSTILE),
        p3_4=pair(verdict=HOSTILE),
        p5_6=pair(40.0, verdict="slow"),
    )
    facts["probe"]["cuda"] = {"initialised": False, "result_name": HOSTILE, "causes": [HOSTILE]}
    facts["gpus"].update(count=16, models=[HOSTILE])
    for gpu in facts["gpus"]["devices"].values():
        gpu.update(
            name=HOSTILE,
            bar1_mib=131072,
            memory_total_mib=97887,
            memory_used_mib=4,
            power_draw_w=31.5,
            power_limit_w=600.0,
            ecc=True,
        )
    facts["pci"] = {
        "gpus": {
            a: {"root_complex": "pci0000:00", "path": ["0000:00:01.1"], "name": HOSTILE, "link": None}
            for a in facts["gpus"]["devices"]
        },
        "bridges": {
            "0000:00:01.1": {"kind": HOSTILE, "acs": {"present": True, "redirects": True, "control_raw": HOSTILE}}
        },
        "redirecting_root_ports": [{"address": "0000:00:01.1"}],
    }
    facts["virtualization"] = {"placement": HOSTILE, "dmi": {"sys_vendor": HOSTILE, "product_name": LONG}}
    facts["errors"] = [{"source": HOSTILE, "problem": LONG}] * 70
    results = [dict(result) for result in made["hosts"]["gpu10"]["results"]]
    for result in results:
        result.update({key: HOSTILE for key in ("found", "reason", "why") if key in result})
        if result.get("remedy"):
            texts = dict.fromkeys(("text", "risk", "verify"), HOSTILE)
            result["remedy"] = {**result["remedy"], **texts, "commands": [HOSTILE, LONG]}
        if result.get("waiver"):
            result["waiver"] = {**result["waiver"], "reason": HOSTILE}
    one = {**made["hosts"]["gpu10"], "facts": facts, "results": results, "message": HOSTILE, "problems": [HOSTILE]}
    failing = [result["id"] for result in results if result["status"] == "fail"]
    one["drift"] = {
        "state": "changed",
        "saved_at": HOSTILE,
        "message": HOSTILE,
        "saving": HOSTILE,
        "mode": "diff",
        "changes": [{"text": HOSTILE + LONG, "explains": failing}] * 2,
        "unknown_now": [HOSTILE],
        "unexplained": [HOSTILE],
        "mended": [HOSTILE],
    }
    differs = {"what": HOSTILE, "value": LONG, "others": HOSTILE, "alike": 3}
    measured = {
        "what": HOSTILE, "unit": "GB/s", "better": "higher", "median": 45.0, "limit": 2.0,
        "values": {HOSTILE: 1.0, LONG: 45.0, "a": 45.1}, "outliers": [HOSTILE],
    }  # fmt: skip
    made["alike"] = {
        "alone": [{"host": HOSTILE, "text": LONG}],
        "kinds": [
            {
                "name": HOSTILE,
                "hosts": [HOSTILE, LONG, "a"],
                "odd": [{"hosts": [HOSTILE], "differs": [differs], "do": HOSTILE}],
                "split": [{"what": HOSTILE, "values": [{"value": LONG, "hosts": [HOSTILE]}]}],
                "measured": [measured],
            }
        ],
    }
    made["hosts"] = {name: one, LONG[:300]: {**made["hosts"]["gpu3"], "message": HOSTILE + LONG}}
    return made
