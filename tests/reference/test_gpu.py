"""The same model on a GPU, where there is one."""

import unittest

import numpy as np
import torch

from reference import numerics
from reference.checkpoint import load_model
from reference.transformer import ForwardOptions
from tests.reference import golden


@unittest.skipUnless(torch.cuda.is_available(), "compares a GPU with the CPU: this machine has none")
class Gpu(unittest.TestCase):
    def test_double_precision_logits_are_those_of_the_cpu(self):
        ids = torch.randint(0, 255, (2, 50), generator=torch.Generator().manual_seed(1))
        for name in golden.MODELS:
            for attention in ("dense", "gather"):
                options = ForwardOptions(attention=attention)
                with torch.no_grad():
                    on_cpu = load_model(golden.directory(name), torch.float64)(ids, numerics.EXACT, options=options)
                    on_gpu = load_model(golden.directory(name), torch.float64, "cuda")(ids.cuda(), numerics.EXACT, options=options)
                self.assertLess((on_gpu.cpu() - on_cpu).abs().max() / on_cpu.abs().max(), 1e-12)

    def test_official_logits_stay_within_rounding_of_the_recorded_ones(self):
        model = load_model(golden.directory("tiny_smooth"), torch.float32, "cuda")
        errors = []
        for case in golden.read_json("tiny_smooth", "golden.json"):
            ids = torch.tensor([case["prompt"] + case["greedy_f64"]]).cuda()
            with torch.no_grad():
                computed = model(ids, numerics.OFFICIAL)[0, len(case["prompt"]) - 1 :].double().cpu().numpy()
            errors.append(golden.row_errors(computed, np.array(case["logits_official"])))
        self.assertLessEqual(np.max(errors), 0.015)
        self.assertLessEqual(np.median(errors), 0.005)

    def test_a_training_step_can_be_captured_and_replayed(self):
        options = ForwardOptions(experts="dense")
        model = load_model(golden.directory("tiny_full"), torch.float32, "cuda")
        batches = [torch.randint(0, 255, (2, 40), generator=torch.Generator().manual_seed(i)).cuda() for i in range(2)]
        ids = batches[0].clone()

        def loss():
            logits = model(ids, numerics.OFFICIAL.with_weight_formats(), options=options)
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())

        def step():
            model.zero_grad(set_to_none=False)
            value = loss()
            value.backward()
            return value

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step()
        for batch in batches:
            ids.copy_(batch)
            graph.replay()
            replayed = captured.item(), model.head.weight.grad.clone()
            eager = step().item(), model.head.weight.grad.clone()
            self.assertAlmostEqual(replayed[0], eager[0], places=6)
            self.assertLess((replayed[1] - eager[1]).abs().max() / eager[1].abs().max(), 1e-5)

    def test_gradients_are_those_of_the_cpu(self):
        ids = torch.randint(0, 255, (2, 40), generator=torch.Generator().manual_seed(2))
        found = []
        for device in ("cpu", "cuda"):
            model = load_model(golden.directory("tiny_full"), torch.float64, device)
            logits = model(ids.to(device), numerics.EXACT)
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.to(device).flatten()).backward()
            found.append({name: p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None})
        self.assertEqual(found[0].keys(), found[1].keys())
        for name, gradient in found[0].items():
            scale = gradient.abs().max().clamp(min=1e-12)
            self.assertLess((gradient - found[1][name]).abs().max() / scale, 1e-8, name)


if __name__ == "__main__":
    unittest.main()
