"""Checkpoints in the released layout: loading into a Transformer with exact values, and saving from master weights."""

import json
import os

import numpy as np
import torch

from . import quantize
from .config import dump_config, load_config
from .safetensors import SafetensorsFile, write_safetensors
from .transformer import Transformer

_CODE_DTYPES = {"fp8_tile": "F8_E4M3", "fp8_row": "F8_E4M3", "fp4": "I8"}


class Checkpoint:
    """Tensors of a directory by name, through the index if there is one."""

    def __init__(self, directory):
        index = os.path.join(directory, "model.safetensors.index.json")
        if os.path.exists(index):
            with open(index) as file:
                self.shards = json.load(file)["weight_map"]
        else:
            self.shards = dict.fromkeys(SafetensorsFile(os.path.join(directory, "model.safetensors")).entries, "model.safetensors")
        self.directory, self._files = directory, {}

    def __contains__(self, name):
        return name in self.shards

    def read(self, name):
        """(dtype string, array) as stored."""
        if name not in self.shards:
            raise KeyError("%s: no tensor %s" % (self.directory, name))
        shard = self.shards[name]
        if shard not in self._files:
            self._files[shard] = SafetensorsFile(os.path.join(self.directory, shard))
        return self._files[shard].read(name)

    def values(self, name, weight_format):
        """float32 tensor of the exact values of a weight (and its scale, if the format has one)."""
        dtype, array = self.read(name)
        if weight_format in _CODE_DTYPES:
            _, scale = self.read(_scale_name(name))
            codes = torch.from_numpy(array.view(np.uint8).copy())
            return quantize.decode_weight(codes, torch.from_numpy(scale.copy()), weight_format)
        if dtype == "BF16":
            return torch.from_numpy((array.astype(np.uint32) << 16).view(np.float32))
        return torch.from_numpy(array.astype(np.float32))


def _scale_name(name):
    return name[: -len("weight")] + "scale"


def stored_parameters(model):
    """(parameter, released name, expert number or None, weight format) of everything a checkpoint holds."""
    for prefix, module in model.named_modules():
        for local, weight_format in getattr(module, "FORMATS", {}).items():
            parameter = getattr(module, local)
            name = prefix + "." + local
            if weight_format == "fp4":
                for expert in range(parameter.shape[0]):
                    yield parameter, "%s.%d.%s.weight" % (prefix, expert, local), expert, weight_format
            else:
                yield parameter, name, None, weight_format


def load_model(directory, dtype=torch.float32, device="cpu", token_map=None):
    """Transformer with the checkpoint's exact values. token_map: array, or token_map.json beside the weights."""
    config = load_config(directory)
    model = Transformer(config, load_token_map(directory) if token_map is None else token_map)
    checkpoint = Checkpoint(directory)
    with torch.no_grad():
        for parameter, name, expert, weight_format in stored_parameters(model):
            if name.endswith("bias_vl") and name not in checkpoint:
                continue  # text-only checkpoints have none; image positions then use the plain bias, copied below
            target = parameter if expert is None else parameter[expert]
            target.copy_(checkpoint.values(name, weight_format))
        for layer, block in enumerate(model.layers):
            if "layers.%d.ffn.gate.bias_vl" % layer not in checkpoint:
                block.ffn.gate.bias_vl.copy_(block.ffn.gate.bias)
    return model.to(device=device, dtype=dtype)


def load_token_map(directory):
    path = os.path.join(directory, "token_map.json")
    if not os.path.exists(path):
        return None
    with open(path) as file:
        return np.asarray(json.load(file), dtype=np.int64)


def encode_parameters(model):
    """name to (dtype string, array) for write_safetensors: the bytes that load back as the fake-quantised weights."""
    tensors = {}
    for parameter, name, expert, weight_format in stored_parameters(model):
        w = parameter.detach().cpu()
        w = w if expert is None else w[expert]
        if weight_format in _CODE_DTYPES:
            codes, scale = quantize.encode_weight(w, weight_format)
            codes = codes.numpy().view(np.int8) if weight_format == "fp4" else codes.numpy()
            tensors[name] = (_CODE_DTYPES[weight_format], codes)
            tensors[_scale_name(name)] = ("F8_E8M0", scale.numpy())
        elif weight_format == "bf16":
            bits = quantize.round_bf16(w).to(torch.float32).contiguous().numpy().view(np.uint32)
            tensors[name] = ("BF16", (bits >> 16).astype(np.uint16))
        else:
            tensors[name] = ("F32", w.to(torch.float32).numpy())
    return tensors


def save_model(model, directory, extra_tensors=None):
    """Writes config.json, model.safetensors and, with Engram, token_map.json. extra_tensors: e.g. a drafter's."""
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "config.json"), "w") as file:
        json.dump(dump_config(model.config), file, indent=1)
    if model.token_map.numel():
        with open(os.path.join(directory, "token_map.json"), "w") as file:
            json.dump(model.token_map.tolist(), file)
    tensors = encode_parameters(model)
    tensors.update(extra_tensors or {})
    write_safetensors(os.path.join(directory, "model.safetensors"), dict(sorted(tensors.items())))
