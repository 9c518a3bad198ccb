"""A status without what errors quote: a piece of a record often stands in the message that says what is wrong with it.

Everything from the first quote to the last goes, and what follows where a value is told without quotes: a number is.
The rest of a message (its class, the constraint, the position) stays. The names of tables, stores and clients are no
part of a record. A key in a URL goes, too, which a file system may repeat. Pure.
"""

from __future__ import annotations

import re
from dataclasses import replace

from buffer.ledger.entries import Entries
from buffer.ledger.plan import Ledger
from buffer.urls import masked as without_keys
from buffer_delta.serve.facts import ERROR_CHARS_MAX
from buffer_delta.serve.status import Status

_QUOTES = "'\"`"
_REPEATED = re.compile(r"(?<=[:=]) *[\[{].*", re.DOTALL)
"""An object or a list that is repeated whole reaches to the end."""

_TOLD = re.compile(r"(cannot hold|lose data:|[Vv]alues?:|[Vv]alue(?= [-+.\d]))\s.*", re.DOTALL)
"""A value without quotes, in the words of our formats, of Arrow or of Spark: nobody can tell where it ends."""
_BEFORE = re.compile(r"[-+.\w]+(?= cannot be represented)")
"""The same where Spark begins with it."""


def masked(status: Status) -> Status:
    loader, queue = status.loader, status.queue
    if loader is not None:
        reasons: dict[str, int] = {}
        for reason, count in loader.dead_letter_reasons.items():
            reasons[mask(reason)] = reasons.get(mask(reason), 0) + count
        error = None if loader.error is None else mask(loader.error)
        loader = replace(loader, error=error, dead_letter_reasons=reasons)
    if queue is not None and queue.ledger is not None:
        queue = replace(queue, ledger=_masked_ledger(queue.ledger))
    return replace(status, loader=loader, queue=queue)


def mask(text: str) -> str:
    """Without what stands between the first quote and the last: a record may hold quotes itself, and Spark repeats a
    value as it is, so nobody can tell which of them end it. One that is not closed, or was cut, reaches to the end."""
    places = [place for place, char in enumerate(text) if char in _QUOTES]
    if not places:
        return without_keys(_REPEATED.sub(" …", _without_told(text)))
    first, last = places[0], places[-1]
    is_cut = text.endswith("…") or len(text) >= ERROR_CHARS_MAX
    is_closed = not is_cut and all(text.count(quote) % 2 == 0 for quote in _QUOTES)
    is_closed = is_closed and not _TOLD.search(text[first:last])  # the quotes may be the value's own
    rest = text[last + 1 :] if is_closed else ""
    quote = text[first]
    return without_keys(_REPEATED.sub(" …", _without_told(f"{text[:first]}{quote}…{quote}{rest}")))


def _without_told(text: str) -> str:
    return _BEFORE.sub("…", _TOLD.sub(r"\1 …", text))


def _masked_ledger(ledger: Ledger) -> Ledger:
    plan, blocked = ledger.plan, ledger.blocked
    if plan is not None:
        quarantined = None if plan.quarantined is None else {s: mask(why) for s, why in plan.quarantined.items()}
        plan = replace(plan, quarantined=quarantined, entries=_masked_entries(plan.entries))
    if blocked is not None:
        blocked = replace(
            blocked,
            reason=mask(blocked.reason),
            batches={sequence: mask(why) for sequence, why in blocked.batches.items()},
            entries=_masked_entries(blocked.entries),
        )
    return replace(ledger, plan=plan, blocked=blocked)


def _masked_entries(entries: Entries) -> Entries:
    found: dict[int, dict[str, str]] = {}
    for sequence, reasons in entries.items():
        for reason, which in reasons.items():
            merged = found.setdefault(sequence, {})
            known = merged.get(mask(reason))
            merged[mask(reason)] = which if known is None else f"{known},{which}"
    return found
