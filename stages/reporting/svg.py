"""Draws matplotlib figures as SVG to embed in HTML: the same bytes every time, in the page's colours."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from html import escape
from typing import Any

INK = "#010203"
"""Drawn in this colour, text and lines take the page's own: light on dark, dark on light."""

STYLE = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": INK,
    "grid.alpha": 0.12,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}


def draw_svg(name: str, title: str, size: tuple[float, float], draw: Callable[[Any], None]) -> str:
    """The SVG element that `draw(figure)` makes.

    name:  starts every id inside, so that many figures can stand in one page.
    title: what the figure shows, for those who cannot see it.
    size:  inches; the page scales it down where it is too wide.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=size)
        figure.patch.set_alpha(0)
        draw(figure)
        for axes in figure.axes:
            axes.patch.set_alpha(0)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return _embedded(file.getvalue(), name, title)


def _embedded(text: str, name: str, title: str) -> str:
    """Only the element itself, ids made unique, the ink taken from the page, a title for screen readers."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    text = text.replace(INK, "currentColor")
    label = f'<svg role="img" aria-labelledby="{name}-title"'
    return text.replace("<svg", label, 1).replace(">", f'><title id="{name}-title">{escape(title)}</title>', 1)
