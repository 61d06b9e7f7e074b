"""Checkpoints that were changed on purpose, with a digest that fits their contents."""

import hashlib
import itertools
import json

import pytest
import torch
from safetensors.torch import save_file

from placeit.core.errors import FileError, PlaceitError, UsageError
from placeit.learning.agents.placeto.agent import PlacetoAgent
from placeit.learning.checkpoint import load_agent, save_agent, weights_of
from placeit.learning.registry import make_agent
from placeit.learning.training.loop import train
from placeit.placers.registry import parse_placer
from tests.learning.toy_agent import FEW, ToyAgent, stage, toy

GOOD = {"agent": "toy", "version": 1, "config": {"hidden": 4, "pace": 1.0}, "about": {}}


def write(path, about, weights=None, file_format="placeit-agent"):
    """Write a checkpoint as placeit does, whatever is in it."""
    weights = weights_of(toy()) if weights is None else weights
    digest = hashlib.sha256(json.dumps(about).encode())
    for name in sorted(weights):
        digest.update(f"{name} {weights[name].dtype} {tuple(weights[name].shape)} ".encode())
        digest.update(weights[name].reshape(-1).view(torch.uint8).numpy().tobytes())
    save_file(weights, path, {"placeit": json.dumps({"format": file_format, "digest": digest.hexdigest(), "about": about})})


def refused(path, load=lambda path: load_agent(path, lambda name: ToyAgent)):
    with pytest.raises(PlaceitError) as caught:
        load(path)
    assert path.name in str(caught.value) or isinstance(caught.value, UsageError)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "about",
    [
        None,
        [],
        "text",
        {},
        GOOD | {"agent": None},
        GOOD | {"version": None},
        GOOD | {"version": "1"},
        GOOD | {"config": None},
        GOOD | {"config": {"hidden": None, "pace": 1.0}},
        GOOD | {"config": {"hidden": "4", "pace": 1.0}},
        GOOD | {"config": {"hidden": 4.5, "pace": 1.0}},
        GOOD | {"config": {"hidden": -4, "pace": 1.0}},
        GOOD | {"config": {"hidden": 4, "pace": [1.0]}},
        GOOD | {"config": {"hidden": 4, "pace": float("nan")}},
        GOOD | {"config": {"hidden": 4, "speed": 1.0}},
        GOOD | {"about": None},
        GOOD | {"about": {"evaluation": float("inf")}},
    ],
    ids=str,
)
def test_what_a_checkpoint_says_about_its_agent_is_checked(tmp_path, about):
    path = tmp_path / "mine.safetensors"
    write(path, GOOD)
    assert load_agent(path, lambda name: ToyAgent).config == {"hidden": 4, "pace": 1.0}
    write(path, about)
    refused(path)


@pytest.mark.parametrize("text", ["null", "NaN", "[]", "1", '"text"', "{", "[" * 100_000, '{"a":' * 100_000, "9" * 5000])
def test_a_head_that_is_none_is_refused(tmp_path, text):
    path = tmp_path / "mine.safetensors"
    save_file(weights_of(toy()), path, {"placeit": text})
    refused(path)


def test_deep_nesting_is_refused(tmp_path):
    path = tmp_path / "mine.safetensors"
    nested = "[" * 50_000 + "]" * 50_000
    save_file(weights_of(toy()), path, {"placeit": f'{{"format": "placeit-agent", "digest": "", "about": {{"x": {nested}}}}}'})
    refused(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(tmp_path, value):
    path, weights = tmp_path / "mine.safetensors", weights_of(toy())
    weights["0.weight"][0, 0] = value
    write(path, GOOD, weights)
    assert "'0.weight' are not finite numbers" in refused(path)
    write(path, GOOD, {name: tensor.to(torch.complex64) for name, tensor in weights_of(toy()).items()})
    refused(path)


def test_sizes_that_no_machine_has_room_for_are_refused_before_there_is_a_network(tmp_path):
    path = tmp_path / "mine.safetensors"
    config = {"devices": 10**9, "rounds": 8}
    write(path, {"agent": "placeto", "version": PlacetoAgent.version, "config": config, "about": {}})
    assert "'devices'" in refused(path, load_agent)


def test_files_that_are_none_are_refused(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")  # opening it would wait for ever
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(FileError, match="Cannot read"):
            load_agent(path)


def trained(folder):
    """Train for an update of two; return the file of its state, and what is in it."""
    from safetensors import safe_open

    def interrupt(_, share):
        if share > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(toy(), [stage(2)], evaluate_on=FEW, seed=0, folder=folder, save_every=1, progress=interrupt)
    path = folder / "state.safetensors"
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["placeit"])["about"]
        return path, about, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


@pytest.mark.parametrize(
    ("group", "harm"),
    [
        *itertools.product(["weights/0", "best/0", "adam/exp_avg/0", "adam/exp_avg_sq/0", "adam/step/0"], ["gone", "empty"]),
        ("weights/0", "another type"),
        ("best/0", "another type"),
    ],
)
def test_every_tensor_of_a_state_is_checked(tmp_path, group, harm):
    path, about, tensors = trained(tmp_path)
    name = f"{group}.weight"
    if harm == "gone":
        del tensors[name]
    else:
        tensors[name] = torch.zeros(0) if harm == "empty" else tensors[name].to(torch.float64)
    write(path, about, tensors, "placeit-training")
    with pytest.raises(FileError, match=r"state\.safetensors is damaged"):
        train(toy(), [stage(2)], evaluate_on=FEW, seed=0, folder=tmp_path, resume=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"stage": None},
        {"stage": -1},
        {"update": "2"},
        {"best": "low"},
        {"best_at": 3},
        {"memory": None},
        {"rng": {}},
        {"rng": None},
        {"identity": None},
        {"rng": {"bit_generator": "PCG64", "state": {"state": -1, "inc": 10**400}, "has_uint32": 0, "uinteger": 0}},
    ],
    ids=range(10),
)
def test_a_state_of_a_training_is_checked(tmp_path, wrong):
    path, about, tensors = trained(tmp_path)
    write(path, about, tensors, "placeit-training")
    train(toy(), [stage(2)], evaluate_on=FEW, seed=0, folder=tmp_path, resume=True)
    write(path, about | wrong, tensors, "placeit-training")
    with pytest.raises(FileError, match=r"state\.safetensors is damaged"):
        train(toy(), [stage(2)], evaluate_on=FEW, seed=0, folder=tmp_path, resume=True)
    tensors["history"] = tensors["history"][:, :2].contiguous()
    write(path, about, tensors, "placeit-training")
    with pytest.raises(FileError, match=r"state\.safetensors is damaged"):
        train(toy(), [stage(2)], evaluate_on=FEW, seed=0, folder=tmp_path, resume=True)


@pytest.mark.parametrize(
    ("agent", "options"),
    [
        ("placeto", {"devices": 10**9}),
        ("placeto", {"rounds": 10**9}),
        ("hdp", {"hidden": 10**8}),
        ("hdp", {"ops": 10**12}),
        ("hdp", {"ops": 90_000, "hidden": 90_000}),
        ("giph", {"dim": 10**9}),
        ("giph", {"steps_per_op": 1e300}),
        ("giph", {"steps_per_op": float("nan")}),
    ],
)
def test_absurd_sizes_of_agents_are_usage_errors(agent, options):
    with pytest.raises(UsageError, match="|".join(options)):
        make_agent(agent, seed=0, **options)


@pytest.mark.parametrize(
    "text",
    [
        "hdp:hidden=100000000",
        "hdp:samples=1000000000",
        "hdp:learning_rate=nan",
        "annealing:evaluations=-1",
        "annealing:evaluations=1" + "0" * 400,
        "annealing:restarts=1000000000",
        "random:samples=1000000000000",
        "local-search:batch=0",
        "local-search:kick=inf",
        "metis:ways=1000000000",
        "giph:steps_per_op=1e300",
        "random-task-eft:steps_per_op=1e300",
        "placeto:steps_per_op=-1",
        "exact:nodes=1000000000000000000000",
        "cp-sat:effort=nan",
    ],
)
def test_absurd_options_of_placers_are_usage_errors(text):
    option = text.partition(":")[2].partition("=")[0]
    with pytest.raises(UsageError, match=f"The option '{option}' of the placer '.*' must be .*; got"):
        parse_placer(text)


def test_every_number_that_a_placer_takes_has_a_range():
    from placeit.placers.registry import placer_names, placer_options

    for name in placer_names():
        for option in placer_options(name):
            if option.type in (int, float):
                assert option.range[0] <= option.default <= option.range[1] < float("inf"), (name, option.name)


def test_a_full_disk_ends_a_training_with_an_error_that_names_the_file(tmp_path):
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4500, before[1]))  # holds a small state, and then no longer the log
    try:
        with pytest.raises(FileError, match=r"Cannot write .*(log\.csv|state\.safetensors|best\.safetensors)"):
            train(toy(), [stage(200)], evaluate_on=FEW, seed=0, folder=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_checkpoint_says_nothing_that_is_no_json(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        save_agent(toy(), tmp_path / "mine.safetensors", evaluation=float("nan"))
    assert list(tmp_path.iterdir()) == []
