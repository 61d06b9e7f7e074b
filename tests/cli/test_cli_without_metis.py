"""A process in which METIS is not installed, as on machines for which its package has no wheel."""

import subprocess
import sys
from pathlib import Path

import pytest

CHILD = """
import sys
sys.modules["pymetis"] = None
from placeit.cli import app
app(sys.argv[1:])
"""


@pytest.fixture
def without_metis(tmp_path: Path, cost_cache: Path, monkeypatch: pytest.MonkeyPatch):
    """Run a command in a process without METIS; return its exit code and what it prints."""
    monkeypatch.setenv("PLACEIT_CACHE", str(cost_cache))

    def run(*command: object) -> tuple[int, str]:
        words = [sys.executable, "-c", CHILD, *map(str, command)]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, encoding="utf-8", check=False)
        return done.returncode, done.stdout + done.stderr

    return run


def test_a_search_goes_without_metis(without_metis, tiny: Path, cores: tuple[str, ...]) -> None:
    code, shown = without_metis("optimize", tiny, "--devices", ",".join(cores), "--budget", 2, "--output", "placement.json")
    assert (code, "metis" in shown) == (0, False), shown
    code, shown = without_metis("placers")
    assert code == 0
    assert "metis" in shown
    assert "metis *" not in shown


def test_who_asks_for_metis_is_told_what_to_install(without_metis, tiny: Path, cores: tuple[str, ...]) -> None:
    code, shown = without_metis("optimize", tiny, "-d", ",".join(cores), "--placer", "metis", "-o", "p.json")
    assert code == 2
    assert "The placer 'metis' needs PyMetis, which is not installed: pip install 'placeit[metis]'" in " ".join(shown.split())
