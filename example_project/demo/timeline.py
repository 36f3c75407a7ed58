"""The second act as a picture: in the terminal, and as an SVG."""

from html import escape

from celery_guard import Overlap, State
from example_project.demo.policies import Seen

WIDTH = 56  # characters of the time line
NOTES = {
    Overlap.SKIP: "a trigger that finds another running is skipped",
    Overlap.WAIT: "each waits its turn, for wait_for at most",
    Overlap.QUEUE: "every one runs, first in first out",
    Overlap.COALESCE: "one more run, with the newest arguments",
    Overlap.REPLACE: "the newest takes over, the old one ends",
    Overlap.ALLOW: "no exclusion",
}


def text(seen: list[Seen]) -> list[str]:
    """Lines for a terminal: '>' the trigger came, '.' it waits, '#' it runs, 'x' it ended without running on."""
    span = max(one.ended for one in seen)

    def column(seconds: float) -> int:
        return min(int(seconds / span * WIDTH), WIDTH - 1)

    lines = ["", "The policies, side by side:  > came   . waits   # runs   x ended there"]
    for policy in Overlap:
        lines += ["", f"  {policy:<9}{NOTES[policy]}"]
        for one in (one for one in seen if one.policy is policy):
            row = [" "] * WIDTH
            came, ended = column(one.came), column(one.ended)
            starts = ended if one.started is None else column(one.started)
            row[came:starts] = "." * (starts - came)
            if one.started is not None:
                row[starts : ended + 1] = "#" * (ended + 1 - starts)
            row[came] = ">" if one.started is None or starts > came else row[came]
            if one.state is not State.SUCCEEDED:
                row[ended] = "x"
            lines.append(f"    {one.number} |{''.join(row)}| {one.state}")
    return lines


_COLOURS = {"waits": "#c9b458", "runs": "#4a7fb5", "succeeded": "#3c7a4a", "other": "#a05252"}
_ROW, _LEFT, _PIXELS = 16, 110, 560


def svg(seen: list[Seen]) -> str:
    """The same as an SVG, readable on a light and a dark page."""
    span = max(one.ended for one in seen)
    scale = _PIXELS / span
    parts, y = [], 10
    for policy in Overlap:
        y += 20
        parts.append(f'<text x="8" y="{y}" class="p">{policy}</text>')
        parts.append(f'<text x="{_LEFT}" y="{y}">{escape(NOTES[policy])}</text>')
        y += 6
        for one in (one for one in seen if one.policy is policy):
            x = _LEFT + one.came * scale
            start = one.ended if one.started is None else one.started
            middle = y + _ROW / 2
            parts.append(f'<text x="{_LEFT - 14}" y="{y + 12}">{one.number}</text>')
            parts.append(
                f'<line x1="{x:.1f}" y1="{middle}" x2="{_LEFT + start * scale:.1f}" y2="{middle}" '
                f'stroke="{_COLOURS["waits"]}" stroke-width="3"/>'
            )
            parts.append(f'<circle cx="{x:.1f}" cy="{middle}" r="3" fill="{_COLOURS["waits"]}"/>')
            if one.started is not None:
                width = max((one.ended - one.started) * scale, 2)
                parts.append(
                    f'<rect x="{_LEFT + one.started * scale:.1f}" y="{y + 2}" width="{width:.1f}" '
                    f'height="{_ROW - 4}" rx="2" fill="{_COLOURS["runs"]}"/>'
                )
            colour = _COLOURS["succeeded" if one.state is State.SUCCEEDED else "other"]
            parts.append(
                f'<text x="{_LEFT + one.ended * scale + 6:.1f}" y="{y + 12}" fill="{colour}">{one.state}</text>'
            )
            y += _ROW
    style = "svg{font:12px sans-serif;fill:#777}.p{font-weight:bold}"
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _PIXELS + 100}" height="{y + 14}" role="img">\n'
        f"<title>Six triggers meet each overlap policy</title>\n<style>{style}</style>\n{body}\n</svg>\n"
    )
