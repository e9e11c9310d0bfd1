"""Prints logits after a prompt and after each further token:

    python3 -m reference.logits --model DIR --tokens 3,17,99 --decode 5,6 --numerics exact --dtype float64
"""

import argparse
import json

import torch

from . import numerics
from .checkpoint import load_model


def logits_after(model, prompt, decode, setting):
    """[1 + len(decode), vocab]: after the prompt, then after each token of `decode`."""
    with torch.no_grad():
        tokens = torch.tensor([list(prompt) + list(decode)])
        return model(tokens, setting)[0, len(prompt) - 1 :]


def _ids(text):
    return [int(part) for part in text.split(",")] if text else []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="checkpoint directory")
    parser.add_argument("--tokens", required=True, type=_ids, help="prompt token ids, comma separated")
    parser.add_argument("--decode", default=[], type=_ids, help="token ids that follow the prompt")
    parser.add_argument("--numerics", default="official", choices=sorted(numerics.BY_NAME))
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    arguments = parser.parse_args()
    model = load_model(arguments.model, dtype=getattr(torch, arguments.dtype))
    rows = logits_after(model, arguments.tokens, arguments.decode, numerics.BY_NAME[arguments.numerics])
    print(json.dumps({"logits": rows.tolist()}))


if __name__ == "__main__":
    main()
