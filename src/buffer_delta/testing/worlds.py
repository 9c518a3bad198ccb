"""Worlds with loaders: what a seed decides. Small ones, and many kinds of them, find more than large ones."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from buffer.testing.simulator.clients import add_clients, simulate_clients
from buffer.testing.simulator.queues import (
    Pace,
    add_collectors,
    add_producers,
    make_world,
    own_collector,
    simulate_collection,
    simulate_queue,
)
from buffer.testing.simulator.trace import Trace
from buffer.testing.simulator.world import World
from buffer_delta.load.ports import Rules
from buffer_delta.testing.actors.browser import BrowserActor
from buffer_delta.testing.actors.bystander import BystanderActor
from buffer_delta.testing.actors.constraint import ConstraintActor
from buffer_delta.testing.actors.loader import LoaderActor, LoaderSettings
from buffer_delta.testing.actors.maintenance import LedgerLossActor, ReplanActor
from buffer_delta.testing.actors.operator import OperatorActor
from buffer_delta.testing.tables import KILLS, POISON, RAISES, REFUSED, RULED_OUT, Tables
from buffer_delta.testing.work import ROUTINGS, Poison, Setup

QUEUES = 0.2  # of all worlds
COLLECTIONS = 0.2
CLIENTS = 0.2
NUMBERED = 0.2  # of the worlds with loaders: what they load comes from producers with client ids
BLOCKED = 0.15  # of the worlds with loaders: several of them meet a batch that nobody can read, and an operator
LEDGER_LOSSES = 0.1  # of the others
REPLANS = 0.15
RULES = 0.6  # … with dead letters: the main table gets a constraint, and loses it
NEVER_S = float("inf")
DEAD_LETTERS = "dead letters"
TABLES = (("main",), ("main", "second"), ("main", DEAD_LETTERS), ("main", "second", DEAD_LETTERS))
OLDER = 0.3  # … where loaders of the release before are upgraded
MIXED = 0.4  # … where loaders have different tables, which join and leave


def world_of(seed: int) -> str:
    """Which kind of world a seed stands for: `queue`, `collection`, `clients` or `loader`."""
    kind = Random(seed).random()
    for name, share in (("queue", QUEUES), ("collection", COLLECTIONS), ("clients", CLIENTS)):
        kind -= share
        if kind < 0:
            return name
    return "loader"


def simulate(seed: int, trace: Trace | None = None) -> World:
    """Run the world of this seed. Raises Violation."""
    worlds = {
        "queue": simulate_queue,
        "collection": simulate_collection,
        "clients": simulate_clients,
        "loader": simulate_loader,
    }
    return worlds[world_of(seed)](seed, trace)


def simulate_loader(seed: int, trace: Trace | None = None) -> World:
    """Run one world of producers, loaders and whoever else comes by. Raises Violation."""
    random = Random(f"{seed} loader")
    blocked = random.random() < BLOCKED
    pace = Pace(random, ("busy",) if blocked else ("brisk", "brisk", "busy", "busy", "patient"))
    world = make_world(seed, "loader", pace, random, trace)
    setups = _draw_setups(random, blocked)
    is_mixed = len({setup.tables for setup in setups}) > 1
    names = [name for name in TABLES[-1] if any(name in setup.tables for setup in setups)]
    tables = Tables(world, names, DEAD_LETTERS if DEAD_LETTERS in names else None)
    loses_ledger = not blocked and random.random() < LEDGER_LOSSES
    poisoned = blocked or (not loses_ledger and random.random() < 0.4)
    failing = random.sample((POISON, RAISES, KILLS, REFUSED), random.choice((1, 1, 2, 4))) if poisoned else []
    is_ruled = tables.dead_letters is not None and not is_mixed and not loses_ledger and random.random() < RULES
    kinds = (
        ("ab" if is_mixed else "aab")
        + ("x" if tables.dead_letters else "")
        + "".join(failing)
        + (2 * RULED_OUT if is_ruled else "")
    )
    add = add_clients if not loses_ledger and random.random() < NUMBERED else add_producers
    add(world, random, pace, kinds=kinds, batches=random.choice((2, 4, 8)))
    add_collectors(world, random, pace)
    _add_loaders(world, random, pace, tables, setups, blocked, loses_ledger)
    if loses_ledger:
        world.add(LedgerLossActor(world, "ledger loss"), random.uniform(0.0, pace.storm_s))
    elif not blocked and len(names) > 1 and not pace.is_patient and random.random() < REPLANS:
        world.add(ReplanActor(world, "replan"), random.uniform(0.0, pace.storm_s))
    if is_ruled:
        changes = ConstraintActor(
            world, "constraint", tables, changes=random.choice((1, 4, 8)), think_s=(0.05, pace.storm_s / 4)
        )
        world.add(changes)
    if random.random() < 0.2:
        log = random.choice(tables.logs)
        world.add(BystanderActor(world, "bystander", log, commits=5, think_s=(0.05, pace.storm_s / 4)))
    if random.random() < 0.1:
        world.add(BrowserActor(world, "browser"), random.uniform(0.0, pace.storm_s))
    world.goals.append(lambda: world.queue.is_drained)
    world.run(pace.drain_s)
    return world


def _draw_setups(random: Random, blocked: bool) -> list[Setup]:
    """Of the loaders of one world: the same tables for all and two ways to route, or any tables."""
    if not blocked and random.random() < MIXED:
        # Often one without any other table: its ranges have no split, and may be committed at any moment.
        sets = random.choice((TABLES[:1], ())) or random.sample(TABLES, 1)
        sets = [*sets, *random.sample([names for names in TABLES if names not in sets], random.choice((1, 1, 2, 3)))]
        return [_setup(names).routed(random.choice(ROUTINGS)) for names in sets]
    setup = _setup(random.choice(TABLES))
    return [setup, setup.routed(ROUTINGS[1])]


def _setup(names: tuple[str, ...]) -> Setup:
    return Setup(names, DEAD_LETTERS if DEAD_LETTERS in names else None)


def _add_loaders(
    world: World,
    random: Random,
    pace: Pace,
    tables: Tables,
    setups: Sequence[Setup],
    blocked: bool,
    loses_ledger: bool,
) -> None:
    """One to three loaders, started together or one after the other, with the same rules."""
    is_mixed = len({setup.tables for setup in setups}) > 1
    has_dead_letters = tables.dead_letters is not None
    skips = has_dead_letters and not blocked and random.random() < 0.6
    # Where sets are mixed, a range may be begun for tables without dead letters: then it waits until that is fixed.
    last_s = NEVER_S if skips and not is_mixed else pace.storm_s * 1.2
    fixed_at_s = random.choice((pace.storm_s / 2, pace.storm_s, last_s))
    poison = Poison(
        world.scheduler,
        Random(random.random()),
        fixed_at_s=fixed_at_s,
        chance=random.choice((0.6, 0.9) if blocked else (0.3, 0.6, 1.0)),
        calm_at_s=pace.storm_s,
        executor_chance=random.choice((0.0, 0.0, 0.1, 0.4)),
    )
    rules = _draw_rules(random, blocked, skips, loses_ledger)
    settings = LoaderSettings(
        rules=rules,
        max_batches=random.choice((1, 2, 3, 5)),
        poll_s=pace.poll_s,
        # Shorter than a request may take: then a call gives up without knowing what became of its write.
        cas_timeout_s=random.choice((pace.cas_timeout_s, pace.timeout_s)),
        retries=random.choice((0, 1, 3)),
        setups=setups,
        is_mixed=is_mixed,
        # A lost ledger is adopted by the release that wrote it.
        older_chance=0.0 if loses_ledger or rules.adopt or random.random() > OLDER else random.choice((0.5, 1.0)),
        # A plan that `adopt` makes up does not know under which routing the range was begun.
        new_setup_chance=0.0 if loses_ledger and not is_mixed else random.choice((0.0, 0.3, 0.6)),
        restarts_after_fenced_max=20 if blocked else random.choice((0, 1, 2)),
        # What an operator gives up is nowhere if the range was begun without dead letters.
        skip_chance=0.7 if has_dead_letters and not is_mixed else 0.0,
        collect_s=own_collector(random, pace),
    )
    if blocked:
        every_s = (0.01, pace.storm_s / 20)
        world.add(OperatorActor(world, "eager operator", skip_chance=settings.skip_chance, every_s=every_s))
    for index in range(random.choice((2, 3) if blocked or is_mixed else (1, 1, 2, 2, 3))):
        loader = LoaderActor(world, f"loader{index}", tables, poison, settings)
        world.add(loader, random.choice((0.0, random.uniform(0.0, pace.storm_s))))


def _draw_rules(random: Random, blocked: bool, skips: bool, loses_ledger: bool) -> Rules:
    """Also rules that are meant for a disaster: without one, they must change nothing."""
    left_on = random.random() < 0.1
    return Rules(
        app_id="app" if loses_ledger or left_on or random.random() < 0.3 else None,
        adopt=left_on,
        accept_gaps=random.random() < 0.1,
        max_delivery_attempts=1 if blocked else random.choice((1, 2, 3)),
        dlq_strategy="skip" if skips else "block",
    )
