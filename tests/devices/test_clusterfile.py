from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link, Power
from placeit.core.errors import ClusterError, DeviceError, FileError, PlaceitError, UsageError
from placeit.devices import catalog
from placeit.devices.clusterfile import discover, read_cluster, write_cluster

CORE = min(os.sched_getaffinity(0))

FULL = """\
devices:
  fast: {runs_on: CPU@0}
  slow: {runs_on: CPU@1, slowdown: 1.5}
  edge: {catalog: jetson-orin-nano}
  odd:
    flops: 2 TFLOP/s
    memory_bandwidth: 100 GB/s
    memory: 8 GiB
    idle_power: 5 W
    busy_power: 25 W
    tags: [fp16]
links:
  - {between: [fast, slow], bandwidth: 10 Gbit/s, latency: 50 us}     # both directions
  - {from: fast, to: edge, bandwidth: 100 Mbit/s, latency: 5 ms}      # one direction
default_link: {bandwidth: 1 Gbit/s, latency: 100 us}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cluster.yaml"


def read(file: Path, text: str, check: bool = False) -> Cluster:
    file.write_text(text)
    return read_cluster(file, check=check)


def message(file: Path, text: str) -> str:
    with pytest.raises(ClusterError) as caught:
        read(file, text)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(str(file))


def test_a_file_may_mix_real_emulated_and_described_devices(file: Path) -> None:
    cluster = read(file, FULL)
    fast, slow, edge, odd = cluster.devices
    assert (fast.kind, str(fast.address), fast.cores, fast.emulated) == ("openvino", "CPU@0", (0,), False)
    assert (slow.kind, str(slow.address), slow.slowdown, slow.emulated) == ("openvino", "CPU@1", 1.5, True)
    assert edge.described
    assert edge.name == "edge"
    assert edge.flops_per_s == catalog()["jetson-orin-nano"][0].flops_per_s
    assert odd == Device(
        "odd",
        "described",
        memory_bytes=8 * 2.0**30,
        tags=frozenset({"fp16"}),
        power=Power(5, 25),
        flops_per_s=2e12,
        bytes_per_s=100e9,
    )


def test_links_have_directions_and_say_where_they_come_from(file: Path) -> None:
    links = read(file, FULL).links
    assert links["fast", "slow"] == links["slow", "fast"] == Link(1.25e9, 50e-6, "emulated")
    assert links["fast", "edge"] == Link(12.5e6, 5e-3, "described")
    assert links["edge", "fast"] == links["odd", "slow"] == Link(125e6, 100e-6, "described"), "the default fills what is left"
    assert len(links) == 12


def test_links_between_real_devices_that_are_not_given_are_left_to_be_measured(file: Path) -> None:
    cluster = read(file, "devices: {a: {runs_on: CPU@0}, b: {runs_on: GPU.1}}")
    assert cluster.missing_links() == [("a", "b"), ("b", "a")]


def test_checking_fills_in_what_the_machine_tells_except_what_the_file_says(file: Path) -> None:
    text = f"devices: {{a: {{runs_on: CPU@{CORE}, slowdown: 2, memory: 1 GiB, busy_power: 10 W, tags: [camera]}}}}"
    (device,) = read(file, text, check=True).devices
    assert (device.name, str(device.address), device.slowdown, device.cores) == ("a", f"CPU@{CORE}", 2.0, (CORE,))
    assert (device.memory_bytes, device.power, device.tags) == (2.0**30, Power(0, 10), frozenset({"camera"}))
    assert device.full_name
    assert device.driver


def test_a_real_device_that_is_not_there_is_an_error_that_names_the_file(file: Path) -> None:
    with pytest.raises(DeviceError) as caught:
        read(file, "devices: {a: {runs_on: GPU.9}}", check=True)
    assert str(file) in str(caught.value)
    assert "no device 'GPU.9'" in str(caught.value)


@pytest.mark.parametrize("name", ["CPU@0-1", "CPU", "ort:CPU@1", "cuda:0"])
def test_one_device_under_two_names_is_refused(file: Path, name: str) -> None:
    with pytest.raises(DeviceError, match=r"cluster.yaml: The devices 'a' and 'b' are both .*" + name):
        read(file, f"devices: {{a: {{runs_on: '{name}'}}, b: {{runs_on: '{name}', slowdown: 2}}}}")


def test_devices_that_share_cores_are_written_and_read_back_and_take_turns(file: Path) -> None:
    text = "devices: {a: {runs_on: CPU@0-1}, b: {runs_on: CPU@1}, c: {runs_on: CPU@0, slowdown: 2}, d: {catalog: t4}}"
    cluster = read(file, text + "\ndefault_link: {bandwidth: 1 GB/s, latency: 0}")
    write_cluster(cluster, file)
    again = read_cluster(file, check=False)
    assert again.devices == cluster.devices
    assert {(a, b) for a, b in np.argwhere(again.conflicts()).tolist() if a < b} == {(0, 1), (0, 2)}


def test_a_catalogue_entry_can_be_changed_in_part(file: Path) -> None:
    text = "devices: {a: {catalog: t4, memory: 4 GiB, flops: 1e12, op_overhead: 0, full_name: half a T4}}"
    (device,) = read(file, text).devices
    assert device.memory_bytes == 2.0**32
    assert device.flops_per_s == 1e12
    assert device.bytes_per_s == catalog()["t4"][0].bytes_per_s
    assert (device.op_overhead_s, device.full_name) == (0.0, "half a T4")


def test_names_that_yaml_takes_for_something_else_are_names(file: Path) -> None:
    text = "devices: {on: {runs_on: CPU@0}, 1: {runs_on: CPU@1}, 1:30: {runs_on: NPU}, null: {runs_on: GPU}}"
    assert read(file, text).names == ("on", "1", "1:30", "null")


D = "devices: {a: {runs_on: CPU@0}, b: {runs_on: CPU@1}, c: {catalog: t4}}\n"
L = "bandwidth: 1e9, latency: 0"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", None, "is empty"),
        ("# nothing\n", None, "is empty"),
        ("devices: {}", 1, "'devices' is empty"),
        ("links: []", None, "no 'devices'"),
        ("[1, 2]", 1, "the file is not a mapping"),
        ("devices: {a: {runs_on: CPU@0}", 1, "not valid YAML"),
        ("devices: {a: {runs_on: CPU@0}}\n---\nmore: 1", 2, "not valid YAML"),
        ("devices:\n  a: {runs_on: CPU@0}\n  a: {runs_on: CPU@1}", 3, "has the key 'a' twice"),
        ("device: {}", 1, "unknown key 'device' (did you mean 'devices'?)."),
        ("devices:\n  a:\n    runs_on: CPU@0\n    slowdwon: 2", 4, "unknown key 'slowdwon' (did you mean 'slowdown'?)."),
        ("devices: {a: {runs_on: CPU@0, price: 3}}", 1, "unknown key 'price'; known: runs_on, slowdown"),
        ("devices: {a: 3}", 1, "'devices.a' is not a mapping"),
        ("devices: {a: {}}", 1, "neither 'runs_on'"),
        ("devices: {a: {flops: 1e12}}", 1, "neither 'runs_on'"),
        ("devices: {a: {runs_on: [CPU]}}", 1, "'devices.a.runs_on' is not a single value"),
        ("devices: {a: {runs_on: cpu}}", 1, "did you mean 'CPU'"),
        ("devices: {a: {runs_on: auto}}", 1, "'auto' stands for several"),
        ("devices: {a: {runs_on: CPU, slowdown: 0.5}}", 1, "'devices.a.slowdown' is 0.5; it must be 1 or more"),
        ("devices: {a: {runs_on: CPU, slowdown: .nan}}", 1, "'devices.a.slowdown': '.nan' is not a plain number"),
        ("devices: {a: {runs_on: CPU, slowdown: .inf}}", 1, "'devices.a.slowdown' cannot be infinite"),
        ("devices: {a: {runs_on: CPU, flops: 1e9}}", 1, "'devices.a.flops' describes a device, and 'a' is a real one"),
        ("devices: {a: {runs_on: CPU, catalog: t4}}", 1, "'devices.a.catalog' describes a device"),
        ("devices: {a: {catalog: t4, slowdown: 2}}", 1, "'devices.a.slowdown' slows a real device"),
        ("devices: {a: {catalog: t5}}", 1, "no entry 't5'; the catalogue has jetson-orin-nano, "),
        ("devices: {a: {flops: 0, memory_bandwidth: 1}}", 1, "'devices.a.flops' is zero"),
        ("devices: {a: {flops: 1 TW, memory_bandwidth: 1}}", 1, "'TW' is not a unit of rate"),
        ("devices: {a: {catalog: t4, memory: -1}}", 1, "'devices.a.memory': '-1' is negative"),
        ("devices: {a: {catalog: l4, idle_power: 3 W}}", 1, "needs 'busy_power'"),
        ("devices: {a: {catalog: t4, tags: fp16}}", 1, "'devices.a.tags' is not a list"),
        ("devices: {a: {catalog: t4, tags: [[x]]}}", 1, "an item of 'devices.a.tags' is not a single value"),
        ("devices: {'a,b': {catalog: t4}}", 1, "cannot name a device"),
        ("devices: {a: &x {catalog: t4}, b: *x}", 1, "anchors and aliases"),
        ("devices: &x {a: *x}", 1, "anchors and aliases"),
        ("devices: {a: !!python/object:os.system {catalog: t4}}", 1, "YAML tag"),
        ('devices: {"a\\nb": {catalog: t4}}', 1, "one line of at most"),
        ("devices: {? [x] : {catalog: t4}}", 1, "a key of 'devices' is not a single value"),
        ("devices: {a: {catalog: t4}, b: {catalog: t4}}", None, "the link a -> b is missing"),
        (D + "links:\n - {between: [a, b], " + L + "}", 3, "the link a -> c is missing, and it cannot be measured"),
        (D + "links: {}", 2, "'links' is not a list"),
        (D + "links: [3]", 2, "'links[0]' is not a mapping"),
        (D + "links: [{between: [a, b], bandwidth: 1}]", 2, "'links[0]' has no 'latency'"),
        (D + "links: [{between: [a, b], bandwidth: -1, latency: 0}]", 2, "'links[0].bandwidth': '-1' is negative"),
        (D + "links: [{between: [a, b], bandwidth: 0 Gbit/s, latency: 0}]", 2, "'links[0].bandwidth' is zero"),
        (D + "links: [{between: [a, b], bandwidth: nan, latency: 0}]", 2, "'nan' is not a number"),
        (D + "links: [{between: [a, b], bandwidth: 1, latency: .inf}]", 2, "'links[0].latency' cannot be infinite"),
        (D + "links: [{between: [a, b, c], " + L + "}]", 2, "has 3 devices"),
        (D + "links: [{between: [a, a], " + L + "}]", 2, "links 'a' to itself"),
        (D + "links: [{between: [a, aa], " + L + "}]", 2, "names 'aa', which is not under 'devices' (did you mean 'a'?)."),
        (D + "links: [{from: a, " + L + "}]", 2, "needs either 'between"),
        (D + "links: [{from: a, to: b, between: [a, b], " + L + "}]", 2, "needs either 'between"),
        (D + "links:\n- {from: a, to: b, " + L + "}\n- {between: [b, a], " + L + "}", 4, "the link a -> b a second time"),
        (D + "links: [{from: a, to: b, " + L + ", measured: yes}]", 2, "is 'yes'; it must be true or false"),
        (D + "links: [{from: a, to: c, " + L + ", measured: true}]", 2, "exists in simulation only"),
        (D + "default_link: {bandwidth: 1}", 2, "'default_link' has no 'latency'"),
        ("devices: {a: {runs_on: CPU}}\ndefault_link: {bandwidth: 0, latency: 0}", 2, "'default_link.bandwidth' is zero"),
        ("a: " + "[" * 5000, None, "not valid YAML"),
        ("devices: {a: {catalog: " + "x" * 1000 + "}}", 1, "one line of at most"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_key(file: Path, text: str, line: int | None, said: str) -> None:
    found = message(file, text)
    assert said in found
    if line is not None:
        assert found.startswith(f", line {line}: ")


def test_a_file_that_is_missing_or_not_text_is_an_error(file: Path) -> None:
    with pytest.raises(FileError, match=r"cluster.yaml"):
        read_cluster(file)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileError, match=r"cluster.yaml"):
        read_cluster(file)


# --- writing

numbers = st.floats(min_value=1e-9, max_value=1e15)
names = st.text(
    alphabet=st.characters(codec="utf-8", exclude_categories=("C", "Z"), exclude_characters=","), min_size=1, max_size=8
)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    devices = []
    for number, name in enumerate(draw(st.lists(names, min_size=1, max_size=4, unique=True))):
        power = draw(st.none() | st.builds(Power, st.just(0.0) | numbers, numbers))
        memory = draw(st.just(float("inf")) | numbers)
        tags = draw(st.frozensets(names, max_size=2))
        if draw(st.booleans()):
            slowdown = draw(st.floats(1, 100))
            address = Address("CPU", (number,))
            devices.append(Device(name, "openvino", address, memory_bytes=memory, tags=tags, power=power, slowdown=slowdown))
        else:
            figures = {
                "flops_per_s": draw(numbers),
                "bytes_per_s": draw(numbers),
                "op_overhead_s": draw(st.just(0.0) | numbers),
            }
            full_name = draw(names | st.just(""))
            devices.append(
                Device(name, "described", full_name=full_name, memory_bytes=memory, tags=tags, power=power, **figures)
            )
    links = {}
    for a in devices:
        for b in devices:
            real = not (a.described or b.described)
            if a is not b and (not real or draw(st.booleans())):
                origin = draw(st.sampled_from(["emulated", "measured"])) if real else "described"
                bandwidth = draw(st.sampled_from([1.25e9, float("inf")]) | numbers)
                links[a.name, b.name] = Link(bandwidth, draw(st.just(0.0) | numbers), origin)
    return Cluster(tuple(devices), links)


@given(cluster=clusters())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_a_written_cluster_reads_back_as_the_same(file: Path, cluster: Cluster) -> None:
    write_cluster(cluster, file)
    again = read_cluster(file, check=False)
    assert again.devices == cluster.devices
    assert again.links == cluster.links


def test_a_written_file_is_what_a_person_would_write(file: Path) -> None:
    write_cluster(read(file, FULL), file)
    assert file.read_text() == (
        "devices:\n"
        "  fast:\n"
        "    runs_on: CPU@0\n"
        "  slow:\n"
        "    runs_on: CPU@1\n"
        "    slowdown: 1.5\n"
        "  edge:\n"
        '    full_name: "NVIDIA Jetson Orin Nano 8GB (GPU)"\n'
        "    flops: 1.28 TFLOP/s\n"
        "    memory_bandwidth: 68 GB/s\n"
        "    memory: 8 GiB\n"
        "    op_overhead: 5 us\n"
        "    busy_power: 15 W\n"
        "    tags: [fp16, fp32, gpu, int8]\n"
        "  odd:\n"
        "    flops: 2 TFLOP/s\n"
        "    memory_bandwidth: 100 GB/s\n"
        "    memory: 8 GiB\n"
        "    idle_power: 5 W\n"
        "    busy_power: 25 W\n"
        "    tags: [fp16]\n"
        "links:\n"
        "  - {between: [fast, slow], bandwidth: 10 Gbit/s, latency: 50 us}\n"
        "  - {from: fast, to: edge, bandwidth: 100 Mbit/s, latency: 5 ms}\n"
        "  - {between: [fast, odd], bandwidth: 1 Gbit/s, latency: 100 us}\n"
        "  - {between: [slow, edge], bandwidth: 1 Gbit/s, latency: 100 us}\n"
        "  - {between: [slow, odd], bandwidth: 1 Gbit/s, latency: 100 us}\n"
        "  - {from: edge, to: fast, bandwidth: 1 Gbit/s, latency: 100 us}\n"
        "  - {between: [edge, odd], bandwidth: 1 Gbit/s, latency: 100 us}\n"
    )


# --- one way in


def test_a_cluster_is_found_from_whatever_a_user_gives(file: Path) -> None:
    cluster = read(file, f"devices: {{a: {{runs_on: CPU@{CORE}}}}}")
    assert discover(cluster) is cluster
    assert discover(file).names == discover(str(file)).names == ("a",)
    assert discover(f"CPU@{CORE}").names == discover([f"CPU@{CORE}"]).names == (f"CPU@{CORE}",)
    assert discover().names
    for other in (3, [3], {3: 3}):
        with pytest.raises(UsageError, match=rf"not a {type(other).__name__}\. .*example=\(x,\)"):
            discover(other)


# --- fuzzing


def mutate(value: object, draw: st.DrawFn) -> object:
    """Replace, drop, repeat or rename parts of a parsed cluster file."""
    junk = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-2, 2**70),
        st.floats(),
        st.text(max_size=6),
        st.sampled_from(["CPU", "CPU@0-1", "t4", "-1 GB/s", "0", "inf", "1e400", "a", "fast", [], {}, ["fast", "edge"]]),
    )
    if draw(st.integers(0, 9)) == 0:
        return draw(junk)
    if isinstance(value, dict):
        items = [(key if draw(st.integers(0, 19)) else draw(st.text(max_size=4)), mutate(v, draw)) for key, v in value.items()]
        return dict(item for item in items if draw(st.integers(0, 19)))
    if isinstance(value, list):
        return [mutate(v, draw) for v in value for _ in range(draw(st.sampled_from([1, 1, 1, 1, 0, 2])))]
    return value


@st.composite
def mutated_files(draw: st.DrawFn) -> str:
    if draw(st.booleans()):
        return str(yaml.safe_dump(mutate(yaml.safe_load(FULL), draw)))
    text = FULL
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 12)))
        text = (
            text[:start]
            + draw(st.text(max_size=8) | st.sampled_from(["{", "]", "&a", "*a", "!!int", "\t", "\x85"]))
            + text[end:]
        )
    return text


@given(text=mutated_files() | st.text(max_size=60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
def test_any_file_is_a_cluster_or_a_clear_error(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8", errors="replace")
    try:
        said = f"{file} {read_cluster(file, check=False).names}"
    except PlaceitError as error:
        said = str(error)
    assert str(file) in said
    assert "\n" not in said
