"""What may be done with the two manifests of the older format: every decision a function of values. Pure.

**The token.** The time that a Collector last wrote for a claim is its proof of ownership. For one location these
times only go up, and their ranges tell who wrote one over `old`, even if the answer was lost:

    a heartbeat      writes more than `old`, and at most `old + timeout`
    a take-over      writes more than `old + timeout`: only then is the claim stale
    parking          writes the year 9999, which no clock reaches
    the migration    writes a millisecond less: what it has taken is its own for good, see `migration.py`

So a heartbeat that is read back is ours: nobody else could have written it. (Two Collectors whose timeouts differ
could: all of a queue need the same one.) **A first claim is different**: two Collectors that claim one location in
the same millisecond write the same bytes. One of them wins and is told so; whoever is not told `Won` does not own
it, even if its own time is read back. Nothing is lost by that: a claim that nobody believes to own goes stale.

**What is claimed or done is looked at before what is pending.** The other way round, a clean-up in between
delivers again:

    A reads pending [x] … B: x is done, removes it from pending, then from done … A reads "nothing done", claims x

Read in the right order, A's claim is conditional on a consumer manifest from before its look at the pending ones,
and whatever was removed there was done in it, or has changed it since.

**A claim of what is not pending is nobody's.** It was done and cleaned up: a claim whose answer was lost landed
late, on a manifest that had come back to the same content (versions are hashes of it). It is not delivered.

**The last pending location is never removed**, even if it is done. Else the producer manifest would come back to an
earlier content, `{"pending":[]}` say, and an append that was sent long ago would match it and land a second time.
With it, what once was appended behind can never become the end again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from buffer.legacy.format import ConsumerManifest, ProducerManifest

PARKED_MS = 253_402_300_799_999  # 9999-12-31 23:59:59.999: never stale, for the readers of that time too

MOVING_MS = PARKED_MS - 1
"""The migration's claim. It names nobody: of several processes that migrate a queue, each may go on with it."""

BEATS_PER_TIMEOUT = 3


@dataclass(slots=True)
class Held:
    """A claim of ours."""

    first_ms: int
    """What the claim was won with; it names this claim among all of this location."""
    tokens: set[int] = field(default_factory=set)
    """What we may find: the time that stands there as far as we know, and those sent without an answer."""
    acked_over_ms: int | None = None
    """The time over which an ack was sent that nobody has answered yet."""

    def __post_init__(self) -> None:
        self.tokens.add(self.first_ms)


# Producer manifest


def append(manifest: ProducerManifest, locations: Iterable[str]) -> ProducerManifest:
    return ProducerManifest((*manifest.pending, *locations))


def remove(manifest: ProducerManifest, gone: Collection[str]) -> ProducerManifest:
    return ProducerManifest(tuple(location for location in manifest.pending if location not in gone))


# Claims


def is_stale(claimed_ms: int, now_ms: int, timeout_ms: int) -> bool:
    return claimed_ms < now_ms - timeout_ms


def choose(
    consumer: ConsumerManifest, producer: ProducerManifest, held: Collection[str], now_ms: int, timeout_ms: int
) -> str | None:
    """What to claim next: the oldest stale claim, else the first location that nobody has; None if there is none.

    What is done is never chosen, and neither is what the caller holds: it would work twice on the same.
    """
    open_ones = _open(consumer, producer)
    stale = [
        location
        for location in open_ones
        if location not in held
        and location in consumer.claimed
        and is_stale(consumer.claimed[location], now_ms, timeout_ms)
    ]
    if stale:
        return min(stale, key=lambda location: consumer.claimed[location])  # of equals, the first one pending
    return next((location for location in open_ones if location not in consumer.claimed), None)


def claim(consumer: ConsumerManifest, location: str, now_ms: int) -> tuple[ConsumerManifest, int]:
    """The manifest with the claim, and its token: never a time that stood there before."""
    before = consumer.claimed.get(location)
    token = now_ms if before is None else max(now_ms, before + 1)
    return _with_claims(consumer, {location: token}), token


def refresh(
    consumer: ConsumerManifest, held: Mapping[str, Held], now_ms: int, timeout_ms: int
) -> tuple[ConsumerManifest, dict[str, int]]:
    """The manifest with all our claims refreshed, and the new tokens. What is not ours any more is not in them.

    One who slept for long gets no further than a heartbeat could have got, and tries again: see the ranges above.
    """
    written = {
        location: min(max(now_ms, before + 1), before + timeout_ms)
        for location, claim in held.items()
        if (before := consumer.claimed.get(location)) is not None and before in claim.tokens
    }
    return _with_claims(consumer, written), written


def park(consumer: ConsumerManifest, location: str) -> ConsumerManifest:
    return _with_claims(consumer, {location: PARKED_MS})


def unpark(consumer: ConsumerManifest, location: str) -> ConsumerManifest:
    """Make the claim one that anybody takes over at once."""
    return _with_claims(consumer, {location: 0})


# The migration


@dataclass(frozen=True, slots=True)
class Line:
    """What the migration has taken, as far as it may move it now."""

    ready: tuple[str, ...]
    """In the order of the queue."""
    behind: tuple[str, int] | None
    """Somebody else's claim, and its time, in front of all the rest; None if there is no such thing."""
    left: int
    """Everything that is neither done nor parked."""


def take(
    consumer: ConsumerManifest, producer: ProducerManifest, now_ms: int, timeout_ms: int, most: int
) -> ConsumerManifest:
    """Claim for the migration what nobody has, or what is stale, of the first `most` in the queue.

    Of the first, and not as many as are free to take: behind another's claim there may be enough of ours already, and
    once that claim is stale it is what all of them wait for.
    """
    wanted = [
        location
        for location in _waiting(consumer, producer)[:most]
        if location not in consumer.claimed or is_stale(consumer.claimed[location], now_ms, timeout_ms)
    ]
    return _with_claims(consumer, dict.fromkeys(wanted, MOVING_MS))


def line(consumer: ConsumerManifest, producer: ProducerManifest) -> Line:
    """What is the migration's, up to the first that is not: to go past that one would change the order."""
    waiting = _waiting(consumer, producer)
    ready: list[str] = []
    for location in waiting:
        claimed_ms = consumer.claimed.get(location)
        if claimed_ms != MOVING_MS:
            held = None if claimed_ms is None else (location, claimed_ms)
            return Line(tuple(ready), held, len(waiting))
        ready.append(location)
    return Line(tuple(ready), None, len(waiting))


def moved(consumer: ConsumerManifest, producer: ProducerManifest, locations: Collection[str]) -> ConsumerManifest:
    """These are done, whoever has a claim of them: they are in the new queue. What is cleaned up already stays so."""
    pending = {*producer.pending}
    done = set(consumer.done)
    newly = [
        location
        for location in locations
        if location not in done and (location in pending or location in consumer.claimed)
    ]
    claimed = {where: ms for where, ms in consumer.claimed.items() if where not in locations}
    return ConsumerManifest(claimed, (*consumer.done, *newly))


def given_back(consumer: ConsumerManifest, kept: Collection[str]) -> ConsumerManifest:
    """The migration's claims but these become claims that anybody takes over at once."""
    claims = {where: 0 for where, ms in consumer.claimed.items() if ms == MOVING_MS and where not in kept}
    return _with_claims(consumer, claims)


def _waiting(consumer: ConsumerManifest, producer: ProducerManifest) -> list[str]:
    """What is neither done nor parked."""
    return [location for location in _open(consumer, producer) if consumer.claimed.get(location) != PARKED_MS]


def _open(consumer: ConsumerManifest, producer: ProducerManifest) -> list[str]:
    """What is pending and not done, each once, in order."""
    done = set(consumer.done)
    return [location for location in dict.fromkeys(producer.pending) if location not in done]


def _with_claims(consumer: ConsumerManifest, claims: Mapping[str, int]) -> ConsumerManifest:
    return ConsumerManifest({**consumer.claimed, **claims}, consumer.done)


# Acks


class Ack(Enum):
    OURS = "the claim is ours: write the ack"
    COUNTED = "an ack of ours landed"
    LOST = "another Collector has or had it"
    UNKNOWN = "it is done, and nothing tells by whom"


def judge_ack(consumer: ConsumerManifest, location: str, held: Held, now_ms: int, timeout_ms: int) -> Ack:
    """What an ack of this claim meets.

    After an ack without an answer the claim may be gone because the ack landed, or because another Collector took
    it over and acked it. That takes a stale claim: as long as ours cannot have been stale on any clock that is at
    most a third of the timeout ahead of ours, it was ours.
    """
    found = consumer.claimed.get(location)
    if found in held.tokens:
        return Ack.OURS
    if held.acked_over_ms is None or (found is not None and found > held.acked_over_ms + timeout_ms):
        return Ack.LOST
    return Ack.COUNTED if now_ms <= held.acked_over_ms + timeout_ms * 2 // 3 else Ack.UNKNOWN


def ack(consumer: ConsumerManifest, location: str) -> ConsumerManifest:
    claimed = {other: ms for other, ms in consumer.claimed.items() if other != location}
    return ConsumerManifest(claimed, (*consumer.done, location))


# Clean-up


def finished(consumer: ConsumerManifest, producer: ProducerManifest) -> list[str]:
    """What is done and may leave both manifests: all but the last pending one."""
    return [location for location in dict.fromkeys(consumer.done) if location not in producer.pending[-1:]]


def forget(consumer: ConsumerManifest, producer: ProducerManifest, gone: Collection[str]) -> ConsumerManifest:
    """The consumer manifest without these, and without claims of what is done or not pending."""
    done = set(consumer.done)
    pending = set(producer.pending)
    return ConsumerManifest(
        {where: ms for where, ms in consumer.claimed.items() if where in pending and where not in done},
        tuple(location for location in consumer.done if location not in gone),
    )
