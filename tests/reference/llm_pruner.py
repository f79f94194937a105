"""LLM-Pruner's scores, unit by unit and weight by weight, from gradients of the whole model."""

from __future__ import annotations

import math


def score(units, index, gradients, parameters, order, importance, aggregate):
    """Score of unit `index`, not divided by its parameters.

    gradients: of each sequence's loss, a dict by parameter, (d_out, d_in) or (d_out,); parameters: alike.
    """
    carried = []
    for linear, rows in units.sources:
        total = 0.0
        for row in rows[index].tolist():
            names = [(linear.tensor, (row, column)) for column in range(linear.shape[1])]
            if f"{linear.name}.bias" in parameters:
                names.append((f"{linear.name}.bias", (row,)))
            total += _channel(names, gradients, parameters, order, importance)
        carried.append(total)
    total = 0.0
    for column in units.columns[index].tolist():
        names = [(units.sink.tensor, (row, column)) for row in range(units.sink.shape[0])]
        total += _channel(names, gradients, parameters, order, importance)
    carried.append(total)
    return {"sum": sum, "product": math.prod, "max": max, "last": lambda terms: terms[-1]}[aggregate](carried)


def _channel(names, gradients, parameters, order, importance):
    weights = []
    for name, place in names:
        w = float(parameters[name][place])
        g = [float(one[name][place]) for one in gradients]
        first = w * sum(g) / len(g)
        second = w * w * sum(value * value for value in g) / len(g)
        weights.append({"first": first, "second": second, "mixed": first - second / 2}[order])
    return sum(map(abs, weights)) if importance == "element" else abs(sum(weights))
