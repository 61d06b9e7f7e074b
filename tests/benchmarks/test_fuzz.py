"""Damaged files: placeit bears a few of each kind, and whatever goes wrong with one is told, kept and can be run again."""

from pathlib import Path

import pytest
from misbehaving import misbehave

from benchmarks import fuzz
from benchmarks._fuzz_cases import KINDS, Case, make_case, pack, unpack
from benchmarks._fuzz_child import STATUSES, Outcome
from benchmarks._harness import Args, Report
from placeit.devices.host import allowed_cores

DEVICES = tuple(f"CPU@{core}" for core in allowed_cores()[:2])
needs_two_cores = pytest.mark.skipif(len(DEVICES) < 2, reason="needs two CPU cores, and this process may use one")


@needs_two_cores
@pytest.mark.slow
def test_placeit_bears_cases_of_every_kind(tmp_path: Path) -> None:
    report = Report(commit=None)
    fuzz.run(Args(last=20, keep=str(tmp_path / "kept")), report)
    assert [row for row in report.rows if "wrong" in row] == []
    assert {claim["holds"] for claim in report.claims} == {True}
    rows = {row["kind"]: row for row in report.rows if "kind" in row}
    assert rows.keys() == KINDS.keys()
    assert sum(row[status] for row in rows.values() for status in STATUSES) == 20
    assert sum(row["refused"] for row in rows.values()) >= 5
    assert not (tmp_path / "kept").exists()


WRONG = {
    "crash": "crashed",
    "exit": "crashed",
    "hang": "hung",
    "raise": "bug",
    "bug": "bug",
    "lines": "unclear",
    "noise": "unclear",
    "library": "unclear",
    "silent": "unclear",
    "nan": "unclear",
    "code": "exit code",
    "beside": "wrote",
    "above": "wrote",
    "input": "wrote",
    "early": "wrote",
    "process": "ran code",
    "memory": "memory",
    "refuse": "refused",
    "work": "done",
}


@pytest.mark.slow
def test_whatever_goes_wrong_is_found_out(tmp_path: Path) -> None:
    assert set(WRONG.values()) == set(STATUSES)
    paths = {name: tmp_path / f"{name}.zip" for name in WRONG}
    for name, path in paths.items():
        path.write_bytes(pack(Case("inputs", (name, "--json"), {"x": b"given"}, results=("out",))))
    found = dict(fuzz.try_all(paths.values(), tmp_path, ("", ""), 0, case_s=8.0, command=misbehave))
    assert {name: found[path].status for name, path in paths.items()} == WRONG, found
    assert "SIGSEGV" in found[paths["crash"]].reason
    assert "placeit hang" in found[paths["hang"]].reason
    assert "KeyError" in found[paths["raise"]].reason
    assert "other" in found[paths["beside"]].reason


@needs_two_cores
def test_a_case_is_made_again_from_its_number_and_from_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, name in (("inputs", "x.npz"), ("cluster", "described.yaml"), ("cache", "a.json"), ("onnx", "tiny.onnx")):
        (tmp_path / "seeds" / folder).mkdir(parents=True)
        (tmp_path / "seeds" / folder / name).write_text('devices: {a: {"runs_on": "CPU"}}')
    numbers = [number for number in range(40) if number % 20 in (2, 10)]
    cases = [make_case(tmp_path / "seeds", DEVICES, 1, number) for number in numbers]
    assert cases == [make_case(tmp_path / "seeds", DEVICES, 1, number) for number in numbers]
    assert len({tuple(sorted(case.files.items())) for case in cases}) == len(cases)
    assert [unpack(pack(case)) for case in cases] == cases
    pipe = Case("cache", ("devices",), {"cache/a.json": None, "x": b"1"}, outputs=("run/",), measures=True)
    assert unpack(pack(pipe)) == pipe


def test_cases_that_went_wrong_are_listed_kept_and_break_the_claim(tmp_path: Path) -> None:
    report = Report(commit=None)
    case = Case("onnx", ("inspect", "model.onnx"), {"model.onnx": b"x"})
    found = {
        0: (case, Outcome("done")),
        1: (case, Outcome("bug", "KeyError: 'a'")),
        2: (case, Outcome("bug", "KeyError: 'b'")),
    }
    fuzz._report(report, found, Args(keep=str(tmp_path / "kept"), seed=7))
    [row] = [row for row in report.rows if "wrong" in row]
    assert (row["wrong"], row["kind"], row["status"], row["for_example"]) == (2, "onnx", "bug", "1")
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["onnx-7-1.zip", "onnx-7-2.zip"]
    assert unpack(Path(str(row["file"])).read_bytes()) == case
    assert {claim["name"].partition(",")[0] for claim in report.claims if claim["holds"] is False} == {"bug"}


@pytest.mark.slow
@needs_two_cores
@pytest.mark.timeout(900)
def test_placeit_bears_hundreds_of_cases(tmp_path: Path) -> None:
    report = Report(commit=None)
    fuzz.run(Args(last=300, seed=1, keep=str(tmp_path / "kept")), report)
    assert [row for row in report.rows if "wrong" in row] == []
