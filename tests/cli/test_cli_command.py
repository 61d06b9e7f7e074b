import errno
import json
import logging
import os
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import pytest
import typer
from rich.console import Console
from rich.live import Live
from typer.testing import CliRunner

from placeit.cli.command import command
from placeit.cli.terminal import Output, Terminal
from placeit.core.errors import ModelError, UsageError


def invoke(work: Callable[[], dict[str, Any]], *arguments: str) -> Any:
    def act(*, terminal: Terminal, count: Annotated[int, typer.Option("--count")] = 1) -> Output:
        """Act."""
        return Output(work() | {"count": count}, lambda console: console.print(f"count is {count}"))

    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command(act))
    return CliRunner().invoke(app, list(arguments))


def failing(error: BaseException) -> Callable[[], dict[str, Any]]:
    def work() -> dict[str, Any]:
        raise error

    return work


def test_a_result_is_text_or_json_and_nothing_else_is_on_standard_output() -> None:
    def noisy() -> dict[str, Any]:
        print("a library says hello")  # noqa: T201
        return {"worked": True}

    assert invoke(noisy, "--count", "3").stdout == "count is 3\n"
    result = invoke(noisy, "--count", "3", "--json")
    assert json.loads(result.stdout) == {"worked": True, "count": 3}
    assert "a library says hello" in result.stderr


def test_a_warning_stands_above_what_a_terminal_is_shown_live() -> None:
    def warned() -> dict[str, Any]:
        with Live("what goes on", console=Console(stderr=True, force_terminal=True), auto_refresh=False) as live:
            live.refresh()
            logging.getLogger("placeit").warning("a is lost")
        return {}

    before, _, after = invoke(warned).stderr.partition("warning: a is lost\n")
    assert before.endswith("what goes on\r\x1b[2K")  # which clears the line
    assert after.startswith("what goes on")


def test_what_is_not_finite_is_null_in_json() -> None:
    result = invoke(lambda: {"figures": [1.5, float("inf"), float("nan")]}, "--json")
    assert json.loads(result.stdout)["figures"] == [1.5, None, None]


@pytest.mark.parametrize(("error", "code"), [(ModelError("a.onnx is\n empty."), 1), (UsageError("a.onnx is empty."), 2)])
def test_an_expected_error_is_one_paragraph_and_an_exit_code(error: Exception, code: int) -> None:
    result = invoke(failing(error), "--json")
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", "error: a.onnx is empty.\n")


def test_an_unexpected_error_is_called_a_bug_and_exits_with_70() -> None:
    result = invoke(failing(KeyError("lost")))
    assert result.exit_code == 70
    assert result.stderr.startswith("error: This is a bug in placeit (KeyError: 'lost').")
    assert "--debug" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_debug_shows_the_traceback_of_an_error() -> None:
    result = invoke(failing(ModelError("it is empty.")), "--debug")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert result.stderr.endswith("error: it is empty.\n")


def test_ctrl_c_exits_with_130() -> None:
    result = invoke(failing(KeyboardInterrupt()))
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")


def test_an_operating_system_error_names_the_file() -> None:
    result = invoke(failing(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/file")))
    assert result.exit_code == 1
    assert "/tmp/file: No space left on device" in result.stderr


def test_too_little_memory_is_said_so() -> None:
    result = invoke(failing(MemoryError()))
    assert result.exit_code == 1
    assert "not enough memory" in result.stderr


def test_control_characters_in_a_message_do_not_reach_the_terminal() -> None:
    result = invoke(failing(ModelError("op '\x1b[2J' is wrong.")))
    assert result.stderr == "error: op '?[2J' is wrong.\n"


def test_what_libraries_warn_about_is_not_shown() -> None:
    def work() -> dict[str, Any]:
        warnings.warn("old interface", DeprecationWarning, stacklevel=1)
        logging.getLogger("some.library").warning("cannot phone home")
        return {}

    assert invoke(work).stderr == ""


def test_debug_shows_what_libraries_log() -> None:
    def work() -> dict[str, Any]:
        logging.getLogger("some.library").warning("cannot phone home")
        return {}

    assert invoke(work, "--debug").stderr == "warning: cannot phone home\n"


def test_what_placeit_warns_about_is_shown_unless_quiet() -> None:
    def work() -> dict[str, Any]:
        logging.getLogger("placeit").warning("Cannot write the cache.")
        return {}

    assert invoke(work).stderr == "warning: Cannot write the cache.\n"
    assert invoke(work, "--quiet").stderr == ""
