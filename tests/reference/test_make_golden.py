"""The recorded operations are those the reference computes now, apart from last bits of the platform's math library."""

import json
import math
import os
import unittest

from reference import make_golden
from tests.reference import golden

OPS = os.path.join(os.path.dirname(golden.ROOT), "ops")


def same(one, other):
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-12)
    return one == other


class RecordedOperations(unittest.TestCase):
    def test_files_match_the_reference(self):
        self.assertEqual(sorted(os.listdir(OPS)), sorted(name + ".json" for name in make_golden.OPERATIONS))
        for name, cases in make_golden.OPERATIONS.items():
            with open(os.path.join(OPS, name + ".json")) as file:
                self.assertTrue(same(json.load(file), json.loads(make_golden.render(cases()))), name)


if __name__ == "__main__":
    unittest.main()
