"""Models that are loaded and unloaded while a server runs, at the request of clients or when files change."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Container, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from placeit.backends.bundle.files import SUFFIX, stamp
from placeit.core.errors import PlaceitError, UsageError
from placeit.serve.refusal import RefusedError, Status, invalid
from placeit.serve.served_model import ServedModel, is_name
from placeit.serve.service import Service

__all__ = ["Opened", "Opener", "Repository", "known"]

_LOG = logging.getLogger("placeit")
_LOOK_S: Final = 0.05  # seconds between two checks whether a model that was replaced has requests left
_MOST_WAITING: Final = 16  # most clients that wait for a model to be loaded or unloaded

Key: TypeAlias = tuple[str, str]
"""Name and version of a model."""


@dataclass(frozen=True)
class Opened:
    """A model that is ready to serve.

    Attributes:
        model: the model.
        close: closes its server and its session.
        replaced: returns whether its file has been replaced or written to since it was opened.
    """

    model: ServedModel
    close: Callable[[], object]
    replaced: Callable[[], bool]


Opener: TypeAlias = Callable[[Path, str, str], Opened]
"""Opens the bundle at a path, as a name (empty for the model's name) and a version, and checks it. Called on any thread."""


class Repository:
    """The bundles of a server, which can be loaded, unloaded and loaded anew while it runs.

    A model that is loaded anew takes the place of the old one once it is ready. The old one ends the requests that it has
    accepted, and its open sequences, and is closed.

    Args:
        opener: opens a bundle.
        folder: folder of bundles: ``NAME.placeit``, or ``NAME/VERSION.placeit``; None for no folder.
        control: whether clients may load and unload models.
        watch: whether to load what comes or changes, and to unload what goes. Otherwise, changes of files are only logged.
        every_s: seconds between two looks at the files.
    """

    def __init__(
        self, opener: Opener, folder: Path | None = None, *, control: bool = False, watch: bool = False, every_s: float = 1.0
    ) -> None:
        self._opener, self._folder, self._control, self._watch, self._every_s = opener, folder, control, watch, every_s
        self._given: dict[Key, Path] = {}  # outside of the folder
        self._opened: dict[ServedModel, Opened] = {}
        self._absent: dict[Key, str] = {}  # reasons why models are not loaded
        self._tried: dict[Key, tuple[int, ...] | None] = {}  # stamps of files that are not to be loaded again
        self._seen: dict[Key, tuple[int, ...] | None] = {}  # stamps at the last look
        self._turn, self._waiting = asyncio.Lock(), 0
        self._tasks: set[asyncio.Task[None]] = set()  # what goes on although no client waits for it
        self._found: dict[Key, Path] = {}  # in the folder, at the last look
        self._said = ""  # why the last look failed
        if folder is not None and not folder.is_dir():
            raise UsageError(f"{folder} is not a folder: give one that has bundles, or will have them.")

    @property
    def models(self) -> list[ServedModel]:
        """The models that are open."""
        return [*self._opened]

    @property
    def absent(self) -> Mapping[Key, str]:
        """Reasons why models are not loaded, by name and version."""
        return self._absent

    @property
    def changes(self) -> bool:
        """True if models may come that are not loaded yet."""
        return self._control or self._watch

    def open(self, path: Path, name: str = "") -> None:
        """Open a bundle that is not in the folder. Raises PlaceitError."""
        model = self._open(path, name, "1")
        self._given[model.name, model.version] = path

    def open_folder(self) -> None:
        """Open the bundles of the folder; log those that cannot be opened."""
        for (name, version), path in self._sources().items():
            if (name, version) not in self._given:
                try:
                    self._open(path, name, version)
                except Exception as error:  # noqa: BLE001 (the others are served)
                    self._failed((name, version), path, error)

    def close(self) -> None:
        """Close all models, after the network server."""
        while self._opened:
            self._opened.popitem()[1].close()

    def _open(self, path: Path, name: str, version: str) -> ServedModel:
        opened = self._opener(path, name, version)
        self._opened[opened.model] = opened
        return opened.model

    def _sources(self) -> dict[Key, Path]:
        """Return the paths of all bundles that can be loaded."""
        found: dict[Key, Path] = {}
        for path in sorted(self._folder.iterdir()) if self._folder is not None else ():
            try:
                found |= _bundles(path)
            except OSError:  # it cannot be read just now, so it has what it had
                found |= {key: one for key, one in self._found.items() if path in (one, one.parent)}
        self._found = found
        return found | self._given

    def _failed(self, key: Key, path: Path, error: Exception) -> None:
        why = str(error) if isinstance(error, PlaceitError) else f"{type(error).__name__}: {error}"
        self._absent[key], self._tried[key] = why, stamp(path)
        _LOG.error("%s is not loaded: %s", path, why)

    # -- on the thread of the event loop -------------------------------------------------------------------------------------

    async def serve(self, service: Service) -> None:
        """Watch the files of the models of a service, until this is cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self._look(service)
                self._said = ""
            except Exception as error:  # noqa: BLE001 (the next look may go well)
                why = f"{type(error).__name__}: {error}"
                if why != self._said:
                    _LOG.error("The files of the models cannot be looked at, which is tried again: %s", why)
                self._said = why

    async def _look(self, service: Service) -> None:
        """Look at the files of all models, and follow them, or log which were replaced."""
        for model in service.models:
            opened = self._opened.get(model)
            if opened is not None and not model.replaced and await asyncio.to_thread(opened.replaced):
                model.replaced = True
                if not self._watch:
                    _LOG.warning(
                        "The file of the model '%s' was replaced or removed; what was loaded is served. Load it anew, or "
                        "restart the server.",
                        model.name,
                    )
        if self._watch:
            async with self._turn:
                await self._follow(service)

    async def _follow(self, service: Service) -> None:
        """Load what has come or changed since the last look but one, and unload what has gone."""
        sources, fixed = await asyncio.to_thread(self._sources), self._fixed(service)
        sources = {key: path for key, path in sources.items() if key[0] not in fixed}
        stamps = {key: await asyncio.to_thread(stamp, path) for key, path in sources.items()}
        seen, self._seen = self._seen, stamps
        for model in service.models:
            key = model.name, model.version
            if model in self._opened and key not in sources:
                self._remove(service, key, "its file has gone")
        for key, path in sources.items():
            current = service.models.find(*key)
            due = current is None or current.replaced
            if due and seen.get(key) == stamps[key] is not None and self._tried.get(key) != stamps[key]:
                try:
                    await self._load(service, key, path)
                except Exception as error:  # noqa: BLE001 (the others are followed)
                    self._failed(key, path, error)

    async def load(self, service: Service, name: str, parameters: Container[str] = ()) -> None:
        """Load all versions of a model, or load them anew, even if the client leaves. Raises RefusedError."""
        if "config" in parameters:
            raise invalid("This server loads models as they were built: leave out the parameter 'config'.")
        await asyncio.shield(self._task(self._load_all(service, name)))

    async def _load_all(self, service: Service, name: str) -> None:
        async with self._asked():
            self._check_bundle(service, name)
            sources = await asyncio.to_thread(self._sources)
            wanted = {key: path for key, path in sources.items() if key[0] == name}
            if not wanted:
                raise RefusedError(Status.UNKNOWN, f"There is no bundle of a model '{name}' here.")
            for key, path in wanted.items():
                try:
                    await self._load(service, key, path)
                except PlaceitError as error:
                    raise RefusedError(Status.FAILED, f"The model '{name}' cannot be loaded: {error}") from error

    async def unload(self, service: Service, name: str) -> None:
        """Unload all versions of a model. Raises RefusedError."""
        async with self._asked():
            self._check_bundle(service, name)
            sources = await asyncio.to_thread(self._sources)
            keys = [(model.name, model.version) for model in service.models if model.name == name]
            if not keys and name not in {known for known, _ in [*sources, *self.absent]}:
                raise RefusedError(Status.UNKNOWN, f"There is no model '{name}' here.")
            for key in keys:
                if key in sources:
                    self._tried[key] = await asyncio.to_thread(stamp, sources[key])
                self._remove(service, key, "it was unloaded")

    def _fixed(self, service: Service) -> set[str]:
        """Return the names of the models that are no bundles."""
        return {model.name for model in service.models if model not in self._opened}

    def _check_bundle(self, service: Service, name: str) -> None:
        """Raise RefusedError if a model is no bundle."""
        if name in self._fixed(service):
            raise invalid(f"The model '{name}' is no bundle, and stays as long as the server.")

    @contextlib.asynccontextmanager
    async def _asked(self) -> AsyncIterator[None]:
        """Wait for a client's turn to change the repository. Raises RefusedError if clients may not, or too many wait."""
        if not self._control:
            raise RefusedError(
                Status.FORBIDDEN, "Clients may not load and unload models here: start the server with --control to allow it."
            )
        if self._waiting >= _MOST_WAITING:
            raise RefusedError(Status.FULL, f"{_MOST_WAITING} clients load or unload models already: try again later.")
        self._waiting += 1
        try:
            async with self._turn:
                yield
        finally:
            self._waiting -= 1

    async def _load(self, service: Service, key: Key, path: Path) -> None:
        model = await asyncio.to_thread(self._open, path, *key)
        self._absent.pop(key, None)
        self._retire(service, service.models.add(model))

    def _remove(self, service: Service, key: Key, why: str) -> None:
        self._absent[key] = why
        model = service.models.remove(*key)
        for one in service.models.leaving:
            if (one.name, one.version) == key:
                one.sequences.close()  # clients do not reach them any more
        self._retire(service, model)

    def _retire(self, service: Service, model: ServedModel | None) -> None:
        """Close a model once its requests and sequences have ended."""

        async def ending(model: ServedModel) -> None:
            while model.accepted or len(model.sequences):
                await asyncio.sleep(_LOOK_S)
            service.models.leaving.remove(model)
            await asyncio.to_thread(self._opened.pop(model).close)

        if model is not None:
            self._task(ending(model))

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task, and keep it until it has ended."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _bundles(path: Path) -> dict[Key, Path]:
    """Return the bundles at a path of the folder: itself, or the versions in it. Raises OSError."""
    if path.suffix == SUFFIX and is_name(path.stem):
        return {(path.stem, "1"): path}
    if not is_name(path.name) or not path.is_dir():
        return {}
    return {(path.name, one.stem): one for one in sorted(path.iterdir()) if one.suffix == SUFFIX and is_name(one.stem)}


def known(repository: Repository | None) -> Repository:
    """Return the repository of a server. Raises RefusedError if it has none."""
    if repository is None:
        raise RefusedError(Status.FORBIDDEN, "The models of this server stay as they are.")
    return repository
