"""A strict YAML reader for hand-written files: no aliases, no tags, no guessed types, errors with line numbers.

A document is walked as YAML nodes, not as Python values: nodes know their line, duplicate keys stay visible, and every
scalar is text, so that a device may be called ``on`` and ``1:30`` is not silently 90.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

from placeit.core.errors import ClusterError, PlaceitError, UsageError
from placeit.core.files import read_text
from placeit.core.nearest import nearest
from placeit.core.units import Dimension, parse_quantity

__all__ = ["Node", "StrictYaml"]

Node = yaml.Node

_PLAIN_TAGS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:seq", "tag:yaml.org,2002:map")
_MAX_CHARACTERS = 200  # of a value; a longer one is a mistake, and would hide the message about it


class _Loader(yaml.BaseLoader):
    """Loader that refuses aliases: no file needs them, and a few lines of them can stand for terabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise yaml.MarkedYAMLError(problem="anchors and aliases (& and *) are not used here", problem_mark=event.start_mark)
        return super().compose_node(parent, index)


class StrictYaml:
    """Reader of values from the nodes of one file. Every method raises :attr:`error` with file, line and key."""

    error: type[PlaceitError] = ClusterError

    def __init__(self, path: Path, text: str | None = None) -> None:
        self.path, self._text = path, text  # the text in place of the file's

    def root(self) -> Node:
        """Parse the file and return its root node. Raises FileError if it cannot be read."""
        text = read_text(self.path) if self._text is None else self._text
        try:
            node: Node | None = yaml.compose(text, _Loader)
        except yaml.MarkedYAMLError as error:
            problem = " ".join(part for part in (error.context, error.problem) if part)
            raise self.error(f"{self._where(error.problem_mark)}: not valid YAML: {problem}.") from None
        except RecursionError:
            raise self.error(f"{self.path}: not valid YAML: it is nested too deeply.") from None
        except yaml.YAMLError as error:
            raise self.error(f"{self.path}: not valid YAML: {' '.join(str(error).split())}.") from None
        if node is None:
            raise self.error(f"{self.path} is empty.")
        return node

    def mapping(
        self, node: Node, entry: str, known: Sequence[str] | None = None, needed: Sequence[str] = ()
    ) -> dict[str, Node]:
        """Return the nodes of a mapping's values by key.

        Raises:
            PlaceitError: the node is no mapping, a key occurs twice or is not in ``known``, or a key of ``needed`` is missing.
        """
        self._check_tag(node)
        if not isinstance(node, yaml.MappingNode):
            self.fail(node, f"{entry} is not a mapping (key: value)")
        fields: dict[str, Node] = {}
        for key_node, value in node.value:
            key = self.text(key_node, f"a key of {entry}")
            if key in fields:
                self.fail(key_node, f"{entry} has the key '{key}' twice")
            if known is not None and key not in known:
                hint = nearest(key, known) or f"; known: {', '.join(known)}"
                self.fail(key_node, f"{entry} has the unknown key '{key}'{hint}")
            fields[key] = value
        if missing := next((key for key in needed if key not in fields), None):
            self.fail(node, f"{entry} has no '{missing}'")
        return fields

    def items(self, node: Node, entry: str) -> list[Node]:
        """Return the items of a list."""
        self._check_tag(node)
        if not isinstance(node, yaml.SequenceNode):
            self.fail(node, f"{entry} is not a list")
        return list(node.value)

    def texts(self, node: Node, entry: str) -> list[str]:
        """Return the items of a list of single values."""
        return [self.text(item, f"an item of {entry}") for item in self.items(node, entry)]

    def text(self, node: Node, entry: str) -> str:
        """Return a single value as text, which must be one line."""
        self._check_tag(node)
        if not isinstance(node, yaml.ScalarNode):
            self.fail(node, f"{entry} is not a single value")
        value = str(node.value)
        if not value.isprintable() or len(value) > _MAX_CHARACTERS:
            self.fail(node, f"{entry} is not one line of at most {_MAX_CHARACTERS} printable characters")
        return value

    def quantity(self, node: Node, entry: str, dimension: Dimension) -> float:
        """Return a number in base units. Bandwidths, rates and memory are positive; bandwidth and memory may be infinite."""
        try:
            value = parse_quantity(self.text(node, entry), dimension)
        except UsageError as error:
            self.fail(node, f"{entry}: {str(error).rstrip('.')}")
        if value == float("inf") and dimension not in ("bandwidth", "memory"):
            self.fail(node, f"{entry} cannot be infinite")
        if value == 0 and dimension in ("bandwidth", "memory bandwidth", "rate", "memory"):
            self.fail(node, f"{entry} is zero; it must be positive")
        return value

    def flag(self, node: Node, entry: str) -> bool:
        """Return a boolean, written ``true`` or ``false``."""
        value = self.text(node, entry)
        if value not in ("true", "false"):
            self.fail(node, f"{entry} is '{value}'; it must be true or false")
        return value == "true"

    def fail(self, node: Node | None, what: str) -> NoReturn:
        """Raise :attr:`error` about a place in the file."""
        raise self.error(f"{self._where(node.start_mark if node is not None else None)}: {what}.")

    def _where(self, mark: Any) -> str:
        return f"{self.path}, line {mark.line + 1}" if mark is not None else str(self.path)

    def _check_tag(self, node: Node) -> None:
        if node.tag not in _PLAIN_TAGS:
            self.fail(node, f"the YAML tag {node.tag!a} is not used here")
