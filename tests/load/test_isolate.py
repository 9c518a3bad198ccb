"""The search for what fails every time, on a lab that is a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from buffer.ledger.entries import listed
from buffer.model import BatchDescriptor
from buffer_delta.decode.failures import Failure
from buffer_delta.decode.group import Group
from buffer_delta.load.isolate import TRIALS_MAX, Search, TooMany, Trouble, Undecided, Verdict

Keys = set[tuple[int, int]]


class Bench:
    """Batches of some sizes. `fails` says what a part with these entries does; every part that is tried is kept."""

    def __init__(self, sizes: Sequence[int], fails: Callable[[Keys], Trouble | str | None]) -> None:
        self.sizes = dict(enumerate(sizes))
        self.fails = fails
        self.attempts: list[Keys] = []
        self.found: list[Failure] = []

    @property
    def whole(self) -> Group:
        return Group([BatchDescriptor(sequence, f"b{sequence}") for sequence in self.sizes])

    def keys(self, part: Group) -> Keys:
        keys = set()
        for d in part.descriptors:
            window = part.window(d.sequence, self.sizes[d.sequence])
            aside = set(part.aside(d.sequence, self.sizes[d.sequence])[0].tolist())
            keys |= {(d.sequence, index) for index in range(window.start, window.stop) if index not in aside}
        return keys

    def attempt(self, part: Group) -> Trouble | None:
        self.attempts.append(self.keys(part))
        found = self.fails(self.attempts[-1])
        return Trouble(found, "data") if isinstance(found, str) else found

    def probe(self, part: Group) -> Sequence[Failure]:
        keys, batches = self.keys(part), {d.sequence for d in part.descriptors}
        return [f for f in self.found if (f.sequence in batches if f.index is None else (f.sequence, f.index) in keys)]

    def count(self, descriptor: BatchDescriptor) -> int:
        return self.sizes[descriptor.sequence]

    def search(self) -> Verdict:
        return Search(self, self.whole).run()


def blamed(found: Verdict) -> list[tuple[int, int]]:
    return [(sequence, index) for sequence, index, _ in listed(found.entries)]


@pytest.mark.parametrize(
    "bad",
    [
        [],
        [(0, 0)],
        [(2, 4)],
        [(0, 0), (2, 0)],
        [(1, 0), (1, 1)],
        [(s, i) for s, n in enumerate((3, 2, 5)) for i in range(n)],
    ],
)
def test_should_find_exactly_what_fails_alone(bad: list[tuple[int, int]]) -> None:
    bench = Bench([3, 2, 5], lambda keys: "no" if keys & set(bad) else None)
    found = bench.search()
    assert blamed(found) == bad
    assert all(reason == "no" for _, _, reason in listed(found.entries))
    assert not bad or not bench.attempts[-1] & set(bad), "all the rest passes together"


def test_should_try_only_a_few_times_in_a_long_range() -> None:
    bench = Bench([200] * 16, lambda keys: "no" if (7, 123) in keys else None)
    assert blamed(bench.search()) == [(7, 123)]
    assert len(bench.attempts) < 50


def test_should_take_what_a_look_finds_without_trying() -> None:
    bench = Bench([3, 3, 3], lambda keys: "no" if (2, 2) in keys else None)
    bench.found = [Failure(0, "b0", "unreadable", "data"), Failure(1, "b1", "gone", "missing")]
    bench.found += [Failure(2, "b2", "odd", "data", 0)]
    found = bench.search()
    assert found.batches == {0: "unreadable", 1: "gone"}
    assert list(listed(found.entries)) == [(2, 0, "odd"), (2, 2, "no")]


@pytest.mark.parametrize("at", range(8))
def test_should_decide_nothing_when_the_machines_fail(at: int) -> None:
    """At whatever moment, though an entry is bad, too."""

    def fails(keys: Keys) -> Trouble | str | None:
        if len(bench.attempts) == at + 1:
            return Trouble("executor lost", "infra")
        return "no" if (0, 1) in keys else None

    bench = Bench([3, 1], fails)
    with pytest.raises(Undecided, match="executor lost"):
        bench.search()


def test_should_decide_nothing_while_a_batch_cannot_be_looked_at() -> None:
    bench = Bench([2, 2], lambda _: None)
    bench.found = [Failure(0, "b0", "unreadable", "data"), Failure(1, "b1", "no answer", "infra")]
    with pytest.raises(Undecided, match="no answer"):
        bench.search()


def test_should_not_blame_what_fails_once() -> None:
    def fails(keys: Keys) -> str | None:
        return "odd" if (0, 1) in keys and len(bench.attempts) < 5 else None

    bench = Bench([2], fails)
    with pytest.raises(Undecided, match="did not fail again: odd"):
        bench.search()


@pytest.mark.parametrize("sizes", [[1], [0], [4, 4]])
def test_should_blame_nothing_when_everything_fails(sizes: list[int]) -> None:
    """The table's folder is read-only, say: so is it for a part without any entry."""
    with pytest.raises(Undecided, match="even a part without any entry fails: not allowed"):
        Bench(sizes, lambda _: "not allowed").search()


def test_should_find_what_fails_only_together() -> None:
    """Two spellings of one column: each is fine alone. The second is set aside."""
    bench = Bench([3, 4, 2], lambda keys: "twice" if {(0, 1), (1, 2)} <= keys else None)
    found = bench.search()
    assert list(listed(found.entries)) == [(1, 2, "together with what comes before it: twice")]


def test_should_find_what_fails_alone_and_what_fails_together() -> None:
    def fails(keys: Keys) -> str | None:
        return "alone" if (0, 0) in keys else "twice" if {(0, 2), (2, 1)} <= keys else None

    assert blamed(Bench([3, 4, 2], fails).search()) == [(0, 0), (2, 1)]


def test_should_blame_a_batch_without_entries_as_a_whole() -> None:
    bench = Bench([1, 0, 1], lambda _: None)
    empty = BatchDescriptor(1, "b1")
    bench.fails = lambda _: None
    real = bench.attempt

    def attempt(part: Group) -> Trouble | None:
        real(part)
        return Trouble("odd", "data") if empty in part.descriptors else None

    bench.attempt = attempt  # type: ignore[method-assign]
    assert bench.search() == Verdict({1: "odd"}, {})


CRASH = Trouble("Python worker exited unexpectedly", "data")


def ends_its_process(bench: Bench, sequence: int, *, can_count: bool) -> None:
    """The batch ends every process that decodes it, whichever entries are wanted."""
    attempt, probe, count = bench.attempt, bench.probe, bench.count

    def is_in(part: Group) -> bool:
        return any(d.sequence == sequence for d in part.descriptors)

    bench.attempt = lambda part: CRASH if is_in(part) else attempt(part)  # type: ignore[method-assign]
    bench.probe = lambda part: CRASH if is_in(part) else probe(part)  # type: ignore[method-assign, assignment, return-value]
    if not can_count:
        bench.count = lambda d: CRASH if d.sequence == sequence else count(d)  # type: ignore[method-assign, assignment, return-value]


@pytest.mark.parametrize("can_count", [True, False])
@pytest.mark.parametrize("sizes", [[3, 50_000, 2], [1, 1], [1, 0, 1]])
def test_should_set_a_batch_aside_that_ends_the_process_which_decodes_it(sizes: list[int], can_count: bool) -> None:
    """Counting its entries by decoding them ends the process, too."""
    bench = Bench(sizes, lambda keys: "no" if (0, 0) in keys else None)
    ends_its_process(bench, 1, can_count=can_count)
    found = bench.search()
    assert found.batches == {1: CRASH.error}
    assert blamed(found) == [(0, 0)]


def test_should_decide_nothing_when_the_entries_cannot_be_counted_for_now() -> None:
    bench = Bench([3, 2], lambda keys: "no" if (0, 0) in keys else None)
    bench.count = lambda _: Trouble("no answer", "infra")  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(Undecided, match="no answer"):
        bench.search()


def test_should_not_blame_a_batch_that_could_not_be_counted_once() -> None:
    """It fails for an entry, and the count for something that is over."""
    bench = Bench([3, 2], lambda keys: "no" if (0, 1) in keys and len(bench.attempts) < 3 else None)
    bench.count = lambda _: CRASH  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(Undecided, match="did not fail again"):
        bench.search()


def test_should_give_up_where_very_many_fail() -> None:
    bench = Bench([2_000], lambda keys: "no" if keys else None)
    search = Search(bench, bench.whole, trials_max=200)
    with pytest.raises(TooMany):
        search.run()


def test_should_find_all_of_a_hundred_in_a_hundred_thousand() -> None:
    """A few in a large range take more trials than the limit, and each that is found allows some more."""
    bad = {(n * 1000 // 2500, n * 1000 % 2500) for n in range(100)}
    bench = Bench([2500] * 40, lambda keys: "no" if keys & bad else None)
    assert set(blamed(bench.search())) == bad
    assert len(bench.attempts) > TRIALS_MAX


def test_should_leave_alone_what_is_set_aside_already() -> None:
    bench = Bench([3, 1], lambda keys: "no" if keys & {(0, 0), (0, 2), (1, 0)} else None)
    whole = Group(bench.whole.descriptors, {1: "given up"}, {0: {"before": "0"}})
    found = Search(bench, whole).run()
    assert blamed(found) == [(0, 2)]
    assert not any(keys & {(0, 0), (1, 0)} for keys in bench.attempts)


def test_should_name_what_it_has_found_when_it_gives_up() -> None:
    """Else an operator who gives that up gives up nothing, and the next search ends in the same way."""
    bench = Bench([2_000], lambda keys: "no" if keys else None)
    search = Search(bench, bench.whole, trials_max=200)
    with pytest.raises(TooMany):
        search.run()
    assert len(blamed(search.found)) > 10


def test_should_find_what_fails_together_beside_a_batch_that_cannot_be_read() -> None:
    """Its entries cannot be counted either."""
    bench = Bench([1, 3, 2], lambda keys: "twice" if {(0, 0), (2, 1)} <= keys else None)
    bench.found = [Failure(1, "b1", "unreadable", "data")]
    real = bench.count

    def count(descriptor: BatchDescriptor) -> int | Trouble:
        return Trouble("cannot be read", "infra") if descriptor.sequence == 1 else real(descriptor)

    bench.count = count  # type: ignore[method-assign, assignment]
    found = bench.search()
    assert (found.batches, blamed(found)) == ({1: "unreadable"}, [(2, 1)])


def test_should_give_up_where_many_fail_together_again_and_again() -> None:
    """Not undecided, which would be tried for ever; and one search after the other gets further."""
    bench = Bench([1, 12], lambda keys: "twice" if (0, 0) in keys and len(keys) > 1 else None)
    search = Search(bench, bench.whole)
    with pytest.raises(TooMany):
        search.run()
    assert len(blamed(search.found)) == 10
    whole = Group(bench.whole.descriptors, {}, search.found.entries)
    assert blamed(Search(bench, whole).run()) == [(1, 10), (1, 11)]
