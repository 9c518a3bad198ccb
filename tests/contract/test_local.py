"""Local files pass the contract, survive kills and many processes, and say clearly what is wrong with a folder."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from buffer.errors import InvalidInput, ObjectNotFound, ObjectTooLarge, StorageError, StoreUnusable
from buffer.store import LocalStore, Lost, Store, Unknown, Won, files, local, stamps
from buffer.store.linked import LinkedStore
from buffer.testing.clock import ManualClock
from buffer.testing.contract import StoreContract
from tests.contract.counting import count_up
from tests.nets import HANGS_S
from tests.users import as_nobody

MEGABYTE = 1 << 20


class TestLocal(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return LocalStore(tmp_path / "new" / "mit Leerzeichen #1")


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "root")


def _files(store: LocalStore) -> list[str]:
    """Every file below the root but the locks, objects or not."""
    root = Path(store.url.removeprefix("file://"))
    found = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return sorted(path.as_posix() for path in found if path.parts[0] != local.LOCK_FOLDER)


# Several processes


def test_should_count_right_when_eight_processes_swap(store: LocalStore) -> None:
    store.put("counter", b"0")
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=count_up, args=(store.url, {}, 50)) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(HANGS_S)
    assert [worker.exitcode for worker in workers] == [0] * 8
    assert store.get("counter").data == b"400"
    assert _files(store) == ["counter"]


def test_should_hold_old_or_new_content_when_killed_at_any_moment(store: LocalStore) -> None:
    store.put("a", bytes(MEGABYTE))
    program = f"from tests.contract.counting import swap_for_ever; swap_for_ever({store.url!r})"
    for n in range(6):
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.read(1) == b"."
            time.sleep(0.013 * n)
            writer.kill()
        for location in ("a", "b"):
            data = store.get(location).data
            assert data == bytes([data[0]]) * MEGABYTE, f"{location} is torn after kill {n}"
        # No lock is left behind, and what the writer left of its temporary files is no object.
        assert isinstance(store.put_if_match("a", data, store.get("a").version), Won)
        assert sorted(o.location for o in store.list("")) == ["a", "b"]


def test_should_work_in_a_forked_child(store: LocalStore) -> None:
    store.put("counter", b"0")
    program = f"from tests.contract.counting import count_in_fork; count_in_fork({store.url!r})"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=HANGS_S)
    assert store.get("counter").data == b"2"


def test_should_give_up_when_the_lock_stays_taken(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("a", b"one")
    version = store.get("a").version
    monkeypatch.setattr(local, "LOCK_TIMEOUT_S", 0.05)
    root = Path(store.url.removeprefix("file://"))
    locks = [lock.open("r+b") for lock in (root / local.LOCK_FOLDER).iterdir()]
    for lock in locks:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as a stopped process would
    outcome = store.put_if_match("a", b"two", version)
    assert isinstance(outcome, Unknown)
    assert isinstance(outcome.cause, StorageError)
    assert outcome.cause.retryable
    with pytest.raises(StorageError, match="has held the lock"):
        store.put("a", b"two")
    assert [failure.location for failure in store.delete_many(["a"])] == ["a"]
    for lock in locks:
        lock.close()
    assert store.get("a").data == b"one"
    assert isinstance(store.put_if_match("a", b"two", version), Won)
    assert _files(store) == ["a"]


# Polling


def test_should_not_open_the_file_when_it_did_not_change(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a", b"one")
    _age(tmp_path / "root/a")
    monkeypatch.setattr(stamps, "tick_ms", lambda _: -1)  # the change time cannot be set back: count it as old
    version = store.get("a").version
    with monkeypatch.context() as patch:
        patch.setattr(local, "open_plain", _refuse)
        assert store.get_if_changed("a", version) is None
    store.put("a", b"two")
    found = store.get_if_changed("a", version)
    assert found is not None
    assert found.data == b"two"


def test_should_not_trust_times_of_a_file_that_just_changed(store: LocalStore, tmp_path: Path) -> None:
    """A file of equal size, inode and times may have other content while it is younger than the clock's tick."""
    store.put("a", b"one")
    version = store.get("a").version
    path = tmp_path / "root/a"
    before = path.stat()
    path.write_bytes(b"two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    found = store.get_if_changed("a", version)
    assert found is not None
    assert found.data == b"two"


@pytest.mark.parametrize(
    ("fraction_ns", "age_ms", "is_known"),
    [(123_456, 50, False), (123_456, 150, True), (0, 150, False), (0, 1_999, False), (0, 2_001, True)],
)
def test_should_trust_a_stamp_once_it_is_older_than_a_tick_of_its_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fraction_ns: int, age_ms: int, is_known: bool
) -> None:
    """Times with digits below a millisecond have short ticks; others may come from a system that keeps seconds."""
    path = tmp_path / "a"
    path.write_bytes(b"one")
    stamp = stamps.stamp_of(path.lstat())
    written_ns = stamp[3] // 1_000_000 * 1_000_000 + fraction_ns
    stamp = (*stamp[:2], written_ns, written_ns, stamp[4])
    monkeypatch.setattr(stamps, "stamp_of", lambda _: stamp)
    monkeypatch.setattr(stamps, "_clock", ManualClock(start_ms=written_ns // 1_000_000 + age_ms))
    known = stamps.Stamps()
    known.remember(path, stamp, "version")
    assert known.prove(path, "version") is is_known


def _age(path: Path) -> None:
    os.utime(path, ns=(0, 1_000_000_000 * 1_600_000_000))


def _refuse(*_args: object, **_rest: object) -> None:
    raise AssertionError("the file was opened")


# Temporary files


def test_should_ignore_and_finally_remove_what_a_crash_left(store: LocalStore, tmp_path: Path) -> None:
    store.put("x/a", b"one")
    young, old = (tmp_path / "root/x" / f".buffer-tmp-{name}" for name in ("young", "old"))
    young.write_bytes(b"half")
    old.write_bytes(b"half")
    _age(old)
    assert [o.location for o in store.list("")] == ["x/a"]
    store.delete_many(["x/gone"])
    assert young.exists()
    assert not old.exists()


def test_should_leave_nothing_behind_when_the_disk_is_full(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("a", b"one")
    version = store.get("a").version

    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    calls: list[Callable[[], object]] = [
        lambda: store.put("a", b"two"),
        lambda: store.put_if_match("a", b"two", version),
        lambda: store.put_if_absent("b", b"two"),
    ]
    for call in calls:
        with pytest.raises(StoreUnusable, match="No space left on device"):
            call()
    assert _files(store) == ["a"]
    assert store.get("a").data == b"one"


def test_should_say_unknown_when_only_the_folder_cannot_be_synced(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a", b"one")

    def broken(_folder: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    version = store.get("a").version
    with monkeypatch.context() as patch:
        patch.setattr(local, "fsync_folder", broken)
        outcome = store.put_if_match("a", b"two", version)
        assert isinstance(outcome, Unknown)
        assert "Input/output error" in str(outcome.cause)
        # A power cut may still take it back: it must not be read back as landed.
        for read in (store.get, lambda location: store.get_if_changed(location, version)):
            with pytest.raises(StorageError, match="Input/output error"):
                read("a")
    inode = (tmp_path / "root/a").stat().st_ino
    assert store.get("a").data == b"two"
    assert (tmp_path / "root/a").stat().st_ino != inode  # written anew: a second sync alone would prove nothing
    assert _files(store) == ["a"]


def test_should_put_again_when_only_the_folder_could_not_be_synced(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_folder: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(local, "fsync_folder", broken)
        with pytest.raises(StorageError):
            store.put("a", b"one")
        with pytest.raises(StorageError):
            store.get("a")
    store.put("a", b"two")
    assert store.get("a").data == b"two"


def test_should_not_take_a_folder_for_durable_whose_making_could_not_be_synced(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []

    def broken(_folder: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    def noted(folder: Path) -> None:
        synced.append(folder)

    with monkeypatch.context() as patch:
        patch.setattr(files, "fsync_folder", broken)
        with pytest.raises(StorageError):
            store.put("x/a", b"one")
    with monkeypatch.context() as patch:
        patch.setattr(files, "fsync_folder", noted)
        store.put("x/a", b"one")
    root = Path(store.url.removeprefix("file://"))
    assert {root.parent, root} <= set(synced)


def test_should_compare_content_whatever_the_file_times_say(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a file server's attribute cache, `stat` tells what was true a minute ago."""
    store.put("a", b"one")
    version = store.get("a").version
    LocalStore(store.url.removeprefix("file://")).put("a", b"two")
    monkeypatch.setattr(stamps.Stamps, "prove", lambda *_: True)
    assert store.put_if_match("a", b"three", version) == Lost()
    lstat = Path.lstat
    monkeypatch.setattr(Path, "lstat", lambda path: _missing() if path.name == "a" else lstat(path))
    assert store.put_if_absent("a", b"three") == Lost()
    monkeypatch.undo()
    assert store.get("a").data == b"two"


# Links and pipes


def test_should_follow_no_link_to_an_object(store: LocalStore, tmp_path: Path) -> None:
    store.put("q/real", b"one")
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    (tmp_path / "root/q/link").symlink_to(secret)
    calls: list[Callable[[], object]] = [
        lambda: store.get("q/link"),
        lambda: store.get_bounded("q/link", 100),
        lambda: store.head("q/link"),
        lambda: store.copy("q/link", "q/copy"),
    ]
    for call in calls:
        with pytest.raises(InvalidInput, match="not a plain file"):
            call()
    assert [item.location for item in store.list("")] == ["q/real"]
    store.put("q/link", b"two")  # in the place of the link, not through it
    assert secret.read_bytes() == b"secret"
    assert store.get("q/link").data == b"two"


def test_should_follow_no_link_to_a_folder(store: LocalStore, tmp_path: Path) -> None:
    store.put("q/real", b"one")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a").write_bytes(b"precious")
    (tmp_path / "root/q/away").symlink_to(outside)
    (tmp_path / "root/q/loop").symlink_to(tmp_path / "root/q")
    assert [item.location for item in store.list("q")] == ["q/real"]
    calls: list[Callable[[], object]] = [
        lambda: store.get("q/away/a"),
        lambda: store.put("q/away/b", b"x"),
        lambda: store.put_if_absent("q/away/b", b"x"),
        lambda: store.put_if_match("q/away/a", b"x", store.head("q/real").version or ""),
        lambda: list(store.list("q/away")),
        lambda: list(store.list("q/loop/loop")),
    ]
    for call in calls:
        with pytest.raises(InvalidInput, match="symbolic link"):
            call()
    assert ["symbolic link" in str(failure.cause) for failure in store.delete_many(["q/away/a"])] == [True]
    assert sorted(path.name for path in outside.iterdir()) == ["a"]
    assert (outside / "a").read_bytes() == b"precious"


def test_should_go_through_links_of_a_folder_that_is_not_ours_alone(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    (disk / "deep").mkdir(parents=True)
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "away").symlink_to(disk)
    (root / "nowhere").symlink_to(tmp_path / "nothing")
    store: LinkedStore = pickle.loads(pickle.dumps(LinkedStore(root)))
    assert repr(store) == f"LinkedStore({str(root)!r})"
    for location in ("away/a", "away/deep/a", "away/new/deeper/a"):
        store.put(location, b"one")
        assert (disk / location.removeprefix("away/")).read_bytes() == b"one"
        assert store.get(location).data == b"one"
        assert store.head(location).size == 3
    assert not list(disk.rglob(".buffer-*")), "nothing of ours is left there"
    assert list(store.list("")) == [], "no reader is led there"
    with pytest.raises(InvalidInput, match="symbolic link"):
        list(store.list("away"))
    assert store.delete_many(["away/a"]) == []
    assert not (disk / "a").exists()
    (root / "link").symlink_to(secret)
    with pytest.raises(InvalidInput, match="not a plain file"):
        store.get("link")
    with pytest.raises(InvalidInput, match="a folder has that name"):
        store.put("nowhere/a", b"one")


def test_should_allow_a_root_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "disk")
    store = LocalStore(tmp_path / "root")
    store.put("q/a", b"one")
    assert store.get("q/a").data == b"one"
    assert [item.location for item in store.list("q")] == ["q/a"]


def test_should_not_wait_for_a_pipe(store: LocalStore, tmp_path: Path) -> None:
    store.put("q/real", b"one")
    os.mkfifo(tmp_path / "root/q/pipe")
    with pytest.raises(InvalidInput, match="not a plain file"):
        store.get("q/pipe")
    with pytest.raises(InvalidInput, match="not a plain file"):
        store.put_if_match("q/pipe", b"x", "1")
    assert store.put_if_absent("q/pipe", b"x") == Lost()
    assert [item.location for item in store.list("")] == ["q/real"]


@pytest.mark.parametrize("kind", ["link", "pipe", "folder link"])
def test_should_not_lock_what_is_not_a_plain_file(store: LocalStore, tmp_path: Path, kind: str) -> None:
    locks = tmp_path / "root" / local.LOCK_FOLDER
    victim = tmp_path / "victim"
    if kind == "folder link":
        victim.mkdir()
        (tmp_path / "root").mkdir()
        locks.symlink_to(victim)
    else:
        locks.mkdir(parents=True)
        for number in range(local.LOCK_COUNT):
            lock = locks / f"{number:04d}"
            lock.symlink_to(victim) if kind == "link" else os.mkfifo(lock)
    with pytest.raises(InvalidInput, match="plain files"):
        store.put("a", b"one")
    assert not victim.exists() or list(victim.iterdir()) == []


def test_should_list_beside_a_folder_that_is_too_deep(store: LocalStore, tmp_path: Path) -> None:
    store.put("q/real", b"one")
    here = os.open(tmp_path / "root/q", os.O_RDONLY)
    for _ in range(30):
        os.mkdir("d" * 200, dir_fd=here)
        deeper = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    assert [item.location for item in store.list("q")] == ["q/real"]


# Sizes


def test_should_refuse_a_large_object_before_it_is_read(store: LocalStore, tmp_path: Path) -> None:
    store.put("a", b"one")
    os.truncate(tmp_path / "root/a", 6 << 30)  # sparse: it takes no room, and would take 6 GiB of memory
    with pytest.raises(ObjectTooLarge, match="6,442,450,944 bytes") as caught:
        store.get_bounded("a", 1000)
    assert caught.value.size == 6 << 30
    for read in (lambda: store.get("a"), lambda: store.get_if_changed("a", "another")):
        with pytest.raises(ObjectTooLarge, match="at most 536,870,912 may be read"):
            read()


# Folders


def test_should_create_nothing_when_only_read(store: LocalStore, tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFound):
        store.get("a")
    assert list(store.list("")) == []
    assert store.delete_many(["a"]) == []
    assert store.put_if_match("a", b"x", "1") == Lost()
    assert list(tmp_path.iterdir()) == []


def test_should_name_the_folder_when_it_is_read_only() -> None:
    # Not below tmp_path, which other users cannot enter.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        store = LocalStore(folder)
        store.put("a", b"one")
        found = store.get("a")
        with _read_only(Path(folder)):
            assert store.get("a") == found
            for call in (
                lambda: store.put("a", b"two"),
                lambda: store.put("new/b", b"two"),
                lambda: store.put_if_absent("b", b"two"),
                lambda: store.put_if_match("a", b"two", found.version),
            ):
                with pytest.raises(StoreUnusable, match=f"{folder}.*Permission denied.*permissions"):
                    call()
            (failure,) = store.delete_many(["a"])
            assert isinstance(failure.cause, StoreUnusable)
        assert store.get("a") == found


def test_should_make_a_write_durable_though_its_temporary_file_stays(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []

    def broken(_path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EIO, f"Input/output error, {missing_ok}")

    def noted(folder: Path) -> None:
        synced.append(folder)

    store.put("folder", b"")  # makes the locks
    monkeypatch.setattr(Path, "unlink", broken)
    monkeypatch.setattr(local, "fsync_folder", noted)
    created = store.put_if_absent("a", b"one")
    assert isinstance(created, Won)
    assert isinstance(store.put_if_match("a", b"two", created.version), Won)
    store.put("a", b"three")
    assert len(synced) == 3
    assert store.get("a").data == b"three"


def test_should_name_the_lock_that_another_user_made() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = LocalStore(folder)
        store.put("a", b"one")
        (lock,) = (Path(folder) / local.LOCK_FOLDER).iterdir()
        lock.chmod(0o444)
        Path(folder).chmod(0o777)
        with as_nobody():
            for write in (lambda: store.put("a", b"two"), lambda: store.put_if_match("a", b"two", "1")):
                with pytest.raises(StoreUnusable, match=f"Permission denied for its lock, '{lock}'.*umask 002"):
                    write()


@contextmanager
def _read_only(folder: Path) -> Iterator[None]:
    """The folder may not be written, also where the tests run as root."""
    for path in (folder, folder / local.LOCK_FOLDER):
        path.chmod(0o555)
    try:
        with as_nobody():
            yield
    finally:
        for path in (folder, folder / local.LOCK_FOLDER):
            path.chmod(0o755)


def test_should_say_so_when_the_root_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for root in (tmp_path / "file", tmp_path / "file/below"):
        store = LocalStore(root)
        with pytest.raises(StoreUnusable, match="not a folder"):
            store.put("a", b"x")
        with pytest.raises(StoreUnusable, match="not a folder"):
            store.put_if_absent("a", b"x")
        with pytest.raises(StoreUnusable, match="not a folder"):
            store.get("a")
        with pytest.raises(StoreUnusable, match="not a folder"):
            store.get_if_changed("a", "1")


def test_should_say_so_when_a_folder_has_the_name(store: LocalStore) -> None:
    store.put("a/b", b"one")
    for call in (
        lambda: store.put("a", b"x"),
        lambda: store.put_if_absent("a", b"x"),
        lambda: store.put("a/b/c", b"x"),
        lambda: store.put_if_absent("a/b/c", b"x"),
    ):
        with pytest.raises(InvalidInput, match="a folder has that name"):
            call()
    for location in ("a", "a/b/c"):
        with pytest.raises(ObjectNotFound):
            store.get(location)
        assert store.put_if_match(location, b"x", "1") == Lost()
    assert store.delete_many(["a", "a/b/c"]) == []
    assert _files(store) == ["a/b"]


def test_should_keep_its_own_names_apart(store: LocalStore) -> None:
    for location in (".buffer-locks/0001", "a/.buffer-tmp-x", ".buffer-"):
        with pytest.raises(InvalidInput, match="the store's own"):
            store.put(location, b"x")
    store.put(".buffer", b"x")
    assert [o.location for o in store.list("")] == [".buffer"]


def test_should_say_so_when_the_name_is_too_long(store: LocalStore) -> None:
    with pytest.raises(InvalidInput, match="too long"):
        store.put("x" * 300, b"x")


def test_should_skip_files_that_no_location_can_name(store: LocalStore, tmp_path: Path) -> None:
    store.put("a", b"x")
    (tmp_path / "root" / "new\nline").write_bytes(b"")
    Path(os.fsdecode(os.fsencode(tmp_path / "root") + b"/\xff")).write_bytes(b"")
    assert [o.location for o in store.list("")] == ["a"]


def test_should_pickle_by_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = LocalStore("relative")
    store.put("a", b"one")
    pickled = pickle.dumps(store)
    monkeypatch.chdir("/")
    assert pickle.loads(pickled).get("a").data == b"one"


def test_should_keep_the_number_of_locks_bounded(store: LocalStore, tmp_path: Path) -> None:
    for n in range(50):
        store.put(f"a/{n}", b"")
    locks = [lock.name for lock in (tmp_path / "root" / local.LOCK_FOLDER).iterdir()]
    assert all(0 <= int(lock) < local.LOCK_COUNT for lock in locks)


def _missing() -> NoReturn:
    raise FileNotFoundError(errno.ENOENT, "as a stale cache says")
