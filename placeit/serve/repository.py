"""Load and unload models while a server runs, when clients ask for it or files change."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import shlex
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

from placeit.backends.bundle.files import SUFFIX, stamp
from placeit.core.errors import PlaceitError, PlacementError, UsageError
from placeit.core.files import read_text
from placeit.serve.rates import RateWatch, replanning, run
from placeit.serve.refusal import RefusedError, Status, invalid
from placeit.serve.served_model import ServedModel, is_name
from placeit.serve.service import Service
from placeit.serve.sources import Key, Opened, Opener, Outcome, Planned, Source, planned
from placeit.workload.entries import Workload

__all__ = ["Repository", "known"]

_LOG = logging.getLogger("placeit")
_LOOK_S: Final = 0.05  # seconds between two checks whether a model that was replaced has requests left
_MAX_WAITING: Final = 16  # most clients that wait for a model to be loaded or unloaded

T = TypeVar("T")


@dataclass(frozen=True)
class _Kept:
    """An open model, and the stamp of its source when it was opened or moved."""

    opened: Opened
    stamp: object


class Repository:
    """The bundles and placed workloads of a server, whose models can be loaded, reloaded and unloaded while it runs.

    A reloaded model replaces the old one once it is ready. The old one finishes its accepted requests and open sequences, and
    is closed. If only the placement of a workload's model changes, its server runs new requests on the new placement.

    Args:
        opener: opens a bundle, or a model of a workload.
        folder: folder of bundles: ``NAME.placeit``, or ``NAME/VERSION.placeit``; None for no folder.
        control: whether clients may load and unload models.
        watch: whether to load new and changed files, and to unload removed ones; otherwise, changes are only logged.
        every_s: seconds between two checks of the files.
        devices: options of ``placeit optimize`` that name the devices; empty for the devices of the placements.
        follow: whether to place workloads again when rates change; otherwise, the command for that is logged.
    """

    def __init__(
        self,
        opener: Opener,
        folder: Path | None = None,
        *,
        control: bool = False,
        watch: bool = False,
        every_s: float = 1.0,
        devices: Sequence[str] = (),
        follow: bool = False,
    ) -> None:
        self._devices, self._follow_rates, self._replanned = devices, follow, asyncio.Lock()
        self._opener, self._folder, self.control, self._watch, self._every_s = opener, folder, control, watch, every_s
        self._given: dict[Key, Source] = {}  # outside of the folder
        self._plans: dict[Path, tuple[object, dict[Key, Planned]]] = {}  # models of workloads, and stamps of the files
        self._opened: dict[ServedModel, _Kept] = {}
        self._absent: dict[Key, str] = {}  # reasons why models are not loaded
        self._tried: dict[Key, object] = {}  # stamps of files that are not to be loaded again
        self._seen: dict[Key, object] = {}  # stamps at the last check
        self._turn, self._waiting = asyncio.Lock(), 0
        self._tasks: set[asyncio.Task[Any]] = set()  # continue if no client waits for them
        self._found: dict[Key, Source] = {}  # in the folder, at the last check
        self._said = ""  # why the last check failed
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
        """True if models may be loaded later."""
        return self.control or self._watch

    def open(self, path: Path, name: str = "") -> None:
        """Open a bundle that is not in the folder. Raises PlaceitError."""
        model = self._open(Source(path), name, "1")
        self._given[model.name, model.version] = Source(path)

    def open_plan(self, path: Path, reach: Callable[[Workload], object]) -> None:
        """Open the models of a placed workload, once ``reach`` has connected to its nodes. Raises PlaceitError."""
        before, workload = stamp(path), Workload.load(path)
        self._plans[path] = before, planned(workload)
        reach(workload)
        for key, source in self._plans[path][1].items():
            self._open(source, *key)

    def open_folder(self) -> None:
        """Open the bundles of the folder; log those that cannot be opened."""
        there = {(model.name, model.version) for model in self._opened}
        for key, source in self._sources().items():
            if key not in there:
                try:
                    self._open(source, *key)
                except Exception as error:  # noqa: BLE001 (the others are served)
                    self._failed(key, source, error)

    def close(self) -> None:
        """Close all models, after the network server."""
        while self._opened:
            self._opened.popitem()[1].opened.close()

    def _open(self, source: Source, name: str, version: str) -> ServedModel:
        before = source.stamp
        opened = self._opener(source, name, version)
        self._opened[opened.model] = _Kept(opened, before)
        return opened.model

    def _sources(self) -> dict[Key, Source]:
        """Return the sources of all models that can be loaded."""
        found: dict[Key, Source] = {}
        for path in sorted(self._folder.iterdir()) if self._folder is not None else ():
            try:
                found |= _bundles(path)
            except OSError:  # not readable for the moment: its bundles stay
                found |= {key: one for key, one in self._found.items() if path in (one.path, one.path.parent)}
        self._found = found
        for path in self._plans:
            found = found | self._planned(path)
        return found | self._given

    def _planned(self, path: Path) -> dict[Key, Planned]:
        """Return the models of a placed workload. If its file has an error, log it once and return the models from before."""
        before, models = self._plans[path]
        now = stamp(path)
        if now != before:
            try:
                models = planned(Workload.load(path))
            except PlaceitError as error:
                _LOG.error("The models of %s stay as they are: %s", path, error)
            self._plans[path] = now, models
        return models

    def _failed(self, key: Key, source: Source, error: Exception) -> None:
        why = str(error) if isinstance(error, PlaceitError) else f"{type(error).__name__}: {error}"
        path, why = (text.encode(errors="replace").decode() for text in (str(source.path), why))  # paths need not be UTF-8
        self._absent[key], self._tried[key] = why, source.stamp
        _LOG.error("%s is not loaded: %s", path, why)

    # -- on the thread of the event loop -------------------------------------------------------------------------------------

    async def serve(self, service: Service) -> None:
        """Watch the files and the rates of the models of a service, until this is cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self._look(service)
                self._compare(service)
                self._said = ""
            except Exception as error:  # noqa: BLE001 (the next check may succeed)
                why = f"{type(error).__name__}: {error}"
                if why != self._said:
                    _LOG.error("The files of the models cannot be checked; the check is repeated: %s", why)
                self._said = why

    async def _look(self, service: Service) -> None:
        """Check the files of all models, and load changes or log which files were replaced."""
        async with self._turn:
            sources = await asyncio.to_thread(self._sources)
            stamps = await asyncio.to_thread(lambda: {key: source.stamp for key, source in sources.items()})
            for model in service.models:
                kept = self._opened.get(model)
                if kept is not None and not model.replaced and stamps.get((model.name, model.version)) != kept.stamp:
                    model.replaced = True
                    if not self._watch:
                        _LOG.warning(
                            "The file of the model '%s' was replaced or removed; the loaded model is served. Reload it, "
                            "or restart the server.",
                            model.name,
                        )
            if self._watch:
                await self._follow(service, sources, stamps)

    async def _follow(self, service: Service, sources: Mapping[Key, Source], stamps: Mapping[Key, object]) -> None:
        """Load new and changed files that are the same as at the check before, and unload removed ones."""
        fixed, seen, self._seen = self._fixed(service), self._seen, {**stamps}
        for model in service.models:
            key = model.name, model.version
            if model in self._opened and key not in sources:
                self._remove(service, key, "its file was removed")
        for key, source in sources.items():
            current = service.models.find(*key)
            due = key[0] not in fixed and (current is None or current.replaced)
            if due and seen.get(key) == stamps[key] is not None and self._tried.get(key) != stamps[key]:
                try:
                    await self._load(service, key, source)
                except Exception as error:  # noqa: BLE001 (the others are followed)
                    self._failed(key, source, error)

    def _compare(self, service: Service) -> None:
        """Compare the rates of requests with the plans, and log, or follow, the ones that have changed."""
        now = time.monotonic()
        for path, (_, sources) in self._plans.items() if not self._replanned.locked() else ():
            watched, news = dict[str, RateWatch](), list[str]()
            for key, source in sources.items():
                model, planned = service.models.find(*key), source.entry.rate
                if model is None or planned is None:
                    continue
                if model.rates is None or model.rates.planned != planned:
                    model.rates = RateWatch(planned, model.server.stats().arrived, now)
                elif model.rates.due(now) and model.rates.look(model.server.stats().arrived, now):
                    news.append(f"'{key[0]}' arrive at {model.rates.rate:.3g} per second, and it was placed for {planned:.3g}")
                watched[key[0]] = model.rates
            rates = {name: float(f"{rate:.3g}") for name, one in watched.items() if (rate := one.left) is not None}
            if news:
                self._task(self._answer(service, path, ", for ".join(news), rates))

    async def _answer(self, service: Service, path: Path, news: str, rates: Mapping[str, float]) -> None:
        """Place a workload again for other rates, or log the command for it."""
        try:
            if self._follow_rates:
                _LOG.warning("Requests for %s. The workload is placed again.", news)
                await self._replan(service, path, rates)
                return
            output = path.with_suffix(".next.yaml")
            words = await asyncio.to_thread(replanning, path, rates, output, self._devices)
            _LOG.warning(
                "Requests for %s. To place the workload again, run '%s', and then 'placeit apply %s --to' this server, if it "
                "has --control.",
                news,
                shlex.join(words),
                output,
            )
        except Exception as error:  # noqa: BLE001 (the models are still served)
            _LOG.error("The workload %s stays as it is placed: %s", path, error)

    async def _replan(self, service: Service, path: Path, rates: Mapping[str, float]) -> None:
        """Place a workload again for other rates, in a separate process, and move its models."""
        async with self._replanned, contextlib.AsyncExitStack() as stack:
            output = Path(stack.enter_context(TemporaryDirectory()), "next.yaml")
            await run(await asyncio.to_thread(replanning, path, rates, output, self._devices))
            placements = await asyncio.to_thread(_placements, output)
            await stack.enter_async_context(self._turn)
            await asyncio.to_thread(lambda: Workload.load(path).at(rates).save(path))
            sources = await asyncio.to_thread(self._sources)
            done = [
                f"{name} {await self._place(service, (name, '1'), sources[name, '1'], placements[name])}" for name in placements
            ]
            _LOG.warning("The workload %s was placed again: %s.", path, ", ".join(done))

    async def load(self, service: Service, name: str, parameters: Mapping[str, object]) -> Outcome:
        """Load or reload all versions of a model, even if the client disconnects.

        Args:
            service: the models that are served.
            name: name of the model.
            parameters: ``config``, the content of a placement's file, is the new placement of a workload's model, and is
                written to its file.

        Raises:
            RefusedError: loading is not allowed, the model does not exist, or it cannot be loaded; nothing changes then.
        """
        return await asyncio.shield(self._task(self._load_all(service, name, parameters.get("config"))))

    async def _load_all(self, service: Service, name: str, placement: object) -> Outcome:
        async with self._asked():
            self._check_loads(service, name)
            sources = await asyncio.to_thread(self._sources)
            wanted = {key: source for key, source in sources.items() if key[0] == name}
            if not wanted:
                raise RefusedError(Status.UNKNOWN, f"There is neither a bundle nor a placed model '{name}' here.")
            outcome: Outcome = "unchanged"
            for key, source in wanted.items():
                try:
                    if placement is None:
                        outcome = await self._load(service, key, source)
                    else:
                        outcome = await self._place(service, key, source, placement)
                except RefusedError:
                    raise
                except PlaceitError as error:
                    raise RefusedError(Status.FAILED, f"The model '{name}' cannot be loaded: {error}") from error
            return outcome

    async def _place(self, service: Service, key: Key, source: Source, placement: object) -> Outcome:
        """Load a model of a workload with another placement. Raises RefusedError, or PlaceitError if it cannot be loaded."""
        if not isinstance(source, Planned):
            raise invalid("This server loads bundles as they were built: leave out the parameter 'config'.")
        if not isinstance(placement, str):
            raise invalid("The parameter 'config' is the content of a placement's file, as a text.")
        try:
            undo = await asyncio.to_thread(source.place, placement)
        except PlacementError as error:
            raise invalid(str(error)) from error
        try:
            return await self._load(service, key, source)
        except BaseException:
            await asyncio.to_thread(undo)
            raise

    async def unload(self, service: Service, name: str) -> None:
        """Unload all versions of a model. Raises RefusedError."""
        async with self._asked():
            self._check_loads(service, name)
            sources = await asyncio.to_thread(self._sources)
            keys = [(model.name, model.version) for model in service.models if model.name == name]
            if not keys and name not in {known for known, _ in [*sources, *self.absent]}:
                raise RefusedError(Status.UNKNOWN, f"There is no model '{name}' here.")
            for key in keys:
                if key in sources:
                    self._tried[key] = await asyncio.to_thread(lambda source: source.stamp, sources[key])
                self._remove(service, key, "it was unloaded")

    def _fixed(self, service: Service) -> set[str]:
        """Return the names of the models that cannot be reloaded or unloaded."""
        return {model.name for model in service.models if model not in self._opened}

    def _check_loads(self, service: Service, name: str) -> None:
        """Raise RefusedError if a model cannot be reloaded or unloaded."""
        if name in self._fixed(service):
            raise invalid(f"The model '{name}' is of no bundle and no workload, and cannot be loaded or unloaded.")

    @contextlib.asynccontextmanager
    async def _asked(self) -> AsyncIterator[None]:
        """Wait for a client's turn to change the repository. Raises RefusedError if clients may not, or too many wait."""
        if not self.control:
            raise RefusedError(
                Status.FORBIDDEN, "Clients may not load and unload models here: start the server with --control to allow it."
            )
        if self._waiting >= _MAX_WAITING:
            raise RefusedError(Status.FULL, f"{_MAX_WAITING} clients load or unload models already: try again later.")
        self._waiting += 1
        try:
            async with self._turn:
                yield
        except OSError as error:
            raise RefusedError(Status.FAILED, f"{error.filename or self._folder} cannot be read: {error.strerror}.") from error
        finally:
            self._waiting -= 1

    async def _load(self, service: Service, key: Key, source: Source) -> Outcome:
        """Open a model, or move it if it is open and only its placement differs. Raises PlaceitError."""
        current = service.models.find(*key)
        if current is not None and (kept := self._opened.get(current)) is not None:
            before = await asyncio.to_thread(lambda: source.stamp)
            outcome = await asyncio.to_thread(kept.opened.move, source)
            if outcome is not None:
                self._opened[current], current.replaced = replace(kept, stamp=before), False
                return outcome
        model = await asyncio.to_thread(self._open, source, *key)
        self._absent.pop(key, None)
        self._retire(service, service.models.add(model))
        return "loaded"

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
            model.counts.closed(model.server)
            await asyncio.to_thread(self._opened.pop(model).opened.close)

        if model is not None:
            self._task(ending(model))

    def _task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task, and keep it until it has ended."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _placements(path: Path) -> dict[str, str]:
    """Return the texts of the placements of a placed workload, by model."""
    return {entry.name: read_text(entry.placement or path) for entry in Workload.load(path)}


def _bundles(path: Path) -> dict[Key, Source]:
    """Return the bundle at a path of the folder, or the versions in it, without hidden files. Raises OSError."""
    if path.suffix == SUFFIX:
        return {(path.stem, "1"): Source(path)} if _is_named(path) else {}
    if not is_name(path.name) or path.name.startswith(".") or not path.is_dir():
        return {}
    return {(path.name, one.stem): Source(one) for one in sorted(path.iterdir()) if one.suffix == SUFFIX and _is_named(one)}


@functools.cache
def _is_named(path: Path) -> bool:
    """Return whether the name of a bundle's file can name a model; warn once if it cannot."""
    if path.name.startswith("."):
        return False
    if not is_name(path.stem):
        _LOG.warning("%s is not served: names of models have letters, digits, '_', '-' and '.' only. Rename it.", path)
    return is_name(path.stem)


def known(repository: Repository | None) -> Repository:
    """Return the repository of a server. Raises RefusedError if it has none."""
    if repository is None:
        raise RefusedError(Status.FORBIDDEN, "This server cannot load or unload models.")
    return repository
