"""Plain sampling with the training forward: no cache, one full pass a token. For looks during training."""

import torch

from .fast_model import Batch


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
