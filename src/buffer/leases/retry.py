"""What becomes of a batch whose handler raised: policies as values. Pure.

    Fixed(delay_ms=1_000)                                        the same pause each time
    Exponential(first_ms=1_000, max_ms=60_000)                   longer with every delivery
    Untouched(delay_ms=5_000)                                    not its fault: no attempt is lost
    PerException({TimeoutError: Exponential(), RateLimited: Untouched(60_000)}, otherwise=Fixed(0))

How often is not their business: `max_delivery_attempts` is the queue's, and counts in every process alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from buffer.errors import InvalidInput
from buffer.ledger.lease_steps import DELAY_MAX_MS, after


@dataclass(frozen=True, slots=True)
class Again:
    """Deliver it again after this time."""

    delay_ms: int
    counts: bool = True
    """False: the attempt was not the batch's fault (`snooze`)."""

    def __post_init__(self) -> None:
        after(0, self.delay_ms)  # here, or the verb would refuse it, and with it what the others came to


class RetryPolicy(Protocol):
    def decide(self, error: Exception, delivery_count: int) -> Again: ...


@dataclass(frozen=True, slots=True)
class Fixed:
    delay_ms: int = 0

    def __post_init__(self) -> None:
        _check("delay_ms", self.delay_ms)

    def decide(self, _error: Exception, _delivery_count: int) -> Again:
        return Again(self.delay_ms)


@dataclass(frozen=True, slots=True)
class Untouched:
    delay_ms: int = 0

    def __post_init__(self) -> None:
        _check("delay_ms", self.delay_ms)

    def decide(self, _error: Exception, _delivery_count: int) -> Again:
        return Again(self.delay_ms, counts=False)


@dataclass(frozen=True, slots=True)
class Exponential:
    first_ms: int = 1_000
    max_ms: int = 300_000

    def __post_init__(self) -> None:
        _check("first_ms", self.first_ms, low=1)
        _check("max_ms", self.max_ms, low=self.first_ms)

    def decide(self, _error: Exception, delivery_count: int) -> Again:
        doublings = min(max(delivery_count, 1) - 1, 40)  # beyond, no pause is that long
        return Again(min(self.max_ms, self.first_ms << doublings))


@dataclass(frozen=True, slots=True)
class PerException:
    """The policy of the nearest class of the error, by its own inheritance."""

    policies: Mapping[type[Exception], RetryPolicy]
    otherwise: RetryPolicy = field(default_factory=Exponential)

    def decide(self, error: Exception, delivery_count: int) -> Again:
        for kind in type(error).__mro__:
            if issubclass(kind, Exception) and kind in self.policies:
                return self.policies[kind].decide(error, delivery_count)
        return self.otherwise.decide(error, delivery_count)


def _check(name: str, value: int, low: int = 0) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= DELAY_MAX_MS:
        raise InvalidInput(f"{name}={value!r} is not allowed: a whole number from {low} to {DELAY_MAX_MS:,}")
