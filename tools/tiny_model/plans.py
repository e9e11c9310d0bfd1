"""What a round of training does with its time: phases with mixtures, context lengths and learning rates."""

from dataclasses import dataclass

from .batches import Mixture

# Shares of tokens. They follow what each group holds that is different (millions of tokens: stories 2.9, storybooks 5.3,
# prose 7.5, dialogue 8.8, tools 9.6, code 2.1), since a text read too often is learnt by heart. Round 1 ran with START.
START = {"stories": 0.28, "storybooks": 0.22, "prose": 0.16, "dialogue": 0.22, "tools": 0.07, "code-json": 0.05}
LANGUAGE = {"stories": 0.06, "storybooks": 0.19, "prose": 0.26, "dialogue": 0.25, "tools": 0.17, "code-json": 0.07}
CHAT = {"stories": 0.08, "storybooks": 0.11, "prose": 0.15, "dialogue": 0.38, "tools": 0.23, "code-json": 0.05}


@dataclass(frozen=True)
class Phase:
    until: float  # share of the round's time at which it ends
    mixture: Mixture
    length: int = 1024
    sparse: bool = True  # index selection; otherwise every visible row is read
    index_queries: int = 32  # sampled queries a row that train the indexer; 0 for none
    prompt_weight: float = 0.3
    rate: tuple = (1.0, 1.0)  # learning rate at the phase's start and end, relative to the optimiser's table
    dropout: tuple = (0.0, 0.0)  # of sublayer outputs, and of Engram rows


REGULAR = (0.1, 0.1)

PLANS = {
    # From nothing: dense attention first, then an indexer that has something to follow.
    "start": (
        Phase(0.15, Mixture(START), sparse=False, index_queries=0),
        Phase(0.45, Mixture(START), sparse=False),
        Phase(1.0, Mixture(START)),
    ),
    # All that follows, in one run: more text, longer contexts with replay, then mostly chat while the rate falls to zero.
    "finish": (
        Phase(0.36, Mixture(LANGUAGE), dropout=REGULAR),
        Phase(0.58, Mixture(LANGUAGE, replay=0.5, joined=0.3), length=2048, rate=(1.0, 0.7), dropout=REGULAR),
        Phase(1.0, Mixture(CHAT, replay=0.5, joined=0.1), length=2048, prompt_weight=0.1, rate=(0.7, 0.0), dropout=REGULAR),
    ),
    # A last polish of a finished model at a low rate, with some rows of 4096.
    "polish": (
        Phase(0.25, Mixture(CHAT, replay=0.5, joined=0.5), length=4096, prompt_weight=0.1, rate=(0.15, 0.15), dropout=REGULAR),
        Phase(1.0, Mixture(CHAT, replay=0.5, joined=0.1), length=2048, prompt_weight=0.1, rate=(0.3, 0.01), dropout=REGULAR),
    ),
}

WARMUP_STEPS = 100


def rate_at(phases, index, progress):
    begin = phases[index - 1].until if index else 0.0
    first, last = phases[index].rate
    share = (progress - begin) / max(phases[index].until - begin, 1e-9)
    return first + (last - first) * min(max(share, 0.0), 1.0)


def phase_at(phases, progress):
    return next((i for i, p in enumerate(phases) if progress < p.until), len(phases) - 1)


def shortened(phases, length):
    """The same plan with rows of at most `length` tokens: for tests."""
    from dataclasses import replace

    return tuple(replace(p, length=min(p.length, length), index_queries=min(p.index_queries, 8)) for p in phases)


def tokens_by_group(phases, phase_tokens, groups):
    """Million tokens that phases of the given token counts drew from each group."""
    spent = dict.fromkeys(groups, 0.0)
    for phase, tokens in zip(phases, phase_tokens):
        shares = {g: phase.mixture.shares.get(g, 0.0) for g in groups}
        for group in groups:
            spent[group] += tokens * shares[group] / sum(shares.values()) / 1e6
    return spent
