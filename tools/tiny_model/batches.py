"""Packs documents into rows of one length and serves them from a process of its own.

Documents start at multiples of 8 tokens; several lie side by side in a row. Text longer than a row is cut into pieces
that each begin with the begin token; conversations are cut at the row's end.
"""

import multiprocessing
import os
from dataclasses import dataclass, field

import numpy as np
import torch

from .data_files import read
from .documents import GROUPS
from .fast_model import DOCUMENT_ALIGNMENT, Batch

PAD = 2
KIND_NONE, KIND_PROMPT, KIND_ANSWER = 0, 1, 2  # of the next token, which decides the weight of its loss
OPEN_ROWS = 48
SHORTEST_PIECE = 24


@dataclass(frozen=True)
class Mixture:
    """Share of tokens by group, need not sum to one; joined puts documents into one context, for long rows."""

    shares: dict = field(default_factory=dict)
    replay: float = 0.0  # share of rows with bounded replay in the decoder layers
    joined: float = 0.0  # share of rows that hold one long document made of several


def load_groups(folders, groups=tuple(GROUPS)):
    """{group: documents} of the given part folders; groups without a file are left out."""
    result = {}
    for group in groups:
        paths = [os.path.join(f, group + ".xz") for f in folders]
        docs = [d for p in paths if os.path.exists(p) for d in read(p)]
        if docs:
            result[group] = docs
    if not result:
        raise FileNotFoundError("no packed documents in %s" % ", ".join(folders))
    return result


def token_kinds(document):
    """Kind of every token: text and answers are what the model writes."""
    kinds = np.empty(len(document.ids), dtype=np.uint8)
    end = 0
    for i, span in enumerate(document.spans):
        kinds[end : end + span] = KIND_ANSWER if i % 2 else KIND_PROMPT
        end += span
    return kinds


def pieces(document, length):
    """(ids, kinds) of at most `length` tokens."""
    ids, kinds = document.ids, token_kinds(document)
    is_text = len(document.spans) == 2 and document.spans[0] == 1
    if len(ids) <= length or not is_text:
        yield ids[:length], kinds[:length]
        return
    begin = np.array([ids[0]], dtype=ids.dtype)
    yield ids[:length], kinds[:length]
    for at in range(length, len(ids), length - 1):
        part = ids[at : at + length - 1]
        if len(part) >= SHORTEST_PIECE:
            yield np.concatenate((begin, part)), np.concatenate((kinds[:1], kinds[at : at + length - 1]))


class _Row:
    def __init__(self, length, joined):
        self.tokens = np.full(length, PAD, dtype=np.uint16)
        self.start = np.zeros(length, dtype=np.uint16)
        self.kind = np.zeros(length, dtype=np.uint8)  # of the next token
        self.used, self.joined = 0, joined

    def add(self, ids, kinds):
        n, at = len(ids), self.used
        self.tokens[at : at + n] = ids
        self.start[at : at + n] = 0 if self.joined else at
        self.kind[at : at + n - 1] = kinds[1:]
        step = 1 if self.joined else DOCUMENT_ALIGNMENT
        self.used = min(-(-(at + n) // step) * step, len(self.tokens))

    def close(self):
        self.start[self.used :] = min(self.used, len(self.start) - 1)
        return self


def replay_bounds(start, rng, window):
    """Start of the replay that each token belongs to: documents cut at random into stretches of 1 to 8 windows."""
    bounds, at = start.copy(), 0
    while True:
        at += int(rng.integers(window, 8 * window))
        if at >= len(start):
            return bounds
        bounds[at:] = np.maximum(bounds[at:], at)


class Packer:
    """Endless rows from groups of documents; every group is shuffled anew each time it has been used up."""

    def __init__(self, groups, seed, window):
        self.groups, self.rng, self.window = groups, np.random.default_rng(seed), window
        self.queues = {g: [] for g in groups}
        self.spent = dict.fromkeys(groups, 0.0)

    def _next(self, mixture):
        shares = {g: mixture.shares.get(g, 0.0) for g in self.groups}
        group = min((g for g in shares if shares[g] > 0), key=lambda g: self.spent[g] / shares[g])
        if not self.queues[group]:
            self.queues[group] = self.rng.permutation(len(self.groups[group])).tolist()
        return group, self.groups[group][self.queues[group].pop()]

    def rows(self, mixture, length):
        """Generator of closed rows. A row closes when the open ones no longer fit a document."""
        self.spent = dict.fromkeys(self.spent, 0.0)
        rows = []
        while True:
            group, document = self._next(mixture)
            for ids, kinds in pieces(document, length):
                self.spent[group] += len(ids)
                fitting = [r for r in rows if length - r.used >= len(ids)]
                if not fitting:
                    if len(rows) >= OPEN_ROWS:
                        fullest = max(range(len(rows)), key=lambda i: rows[i].used)
                        yield rows.pop(fullest).close()
                    rows.append(_Row(length, bool(self.rng.random() < mixture.joined)))
                    fitting = rows[-1:]
                max(fitting, key=lambda r: r.used).add(ids, kinds)

    def batches(self, mixture, length, rows_per_batch):
        """Generator of compact batches: (tokens, start, replay, kind) numpy arrays [B, N]."""
        source = self.rows(mixture, length)
        while True:
            rows = [next(source) for _ in range(rows_per_batch)]
            start = np.stack([r.start for r in rows])
            replay = start.copy()
            for row in replay:
                if self.rng.random() < mixture.replay:
                    row[:] = replay_bounds(row, self.rng, self.window)
            yield np.stack([r.tokens for r in rows]), start, replay, np.stack([r.kind for r in rows])


def held_out_batches(documents, length, rows_per_batch, window):
    """Compact batches that hold every document once, in order; the last one is filled with empty rows."""
    rows = [_Row(length, False)]
    for document in documents:
        for ids, kinds in pieces(document, length):
            if length - rows[-1].used < len(ids):
                rows.append(_Row(length, False))
            rows[-1].add(ids, kinds)
    while len(rows) % rows_per_batch:
        rows.append(_Row(length, False))
    rows = [r.close() for r in rows]
    for at in range(0, len(rows), rows_per_batch):
        some = rows[at : at + rows_per_batch]
        start = np.stack([r.start for r in some])
        yield np.stack([r.tokens for r in some]), start, start, np.stack([r.kind for r in some])


def to_batch(compact, prompt_weight, device):
    """Batch on the device; the loss of prompt tokens counts `prompt_weight`."""
    tokens, start, replay, kind = (torch.from_numpy(a.astype(np.int32)) for a in compact)
    if torch.device(device).type == "cuda":
        tokens, start, replay, kind = (t.pin_memory() for t in (tokens, start, replay, kind))
    tokens, start, replay, kind = (t.to(device, non_blocking=True).long() for t in (tokens, start, replay, kind))
    table = torch.tensor([0.0, prompt_weight, 1.0], device=device)
    return Batch(tokens, start, replay, tokens.roll(-1, dims=1), table[kind])


def _serve(groups, seed, window, tokens_per_batch, phases, current, queue):
    packer = Packer(groups, seed, window)
    while True:
        phase = current.value
        mixture, length = phases[phase]
        for compact in packer.batches(mixture, length, max(1, tokens_per_batch // length)):
            queue.put((phase, compact))
            if current.value != phase:
                break


class Loader:
    """Batches of the current phase, a few prepared ahead. Start it before the device is first used: it forks."""

    def __init__(self, groups, seed, window, tokens_per_batch, phases):
        context = multiprocessing.get_context("fork")
        self.current = context.Value("i", 0)
        self.queue = context.Queue(maxsize=6)
        arguments = (groups, seed, window, tokens_per_batch, phases, self.current, self.queue)
        self.process = context.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()

    def next(self, phase):
        """A compact batch of this phase; batches prepared for earlier ones are dropped."""
        self.current.value = phase
        while True:
            prepared, compact = self.queue.get(timeout=120)
            if prepared == phase:
                return compact

    def close(self):
        self.process.terminate()
        self.process.join()
