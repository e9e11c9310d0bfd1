"""Where the golden models are, and how the tests read them."""

import json
import os

import numpy as np
import torch

from reference.checkpoint import load_model
from reference.logits import logits_after

ROOT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden", "model")
MODELS = ("tiny_full", "tiny_noengram", "tiny_smooth")


def directory(name):
    return os.path.join(ROOT, name)


def read_json(name, file):
    with open(os.path.join(directory(name), file)) as stream:
        return json.load(stream)


def rows(name, numerics, dtype, key):
    """(computed, golden), each [rows, vocab], over all cases of a model."""
    model = load_model(directory(name), dtype)
    computed, golden = [], []
    for case in read_json(name, "golden.json"):
        computed.append(logits_after(model, case["prompt"], case["greedy_f64"], numerics).to(torch.float64).numpy())
        golden.append(np.array(case[key]))
    return np.concatenate(computed), np.concatenate(golden)


def row_errors(computed, golden):
    return np.abs(computed - golden).max(axis=1) / np.abs(golden).max(axis=1)
