"""The models of a server by name and version, and the models that are about to be closed."""

from __future__ import annotations

from collections.abc import Iterator

from placeit.serve.refusal import RefusedError, Status
from placeit.serve.served_model import Counts, ServedModel, listed

__all__ = ["Models"]


class Models:
    """Models by name and version. Used on the thread of the event loop; others may iterate.

    Attributes:
        leaving: models that get no new requests, and finish their sequences.
    """

    def __init__(self) -> None:
        self._models: dict[str, dict[str, ServedModel]] = {}
        self._counts: dict[tuple[str, str], Counts] = {}
        self.leaving: list[ServedModel] = []

    def __iter__(self) -> Iterator[ServedModel]:
        """Iterate over the models, in all versions."""
        return iter([model for versions in [*self._models.values()] for model in [*versions.values()]])

    @property
    def running(self) -> list[ServedModel]:
        """All models, and leaving models that were not replaced."""
        found = {(model.name, model.version): model for model in [*self.leaving, *self]}
        return [*found.values()]

    def find(self, name: str, version: str) -> ServedModel | None:
        """Return a model by its name and version; None if it does not exist."""
        return self._models.get(name, {}).get(version)

    def get(self, name: str, version: str = "") -> ServedModel:
        """Return a model by its name and version, or in its newest version if that is empty. Raises RefusedError."""
        versions = self._models.get(name)
        if not versions:
            raise RefusedError(Status.UNKNOWN, f"There is no model '{name}' here; there are {listed(self._models) or 'none'}.")
        known = next(iter(versions.values())).versions
        if version not in ("", *known):
            raise RefusedError(Status.UNKNOWN, f"The model '{name}' has no version '{version}'; it has {listed(known)}.")
        return versions[version or known[-1]]

    def add(self, model: ServedModel) -> ServedModel | None:
        """Add a model, which continues the counts of its name and version.

        Returns:
            The model that it replaces, which is then leaving; None without one.
        """
        model.count_on(self._counts.setdefault((model.name, model.version), model.counts))
        versions = self._models.setdefault(model.name, {})
        before = versions.get(model.version)
        versions[model.version] = model
        self._number(versions)
        if before is not None:
            self.leaving.append(before)
        return before

    def remove(self, name: str, version: str) -> ServedModel | None:
        """Remove a model and return it; it is then leaving. None if it does not exist."""
        versions = self._models.get(name, {})
        found = versions.pop(version, None)
        self._number(versions)
        if not versions:
            self._models.pop(name, None)
        if found is not None:
            self.leaving.append(found)
        return found

    @staticmethod
    def _number(versions: dict[str, ServedModel]) -> None:
        """Set the versions of all models of one name, the newest last."""
        known = sorted(versions, key=lambda one: (one.isdecimal(), int(one) if one.isdecimal() else 0, one))
        for model in versions.values():
            model.versions = known
