"""Plain sampling with the training forward: no cache, one full pass a token. For looks during training."""

import torch

from .fast_model import DOCUMENT_ALIGNMENT, Batch


def prompt_batch(prompts, length, device, pad=2):
    """Batch of one document a row, padded at its end, and the prompt lengths."""
    tokens = torch.full((len(prompts), length), pad)
    for row, prompt in zip(tokens, prompts):
        row[: len(prompt)] = torch.tensor(prompt)
    zero = torch.zeros_like(tokens)
    batch = Batch(tokens, zero, zero, zero, torch.ones(tokens.shape)).to(device)
    return batch, torch.tensor([len(p) for p in prompts], device=device)


@torch.no_grad()
def generate(model, values, prompts, new_tokens, temperature=0.0, seed=1, stop=1, block=64):
    """Token lists after each prompt, up to and including `stop`. Rows grow in steps of `block` positions."""
    device = values["embed.weight"].device
    generator = torch.Generator(device).manual_seed(seed)
    longest = max(len(p) for p in prompts) + new_tokens
    full, ends = prompt_batch(prompts, -(-longest // block) * block, device)
    begin, done = ends.clone(), torch.zeros(len(prompts), dtype=torch.bool, device=device)
    rows = torch.arange(len(prompts), device=device)
    for _ in range(new_tokens):
        length = -(-int(ends.max()) // block) * block
        view = Batch(*(t[:, :length] for t in vars(full).values()))
        x, a = model(view, values, want="final").final
        at = rows * length + ends - 1
        logits = model.f.head_logits(x[at], a[at], values["norm.weight"], values["head.weight"])
        if temperature > 0:
            p = torch.softmax(logits / temperature, dim=-1)
            token = torch.multinomial(p, 1, generator=generator).squeeze(1)
        else:
            token = logits.argmax(dim=-1)
        full.tokens[rows[~done], ends[~done]] = token[~done]
        ends += ~done
        done |= token == stop
        if bool(done.all()):
            break
    return [full.tokens[i, begin[i] : ends[i]].tolist() for i in range(len(prompts))]


def slots(prompts, new_tokens, length):
    """(row, begin) of each prompt when rows of `length` hold several side by side, first fit."""
    places, used = [], []
    for prompt in prompts:
        need = -(-(len(prompt) + new_tokens) // DOCUMENT_ALIGNMENT) * DOCUMENT_ALIGNMENT
        if need > length:
            raise ValueError("a prompt of %d tokens and %d new ones exceed rows of %d" % (len(prompt), new_tokens, length))
        row = next((r for r, u in enumerate(used) if length - u >= need), len(used))
        if row == len(used):
            used.append(0)
        places.append((row, used[row]))
        used[row] += need
    return places


@torch.no_grad()
def generate_packed(model, values, prompts, new_tokens, rows, length, taps=(), stop=1):
    """Greedy token lists after each prompt, as `generate`, in batches of one shape: what is compiled for it serves all.

    taps are passed on for the same reason; what they hold is not used.
    """
    device = values["embed.weight"].device
    places = slots(prompts, new_tokens, length)
    results = [None] * len(prompts)
    for first in range(0, max(row for row, _ in places) + 1, rows):
        chosen = [i for i, (row, _) in enumerate(places) if first <= row < first + rows]
        tokens = torch.full((rows, length), 2)
        start = torch.zeros(rows, length, dtype=torch.int64)
        for i in chosen:
            row, begin = places[i][0] - first, places[i][1]
            tokens[row, begin : begin + len(prompts[i])] = torch.tensor(prompts[i])
            start[row, begin:] = begin
        tokens, start = tokens.to(device), start.to(device)
        batch = Batch(tokens, start, start, tokens, torch.ones(tokens.shape, device=device))
        row = torch.tensor([places[i][0] - first for i in chosen], device=device)
        ends = torch.tensor([places[i][1] + len(prompts[i]) for i in chosen], device=device)
        last, done = ends + new_tokens, torch.zeros(len(chosen), dtype=torch.bool, device=device)
        for _ in range(new_tokens):
            x, a = model(batch, values, taps=taps, want="final").final
            at = row * length + ends - 1
            token = model.f.head_logits(x[at], a[at], values["norm.weight"], values["head.weight"]).argmax(dim=-1)
            live = ~done & (ends < last)
            tokens[row[live], ends[live]] = token[live]
            ends += live
            done |= token == stop
            if bool(done.all()):
                break
        for i, r, end in zip(chosen, row.tolist(), ends.tolist()):
            results[i] = tokens[r, places[i][1] + len(prompts[i]) : end].tolist()
    return results
