"""What is looked up in a session's JVM once, not for every table: each step of a Java name is a call there.

A loader with a few tables would make hundreds of them before it reads the first batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

_KEPT: WeakKeyDictionary[SparkSession, dict[Callable[[SparkSession], Any], Any]] = WeakKeyDictionary()


def kept(spark: SparkSession, look_up: Callable[[SparkSession], T]) -> T:
    """What `look_up` finds in this session. It never changes there, and it must not hold the session itself."""
    found = _KEPT.setdefault(spark, {})
    if look_up not in found:
        found[look_up] = look_up(spark)
    value: T = found[look_up]
    return value
