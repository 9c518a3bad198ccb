"""What every store must do, as tests. Needs pytest.

Subclass `StoreContract` and give it a fixture `store` that returns an open, empty store:

    import pytest
    from buffer.testing.contract import StoreContract

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self):
            return MyStore(...)

To see the values in failing asserts, put `pytest.register_assert_rewrite("buffer.testing.contract")` into
conftest.py. Each test uses few, small requests, so the suite also runs against a server.
"""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Callable
from typing import ClassVar

import pytest

from buffer.errors import InvalidInput, ObjectNotFound
from buffer.store.base import CanGetRange, Lost, Outcome, Store, Version, Won

ODD_LOCATIONS = (
    "a#b",
    "a%b",
    "mit Leerzeichen",
    "日本",
    "ümlaut/ñandú",
    "a?b",
    "%20",
    "a%2Fb",
    "a+b&c=d",
    "(a) [b] {c} ~d 'e' !f @g $h",
    "a:b;c,d",
    ".hidden/file.batch",
    "deep/er/and/deeper/still",
)
BAD_LOCATIONS = ("", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a/.", "a\0b", "a\nb", "a\x7fb", "a\udc80b")
BIG_OBJECT_BYTES = 40 << 20  # more than one part of a multipart upload
THREADS = 8
OWN_LOSSES_MAX = 3


class StoreContract:
    """Subclass it with a fixture `store`."""

    picklable: ClassVar[bool] = True
    """Whether a pickled store must see the same objects. If not, pickling must fail with InvalidInput."""

    @pytest.fixture
    def store(self) -> Store:
        raise NotImplementedError("the subclass gives the store")

    # Reading and writing

    def test_should_tell_when_an_object_was_written_or_say_nothing(self, store: Store) -> None:
        store.put("a", b"1")
        first = store.head("a").modified_ms
        store.put("a", b"2")
        second = store.head("a").modified_ms
        assert (first is None) == (second is None)
        if first is not None and second is not None:
            assert first <= second
            assert second > 1_600_000_000_000, "milliseconds since 1970"

    def test_should_return_what_was_put(self, store: Store) -> None:
        store.put("a", b"one")
        assert store.get("a").data == b"one"
        assert isinstance(store.get("a").data, bytes)

    def test_should_read_a_part_of_an_object(self, store: Store) -> None:
        if not isinstance(store, CanGetRange):
            return  # it need not
        store.put("a/b", bytes(range(100)))
        assert store.get_range("a/b", 93, 7) == bytes(range(93, 100))
        assert store.get_range("a/b", 0, 2) == b"\x00\x01"
        assert store.get_range("a/b", 0, 0) == b""
        for length in (0, 7):
            with pytest.raises(ObjectNotFound):
                store.get_range("a/c", 0, length)

    def test_should_overwrite_when_put_again(self, store: Store) -> None:
        store.put("a", b"one, the longer")
        store.put("a", b"two")
        assert store.get("a").data == b"two"

    def test_should_keep_an_empty_object(self, store: Store) -> None:
        store.put("empty", b"")
        assert store.get("empty").data == b""
        assert store.head("empty").size == 0
        assert [(o.location, o.size) for o in store.list("")] == [("empty", 0)]

    def test_should_keep_every_byte_of_a_big_object(self, store: Store) -> None:
        data = bytes(range(256)) * (BIG_OBJECT_BYTES // 256)
        store.put("big", data)
        assert store.get("big").data == data
        assert store.head("big").size == BIG_OBJECT_BYTES

    def test_should_raise_object_not_found_when_there_is_none(self, store: Store) -> None:
        calls: list[Callable[[], object]] = [
            lambda: store.get("missing/a"),
            lambda: store.get_if_changed("missing/a", "1"),
            lambda: store.head("missing/a"),
            lambda: store.copy("missing/a", "b"),
        ]
        for call in calls:
            with pytest.raises(ObjectNotFound) as raised:
                call()
            assert raised.value.location == "missing/a"
            assert "missing/a" in str(raised.value)
            assert not raised.value.retryable
        assert list(store.list("")) == []

    def test_should_copy_over_what_is_there(self, store: Store) -> None:
        store.put("from here", b"new")
        store.put("to/there", b"old")
        store.copy("from here", "to/there")
        assert store.get("to/there").data == b"new"
        assert store.get("from here").data == b"new"

    # Versions

    def test_should_tell_the_same_version_everywhere(self, store: Store) -> None:
        version = _created(store, "a", b"one")
        assert store.get("a").version == version
        assert store.head("a").version == version
        assert [o.version for o in store.list("")] in ([version], [None])

    def test_should_change_version_when_content_changes(self, store: Store) -> None:
        versions = [_created(store, "a", b"0")]
        for data in (b"1", b"22", b"333"):
            versions.append(_replaced(store, "a", data, versions[-1]))
        store.put("a", b"4444")
        versions.append(store.get("a").version)
        assert len(set(versions)) == 5

    def test_should_keep_version_while_content_stays(self, store: Store) -> None:
        store.put("a", b"one")
        version = store.get("a").version
        store.put("b", b"other")
        assert store.get("a").version == version

    def test_should_return_none_when_not_changed(self, store: Store) -> None:
        store.put("a", b"one")
        version = store.get("a").version
        for _ in range(3):
            assert store.get_if_changed("a", version) is None

    def test_should_return_new_content_when_changed(self, store: Store) -> None:
        version = _created(store, "a", b"one")
        store.put("a", b"two")
        found = store.get_if_changed("a", version)
        assert found is not None
        assert found.data == b"two"
        assert found.version != version
        assert store.get_if_changed("a", found.version) is None

    def test_should_notice_every_change_of_equal_size(self, store: Store) -> None:
        version = _created(store, "a", b"000")
        for n in range(1, 30):
            data = b"%03d" % n
            store.put("a", data)
            found = store.get_if_changed("a", version)
            assert found is not None, f"the change to {data!r} went unseen"
            assert found.data == data
            version = found.version

    def test_should_raise_when_polled_object_is_gone(self, store: Store) -> None:
        version = _created(store, "a", b"one")
        assert store.get_if_changed("a", version) is None
        store.delete_many(["a"])
        with pytest.raises(ObjectNotFound):
            store.get_if_changed("a", version)

    # Conditional writes

    def test_should_create_only_when_absent(self, store: Store) -> None:
        _created(store, "x/a", b"one")
        assert store.put_if_absent("x/a", b"two") == Lost()
        assert store.put_if_absent("x/a", b"one") == Lost()
        assert store.get("x/a").data == b"one"

    def test_should_create_again_when_deleted(self, store: Store) -> None:
        store.put("a", b"one")
        store.delete_many(["a"])
        _created(store, "a", b"two")
        assert store.get("a").data == b"two"

    def test_should_replace_only_the_version_given(self, store: Store) -> None:
        first = _created(store, "a", b"one")
        second = _replaced(store, "a", b"two", first)
        assert store.get("a").data == b"two"
        assert store.put_if_match("a", b"three", first) == Lost()
        assert store.get("a").data == b"two"
        _replaced(store, "a", b"three", second)
        assert store.get("a").data == b"three"

    def test_should_lose_when_overwritten_meanwhile(self, store: Store) -> None:
        version = _created(store, "a", b"one")
        store.put("a", b"theirs")
        assert store.put_if_match("a", b"ours", version) == Lost()
        assert store.get("a").data == b"theirs"

    def test_should_lose_when_object_is_missing(self, store: Store) -> None:
        version = _created(store, "a", b"one")
        store.delete_many(["a"])
        assert store.put_if_match("a", b"two", version) == Lost()
        assert store.put_if_match("never/was", b"two", version) == Lost()
        assert list(store.list("")) == []

    def test_should_have_one_winner_when_many_create(self, store: Store) -> None:
        outcomes = _at_once(lambda n: store.put_if_absent("x/a", b"by %d" % n))
        _check_one_winner(store, "x/a", outcomes)

    def test_should_have_one_winner_when_many_replace(self, store: Store) -> None:
        version = _created(store, "a", b"start")
        outcomes = _at_once(lambda n: store.put_if_match("a", b"by %d" % n, version))
        _check_one_winner(store, "a", outcomes)

    def test_should_count_right_when_many_swap(self, store: Store) -> None:
        """Read, add one, swap, again on Lost: no count is lost and none is counted twice."""
        each = 5
        store.put("counter", b"0")

        def count(_n: int) -> Outcome:
            outcome: Outcome = Lost()
            for _ in range(each):
                while True:
                    seen = store.get("counter")
                    outcome = store.put_if_match("counter", b"%d" % (int(seen.data) + 1), seen.version)
                    if isinstance(outcome, Won):
                        break
                    assert outcome == Lost()
            return outcome

        _at_once(count)
        assert store.get("counter").data == b"%d" % (THREADS * each)

    # Listing and deleting

    def test_should_list_below_the_prefix_only(self, store: Store) -> None:
        for location in ("ingest/a", "ingest/x/b", "ingest2/c", "ingest.d", "other/ingest/e"):
            store.put(location, location.encode())
        assert _listed(store, "ingest") == ["ingest/a", "ingest/x/b"]
        assert _listed(store, "ingest/x") == ["ingest/x/b"]
        assert _listed(store, "ingest/a") == []
        assert _listed(store, "ing") == []
        assert _listed(store, "nothing/here") == []
        assert len(_listed(store, "")) == 5
        sizes = {o.location: o.size for o in store.list("ingest")}
        assert sizes == {"ingest/a": 8, "ingest/x/b": 10}

    def test_should_list_more_than_one_page(self, store: Store) -> None:
        locations = [f"many/{n:04d}" for n in range(60)]
        for location in locations:
            store.put(location, b"x")
        assert _listed(store, "many") == locations

    def test_should_list_only_what_comes_after_a_location(self, store: Store) -> None:
        locations = [f"many/{name}" for name in ("0a", "0b", "1.batch", "2", "Z", "a b", "ü", "\U0001f600")]
        for location in [*locations, "later", "many/1/deep"]:
            store.put(location, b"x")
        for after in [*locations, "many", "many/1", "many/Y", "many/zz", "many0", "a"]:
            found = [location for location in _listed(store, "many", after=after) if location != "many/1/deep"]
            assert found == [location for location in locations if location > after]
        sizes = {o.location: o.size for o in store.list("many", after="many/ü")}
        assert sizes == {"many/\U0001f600": 1}

    def test_should_delete_all_and_only_those_given(self, store: Store) -> None:
        for location in ("d/a", "d/b", "d/c"):
            store.put(location, b"x")
        assert store.delete_many(["d/a", "d/c"]) == []
        assert _listed(store, "") == ["d/b"]
        with pytest.raises(ObjectNotFound):
            store.get("d/a")

    def test_should_count_missing_as_deleted(self, store: Store) -> None:
        store.put("d/a", b"x")
        assert store.delete_many(["d/missing", "d/a", "never/was"]) == []
        assert store.delete_many(["d/a"]) == []
        assert store.delete_many([]) == []
        assert _listed(store, "") == []

    # Locations

    @pytest.mark.parametrize("location", ODD_LOCATIONS)
    def test_should_use_the_location_as_given(self, store: Store, location: str) -> None:
        under = f"odd {location}"
        for path in (location, f"{under}/x.batch"):
            store.put(path, path.encode())
            found = store.get(path)
            assert found.data == path.encode()
            assert store.get_if_changed(path, found.version) is None
            assert store.head(path).location == path
            assert isinstance(store.put_if_match(path, b"new", found.version), Won)
            assert isinstance(store.put_if_absent(f"{path}.2", b"new"), Won)
            store.copy(path, f"{path}.3")
        assert _listed(store, under) == sorted(f"{under}/x.batch{n}" for n in ("", ".2", ".3"))
        expected = sorted(f"{path}{n}" for path in (location, f"{under}/x.batch") for n in ("", ".2", ".3"))
        assert _listed(store, "") == expected
        assert store.delete_many(expected) == []
        assert _listed(store, "") == []

    @pytest.mark.parametrize("location", BAD_LOCATIONS)
    def test_should_refuse_a_location_that_cannot_be_kept(self, store: Store, location: str) -> None:
        calls: list[Callable[[], object]] = [
            lambda: store.get(location),
            lambda: store.get_if_changed(location, "1"),
            lambda: store.head(location),
            lambda: store.put(location, b"x"),
            lambda: store.put_if_absent(location, b"x"),
            lambda: store.put_if_match(location, b"x", "1"),
            lambda: store.copy(location, "a"),
            lambda: store.copy("a", location),
            lambda: store.delete_many([location]),
        ]
        if location:
            calls.append(lambda: store.list(location))  # the empty prefix means everything
        store.put("a", b"x")
        for call in calls:
            with pytest.raises(InvalidInput) as raised:
                call()
            assert repr(location) in str(raised.value)
        assert _listed(store, "") == ["a"]

    # The store itself

    def test_should_be_a_store_with_a_url(self, store: Store) -> None:
        assert isinstance(store, Store)
        assert "://" in store.url
        assert repr(store)

    def test_should_pickle_or_say_why_not(self, store: Store) -> None:
        store.put("a", b"one")
        if not self.picklable:
            with pytest.raises(InvalidInput, match="cannot be pickled"):
                pickle.dumps(store)
            return
        clone: Store = pickle.loads(pickle.dumps(store))
        assert clone.url == store.url
        assert clone.get("a") == store.get("a")
        clone.put("b", b"two")
        assert store.get("b").data == b"two"


def _created(store: Store, location: str, data: bytes) -> Version:
    """The version of an object that only we write: a loss may only be our own, of which the reply was lost (`Lost`)."""
    outcome: Outcome = Lost()
    for _ in range(OWN_LOSSES_MAX):
        outcome = store.put_if_absent(location, data)
        if isinstance(outcome, Won):
            return outcome.version
        assert (outcome, store.get(location).data) == (Lost(), data)
        assert store.delete_many([location]) == []
    raise AssertionError(f"nobody else writes, and yet {outcome!r}")


def _replaced(store: Store, location: str, data: bytes, version: Version) -> Version:
    """The same of one that is there already."""
    outcome: Outcome = Lost()
    for _ in range(OWN_LOSSES_MAX):
        outcome = store.put_if_match(location, data, version)
        if isinstance(outcome, Won):
            return outcome.version
        found = store.get(location)
        assert (outcome, found.data) == (Lost(), data)
        version = found.version
    raise AssertionError(f"nobody else writes, and yet {outcome!r}")


def _listed(store: Store, prefix: str, *, after: str | None = None) -> list[str]:
    return sorted(o.location for o in store.list(prefix, after=after))


def _at_once(act: Callable[[int], Outcome]) -> list[Outcome]:
    """The outcomes of `act(0)`, `act(1)`, … run in threads that start together."""
    outcomes: list[Outcome | BaseException | None] = [None] * THREADS
    barrier = threading.Barrier(THREADS)

    def run(n: int) -> None:
        barrier.wait()
        try:
            outcomes[n] = act(n)
        except BaseException as error:  # noqa: BLE001  (raised again below, in the thread that pytest watches)
            outcomes[n] = error

    threads = [threading.Thread(target=run, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done: list[Outcome] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        assert outcome is not None
        done.append(outcome)
    return done


def _check_one_winner(store: Store, location: str, outcomes: list[Outcome]) -> None:
    assert Counter(type(o) for o in outcomes) == {Won: 1, Lost: THREADS - 1}
    winner = next(n for n, o in enumerate(outcomes) if isinstance(o, Won))
    found = store.get(location)
    assert found.data == b"by %d" % winner
    assert outcomes[winner] == Won(found.version)
