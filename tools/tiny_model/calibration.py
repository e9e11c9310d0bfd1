"""Confidence temperatures from recorded blocks, and how good the calibrated confidences are. Plain numpy.

A record is z [N, K] confidence logits and a [N] accepted drafts; draft k (1-based) counts as accepted if a >= k.
"""

import numpy as np

BINS = 15


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def fit_temperatures(z, accepted):
    """Maximum likelihood a position, on blocks whose earlier drafts were accepted. Convex in 1 / T, so bisection."""
    temperatures = []
    for k in range(z.shape[1]):
        alive = accepted >= k
        logits, labels = z[alive, k].astype(np.float64), (accepted[alive] > k).astype(np.float64)
        low, high = 1 / 8, 8.0  # of 1 / T

        def slope(inverse):
            return float((logits * (sigmoid(inverse * logits) - labels)).sum())

        for _ in range(60):
            middle = (low * high) ** 0.5
            low, high = (low, middle) if slope(middle) > 0 else (middle, high)
        temperatures.append(1 / (low * high) ** 0.5)
    return temperatures


def expected_error(predicted, labels, bins=BINS):
    """ECE: mean distance of confidence and frequency over equal-width bins."""
    index = np.minimum((predicted * bins).astype(int), bins - 1)
    total = 0.0
    for b in range(bins):
        inside = index == b
        if inside.any():
            total += inside.mean() * abs(predicted[inside].mean() - labels[inside].mean())
    return float(total)


def area_under_curve(scores, labels):
    """Probability that a positive outranks a negative, ties counted half."""
    positive, negative = scores[labels > 0], scores[labels == 0]
    if not len(positive) or not len(negative):
        return float("nan")
    order = np.concatenate((positive, negative)).argsort(kind="stable")
    values = np.concatenate((positive, negative))[order]
    ranks = np.empty(len(values))
    starts = np.flatnonzero(np.r_[True, values[1:] != values[:-1]])
    ends = np.r_[starts[1:], len(values)]
    for s, e in zip(starts, ends):
        ranks[order[s:e]] = (s + e + 1) / 2
    return float((ranks[: len(positive)].sum() - len(positive) * (len(positive) + 1) / 2) / (len(positive) * len(negative)))


def report(z, accepted, temperatures):
    """Figures a position for the cumulative product, before and after temperatures, on records not used for the fit."""
    result = {"blocks": int(len(accepted)), "mean_accepted_per_block": float(accepted.mean()), "positions": []}
    for name, scale in (("before", np.ones(z.shape[1])), ("after", np.array(temperatures))):
        product = np.cumprod(sigmoid(z / scale), axis=1)
        for k in range(z.shape[1]):
            if name == "before":
                result["positions"].append({"accepted": float((accepted > k).mean())})
            labels = (accepted > k).astype(np.float64)
            row = result["positions"][k]
            row["ece_" + name] = expected_error(product[:, k], labels)
            row["brier_" + name] = float(((product[:, k] - labels) ** 2).mean())
            alive = accepted >= k
            row["auc"] = area_under_curve(z[alive, k], labels[alive])
    return result
