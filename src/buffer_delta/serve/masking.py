"""A status without what errors quote: a piece of a record often stands in the message that says what is wrong with it.

Everything between quotes goes; the rest of a message (its class, the constraint, the position) stays. The names of
tables, stores and clients are no part of a record. Pure.
"""

from __future__ import annotations

import re
from dataclasses import replace

from buffer.ledger.entries import Entries
from buffer.ledger.plan import Ledger
from buffer_delta.serve.status import Status

_QUOTED = re.compile(r"""'[^']*'?|"[^"]*"?|`[^`]*`?|(?<=[:=]) *[\[{].*""", re.DOTALL)
"""A quote that a cut message does not close reaches to its end; so does an object or a list that is repeated whole."""


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
    return _QUOTED.sub(_shorter, text)


def _shorter(found: re.Match[str]) -> str:
    quote = found[0][0]
    return f"{quote}…{quote}" if quote in "'\"`" else " …"


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
