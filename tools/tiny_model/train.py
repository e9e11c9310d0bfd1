"""One round of training: reads a state and packed documents, trains for the given minutes, writes the next state.

    python3 -m tools.tiny_model.train --plan start --data .train/part0 .train/part1 --held-out .train/heldout --out OUT
    python3 -m tools.tiny_model.train --plan finish --state .train/state --data ... --held-out ... --out OUT

With several GPUs: torchrun --nproc-per-node N -m tools.tiny_model.train ... (batches are split among them).
"""

import argparse
import math
import os
import time

import torch
import torch.distributed as dist

from .batches import Loader, load_groups, to_batch
from .documents import GROUPS
from .fast_model import FastModel
from .generate import generate
from .measure import bits_per_byte, line
from .optimizer import Optimizer
from .plans import PLANS, WARMUP_STEPS, phase_at, rate_at, shortened, tokens_by_group
from .session import Clock, Log, Session, add_arguments
from .state import BackgroundSaver

BIAS_RATE = 0.002  # step of the selection bias per optimiser step, towards equal load
SNAPSHOT_STEPS = 300


class Balancer:
    """Moves each router's selection bias against its experts' load, outside the gradient."""

    def __init__(self, model):
        self.biases = [layer.ffn.gate.bias for layer in model.layers]
        self.load = [torch.zeros_like(b) for b in self.biases]  # since the last log line

    @torch.no_grad()
    def step(self, load, scale):
        for bias, kept, now in zip(self.biases, self.load, load):
            kept += now
            bias += BIAS_RATE * scale * torch.sign(now.mean() - now)
            bias -= bias.mean()

    def peaks(self):
        """Largest over mean load of each layer since the last call."""
        peaks = [(load.max() / load.mean().clamp(min=1e-9)).item() for load in self.load]
        for load in self.load:
            load.zero_()
        return peaks


class Trainer:
    def __init__(self, session, phases):
        self.session, self.phases, self.log = session, phases, session.log
        self.model = FastModel(session.target, session.compiled, session.log.say)
        self.optimizer = Optimizer(session.target.named_parameters())
        self.balancer = Balancer(session.target)
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        self.steps, self.tokens = 0, 0
        self.phase_tokens = [0] * len(phases)
        self.snapshot = None
        self.sums = None
        self.micro = 1

    def step(self, compact, phase, rate):
        """One optimiser step on a compact batch, in `micro` slices."""
        count = max(1, int((compact[3] == 2).sum()) + phase.prompt_weight * int((compact[3] == 1).sum()))
        load = None
        for part in _slices(compact, self.micro):
            batch = to_batch(part, phase.prompt_weight, self.session.device)
            out = self.model(
                batch, self.model.values(), sparse=phase.sparse, index_queries=phase.index_queries, dropout=phase.dropout
            )
            loss = out.loss / count
            total = loss if out.index_loss is None else loss + out.index_loss / self.micro
            total.backward()
            now = torch.stack(out.load)
            load = now if load is None else load + now
            self._note(batch, out, loss)
        if self.world > 1:
            self._share_gradients(load)
        torch.nn.utils.clip_grad_norm_(self.optimizer.parameters, 5.0, foreach=True)
        self.optimizer.step(rate * min(1.0, (self.steps + 1) / WARMUP_STEPS))
        self.optimizer.zero_grad()
        self.balancer.step(load, min(rate, 1.0))
        self.steps += 1
        self.tokens += compact[0].size * self.world

    def first_step(self, compact, phase, rate):
        """A step that, where the machine refuses, gives up compiling, then halves what runs at a time."""
        while True:
            try:
                return self.step(compact, phase, rate)
            except torch.OutOfMemoryError:
                if self.micro >= len(compact[0]):
                    raise
                self.micro *= 2
                self.log.say("out of memory: batches run in %d slices" % self.micro)
            except Exception as problem:
                if not self.session.compiled.enabled:
                    raise
                self.log.say("compiled step failed, going on without: %s" % (str(problem).splitlines() or [repr(problem)])[0])
                self.session.compiled.enabled = False
                self.model.attend.disable()
            self.sums = None
            self.optimizer.zero_grad()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _share_gradients(self, load):
        gradients = [p.grad for p in self.optimizer.parameters if p.grad is not None]
        flat = torch.cat([g.flatten() for g in gradients])
        dist.all_reduce(flat)
        flat /= self.world
        at = 0
        for g in gradients:
            g.copy_(flat[at : at + g.numel()].view_as(g))
            at += g.numel()
        dist.all_reduce(load)

    @torch.no_grad()
    def _note(self, batch, out, loss):
        known = batch.weights > 0
        nats = (out.losses * known).sum()
        size = (self.session.bytes_of_token[batch.labels] * known).sum()
        index = out.index_loss.detach() if out.index_loss is not None else torch.zeros_like(size)
        values = torch.stack([loss.detach() * self.micro, nats, size, index, torch.ones_like(size)])
        self.sums = values if self.sums is None else self.sums + values

    def healthy(self):
        """False, and everything set back to the last snapshot, if the loss has become NaN."""
        ok = bool(torch.isfinite(self.sums).all()) if self.sums is not None else True
        if not ok and self.snapshot is not None:
            self.log.say("loss is not finite: back to the snapshot")
            self.session.target.load_state_dict(self.snapshot)
            self.optimizer.forget()
            self.sums = None
        elif ok and self.steps % SNAPSHOT_STEPS == 0:
            self.snapshot = {k: v.detach().clone() for k, v in self.session.target.state_dict().items()}
        return ok

    def report(self, phase_index, rate, since):
        loss, nats, size, index, steps = (s / self.sums[4] for s in self.sums) if self.sums is not None else [torch.tensor(math.nan)] * 5
        peaks = self.balancer.peaks()
        speed = since["tokens"] / max(time.time() - since["time"], 1e-9)
        values = {
            "phase": phase_index,
            "step": self.steps,
            "tokens": self.tokens,
            "loss": loss.item(),
            "bits_per_byte": (nats / size / math.log(2)).item(),
            "index_loss": index.item(),
            "rate": rate,
            "tokens_per_second": speed,
            "load_peaks": [round(p, 2) for p in peaks],
        }
        memory = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
        self.log.record(**values)
        self.log.say(
            "phase %d step %5d  %6.1f M tokens  loss %.4f  bpb %.4f  index %.3f  rate %.3f  load %.2f  %4.0fk tok/s  %.0f GiB"
            % (phase_index, self.steps, self.tokens / 1e6, values["loss"], values["bits_per_byte"], values["index_loss"], rate, max(peaks), speed / 1e3, memory)
        )
        self.sums = None


def _slices(compact, count):
    rows = -(-len(compact[0]) // count)
    for at in range(0, len(compact[0]), rows):
        yield tuple(a[at : at + rows] for a in compact)


class Watch:
    """Looks at half of the held-out documents now and then and remembers the parameters that did best there."""

    def __init__(self, session, trainer, enabled):
        held_out = load_groups([session.arguments.held_out], tuple(GROUPS)) if enabled else {}
        limit = 4 if session.arguments.size == "toy" else None
        self.groups = {g: documents[:limit:2] for g, documents in held_out.items()}
        self.session, self.trainer = session, trainer
        self.last, self.best, self.best_state = time.time(), math.inf, None

    def due(self):
        return bool(self.groups) and time.time() - self.last >= self.session.arguments.watch_seconds

    def look(self, phase):
        self.last = time.time()
        session, model = self.session, self.trainer.model
        rows = max(1, session.arguments.tokens_per_batch // phase.length)
        measured = bits_per_byte(model, model.values(), self.groups, session.bytes_of_token, phase.length, rows)
        mean = sum(measured[g]["bits_per_byte"] for g in self.groups) / len(self.groups)
        session.log.record(step=self.trainer.steps, watched={g: r["bits_per_byte"] for g, r in measured.items()}, mean=mean)
        session.log.say("watched: mean %.4f  %s" % (mean, line(measured)))
        if mean < self.best:
            self.best = mean
            self.best_state = {k: v.detach().clone() for k, v in session.target.state_dict().items()}

    def settle(self):
        """The best parameters, where the last ones are worse by more than the measure's own noise."""
        if self.best_state is None:
            return
        best = self.best
        self.look(self.trainer.phases[-1])
        now = self.session.log.records[-1]["mean"]
        if now > best + 0.002:
            self.session.log.say("the last parameters are worse than earlier ones (%.4f, %.4f): those are kept" % (now, best))
            self.session.target.load_state_dict(self.best_state)


def train(session, trainer, loader, saver, watch, reserve, is_first):
    """Steps until the clock leaves only `reserve` seconds; saves now and then."""
    clock, arguments = session.clock, session.arguments
    end = clock.seconds - reserve
    since = {"time": time.time(), "tokens": 0}
    saved, started = time.time(), set()
    while True:
        progress = clock.elapsed() / max(end, 1e-9)
        if trainer.world > 1:
            progress = _agreed(progress, session.device)
        if progress >= 1.0:
            return
        index = phase_at(trainer.phases, progress)
        phase = trainer.phases[index]
        rate = rate_at(trainer.phases, index, progress)
        before = trainer.tokens
        run = trainer.first_step if index not in started else trainer.step
        started.add(index)
        run(loader.next(index), phase, rate)
        since["tokens"] += trainer.tokens - before
        trainer.phase_tokens[index] += trainer.tokens - before
        if trainer.steps == 1:
            session.log.say("first step done")
        if trainer.steps % SNAPSHOT_STEPS == 0 or time.time() - since["time"] >= arguments.log_seconds:
            trainer.healthy()
        if time.time() - since["time"] >= arguments.log_seconds:
            trainer.report(index, rate, since)
            since = {"time": time.time(), "tokens": 0}
        if is_first and phase.sparse and watch.due():
            watch.look(phase)
        if is_first and time.time() - saved >= arguments.save_seconds:
            saved = time.time()
            saver.save(session.counters, session.target, session.drafter)


def _agreed(progress, device):
    """Rank 0's clock decides, so that all ranks take the same number of steps."""
    value = torch.tensor([progress], device=device, dtype=torch.float64)
    dist.broadcast(value, 0)
    return value.item()


def samples(session, encode, decode, prompts, new_tokens):
    """[(prompt, continuation)] at temperature 0.7, by the uncompiled forward."""
    from .fast_model import Compiled

    model = FastModel(session.target, Compiled(False), session.log.say)
    with torch.no_grad():
        texts = generate(model, model.values(), encode(prompts), new_tokens, temperature=0.7, seed=session.arguments.seed)
    return list(zip(prompts, (decode(t) for t in texts)))


SAMPLE_PROMPTS = (
    "<｜begin▁of▁sentence｜>Once upon a time, there was a little girl named Lily. She",
    "<｜begin▁of▁sentence｜>The old dog sat by the door and waited.",
    "<｜begin▁of▁sentence｜><｜User｜>What is the capital of France?<｜Assistant｜></think>",
    "<｜begin▁of▁sentence｜><｜User｜>Tell me a short story about a cat and a ball.<｜Assistant｜></think>",
    "<｜begin▁of▁sentence｜><｜User｜>Anna has 3 apples and gets 4 more. How many apples does Anna have now?<｜Assistant｜></think>",
    "<｜begin▁of▁sentence｜><｜User｜>What does the word \"brave\" mean?<｜Assistant｜></think>",
)


def variants(model):
    """(name, weights, parts left out) of the held-out table. The last row shows what the storage formats cost."""
    values = model.values()
    yield "as stored", values, ()
    yield "without Engram", values, ("engram",)
    yield "without the candidate filter", values, ("candidates",)
    masters = {n: p if values[n].dtype == p.dtype else p.to(values[n].dtype) for n, p in model.target.named_parameters()}
    yield "with bf16 master weights", masters, ()


def finish(session, trainer, saver, plan, spent):
    """Held-out figures, samples, the state and the report."""
    arguments, log = session.arguments, session.log
    length = trainer.phases[-1].length if trainer.phases[-1].length <= 2048 else 2048
    saver.wait()
    session.counters["tokens"] += trainer.tokens
    session.counters["rounds"].append(
        {"plan": plan, "steps": trainer.steps, "tokens": trainer.tokens, "million_tokens_by_group": spent}
    )
    saver.save(session.counters, session.target, session.drafter)
    held_out = load_groups([arguments.held_out], tuple(GROUPS))
    rows = max(1, arguments.tokens_per_batch // length)
    limit = 4 if arguments.size == "toy" else None
    measured = {}
    for name, values, off in variants(trainer.model):
        measured[name] = bits_per_byte(trainer.model, values, held_out, session.bytes_of_token, length, rows, off, limit)
        log.say("held out, %s: %s" % (name, line(measured[name])))
        session.write_report(counters=session.counters, held_out=measured)
    try:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(arguments.tokenizer)
        new_tokens = 8 if arguments.size == "toy" else 90
        made = samples(
            session,
            lambda texts: [e.ids for e in tokenizer.encode_batch(list(texts), add_special_tokens=False)],
            lambda ids: tokenizer.decode(ids, skip_special_tokens=False),
            SAMPLE_PROMPTS,
            new_tokens,
        )
        for prompt, text in made:
            log.say("%s » %s" % (prompt, text))
        session.write_report(counters=session.counters, held_out=measured, samples=made)
    except Exception as problem:
        log.say("no samples: %s" % problem)
    saver.wait()
    log.say("state written to %s" % arguments.out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--plan", required=True, choices=sorted(PLANS))
    parser.add_argument("--reserve", type=float, default=45, help="seconds kept for measuring and saving")
    parser.add_argument("--watch-seconds", type=float, default=45, help="between looks at held-out documents")
    parser.add_argument("--save-seconds", type=float, default=200)
    arguments = parser.parse_args()
    clock = Clock(arguments.minutes)
    rank = int(os.environ.get("RANK", 0))
    log = Log(clock, quiet=rank > 0)
    torch.manual_seed(arguments.seed + rank)
    phases = shortened(PLANS[arguments.plan], arguments.length) if arguments.length else PLANS[arguments.plan]
    session = Session(arguments, clock, log)
    groups = load_groups(arguments.data)
    held = {g: sum(len(d.ids) for d in docs) / 1e6 for g, docs in groups.items()}
    log.say("documents: " + ", ".join("%s %d (%.2f M tokens)" % (g, len(d), held[g]) for g, d in groups.items()))
    loader_phases = [(p.mixture, p.length) for p in phases]
    window = session.config["text_config"]["sliding_window"]
    seed = arguments.seed + 1000 * rank + 7 * session.counters["tokens"]
    loader = Loader(groups, seed, window, arguments.tokens_per_batch, loader_phases)
    if "WORLD_SIZE" in os.environ and int(os.environ["WORLD_SIZE"]) > 1:
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    session.to_device()
    trainer = Trainer(session, phases)
    saver = BackgroundSaver(arguments.out, session.build)
    watch = Watch(session, trainer, rank == 0)
    train(session, trainer, loader, saver, watch, arguments.reserve, rank == 0)
    loader.close()
    if rank == 0:
        spent = tokens_by_group(phases, trainer.phase_tokens, groups)
        log.say("passes: " + ", ".join("%s %.1f" % (g, spent[g] / held[g]) for g in groups))
        watch.settle()
        finish(session, trainer, saver, arguments.plan, spent)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
