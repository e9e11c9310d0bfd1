"""Pictures for the model card: expert load a layer over the training, and how often held-out text reads Engram rows.

    python3 -m tools.tiny_model.plots --reports R1/report.json R2/report.json --held-out .train/heldout \
        --out models/tiny --figures figures.json

Loads are those of the training log, of about ten seconds of batches each. Needs matplotlib.
"""

import argparse
import json
import os

import numpy as np
import torch

from .batches import load_groups
from .config import SIZES, build_config
from .documents import GROUPS
from .export import build_models
from .fast_model import FastModel
from .vocabulary import compressed_ids, read_tokenizer


def new_figure(width, height, columns=1):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(1, columns, figsize=(width, height), dpi=90, layout="constrained")


def matplotlib_colour(share):
    from matplotlib import colormaps

    return colormaps["viridis"](share)


def expert_load(reports, path):
    """Largest over mean load of each layer over the training's tokens. Returns the last of each layer."""
    tokens, peaks, before = [], [], 0
    for report in reports:
        records = [r for r in report["log"] if "load_peaks" in r]
        tokens += [(before + r["tokens"]) / 1e6 for r in records]
        peaks += [r["load_peaks"] for r in records]
        before = report["counters"]["tokens"]
    peaks = np.array(peaks)
    figure, (over_time, last) = new_figure(9, 3.4, 2)
    colours = [matplotlib_colour(layer / (peaks.shape[1] - 1)) for layer in range(peaks.shape[1])]
    for layer, colour in enumerate(colours):
        over_time.plot(tokens, peaks[:, layer], color=colour, linewidth=1)
    over_time.set(xlabel="million tokens", ylabel="largest / mean load", yscale="log", title="Expert load, a line a layer")
    over_time.set_yticks([1, 1.1, 1.2, 1.5, 2, 3], ["1", "1.1", "1.2", "1.5", "2", "3"])
    over_time.minorticks_off()
    last.bar(range(peaks.shape[1]), peaks[-1], color=colours)
    last.set(xlabel="layer", ylim=(1, 1.1), xticks=range(peaks.shape[1]), title="At the end")
    figure.savefig(path)
    return peaks[-1].tolist()


def row_counts(model, groups):
    """{layer: how often each Engram row is read}"""
    config = model.config
    counts = {l: np.zeros(n, dtype=np.int64) for l, n in zip(config.engram_layer_ids, config.engram_num_embeddings)}
    for documents in groups.values():
        for document in documents:
            tokens = torch.from_numpy(document.ids.astype(np.int64))[None]
            for layer, rows in model.engram_rows(tokens, torch.zeros_like(tokens)).items():
                np.add.at(counts[layer], rows.flatten().numpy(), 1)
    return counts


def row_popularity(counts, path):
    """Shares of all reads by rank. Returns {layer: {"rows", "read", "top_1_percent", "top_10_percent"}}."""
    figure, axes = new_figure(7, 3.4)
    found = {}
    for layer, count in counts.items():
        ordered = np.sort(count)[::-1] / count.sum()
        axes.loglog(np.arange(1, len(ordered) + 1), np.maximum(ordered, 1e-9), label="layer %d" % layer)
        n = len(ordered)
        found[layer] = {
            "rows": n,
            "read": int((count > 0).sum()),
            "top_1_percent": float(ordered[: n // 100].sum()),
            "top_10_percent": float(ordered[: n // 10].sum()),
        }
    axes.set(xlabel="rank of the row", ylabel="share of all reads", ylim=(3e-6, None))
    axes.set_title("Engram rows read by held-out text")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reports", nargs="+", required=True, help="report.json of the language model's rounds, oldest first")
    parser.add_argument("--held-out", required=True)
    parser.add_argument("--tokenizer", default="models/tiny/tokenizer.json")
    parser.add_argument("--out", required=True, help="folder of the pictures")
    parser.add_argument("--figures", required=True, help="JSON file that receives the numbers")
    arguments = parser.parse_args()
    tokenizer = read_tokenizer(arguments.tokenizer)
    target, _ = build_models(build_config(SIZES["tiny"], tokenizer), compressed_ids(tokenizer))
    counts = row_counts(FastModel(target), load_groups([arguments.held_out], tuple(GROUPS)))
    reports = []
    for path in arguments.reports:
        with open(path) as file:
            reports.append(json.load(file))
    figures = {
        "load": expert_load(reports, os.path.join(arguments.out, "expert-load.png")),
        "rows": row_popularity(counts, os.path.join(arguments.out, "engram-rows.png")),
    }
    with open(arguments.figures, "w") as file:
        json.dump(figures, file, indent=1)
        file.write("\n")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
