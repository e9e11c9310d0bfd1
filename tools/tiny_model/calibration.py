"""Confidence temperatures from recorded blocks, and how good the calibrated confidences are. Plain numpy.

A record is z [N, K] confidence logits and a [N] accepted drafts; draft k (1-based) counts as accepted if a >= k.

    python3 -m tools.tiny_model.calibration --state DIR

fits the temperatures of a drafter round anew from its records.npz and puts them into its state.json and report.json.
"""

import argparse
import json
import os

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


def searched(z, accepted, temperatures, factor=1.5, steps=61):
    """Within `factor` of each given temperature, left to right, the one with the least error of the product so far.

    The likelihood says nothing about the product, which is what a scheduler reads; the error alone is too noisy far out.
    """
    product, result = np.ones(len(z)), []
    for k, start in enumerate(temperatures):
        labels = (accepted > k).astype(np.float64)
        scales = factor ** np.linspace(-1, 1, steps)
        error, _, best = min(
            (expected_error(product * sigmoid(z[:, k] / (start * s)), labels), abs(np.log(s)), start * s) for s in scales
        )
        result.append(float(best))
        product = product * sigmoid(z[:, k] / best)
    return result


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


def summary(records):
    """Temperatures from the records "fit", figures of the others, {group: (z, accepted, accepted a round)}."""
    z, accepted = records["fit"][:2]
    likely = fit_temperatures(z, accepted)
    temperatures = searched(z, accepted, likely)
    result = {"temperatures": temperatures, "likelihood_temperatures": likely, "fit_blocks": int(len(accepted)), "groups": {}}
    tests = {g: r for g, r in records.items() if g != "fit" and len(r[1])}
    tests["all"] = tuple(np.concatenate([r[i] for r in tests.values()]) for i in range(3))
    for group, (z, accepted, rounds) in tests.items():
        values = report(z, accepted, temperatures)
        values["rounds"], values["mean_accepted_per_round"] = int(len(rounds)), float(rounds.mean())
        result["groups"][group] = values
    return result


def read_records(path):
    with np.load(path) as arrays:
        groups = {name.rsplit("_", 1)[0] for name in arrays.files}
        parts = {g: [arrays[g + "_" + n] for n in ("z", "accepted", "rounds") if g + "_" + n in arrays.files] for g in groups}
    order = ("fit", "stories", "storybooks", "dialogue", "tools")
    return {g: tuple(parts[g]) for g in sorted(parts, key=lambda g: order.index(g) if g in order else len(order))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", required=True, help="folder that a drafter round wrote")
    arguments = parser.parse_args()
    result = summary(read_records(os.path.join(arguments.state, "records.npz")))
    for name, key in (("state.json", "dspark"), ("report.json", "drafter")):
        path = os.path.join(arguments.state, name)
        with open(path) as file:
            content = json.load(file)
        content[key] = result
        with open(path, "w") as file:
            json.dump(content, file, indent=1)
            file.write("\n")
    print("temperatures " + " ".join("%.3f" % t for t in result["temperatures"]))
    for group, values in result["groups"].items():
        errors = " ".join("%.3f" % p["ece_after"] for p in values["positions"])
        print("%s: accepted %.2f a round, ece %s" % (group, values["mean_accepted_per_round"], errors))


if __name__ == "__main__":
    main()
