from __future__ import annotations

import json
import subprocess
import sys

import pytest

from placeit.devices.host import allowed_cores


@pytest.mark.slow
@pytest.mark.skipif(not {0, 1} <= set(allowed_cores()), reason="needs the CPU cores 0 and 1, which the commands name")
def test_every_task_of_a_first_day_is_solved_by_its_command() -> None:
    command = [sys.executable, "-m", "benchmarks.first_day", "--quick", "--json"]
    result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    assert [row for row in result["rows"] if row["seconds"] is not None and row["remark"]] == []
    assert result["claims"][0]["holds"]
