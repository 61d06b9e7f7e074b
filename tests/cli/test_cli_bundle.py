"""``placeit build``, and ``placeit run`` of what it has written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placeit.session import Session
from tests.bundled import placed


@pytest.fixture(scope="module")
def bundle(tiny: Path, cores: Sequence[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundles") / "app.placeit"
    with Session(tiny, cores, cache=None) as session:
        session.build(placed(session, 1), path)
    return path


def test_a_placement_becomes_a_bundle(cli: Any, tiny: Path, placement: Path, cores: Sequence[str], tmp_path: Path) -> None:
    path = tmp_path / "app.placeit"
    result = cli("build", tiny, "-p", placement, "-o", path, "--name", "Tiny", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["name"], found["output"]) == ("Tiny", str(path))
    assert [device["name"] for device in found["devices"]] == list(cores)
    result = cli("run", path, "--runs", 1)
    assert result.exit_code == 0, result.stderr


def test_a_bundle_runs_with_the_options_of_a_placement(cli: Any, bundle: Path, tiny: Path, tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.{ending}" for name, ending in (("trace", "json"), ("record", "json"), ("csv", "csv"))}
    options = [text for name, path in files.items() for text in (f"--{name}", path)]
    result = cli("run", bundle, "--runs", 2, *options, "--outputs", tmp_path / "y.npz", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["model"], found["placement_file"], found["differences"]) == (str(bundle), None, [])
    assert (found["failed"], found["output_error"]["fault"]) == (None, None)
    assert all(path.stat().st_size for path in files.values())
    with np.load(tmp_path / "y.npz") as outputs:
        assert outputs.files


def test_requests_arrive_at_a_bundle_at_a_rate(cli: Any, bundle: Path) -> None:
    result = cli("run", bundle, "--rate", 200, "--requests", 5, "--live", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["ended"], found["errors"], found["failed"]) == (5, 0, None)


def test_inputs_of_a_users_own_are_compared_with_its_segments_one_by_one(
    cli: Any, bundle: Path, tiny: Path, placement: Path, tmp_path: Path
) -> None:
    from placeit.backends import load

    inputs = load(tiny).random_inputs(7)
    np.savez(tmp_path / "x.npz", **inputs)
    answers = []
    for what in ((bundle,), (tiny, "-p", placement)):
        result = cli("run", *what, "--runs", 1, "--inputs", tmp_path / "x.npz", "--outputs", tmp_path / "y.npz", "--json")
        assert result.exit_code == 0, result.stderr
        with np.load(tmp_path / "y.npz") as outputs:
            answers.append({name: outputs[name] for name in outputs.files})
    assert answers[0].keys() == answers[1].keys()
    for name, value in answers[1].items():
        np.testing.assert_allclose(answers[0][name], value, rtol=1e-4, atol=1e-4)


def test_what_differs_is_said(cli: Any, bundle: Path, cores: Sequence[str]) -> None:
    one, other = cores[0], cores[-1]
    mapping = {one: other, other: one} if one != other else {one: "CPU"}
    result = cli("run", bundle, "--runs", 1, "--rematch", ",".join(map("=".join, mapping.items())), "--json")
    assert result.exit_code == 0, result.stderr
    said = f"{mapping[one]} takes the place of {one}"
    assert said in json.loads(result.stdout)["differences"]
    assert f"was built elsewhere. {said}" in result.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--precision", "bf16"), "built with its own --precision"),
        (("--max-groups", "3"), "built with its own --max-groups"),
        (("--batch", "3"), "built with its own --batch"),
        (("-p", "p.json"), "built with its own --placement"),
        (("--rematch", "CPU@0"), "write OLD=NEW"),
        (("--rematch", "A=B,A=C"), "names 'A' twice"),
        (("--rematch", "A=B"), "has no device 'A' to rematch"),
        (("--rate", "3", "--csv", "t.csv"), "--csv is about single ones"),
    ],
)
def test_options_that_make_no_sense_for_a_bundle_are_refused(cli: Any, bundle: Path, options: Sequence[str], says: str) -> None:
    result = cli("run", bundle, *options)
    assert result.exit_code == 2
    assert says in result.stderr


def test_a_folder_that_holds_no_bundle_is_said_to_hold_none_whatever_else_is_asked(cli: Any, tmp_path: Path) -> None:
    for more in ((), ("--context", "8")):
        assert "the folder has neither bundle.json" in " ".join(
            cli("generate-text", tmp_path, "x", "-d", "CPU", *more).stderr.split()
        )


def test_a_model_is_not_taken_for_a_bundle_nor_a_bundle_for_a_model(
    cli: Any, bundle: Path, tiny: Path, placement: Path, tmp_path: Path
) -> None:
    for arguments, code, says in (
        (("run", tiny), 2, "Give --placement"),
        (("run", tiny, "-p", placement, "--rematch", "auto"), 2, "--rematch is about the devices that a bundle names"),
        (("optimize", bundle), 1, "`placeit run` takes it"),
        (("build", bundle, "-p", placement, "-o", tmp_path / "more.placeit"), 1, "`placeit run` takes it"),
        (("build", tiny, "-p", placement, "-o", bundle), 1, "exists, and a bundle replaces nothing"),
        (("build", tiny, "-p", placement, "-o", tmp_path / "more.placeit", "--name", " "), 2, "--name is empty"),
        (("run", tmp_path / "missing.placeit"), 1, "No such file"),
    ):
        result = cli(*arguments)
        assert (result.exit_code, says in result.stderr) == (code, True), result.stderr
