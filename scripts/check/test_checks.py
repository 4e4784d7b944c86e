"""The checks themselves, on good and on spoilt copies of a golden model.

python3 -m unittest discover -s scripts/check
"""

import json
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parents[1] / "crates/families/tests/golden/qwen3"


def run(script, *args):
    """The script's exit code, stdout and stderr."""
    command = [sys.executable, HERE / script, *map(str, args)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def respell(path, change):
    """Rewrites a safetensors file with its tensors changed by `change`."""
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


class Checks(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.model = Path(self.scratch.name) / "model"
        shutil.copytree(GOLDEN, self.model)
        self.adapter = self.model / "adapter"
        self.weights = self.adapter / "adapter_model.safetensors"
        golden = load_file(GOLDEN / "golden.safetensors")
        length = int(golden["lengths"][0])
        self.ids = ",".join(str(i) for i in golden["ids"][:length].tolist())
        self.golden = {k: golden[k][: length - 1] for k in ("logprobs", "lora.logprobs")}

    def assert_scores(self, outcome, want):
        code, out, err = outcome
        self.assertEqual(code, 0, err)
        torch.testing.assert_close(torch.tensor(json.loads(out)["logprobs"]), want, rtol=1e-5, atol=1e-5)

    def assert_refused(self, outcome, *words):
        code, out, err = outcome
        self.assertNotEqual(code, 0)
        self.assertEqual(out, "")
        for word in words:
            self.assertIn(word, err)

    def merged(self):
        return run("transformers_loads.py", self.model, "--ids", self.ids)

    def adapted(self):
        return run("peft_loads.py", self.adapter, self.model, "--ids", self.ids)

    def test_good_model_gives_the_golden_logprobs(self):
        self.assert_scores(self.merged(), self.golden["logprobs"])

    def test_good_adapter_gives_the_golden_logprobs(self):
        self.assert_scores(self.adapted(), self.golden["lora.logprobs"])

    def test_missing_weight(self):
        name = "model.layers.1.mlp.up_proj.weight"
        respell(self.model / "model.safetensors", lambda t: t.pop(name))
        self.assert_refused(self.merged(), "does not load cleanly", "missing_keys", name)

    def test_unexpected_weight(self):
        respell(self.model / "model.safetensors", lambda t: t.update({"model.extra.weight": torch.ones(2)}))
        self.assert_refused(self.merged(), "does not load cleanly", "unexpected_keys", "model.extra.weight")

    def test_weight_of_another_shape(self):
        respell(self.model / "model.safetensors", lambda t: t.update({"model.norm.weight": torch.ones(3)}))
        self.assert_refused(self.merged(), "model.norm.weight")

    def test_adapter_tensor_missing(self):
        name = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"
        respell(self.weights, lambda t: t.pop(name))
        self.assert_refused(self.adapted(), "lora_B")

    def test_adapter_tensor_unknown(self):
        name = "base_model.model.model.layers.9.self_attn.q_proj.lora_B.weight"
        respell(self.weights, lambda t: t.update({name: torch.ones(2, 2)}))
        self.assert_refused(self.adapted(), "layers.9")

    def test_id_outside_the_vocabulary(self):
        self.assert_refused(
            run("transformers_loads.py", self.model, "--ids", "1,67"), "outside the vocabulary of 67"
        )

    def test_ids_that_are_not_ids(self):
        self.assert_refused(run("transformers_loads.py", self.model, "--ids", "1,x"), "comma-separated")
        self.assert_refused(run("transformers_loads.py", self.model, "--ids", "1"), "at least two")


if __name__ == "__main__":
    unittest.main()
