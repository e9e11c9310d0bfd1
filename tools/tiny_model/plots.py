"""Pictures for the model card: expert load a layer, and how often Engram rows are read, both on held-out text.

    python3 -m tools.tiny_model.plots --state .train/state --held-out .train/heldout --out models/tiny --figures figures.json

Needs matplotlib.
"""

import argparse
import json
import os

import numpy as np
import torch

from . import blocks
from .batches import Packer, Mixture, load_groups, to_batch
from .config import SIZES, build_config
from .documents import GROUPS
from .export import build_models
from .fast_model import FastModel
from .state import load_state
from .vocabulary import compressed_ids, read_tokenizer


def new_figure(width, height):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(width, height), dpi=90, layout="constrained")


def expert_load(load, path):
    """load: tokens by expert, a list a layer. Returns largest over mean of each layer."""
    shares = [np.sort(np.array(layer))[::-1] / np.mean(layer) for layer in load]
    figure, axes = new_figure(7, 3.4)
    for layer, share in enumerate(shares):
        axes.plot([layer] * len(share), share, "o", color="tab:blue", alpha=0.35, markersize=4)
    axes.plot(range(len(shares)), [s[0] for s in shares], "_", color="tab:red", markersize=18, label="largest")
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set(xlabel="layer", ylabel="tokens of an expert / mean", ylim=(0, None), xticks=range(len(shares)))
    axes.set_title("Expert load on held-out text")
    axes.legend(loc="lower right")
    figure.savefig(path)
    return [float(s[0]) for s in shares]


def held_out_load(model, groups, rows):
    """Tokens by expert, a list a layer, over rows of 1024 tokens that hold all groups in equal shares; padding left out."""
    packer = Packer(groups, 1, model.config.sliding_window)
    batches = packer.batches(Mixture(dict.fromkeys(groups, 1.0)), 1024, 1)
    loads, known = [], None

    def counting(u, gate, bias, into, out, count, scaling, limit):
        chosen = blocks.route(u, gate, bias, count, scaling) > 0
        loads[-1].append(chosen[known].sum(dim=0))
        return blocks.moe(u, gate, bias, into, out, count, scaling, limit)

    model.f._functions["moe"] = counting
    with torch.no_grad():
        values = model.values()
        for _ in range(rows):
            batch = to_batch(next(batches), 1.0, "cpu")
            known = batch.tokens.flatten() != 2
            loads.append([])
            model(batch, values, want="final")
    return torch.stack([torch.stack(load) for load in loads]).sum(dim=0).tolist()


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
    parser.add_argument("--state", required=True)
    parser.add_argument("--rows", type=int, default=48, help="rows of 1024 tokens for the expert load")
    parser.add_argument("--held-out", required=True)
    parser.add_argument("--tokenizer", default="models/tiny/tokenizer.json")
    parser.add_argument("--out", required=True, help="folder of the pictures")
    parser.add_argument("--figures", required=True, help="JSON file that receives the numbers")
    arguments = parser.parse_args()
    tokenizer = read_tokenizer(arguments.tokenizer)
    target, drafter = build_models(build_config(SIZES["tiny"], tokenizer), compressed_ids(tokenizer))
    load_state(arguments.state, target, drafter)
    model, groups = FastModel(target), load_groups([arguments.held_out], tuple(GROUPS))
    load, counts = held_out_load(model, groups, arguments.rows), row_counts(model, groups)
    figures = {
        "load": expert_load(load, os.path.join(arguments.out, "expert-load.png")),
        "rows": row_popularity(counts, os.path.join(arguments.out, "engram-rows.png")),
    }
    with open(arguments.figures, "w") as file:
        json.dump(figures, file, indent=1)
        file.write("\n")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
