"""Gradients: every trainable parameter is reached, and the hand-made pieces agree with finite differences."""

import unittest

import torch
from torch.autograd import gradcheck

from reference import attention, compressor, mhc, moe, numerics
from reference.checkpoint import load_model
from reference.recording import Recording
from tests.reference import golden

INDEX_PARTS = ("indexer.wq_b", "indexer.weights_proj", "indexer.wk", "indexer.k_norm")


def gradients(name, setting, use_scores, tokens=40):
    """Names of parameters without gradient, after one backward pass; asserts nothing is infinite."""
    model = load_model(golden.directory(name))
    ids = torch.randint(0, 256, (3, tokens), generator=torch.Generator().manual_seed(7))
    recording = Recording("index_scores", "visible")
    logits = model(ids, setting, recording=recording)
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    if use_scores:
        for layer in recording.layers("index_scores"):
            loss = loss + recording[layer, "index_scores"].square().mean()
    loss.backward()
    missing = []
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            missing.append(name)
            continue
        if not torch.isfinite(parameter.grad).all():
            raise AssertionError("gradient of %s is not finite" % name)
        if not (parameter.grad != 0).any():
            missing.append(name)
    return missing


class Reach(unittest.TestCase):
    def check(self, setting):
        # Expert biases only steer selection, so a loss never reaches them; selection is discrete, so index
        # projections need the loss on the recorded scores.
        missing = gradients("tiny_smooth", setting, use_scores=True)
        self.assertTrue(all(name.endswith(("gate.bias", "gate.bias_vl")) for name in missing), missing)
        missing = gradients("tiny_smooth", setting, use_scores=False)
        rest = [name for name in missing if not name.endswith(("gate.bias", "gate.bias_vl"))]
        self.assertTrue(rest and all(any(part in name for part in INDEX_PARTS) for name in rest), rest)

    def test_every_parameter_learns_in_exact_numerics(self):
        self.check(numerics.EXACT)

    def test_every_parameter_learns_with_all_quantisers_on(self):
        self.check(numerics.OFFICIAL.with_weight_formats())

    def test_expert_parameters_learn_when_experts_are_chosen(self):
        missing = gradients("tiny_full", numerics.OFFICIAL, use_scores=True, tokens=64)
        self.assertFalse([name for name in missing if "experts" in name])

    def test_index_scores_send_no_gradient_into_the_backbone_by_default(self):
        model = load_model(golden.directory("tiny_full"))
        recording = Recording("index_scores")
        model(torch.arange(20)[None], numerics.EXACT, recording=recording)
        sum(recording[i, "index_scores"].sum() for i in recording.layers("index_scores")).backward()
        reached = [name for name, p in model.named_parameters() if p.grad is not None]
        self.assertTrue(reached and all(any(part in name for part in INDEX_PARTS) for name in reached), reached)


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


class FiniteDifferences(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(11)

    def test_mix_and_spread(self):
        def run(x, y, fn, scale, base):
            a, c, b = mhc.mix(x, fn, scale, base, 20, 1e-6, 1e-20)
            return mhc.collapse(a, x), mhc.spread(c, b, y, x)

        inputs = (random(2, 3, 4, 5), random(2, 3, 5), random(24, 20), random(3), random(24))
        self.assertTrue(gradcheck(run, inputs))

    def test_attention_with_sink(self):
        selected = torch.rand(1, 6, 3) < 0.5
        selected[0, 0] = False
        for attend in attention.ATTEND.values():

            def run(q, window_rows, rows, sink):
                return attend(q, window_rows, rows, selected, sink, 4, numerics.EXACT)

            self.assertTrue(gradcheck(run, (random(1, 6, 2, 4), random(1, 6, 4), random(1, 3, 4), random(2))))

    def test_experts_in_both_forms(self):
        class Sizes:
            n_routed_experts, hidden_size, moe_intermediate_size, swiglu_limit = 4, 5, 3, 10.0

        experts = torch.tensor([[0, 2], [2, 3], [0, 2], [0, 1], [1, 2]])
        for form in ("grouped", "dense"):

            def run(x, weights, w1, w2, w3):
                module = moe.Experts(Sizes)
                del module.w1, module.w2, module.w3
                module.w1, module.w2, module.w3 = w1, w2, w3
                return getattr(module, form)(x, experts, weights, numerics.EXACT)

            self.assertTrue(gradcheck(run, (random(5, 5), random(5, 2), random(4, 3, 5), random(4, 5, 3), random(4, 3, 5))))

    def test_compressor_pooling(self):
        self.assertTrue(gradcheck(compressor.pool, (random(2, 3, 2, 4), random(2, 3, 2, 4))))

    def test_compressor_module_of_both_kinds(self):
        class Sizes:
            hidden_size, head_dim, rms_norm_eps = 6, 4, 1e-20

        for ratio in (1, 2, 3):
            module = compressor.Compressor(Sizes, ratio).double()
            for parameter in module.parameters():
                torch.nn.init.normal_(parameter)
            self.assertTrue(gradcheck(lambda u: module(u, numerics.EXACT), (random(1, 7, 6),)))


if __name__ == "__main__":
    unittest.main()
