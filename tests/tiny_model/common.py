"""Toy models and packed batches that several tests share."""

import torch

from reference.init import initialize
from tools.tiny_model.config import SIZES, build_config
from tools.tiny_model.export import build_models
from tools.tiny_model.fast_model import Batch
from tools.tiny_model.vocabulary import compressed_ids, read_tokenizer

from . import TOKENIZER


def toy_models(seed=1, style="fixture"):
    tokenizer = read_tokenizer(TOKENIZER)
    target, drafter = build_models(build_config(SIZES["toy"], tokenizer), compressed_ids(tokenizer))
    generator = torch.Generator().manual_seed(seed)
    initialize(target, generator, style)
    initialize(drafter, generator, style)
    return target, drafter


def packed(documents, length):
    """(Batch of one row, [(begin, end)] of each document); documents start at multiples of 8."""
    tokens = torch.full((1, length), 2)
    start, weights = torch.zeros(1, length, dtype=torch.int64), torch.zeros(1, length)
    places, at = [], 0
    for ids in documents:
        tokens[0, at : at + len(ids)] = ids
        start[0, at : at + len(ids)] = at
        weights[0, at : at + len(ids) - 1] = 1.0
        places.append((at, at + len(ids)))
        at = -(-(at + len(ids)) // 8) * 8
    start[0, at:] = min(at, length - 1)
    return Batch(tokens, start, start, tokens.roll(-1, dims=1), weights), places


def relative(x, y):
    return ((x - y).norm() / y.norm()).item()
