"""Preparing a release: version, changelog, tag and files belong together."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "release"
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n## [1.2.0] - 2026-01-01\n\n- It is new.\n\n## [1.1.0]\n\n- It was.\n"
FILES = ["placeit-1.2.0.tar.gz", "placeit-1.2.0-cp311-manylinux_x86_64.whl", "placeit-1.2.0-cp311-manylinux_aarch64.whl"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository that is ready for the release of 1.2.0."""
    for name, text in (
        ("placeit/core/version.py", '__version__ = "1.2.0"\n'),
        ("CHANGELOG.md", CHANGELOG),
        (".gitignore", "dist/\n"),
        ("pyproject.toml", "[project.urls]\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for folder in ("tools", "dist"):
        (tmp_path / folder).mkdir()
    shutil.copy2(TOOL, tmp_path / "tools")
    for name in FILES:
        (tmp_path / "dist" / name).write_text(name)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    commit(tmp_path)
    return tmp_path


def commit(project: Path) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["add", "--all"], [*who, "commit", "--quiet", "--message", "Change"]):
        subprocess.run(["git", *command], cwd=project, check=True)


def prepare(project: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([project / "tools/release"], capture_output=True, encoding="utf-8", check=False)


def test_a_release_has_sums_notes_and_says_what_is_left(project: Path) -> None:
    done = prepare(project)
    assert done.returncode == 0, done.stderr
    assert (project / "dist/NOTES.md").read_text().strip() == "- It is new."
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=project / "dist", check=True)
    assert len((project / "dist/SHA256SUMS").read_text().splitlines()) == len(FILES)
    assert "git tag --annotate v1.2.0" in done.stdout
    assert "fill in the addresses" not in done.stdout


def test_a_project_without_addresses_is_told_to_give_them_first(project: Path) -> None:
    (project / "pyproject.toml").write_text("[project]\n")
    commit(project)
    assert "What is left:\n  fill in the addresses" in prepare(project).stdout


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "changes": (lambda at: (at / "new.py").write_text(""), "changes that are not committed"),
    "tag": (lambda at: subprocess.run(["git", "tag", "v1.2.0"], cwd=at, check=True), "the tag v1.2.0 exists"),
    "files": (lambda at: (at / "dist" / FILES[2]).unlink(), "no placeit-1.2.0-*aarch64.whl: run 'make dist' first"),
}


@pytest.mark.parametrize(("spoil", "why"), FAULTS.values(), ids=FAULTS)
def test_what_does_not_belong_together_is_said(project: Path, spoil: Callable[[Path], object], why: str) -> None:
    spoil(project)
    done = prepare(project)
    assert done.returncode == 1
    assert why in done.stderr
    assert not (project / "dist/SHA256SUMS").exists()


def test_a_version_without_notes_is_not_released(project: Path) -> None:
    (project / "CHANGELOG.md").write_text(CHANGELOG.replace("[1.2.0]", "[Unreleased]"))
    commit(project)
    assert "no section '## [1.2.0]'" in prepare(project).stderr
