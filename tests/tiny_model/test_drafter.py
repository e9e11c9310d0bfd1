"""The batched drafter against one block computed step by step from the reference's parts."""

import unittest

import torch

from reference import mhc, rope
from reference.attention import softmax_with_sink
from reference.numerics import OFFICIAL
from reference.recording import Recording
from reference.transformer import drafter_taps
from tools.tiny_model.draft_model import DraftModel
from tools.tiny_model.fast_model import FastModel
from tools.tiny_model.train_drafter import sample_anchors

from .common import packed, relative, toy_models

NUMERICS = OFFICIAL.with_weight_formats()


def quiet(*_):
    pass


def table(config, positions):
    return rope.cos_sin(positions, rope.frequencies(config.qk_rope_head_dim, config.rope_theta), torch.float32)


def attention(layer, u, feature, config, position):
    """Rows of one block [1, 5, hidden] over the last window of context features [1, L, hidden] and themselves."""
    a, context = layer.attn, feature[:, -config.sliding_window :]
    first = feature.shape[1] - context.shape[1]
    rows = table(config, torch.arange(position, position + u.shape[1]))
    q = a.wq_b(a.q_norm(a.wq_a(u, NUMERICS), NUMERICS), NUMERICS).unflatten(-1, (config.num_attention_heads, -1))
    q = rope.rotate(q, rows, NUMERICS)
    own = NUMERICS.window_row(rope.rotate(a.kv_norm(a.wkv(u, NUMERICS), NUMERICS), rows, NUMERICS))
    cached = a.kv_norm(a.wkv(context, NUMERICS), NUMERICS)
    places = table(config, torch.arange(first, feature.shape[1]))
    cached = NUMERICS.window_row(rope.rotate(cached, places, NUMERICS))
    keys = torch.cat((cached, own), dim=1)
    scores = torch.einsum("bnhd,bkd->bhnk", q, keys) * q.shape[-1] ** -0.5
    weights, total = softmax_with_sink(scores, torch.ones_like(scores, dtype=torch.bool), a.attn_sink, NUMERICS)
    out = NUMERICS.bf16((torch.einsum("bhnk,bkd->bhnd", weights, keys) / total).transpose(1, 2))
    return a._project(rope.rotate(out, rows, NUMERICS, inverse=True), NUMERICS)


def block_by_hand(target, drafter, tokens):
    """Collapsed streams [5, hidden] of the block whose anchor is the last token."""
    from reference.transformer import ForwardOptions

    config, position = drafter.config, len(tokens) - 1
    recording = Recording("streams")
    target(tokens[None, :-1], NUMERICS, recording=recording)
    taps = torch.cat(drafter_taps(recording, drafter.targets, NUMERICS), dim=-1)
    feature = drafter.mtp[0].main_norm(drafter.mtp[0].main_proj(taps, NUMERICS), NUMERICS)
    ids = torch.tensor([[int(tokens[-1])] + [drafter.noise] * (drafter.block - 1)])
    x = NUMERICS.weight(target.embed.weight, "bf16")[ids].unsqueeze(2).expand(-1, -1, config.hc_mult, -1)
    a = torch.nn.functional.one_hot(torch.zeros_like(ids), config.hc_mult).float()
    for layer in drafter.mtp:
        next_a, c, b = layer.mix(x, "attn")
        u = layer.attn_norm(NUMERICS.bf16(mhc.collapse(a, x)), NUMERICS)
        x = NUMERICS.bf16(mhc.spread(c, b, attention(layer, u, feature, config, position), x))
        a, (next_a, c, b) = next_a, layer.mix(x, "ffn")
        u = layer.ffn_norm(NUMERICS.bf16(mhc.collapse(a, x)), NUMERICS)
        x = NUMERICS.bf16(mhc.spread(c, b, layer.ffn(u, None, NUMERICS, ForwardOptions(), quiet), x))
        a = next_a
    return NUMERICS.bf16(mhc.collapse(a, x))[0]


class DrafterTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.target, cls.drafter = toy_models()
        cls.model = DraftModel(FastModel(cls.target), cls.drafter)
        torch.manual_seed(0)

    def blocks(self, batch, row, anchor):
        with torch.no_grad():
            values, own = self.model.model.values(), self.model.values()
            taps = self.model.model(batch, values, taps=self.drafter.targets, want="final").taps
            features = self.model.features(taps, own)
            found, _ = self.model(batch, features, values, own, torch.tensor(row), torch.tensor(anchor))
        return found, values, own

    def test_blocks_equal_the_one_computed_by_hand(self):
        documents = [torch.randint(3, 6000, (n,)) for n in (48, 30)]
        batch, places = packed(documents, 80)
        anchors = [places[0][0] + 40, places[0][0] + 7, places[1][0] + 12]
        found, _, _ = self.blocks(batch, [0, 0, 0], anchors)
        with torch.no_grad():
            for h, document, anchor in zip(found.h, (0, 0, 1), anchors):
                inside = anchor - places[document][0]
                wanted = block_by_hand(self.target, self.drafter, documents[document][: inside + 1])
                self.assertLess(relative(h.float(), wanted), 0.03)

    def test_the_anchors_own_feature_is_not_used(self):
        document = torch.randint(3, 6000, (40,))
        batch, _ = packed([document], 40)
        with torch.no_grad():
            values, own = self.model.model.values(), self.model.values()
            taps = self.model.model(batch, values, taps=self.drafter.targets, want="final").taps
            features = self.model.features(taps, own)
            changed = features.clone()
            changed[:, 20:] += 1
            place = (torch.tensor([0]), torch.tensor([20]))
            a, b = (self.model(batch, f, values, own, *place)[0].h for f in (features, changed))
        self.assertTrue(torch.equal(a, b))

    def test_drafts_use_the_token_drafted_before(self):
        batch, _ = packed([torch.randint(3, 6000, (40,))], 40)
        found, values, own = self.blocks(batch, [0], [20])
        drafts, z = self.model.greedy(found, batch.tokens[0, [20]], values, own)
        stage = "mtp.%d." % (len(self.drafter.mtp) - 1)
        h, previous = found.h[0].float(), int(batch.tokens[0, 20])
        norm = own[stage + "norm.weight"].float()
        for k in range(self.model.block):
            y = (norm * h[k] * torch.rsqrt(h[k].square().mean() + 1e-20)).bfloat16().float()
            e = own[stage + "markov_head.embed.weight"][previous].float()
            logits = values["head.weight"].float() @ y + own[stage + "markov_head.head.weight"].float() @ e
            previous = int(logits.argmax())
            self.assertEqual(int(drafts[0, k]), previous)
            wanted = own[stage + "confidence_head.proj.weight"].float()[0] @ torch.cat((h[k], e))
            self.assertAlmostEqual(z[0, k].item(), wanted.item(), places=4)

    def test_anchors_have_a_next_token_to_write(self):
        weights = torch.zeros(2, 32)
        weights[0, 3:9] = 1.0
        weights[1, 30:] = 1.0
        row, anchor = sample_anchors(weights, 4, 5)
        chosen = anchor[row == 0]
        self.assertTrue(((chosen >= 3) & (chosen < 9)).all())


if __name__ == "__main__":
    unittest.main()
