from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from placeit.core.errors import FileError
from placeit.core.files import cache_folder
from placeit.core.records import RecordError, record
from placeit.profiler.cache import Cache, Seconds

KEY = {"graph": "abc", "device": "CPU@0", "threads": 1}


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "deep" / "cache")


def entries(cache: Cache) -> list[Path]:
    return sorted(cache.folder.iterdir())


def test_what_is_put_is_found_again_by_the_same_key_in_any_order(cache: Cache) -> None:
    cache.put(KEY, {"seconds": [0.1, 1e-300], "names": ["é"]})
    again = Cache(cache.folder)
    assert again.get(dict(reversed(KEY.items()))) == {"seconds": [0.1, 1e-300], "names": ["é"]}
    assert cache.get(KEY | {"threads": 2}) is None
    assert cache.get({}) is None


def test_a_later_value_replaces_an_earlier_one_and_nothing_else_is_left_behind(cache: Cache) -> None:
    cache.put(KEY, 1)
    cache.put(KEY, 2)
    assert cache.get(KEY) == 2
    assert len(entries(cache)) == 1


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b"[]", b"null", b'{"version": 9}', b"[" * 100_000])
def test_a_damaged_entry_is_absent_with_a_warning_and_can_be_rewritten(
    cache: Cache, caplog: pytest.LogCaptureFixture, damage: bytes
) -> None:
    cache.put(KEY, 1)
    (entry,) = entries(cache)
    entry.write_bytes(damage)
    assert cache.get(KEY) is None
    assert "is damaged" in caplog.text
    cache.put(KEY, 3)
    assert cache.get(KEY) == 3


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_a_number_that_json_does_not_have_is_damage(cache: Cache, caplog: pytest.LogCaptureFixture, number: str) -> None:
    cache.put(KEY, [12.5])
    (entry,) = entries(cache)
    entry.write_text(entry.read_text().replace("12.5", number))
    assert cache.get(KEY) is None
    assert "is damaged" in caplog.text


def test_a_value_that_the_caller_calls_invalid_is_damage(cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    cache.put(KEY, 1)
    assert cache.get(KEY, lambda value: value == 1) == 1
    assert not caplog.records
    assert cache.get(KEY, lambda value: value == 2) is None
    assert "is damaged" in caplog.text


@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        {},
        [1.0],
        [1, 2, 3],
        [1, True],
        [1, "2"],
        [1, -1e-9],
        [1, float("inf")],
        [1, float("nan")],
        [1, 1e7],
        [1, 10**400],
    ],
)
def test_times_are_so_many_finite_numbers_that_are_not_negative(value: object) -> None:
    assert record(tuple[Seconds, Seconds], [0, 2.5]) == (0, 2.5)
    with pytest.raises(RecordError):
        record(tuple[Seconds, Seconds], value)


def test_an_entry_that_holds_another_key_is_not_believed(cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    cache.put(KEY, 1)
    (entry,) = entries(cache)
    entry.write_text(entry.read_text().replace("abc", "xyz"))
    assert cache.get(KEY) is None
    assert "is damaged" in caplog.text


def test_a_folder_that_cannot_be_made_is_one_warning_and_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = Cache(tmp_path / "file" / "cache")
    for _ in range(3):
        cache.put(KEY, 1)
        assert cache.get(KEY) is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "continuing without it" in caplog.text


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_full_or_read_only_disk_is_one_warning_and_earlier_entries_are_still_read(
    cache: Cache, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    cache.put(KEY, 1)

    def fails(self: Path, *args: object, **kwargs: object) -> int:
        raise OSError(code, "cannot")

    monkeypatch.setattr(Path, "write_text", fails)
    cache.put(KEY, 2)
    cache.put({}, 2)
    assert len(caplog.records) == 1
    assert cache.get(KEY) == 1
    assert len(entries(cache)) == 1, "nothing half-written is left"


@pytest.mark.parametrize("value", [None, float("nan"), {"a": [float("inf")]}])
def test_what_json_cannot_hold_is_a_mistake(cache: Cache, value: object) -> None:
    with pytest.raises(ValueError, match=r"None means|not JSON compliant"):
        cache.put(KEY, value)


def test_writers_and_readers_at_once_never_see_half_an_entry(cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    cache.put(KEY, [0] * 500)

    def write(number: int) -> None:
        for _ in range(40):
            Cache(cache.folder).put(KEY, [number] * 500)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    seen = [Cache(cache.folder).get(KEY) for _ in range(80)]
    for thread in threads:
        thread.join()
    assert all(value is not None and len(set(value)) == 1 for value in seen)
    assert not caplog.records


def test_entries_of_an_earlier_format_are_not_looked_at(cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    cache.put(KEY, 1)
    (entry,) = entries(cache)
    assert json.loads(entry.read_text())["version"] == 4
    entry.write_text(entry.read_text().replace('"version": 4', '"version": 3'))
    assert cache.get(KEY) is None
    assert not caplog.records


@pytest.mark.parametrize("days", [-40.0, -31.0, 31.0])
def test_entries_that_are_too_old_or_from_the_future_are_absent(
    cache: Cache, caplog: pytest.LogCaptureFixture, days: float
) -> None:
    cache.put(KEY, 1)
    (entry,) = entries(cache)
    data = json.loads(entry.read_text())
    data["written"] += days * 86400
    entry.write_text(json.dumps(data))
    assert cache.get(KEY) is None
    assert Cache(cache.folder, days=100).get(KEY) == 1
    assert not caplog.records
    cache.put(KEY, 2)
    assert cache.get(KEY) == 2


@pytest.mark.parametrize("written", [None, "yesterday", -1.0, True, 10**400])
def test_an_entry_that_does_not_say_how_old_it_is_is_damaged(
    cache: Cache, caplog: pytest.LogCaptureFixture, written: object
) -> None:
    cache.put(KEY, 1)
    (entry,) = entries(cache)
    entry.write_text(json.dumps(json.loads(entry.read_text()) | {"written": written}))
    assert cache.get(KEY) is None
    assert "is damaged" in caplog.text


@pytest.mark.parametrize("load", ["much", -1.0, 10**400])
def test_an_entry_with_an_impossible_load_is_damaged(cache: Cache, caplog: pytest.LogCaptureFixture, load: object) -> None:
    cache.put(KEY, 1)
    (entry,) = entries(cache)
    entry.write_text(json.dumps(json.loads(entry.read_text()) | {"load": load}))
    assert cache.get(KEY) is None
    assert "is damaged" in caplog.text


def test_age_and_load_are_stored_beside_the_value(cache: Cache) -> None:
    before = time.time()
    cache.put(KEY, [1.5], load=0.25)
    kept = Cache(cache.folder).find(KEY)
    assert kept is not None
    assert (kept.value, kept.load) == ([1.5], 0.25)
    assert before <= kept.written <= time.time()


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _dangling(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound, contextlib.chdir(path.parent):
        bound.bind(path.name)


@pytest.mark.parametrize("make", [_fifo, _device, _loop, _dangling, _socket, Path.mkdir])
def test_what_is_not_a_regular_file_is_not_read_and_replaced_unless_it_is_a_folder(
    cache: Cache, caplog: pytest.LogCaptureFixture, make: Callable[[Path], None]
) -> None:
    cache.put(KEY, 1)
    (entry,) = entries(cache)
    entry.unlink()
    make(entry)
    assert cache.get(KEY) is None
    assert "not a file that can be read; it is measured again" in caplog.text
    cache.put(KEY, 2)
    assert cache.get(KEY) == (None if make is Path.mkdir else 2)
    cache.put({}, 3)
    assert cache.get({}) == 3, "other entries are not concerned"
    assert not (entry.parent / "nowhere").exists()


def test_writing_deletes_what_is_too_old_and_nothing_else(cache: Cache) -> None:
    for number in range(4):
        cache.put(KEY | {"threads": number}, 1)
    files, mine = entries(cache), [cache.folder / name for name in (".mine.json", "mine.json", "notes.txt")]
    for path in mine:
        path.write_text("mine")
    for path in (*files[:2], *mine):
        os.utime(path, (0, time.time() - 31 * 86400))
    Cache(cache.folder).put(KEY | {"threads": 9}, 1)
    left = [path.name for path in entries(cache)]
    assert {path.name for path in mine} <= set(left)
    assert len(left) == 6
    assert not {path.name for path in files[:2]} & set(left)


def test_clearing_deletes_entries_and_only_those(cache: Cache) -> None:
    cache.put(KEY, 1)
    cache.put({}, 1)
    (cache.folder / f".{'0' * 64}.json.leftover.json").write_text("{")
    mine = [".mine.json", "mine.json", "notes.txt"]
    for name in mine:
        (cache.folder / name).write_text("mine")
    assert cache.clear() == 2
    assert [path.name for path in entries(cache)] == mine
    assert cache.clear() == 0
    assert Cache(cache.folder / "never").clear() == 0


def test_an_entry_that_cannot_be_deleted_is_an_error(cache: Cache) -> None:
    name = f"{'0' * 64}.json"
    (cache.folder / name).mkdir(parents=True)
    with pytest.raises(FileError, match=name):
        cache.clear()


def test_the_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("PLACEIT_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path("/home/me/.cache/placeit")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path("/home/me/.cache/placeit")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_folder() == Path("/caches/placeit")
    monkeypatch.setenv("PLACEIT_CACHE", "~/own")
    assert cache_folder() == Path("/home/me/own")
    assert Cache().folder == Path("/home/me/own")


def test_without_a_home_folder_there_is_no_cache_and_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PLACEIT_CACHE", "~nobody-has-this-name/cache")
    cache = Cache()
    cache.put(KEY, 1)
    assert cache.get(KEY) is None
    assert cache.clear() == 0
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "this user has none: set HOME" in caplog.text
