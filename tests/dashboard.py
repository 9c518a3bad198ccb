"""The dashboard as a picture, without Grafana: every panel's own queries against a Prometheus, drawn where the
dashboard puts it. Grafana draws in its own style; what is shown, and that there is something to show, is the same.

python -m tests.dashboard --prometheus http://127.0.0.1:9090 --minutes 60 --image docs/images/dashboard.png
"""

from __future__ import annotations

import argparse
import html
import json
import re
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buffer.inspect.human import human_bytes, human_seconds
from tests.serve.browser import running_browser

OPS = Path(__file__).parents[1] / "ops"
COLUMNS, COLUMN, ROW, GAP = 24, 50, 30, 8
POINTS = 240
COLOURS = ("#2dd4bf", "#fbbf24", "#60a5fa", "#f472b6")
LEGEND_CHARS = 34
STYLE = f"""
body {{ margin: 0; padding: 8px; background: #0e1116; color: #e8ebf0; font: 13px/1.3 system-ui, sans-serif }}
main {{ position: relative; width: {COLUMNS * COLUMN}px }}
section {{ position: absolute; box-sizing: border-box; background: #171b22; border: 1px solid #2a303a; padding: 8px }}
h2 {{ font-size: 13px; margin: 0 0 4px }}
b {{ display: block; font-size: 30px; text-align: center; margin-top: 10px }}
text, p, td {{ fill: #98a2b3; color: #98a2b3; font-size: 11px; margin: 0 }}
td {{ padding: 2px 24px 2px 0; font-size: 13px }}
"""


@dataclass(frozen=True)
class Found:
    """One line of a panel."""

    name: str
    points: list[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    spec: dict[str, Any]
    lines: list[Found]

    @property
    def title(self) -> str:
        return str(self.spec["title"])

    def is_found(self) -> bool:
        """Whether each of its queries finds something."""
        return len(self.lines) >= len(self.spec["targets"])

    def is_drawn(self) -> bool:
        """Whether there is something to see, too. A quantile over a time without commits is no number."""
        return self.is_found() and all(line.points for line in self.lines)


def panels(prometheus: str, end_s: float, seconds: float, ops: Path = OPS) -> list[Panel]:
    """Every panel of the dashboard with what its queries find in these seconds."""
    board = json.loads((ops / "grafana" / "dashboards" / "buffer-delta.json").read_text())
    step_s = max(1.0, seconds / POINTS)
    made = []
    for spec in board["panels"]:
        lines = []
        for target in spec["targets"]:
            # What Grafana puts in for its variables.
            text = (
                target["expr"].replace("$__rate_interval", f"{max(60, int(4 * step_s))}s").replace('"$queue"', '".*"')
            )
            for series in _range(prometheus, text, end_s - seconds, end_s, step_s):
                points = [(float(t), float(v)) for t, v in series["values"] if v not in ("NaN", "+Inf", "-Inf")]
                lines.append(Found(_legend(target.get("legendFormat", ""), series["metric"]), points))
        made.append(Panel(spec, lines))
    return made


def _range(prometheus: str, text: str, start_s: float, end_s: float, step_s: float) -> list[dict[str, Any]]:
    asked = {"query": text, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:.3f}"}
    data = urllib.parse.urlencode(asked).encode()
    with urllib.request.urlopen(f"{prometheus}/api/v1/query_range", data, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    assert found["status"] == "success", found
    return list(found["data"]["result"])


def _legend(template: str, labels: dict[str, str]) -> str:
    text = re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda name: labels.get(name[1], ""), template)
    return text if len(text) <= LEGEND_CHARS else "…" + text[-LEGEND_CHARS:]


def _said(value: float, unit: str) -> str:
    if unit == "s":
        return human_seconds(value)
    if unit in ("bytes", "Bps"):
        return human_bytes(round(value)) + ("/s" if unit == "Bps" else "")
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2g}"


# Drawing


def document(found: list[Panel], start_s: float, end_s: float) -> str:
    drawn = "".join(_panel(panel, start_s, end_s) for panel in found)
    height = max(panel.spec["gridPos"]["y"] + panel.spec["gridPos"]["h"] for panel in found) * ROW
    return (
        f"<!doctype html><meta charset=utf-8><style>{STYLE}</style><body><main style='height:{height}px'>{drawn}</main>"
    )


def _panel(panel: Panel, start_s: float, end_s: float) -> str:
    place = panel.spec["gridPos"]
    width, height = place["w"] * COLUMN - GAP, place["h"] * ROW - GAP
    draw = {"stat": _stat, "timeseries": _lines, "table": _table}[panel.spec["type"]]
    where = f"left:{place['x'] * COLUMN}px;top:{place['y'] * ROW}px;width:{width}px;height:{height}px"
    inside = draw(panel, width - 18, height - 36, start_s, end_s)
    return f"<section style='{where}'><h2>{html.escape(panel.title)}</h2>{inside}</section>"


def _unit(panel: Panel) -> str:
    return str(panel.spec["fieldConfig"]["defaults"]["unit"])


def _stat(panel: Panel, *_: float) -> str:
    """The newest value, or, where the dashboard says so, its name."""
    newest = max((line for line in panel.lines if line.points), key=lambda line: line.points[-1][0])
    value = newest.points[-1][1]
    mappings = panel.spec["fieldConfig"]["defaults"].get("mappings", [])
    texts = {key: shown["text"] for mapping in mappings for key, shown in mapping["options"].items()}
    is_name = panel.spec.get("options", {}).get("textMode") == "name"
    text = newest.name if is_name else texts.get(f"{value:g}", _said(value, _unit(panel)))
    return f"<b>{html.escape(text)}</b>"


def _lines(panel: Panel, width: float, height: float, start_s: float, end_s: float) -> str:
    left, bottom = 64.0, 34.0
    top = max((value for line in panel.lines for _, value in line.points), default=0.0) * 1.1 or 1.0
    shapes = []
    for part in (0, 0.5, 1):
        y = 6 + (height - bottom - 6) * (1 - part)
        shapes.append(f"<line x1={left} x2={width} y1={y} y2={y} stroke='#2a303a'/>")
        shapes.append(f"<text x={left - 6} y={y + 4} text-anchor=end>{_said(top * part, _unit(panel))}</text>")
    for part, anchor in ((0, "start"), (0.5, "middle"), (1, "end")):
        at = time.strftime("%H:%M", time.gmtime(start_s + (end_s - start_s) * part))
        x = left + (width - left) * part
        shapes.append(f"<text x={x} y={height - bottom + 16} text-anchor={anchor}>{at}</text>")
    for number, line in enumerate(panel.lines):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(
            f"{left + (width - left) * (t - start_s) / (end_s - start_s):.1f},"
            f"{6 + (height - bottom - 6) * (1 - v / top):.1f}"
            for t, v in line.points
        )
        shapes.append(f"<polyline points='{points}' fill=none stroke='{colour}' stroke-width=1.5 />")
        name = html.escape(line.name or "value")
        shapes.append(f"<text x={left + number * 130} y={height - 2} style='fill:{colour}'>{name}</text>")
    return f"<svg width={width} height={height}>{''.join(shapes)}</svg>"


def _table(panel: Panel, *_: float) -> str:
    rows = (f"<tr><td>{html.escape(line.name)}<td>{line.points[-1][1]:,.0f}" for line in panel.lines if line.points)
    return f"<table>{''.join(rows)}</table>"


def draw(prometheus: str, seconds: float, image: Path, end_s: float | None = None) -> list[Panel]:
    """The picture, by a real browser. Returns what it shows."""
    end_s = time.time() if end_s is None else end_s
    found = panels(prometheus, end_s, seconds)
    height = max(panel.spec["gridPos"]["y"] + panel.spec["gridPos"]["h"] for panel in found) * ROW + 16
    with tempfile.TemporaryDirectory() as folder, running_browser() as browser:
        page = Path(folder) / "dashboard.html"
        page.write_text(document(found, end_s - seconds, end_s))
        browser.look(page.as_uri(), COLUMNS * COLUMN + 16, height, drawn="document.readyState === 'complete'")
        browser.screenshot(image)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prometheus", required=True, help="its address")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--end", type=float, help="in seconds since 1970; else now")
    parser.add_argument("--image", type=Path, required=True)
    options = parser.parse_args()
    found = draw(options.prometheus, options.minutes * 60, options.image, options.end)
    empty = [panel.title for panel in found if not panel.is_drawn()]
    sys.stdout.write(f"{len(found)} panels" + (f"; nothing to show in: {', '.join(empty)}" if empty else "") + "\n")
    return 1 if empty else 0


if __name__ == "__main__":
    sys.exit(main())
