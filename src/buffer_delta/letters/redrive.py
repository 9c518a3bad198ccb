"""Redrive: entries in a dead-letter table go back into a queue, each exactly once, interrupted or repeated anywhere.

    claim   one transaction in the table: these letters go back under number n, to that queue
    put     one batch in the queue, its mark is n (`buffer.marks`): appended, unless the queue knows n
    mark    the table: the letters of n are back, as the batch with that sequence

**One number after the other.** Before a claim is made, and after, every claim that is not marked is finished, the
smallest number first, whoever made it. So n is put only when all smaller numbers are marked, hence in the queue; and
a mark of n or more in the queue says that n is in it. A number is one Delta transaction (`txnAppId`, `txnVersion`): of
two that want the same one, Delta lets one through, and the other looks again.

What if it dies, or an older process wakes up …
    before the claim         nothing happened. An older one that wakes up wants a number that is used: it claims nothing
    between claim and put    the letters stand in the table with their number. Whoever comes next, with whatever
                             filter, puts exactly those, under that number
    in the middle of a put   an object in no entry, which the collector takes; or an append that landed, see
                             `produce.marked`
    between put and mark     the next one puts n again: the queue knows n, nothing is appended; then it marks
    between two batches      what is claimed is marked; the others are free, and wait for the next redrive
    two at once              each finishes whatever claim it finds, so both may put n: once. Marking twice is no change
    it goes on elsewhere     a claim names its queue. A redrive to another one stops, and says which is unfinished

It may run beside a loader where the table's log decides who was first; where it does not, `table.py` refuses.

**Nothing goes round in circles**: letters are chosen from the version of the table at the start. One that comes back
as a letter, while its redrive runs beside a loader, is new, and waits for the next.

The numbers grow with the table's, and with the queue's: a table that was restored or whose transactions expired must
not take a number that the queue knows, for what goes under it would be taken for done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from buffer.backoff import Backoff
from buffer.clock import Clock
from buffer.errors import ContentionError
from buffer_delta.errors import RedriveUnfinished
from buffer_delta.letters.values import Home, Key, Letters, Redriven

CLAIM_ATTEMPTS_MAX = 50  # each one lost means that another redrive made progress; then ContentionError
BUSY = Backoff(first_s=0.05, max_s=2.0, attempts_max=CLAIM_ATTEMPTS_MAX, jitter_from=0.5)


def redrive(
    letters: Letters,
    home: Home,
    clock: Clock,
    *,
    reached: Callable[[str], None] = lambda _step: None,
    on_sent: Callable[[int], None] = lambda _letters: None,
) -> Redriven:
    """Send the chosen letters to the queue. On any error: call again, nothing is lost and nothing goes twice.

    Raises RedriveUnfinished, ContentionError, and what table and queue raise. `reached` is told every step, `on_sent`
    after each batch how many letters are back with it.
    """
    return _Walk(letters, home, clock, reached, on_sent).run()


@dataclass
class _Walk:
    letters: Letters
    home: Home
    clock: Clock
    reached: Callable[[str], None]
    on_sent: Callable[[int], None]
    went: int = 0
    batches: int = 0
    finished: int = 0

    def run(self) -> Redriven:
        self._finish(own=())
        after: Key | None = None
        while keys := self.letters.chosen(after):
            self._send(keys)
            after = keys[-1]
        return Redriven(self.went, self.batches, self.finished)

    def _send(self, keys: Sequence[Key]) -> None:
        pauses = BUSY.pauses(self.clock.jitter)
        left = keys
        for attempt in range(CLAIM_ATTEMPTS_MAX):
            if attempt:
                self.clock.sleep(next(pauses))
            number = 1 + max(self.letters.last_number(), self.home.last_number())
            self.reached("numbered")
            self.letters.claim(number, self.home.queue_id, self.home.place, left)
            self.reached("claimed")
            back = self._finish(own=left)
            left = [key for key in left if key not in back]
            left = self.letters.free(left) if left else []
            if not left:
                return
        raise ContentionError(
            f"{len(left)} letters could not be claimed in {CLAIM_ATTEMPTS_MAX} attempts: other redrives, or other "
            "commands that change this table, come between. Run it again when they are done"
        )

    def _finish(self, own: Sequence[Key]) -> set[Key]:
        """Put and mark every claim that there is; the letters in them."""
        ours, back = set(own), set[Key]()
        while (claim := self.letters.pending()) is not None:
            if claim.queue_id != self.home.queue_id:
                raise RedriveUnfinished(
                    f"{len(claim.letters)} letters are on their way to the queue {claim.place} ({claim.queue_id}): "
                    "a redrive runs, or was interrupted. Finish that one first, by the same command for that queue. If "
                    "that queue is gone for good and no redrive runs, set the letters free with UPDATE … SET redrive = "
                    f"NULL WHERE redrive.queue = '{claim.queue_id}' AND redrive.at IS NULL: what of them had reached "
                    "a table from there would come a second time",
                    queue_id=claim.queue_id,
                    place=claim.place,
                    letters=len(claim.letters),
                )
            sequence = self.home.put(claim.number, claim.letters)
            self.reached("put")
            self.letters.mark(claim.number, sequence)
            self.reached("marked")
            self.went += len(claim.letters)
            self.on_sent(len(claim.letters))
            self.batches += 1
            self.finished += sum(letter.key not in ours for letter in claim.letters)
            back |= {letter.key for letter in claim.letters}
        return back
