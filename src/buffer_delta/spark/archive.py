"""The class archive: what makes a start of Spark on one machine take half as long.

A start loads some 20,000 classes out of 300 JARs, and checks each. Java can keep them as it needs them in one file that
is mapped into memory (class data sharing). `buffer-delta prepare` makes that file; a session that finds one uses it.

An archive fits one Java and one class path, so its name is made of both. Java looks again whether it fits, and starts
without it where it does not. It is written under another name and renamed when it is whole: whoever dies while making
one leaves no archive that anybody would use, and a JVM that has the old one mapped keeps it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from buffer_delta.spark import jars

log = logging.getLogger(__name__)


def archive_file(ivy: Path, known: Sequence[Path]) -> Path | None:
    """Where the archive for these JARs on the class path lies, or would lie. None: no Java is to be found."""
    java = java_command()
    if java is None:
        return None
    facts = [
        _identity(Path(java)),
        _jars_of(jars.spark_jars()),
        *(_identity(jar) for jar in known),
    ]
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
    return ivy / "buffer-delta" / f"{digest}.jsa"


def using_options(ivy: Path, known: Sequence[Path]) -> list[str]:
    """What makes a JVM with these JARs on its class path use the archive; nothing if there is none."""
    path = archive_file(ivy, known)
    if path is None or " " in str(path) or not is_whole(path):  # Spark splits options at spaces
        return []
    # Java says in several lines that an archive does not fit, which it survives.
    return [f"-XX:SharedArchiveFile={path}", "-Xlog:cds*=off", "-Xlog:class+path=off"]


def making_options(draft: Path) -> list[str]:
    """What makes a JVM write the archive when it ends. It names every class that it leaves out: not to be read."""
    return [f"-XX:ArchiveClassesAtExit={draft}", "-Xlog:disable", "-Xlog:all=error:stderr"]


def is_whole(path: Path) -> bool:
    """Whether an archive is there, as long as it was made."""
    try:
        made = json.loads(_note(path).read_text(encoding="utf-8"))
        return path.stat().st_size == int(made["bytes"])
    except (OSError, ValueError, KeyError, TypeError):  # none, or one that is no use: the start is slower, no more
        return False


def keep(draft: Path, path: Path) -> None:
    """Put a finished archive in its place, and remove those of installations that are gone. Raises OSError."""
    spark = jars.spark_jars().resolve()
    note = {"bytes": draft.stat().st_size, "spark": str(spark), "jars": _jars_of(spark)}
    draft.replace(path)
    _note(path).write_text(json.dumps(note, indent=1), encoding="utf-8")
    for other in path.parent.glob("*.jsa.json"):
        archive = other.with_suffix("")
        if not _is_of_use(other):
            log.info("removing %s: its Spark is gone, or another one is in its place", archive)
            archive.unlink(missing_ok=True)
            other.unlink(missing_ok=True)


def java_command() -> str | None:
    """The Java that Spark would run."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else shutil.which("java")


def _identity(file: Path) -> str:
    """A file by its place, size and time, as Java's own check has it."""
    try:
        found = file.resolve().stat()
    except OSError:
        return f"{file} gone"
    return f"{file.resolve()} {found.st_size} {found.st_mtime_ns}"


def _jars_of(folder: Path) -> str:
    """All JARs of a Spark: one that is installed anew, at the same place, is another one for Java."""
    facts = [_identity(jar) for jar in sorted(folder.resolve().glob("*.jar"))]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


def _note(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _is_of_use(note: Path) -> bool:
    try:
        made = json.loads(note.read_text(encoding="utf-8"))
        return bool(made["jars"] == _jars_of(Path(made["spark"])))
    except (OSError, ValueError, KeyError, TypeError):
        return False
