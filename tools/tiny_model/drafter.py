"""Parameters of the DSpark drafter under their released names, mtp.S.*; its stages are ratio-0 layers with few experts."""

from dataclasses import replace

from torch import nn

from reference.linear import Bf16Linear, QuantizedLinear
from reference.norm import RMSNorm
from reference.transformer import Embedding, Layer


class MarkovHead(nn.Module):
    """A low-rank bias of the next token's logits by the previous token."""

    def __init__(self, vocab, rank):
        super().__init__()
        self.embed = Embedding(vocab, rank)
        self.head = Embedding(vocab, rank)


class ConfidenceHead(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.proj = Bf16Linear(size, 1)


class Drafter(nn.Module):
    """Embedding and output head are the target's, so they are not here."""

    def __init__(self, config):
        super().__init__()
        extra = config.extra
        self.config = replace(
            config,
            n_routed_experts=extra["dspark_n_routed_experts"],
            num_experts_per_tok=extra["dspark_num_experts_per_tok"],
            engram_layer_ids=(),
            engram_num_embeddings=(),
        )
        self.block, self.noise = extra["dspark_block_size"], extra["dspark_noise_token_id"]
        self.targets = tuple(extra["dspark_target_layer_ids"])
        hidden, rank, eps = config.hidden_size, extra["dspark_markov_rank"], config.rms_norm_eps
        first, stages = config.num_hidden_layers, config.num_nextn_predict_layers
        self.mtp = nn.ModuleList(Layer(self.config, first + s) for s in range(stages))
        self.mtp[0].main_proj = QuantizedLinear(len(self.targets) * hidden, hidden)
        self.mtp[0].main_norm = RMSNorm(hidden, eps)
        self.mtp[-1].norm = RMSNorm(hidden, eps)
        self.mtp[-1].markov_head = MarkovHead(config.vocab_size, rank)
        self.mtp[-1].confidence_head = ConfidenceHead(hidden + rank)
