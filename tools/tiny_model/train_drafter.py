"""One round of drafter training on the frozen target of a state, then temperatures and figures on held-out prompts.

First on text of the corpus, then half of it on what the target itself writes, greedily, after beginnings of that text.

    python3 -m tools.tiny_model.train_drafter --state .train/state --data .train/part0 --held-out .train/heldout --out OUT
"""

import argparse
import os
import time

import numpy as np
import torch

from .batches import Loader, Mixture, Packer, load_groups, to_batch
from .documents import Document
from .blocks import exact_linear
from .draft_model import DraftModel
from .fast_model import Compiled, FastModel
from .generate import generate_packed, slots
from .measure_drafter import held_out_continuations, measure
from .optimizer import Optimizer
from .plans import WARMUP_STEPS
from .session import Clock, Log, Session, add_arguments
from .state import BackgroundSaver
from .train import Balancer

MIXTURE = Mixture({"stories": 0.35, "storybooks": 0.15, "prose": 0.1, "dialogue": 0.25, "tools": 0.1, "code-json": 0.05})
DECAY = 4.0  # weight exp(-(k - 1) / DECAY) of block position k
CROSS_ENTROPY, OVERLAP, CONFIDENCE = 0.4, 0.6, 1.0
BEHIND_OTHERS = 0.15  # weight of positions behind a token that the target would not have chosen: drafting never gets there
OWN_SHARES = {"stories": 0.5, "storybooks": 0.1, "dialogue": 0.3, "tools": 0.1}  # of the prompts that the target continues


def sample_anchors(weights, count, block):
    """(row, anchor) [R] each: positions whose next token the model has to write, none too close to the row's end."""
    score = torch.rand_like(weights).masked_fill(weights < 1.0, -1.0)
    score[:, weights.shape[1] - block :] = -1.0
    anchor = score.topk(count, dim=1).indices
    row = torch.arange(len(weights), device=weights.device).unsqueeze(1).expand_as(anchor)
    return row.flatten(), anchor.flatten()


class DrafterTrainer:
    def __init__(self, session, anchors):
        self.session, self.anchors = session, anchors
        self.target = FastModel(session.target, session.compiled, session.log.say)
        self.model = DraftModel(self.target, session.drafter)
        self.optimizer = Optimizer(session.drafter.named_parameters())
        self.balancer = Balancer(_Stages(session.drafter))
        with torch.no_grad():
            self.target_values = {k: v.detach() for k, v in self.target.values().items()}
        self.steps, self.tokens, self.sums = 0, 0, 0.0

    @staticmethod
    def greedy(final, head):
        return torch.cat([exact_linear(part, head).argmax(dim=-1) for part in final.split(16384)])

    def step(self, compact, rate):
        block, v0 = self.model.block, self.target_values
        batch = to_batch(compact, 0.0, self.session.device)
        with torch.no_grad():
            out = self.target(batch, v0, taps=self.session.drafter.targets, want="final")
            final = self.target.f.collapse_norm(*out.final, v0["norm.weight"]).view(*batch.tokens.shape, -1)
            row, anchor = sample_anchors(batch.weights, self.anchors, block)
            places = anchor.unsqueeze(1) + torch.arange(block, device=row.device)
            rows = row.unsqueeze(1)
            valid = (batch.weights[rows, places] > 0).float().cumprod(dim=1)
            wanted = final[rows, places].flatten(0, 1)
            best = self.greedy(wanted, v0["head.weight"]).view_as(valid)
            chosen = (best == batch.labels[rows, places]).float().cumprod(dim=1)
            chosen = torch.cat((torch.ones_like(chosen[:, :1]), chosen[:, :-1]), dim=1)
            weights = valid * torch.exp(-torch.arange(block, device=row.device) / DECAY)
            weights = weights * (BEHIND_OTHERS + (1 - BEHIND_OTHERS) * chosen)
            scale = 1 / weights.sum().clamp(min=1e-6)
        v = self.model.values()
        features = self.model.features(out.taps, v)
        blocks, loads = self.model(batch, features, v0, v, row, anchor)
        previous = torch.nn.functional.embedding(batch.tokens[rows, places].flatten(), self.model.last(v, "markov_head.embed.weight"))
        sums, overlap, match, _ = self.target.f.draft_losses(
            blocks.h.flatten(0, 1),
            previous,
            self.model.last(v, "norm.weight"),
            v0["head.weight"],
            self.model.last(v, "markov_head.head.weight"),
            self.model.last(v, "confidence_head.proj.weight"),
            wanted,
            best.flatten(),
            weights.flatten(),
        )
        cross, distance, confidence = sums * scale
        (CROSS_ENTROPY * cross + OVERLAP * distance + CONFIDENCE * confidence).backward()
        self.optimizer.step(rate * min(1.0, (self.steps + 1) / WARMUP_STEPS))
        self.optimizer.zero_grad()
        self.balancer.step(torch.stack(loads), min(rate, 1.0))
        self.steps += 1
        self.tokens += batch.tokens.numel()
        self._note(valid * chosen, overlap.view_as(valid), match.view_as(valid), (sums * scale).detach())

    @torch.no_grad()
    def _note(self, valid, overlap, match, losses):
        """valid: positions that drafting would reach with every draft before accepted."""
        count = valid.sum(dim=0).clamp(min=1)
        chain = (match * valid).cumprod(dim=1).sum(dim=0) / valid[:, 0].sum().clamp(min=1)
        parts = [losses, (overlap * valid).sum(dim=0) / count, (match * valid).sum(dim=0) / count, chain]
        self.sums = self.sums + torch.cat(parts)

    def report(self, since, rate):
        steps = max(since["steps"], 1)
        values = (self.sums / steps).tolist()
        k = self.model.block
        self.sums = 0.0
        speed = since["tokens"] / max(time.time() - since["time"], 1e-9)
        overlap, match, chain = (values[3 + i * k : 3 + (i + 1) * k] for i in range(3))
        self.session.log.record(step=self.steps, losses=values[:3], overlap=overlap, match=match, accepted=sum(chain), rate=rate)
        self.session.log.say(
            "step %5d  ce %.3f  |q-p| %.3f  conf %.3f  match %s  accepted %.2f  rate %.3f  %4.0fk tok/s"
            % (self.steps, *values[:3], " ".join("%.2f" % m for m in match), sum(chain), rate, speed / 1e3)
        )


def prompts_for(groups, count, rng):
    """Beginnings of training documents: of texts 16 to 64 tokens, of conversations all before the first answer."""
    prompts = []
    shares = {g: s for g, s in OWN_SHARES.items() if g in groups}
    for group, share in shares.items():
        documents = groups[group]
        for index in rng.permutation(len(documents))[: int(count * share / sum(shares.values()))]:
            document = documents[index]
            is_text = len(document.spans) == 2 and document.spans[0] == 1
            cut = int(rng.integers(16, 65)) if is_text else document.spans[0]
            if cut <= 160 and len(document.ids) >= cut:
                prompts.append(document.ids[:cut].tolist())
    return [prompts[i] for i in rng.permutation(len(prompts))]


def own_documents(trainer, groups, arguments, rows, length, log):
    """Documents whose answers the target wrote, as many as fit --own-seconds."""
    rng = np.random.default_rng(arguments.seed)
    room = length - 8 - arguments.new_tokens
    prompts = [p for p in prompts_for(groups, 16000, rng) if len(p) <= room]
    begin, documents, at = time.time(), [], 0
    while at < len(prompts) and (not documents or time.time() - begin < arguments.own_seconds):
        ahead = prompts[at : at + rows * length // arguments.new_tokens]
        at += len(ahead)
        some = [p for p, (row, _) in zip(ahead, slots(ahead, arguments.new_tokens, length)) if row < rows]
        texts = generate_packed(
            trainer.target, trainer.target_values, some, arguments.new_tokens, rows, length, trainer.session.drafter.targets
        )
        documents += [Document(np.array(p + t, dtype=np.uint16), [len(p), len(t)]) for p, t in zip(some, texts) if t]
    log.say("the target wrote %d continuations, %.2f M tokens" % (len(documents), sum(d.spans[1] for d in documents) / 1e6))
    return documents


class _Stages:
    def __init__(self, drafter):
        self.layers = drafter.mtp


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--anchors", type=int, default=96, help="blocks a row")
    parser.add_argument("--reserve", type=float, default=75, help="seconds kept for measuring and saving")
    parser.add_argument("--prompts", type=int, default=120, help="held-out prompts a group, half to fit, half to test")
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--own-seconds", type=float, default=60, help="time for text by the target itself")
    parser.add_argument("--own-at", type=float, default=0.3, help="share of the time after which it writes")
    parser.add_argument("--peak", type=float, default=1.0, help="learning rate at the start, relative")
    arguments = parser.parse_args()
    clock = Clock(arguments.minutes)
    log = Log(clock)
    torch.manual_seed(arguments.seed)
    session = Session(arguments, clock, log)
    groups = load_groups(arguments.data)
    length = min(1024, arguments.length or 1024)
    window = session.config["text_config"]["sliding_window"]
    loader = Loader(groups, arguments.seed + 77, window, arguments.tokens_per_batch, [(MIXTURE, length)])
    session.to_device()
    for parameter in session.target.parameters():
        parameter.requires_grad_(False)
    trainer = DrafterTrainer(session, min(arguments.anchors, length // 8))
    saver = BackgroundSaver(arguments.out, session.build)
    end = clock.seconds - arguments.reserve
    rows = max(1, arguments.tokens_per_batch // length)
    own = None
    since = {"time": time.time(), "tokens": 0, "steps": 0}
    while clock.elapsed() < end:
        progress = clock.elapsed() / end
        if own is None and progress >= arguments.own_at:
            documents = own_documents(trainer, groups, arguments, rows, length, log)
            own = Packer({"own": documents}, arguments.seed, window).batches(Mixture({"own": 1.0}), length, rows)
            continue
        rate = arguments.peak * (1.0 if progress < 0.4 else max(0.01, 1 - (progress - 0.4) / 0.6))
        trainer.step(next(own) if own and trainer.steps % 2 else loader.next(0), rate)
        since["steps"] += 1
        since["tokens"] += arguments.tokens_per_batch
        if trainer.steps == 1:
            log.say("first step done")
        if time.time() - since["time"] >= arguments.log_seconds:
            trainer.report(since, rate)
            since = {"time": time.time(), "tokens": 0, "steps": 0}
    loader.close()
    session.counters["rounds"].append({"plan": "drafter", "steps": trainer.steps, "tokens": trainer.tokens})
    saver.save(session.counters, session.target, session.drafter)
    plain = FastModel(session.target, Compiled(False), log.say)
    draft = DraftModel(plain, session.drafter)
    with torch.no_grad():
        values = {k: v.detach() for k, v in draft.values().items()}
        held_out = load_groups([arguments.held_out], ("stories", "storybooks", "dialogue", "tools"))
        continuations = held_out_continuations(
            trainer.target, trainer.target_values, held_out, arguments.prompts, arguments.new_tokens, rows, length, session.drafter.targets
        )
        result, records = measure(draft, trainer.target_values, values, continuations)
    os.makedirs(arguments.out, exist_ok=True)
    with open(os.path.join(arguments.out, "records.npz"), "wb") as file:
        np.savez_compressed(file, **{"%s_%s" % (g, n): a for g, r in records.items() for n, a in zip(("z", "accepted", "rounds"), r)})
    for group, values in result["groups"].items():
        log.say(
            "%s: accepted %.2f a round (%d rounds), ece %s"
            % (group, values["mean_accepted_per_round"], values["rounds"], " ".join("%.3f" % p["ece_after"] for p in values["positions"]))
        )
    log.say("temperatures " + " ".join("%.3f" % t for t in result["temperatures"]))
    session.counters["dspark"] = result
    session.write_report(counters=session.counters, drafter=result)
    saver.save(session.counters, session.target, session.drafter)
    saver.wait()
    log.say("state written to %s" % arguments.out)


if __name__ == "__main__":
    main()
