"""Measured values: what is beyond their spread, and what stands out among several."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

# Of a normal distribution the MAD times this is the standard deviation; beyond so many of those a value stands out.
_MAD_TO_SIGMA = 1.4826
_SIGMAS = 3.5  # Iglewicz and Hoaglin, How to Detect and Handle Outliers (1993)


def take_value(figure: Any) -> float | None:
    """The number of a measured value: its median where it is a figure with a spread; None where it is no number."""
    value = figure.get("median") if isinstance(figure, dict) else figure
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def find_change(before: Any, now: Any, floor: float) -> float | None:
    """The part by which a measured value changed (-0.5: to half of it), None where that is within noise.

    Noise is less than `floor` of the value, and less than the spread (max - min) of either measurement. Figures that
    were measured with other sizes or by another method are not compared.
    """
    one, other = take_value(before), take_value(now)
    if one is None or other is None or one <= 0 or _differ_in_method(before, now):
        return None
    least = max(floor * one, _spread(before), _spread(now))
    return (other - one) / one if abs(other - one) > least else None


def _differ_in_method(before: Any, now: Any) -> bool:
    if not (isinstance(before, dict) and isinstance(now, dict)):
        return False
    names = ("size_mib", "size_bytes", "method")
    return any(before.get(name) != now.get(name) for name in names if name in before and name in now)


def _spread(figure: Any) -> float:
    if not isinstance(figure, dict):
        return 0.0
    low, high = (take_value(figure.get(name)) for name in ("min", "max"))
    return max(high - low, 0.0) if low is not None and high is not None else 0.0


def find_outliers(values: Mapping[str, float], floor: float) -> tuple[float, float, list[str]]:
    """(median, the distance from it beyond which a value stands out, the names of those that do).

    The distance is 3.5 robust standard deviations (from the median absolute deviation), and `floor` of the median at
    least, so that a fleet without any spread does not make an outlier of a rounding error.
    """
    numbers: Sequence[float] = list(values.values())
    middle = statistics.median(numbers)
    mad = statistics.median([abs(number - middle) for number in numbers])
    limit = max(floor * abs(middle), _SIGMAS * _MAD_TO_SIGMA * mad)
    return middle, limit, [name for name, number in values.items() if abs(number - middle) > limit]
