"""What a round of training does with its time: phases with mixtures, context lengths and learning rates."""

from dataclasses import dataclass

from .batches import Mixture

# Shares of tokens. Tool conversations repeat their long system prompts, so they get less than they hold.
LANGUAGE = {"stories": 0.28, "storybooks": 0.22, "prose": 0.16, "dialogue": 0.22, "tools": 0.07, "code-json": 0.05}
CHAT = {"stories": 0.28, "storybooks": 0.10, "prose": 0.07, "dialogue": 0.38, "tools": 0.12, "code-json": 0.05}


@dataclass(frozen=True)
class Phase:
    until: float  # share of the round's time at which it ends
    mixture: Mixture
    length: int = 1024
    sparse: bool = True  # index selection; otherwise every visible row is read
    index_queries: int = 32  # sampled queries a row that train the indexer; 0 for none
    prompt_weight: float = 0.3
    rate: tuple = (1.0, 1.0)  # learning rate at the phase's start and end, relative to the optimiser's table


PLANS = {
    # From nothing: dense attention first, then an indexer that has something to follow.
    "start": (
        Phase(0.15, Mixture(LANGUAGE), sparse=False, index_queries=0),
        Phase(0.45, Mixture(LANGUAGE), sparse=False),
        Phase(1.0, Mixture(LANGUAGE)),
    ),
    # More of the same, for as many rounds as there is time for.
    "continue": (Phase(1.0, Mixture(LANGUAGE)),),
    # Longer contexts, replay, then mostly chat while the rate falls.
    "finish": (
        Phase(0.35, Mixture(LANGUAGE)),
        Phase(0.60, Mixture(LANGUAGE, replay=0.5, joined=0.3), length=2048, rate=(1.0, 0.6)),
        Phase(1.0, Mixture(CHAT, replay=0.5, joined=0.1), length=2048, prompt_weight=0.1, rate=(0.6, 0.02)),
    ),
    # A last polish of a finished model at a low rate, with some rows of 4096.
    "polish": (
        Phase(0.25, Mixture(CHAT, replay=0.5, joined=0.5), length=4096, prompt_weight=0.1, rate=(0.15, 0.15)),
        Phase(1.0, Mixture(CHAT, replay=0.5, joined=0.1), length=2048, prompt_weight=0.1, rate=(0.3, 0.01)),
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
