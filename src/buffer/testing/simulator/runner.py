"""Run many seeds on all cores, stop at the first that fails, show it. Behind `make simulate`."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO, TypeAlias

from buffer.testing.simulator.scheduler import Violation, describe_error
from buffer.testing.simulator.trace import Trace
from buffer.testing.simulator.world import World

Simulation: TypeAlias = Callable[[int, Trace | None], World]
"""Runs one seed and raises Violation. A function of a module: it goes to other processes by name."""

CHUNK_SEEDS = 20
PROGRESS_S = 10.0
SEED_MAX_S = 60.0  # of computing; a seed takes some hundredths of a second


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a number of seeds led to."""

    seeds: int
    events: int
    counts: Counter[str]
    failed: tuple[int, str] | None = None
    """The seed that failed, and how."""


class OutOfTime(BaseException):
    """A seed takes for ever: code that loops without calling the store. No `except Exception` may catch it."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise OutOfTime wherever the code is after so much computing: a machine that is busy or asleep is no fault.

    For the main thread of a process.
    """

    def ring(_signal: int, _frame: object) -> None:
        raise OutOfTime(f"it has computed for {seconds:g} s: does it loop without calling the store?")

    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _describe(error: BaseException) -> str:
    return str(error) if isinstance(error, Violation) else describe_error(error)


def run_seeds(simulation: Simulation, seeds: Iterable[int]) -> Outcome:
    """Run them one after the other, up to the first that fails."""
    done, events = 0, 0
    counts: Counter[str] = Counter()
    for seed in seeds:
        try:
            world = simulation(seed, None)
        except (Exception, OutOfTime) as error:  # noqa: BLE001 - whatever it is, the seed has to be named
            return Outcome(done, events, counts, (seed, _describe(error)))
        done += 1
        events += world.scheduler.events_run
        counts.update(world.scheduler.counts)
    return Outcome(done, events, counts)


def _run_chunk(task: tuple[Simulation, range]) -> Outcome:
    logging.disable(logging.CRITICAL)  # the production code warns of every fault it meets, which is all it meets
    simulation, seeds = task

    def simulate(seed: int, trace: Trace | None) -> World:
        with limited(SEED_MAX_S):
            return simulation(seed, trace)

    return run_seeds(simulate, seeds)


def run_many(simulation: Simulation, seeds: range, *, jobs: int, out: TextIO) -> Outcome:
    """Run the seeds on several processes. Ends at the first failure that is reported."""
    chunks = [
        (simulation, range(start, min(start + CHUNK_SEEDS, seeds.stop)))
        for start in range(seeds.start, seeds.stop, CHUNK_SEEDS)
    ]
    done, events = 0, 0
    counts: Counter[str] = Counter()
    reported_s = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for outcome in pool.imap_unordered(_run_chunk, chunks):
            done += outcome.seeds
            events += outcome.events
            counts.update(outcome.counts)
            if outcome.failed is not None:
                return Outcome(done, events, counts, outcome.failed)
            if time.monotonic() - reported_s > PROGRESS_S:
                reported_s = time.monotonic()
                out.write(f"… {done:,} of {len(seeds):,} seeds\n")
                out.flush()
    return Outcome(done, events, counts)


def show(simulation: Simulation, seed: int, out: TextIO) -> bool:
    """Run one seed with its trace. Returns whether it went well."""
    trace = Trace()
    try:
        simulation(seed, trace)
    except (Exception, OutOfTime) as error:  # noqa: BLE001 - whatever it is, its trace tells more
        out.write(f"{trace}\n\nseed {seed} fails: {_describe(error)}\n")
        return False
    out.write(f"{trace}\n\nseed {seed} is fine\n")
    return True


def main(
    simulation: Simulation, arguments: Sequence[str], out: TextIO, *, program: str, replay: str | None = None
) -> int:
    """The command line. Returns the exit code. `replay` is another way to run one `{seed}` of this simulation."""
    parser = argparse.ArgumentParser(prog=program, description="Simulate queues, loaders and faults, by seed.")
    parser.add_argument("--seeds", type=int, default=2000, help="how many seeds to run (default 2000)")
    parser.add_argument("--start", type=int, default=0, help="the first of them (default 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--seed", type=int, help="run only this seed and print its trace")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        logging.disable(logging.CRITICAL)
        with limited(SEED_MAX_S):
            return 0 if show(simulation, options.seed, out) else 1
    started_s = time.monotonic()
    outcome = run_many(simulation, range(options.start, options.start + options.seeds), jobs=options.jobs, out=out)
    seconds = time.monotonic() - started_s
    for what, count in sorted(outcome.counts.items()):
        out.write(f"{count:>12,}  {what}\n")
    rate = outcome.seeds / seconds * 60
    out.write(f"{outcome.seeds:,} seeds, {outcome.events:,} events, {seconds:.0f} s ({rate:,.0f} seeds a minute)\n")
    if outcome.failed is None:
        return 0
    seed, violation = outcome.failed
    ways = [f"{program} --seed {seed}", *([replay.format(seed=seed)] if replay else [])]
    out.write(f"\nseed {seed} fails: {violation}\nIts trace: {', or '.join(ways)}\n")
    return 1
