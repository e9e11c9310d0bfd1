"""Held-out bits per byte of the training forward, by group and by category of the corpus."""

import math

import torch

from .batches import held_out_batches, to_batch
from .documents import GROUPS


def names_of(group):
    """What a group counts for: itself, its category where that has several groups, and everything."""
    category = GROUPS[group]
    shared = sum(c == category for c in GROUPS.values()) > 1
    return [group, "all " + category, "all"] if shared else [group, "all"]


def bits_per_byte(model, values, groups, bytes_of_token, length, rows_per_batch, off=(), limit=None):
    """{group or category: {"bits_per_byte", "bytes", "tokens"}}. All tokens count, prompts and control tokens too.

    Runs with gradients as training does, though none is used: what was compiled for training serves again.
    """
    nats, sizes, tokens = {}, {}, {}
    device = bytes_of_token.device
    for group, documents in groups.items():
        documents = documents[:limit] if limit else documents
        for compact in held_out_batches(documents, length, rows_per_batch, model.config.sliding_window):
            batch = to_batch(compact, 1.0, device)
            out = model(batch, values, off=off)
            known = batch.weights > 0
            for name in names_of(group):
                nats[name] = nats.get(name, 0.0) + (out.losses * known).sum().item()
                sizes[name] = sizes.get(name, 0.0) + (bytes_of_token[batch.labels] * known).sum().item()
                tokens[name] = tokens.get(name, 0) + int(known.sum())
    return {
        name: {"bits_per_byte": nats[name] / sizes[name] / math.log(2), "bytes": int(sizes[name]), "tokens": tokens[name]}
        for name in sorted(nats)
    }


def line(result):
    return "  ".join("%s %.4f" % (name, r["bits_per_byte"]) for name, r in result.items())
