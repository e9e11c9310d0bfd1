"""Training state between rounds: a checkpoint in the released layout plus state.json with counters and history.

The state is what would be shipped: masters restart from their stored values and momentum from zero. It stays small
enough to travel, and loading it gives the same function as before, bit for bit.
"""

import json
import os
import threading

import torch

from reference.checkpoint import Checkpoint, encode_parameters, stored_parameters

from .export import SHARD_BYTES, write_shards
from .hyper import on_wide_grid

FILE = "state.json"


def load_state(directory, *models):
    """Fills the models' parameters; returns the counters."""
    checkpoint = Checkpoint(directory)
    with torch.no_grad():
        for model in models:
            for parameter, name, expert, weight_format in stored_parameters(model):
                target = parameter if expert is None else parameter[expert]
                target.copy_(checkpoint.values(name, weight_format))
    path = os.path.join(directory, FILE)
    if not os.path.exists(path):
        return {}
    with open(path) as file:
        return json.load(file)


def settle(*models):
    """Puts parameters whose training form is coarser than F32 onto that form's values; images get the text bias."""
    with torch.no_grad():
        for model in models:
            for name, parameter in model.named_parameters():
                if name.endswith(("hc_attn_fn", "hc_ffn_fn")):
                    parameter.copy_(on_wide_grid(parameter))
                if name.endswith("gate.bias_vl"):
                    parameter.copy_(model.get_parameter(name[: -len("_vl")]))


def save_state(directory, counters, *models):
    """Writes beside the old files and swaps at the end, so that a copy taken meanwhile is one state or the other."""
    fresh = os.path.join(directory, ".writing")
    os.makedirs(fresh, exist_ok=True)
    tensors = {}
    for model in models:
        tensors.update(encode_parameters(model))
    write_shards(fresh, tensors, SHARD_BYTES)
    with open(os.path.join(fresh, FILE), "w") as file:
        json.dump(counters, file, indent=1)
        file.write("\n")
    for name in os.listdir(fresh):
        os.replace(os.path.join(fresh, name), os.path.join(directory, name))
    os.rmdir(fresh)


class BackgroundSaver:
    """Saves copies made at the call, so that training goes on meanwhile."""

    def __init__(self, directory, build):
        """build() returns fresh CPU models of the same structure."""
        self.directory, self.build, self._thread = directory, build, None

    def save(self, counters, *models):
        self.wait()
        copies = self.build()
        for copy, model in zip(copies, models):
            copy.load_state_dict({k: v.detach().to("cpu", copy=True) for k, v in model.state_dict().items()})
        settle(*copies)
        self._thread = threading.Thread(target=save_state, args=(self.directory, dict(counters), *copies))
        self._thread.start()

    def wait(self):
        if self._thread is not None:
            self._thread.join()
            self._thread = None
