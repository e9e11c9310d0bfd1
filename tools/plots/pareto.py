"""Draws throughput a user gets against throughput in all, from files of `deepinfer bench engine --json`.

    python3 tools/plots/pareto.py RESULT.json [MORE.json ...] -o pareto.png

A point is a batch of the decode table; a line is a context length. Needs matplotlib.
"""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib import ticker


def lines_of(result):
    """{context: [(batch, tokens/s a user, least, most, tokens/s in all), ...]} by rising batch."""
    lines = {}
    for row in result.get("decode", []):
        if "left_out" in row:
            continue
        rate = row["delivered_tokens_per_s"]
        per_user = row["delivered_tokens_per_s_per_user"]
        lines.setdefault(row["context"], []).append((row["batch"], per_user, rate["least"], rate["most"], rate["median"]))
    return {context: sorted(points) for context, points in sorted(lines.items())}


def draw(results, title):
    figure, axes = plt.subplots(figsize=(7.5, 5), dpi=130)
    for name, result in results:
        for context, points in lines_of(result).items():
            label = f"{context} tokens of context" + (f", {name}" if len(results) > 1 else "")
            users = [point[1] for point in points]
            totals = [point[4] for point in points]
            errors = [[point[4] - point[2] for point in points], [point[3] - point[4] for point in points]]
            axes.errorbar(users, totals, yerr=errors, marker="o", markersize=5, capsize=3, linewidth=1.3, label=label)
            for batch, user, _, _, total in points:
                axes.annotate(f"{batch}", (user, total), textcoords="offset points", xytext=(6, 5), fontsize=8)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(ticker.LogLocator(base=10, subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    axes.set_xlabel("tokens a second for each user (delivered)")
    axes.set_ylabel("tokens a second in all (delivered)")
    axes.set_ylim(bottom=0)
    axes.grid(True, which="both", alpha=0.25)
    axes.set_title(title, fontsize=9)
    axes.legend(fontsize=8)
    figure.tight_layout()
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("pareto.png"))
    arguments = parser.parse_args()
    results = [(path.stem, json.loads(path.read_text())) for path in arguments.files]
    if not any(result.get("decode") for _, result in results):
        parser.error("none of the files has a decode table")
    first = results[0][1]
    title = f"decode: numbers at the points are batch sizes; bars: least and most of {first['repeats']} repeats\n{first['hardware']}"
    draw(results, title).savefig(arguments.output)
    print(arguments.output)


if __name__ == "__main__":
    main()
