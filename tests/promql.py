"""What a query of Prometheus looks at, read without a Prometheus: metric names, label matchers, and labels to group by.

It knows the part of the language that `ops/` uses, and refuses the rest, so that nothing is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.prometheus import dashboard_queries, rule_queries

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<string>"(?:[^"\\]|\\.)*")
      | (?P<range>\[[0-9]+[smhd]\])
      | (?P<number>[0-9]+(?:\.[0-9]+)?)
      | (?P<name>[a-zA-Z_][a-zA-Z0-9_]*)
      | (?P<sign>=~|!~|!=|==|>=|<=|[=<>(){},+\-*/])
    )""",
    re.VERBOSE,
)
FUNCTIONS = {
    "absent",
    "changes",
    "deriv",
    "histogram_quantile",
    "increase",
    "rate",
    "max_over_time",
    "max",
    "min",
    "sum",
}
GROUPING = {"by", "on"}
OPERATORS = {"and", "or"}
FROM_SCRAPING = {"instance", "job"}
"""Labels that Prometheus adds itself."""


@dataclass(frozen=True)
class Selector:
    name: str
    matchers: tuple[tuple[str, str, str], ...]

    def __str__(self) -> str:
        return self.name + "{" + ", ".join(f'{label}{sign}"{value}"' for label, sign, value in self.matchers) + "}"

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        return name == self.name and all(_holds(labels.get(label, ""), sign, v) for label, sign, v in self.matchers)


@dataclass(frozen=True)
class Query:
    selectors: tuple[Selector, ...]
    grouped_by: frozenset[str]


def _holds(found: str, sign: str, wanted: str) -> bool:
    if sign in ("=", "!="):
        return (found == wanted) == (sign == "=")
    return (re.fullmatch(wanted, found) is not None) == (sign == "=~")


def _tokens(text: str) -> list[tuple[str, str]]:
    found, at = [], 0
    text = text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"not understood at {at}: {text}")
        assert match.lastgroup is not None
        found.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return found


def parsed(text: str) -> Query:
    """Raises ValueError for a name that is no metric of ours, and for whatever this does not know."""
    tokens = [*_tokens(text), ("end", "")]
    selectors: list[Selector] = []
    grouped: set[str] = set()
    depth, at = 0, 0
    while tokens[at][0] != "end":
        kind, word = tokens[at]
        at += 1
        if kind == "name" and word in GROUPING:
            labels, at = _list_of_labels(tokens, at, text)
            grouped |= labels
        elif kind == "name" and tokens[at][1] == "(" and word not in OPERATORS:
            if word not in FUNCTIONS:
                raise ValueError(f"no function {word!r} is known: {text}")
        elif kind == "name" and word in FUNCTIONS and tokens[at][1] in GROUPING:
            continue
        elif kind == "name" and word not in OPERATORS:
            if not word.startswith("buffer_"):
                raise ValueError(f"{word!r} is no metric of ours: {text}")
            matchers, at = _matchers(tokens, at, text)
            selectors.append(Selector(word, matchers))
        elif word in "()":
            depth += 1 if word == "(" else -1
            if depth < 0:
                raise ValueError(f"a bracket too many: {text}")
    if depth:
        raise ValueError(f"a bracket is left open: {text}")
    return Query(tuple(selectors), frozenset(grouped))


def _list_of_labels(tokens: list[tuple[str, str]], at: int, text: str) -> tuple[set[str], int]:
    if tokens[at][1] != "(":
        raise ValueError(f"labels are missing: {text}")
    end = next((i for i in range(at, len(tokens)) if tokens[i][1] == ")"), len(tokens))
    return {word for kind, word in tokens[at:end] if kind == "name"}, end + 1


def _matchers(tokens: list[tuple[str, str]], at: int, text: str) -> tuple[tuple[tuple[str, str, str], ...], int]:
    if tokens[at][1] != "{":
        return (), at
    found, at = [], at + 1
    while tokens[at][1] != "}":
        (kind, label), (_, sign), (third, value) = tokens[at : at + 3]
        if (kind, third) != ("name", "string") or sign not in ("=", "!=", "=~", "!~"):
            raise ValueError(f"no label matcher: {text}")
        found.append((label, sign, value[1:-1]))
        at += 3
        at += tokens[at][1] == ","
    return tuple(found), at + 1


def series(scraped: str) -> list[tuple[str, dict[str, str]]]:
    """The name and the labels of everything in a scrape."""
    return [
        (sample.name, dict(sample.labels))
        for family in text_string_to_metric_families(scraped)
        for sample in family.samples
    ]


def check_scrape(scraped: str, ops: Path) -> None:
    """Every selector of dashboard and rules finds a series in the scrape, which has the labels to group by."""
    found = series(scraped)
    texts = [*dashboard_queries(ops), *rule_queries(ops)]
    assert len(texts) >= 20
    missing = [problem for text in texts for problem in _missing(text, found)]
    assert not missing, missing


def _missing(text: str, found: Iterable[tuple[str, dict[str, str]]]) -> list[str]:
    query = parsed(text)
    if not query.selectors:
        return [f"it looks at nothing: {text}"]
    problems = []
    for selector in query.selectors:
        matching = [labels for name, labels in found if selector.matches(name, labels)]
        if not matching:
            problems.append(f"{selector} finds nothing: {text}")
        elif lacking := query.grouped_by - FROM_SCRAPING - set.union(*map(set, matching)):
            problems.append(f"{selector} has no label {sorted(lacking)}: {text}")
    return problems
