"""Fit cost models to results/results.csv: which exponent a of the lazy width B = d^a is best, and why.

Reads results/results.csv, writes results/fit.md and results/cost.png; run in this folder. The bound of Li et al.
(A Tighter Complexity Analysis of SparseGPT, Theorem 4.1) is d^ω + d^(2+a) + d^(1+ω(1,1,a)-a): the factor, the
columns one by one, the products. With ordinary multiplication ω(1,1,a) = 2 + a, so its last term is d³ whatever
B is.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

RESULTS = Path("results")
BALANCED = 0.5275
"""The paper's exponent, at which d^(2+a) = d^(1+ω(1,1,a)-a), so that ω(1,1,a) = 1 + 2a."""
KNOWN = {0.0: 2.0, 0.321: 2.0, BALANCED: 1 + 2 * BALANCED, 1.0: 2.371}
"""ω(1,1,a) as far as the paper states it: Lemma 3.4 and the balance; it is convex, so lines between are bounds."""

Term = Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]
PAPER: dict[str, Term] = {"d² B, columns": lambda d, b: d**2 * b, "d³, products": lambda d, b: d**3}
MACHINE: dict[str, Term] = PAPER | {
    "d³ / B, memory traffic of the products": lambda d, b: d**3 / b,
    "d², masks and single weights": lambda d, b: d**2,
    "d / B, calls": lambda d, b: d / b,
}


def main() -> None:
    """Fit both models, write the tables and the figure."""
    with (RESULTS / "results.csv").open(encoding="utf-8") as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    d, lazy, seconds, factor = (np.array([row[k] for row in rows]) for k in ("d", "lazy", "seconds", "factor_seconds"))
    models = {"the paper's terms": fit(PAPER, d, lazy, seconds, factor)}
    models["with the machine's"] = fit(MACHINE, d, lazy, seconds, factor)
    predicted = {name: factor + total(fitted, d, lazy) for name, fitted in models.items()}
    text = [best_table(d, lazy, seconds, models["with the machine's"]), ""]
    for name, fitted in models.items():
        misfit = float(np.median(np.abs(predicted[name] / seconds - 1)))
        text += [f"Seconds beside the factor, {name}; median misfit {misfit:.0%}:", "", terms_table(fitted), ""]
    (RESULTS / "fit.md").write_text("\n".join(text), encoding="utf-8")
    draw(d, lazy, seconds, predicted["with the machine's"], predicted["the paper's terms"])
    print("\n".join(text))


def fit(
    terms: dict[str, Term],
    d: NDArray[np.float64],
    lazy: NDArray[np.float64],
    seconds: NDArray[np.float64],
    factor: NDArray[np.float64],
) -> dict[str, tuple[Term, float]]:
    """Terms and their coefficients, none negative, by least squares of the relative misfit of the whole time.

    A term whose coefficient comes out negative is left out and the others are fitted again.
    """
    names = list(terms)
    while True:
        columns = np.stack([terms[name](d, lazy) / seconds for name in names], 1)
        found = np.linalg.lstsq(columns, (seconds - factor) / seconds)[0]
        if (found >= 0).all():
            return {name: (terms[name], float(value)) for name, value in zip(names, found, strict=True)}
        names.pop(int(found.argmin()))


def total(
    fitted: dict[str, tuple[Term, float]], d: NDArray[np.float64], lazy: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Seconds of all terms together."""
    return np.sum([value * term(d, lazy) for term, value in fitted.values()], axis=0)


def bound(d: float, a: NDArray[np.float64]) -> NDArray[np.float64]:
    """The paper's bound with every constant 1, fast rectangular multiplication as in KNOWN."""
    rectangular = np.interp(a, list(KNOWN), list(KNOWN.values()))
    return d ** KNOWN[1.0] + d ** (2 + a) + d ** (1 + rectangular - a)


def best_table(
    d: NDArray[np.float64],
    lazy: NDArray[np.float64],
    seconds: NDArray[np.float64],
    machine: dict[str, tuple[Term, float]],
) -> str:
    """Markdown: the best measured width for each size and what the paper's exponent would cost."""
    lines = [
        "| d | best B | its a | B within 5 % | a within 5 % | B = 1 costs | best B by the fit | "
        f"d^{BALANCED} | it costs |",
        "|---" * 9 + "|",
    ]
    for size in np.unique(d):
        here = d == size
        widths, cost = lazy[here], seconds[here] / seconds[here].min()
        best, near = widths[cost.argmin()], widths[cost <= 1.05]
        fine = np.exp(np.linspace(0, math.log(size), 2000))
        fitted = fine[total(machine, np.full_like(fine, size), fine).argmin()]
        papers = float(np.exp(np.interp(BALANCED * math.log(size), np.log(widths), np.log(cost))))
        exponents = [math.log(width) / math.log(size) for width in (best, near.min(), near.max())]
        lines.append(
            f"| {size:.0f} | {best:.0f} | {exponents[0]:.2f} | {near.min():.0f} to {near.max():.0f} | "
            f"{exponents[1]:.2f} to {exponents[2]:.2f} | {cost[widths == 1][0]:.2f} | {fitted:.0f} | "
            f"{size**BALANCED:.0f} | {papers:.2f} |"
        )
    return "\n".join(lines)


def terms_table(fitted: dict[str, tuple[Term, float]]) -> str:
    """Markdown: coefficients in nanoseconds."""
    lines = [f"| {name} | {1e9 * value:.4g} |" for name, (_, value) in fitted.items()]
    return "\n".join(["| term | ns |", "|---|---|", *lines])


def draw(
    d: NDArray[np.float64],
    lazy: NDArray[np.float64],
    seconds: NDArray[np.float64],
    machine: NDArray[np.float64],
    paper: NDArray[np.float64],
) -> None:
    """Two panels, cost over the least cost against a: measured with the fit, and the paper's bound."""
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    sizes = np.unique(d)
    for i, size in enumerate(sizes):
        here = d == size
        a, colour = np.log(lazy[here]) / math.log(size), colormaps["viridis"](0.85 * i / max(len(sizes) - 1, 1))
        least = seconds[here].min()
        left.plot(a, seconds[here] / least, "o", color=colour, markersize=4, label=f"d = {size:.0f}")
        left.plot(a, machine[here] / least, "-", color=colour, linewidth=1)
        left.plot(a, paper[here] / least, ":", color=colour, linewidth=1)
        fine = np.linspace(0, 1, 400)
        right.plot(fine, bound(size, fine) / bound(size, fine).min(), color=colour, linewidth=1.2)
    left.set_title(
        "measured (dots); fitted: paper's terms (dotted),\nwith memory traffic and calls (lines)", fontsize=9
    )
    right.set_title("the paper's bound, fast multiplication,\nevery constant 1", fontsize=9)
    for axes in (left, right):
        _frame(axes)
    left.set_ylabel("time / least time")
    left.legend(frameon=False, fontsize=8)
    figure.savefig(RESULTS / "cost.png", dpi=120)


def _frame(axes: Axes) -> None:
    axes.axvline(BALANCED, color="grey", linewidth=0.8, linestyle="--")
    axes.annotate(f"a = {BALANCED}", (BALANCED, 6.3), (3, 0), textcoords="offset points", fontsize=8, color="grey")
    axes.set(xlabel="a, where B = d^a", yscale="log", ylim=(0.6, 7), xlim=(-0.02, 1.02))
    axes.set_yticks([0.7, 1, 1.5, 2, 3, 4, 6], ["0.7", "1", "1.5", "2", "3", "4", "6"])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main()
