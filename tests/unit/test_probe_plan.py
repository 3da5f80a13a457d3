"""Which pairs of GPUs the probe measures at the same time, how long each phase may take, and where GPUs hang."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "module_utils"))

import pytest
from gpu_probe import counters, host_links, nvml, places, plan

COUNTS = (2, 3, 4, 7, 8, 16)


def place(path: list[str], node: int | None = None) -> dict[str, Any]:
    return {"path": path, "root_complex": None, "numa_node": node}


def build_places(kind: str, count: int) -> list[dict[str, Any]]:
    """The places of `count` GPUs on a board of this kind."""
    half = max(1, count // 2)
    boards = {
        "unknown": lambda _at: {"path": None, "root_complex": None, "numa_node": None},
        "own root ports": lambda at: place(["root%d" % at], at // half),
        "switches of four": lambda at: place(
            ["root%d" % (at // 4), "switch%d" % (at // 4), "port%d" % at], at // 4 // max(1, count // 8)
        ),
        "two levels": lambda at: place(["root", "top", "top%d" % (at // 4), "leaf%d" % (at // 4), "port%d" % at], 0),
        "conventional": lambda _at: place([]),
    }
    return [boards[kind](at) for at in range(count)]


def links_of(places_: list[dict[str, Any]], fabric: bool) -> dict[tuple[int, int], frozenset[Hashable]]:
    every = [(a, b) for a in range(len(places_)) for b in range(len(places_)) if a != b]
    return {(a, b): plan.list_links(places_[a], places_[b], (str(a), str(b)), fabric) for a, b in every}


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", ["unknown", "own root ports", "switches of four", "two levels", "conventional"])
@pytest.mark.parametrize("fabric", [False, True])
def test_each_directed_pair_has_its_round_and_shares_no_link_in_it(kind: str, count: int, fabric: bool) -> None:
    links = links_of(build_places(kind, count), fabric)
    rounds = plan.plan_rounds(plan.order_directed_pairs(range(count)), links)
    pairs = [pair for turn in rounds for pair in turn]
    assert sorted(pairs) == sorted(links)  # every one, exactly once
    for turn in rounds:
        ends = [end for pair in turn for end in pair]
        used = [link for pair in turn for link in links[pair]]
        assert len(ends) == len(set(ends)) and len(used) == len(set(used))
    if fabric or kind in ("unknown", "conventional"):  # nothing is shared: all disjoint pairs at once
        fewest = count - 1 if count % 2 == 0 else count
        assert len(rounds) == 2 * fewest and all(len(turn) == count // 2 for turn in rounds)


@pytest.mark.parametrize("count", COUNTS)
def test_unordered_pairs_take_the_rounds_of_a_tournament(count: int) -> None:
    rounds = plan.plan_rounds(plan.order_pairs(range(count)), {})
    assert len(rounds) == (count - 1 if count % 2 == 0 else count)
    pairs = [frozenset(pair) for turn in rounds for pair in turn]
    assert len(pairs) == len(set(pairs)) == count * (count - 1) // 2


def test_a_pair_occupies_the_links_between_its_ends_only() -> None:
    four = build_places("switches of four", 8)
    within = plan.list_links(four[0], four[1], ("a", "b"), False)
    assert within == {("a", "up"), ("b", "down"), ("port0", "up"), ("port1", "down")}
    across = plan.list_links(four[0], four[4], ("a", "b"), False)
    assert {("root0", "up"), ("switch0", "up"), ("switch1", "down"), ("sockets", 0, 1)} <= across
    # The way back takes the other half of each link.
    assert not across & plan.list_links(four[4], four[0], ("b", "a"), False)


def test_switches_of_four_let_other_pairs_work_beside_one_that_crosses() -> None:
    links = links_of(build_places("switches of four", 8), False)
    rounds = plan.plan_rounds(plan.order_directed_pairs(range(8)), links)
    crossing = {turn: sum(1 for a, b in pairs if a // 4 == 0 and b // 4 == 1) for turn, pairs in enumerate(rounds)}
    assert set(crossing.values()) <= {0, 1} and len(rounds) <= 20


@pytest.mark.parametrize(("count", "most"), [(1, 16), (2, 16), (8, 24), (16, 50)])
def test_the_phases_share_one_budget(count: int, most: float) -> None:
    total = plan.choose_budget(count)
    assert 0 < total <= most
    assert sum(plan.split_budget(total).values()) == pytest.approx(total, rel=0.01)
    assert set(plan.split_budget(total)) == set(plan.PHASES)


def test_a_place_is_read_from_sysfs(tmp_path: Path) -> None:
    device = tmp_path / "devices/pci0000:20/0000:20:01.0/0000:21:00.0/0000:22:04.0/0000:23:00.0"
    device.mkdir(parents=True)
    (tmp_path / "bus/pci/devices").mkdir(parents=True)
    (tmp_path / "bus/pci/devices/0000:23:00.0").symlink_to(device)
    (device / "numa_node").write_text("1\n")
    (device / "current_link_width").write_text("4\n")
    (device / "current_link_speed").write_text("32.0 GT/s PCIe\n")
    (device / "max_link_speed").write_text("Unknown\n")
    assert places.read_place("0000:23:00.0", str(tmp_path)) == {
        "path": ["0000:20:01.0", "0000:21:00.0", "0000:22:04.0"],
        "root_complex": "pci0000:20",
        "numa_node": 1,
    }
    assert places.read_link("0000:23:00.0", str(tmp_path)) == {
        "speed_gt_s": 32.0,
        "width": 4,
        "max_speed_gt_s": None,
        "max_width": None,
    }
    (device / "numa_node").write_text("-1\n")
    assert places.read_place("0000:23:00.0", str(tmp_path))["numa_node"] is None
    assert places.read_place("0000:24:00.0", str(tmp_path))["path"] is None


def test_nodes_and_the_farthest_are_read_from_sysfs(tmp_path: Path) -> None:
    base = tmp_path / "devices/system/node"
    for number, (cpus, distance) in enumerate([("0-3,8", "10 12 32"), ("4-7", "12 10 32"), ("", "32 32 10")]):
        node = base / ("node%d" % number)
        node.mkdir(parents=True)
        (node / "cpulist").write_text(cpus + "\n")
        (node / "distance").write_text(distance + "\n")
        (node / "meminfo").write_text("Node %d MemFree:        4194304 kB\n" % number)
    (base / "online").write_text("0-2\n")
    (base / "has_memory").write_text("0,2\n")
    nodes = places.read_nodes(str(tmp_path))
    assert sorted(nodes) == [0, 2] and nodes[0]["cpus"] == [0, 1, 2, 3, 8] and nodes[0]["free_mib"] == 4096
    assert places.choose_far_node(0, nodes) == 2
    assert places.choose_far_node(0, {0: nodes[0]}) is None
    assert places.read_nodes(str(tmp_path / "nothing")) == {}


class Memory:
    """A stand-in for `Cuda` that hands out addresses, and for a GPU."""

    size = 256 << 20

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.freed: list[int] = []

    def allocate_host(self, size: int) -> int:
        self.taken.append(size)
        return 1 << 40 | len(self.taken)

    def call(self, function: str, address: int) -> None:
        assert function == "cuMemFreeHost"
        self.freed.append(address)

    def use(self) -> None:
        pass


NODES = {
    number: {"cpus": [], "free_mib": 64 << 10, "distances": {0: 10, 1: 12, 2: 32, 3: 32}} for number in range(8)
}  # fmt: skip


@pytest.mark.parametrize(
    ("near", "nodes", "wanted"),
    [
        (0, {0: NODES[0]}, [0]),
        (0, {0: NODES[0], 1: NODES[1]}, [0, 1]),
        (0, {number: NODES[number] for number in range(4)}, [0, 2]),  # the farthest
        (None, {0: NODES[0], 1: NODES[1]}, [0, 1]),
        (None, NODES, [0, 1, 2, 3]),
        (9, {0: NODES[0]}, [0]),  # a node without memory
        (None, {}, []),
    ],
)
def test_a_gpu_is_measured_with_its_own_node_and_the_farthest(near: Any, nodes: Any, wanted: list[int]) -> None:
    assert host_links.choose_nodes(near, nodes) == wanted


@pytest.mark.parametrize(("count", "near"), [(1, [0]), (8, [0] * 4 + [1] * 4), (16, [None] * 16)])
def test_page_locked_memory_is_bounded_and_given_back(count: int, near: list[int | None]) -> None:
    cuda: Any = Memory()
    gpus: Any = [Memory() for _ in range(count)]
    buffers = host_links.HostBuffers(cuda, gpus, near, NODES)
    assert sum(cuda.taken) <= host_links.MOST_MIB_AT_ONCE << 20
    assert all(facts["placed_by"] for facts in buffers.facts.values())
    assert buffers.list_nodes(gpus[0])[0] == str(near[0] or 0)
    buffers.close()
    assert len(cuda.freed) == len(cuda.taken)


def test_little_free_memory_makes_small_buffers() -> None:
    cuda: Any = Memory()
    gpus: Any = [Memory() for _ in range(8)]
    poor = {0: {**NODES[0], "free_mib": 256}}
    host_links.HostBuffers(cuda, gpus, [0] * 8, poor)
    assert sum(cuda.taken) <= 256 // host_links.SHARE_OF_FREE << 20


def test_a_kernel_without_nodes_is_said() -> None:
    cuda: Any = Memory()
    gpus: Any = [Memory()]
    buffers = host_links.HostBuffers(cuda, gpus, [None], {})
    assert buffers.list_nodes(gpus[0]) == [host_links.ANY_NODE]
    assert "no NUMA nodes" in buffers.facts[host_links.ANY_NODE]["placed_by"]


@pytest.mark.parametrize(
    ("answers", "links", "active"),
    [
        ([(0, 1)] * 18, 18, True),
        ([(0, 1)] * 4 + [(2, 0)] * 14, 4, True),
        ([(0, 0)] * 18, 0, False),
        ([(3, 0)] * 18, 0, False),  # a card without NVLink says "not supported"
        ([(2, 0)] * 18, 0, False),  # or that there is no such link
        ([(999, 0)] * 18, None, None),
    ],
)
def test_what_nvml_says_of_nvlinks(
    answers: list[tuple[int, int]], links: int | None, active: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(_self: Any, name: str, *arguments: Any) -> int:
        if name == "nvmlDeviceGetNvLinkState":
            code, on = answers[arguments[1].value]
            arguments[2]._obj.value = on
            return code
        if name == "nvmlDeviceGetPcieReplayCounter":
            return 3  # the GPU does not count them
        return 999 if name == "nvmlDeviceGetCurrPcieLinkGeneration" else 0

    monkeypatch.setattr(nvml.Nvml, "_call", call)
    monkeypatch.setattr(nvml.ctypes, "CDLL", lambda _name: None)
    library = nvml.Nvml()
    found = library.read_counters("0000:01:00.0")
    assert "replays" not in found and found["generation"] is None and found["brakes"] == []
    assert (None if found["nvlink"] is None else len(found["nvlink"]) // 2) == links
    assert library.has_active_links("0000:01:00.0") is active


def test_a_missing_nvml_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_name: str) -> None:
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    monkeypatch.setattr(nvml.ctypes, "CDLL", missing)
    library = nvml.Nvml()
    assert "cannot open" in str(library.error)
    assert set(library.read_counters("0000:01:00.0").values()) == {None}
    assert library.has_active_links("0000:01:00.0") is None


def test_what_the_kernel_counts_meanwhile_is_told_by_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_name: str) -> None:
        raise OSError("no NVML")

    monkeypatch.setattr(nvml.ctypes, "CDLL", missing)
    for device in ("0000:01:00.0", "0000:00:01.0"):
        (tmp_path / "bus/pci/devices" / device).mkdir(parents=True)
    port = tmp_path / "bus/pci/devices/0000:00:01.0/aer_dev_correctable"
    port.write_text("RxErr 0\nBadTLP 7\nTOTAL_ERR_COR 7\n")
    counted = counters.Counters(["0000:01:00.0"], {"0000:01:00.0": ["0000:00:01.0"]}, str(tmp_path))
    assert counted.describe_sources()["aer"] is None and counted.describe_sources()["nvml"] == "no NVML"
    assert counted.compare()["aer"] == {}
    port.write_text("RxErr 0\nBadTLP 19\nTOTAL_ERR_COR 19\n")
    found = counted.compare()
    assert found["aer"] == {"0000:00:01.0": {"correctable BadTLP": 12}}
    assert found["gpus"]["0000:01:00.0"]["replays"] is found["gpus"]["0000:01:00.0"]["nvlink"] is None
    assert counted.compare()["aer"] == {}  # since the call before


@pytest.mark.parametrize(
    ("codes", "wanted"),
    [
        ({}, 12),
        ({(1, 219): 3}, 11),  # an older driver does not have all of them
        (dict.fromkeys([(1, number) for number in (206, 207, 208, 211, 214, 219)], 3), None),  # a link without any
    ],
)
def test_nvlink_5_is_counted_by_its_own_fields(
    codes: dict[tuple[int, int], int], wanted: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two active links; the counters of older links are not supported, as on NVLink 5."""

    def call(_self: Any, name: str, *arguments: Any) -> int:
        if name == "nvmlDeviceGetNvLinkState":
            arguments[2]._obj.value = int(arguments[1].value < 2)
            return 0
        if name == "nvmlDeviceGetFieldValues":
            assert len(arguments[2]) == arguments[1] == 12
            for field in arguments[2]:
                field.code = codes.get((field.scope, field.field), 0)
                field.value_type, field.value = 1, 0xFFFFFFFF00000007  # what stands beside an unsigned int is nothing
            return 0
        return 3 if name == "nvmlDeviceGetNvLinkErrorCounter" else 0

    monkeypatch.setattr(nvml.Nvml, "_call", call)
    monkeypatch.setattr(nvml.ctypes, "CDLL", lambda _name: None)
    library = nvml.Nvml()
    found = library.read_counters("0000:01:00.0")["nvlink"]
    assert (None if found is None else len(found)) == wanted
    assert found is None or set(found.values()) == {7}
    assert library.has_active_links("0000:01:00.0") is True


def test_the_fields_layout_is_that_of_nvml_h() -> None:
    layout = {name: getattr(nvml._Field, name).offset for name, _kind in nvml._Field._fields_}
    assert list(layout.values()) == [0, 4, 8, 16, 24, 28, 32] and nvml.ctypes.sizeof(nvml._Field) == 40
