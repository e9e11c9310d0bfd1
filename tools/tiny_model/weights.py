"""Storage-format values of all weights once a training step, same-shaped parameters in one go."""

import torch

from reference.checkpoint import stored_parameters

from .fast_quant import quantised_weight


def named_formats(model):
    """{parameter name: (parameter, format)}; routed experts stay stacked."""
    names = {id(p): n for n, p in model.named_parameters()}
    return {names[id(p)]: (p, f) for p, _, _, f in stored_parameters(model)}


def stored_values(model):
    """{parameter name: tensor}: bf16 for quantised and BF16 tensors, the parameter itself for F32 ones."""
    groups, result = {}, {}
    for name, (parameter, weight_format) in named_formats(model).items():
        if weight_format == "f32":
            result[name] = parameter
        else:
            groups.setdefault((weight_format, tuple(parameter.shape)), []).append((name, parameter))
    for (weight_format, _), members in groups.items():
        stacked = torch.stack([p for _, p in members])
        for (name, _), values in zip(members, quantised_weight(stacked, weight_format).unbind()):
            result[name] = values
    return result


def expert_matrices(values, prefix):
    """Routed and shared experts as two matrices: gates and ups [2 * F, D], downs [D, F], F = (experts + 1) * inter."""
    w1, w2, w3 = (values[prefix + "experts." + n] for n in ("w1", "w2", "w3"))
    s1, s2, s3 = (values[prefix + "shared_experts.%s.weight" % n] for n in ("w1", "w2", "w3"))
    into = torch.cat((w1.flatten(0, 1), s1, w3.flatten(0, 1), s3))
    out = torch.cat((w2.transpose(0, 1).flatten(1), s2), dim=1)
    return into, out
