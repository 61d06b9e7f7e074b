"""The fuzzer finds out whatever goes wrong with a case, makes cases again, and keeps and tells those that went wrong."""

from pathlib import Path

import pytest

from benchmarks import fuzz
from benchmarks._fuzz_cases import Case, make_case, pack, unpack
from benchmarks._fuzz_child import STATUSES, Outcome
from benchmarks._harness import Args, Report
from tests.benchmarks.misbehaving import WRONG, misbehave


@pytest.mark.slow
def test_whatever_goes_wrong_is_found_out(tmp_path: Path) -> None:
    assert {*WRONG.values(), "hung"} == set(STATUSES)
    paths = {name: tmp_path / f"{name}.zip" for name in (*WRONG, "hang")}
    for name, path in paths.items():
        path.write_bytes(pack(Case("inputs", (name, "--json"), {"x": b"given"}, results=("out",))))
    found = dict(fuzz.try_all([paths[name] for name in WRONG], tmp_path, ("", ""), 0, command=misbehave))
    assert {name: found[paths[name]].status for name in WRONG} == WRONG, found
    for name, words in {"crash": "SIGSEGV", "raise": "KeyError", "beside": "other"}.items():
        assert words in found[paths[name]].reason
    [(_, hung)] = fuzz.try_all([paths["hang"]], tmp_path, ("", ""), 0, case_s=1.0, command=misbehave)
    assert (hung.status, "placeit hang" in hung.reason) == ("hung", True)


def test_a_case_is_made_again_from_its_number_and_from_what_is_kept(tmp_path: Path) -> None:
    for folder, name in (("inputs", "x.npz"), ("cluster", "described.yaml"), ("cache", "a.json"), ("onnx", "tiny.onnx")):
        (tmp_path / "seeds" / folder).mkdir(parents=True)
        (tmp_path / "seeds" / folder / name).write_text('devices: {a: {"runs_on": "CPU"}}')
    numbers = [number for number in range(40) if number % 20 in (2, 10)]
    cases, again = ([make_case(tmp_path / "seeds", ("CPU@0", "CPU@1"), 1, number) for number in numbers] for _ in range(2))
    assert cases == again == [unpack(pack(case)) for case in cases]
    assert len({tuple(sorted(case.files.items())) for case in cases}) == len(cases)


def test_cases_that_went_wrong_are_listed_kept_and_break_the_claim(tmp_path: Path) -> None:
    report, case = Report(commit=None), Case("onnx", ("inspect", "model.onnx"), {"model.onnx": b"x"})
    bugs = {number: (case, Outcome("bug", f"KeyError: {number}")) for number in (1, 2)}
    fuzz._report(report, {0: (case, Outcome("done")), **bugs}, Args(keep=str(tmp_path / "kept"), seed=7))
    [row] = [row for row in report.rows if "wrong" in row]
    assert (row["wrong"], row["kind"], row["status"], row["for_example"]) == (2, "onnx", "bug", "1")
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["onnx-7-1.zip", "onnx-7-2.zip"]
    assert unpack(Path(str(row["file"])).read_bytes()) == case
    assert {claim["name"].partition(",")[0] for claim in report.claims if claim["holds"] is False} == {"bug"}
