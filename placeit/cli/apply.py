"""``placeit apply``: change a running server to a placed workload."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

import typer

from placeit.cli.command import exit_code
from placeit.cli.server_options import read_token
from placeit.cli.terminal import Output, Terminal
from placeit.core.errors import ExecutionError, UsageError
from placeit.report import text

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["EXAMPLES", "apply"]

EXAMPLES = """\b
Examples:
  placeit apply workload.placed.yaml --to http://127.0.0.1:8000
  placeit apply workload.placed.yaml --to https://edge:8000 --token-file token
"""

_TIMEOUT_S = 600.0  # for a model to be compiled and loaded


def apply(
    *,
    plan: Annotated[Path, typer.Argument(metavar="WORKLOAD", help="Placed workload of 'placeit optimize'.")],
    to: Annotated[str, typer.Option("--to", metavar="URL", help="HTTP address of the server.")],
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="File of the token that the server requires.")
    ] = None,
    terminal: Terminal,
) -> Output:
    """Change a running server to a placed workload, without losing a request.

    The server has to run 'placeit serve WORKLOAD --control', with the same models. Models that are placed as before go on
    untouched. The others are compiled beside the requests, one after the other, and new requests then run there; requests in
    flight end where they began. The server also writes each placement to its own file, so that it starts with it the next time.

    If a model cannot be placed as the workload says, it stays as it was, and the exit code is 1. If the server goes
    away, the answer says which models it had moved.
    """
    from placeit.core.placement import Placement
    from placeit.workload.entries import Workload

    if not _is_address(to):
        raise UsageError(f"'{to}' is not the address of a server: give --to as http://HOST:PORT.")
    token = "" if token_file is None else read_token(token_file)
    placements = {entry.name: Placement.load(entry.placement or "") for entry in Workload.load(plan).placed()}
    reports, unreachable = list[dict[str, Any]](), False
    with terminal.progress() as progress:
        for number, (name, placement) in enumerate(placements.items()):
            if progress is not None:
                progress(f"placing {name}", number / len(placements))
            outcome: str | None = None
            error: str | None = "the server went away, and was not asked."
            try:
                if not unreachable:
                    outcome, error = _place(to, token, name, placement.to_dict())
            except ExecutionError as failure:
                if not reports:
                    raise
                unreachable, error = True, f"{failure} The model may have been moved: apply the workload again."
            reports.append({"name": name, "outcome": outcome, "devices": placement.used, "error": error})
    failed = [f"{report['name']}: {report['error']}" for report in reports if report["error"] is not None]
    counts = {outcome: sum(report["outcome"] == outcome for report in reports) for outcome in ("moved", "loaded", "unchanged")}
    answer = "; ".join([", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count), *failed]).strip("; ")
    data = {"workload": str(plan), "server": to, "models": reports}
    return Output(data, partial(_show, models=reports), exit_code(failed=bool(failed)), answer=answer)


def _is_address(url: str) -> bool:
    """Return whether a URL is an HTTP address with a host and, if it has a port, a valid one."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _place(server: str, token: str, name: str, placement: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Ask a server to place a model.

    Returns:
        The outcome, or else the reason why the server refuses.

    Raises:
        ExecutionError: the server does not answer.
    """
    body = json.dumps({"parameters": {"config": json.dumps(placement)}}).encode()
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    path = f"{server.rstrip('/')}/v2/repository/models/{quote(name)}/load"
    try:
        with urlopen(Request(path, body, headers), timeout=_TIMEOUT_S) as response:  # noqa: S310 (the scheme was checked)
            return str(json.load(response)["outcome"]), None
    except HTTPError as error:
        with error:
            text_body = error.read().decode(errors="replace")
        try:
            return None, str(json.loads(text_body)["error"])
        except (ValueError, LookupError, TypeError):
            return None, f"{error.code} {error.reason}"
    except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
        raise ExecutionError(
            f"{server} does not answer as a placeit server does ({getattr(error, 'reason', error)}): start one with 'placeit "
            "serve WORKLOAD --control', and give its HTTP address with --to."
        ) from error


def _show(console: Console, models: Sequence[Mapping[str, Any]]) -> None:
    rows = [[model["name"], model["outcome"] or "failed", ", ".join(model["devices"])] for model in models]
    text.table(console, ["model", "outcome", "devices"], rows, left=3)
    for model in models:
        if model["error"] is not None:
            text.paragraph(console, f"{model['name']}: {model['error']}")
