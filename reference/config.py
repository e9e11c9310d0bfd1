"""Model configuration: reads both dialects of config.json, derives each layer's role and checks that they agree."""

import json
import os
from dataclasses import dataclass, field, fields
from typing import Any, Dict, Optional, Tuple


@dataclass(frozen=True)
class Yarn:
    factor: float = 16
    beta_fast: float = 32
    beta_slow: float = 1
    original_max_position_embeddings: int = 65536


@dataclass(frozen=True)
class ModelConfig:
    """Sizes under their released names. Defaults are the released values where tiny models share them."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    moe_intermediate_size: int
    n_routed_experts: int
    num_experts_per_tok: int
    compress_ratios: Tuple[int, ...]
    kv_source_layer_ids: Tuple[int, ...] = ()
    index_source_layer_ids: Tuple[int, ...] = ()
    candidate_source_layer_id: int = -1
    candidate_topk_blocks: int = 2048
    candidate_block_size: int = 8
    index_n_heads: int = 32
    index_head_dim: int = 128
    index_topk: int = 512
    n_shared_experts: int = 1
    routed_scaling_factor: float = 1.5
    gate_temp: float = 1.0
    swiglu_limit: float = 10.0
    sliding_window: int = 128
    rms_norm_eps: float = 1e-20
    hc_mult: int = 4
    hc_sinkhorn_iters: int = 20
    hc_eps: float = 1e-6
    rope_theta: float = 10000
    compress_rope_theta: float = 160000
    yarn: Optional[Yarn] = field(default_factory=Yarn)
    max_position_embeddings: int = 1048576
    engram_layer_ids: Tuple[int, ...] = ()
    engram_num_embeddings: Tuple[int, ...] = ()
    engram_max_ngram_size: int = 4
    engram_n_heads: int = 8
    engram_head_dim: int = 256
    engram_vocab_size: int = 16000000
    engram_pad_token_id: int = 2
    engram_compressed_vocab_size: int = 99092
    bos_token_id: int = 0
    eos_token_id: int = 1
    pad_token_id: int = 2
    image_token_id: int = 129264
    num_nextn_predict_layers: int = 0
    extra: Dict[str, Any] = field(default_factory=dict, compare=False)  # text keys this backbone does not use

    def __post_init__(self):
        self._check()

    # --- layer roles: every consumer uses the nearest preceding source -------------------------------------------

    def ratio(self, layer):
        return self.compress_ratios[layer]

    def kv_source(self, layer):
        return self._source(layer, self.kv_source_layer_ids)

    def index_source(self, layer):
        return self._source(layer, self.index_source_layer_ids)

    def is_kv_source(self, layer):
        return layer in self.kv_source_layer_ids

    def is_index_source(self, layer):
        return layer in self.index_source_layer_ids

    def uses_candidates(self, layer):
        return 0 <= self.candidate_source_layer_id < layer and self.is_index_source(layer)

    def _source(self, layer, sources):
        if self.ratio(layer) == 0:
            return None
        return max((s for s in sources if s <= layer), default=None)

    def _check(self):
        def require(condition, message):
            if not condition:
                raise ValueError("config: " + message)

        require(len(self.compress_ratios) >= self.num_hidden_layers, "compress_ratios has fewer entries than layers")
        require(len(self.engram_layer_ids) == len(self.engram_num_embeddings), "one engram_num_embeddings per Engram layer")
        require(self.num_attention_heads % self.o_groups == 0, "num_attention_heads must be divisible by o_groups")
        require(self.num_experts_per_tok <= self.n_routed_experts, "num_experts_per_tok exceeds n_routed_experts")
        for source in self.kv_source_layer_ids:
            require(source in self.index_source_layer_ids, "KV source %d is not an index source" % source)
            require(self.ratio(source) > 0, "KV source %d has compress ratio 0" % source)
        for layer in range(self.num_hidden_layers):
            if self.ratio(layer) == 0:
                continue
            source = self.kv_source(layer)
            require(source is not None, "layer %d compresses but no KV source precedes it" % layer)
            require(self.ratio(source) == self.ratio(layer), "layer %d and its KV source %d differ in ratio" % (layer, source))
        if self.candidate_source_layer_id >= 0:
            first = self.candidate_source_layer_id
            require(self.is_index_source(first), "candidate source %d is not an index source" % first)
            later = [i for i in self.index_source_layer_ids if i > first]
            require(
                all(self.kv_source(i) == self.kv_source(first) for i in later),
                "index sources after the candidate source must share its KV source",
            )


_ALIASES = {
    "dim": "hidden_size",
    "moe_inter_dim": "moe_intermediate_size",
    "n_layers": "num_hidden_layers",
    "n_mtp_layers": "num_nextn_predict_layers",
    "n_heads": "num_attention_heads",
    "score_func": "scoring_func",
    "route_scale": "routed_scaling_factor",
    "rope_head_dim": "qk_rope_head_dim",
    "norm_eps": "rms_norm_eps",
    "window_size": "sliding_window",
    "kv_source_layers": "kv_source_layer_ids",
    "index_source_layers": "index_source_layer_ids",
    "candidate_source_layer": "candidate_source_layer_id",
    "n_activated_experts": "num_experts_per_tok",
    "engram_pad_id": "engram_pad_token_id",
    "dspark_n_activated_experts": "dspark_num_experts_per_tok",
}
_YARN_ALIASES = {
    "original_seq_len": "original_max_position_embeddings",
    "rope_factor": "factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
}
_ROOT_KEYS = ("bos_token_id", "eos_token_id", "pad_token_id", "image_token_id")
_TUPLES = ("compress_ratios", "kv_source_layer_ids", "index_source_layer_ids", "engram_layer_ids", "engram_num_embeddings")


def parse_config(root):
    """ModelConfig of a parsed config.json: nested text_config, or the flat dialect with its own names."""
    values = {k: root[k] for k in _ROOT_KEYS if k in root}
    values.update(root.get("text_config", root))
    scaling = dict(values.pop("rope_scaling", None) or {})
    for flat, name in _YARN_ALIASES.items():
        if flat in values:
            scaling.setdefault(name, values.pop(flat))
    for flat, name in _ALIASES.items():
        if flat in values:
            values.setdefault(name, values.pop(flat))
    known = {f.name for f in fields(ModelConfig)} - {"yarn", "extra"}
    extra = {k: v for k, v in values.items() if k not in known}
    values = {k: tuple(v) if k in _TUPLES else v for k, v in values.items() if k in known}
    original = scaling.get("original_max_position_embeddings", 0)
    yarn_values = {f.name: scaling[f.name] for f in fields(Yarn) if f.name in scaling}
    return ModelConfig(yarn=Yarn(**yarn_values) if original else None, extra=extra, **values)


def load_config(directory):
    with open(os.path.join(directory, "config.json")) as file:
        return parse_config(json.load(file))


def dump_config(config):
    """The nested dialect, ready for json.dump. Inverse of parse_config."""
    text: Dict[str, Any] = {"model_type": "deepseek_v41_text"}
    for f in fields(config):
        if f.name not in _ROOT_KEYS + ("yarn", "extra"):
            value = getattr(config, f.name)
            text[f.name] = list(value) if isinstance(value, tuple) else value
    text.update(
        num_key_value_heads=1,
        scoring_func="sqrtsoftplus",
        topk_method="noaux_tc",
        norm_topk_prob=True,
        hidden_act="silu",
        tie_word_embeddings=False,
    )
    if config.yarn is not None:
        text["rope_scaling"] = {"rope_type": "yarn", **{f.name: getattr(config.yarn, f.name) for f in fields(Yarn)}}
    text.update({k: v for k, v in config.extra.items() if k not in text})
    root: Dict[str, Any] = {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        "quantization_config": {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [32, 32],
            "scale_fmt": "ue8m0",
            "expert_dtype": "fp4",
        },
    }
    root.update({k: getattr(config, k) for k in _ROOT_KEYS})
    root["text_config"] = text
    return root
