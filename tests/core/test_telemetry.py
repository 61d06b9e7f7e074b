"""Nothing is sent, and the process is not changed in any other way; each test is a separate process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPORTER = """
import os
from pathlib import Path

def tell(what):
    with Path(os.environ["REPORTS"]).open("a") as file:
        file.write(f"{what}\\n")

tell("imported")

class Telemetry:
    def __init__(self, *args, **kwargs):
        pass

    def send_event(self, *args, **kwargs):
        tell("sent")

    start_session = end_session = send_event
"""

MODEL = """
import onnx
from onnx import helper
ends = [[helper.make_tensor_value_info(name, 1, [2])] for name in "xy"]
graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", *ends)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), "model.onnx")
"""


@pytest.fixture
def run(tmp_path):
    """Run a program where OpenVINO's reporter is one that writes to a file; returns what it wrote."""
    package = tmp_path / "site" / "openvino_telemetry"
    (package / "backend").mkdir(parents=True)
    (package / "__init__.py").write_text(REPORTER)
    (package / "backend" / "__init__.py").write_text("backend_ga4 = None\n")
    reports, home = tmp_path / "reports.txt", tmp_path / "home"
    home.mkdir()

    def run(program: str, **variables: str) -> list[str]:
        ours = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "ORT_"))}
        path = os.pathsep.join([str(package.parent), str(Path(__file__).parents[2])])
        places = {"PYTHONPATH": path, "REPORTS": str(reports), "HOME": str(home), "TMPDIR": str(home)}
        environment = {**ours, **places, **variables}
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", check=False
        )
        assert done.returncode == 0, done.stderr
        return reports.read_text().split() if reports.exists() else []

    run.home = home
    return run


UNCHANGED = """
import os, sys
before = dict(os.environ)
{use}
assert dict(os.environ) == before
assert [name for name, module in sys.modules.items() if module is None] == []
"""


def test_openvino_reports_its_import_where_nobody_prevents_it(run):
    assert "sent" in run("import openvino")


def test_importing_placeit_changes_nothing_of_the_process(run):
    assert run(UNCHANGED.format(use="import placeit")) == []
    assert "sent" in run("import placeit, openvino")


def test_a_model_is_converted_without_a_report_and_the_reporter_can_be_imported_afterwards(run):
    use = MODEL + "import placeit\nassert placeit.load('model.onnx').graph.kinds[1] == 'Relu'\nplaceit.discover('CPU')\n"
    end = "\nassert 'openvino' in sys.modules\nassert 'openvino_telemetry' not in sys.modules\nimport openvino_telemetry\n"
    assert run(UNCHANGED.format(use=use) + end) == ["imported"]


def test_a_reporter_that_the_user_has_imported_stays_what_it_is(run):
    program = """
import sys
import openvino_telemetry
mine = sys.modules["openvino_telemetry"]
from placeit.core.telemetry import import_openvino
assert import_openvino() is sys.modules["openvino"]
assert sys.modules["openvino_telemetry"] is mine
"""
    assert "sent" in run(program)


def test_an_openvino_that_the_user_has_imported_stays_what_it_is(run):
    program = """
import sys
import openvino
mine = sys.modules["openvino_telemetry"]
from placeit.core.telemetry import import_openvino
assert import_openvino() is openvino
assert sys.modules["openvino_telemetry"] is mine
"""
    assert run(program).count("imported") == 1


def test_threads_that_need_openvino_at_once_all_get_it_and_no_report(run):
    program = """
from concurrent.futures import ThreadPoolExecutor
from placeit.core.telemetry import import_openvino
with ThreadPoolExecutor(8) as pool:
    assert len({id(done.result().Core) for done in [pool.submit(import_openvino) for _ in range(8)]}) == 1
"""
    assert run(UNCHANGED.format(use=program)) == []


ORT = (
    MODEL
    + """
from placeit.core.telemetry import import_onnxruntime
import_onnxruntime().InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
"""
)


def test_onnx_runtime_writes_nothing_to_the_home_folder_and_the_environment_is_as_it_was(run):
    pytest.importorskip("onnxruntime")
    run(UNCHANGED.format(use=ORT))
    assert list(run.home.rglob("*")) == []


def test_what_the_environment_says_to_onnx_runtime_holds(run):
    pytest.importorskip("onnxruntime")
    run(UNCHANGED.format(use=ORT + "assert os.environ['ORT_DISABLE_TELEMETRY'] == '0'"), ORT_DISABLE_TELEMETRY="0")


def test_a_library_that_is_missing_is_an_import_error_and_the_environment_is_as_it_was(run):
    program = """
sys.modules["onnxruntime.capi"] = sys
from placeit.core.telemetry import import_onnxruntime
try:
    import_onnxruntime()
except ImportError:
    pass
else:
    raise AssertionError
"""
    run(UNCHANGED.format(use=program))


@pytest.mark.parametrize(("before", "severity"), [("", ["3"]), ("import onnxruntime; ", [])], ids=["ours", "somebody else's"])
def test_onnx_runtime_writes_errors_only_unless_somebody_else_has_imported_it(run, before, severity):
    package = Path(os.fspath(run.home)).parent / "site" / "onnxruntime"
    package.mkdir()
    tell = "open(os.environ['REPORTS'], 'a').write(f'{severity}')"
    (package / "__init__.py").write_text(f"import os\ndef set_default_logger_severity(severity): {tell}\n")
    assert run(f"{before}from placeit.core.telemetry import import_onnxruntime; import_onnxruntime()") == severity
