"""Writes docs/configuration.md from the settings' own classes: their names, defaults and docstrings.

python scripts/config_docs.py           writes it
python scripts/config_docs.py --check   fails if it is not what would be written
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
import textwrap
from pathlib import Path
from typing import Any

from buffer.config import Config, ConsumerConfig, GcConfig, LeaseConfig, ProducerConfig, QueueConfig
from buffer_delta.config import LoaderConfig
from buffer_delta.formats.registry import format_names

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"

SETTINGS: dict[type[Config], type[Config] | None] = {
    QueueConfig: None,
    ProducerConfig: QueueConfig,
    ConsumerConfig: QueueConfig,
    GcConfig: QueueConfig,
    LeaseConfig: None,
    LoaderConfig: ConsumerConfig,
}
"""Each class with the one whose settings it has too, listed there."""

INTRO = """\
# Configuration

<!-- Written by scripts/config_docs.py from the classes themselves. Change those, then run it. -->

Every class takes keyword arguments, a dict (`from_dict`) or a TOML file (`from_toml`, tables `[producer]`,
`[consumer]`, `[gc]`, `[loader]`).
A wrong key or value is an error that names it and what is allowed. The command lines read the same file (`--config`);
an option wins over `--set key=value`, that over the file, and `BUFFER_STORE` stands in for `--store`.

```toml
[producer]
store = "s3://my-bucket/buffer"
compression = "zstd"

[loader]
store = "s3://my-bucket/buffer"
table = "s3a://my-lake/events"
format = { type = "json", schema = "id BIGINT, name STRING" }
dead_letters = "s3a://my-lake/events_dead_letters"
```
"""


def page() -> str:
    formats = ", ".join(f"`{name}`" for name in format_names())
    return INTRO + "".join(_section(cls, base) for cls, base in SETTINGS.items()) + f"\nFormats: {formats}.\n"


def _section(cls: type[Config], base: type[Config] | None) -> str:
    inherited = {f.name for f in dataclasses.fields(base)} if base else set()
    docs = {name: text for c in reversed(cls.__mro__) if c is not object for name, text in attribute_docs(c).items()}
    lines = [f"\n## {cls.__name__}\n\n"]
    if base:
        lines.append(f"All of [{base.__name__}](#{base.__name__.lower()}), and:\n\n")
    lines.append("| setting | default | |\n|---|---|---|\n")
    own = (f for f in dataclasses.fields(cls) if f.name not in inherited)
    return "".join([*lines, *(f"| `{f.name}` | {_default(f)} | {docs[f.name]} |\n" for f in own)])


def attribute_docs(cls: type) -> dict[str, str]:
    """The docstring that stands under each field of a class, as one line."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, doc in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(doc, ast.Expr):
            found[field.target.id] = " ".join(ast.literal_eval(doc.value).split()).replace("|", "\\|")
    return found


def _default(field: dataclasses.Field[Any]) -> str:
    return "" if field.default in (dataclasses.MISSING, None, (), "") else f"`{shown(field.name, field.default)}`"


def shown(name: str, value: Any) -> str:
    """A default as people write it: bytes in MiB and GiB, truth as TOML has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if "_bytes" in name and value:
        return f"{value >> 30} GiB" if value % (1 << 30) == 0 else f"{value >> 20} MiB"
    return f"{value:g}" if isinstance(value, float) else str(value)


def main() -> int:
    if "--check" not in sys.argv:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.read_text(encoding="utf-8") == page():
        return 0
    sys.stderr.write("docs/configuration.md is not what the settings say: run python scripts/config_docs.py\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
