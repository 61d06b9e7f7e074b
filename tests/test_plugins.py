"""A package that adds placers, objectives, backends, kinds of devices, agents, teachers and data sets, by entry points."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from placeit.core.problem import Problem
from placeit.devices.host import allowed_cores
from tests.plugin_site import install_sample

USE = """
from pathlib import Path
import placeit
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device
from placeit.learning.registry import make_agent

cluster = Cluster((Device("mine", kind="sleep", address=Address("CPU", ({core},))),))
found = placeit.optimize("five.tanhs", cluster, candidates=placeit.Candidates(("round-robin",)), budget=2, cache=None)
assert found.ops == 7, found.ops
assert len(placeit.load("tanh-chain:3").graph) == 5
assert found.chosen.name == "mine"
assert found.chosen.measured is not None
with placeit.Session("five.tanhs", cluster, cache=None) as session:
    assert session.run(found.placement, runs=2).failed is None
assert make_agent("dealt", seed=0, devices=3).name == "dealt"
try:
    unknown = Device("x", kind="unknown", address=Address("CPU", ({core},)))
    placeit.Session("five.tanhs", Cluster((unknown,)), cache=None).profile()
except placeit.PlaceitError as error:
    print(error)
"""


OBJECTIVE = """
import placeit
from placeit.core.cluster import Cluster, Device, Link

figures = {"kind": "described", "flops_per_s": 1e3, "bytes_per_s": 1e3}
links = {pair: Link(1e12, 0.0, "described") for pair in (("a", "b"), ("b", "a"))}
cluster = Cluster((Device("a", **figures), Device("b", **figures)), links)
asked = {"objective": "busiest", "candidates": placeit.Candidates("heft"), "budget": 30, "cache": None}
for devices, several in ((cluster, True), ("CPU@{core}", False)):
    found = placeit.optimize("five.tanhs", devices, **asked)
    assert found.objective.name == "busiest"
    assert found.to_dict()["objective_unit"] == "s"
    if several:
        assert found.chosen.simulated_value < found.best_single.simulated_value
    else:
        assert found.chosen.value.median > 0
"""


CABLES = """
import threading
import numpy as np
import placeit
from placeit_round_robin.sleep import Cable

model = placeit.load("five.tanhs")
names = "sleep:0", "sleep:1", "CPU@{core}"
pins = {op: names[v % 3] for v, op in enumerate(model.graph.names)}
with placeit.Session(model, ",".join(names), cache=None, constraints=placeit.Constraints(pins)) as session:
    session.profile(budget_s=1)
    assert Cable.plugged == 2
    before = Cable.moved
    thirds = np.arange(len(model.graph), dtype=np.int32) % 3
    report = session.run(placeit.Placement(model.graph.names, thirds, names, model.graph.hash), runs=2)
    assert report.failed is None, report.failed
    assert report.host_paced == ()
    moved = {span.where for span in report.spans if span.kind == "copy"}
    assert ("sleep:0", "sleep:1") in moved, moved  # by a cable
    assert ("sleep:1", "CPU@{core}") in moved, moved  # through the memory of the host
    assert Cable.moved > before
assert Cable.plugged == 0
assert not [thread for thread in threading.enumerate() if thread.name.startswith("cable")]
"""


@pytest.fixture
def run(tmp_path: Path):
    """Run Python in a separate folder, where the package is installed; returns what it prints, or why it fails."""
    path = os.pathsep.join([*install_sample(tmp_path / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])

    def run(*arguments: str, fails: bool = False) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert (done.returncode != 0) == fails, done.stderr
        return done.stderr if fails else done.stdout

    return run


def test_one_package_adds_a_placer_a_backend_a_kind_of_device_and_an_agent(tmp_path: Path, run) -> None:
    (tmp_path / "five.tanhs").write_text("5", encoding="utf-8")
    printed = run("-c", USE.replace("{core}", str(allowed_cores()[0])))
    assert (
        "device of kind 'unknown', which this version cannot run; it runs openvino, ort, torch, throughput, inductor, sleep."
        in printed
    )


def test_an_objective_of_a_package_is_searched_by_and_listed(tmp_path: Path, run) -> None:
    (tmp_path / "five.tanhs").write_text("5", encoding="utf-8")
    run("-c", OBJECTIVE.replace("{core}", str(allowed_cores()[0])))
    said = run("-m", "placeit", "optimize", "--help")
    assert "total-cost, energy or busiest" in " ".join(said.split())
    said = run("-m", "placeit", "optimize", "five.tanhs", "--objective", "speed", fails=True)
    assert "there are latency, throughput, total-cost, energy, busiest" in " ".join(said.split())


@pytest.mark.slow
def test_a_kind_of_device_brings_links_of_its_own_which_are_closed_with_the_session(tmp_path: Path, run) -> None:
    """Two of its devices, with separate memory, beside a core."""
    (tmp_path / "five.tanhs").write_text("5", encoding="utf-8")
    run("-c", CABLES.replace("{core}", str(allowed_cores()[0])))


@pytest.mark.slow
def test_a_data_set_of_a_package_is_generated_and_learned_from_by_name(tmp_path: Path, run) -> None:
    said = json.loads(run("-m", "placeit", "generate", "chains", "-n", "3", "--split", "test", "-o", "out", "--json"))
    assert (said["kind"], said["split"], said["problems"], said["devices"]) == ("chains", "test", 3, {"least": 3, "most": 3})
    listed = json.loads((tmp_path / "out" / "index.json").read_text())["problems"]
    for entry in listed:
        assert len(Problem.from_json(tmp_path / "out" / entry["file"])) == entry["parameters"]["ops"]
    stage = ("--stage", "reinforce:updates=2,problems=1,evaluate_every=1")
    arguments = ("--problems", "chains", "--held-out", "2", *stage, "-o", "out.safetensors", "--json")
    said = json.loads(run("-m", "placeit", "train", "dealt:devices=3,rounds=1", *arguments))
    assert said["problems"] == {"source": "chains", "learned_from": 18, "held_out": 2, "unit": "critical path"}
    assert said["agent"] == "dealt"


def test_a_command_of_a_package_is_listed_and_run(run) -> None:
    listed = run("-m", "placeit", "--help")
    assert re.search(r"\n  deal +Say which device each op is dealt to\.\n", listed)
    assert re.search(r"\n  lost +The command 'lost' \(placeit_round_robin\.nowhere:LOST\)", listed)
    assert json.loads(run("-m", "placeit", "deal", "5", "--json")) == {"dealt": [0, 1, 0, 1, 0]}
    assert run("-m", "placeit", "deal", "3", "--devices", "3") == "0 1 2\n"
    assert "placeit deal 5 --devices 2" in run("-m", "placeit", "deal", "--help")
    failed = run("-m", "placeit", "lost", fails=True)
    assert failed.startswith("error: The command 'lost' (placeit_round_robin.nowhere:LOST) cannot be loaded: No module named")
    assert len(failed.splitlines()) == 1


def test_a_command_that_placeit_has_already_is_an_error_that_names_both(run, tmp_path: Path) -> None:
    (entry_points,) = tmp_path.glob("site/*/entry_points.txt")
    entry_points.write_text("[placeit.commands]\nrun = mine:RUN\n")
    said = run("-m", "placeit", "--help", fails=True)
    assert said.startswith("error: Two commands are named 'run': placeit.cli.run:run and mine:RUN.")


TAUGHT = """
from placeit.learning.agent import ProblemInstance
from placeit.learning.registry import make_agent
from placeit.learning.training.loop import Stage, train
from placeit.simulator.simulate import SimulatedCost
from placeit.learning.workloads.registry import find_dataset

problem = next(iter(find_dataset("chains").cases(None, 0))).problem
instance = ProblemInstance(problem, SimulatedCost(problem), 1.0)
agent = make_agent("doppler", seed=0, width=16)
stage = Stage(lambda *_: [instance] * 8, 200, "imitation", learning_rate=0.01, teacher="last-device")
losses = [one.loss for one in train(agent, [stage], evaluate_on=(), seed=0).history]
assert losses[-1] < 0.5 * losses[0], losses
agent.network.eval()
assert (agent.greedy_placement(problem) == 2).all(), agent.greedy_placement(problem)
"""


@pytest.mark.slow
def test_a_teacher_of_a_package_is_imitated_by_name(run) -> None:
    run("-c", TAUGHT)
