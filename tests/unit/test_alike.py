"""Hosts of one kind compared with one another: who is odd, in how many lines it is told, what it costs at 500."""

from __future__ import annotations

import json
import time
import tracemalloc
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from ansible.module_utils.gpu_compare import alike, features
from ansible.module_utils.gpu_report import alike_plot, alike_text, html_report, markdown_report, terminal

from . import report_samples as samples

PRO, H200 = ("2bb5", "NVIDIA RTX PRO 6000"), ("2335", "NVIDIA H200")


def host(count: int = 8, model: tuple[str, str] = PRO, placement: str = "bare_metal", **more: Any) -> dict[str, Any]:
    """Facts of a host. `more`: driver, kernel, vbios (of all cards, or a list), bandwidth, latency, values, link."""
    places = ["0000:%02x:00.0" % (number + 1) for number in range(count)]
    vbios = more.get("vbios", "96.00.A5")
    versions = vbios if isinstance(vbios, list) else [vbios] * count

    def figure(value: float) -> dict[str, Any]:
        return {"median": value, "min": value * 0.99, "max": value * 1.01, "size_mib": 256, "method": "copy_engine"}

    pairs = {
        "%s->%s" % (a, b): {
            "bandwidth_gb_s": {"copy": figure(more.get("bandwidth", 45.2))},
            "latency_us": {"copy_12k_back_to_back": {**figure(more.get("latency", 1.3)), "size_mib": None}},
        }
        for a in places[:2]
        for b in places[:2]
        if a != b
    }
    return {
        "gpus": {
            "complete": True,
            "devices": {
                place: {"name": model[1], "vbios_version": versions[number], "link_width": more.get("link", 16)}
                for number, place in enumerate(places)
            },
        },
        "pci": {"gpus": {place: {"vendor_id": "10de", "device_id": model[0], "name": model[1]} for place in places}},
        "driver": {"version": more.get("driver", "580.82")},
        "kernel": {"release": more.get("kernel", "6.8.0-64"), "values": more.get("values", {"iommu": "pt"})},
        "virtualization": {"placement": placement, "hypervisor_is_proxmox": more.get("proxmox", False)},
        "probe": {"pairs": pairs},
    }


def compare(**hosts: dict[str, Any]) -> dict[str, Any]:
    made = {name: json.loads(json.dumps(features.extract_features(facts))) for name, facts in hosts.items()}
    return alike.compare_alike(made)


def said(**hosts: dict[str, Any]) -> list[str]:
    return [item.text for item in alike_text.list_said({"alike": compare(**hosts)})]


def fleet(number: int, **odd: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {**{"gpu%02d" % one: host() for one in range(1, number + 1)}, **odd}


def test_alike_hosts_are_not_spoken_of() -> None:
    assert said(**fleet(12)) == []
    assert compare(**fleet(12))["kinds"][0]["name"] == "8 x NVIDIA RTX PRO 6000, bare metal"


def test_the_odd_one_out() -> None:
    assert said(**fleet(11, odd=host(vbios="96.00.99"))) == [
        "odd differs from 11 alike: VBIOS 96.00.99 (others 96.00.A5)"
    ]
    mixed = host(vbios=["96.00.A5"] * 7 + ["96.00.99"])
    assert said(**fleet(3, odd=mixed)) == [
        "odd differs from 3 alike: VBIOS 1 x 96.00.99, 7 x 96.00.A5 (others 96.00.A5)"
    ]


def test_from_three_hosts_on_one_is_odd_and_two_differ() -> None:
    assert said(a=host(), b=host(kernel="6.8.0-71")) == [
        "the two differ (a, b): kernel 6.8.0-64 / 6.8.0-71",
    ]
    assert said(a=host(), b=host(), c=host(kernel="6.8.0-71")) == [
        "c differs from 2 alike: kernel 6.8.0-71 (others 6.8.0-64)"
    ]


def test_hosts_that_differ_in_the_same_way_are_told_once() -> None:
    odd = {"new%d" % number: host(driver="580.159", kernel="6.8.0-71") for number in range(3)}
    found = compare(**fleet(9, **odd))["kinds"][0]["odd"]
    assert [(group["hosts"], [entry["what"] for entry in group["differs"]]) for group in found] == [
        (["new0", "new1", "new2"], ["driver", "kernel"])
    ]
    assert found[0]["do"].startswith("Install the same driver: ansible-playbook provision.yml")


def test_a_fleet_without_a_majority_is_split() -> None:
    assert said(a=host(), b=host(driver="580.159"), c=host(driver="575.57"), d=host()) == [
        "no value has most of 4 hosts: driver 2 580.82, 1 580.159, 1 575.57"
    ]


def test_a_kind_is_by_evidence() -> None:
    names = [kind["name"] for kind in compare(
        a=host(), b=host(), c=host(placement="kvm"), d=host(placement="kvm"), e=host(model=H200), f=host(2, H200),
        g=host(proxmox=True), h=host(proxmox=True),
    )["kinds"]]  # fmt: skip
    assert sorted(names) == [
        "8 x NVIDIA RTX PRO 6000, KVM guest",
        "8 x NVIDIA RTX PRO 6000, Proxmox VE host",
        "8 x NVIDIA RTX PRO 6000, bare metal",
    ]


@pytest.mark.parametrize(
    "facts",
    [
        {},
        host(0),
        host(placement=None),  # type: ignore[arg-type]
        {"gpus": None, "pci": None, "virtualization": None},
        {**host(), "pci": {"gpus": {"0000:01:00.0": {"vendor_id": None, "device_id": None}}}},
    ],
)
def test_a_host_of_no_kind_is_not_compared(facts: dict[str, Any]) -> None:
    assert features.extract_features(facts) is None
    assert compare(a=facts, b=facts) == {"kinds": [], "alone": []}


def test_a_card_without_a_driver_makes_no_other_kind_and_a_lost_one_is_told() -> None:
    blind = host()
    del blind["gpus"]["devices"]["0000:03:00.0"]
    assert len(compare(**fleet(3, blind=blind))["kinds"]) == 1
    assert said(**fleet(11, short=host(7))) == [
        "short has 7 x NVIDIA RTX PRO 6000; 11 other hosts have 8 x NVIDIA RTX PRO 6000"
    ]
    assert said(**fleet(11, a=host(4), b=host(4), c=host(2, H200))) == []


def test_a_host_with_one_card_of_another_model() -> None:
    odd = host()
    odd["pci"]["gpus"]["0000:08:00.0"].update(device_id=H200[0], name=H200[1])
    odd["gpus"]["devices"]["0000:08:00.0"]["name"] = H200[1]
    assert said(**fleet(11, odd=odd)) == [
        "odd has 1 x NVIDIA H200 and 7 x NVIDIA RTX PRO 6000; 11 other hosts have 8 x NVIDIA RTX PRO 6000"
    ]


def test_unknown_is_not_odd() -> None:
    unknown = host()
    unknown["driver"]["version"] = None
    unknown["gpus"]["devices"]["0000:01:00.0"]["vbios_version"] = None
    unknown["kernel"]["values"] = None
    assert said(**fleet(4, unknown=unknown)) == []
    assert said(**fleet(4, unknown=host(values={"iommu": None}))) == []


def test_a_kernel_parameter_that_only_one_lacks() -> None:
    assert said(**fleet(4, odd=host(values={}))) == [
        "odd differs from 4 alike: kernel parameter iommu absent (others pt)"
    ]


def test_what_names_one_host_is_not_compared() -> None:
    own = {
        "gpu%d" % one: host(
            values={"root": "UUID=%d" % one, "BOOT_IMAGE": "/%d" % one, "rd.luks.uuid": "luks-%d" % one}
        )
        for one in range(5)
    }
    assert said(**own) == []


def test_measured_values_stand_out_of_the_spread_only() -> None:
    hosts = {"gpu%02d" % one: host(bandwidth=45.0 + 0.02 * one, latency=1.3 + 0.01 * (one % 3)) for one in range(11)}
    assert said(**hosts) == []
    found = said(**hosts, slow=host(bandwidth=22.1, latency=13.6))
    assert len(found) == 1 and found[0].startswith("slow differs from 11 alike: ")
    assert "P2P bandwidth of 256 MiB, lowest pair 22.1 GB/s (others median 45.1 GB/s)" in found[0]
    assert "latency of a 12 KiB copy, highest pair 13.6 us" in found[0] and "median pair" not in found[0]


# The pictures


def plots(hosts: dict[str, dict[str, Any]]) -> list[str]:
    return [str(plot) for kind in compare(**hosts)["kinds"] for plot in alike_plot.list_plots(kind)]


def test_a_picture_per_measured_value_names_who_stands_out() -> None:
    made = plots(fleet(11, slow=host(bandwidth=22.1)))
    assert len(made) == 4
    for plot in made:
        ET.fromstring(plot)
        assert "style=" not in plot and "<script" not in plot
    assert "slow: 22.1 GB/s" in made[0] and "11 hosts</title>" in made[0]
    assert plots({"a": host(), "b": host()}) == []


def test_a_host_whose_name_is_markup_is_text() -> None:
    made = plots(fleet(11, **{"<script>alert(1)</script>\x1b[31m": host(bandwidth=1.0)}))
    assert "<script>" not in "".join(made) and "&lt;script&gt;" in made[0]
    for plot in made:
        ET.fromstring(plot)


# Five hundred


def large_fleet(number: int) -> dict[str, dict[str, Any]]:
    """Every tenth host differs in something."""
    return {
        "gpu%03d" % one: host(
            vbios="96.00.%02d" % (one % 7) if one % 10 == 0 else "96.00.A5",
            kernel="6.8.0-%d" % one if one % 50 == 0 else "6.8.0-64",
            bandwidth=45.0 + 0.01 * (one % 9) - (20.0 if one % 125 == 0 else 0.0),
        )
        for one in range(number)
    }


def run_of(hosts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    run = samples.run()
    for name, facts in hosts.items():
        result = samples.judged([samples.result("driver_loaded")])
        run.results(name, {**result, "report_features": json.dumps(features.extract_features(facts))})
    made = run.report(samples.RUN)
    assert isinstance(made, dict)
    return made


def test_five_hundred_hosts_take_less_than_a_second_and_one_screen() -> None:
    made = {name: json.dumps(features.extract_features(facts)) for name, facts in large_fleet(500).items()}
    assert max(map(len, made.values())) < 20_000
    tracemalloc.start()
    began = time.process_time()
    found = alike.compare_alike({name: json.loads(text) for name, text in made.items()})
    seconds = time.process_time() - began
    _now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 1.0 and peak < 500 * 64 * 1024, (seconds, peak)
    assert len(json.dumps(found)) < 400_000
    report = run_of(large_fleet(500))
    section = terminal_section(report)
    assert len(section) < 40 and "more, in report.html" in section[-1]
    assert len(html_report.render_html(report)) - len(html_report.render_html({**report, "alike": {}})) < 120_000
    assert b"## Hosts of one kind that differ" in markdown_report.render_markdown(report)


def terminal_section(report: dict[str, Any]) -> list[str]:
    lines = [text for text, _tone in terminal.render_terminal(report)]
    start = next(number for number, line in enumerate(lines) if line.startswith("HOSTS OF ONE KIND THAT DIFFER"))
    return lines[start + 1 : lines.index("", start)]


def test_the_cost_is_a_straight_line() -> None:
    def cost(number: int) -> float:
        made = {name: features.extract_features(facts) for name, facts in large_fleet(number).items()}
        began = time.process_time()
        alike.compare_alike(made)
        return time.process_time() - began

    few = min(cost(100) for _ in range(3))
    assert min(cost(400) for _ in range(3)) < 12 * few, "four times the hosts take about four times as long"


def test_the_terminal_tells_it_with_what_to_do() -> None:
    report = run_of(fleet(11, odd=host(vbios="96.00.99")))
    assert terminal_section(report) == [
        "  - odd differs from 11 alike: VBIOS 96.00.99 (others 96.00.A5)",
        "    do: Ask the maker of the card for the VBIOS that the others have.",
    ]
    page = html_report.render_html(report).decode()
    assert "odd differs from 11 alike" in page and '<figure class="plot"' in page
    assert "alike" not in run_of({"a": host()})
