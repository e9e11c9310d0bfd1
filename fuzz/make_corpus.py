"""Writes the seed corpora and dictionaries of the fuzz targets from the golden models: python3 fuzz/make_corpus.py"""
import json
import struct
from pathlib import Path

ROOT = Path(__file__).resolve().parent
GOLDEN = ROOT.parent / "tests" / "golden" / "model"


def write(target, name, content):
    folder = ROOT / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def write_dictionary(target, words):
    lines = ['"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"' for word in sorted(words)]
    (ROOT / f"{target}.dict").write_text("\n".join(lines) + "\n")


def compact(value):
    return json.dumps(value, separators=(",", ":"))


def flat_dialect(config):
    names = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads", "rms_norm_eps": "norm_eps",
             "moe_intermediate_size": "moe_inter_dim", "scoring_func": "score_func", "routed_scaling_factor": "route_scale",
             "qk_rope_head_dim": "rope_head_dim", "sliding_window": "window_size", "kv_source_layer_ids": "kv_source_layers",
             "index_source_layer_ids": "index_source_layers", "candidate_source_layer_id": "candidate_source_layer",
             "num_experts_per_tok": "n_activated_experts", "engram_pad_token_id": "engram_pad_id"}
    text = dict(config["text_config"])
    scaling = text.pop("rope_scaling")
    text.pop("model_type")
    flat = {names.get(key, key): value for key, value in text.items()}
    return flat | {"dtype": "fp8", "expert_dtype": "fp4", "rope_factor": scaling["factor"], "beta_fast": 32, "beta_slow": 1,
                   "original_seq_len": scaling["original_max_position_embeddings"], "vision_n_layers": 0}


def keys_of(value):
    if isinstance(value, dict):
        for key, child in value.items():
            yield f'"{key}":'
            yield from keys_of(child)


def make_config():
    words = {"-1", "0", "9223372036854775807", "1e300", "null", "[]", "{}", '"eos_token_id":[1,2]', '"gate_temp":', '"top_p":'}
    for model in ("tiny_full", "tiny_noengram"):
        config = json.loads((GOLDEN / model / "config.json").read_text())
        write("config", f"{model}.json", compact(config))
        write("config", f"{model}_flat.json", compact(flat_dialect(config)))
        words |= set(keys_of(config)) | set(keys_of(flat_dialect(config)))
    write("config", "generation.json", '{"temperature":1.0,"top_p":0.95,"top_k":0,"do_sample":true,"eos_token_id":[1]}')
    write("config", "empty.json", "{}")
    write("config", "twice.json", '{"text_config":{},"text_config":{}}')
    write_dictionary("config", words)


def make_index():
    write("index", "two_shards.json", '{"metadata":{"total_size":9},"weight_map":{"a":"1.safetensors","b":"2.safetensors"}}')
    write("index", "path.json", '{"weight_map":{"a":"../1.safetensors"}}')
    write("index", "twice.json", '{"weight_map":{"a":"x","a":"y"}}')
    write("index", "token_map.json", "[0,1,1,2]")
    write("index", "token_map_bad.json", "[0,1,1,-2]")
    write_dictionary("index", {'"weight_map":', '"metadata":', ".safetensors", "../", '"a":"x"', "\\u0000"})


def safetensors(header, data):
    return struct.pack("<Q", len(header)) + header.encode() + data


def make_safetensors_header():
    target = "safetensors_header"
    two = ('{"__metadata__":{"format":"pt"},"a":{"dtype":"I8","shape":[16],"data_offsets":[0,16]},'
           '"b":{"dtype":"BF16","shape":[2,12],"data_offsets":[16,64]}}')
    write(target, "whole_file", safetensors(two, bytes(64)))
    write(target, "header_alone", two)
    write(target, "truncated", safetensors(two, bytes(63)))
    write(target, "length_alone", struct.pack("<Q", 2**63))
    write(target, "overlap", two.replace("[16,64]", "[8,56]"))
    write(target, "overflow", '{"a":{"dtype":"F64","shape":[4294967296,4294967296,2],"data_offsets":[0,64]}}')
    write(target, "every_dtype", "{" + ",".join(
        f'"{d}":{{"dtype":"{d}","shape":[0],"data_offsets":[0,0]}}'
        for d in "BOOL U8 I8 I16 U16 F16 BF16 I32 U32 F32 I64 U64 F64 C64 F8_E5M2 F8_E4M3 F8_E8M0 F6_E2M3 F6_E3M2 F4".split()) + "}")
    write(target, "bad_utf8", b'{"\xff":{"dtype":"I8","shape":[64],"data_offsets":[0,64]}}')
    write_dictionary(target, {'"dtype":', '"shape":', '"data_offsets":', '"__metadata__":', "[0,64]", '"I8"', '"BF16"', '"F32"',
                              '"F8_E4M3"', '"F4"', "18446744073709551615", "9223372036854775807"})


if __name__ == "__main__":
    make_config()
    make_index()
    make_safetensors_header()
