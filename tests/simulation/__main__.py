"""What `make simulate` runs: every kind of world, one after the other; with `--kind` one of them, as for a `--seed`.

queues    queues, collection, client ids and loaders, as the seed says: the simulator in `buffer_delta.testing`
clients   producers with client ids alone
leases    workers, parking and redrive; damaged batches, other readers, purge, changed settings
legacy    the older format with two manifests
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from buffer.testing.simulator.clients import simulate_clients
from buffer.testing.simulator.leases import simulate_leases
from buffer.testing.simulator.legacy import simulate_legacy
from buffer.testing.simulator.runner import Simulation
from buffer.testing.simulator.runner import main as run
from buffer_delta.testing import simulate

KINDS: Mapping[str, Simulation] = {
    "queues": simulate,
    "clients": simulate_clients,
    "leases": simulate_leases,
    "legacy": simulate_legacy,
}


def main(arguments: Sequence[str], out: TextIO, kinds: Mapping[str, Simulation] = KINDS) -> int:
    """Run all kinds, or one; ends at the first that fails. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", add_help=False, allow_abbrev=False)
    parser.add_argument("--kind", choices=kinds, help="run this kind of world alone")
    options, rest = parser.parse_known_args(arguments)
    is_replay = any(argument.partition("=")[0] == "--seed" for argument in rest)
    first = next(iter(kinds))
    for kind in [options.kind or first] if options.kind or is_replay else kinds:
        out.write(f"{kind}:\n")
        program = f"python -m tests.simulation --kind {kind}"
        code = run(kinds[kind], rest, out, program=program, replay=f"make simulate KIND={kind} SEED={{seed}}")
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], sys.stdout))
