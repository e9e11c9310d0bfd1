"""Drafting on held-out prompts: greedy continuations of the target, a block at every position of them."""

import numpy as np
import torch

from .calibration import summary
from .generate import generate_packed, prompt_batch

PROMPT_TOKENS = 40


def prompts_of(documents, count):
    """Beginnings of texts, or conversations up to the first answer."""
    prompts = []
    for document in documents:
        ids = document.ids.tolist()
        is_text = len(document.spans) == 2 and document.spans[0] == 1
        cut = PROMPT_TOKENS if is_text else document.spans[0]
        if cut <= 160 and len(ids) >= cut:
            prompts.append(ids[:cut])
        if len(prompts) == count:
            break
    return prompts


@torch.no_grad()
def record(draft_model, target_values, draft_values, prompts, texts):
    """(z [N, K], accepted [N], accepted per round) of all complete blocks behind the target's greedy continuations.

    Blocks that the end of a continuation cuts are left out. Rounds jump from anchor to anchor as decoding does.
    """
    model, k = draft_model.model, draft_model.block
    device = target_values["embed.weight"].device
    sequences = [p + t for p, t in zip(prompts, texts)]
    length = -(-max(map(len, sequences)) // 64) * 64
    batch, _ = prompt_batch(sequences, length, device)
    taps = model(batch, target_values, taps=draft_model.drafter.targets, want="final").taps
    features = draft_model.features(taps, draft_values)
    places = [(i, t) for i, p in enumerate(prompts) for t in range(len(p), len(sequences[i]) - k)]
    if not places:
        return np.zeros((0, k)), np.zeros(0, dtype=int), np.zeros(0, dtype=int)
    z, accepted = [], []
    for at in range(0, len(places), 8192):
        row, anchor = (torch.tensor(c, device=device) for c in zip(*places[at : at + 8192]))
        blocks, _ = draft_model(batch, features, target_values, draft_values, row, anchor)
        drafts, logits = draft_model.greedy(blocks, batch.tokens[row, anchor], target_values, draft_values)
        truth = batch.tokens[row.unsqueeze(1), anchor.unsqueeze(1) + torch.arange(1, k + 1, device=device)]
        accepted.append((drafts == truth).long().cumprod(dim=1).sum(dim=1).cpu().numpy())
        z.append(logits.float().cpu().numpy())
    z, accepted = np.concatenate(z), np.concatenate(accepted)
    return z, accepted, _rounds(places, accepted)


def _rounds(places, accepted):
    """Accepted drafts of the anchors that decoding would really visit."""
    visited, expected = [], {}
    for (row, position), a in zip(places, accepted):
        if position >= expected.get(row, position):
            visited.append(a)
            expected[row] = position + int(a) + 1
    return np.array(visited, dtype=int)


def measure(draft_model, target_values, draft_values, continuations):
    """(report by group, records by group); continuations: {group: (prompts, the target's greedy texts)}.

    The records "fit" hold the even prompts of all groups, the others the odd ones.
    """
    fits, tests = [], {}
    for group, (prompts, texts) in continuations.items():
        if len(prompts) < 2:
            continue
        fits.append(record(draft_model, target_values, draft_values, prompts[0::2], texts[0::2]))
        tests[group] = record(draft_model, target_values, draft_values, prompts[1::2], texts[1::2])
    records = {"fit": tuple(np.concatenate([f[i] for f in fits]) for i in (0, 1)), **tests}
    return summary(records), records


def held_out_continuations(model, values, groups, prompts_per_group, new_tokens, rows, length, taps):
    """{group: (prompts, greedy texts)}, generated together."""
    prompts = {g: prompts_of(documents, prompts_per_group) for g, documents in groups.items()}
    texts = iter(generate_packed(model, values, sum(prompts.values(), []), new_tokens, rows, length, taps))
    return {g: (some, [next(texts) for _ in some]) for g, some in prompts.items()}
