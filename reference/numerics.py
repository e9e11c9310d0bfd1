"""The three numerical settings of the model, as one object handed through the forward pass.

A Numerics says which roundings happen; the modules only say where the model's definition allows one. Every rounding
is straight-through for gradients. `weights` additionally applies the storage formats to master weights, so that
training sees exactly what an exported checkpoint will hold; on loaded checkpoints it changes nothing, because all
formats reproduce their own values.
"""

from dataclasses import dataclass, replace

from . import quantize


@dataclass(frozen=True)
class Numerics:
    name: str
    activations: bool  # round to bfloat16 wherever the definition writes "-> bf16"
    linear_inputs: bool  # Act8 on the input of every FP8 or FP4 linear (but wo_a)
    caches: bool  # FQ8 on window rows, FQ4k on compressed rows, FQ4i on both sides of the indexer
    weights: bool = False  # apply FP8 / FP4 / BF16 storage formats to the parameters
    index_scores: bool = False  # bf16 index scores as in the vendor's code: more ties, only for comparisons

    def bf16(self, x):
        return quantize.round_bf16(x) if self.activations else x

    def linear_input(self, x):
        return quantize.act8(x) if self.linear_inputs else x

    def window_row(self, x):
        return quantize.fq8(x) if self.caches else x

    def compressed_row(self, x):
        return quantize.fq4k(x) if self.caches else x

    def index_row(self, x):
        return quantize.fq4i(x) if self.caches else x

    def index_score(self, x):
        return quantize.round_bf16(x) if self.index_scores else x

    def weight(self, parameter, weight_format):
        return quantize.WEIGHT_QUANTIZERS[weight_format](parameter) if self.weights else parameter

    def with_weight_formats(self):
        return replace(self, weights=True)


EXACT = Numerics("exact", activations=False, linear_inputs=False, caches=False)
BF16_ACTIVATIONS = Numerics("bf16_activations", activations=True, linear_inputs=False, caches=True)
OFFICIAL = Numerics("official", activations=True, linear_inputs=True, caches=True)

BY_NAME = {n.name: n for n in (EXACT, BF16_ACTIVATIONS, OFFICIAL)}
