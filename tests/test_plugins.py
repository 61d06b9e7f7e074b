"""A package that adds a placer, a backend, a kind of device and an agent, found through entry points only."""

import os
import subprocess
import sys
from pathlib import Path

from plugin_site import install_sample

from placeit.devices.host import allowed_cores

USE = """
from pathlib import Path
import placeit
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device
from placeit.placers.learned.registry import make_agent

cluster = Cluster((Device("mine", kind="sleep", address=Address("CPU", ({core},))),))
found = placeit.optimize("five.tanhs", cluster, placers=("round-robin",), budget=2, cache=None)
assert found.ops == 7, found.ops
assert found.chosen.name == "mine"
assert found.chosen.measured is not None
with placeit.Session("five.tanhs", cluster, cache=None) as session:
    assert session.run(found.placement, runs=2).failed is None
assert make_agent("dealt", seed=0, devices=3).name == "dealt"
try:
    unknown = Device("x", kind="unknown", address=Address("CPU", ({core},)))
    placeit.Session("five.tanhs", Cluster((unknown,)), cache=None).costs
except placeit.PlaceitError as error:
    print(error)
"""


def test_one_package_adds_a_placer_a_backend_a_kind_of_device_and_an_agent(tmp_path: Path) -> None:
    (tmp_path / "five.tanhs").write_text("5", encoding="utf-8")
    path = os.pathsep.join([*install_sample(tmp_path / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", USE.replace("{core}", str(allowed_cores()[0]))],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "device of kind 'unknown', which this version cannot run; it runs openvino, ort, torch, sleep." in done.stdout
