"""The options of formats: frozen, checked when made, like every other setting.

Each format declares its own as a subclass of `FormatOptions`; `Format.__init__` makes one of the keywords that it
was called with. A wrong key or value is an `InvalidConfig` that names it and says what is allowed.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from buffer.config import Config
from buffer.errors import InvalidConfig


@dataclass(frozen=True, kw_only=True)
class FormatOptions(Config):
    """Base of all options; as it is, for formats that have none."""

    @classmethod
    def of(cls, name: str, given: Mapping[str, Any]) -> Self:
        """The options of the format of that name. Raises InvalidConfig."""
        allowed = cls.setting_names()
        for key in given:
            if key not in allowed:
                near = difflib.get_close_matches(str(key), allowed, n=1)
                hint = f"; did you mean {near[0]!r}? It has: " if near else "; it has: "
                raise InvalidConfig(
                    f"the format {name!r} has no option {key!r}{hint}{', '.join(allowed) or 'none'}",
                    key=str(key),
                    value=given[key],
                )
        return cls(**given)
