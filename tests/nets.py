"""How long a test waits for what must come: long enough for a machine that is ten times too busy.

It is a net under what hangs for good, shorter than pytest's own so that the failure says what was waited for. No test
passes or fails by how fast the machine is.
"""

HANGS_S = 900.0
