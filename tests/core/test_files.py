"""Files that are written: replaced in one step where they can be, written to where not, and never half of one."""

import errno
import os
import resource
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from placeit.core.errors import FileError
from placeit.core.files import check_writable, read_text, replacing, replacing_both, temporary_folder, write_text


@pytest.fixture
def small_disk() -> Iterator[None]:
    """Let no file grow beyond 16 KiB, as on a disk that is almost full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16384, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_new_file_has_the_mode_that_others_have(tmp_path: Path) -> None:
    write_text(tmp_path / "new", "text")
    (tmp_path / "other").write_text("text")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)
    assert (tmp_path / "new").read_text() == "text"


def test_the_mask_of_the_process_for_new_files_is_never_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mask holds for all threads: another thread could then create files that every user can read and write."""
    before = os.umask(0o077)
    try:
        monkeypatch.setattr(os, "umask", lambda _: pytest.fail("the mask was changed"))
        write_text(tmp_path / "new", "text")
        write_text(tmp_path / "new", "text again")
        check_writable(tmp_path / "new")
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600
    finally:
        monkeypatch.undo()
        os.umask(before)


def test_a_draft_of_a_private_file_is_private_too(tmp_path: Path) -> None:
    (tmp_path / "file").touch(0o600)
    with replacing(tmp_path / "file") as draft:
        assert stat.S_IMODE(draft.stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    path.chmod(mode)
    write_text(path, "after")
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert path.read_text() == "after"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_that_is_replaced_keeps_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    os.chown(path, 1234, 2345)
    write_text(path, "after")
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 2345)


@pytest.mark.parametrize("there", [True, False])
def test_links_are_followed(tmp_path: Path, there: bool) -> None:
    (tmp_path / "folder").mkdir()
    real, link, second = tmp_path / "folder" / "real", tmp_path / "link", tmp_path / "second"
    if there:
        real.write_text("before")
    link.symlink_to(Path("folder") / "real")
    second.symlink_to(link)
    write_text(second, "after")
    assert link.is_symlink()
    assert second.is_symlink()
    assert real.read_text() == "after"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link", "second"]


def test_a_file_with_two_names_keeps_both(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a long text before")
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    write_text(tmp_path / "b", "after")
    assert (tmp_path / "a").read_text() == "after"


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe, text = tmp_path / "pipe", "text\n" * 50_000  # more than a pipe holds
    os.mkfifo(pipe)
    check_writable(pipe)  # neither waits for a reader nor writes anything
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_text(pipe, text)
    reader.join()
    assert read == [text]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_devices_are_written_to() -> None:
    write_text(Path("/dev/null"), "text")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    with pytest.raises(FileError, match=r"Cannot write /dev/full: No space left on device"):
        write_text(Path("/dev/full"), "text")
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
@pytest.mark.parametrize("sink", ["pipe", "file", "appended"])
def test_standard_output_is_written_where_it_stands(tmp_path: Path, name: str, sink: str) -> None:
    code = (
        "import sys, os; os.write(1, b'before '); from pathlib import Path; from placeit.core.files import write_text; "
        f"write_text(Path({name!r}), 'text'); os.write(1, b' after')"
    )
    if sink == "pipe":
        assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout == b"before text after"
        return
    path = tmp_path / "out"
    path.write_text("kept ")
    with path.open("a" if sink == "appended" else "w") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert path.read_text() == ("kept " if sink == "appended" else "") + "before text after"


def test_what_is_neither_file_nor_pipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="it is a folder; name a file in it"):
        write_text(tmp_path, "text")
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(FileError, match=r"Cannot write .*a: "):
        write_text(tmp_path / "a", "text")
    with pytest.raises(FileError, match="No such file"):
        write_text(tmp_path / "missing" / "file", "text")


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, small_disk: None) -> None:
    names = ["plain", "link", "hard", "hard2"]
    for name in ("plain", "hard"):
        (tmp_path / name).write_text("before")
    (tmp_path / "link").symlink_to("plain")
    (tmp_path / "hard2").hardlink_to(tmp_path / "hard")
    for name in names:
        with pytest.raises(FileError, match=f"Cannot write .*{name}: .*Nothing was written there"):
            write_text(tmp_path / name, "x" * 20_000)
        check_writable(tmp_path / name)
        assert (tmp_path / name).read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_a_probe_tells_that_a_disk_is_full(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(FileError, match="Choose another path"):
            check_writable(tmp_path / "new")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_two_files_are_both_written_or_none(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"

    def fail() -> None:
        with replacing_both(first, second) as (a, b):
            a.write_text("text")
            b.write_text("text")
            raise OSError(28, "No space left on device")

    with pytest.raises(FileError, match="No space left"):
        fail()
    assert list(tmp_path.iterdir()) == []
    with replacing_both(first, second) as (a, b):
        a.write_text("1")
        b.write_text("2")
    assert (first.read_text(), second.read_text()) == ("1", "2")


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("before")

    def interrupted() -> None:
        with replacing(tmp_path / "file") as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "before")]


def test_a_name_as_long_as_names_may_be(tmp_path: Path) -> None:
    for name in ("n" * 250 + ".json", "n." + "s" * 250, "ü" * 125):
        write_text(tmp_path / name, "text")
        assert (tmp_path / name).read_text() == "text"


def test_a_device_without_an_end_is_no_text() -> None:
    with pytest.raises(FileError, match="it is larger than"):
        read_text(Path("/dev/zero"))


def test_a_temporary_folder_is_for_its_owner_and_deleted_at_the_end() -> None:
    with temporary_folder() as folder:
        (folder / "file").touch()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not folder.exists()


def test_a_read_only_disk_is_an_error_that_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object, *_: object, **__: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)  # it fails there for files that do not exist, too
    with pytest.raises(FileError, match=r"Cannot write .*/page.html: Read-only file system. Choose another path"):
        check_writable(tmp_path / "page.html")
