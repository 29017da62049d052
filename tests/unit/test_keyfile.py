"""Key files: read with care, created once, replaced whole, one writer at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from hitl_guard import clock, keyfile
from hitl_guard.errors import ConfigurationError, KeyUnavailableError
from hitl_guard.keyfile import Sealed
from hitl_guard.keyring import Keyring, rotated

from .rings import MINUTE, NOW, entry, key, ring, write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A usable key file, alone in its folder."""
    target = tmp_path / "ring.json"
    write(target, "old")
    return target


def failing(*_: Any, **__: Any) -> Any:
    raise OSError(errno.EIO, "the disk is gone")


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def replace_by(text: str) -> Any:
    return lambda _: Sealed(text.encode())


# Reading


def test_a_file_of_its_owner_alone_is_read(path: Path) -> None:
    assert keyfile.read(path).reveal() == b"old"


def test_a_symbolic_link_to_a_good_file_is_followed(path: Path) -> None:
    (path.parent / "link").symlink_to(path)

    assert keyfile.read(path.parent / "link").reveal() == b"old"


@pytest.mark.parametrize("mode", [0o640, 0o620, 0o610, 0o604, 0o602, 0o601, 0o777])
def test_a_file_that_others_may_use_is_refused(path: Path, mode: int) -> None:
    path.chmod(mode)

    with pytest.raises(ConfigurationError) as caught:
        keyfile.read(path)

    assert (caught.value.code, caught.value.detail) == ("config-error", "file-mode")


def test_modes_say_nothing_where_the_system_has_no_posix_modes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.chmod(0o666)
    monkeypatch.setattr(keyfile, "_POSIX", False)

    assert keyfile.read(path).reveal() == b"old"


def test_a_missing_file_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        keyfile.read(tmp_path / "none")

    assert caught.value.detail == "file-missing"


@pytest.mark.parametrize("name", ["a\0b", "ring.json/below"])
def test_a_path_that_cannot_be_opened_is_refused(path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        keyfile.read(f"{path.parent}/{name}")

    assert caught.value.detail == "file-unreadable"


def test_a_file_whose_reading_fails_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", failing)
        with pytest.raises(ConfigurationError) as caught:
            keyfile.read(path)

    assert caught.value.detail == "file-unreadable"


def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)

    with pytest.raises(ConfigurationError) as caught:
        keyfile.read(tmp_path / "pipe")

    assert caught.value.detail == "file-kind"


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        keyfile.read(tmp_path)

    assert caught.value.detail == "file-kind"


def test_a_file_beyond_the_size_limit_is_refused(path: Path) -> None:
    write(path, "x" * keyfile.MAX_BYTES)
    at_limit = len(keyfile.read(path).reveal())
    write(path, "x" * (keyfile.MAX_BYTES + 1))

    with pytest.raises(ConfigurationError) as caught:
        keyfile.read(path)

    assert at_limit == keyfile.MAX_BYTES
    assert caught.value.detail == "file-size"


# Creating


def test_a_new_file_is_for_its_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        keyfile.create(tmp_path / "new.json", Sealed(b"content"))
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "new.json").stat().st_mode) == 0o600
    assert keyfile.read(tmp_path / "new.json").reveal() == b"content"
    assert names(tmp_path) == ["new.json"]


def test_a_file_in_the_current_folder_is_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    keyfile.create("new.json", Sealed(b"content"))

    assert names(tmp_path) == ["new.json"]


def test_a_file_that_exists_is_never_overwritten(path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        keyfile.create(path, Sealed(b"new"))

    assert caught.value.detail == "file-exists"
    assert path.read_bytes() == b"old"
    assert names(path.parent) == ["ring.json"]


def test_a_dangling_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")

    with pytest.raises(ConfigurationError):
        keyfile.create(tmp_path / "link", Sealed(b"new"))

    assert names(tmp_path) == ["link"]


@pytest.mark.parametrize("name", ["missing/new.json", "a\0b"])
def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        keyfile.create(f"{tmp_path}/{name}", Sealed(b"new"))

    assert caught.value.detail == "file-unwritable"


def test_a_failed_write_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", failing)

    with pytest.raises(ConfigurationError) as caught:
        keyfile.create(tmp_path / "new.json", Sealed(b"content"))

    assert caught.value.detail == "file-unwritable"
    assert names(tmp_path) == []


def test_a_file_is_created_where_folders_cannot_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyfile, "_POSIX", False)

    keyfile.create(tmp_path / "new.json", Sealed(b"content"))

    assert names(tmp_path) == ["new.json"]


# Editing


def test_an_edit_replaces_the_whole_file_and_keeps_it_private(path: Path) -> None:
    before = path.stat().st_ino

    keyfile.edit(path, lambda content: Sealed(content.reveal() + b", new"))

    assert path.read_bytes() == b"old, new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_ino != before
    assert names(path.parent) == ["ring.json", "ring.json.lock"]


def test_an_edit_through_a_link_changes_the_target_and_keeps_the_link(path: Path) -> None:
    link = path.parent / "link"
    link.symlink_to(path)

    keyfile.edit(link, replace_by("new"))

    assert link.is_symlink()
    assert path.read_bytes() == b"new"


def test_an_edit_keeps_the_owner_of_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given_to: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "chown", lambda _, owner, group: given_to.append((owner, group)))

    keyfile.edit(path, replace_by("new"))

    assert given_to == [(path.stat().st_uid, path.stat().st_gid)]


@pytest.mark.parametrize("step", ["fsync", "chown", "replace"])
def test_an_edit_that_fails_leaves_the_old_file_whole(path: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, step, failing)

    with pytest.raises(ConfigurationError) as caught:
        keyfile.edit(path, replace_by("new"))

    assert caught.value.detail == "file-unwritable"
    assert path.read_bytes() == b"old"
    assert names(path.parent) == ["ring.json", "ring.json.lock"]


def test_a_change_that_is_refused_leaves_the_old_file_whole(path: Path) -> None:
    with pytest.raises(ConfigurationError, match="keys"):
        keyfile.edit(path, lambda content: Keyring.from_json(content.reveal()).dump())

    assert path.read_bytes() == b"old"


@pytest.mark.parametrize(("name", "detail"), [("none", "file-missing"), ("a\0b", "file-unreadable")])
def test_an_edit_of_a_file_that_is_not_there_leaves_nothing_behind(tmp_path: Path, name: str, detail: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        keyfile.edit(f"{tmp_path}/{name}", replace_by("new"))

    assert caught.value.detail == detail
    assert names(tmp_path) == []


def test_an_edit_without_a_place_for_the_lock_is_refused(path: Path) -> None:
    (path.parent / "ring.json.lock").mkdir()

    with pytest.raises(ConfigurationError) as caught:
        keyfile.edit(path, replace_by("new"))

    assert caught.value.detail == "file-unwritable"
    assert path.read_bytes() == b"old"


def test_an_edit_where_the_system_has_no_file_locks_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)

    with pytest.raises(ConfigurationError) as caught:
        keyfile.edit(path, replace_by("new"))

    assert caught.value.detail == "platform"
    assert path.read_bytes() == b"old"


def test_an_edit_waits_for_the_one_before_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(other, fcntl.LOCK_EX)
    waits: list[int] = []

    def release(duration: int) -> None:
        waits.append(duration)
        os.close(other)

    monkeypatch.setattr(clock, "sleep_ms", release)

    keyfile.edit(path, replace_by("new"))

    assert len(waits) == 1
    assert path.read_bytes() == b"new"


def test_an_edit_gives_up_when_the_lock_is_never_released(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr(clock, "monotonic_ms", lambda: now[0])
    monkeypatch.setattr(clock, "sleep_ms", lambda duration: now.__setitem__(0, now[0] + duration))
    other = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(other, fcntl.LOCK_EX)

    with pytest.raises(KeyUnavailableError) as caught:
        keyfile.edit(path, replace_by("new"))

    os.close(other)
    assert (caught.value.code, caught.value.detail) == ("key-unavailable", "locked")
    assert now[0] == keyfile.LOCK_WAIT_MS
    assert path.read_bytes() == b"old"


def test_simultaneous_rotations_lose_no_key(path: Path) -> None:
    write(path, ring(entry(1)))
    start = threading.Barrier(8)

    def rotate() -> None:
        start.wait(30)
        keyfile.edit(path, lambda content: rotated(
            Keyring.from_json(content.reveal()), now=NOW + 10, refresh_ms=MINUTE
        )[0].dump())

    threads = [threading.Thread(target=rotate) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert len(Keyring.from_file(path).keys) == 9


def test_a_reader_during_many_edits_always_sees_a_whole_key_ring(path: Path) -> None:
    keyfile.edit(path, lambda _: Keyring((key(1),)).dump())
    done = threading.Event()
    read: list[int] = []

    def reader() -> None:
        while not done.is_set():
            read.append(len(Keyring.from_file(path).keys))

    thread = threading.Thread(target=reader)
    thread.start()
    for _ in range(20):
        keyfile.edit(path, lambda content: rotated(
            Keyring.from_json(content.reveal()), now=NOW, refresh_ms=MINUTE
        )[0].dump())
    done.set()
    thread.join(30)

    assert read == sorted(read)
    assert len(Keyring.from_file(path).keys) == 21
