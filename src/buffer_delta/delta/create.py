"""Creating a table, whoever else creates it at the same moment, and whatever a crash left of an earlier try.

What happens if the process dies …
    before version 0 is in the log   a folder `_delta_log` without a commit: no table, but Delta takes the folder for
                                     one and neither reads nor creates it. The next start cleans it up and creates again
    after it, and somebody else      on S3 Spark's log store puts a version without a condition, so the second creation
    creates it, too                  replaces the first: version 0 is read again, and if it is not what we hold, that is
                                     forgotten and Overtaken raised. Looking again finds theirs. (One that comes later
                                     is found by the first commit: `commit_file.put_commit`.)
    after it, not in the catalog     a whole table that the catalog does not know: creating it by name registers it

**Cleaning up takes nothing away from anybody.** Only after Delta refused, only where the log has no version, and only
files that no version is made of, each by its name, and folders that are empty (Delta makes `_staged_commits` before the
first commit); then the log's folder, if it is empty. So a commit that lands in between stays. Another loader that
creates the table at this moment may lose its temporary file: its commit fails, and its next look finds ours. The
same holds for a table that was dropped with all but the local store's locks: if these are all that is in its folder,
they are removed. They exclude nobody there, for every data file has a name of its own.

What this touches besides what `log.py` lists: Hadoop's Path and FileSystem, SessionCatalog.defaultTablePath.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from delta.tables import DeltaTable
from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql.types import DataType, StructType

from buffer.store.local import LOCK_FOLDER
from buffer_delta.delta.commit_file import Overtaken
from buffer_delta.delta.conflicts import conflict_name
from buffer_delta.delta.log import DeltaLog
from buffer_delta.delta.stats import StatsRules
from buffer_delta.formats.names import same_name_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

CREATE_ATTEMPTS_MAX = 5  # each one lost means that somebody else created or changed the table meanwhile

_HALF = ("DELTA_TABLE_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE", "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION")
"""What Delta says of a folder with a `_delta_log` that has no version, or with something else: by path, by name."""
_LEFTOVER = re.compile(r"\..*|.*\.(crc|tmp)")
"""Temporary files and checksums. What a version is made of has other names."""

_ROOT = re.compile(r"(?:[A-Za-z][\w+.-]*:)?(?://[^/]*)?/*")
"""A whole bucket: a longer name would be that of another one."""


@dataclass(frozen=True, slots=True)
class TablePlan:
    """How the table is to be, if it must be created."""

    name: str | None
    path: str | None
    partition_by: Sequence[str] = ()
    cluster_by: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


def create(spark: SparkSession, table_log: DeltaLog, plan: TablePlan, schema: StructType) -> None:
    """Create the table, unless somebody else does: what they make is as good as ours. When it returns, there is one.

    Raises Overtaken where somebody else's has replaced ours: look again.
    """
    for attempt in range(1, CREATE_ATTEMPTS_MAX + 1):
        is_last = attempt == CREATE_ATTEMPTS_MAX
        try:
            _execute(spark, table_log, plan, schema)
        except (PySparkException, Py4JJavaError) as error:
            if _is_there(table_log):
                return
            is_cleaned = not is_last and _is_half(error) and _clean_up(spark, _location(spark, table_log, plan))
            if not is_cleaned and (is_last or conflict_name(error) is None):
                raise
        else:
            if _is_there(table_log):
                return
    raise AssertionError("the last attempt returns or raises")


def occupant(spark: SparkSession, table_log: DeltaLog, path: str) -> str | None:
    """What lies in the place of a table that is not there, so that Delta will not create it; None: nothing does.

    Only what shows counts: what a crash or a drop has left is hidden, and cleaned up. The folder may be a whole bucket:
    the first that shows ends the listing.
    """
    if table_log.newest() is not None:
        return None
    folder = spark._jvm.org.apache.hadoop.fs.Path(path)
    files = folder.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    try:
        listed = files.listStatusIterator(folder)
        while listed.hasNext():
            name = str(listed.next().getPath().getName())
            if not name.startswith((".", "_")):
                return name if table_log.newest() is None else None  # created by somebody else meanwhile
    except Py4JJavaError as error:
        if error.java_exception.getClass().getSimpleName() != "FileNotFoundException":
            raise
    return None


def _is_there(table_log: DeltaLog) -> bool:
    snapshot = table_log.newest()
    if snapshot is not None and table_log.is_replaced(snapshot):
        table_log.forget()
        raise Overtaken("somebody else has created the table at the same moment, and theirs is the one that is there")
    return snapshot is not None


def _execute(spark: SparkSession, table_log: DeltaLog, plan: TablePlan, schema: StructType) -> None:
    builder = DeltaTable.createIfNotExists(spark).addColumns(_clustering_first(plan, schema))
    # A name that the catalog knows, of a table whose log is gone: `IF NOT EXISTS` would do nothing. A path as Hadoop
    # spells it: of another spelling, with a slash at its end say, Delta believes that two places are meant.
    path = table_log.location()
    builder = builder.location(path) if path is not None else builder.tableName(plan.name)
    if plan.partition_by:
        builder = builder.partitionedBy(*plan.partition_by)
    if plan.cluster_by:
        builder = builder.clusterBy(*plan.cluster_by)
    for key, value in plan.properties.items():
        builder = builder.property(key, value)
    builder.execute()


def _clustering_first(plan: TablePlan, schema: StructType) -> StructType:
    """The columns to cluster by first, where one of them is so far behind that it would have no statistics: Delta
    refuses such a table, whatever it is filled with, and where columns follow the data their order is chance."""
    most = StatsRules.of_properties(plan.properties).leaves
    wanted = {same_name_key(name.split(".")[0].strip("`")) for name in plan.cluster_by}
    first = [field for field in schema.fields if same_name_key(field.name) in wanted]
    end = max((at for at, field in enumerate(schema.fields, 1) if field in first), default=0)
    if most < 0 or sum(_leaves(field.dataType) for field in schema.fields[:end]) <= most:
        return schema
    return StructType([*first, *(field for field in schema.fields if field not in first)])


def _leaves(kind: DataType) -> int:
    return sum(_leaves(field.dataType) for field in kind.fields) if isinstance(kind, StructType) else 1


def _is_half(error: Exception) -> bool:
    return isinstance(error, AnalysisException) and (error.getCondition() or "").startswith(_HALF)


@contextmanager
def scratch_folder(spark: SparkSession, table_log: DeltaLog, plan: TablePlan) -> Iterator[str | None]:
    """A folder beside the table's for something that nobody is to see, removed afterwards.

    None where only another catalog would know where the table is, and where nothing can be beside it.
    """
    location = _location(spark, table_log, plan)
    if location is None or _ROOT.fullmatch(location):
        yield None
        return
    folder = f"{location.rstrip('/')}.trial-{uuid.uuid4().hex}"
    try:
        yield folder
    finally:
        path = spark._jvm.org.apache.hadoop.fs.Path(folder)
        path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()).delete(path, True)


def _location(spark: SparkSession, table_log: DeltaLog, plan: TablePlan) -> str | None:
    """Where the table is or will be; None where only another catalog would know."""
    location = plan.path or table_log.location()
    if location is None:
        state = spark._jsparkSession.sessionState()
        try:
            identifier = state.sqlParser().parseTableIdentifier(plan.name)
        except ParseException:  # three parts
            return None
        location = str(state.catalog().defaultTablePath(identifier).toString())
    return location


def _clean_up(spark: SparkSession, location: str | None) -> bool:
    """Remove what a crash or a drop has left, and nothing else. False: that is not what is there, and it stays."""
    if location is None:  # only another catalog would know
        return False
    path_class = spark._jvm.org.apache.hadoop.fs.Path
    folder = path_class(location)
    files = folder.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    if is_instance_of(spark._sc._gateway, files, "org.apache.hadoop.fs.ChecksumFileSystem"):
        files = files.getRawFileSystem()  # the usual one hides checksums, and stumbles over those without a file
    is_removed = _remove(files, path_class(folder, "_delta_log"), lambda status: _is_leftover(files, status))
    if [str(status.getPath().getName()) for status in _listed(files, folder) or ()] == [LOCK_FOLDER]:
        is_removed |= _remove(files, path_class(folder, LOCK_FOLDER), _is_lock)
    return is_removed


def _remove(files: Any, folder: Any, is_ours: Callable[[Any], bool]) -> bool:
    """Remove a folder if all in it may go. False: there is none, or it holds something else."""
    found = _listed(files, folder)
    if found is None or not all(is_ours(status) for status in found):
        return False
    try:
        for path in (*(status.getPath() for status in found), folder):
            files.delete(path, False)  # not what is inside: a folder that is in use by now stays
    except Py4JJavaError as error:  # not empty any more: somebody else is creating the table
        log.info("%s is in use: %s", folder.toString(), error.java_exception.toString())
    log.warning("%s held no commit, only what a crash had left: creating the table again", folder.toString())
    return True


def _listed(files: Any, folder: Any) -> list[Any] | None:
    try:
        return list(files.listStatus(folder))
    except Py4JJavaError as error:
        if error.java_exception.getClass().getSimpleName() == "FileNotFoundException":
            return None
        raise


def _is_lock(status: Any) -> bool:
    return bool(status.isFile()) and int(status.getLen()) == 0


def _is_leftover(files: Any, status: Any) -> bool:
    if status.isFile():
        return _LEFTOVER.fullmatch(str(status.getPath().getName())) is not None
    return not list(files.listStatus(status.getPath()))
