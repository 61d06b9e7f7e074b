"""Fleet files are read strictly, and planned: what serves what, what cannot be placed, and what would place it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from placeit.core.errors import FileError, WorkloadError
from placeit.workload.fleet_file import read_fleet
from placeit.workload.fleet_plan import plan_fleet
from tests.schema_check import check_schema
from tests.workload.fleets import FLEET, write_fleet


def planned(path: Path) -> dict[str, Any]:
    """The plan of a fleet file, as ``placeit plan --json`` prints it."""
    found: dict[str, Any] = json.loads(
        json.dumps({"schema": "placeit.plan/1", "fleet": str(path), **plan_fleet(path).to_dict()})
    )
    check_schema(found, "placeit.plan/1")
    return found


def test_a_fleet_is_planned_from_its_file() -> None:
    found = planned(FLEET)
    assert (found["placed"], found["unplaced"], found["limits_factor"]) == (True, [], None)
    assert [node["name"] for node in found["nodes"]] == ["server", "box-1", "box-2"]
    served = {node["name"]: {one["name"] for one in node["models"]} for node in found["nodes"]}
    assert served["server"] | served["box-1"] | served["box-2"] == {"detector", "classifier"}
    assert sum(one["rate_per_s"] for node in found["nodes"] for one in node["models"]) == pytest.approx(45)
    assert all(model["in_time"] > 0.95 for model in found["models"])
    assert found["largest_factor"] > 1
    assert found["reason"].startswith("all 45 requests/s are placed, on")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{shop: 20}", "{shop: 0}", r"line 17: 'models\[0\].rates.shop' is 0; it must be above 0"),
        ("{shop: 20}", "{shopp: 20}", r"line 17: 'models\[0\].rates' has the unknown key 'shopp' \(did you mean 'shop'"),
        ("core: {}", "core: {parent: shop, latency: 1ms, bandwidth: 1 Gbit/s}", r"yaml: The links .* circle \(core, shop\)"),
        ("core: {}", "core: {}\n  far: {}", "No link joins the sites 'core' and 'far'"),
        ("parent: core, ", "", "line 4: 'sites.shop' has no 'parent'"),
        (
            "parent: core",
            "parent: cor",
            r"line 4: 'sites.shop.parent' is 'cor', which the file does not describe \(did you mean",
        ),
        ("server:", "box:", "line 11: 'nodes' has the key 'box' twice"),
        ("server:", "box-1:", "The node 'box-1' appears twice"),
        ("count: 2", "count: 0", "'nodes.box.count' is 0; it must be at least 1"),
        ("count: 2", "count: 100000", "with 'nodes.box', there are 100001 nodes; a fleet has 100000 at most"),
        ("count: 2", "count: 1.5", r"'nodes.box.count' is 1.5; it must be a whole number"),
        ("class: gpu", "class: tpu", "line 10: 'nodes.server.class' is 'tpu', which the file does not describe"),
        ("{gpu: 4ms,", "{tpu: 4ms,", r"line 14: 'models\[0\].seconds' has the unknown key 'tpu'"),
        ("{gpu: 4ms,", "{gpu: 0,", r"'models\[0\].seconds.gpu' is zero"),
        ("memory: 200 MB", "memory: 200 GB", "the model 'detector' fits nowhere: it takes 200 GB, and 4 nodes, .* hold 64 GB"),
        ("{gpu: 1ms, cpu: 10ms}", "{npu: 1ms}", "the model 'classifier' fits nowhere: no node is of a class in its seconds"),
        ("request: 300 kB", "request: inf", r"line 13: 'models\[0\]' has a size that is infinite"),
        ("name: classifier", "name: detector", "Two models of the workload are named 'detector'"),
        ("    request: 300 kB  #", "    #", r"line 13: 'models\[0\]' has no 'request'"),
        ("rates: {shop: 20}", "rates: {}", r"'models\[0\].rates' is empty"),
    ],
)
def test_what_is_wrong_with_a_fleet_file_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        plan_fleet(write_fleet(tmp_path / "fleet.yaml", old, new))


def test_measured_seconds_are_read_from_what_run_and_profile_print(tmp_path: Path) -> None:
    path = write_fleet(tmp_path / "fleet.yaml", "cpu: 10ms", "cpu: times.json")
    with pytest.raises(FileError, match=r"times\.json"):
        read_fleet(path)
    one = {"whole_model_s": 0.02}
    for data in ({"latency_s": {"median": 0.02}, "failed": None}, {"groups": [], "devices": [one]}):
        (tmp_path / "times.json").write_text(json.dumps(data))
        assert read_fleet(path)[1].seconds[1, 1] == 0.02
    for wrong in (
        {"latency_s": {"median": 0.02}, "failed": "wrong"},
        {"groups": [], "devices": [one, one]},
        [],
        {"latency_s": 1},
    ):
        (tmp_path / "times.json").write_text(json.dumps(wrong))
        with pytest.raises(WorkloadError, match=r"times\.json does not have the time of a model on one device"):
            read_fleet(path)


@pytest.mark.parametrize(
    ("old", "new", "why", "remedy"),
    [
        ("{shop: 20}", "{shop: 2000}", "the nodes in reach have no room", r"placed at 0\.\d+ times the rates$"),
        (
            "p95=50ms",
            "p95=5ms",
            r"a request takes 16\.\d* ms at least, and has 5 ms",
            r"placed with limits \d\.\d+ times as long$",
        ),
        ("site: core", "site: shop", "no node in reach can run it", "neither lower rates nor longer limits help"),
    ],
)
def test_what_is_not_placed_is_named_with_the_nearest_plan_that_works(
    tmp_path: Path, old: str, new: str, why: str, remedy: str
) -> None:
    found = planned(write_fleet(tmp_path / "fleet.yaml", old, new))
    assert not found["placed"]
    assert all(re.search(why, one["why"]) for one in found["unplaced"])
    assert re.search(remedy, found["reason"])


def test_the_nearest_plan_works(tmp_path: Path) -> None:
    factor = planned(write_fleet(tmp_path / "fleet.yaml", "p95=50ms", "p95=5ms"))["limits_factor"]
    assert planned(write_fleet(tmp_path / "fleet.yaml", "p95=50ms", f"p95={5 * factor}ms"))["placed"]
    factor = planned(write_fleet(tmp_path / "fleet.yaml", "{shop: 20}", "{shop: 2000}"))["largest_factor"]
    rates = f"{{shop: {2000 * factor}}}"
    assert planned(write_fleet(tmp_path / "fleet.yaml", "{shop: 20}", rates))["models"][0]["placed_per_s"] > 50
