"""Names of columns and fields as Spark compares them: which two are the same to it, and which a table can have.

Spark does not tell cases apart, but it does so in two ways: its resolver compares letter by letter
(`equalsIgnoreCase`), its catalogs and Delta compare names in lower case (`toLowerCase(Locale.ROOT)`). By the first
`ſ` is `s`, `ς` is `σ`, and `İ` and `ı` are `i`; by the second `İ` is `i` and a dot. To Python's `lower()` all of them
differ. Two names that are the same to Spark in either way must never be two columns: it would refuse the table.
"""

from __future__ import annotations

from functools import lru_cache

NAME_BYTES_MAX = 255
"""Of a column or field that follows the data. Catalogs take no more than this; Spark cannot read a table with a name
of more than 50,000 characters, and none whose schema has more than 20 million."""

_UNSTORABLE = frozenset(" ,;{}()\n\t=")  # Delta refuses them in column names unless columns are mapped
_DOT_ABOVE = "\u0307"


def same_name_key(name: str) -> str:
    """Equal for all names that are the same to Spark."""
    if name.isascii():
        return name.lower()
    folded = "".join(map(_folded, name))
    return folded.replace("i" + _DOT_ABOVE, "i")


def storable(name: str) -> bool:
    """Whether a table whose columns follow the data may have the name."""
    return (
        0 < len(name) <= NAME_BYTES_MAX
        and not _UNSTORABLE & set(name)
        and (name.isascii() or len(name.encode()) <= NAME_BYTES_MAX)
        and not any(sign < " " or sign == "\x7f" for sign in name)
    )


@lru_cache(maxsize=4096)
def _folded(sign: str) -> str:
    """One letter as Java's `Character` folds it: one letter each, where Python's `upper` may make two."""
    lower = _one(sign.lower(), sign)
    upper = _one(lower.upper(), _one(lower.title(), lower))
    return "i" if sign in "İı" else _one(upper.lower(), upper)


def _one(found: str, otherwise: str) -> str:
    return found if len(found) == 1 else otherwise
