"""Properties of the whole model: causality, independent rows, equal ways to compute, images, saving."""

import json
import os
import tempfile
import unittest
from dataclasses import replace

import torch

from reference import indexer, numerics
from reference.checkpoint import load_model, save_model
from reference.config import ModelConfig, dump_config, load_config, parse_config
from reference.init import initialize
from reference.recording import Recording
from reference.transformer import ForwardOptions, Transformer, drafter_taps
from tests.reference import golden


def random_ids(batch, length, seed=3):
    return torch.randint(0, 255, (batch, length), generator=torch.Generator().manual_seed(seed))


class Causality(unittest.TestCase):
    def test_a_changed_token_changes_no_earlier_logits(self):
        for name in golden.MODELS:
            model = load_model(golden.directory(name), torch.float64)
            ids = random_ids(1, 33)
            with torch.no_grad():
                before = model(ids, numerics.EXACT)
                for position in (0, 7, 20, 32):
                    changed = ids.clone()
                    changed[0, position] = (changed[0, position] + 1) % 255
                    difference = (model(changed, numerics.EXACT) - before).abs().amax(dim=-1)[0]
                    self.assertLess(difference[:position].max() if position else 0.0, 1e-12)
                    self.assertGreater(difference[position], 1e-6)

    def test_a_prefix_alone_gives_the_same_logits(self):
        model = load_model(golden.directory("tiny_full"), torch.float64)
        ids = random_ids(1, 33)
        with torch.no_grad():
            whole = model(ids, numerics.EXACT)
            for length in (1, 2, 9, 16, 31):
                difference = model(ids[:, :length], numerics.EXACT) - whole[:, :length]
                self.assertLess(difference.abs().max(), 1e-11)

    def test_rows_of_a_batch_are_independent(self):
        model = load_model(golden.directory("tiny_full"), torch.float64)
        ids = random_ids(3, 29)
        with torch.no_grad():
            together = model(ids, numerics.EXACT)
            for row in range(3):
                self.assertLess((model(ids[row : row + 1], numerics.EXACT)[0] - together[row]).abs().max(), 1e-11)


class EqualWays(unittest.TestCase):
    def test_all_forms_of_attention_and_experts_agree(self):
        model = load_model(golden.directory("tiny_full"), torch.float64)
        ids = random_ids(2, 37)
        results = []
        for attention in ("dense", "gather"):
            for experts in ("grouped", "dense"):
                recording = Recording("compressed_attention", "selected")
                options = ForwardOptions(attention=attention, experts=experts)
                with torch.no_grad():
                    logits = model(ids, numerics.EXACT, recording=recording, options=options)
                results.append((logits, recording[4, "compressed_attention"]))
        for logits, probabilities in results[1:]:
            self.assertLess((logits - results[0][0]).abs().max(), 1e-11)
            self.assertLess((probabilities - results[0][1]).abs().max(), 1e-11)

    def test_attending_to_everything_is_the_model_when_nothing_is_dropped(self):
        model = load_model(golden.directory("tiny_smooth"), torch.float64)
        ids = random_ids(1, 40)
        with torch.no_grad():
            everything = model(ids, numerics.EXACT, options=ForwardOptions(selection="all"))
            self.assertTrue((everything == model(ids, numerics.EXACT)).all())


def released_lists(**changes):
    """The released layer lists at small widths."""
    sizes = dict(
        vocab_size=512, hidden_size=64, num_hidden_layers=40, num_attention_heads=8, head_dim=32, qk_rope_head_dim=4,
        q_lora_rank=32, o_groups=8, o_lora_rank=32, moe_intermediate_size=32, n_routed_experts=12, num_experts_per_tok=6,
        compress_ratios=(0,) * 2 + (2,) * 18 + (1,) * 20 + (0,) * 3, kv_source_layer_ids=(2, 8, 14, 20),
        index_source_layer_ids=(2, 8, 14, 20, 24, 28, 32, 36), candidate_source_layer_id=20, index_n_heads=16,
        index_head_dim=32, index_topk=16, candidate_topk_blocks=8, candidate_block_size=8, sliding_window=16,
    )  # fmt: skip
    return ModelConfig(**{**sizes, **changes})


class ReleasedTopology(unittest.TestCase):
    def test_forty_layers_with_all_roles_give_the_same_logits_in_both_forms(self):
        model = Transformer(released_lists()).double()
        initialize(model, torch.Generator().manual_seed(2), "fixture")
        ids = random_ids(1, 150)
        recording = Recording("selected", "candidates")
        with torch.no_grad():
            dense = model(ids, numerics.EXACT, recording=recording)
            gathered = model(ids, numerics.EXACT, options=ForwardOptions(attention="gather", experts="dense"))
        self.assertLess((dense - gathered).abs().max() / dense.abs().max(), 1e-10)
        self.assertFalse(recording[20, "candidates"][0, -1].all())
        self.assertEqual(recording[39, "selected"][0, -1].sum().item(), 16)


class OddSizes(unittest.TestCase):
    def test_two_streams_groups_of_three_and_engram_in_layer_zero_keep_causality(self):
        config = released_lists(
            num_hidden_layers=4, compress_ratios=(0, 3, 3, 1), kv_source_layer_ids=(1, 3), index_source_layer_ids=(1, 3),
            candidate_source_layer_id=3, hc_mult=2, sliding_window=5, index_topk=3, engram_layer_ids=(0,),
            engram_num_embeddings=(630,), engram_n_heads=2, engram_head_dim=32, engram_vocab_size=97,
            engram_compressed_vocab_size=64,
        )  # fmt: skip
        model = Transformer(config, [i % 64 for i in range(512)]).double()
        initialize(model, torch.Generator().manual_seed(4), "fixture")
        ids = random_ids(2, 25)
        with torch.no_grad():
            whole = model(ids, numerics.EXACT)
            for length in (1, 2, 3, 5, 6, 24):
                part = model(ids[:, :length], numerics.EXACT, options=ForwardOptions(attention="gather"))
                self.assertLess((part - whole[:, :length]).abs().max(), 1e-11)


class Selection(unittest.TestCase):
    def record(self, ids):
        model = load_model(golden.directory("tiny_full"), torch.float64)
        recording = Recording()
        with torch.no_grad():
            model(ids, numerics.EXACT, recording=recording)
        return model.config, recording

    def test_selected_rows_are_visible_best_and_within_candidates(self):
        config, recording = self.record(random_ids(2, 41))
        for layer in config.index_source_layer_ids:
            scores, visible = recording[layer, "index_scores"], recording[layer, "visible"]
            selected = recording[layer, "selected"]
            allowed = visible
            if config.uses_candidates(layer):
                allowed = visible & recording[config.candidate_source_layer_id, "candidates"]
            self.assertFalse((selected & ~allowed).any())
            count = allowed.sum(-1).clamp(max=config.index_topk)
            self.assertTrue((selected.sum(-1) == count).all())
            worst_in = scores.masked_fill(~selected, float("inf")).amin(-1)
            best_out = scores.masked_fill(selected | ~allowed, float("-inf")).amax(-1)
            self.assertTrue((worst_in >= best_out).all())
        self.assertEqual(config.index_source_layer_ids, (1, 3, 4, 6))
        for layer, source in ((2, 1), (5, 4), (7, 6)):
            self.assertTrue((recording[layer, "selected"] == recording[source, "selected"]).all())

    def test_candidates_hold_the_newest_block_and_restrict_later_layers(self):
        config, recording = self.record(random_ids(1, 41))
        candidates = recording[4, "candidates"][0]
        for position in range(41):
            newest = position // config.candidate_block_size * config.candidate_block_size
            self.assertTrue(candidates[position, newest])
        self.assertEqual(candidates[39, :40].sum().item(), config.candidate_topk_blocks * config.candidate_block_size)
        visible = recording[6, "visible"][0]
        self.assertTrue((visible & ~candidates).any())

    def test_ties_go_to_the_lower_row_and_the_lower_block(self):
        scores = torch.tensor([[[1.0, 0.0, -0.0, 1.0, 0.0, 1.0]]])
        allowed = torch.tensor([[[True, True, True, True, True, True]]])
        self.assertEqual(indexer.best(scores, allowed, 4)[0, 0].int().tolist(), [1, 1, 0, 1, 0, 1])
        kept = indexer.candidate_rows(torch.zeros(1, 1, 8), torch.ones(1, 1, 8, dtype=torch.bool), 2, 2)
        self.assertEqual(kept[0, 0].int().tolist(), [1, 1, 0, 0, 0, 0, 1, 1])

    def test_row_lists_ascend_and_end_in_minus_one(self):
        selected = torch.tensor([[False, True, False, True], [False, False, False, False]])
        self.assertEqual(indexer.row_list(selected, 3).tolist(), [[1, 3, -1], [-1, -1, -1]])

    def test_visibility_of_a_pair_starts_at_its_second_token(self):
        self.assertEqual(indexer.visible_rows(5, 2, "cpu").sum(-1).tolist(), [0, 1, 1, 2, 2])
        self.assertEqual(indexer.visible_rows(5, 1, "cpu").sum(-1).tolist(), [1, 2, 3, 4, 5])


class Images(unittest.TestCase):
    def test_image_positions_shut_the_gate_and_break_ngrams_and_use_their_own_bias(self):
        model = load_model(golden.directory("tiny_full"), torch.float64)
        with torch.no_grad():
            for layer in model.layers:
                layer.ffn.gate.bias_vl.copy_(torch.tensor([9.0, 9.0, 0, 0, 0, 0, 0, 0]))
        ids = random_ids(1, 12)
        mask = torch.zeros(1, 12, dtype=torch.bool)
        mask[0, 3:7] = True
        recording = Recording()
        with torch.no_grad():
            plain = model(ids, numerics.EXACT)
            marked = model(ids, numerics.EXACT, image_mask=mask, recording=recording)
        self.assertLess((plain - marked)[:, :3].abs().max(), 1e-12)
        self.assertGreater((plain - marked)[:, 3:].abs().amax(-1).min(), 1e-6)
        for layer in model.config.engram_layer_ids:
            self.assertTrue(((recording[layer, "engram_gate"] == 0).all(-1) == mask).all())
        self.assertTrue((recording[0, "chosen_experts"][mask] == torch.tensor([0, 1])).all())
        windows = model.hash.windows(model.token_map[ids].masked_fill(mask, -1), 2)[0]
        self.assertEqual(windows[7, 1:].tolist(), [2, 2, 2])
        self.assertEqual(windows[8, 2:].tolist(), [2, 2])

    def test_given_embeddings_replace_those_of_image_positions(self):
        model = load_model(golden.directory("tiny_full"), torch.float64)
        ids, other = random_ids(1, 9), random_ids(1, 9, seed=4)
        mask = torch.zeros(1, 9, dtype=torch.bool)
        mask[0, 2:5] = True
        vectors = model.embed.weight[ids]
        with torch.no_grad():
            expected = model(ids, numerics.OFFICIAL, image_mask=mask)
            mixed = torch.where(mask, other, ids)
            self.assertTrue((model(mixed, numerics.OFFICIAL, image_mask=mask, embeddings=vectors) == expected).all())


class Drafter(unittest.TestCase):
    def test_taps_are_stream_means_at_layer_entry(self):
        model = load_model(golden.directory("tiny_full"))
        recording = Recording("streams")
        with torch.no_grad():
            model(random_ids(2, 6), numerics.OFFICIAL, recording=recording)
        taps = drafter_taps(recording, (5, 6), numerics.OFFICIAL)
        self.assertEqual([tuple(t.shape) for t in taps], [(2, 6, 128)] * 2)
        self.assertTrue((taps[0] == recording[5, "streams"].mean(2).to(torch.bfloat16).float()).all())


class Saving(unittest.TestCase):
    def test_a_fresh_model_loads_back_as_the_weights_it_was_trained_with(self):
        config = replace(load_config(golden.directory("tiny_full")), num_nextn_predict_layers=0)
        model = Transformer(config, [i % 64 for i in range(256)])
        ids = random_ids(1, 20)
        for style in ("train", "fixture"):
            initialize(model, torch.Generator().manual_seed(1), style)
            with tempfile.TemporaryDirectory() as directory, torch.no_grad():
                save_model(model, directory)
                loaded = load_model(directory)
                expected = model(ids, numerics.OFFICIAL.with_weight_formats())
                self.assertTrue(torch.isfinite(expected).all())
                self.assertTrue((loaded(ids, numerics.OFFICIAL) == expected).all())

    def test_a_released_checkpoint_is_written_back_with_the_same_values_and_names(self):
        model = load_model(golden.directory("tiny_full"))
        with tempfile.TemporaryDirectory() as directory:
            save_model(model, directory)
            again = load_model(directory)
            from reference.safetensors import SafetensorsFile

            names = set(SafetensorsFile(os.path.join(directory, "model.safetensors")).entries)
            original = set(SafetensorsFile(os.path.join(golden.directory("tiny_full"), "model.safetensors")).entries)
            self.assertEqual(names, original)
        for (name, one), (_, other) in zip(model.named_parameters(), again.named_parameters()):
            self.assertTrue((one == other).all(), name)


class Config(unittest.TestCase):
    def test_nested_dialect_survives_writing_and_reading(self):
        config = load_config(golden.directory("tiny_full"))
        self.assertEqual(parse_config(json.loads(json.dumps(dump_config(config)))), config)

    def test_flat_dialect_gives_the_same_config(self):
        with open(os.path.join(golden.directory("tiny_full"), "config.json")) as file:
            root = json.load(file)
        text = root["text_config"]
        renamed = {
            "hidden_size": "dim",
            "moe_intermediate_size": "moe_inter_dim",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "qk_rope_head_dim": "rope_head_dim",
            "rms_norm_eps": "norm_eps",
            "sliding_window": "window_size",
            "kv_source_layer_ids": "kv_source_layers",
            "index_source_layer_ids": "index_source_layers",
            "candidate_source_layer_id": "candidate_source_layer",
            "num_experts_per_tok": "n_activated_experts",
            "routed_scaling_factor": "route_scale",
            "scoring_func": "score_func",
            "engram_pad_token_id": "engram_pad_id",
        }
        flat = {renamed.get(k, k): v for k, v in text.items() if k != "rope_scaling"}
        flat.update(original_seq_len=64, rope_factor=16, beta_fast=32, beta_slow=1, image_token_id=255)
        self.assertEqual(parse_config(flat), parse_config(root))

    def test_contradictions_are_refused(self):
        config = load_config(golden.directory("tiny_full"))
        for change, message in (
            ({"kv_source_layer_ids": (1, 2, 4)}, "not an index source"),
            ({"compress_ratios": (0, 2, 2, 2, 1, 2, 1, 1)}, "differ in ratio"),
            ({"compress_ratios": (0, 2, 2)}, "fewer entries"),
            ({"kv_source_layer_ids": (3, 4)}, "no KV source"),
            ({"candidate_source_layer_id": 3}, "share its KV source"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                replace(config, **change)

    def test_layer_roles_of_the_released_model(self):
        config = released_lists()
        roles = [(config.kv_source(i), config.index_source(i)) for i in (0, 2, 7, 8, 19, 20, 23, 24, 39)]
        expected = [(None, None), (2, 2), (2, 2), (8, 8), (14, 14), (20, 20), (20, 20), (20, 24), (20, 36)]
        self.assertEqual(roles, expected)
        self.assertEqual([i for i in range(40) if config.uses_candidates(i)], [24, 28, 32, 36])


if __name__ == "__main__":
    unittest.main()
