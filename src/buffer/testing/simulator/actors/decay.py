"""What happens to stored objects without anybody's doing: some batches become other bytes, others are gone."""

from __future__ import annotations

from buffer.testing.simulator.letter_witness import LetterWitness
from buffer.testing.simulator.world import Actor, Host, World


class DecayActor(Actor):
    """Damages a few of the batches that are in the queue."""

    def __init__(self, world: World, name: str, witness: LetterWitness, *, count: int) -> None:
        super().__init__(world, name)
        self.witness = witness
        self.count = count
        self.is_sheltered = True

    def run(self, host: Host) -> None:
        seen = 0
        while self.count > 0 and not self.world.is_calm:
            self.glance(host)
            length = len(self.witness.history)
            for sequence in range(seen, length):
                self._damage(sequence, 0.4)
            for sequence in self._begun():
                self._damage(sequence, 0.05)
            seen = length

    def _begun(self) -> list[int]:
        """Acked in part: not so many are, and of them the rest must not be lost."""
        section = self.witness.section
        return [s for s, story in section.stories.items() if story.owed is not None] if section is not None else []

    def _damage(self, sequence: int, chance: float) -> None:
        witness = self.witness
        if sequence < witness.first_sequence or sequence in witness.damage or not self.chance(chance):
            return
        witness.damage_batch(sequence, self.world.scheduler.random.choice(("bytes", "missing")))
        self.count -= 1
