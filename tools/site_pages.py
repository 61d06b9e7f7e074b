"""Pages that `make docs` adds to docs/: references of commands and of Python, and files from elsewhere in the repository.

mkdocs calls these functions as it builds the site (`hooks` in mkdocs.yml).
"""

from __future__ import annotations

import functools
import html
import inspect
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from typer.main import get_command

import placeit
from placeit.cli import app

ROOT = Path(__file__).parents[1]
OTHERS = ("CONTRIBUTING.md", "CHANGELOG.md")
LINK = re.compile(r"(?<!!)\[([^]]*)\]\(([^):#]+)([^):]*)\)")  # a link to a file, not to a picture, an address or this page
FETCHED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*(?:src|href)=.?(?:https?:)?//[^ >]*")
MODULE_PAGE = "# {0}\n\n::: {0}\n    options:\n      show_root_heading: false\n"
MODULE = re.compile(r"\bplaceit(?:\.[a-z_]+)+")
ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):(?=<code>)")  # of Sphinx, in docstrings


def on_config(config: Any) -> None:
    """Name the reports of benchmarks and the modules in the navigation."""
    results = next(section["Results"] for section in config.nav if "Results" in section)
    found = sorted(ROOT.glob("docs/results/*/report.md"))
    results += [{path.parent.name: str(path.relative_to(ROOT / "docs"))} for path in found]
    (reference,) = (section["Reference"] for section in config.nav if "Reference" in section)
    (at,) = (i for i, page in enumerate(reference) if "Python" in page)
    reference[at]["Python"] = [
        {"import placeit": "reference/python.md"},
        *({package: [{name: _page(name)} for name in sorted(names)]} for package, names in sorted(modules().items())),
    ]


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not in docs/."""
    made = {"reference/commands.md": commands(), "reference/python.md": python()}
    made |= {_page(name): MODULE_PAGE.format(name) for names in modules().values() for name in names}
    made |= {name: (ROOT / name).read_text(encoding="utf-8") for name in OTHERS}
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make links to files of the repository lead to pages of the site; keep only the text of links to files without a page."""
    home = ROOT if page.file.src_uri in OTHERS else (ROOT / "docs" / page.file.src_uri).parent
    up = "../" * page.file.src_uri.count("/")

    def follow(link: re.Match[str]) -> str:
        text, target, anchor = link.groups()
        path = (home / target).resolve()
        if path.is_relative_to(ROOT / "docs"):
            return f"[{text}]({up}{path.relative_to(ROOT / 'docs')}{anchor})"
        if path.name in OTHERS:
            return f"[{text}]({up}{path.name}{anchor})"
        return text if path.exists() else link[0]  # mkdocs then reports the dead link

    return LINK.sub(follow, markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Name the dialog of the search. Raises PluginError if a page makes a browser fetch something from elsewhere."""
    if found := FETCHED.search(output):
        raise PluginError(f"{page.file.src_uri} loads {found[0]}: put it into docs/.")
    return on_post_template(output)


def on_post_template(output: str, **_: Any) -> str:
    """Name the dialog of the search, which is also on the page for addresses that do not exist."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')


def on_page_content(content: str, **_: Any) -> str:
    """Drop the roles of references in docstrings."""
    return ROLE.sub("", content)


def python() -> str:
    """Return the page of what `placeit` exports, with the modules that have the descriptions."""
    head = "# Python\n\nWhat `import placeit` offers. The pages beside this one have the modules, by package.\n"
    rows = [f"| [`{name}`][{_home(name)}.{name}] | {_summary(getattr(placeit, name))} |" for name in placeit.__all__]
    return "\n".join([head, "| name | description |", "|---|---|", *rows])


@functools.cache
def modules() -> dict[str, set[str]]:
    """Return the modules that have a page, by package: the modules of exported names, and those named in the documentation."""
    found = {_home(name) for name in placeit.__all__} | {"placeit.core.errors"}
    for path in ROOT.glob("docs/**/*.md"):
        for name in MODULE.findall(path.read_text(encoding="utf-8")):
            while name.count(".") and not _is_module(name):
                name = name.rpartition(".")[0]
            found |= {name} - {"placeit", "placeit.errors", "placeit._core"}
    packages: dict[str, set[str]] = {}
    for name in found:
        package = find_spec(".".join(name.split(".")[:2]))
        is_folder = package is not None and package.submodule_search_locations is not None
        packages.setdefault(name.split(".")[1] if is_folder else "placeit", set()).add(name)
    return packages


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _home(name: str) -> str:
    return getattr(placeit, name).__module__


def _page(module: str) -> str:
    return f"reference/python/{module}.md"


def _summary(value: Any) -> str:
    return inspect.cleandoc(value.__doc__).partition("\n")[0]


def commands() -> str:
    """Return the page of the commands, from the output of `--help`."""
    head = "# Commands\n\nFrom `placeit COMMAND --help`.\n"
    return "\n".join([head, *_described(get_command(app), None)])


def _described(command: Any, parent: typer.Context | None) -> Iterator[str]:
    context = typer.Context(command, info_name=command.name, parent=parent)
    if hasattr(command, "list_commands"):
        for name in command.list_commands(context):
            yield from _described(command.get_command(context, name), context)
        return
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield f"## {context.command_path}\n\n{inspect.cleandoc(command.help)}\n\n    {usage}\n"
    yield "| option | what it does |\n|---|---|"
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record and parameter.name != "help":
            name, text = (html.escape(part, quote=False).replace("|", "&#124;") for part in record)
            yield f"| <code>{name}</code> | {text} |"
    if examples := (command.epilog or "").partition("Examples:\n")[2]:
        yield f"\n```sh\n{inspect.cleandoc(examples)}\n```\n"
