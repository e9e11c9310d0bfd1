"""Set-up that training rounds share: configuration, models, device, compiler, clock and log."""

import json
import os
import time

import torch

from reference.init import initialize

from . import hyper
from .config import SIZES, build_config
from .export import build_models
from .fast_model import Compiled
from .state import load_state
from .vocabulary import compressed_ids, read_tokenizer, token_bytes


def add_arguments(parser):
    parser.add_argument("--tokenizer", default="models/tiny/tokenizer.json")
    parser.add_argument("--data", nargs="+", required=True, help="folders of packed training documents")
    parser.add_argument("--held-out", required=True, help="folder of packed held-out documents")
    parser.add_argument("--out", required=True, help="folder for the state and the report")
    parser.add_argument("--state", help="folder of the state to start from")
    parser.add_argument("--minutes", type=float, default=8.5, help="for everything, from start-up to the last file")
    parser.add_argument("--size", default="tiny", choices=sorted(SIZES))
    parser.add_argument("--tokens-per-batch", type=int, default=65536)
    parser.add_argument("--length", type=int, help="upper bound on row lengths, for tests")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-seconds", type=float, default=10)


class Clock:
    def __init__(self, minutes):
        self.begin, self.seconds = time.time(), 60 * minutes

    def elapsed(self):
        return time.time() - self.begin


class Log:
    """Prints lines and keeps records for the report."""

    def __init__(self, clock, quiet=False):
        self.clock, self.quiet, self.records = clock, quiet, []

    def say(self, text):
        if not self.quiet:
            print("[%6.1f s] %s" % (self.clock.elapsed(), text), flush=True)

    def record(self, **values):
        self.records.append({"seconds": round(self.clock.elapsed(), 1), **values})


class Session:
    def __init__(self, arguments, clock, log):
        self.arguments, self.clock, self.log = arguments, clock, log
        tokenizer = read_tokenizer(arguments.tokenizer)
        self.config = build_config(SIZES[arguments.size], tokenizer)
        self.token_map = compressed_ids(tokenizer)
        self.bytes_of_token = torch.tensor([len(b) for b in token_bytes(tokenizer)], dtype=torch.float32)
        added = [t["id"] for t in tokenizer["added_tokens"]]
        self.bytes_of_token[added] = 0.0  # control tokens cost bits but stand for no text
        self.target, self.drafter = self.build()
        if arguments.state:
            self.counters = load_state(arguments.state, self.target, self.drafter)
        else:
            self.counters = {}
            start_parameters(self.target, self.drafter, arguments.seed)
        self.counters.setdefault("tokens", 0)
        self.counters.setdefault("rounds", [])

    def build(self):
        return build_models(self.config, self.token_map)

    def to_device(self):
        """Picks the device; called after loader processes were forked."""
        use_cuda = torch.cuda.is_available()
        self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if use_cuda else torch.device("cpu")
        if use_cuda:
            torch.cuda.set_device(self.device)
        torch.backends.cuda.matmul.allow_tf32 = True
        torch._dynamo.config.cache_size_limit = 64
        self.target.to(self.device)
        self.drafter.to(self.device)
        self.bytes_of_token = self.bytes_of_token.to(self.device)
        enabled = use_cuda and not self.arguments.no_compile
        self.compiled = Compiled(enabled, self.log.say)
        if use_cuda:
            self._check_kernels()
            self.log.say("%s, compile %s" % (torch.cuda.get_device_name(), "on" if enabled else "off"))

    def _check_kernels(self):
        """Compares the hand-written operators with plain PyTorch once; on any doubt the plain ones run."""
        for name, switch, build in (
            ("stream kernels", hyper.use_triton, _streams_example),
            ("wide products", hyper.use_wide_output, _product_example),
        ):
            try:
                results = []
                for enabled in (True, False):
                    switch(enabled)
                    function, inputs = build(self.device)
                    inputs = [t.requires_grad_() for t in inputs]
                    out = function(*inputs)
                    gradients = torch.autograd.grad(out.float().square().sum(), inputs)
                    results.append([out.detach().float()] + [g.float() for g in gradients])
                error = max(((f - p).norm() / p.norm()).item() for f, p in zip(*results))
                switch(error < 0.02)
                self.log.say("%s: largest relative error %.1e" % (name, error))
            except Exception as problem:
                switch(False)
                self.log.say("%s failed, plain PyTorch instead: %s" % (name, (str(problem).splitlines() or [""])[0]))

    def write_report(self, **values):
        os.makedirs(self.arguments.out, exist_ok=True)
        with open(os.path.join(self.arguments.out, "report.json"), "w") as file:
            json.dump({**values, "log": self.log.records}, file, indent=1)
            file.write("\n")


def _streams_example(device):
    generator = torch.Generator(device).manual_seed(1)
    raw = torch.randn(257, 16, device=device, generator=generator)
    x = torch.randn(257, 4, 320, device=device, generator=generator).to(torch.bfloat16)
    y, c = x.flip(0)[:, 0].contiguous(), torch.rand(257, 4, device=device, generator=generator)
    return (lambda raw, x, y, c: hyper.spread(x, y, c, hyper.sinkhorn(raw))), [raw, x, y, c]


def _product_example(device):
    generator = torch.Generator(device).manual_seed(1)
    x = torch.randn(512, 1280, device=device, generator=generator).to(torch.bfloat16)
    return hyper.wide_product, [x, torch.randn(24, 1280, device=device, generator=generator) / 36]


def start_parameters(target, drafter, seed):
    """Random start: outputs of sublayers small, streams told apart from the first step on."""
    generator = torch.Generator().manual_seed(seed)
    initialize(target, generator, "train")
    initialize(drafter, generator, "train")
    with torch.no_grad():
        target.head.weight.mul_(0.3)
        for name, parameter in [*target.named_parameters(), *drafter.named_parameters()]:
            if name.endswith(("wo_b.weight", "experts.w2", "shared_experts.w2.weight")):
                parameter.mul_(0.4)
            if name.endswith("_base"):
                sublayer = 2 * int(name.split(".")[1]) + ("ffn" in name)
                parameter[:4] -= 0.5
                parameter[sublayer % 4] += 2.0
            if name.endswith("markov_head.head.weight"):
                parameter.mul_(0.1)
            if name.endswith("confidence_head.proj.weight"):
                parameter.mul_(0.1)
