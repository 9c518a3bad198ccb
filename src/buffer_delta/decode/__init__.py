"""Descriptors into Arrow rows that know where they came from. No Spark here: whatever runs it brings the group.

rows           RowDecoder: the rows of a group of batches, for a Spark task, a partition or a writer
layout         the provenance columns
policy         what becomes of entries and batches that cannot be read: rescue, dead letter, fail
dead_letters   the shape of dead letters, and the copies of batches too large for one
look           what a look at a group tells: the columns it needs, the batches that cannot be read
fetching       the batches of a group, fetched ahead
"""
