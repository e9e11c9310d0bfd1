import os
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOKENIZER = os.path.join(ROOT, "models", "tiny", "tokenizer.json")

try:
    import torch

    torch.set_num_threads(1)  # toy models: more threads only wait for each other
except ImportError:
    raise unittest.SkipTest("the small model is trained with PyTorch, which is not installed")
