"""Weights that leave: checkpoints as they are, merged directories, GGUF, llama.cpp."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.tiny_decoders import LLAMA3_ROPE, VOCABULARY, make_decoder
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from hermes_tui_common.errors import ConfigError, TrainingError
from hermes_tui_training.api.config import LoraConfig
from hermes_tui_training.learner.export_weights import export_version, write_weights
from hermes_tui_training.learner.model import PolicyModel
from hermes_tui_training.models.prepare import EMBEDDED_MODEL, prepare_model

PROMPT = [72, 101, 108, 108, 111, 32, 260, 101, 114, 101]
"""“Hello there” in bytes, with a token for “th”."""

LLAMA_CPP = """
import json, sys, urllib.request
import xllamacpp

file, prompt, count = sys.argv[1:]
params = xllamacpp.CommonParams()
params.model.path = file
params.n_ctx = 512
params.n_parallel = 1
params.warmup = False
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(params)
body = {"prompt": json.loads(prompt), "n_predict": int(count), "temperature": 0.0}
body |= {"return_tokens": True, "ignore_eos": True}
url, headers = server.listening_address + "/completion", {"Content-Type": "application/json"}
request = urllib.request.Request(url, json.dumps(body).encode(), headers)
print("TOKENS", json.loads(urllib.request.urlopen(request).read())["tokens"])
"""


def ignore(_stage: str, _detail: str = "") -> None:
    """Take a stage."""


def make_base(directory: Path, kind: str = "llama", **changes: Any) -> Path:
    """Write a tiny model whose tokenizer has a merge, without which llama.cpp loads none."""
    file = make_decoder(directory, kind, **changes) / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    del tokenizer["added_tokens"][-1]
    tokenizer["model"]["vocab"]["th"] = VOCABULARY - 1
    tokenizer["model"]["merges"] = [["t", "h"]]
    tokenizer["pre_tokenizer"]["use_regex"] = True
    file.write_text(json.dumps(tokenizer))
    return directory


def trained(base: Path, checkpoint: Path, rank: int = 4, *, change: float = 0.05) -> Path:
    """Write a checkpoint whose weights are not the base model's, as the learner writes it."""
    policy = PolicyModel(
        base,
        LoraConfig(rank=rank, alpha=8.0),
        device=torch.device("cpu"),
        dtype=torch.float32,
        with_reference=False,
    )
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn_like(parameter) * change)
    checkpoint.mkdir(parents=True)
    policy.save(checkpoint)
    return checkpoint


def logits(model: Any, token_ids: Sequence[int] = PROMPT) -> Tensor:
    with torch.inference_mode():
        found: Tensor = model(torch.tensor([token_ids])).logits.float()
    return found


def greedy(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    with torch.inference_mode():
        found = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
        )
    return [int(token) for token in found[0][len(prompt) :]]


def llama_cpp(file: Path, prompt: Sequence[int], count: int) -> list[int]:
    """Return the tokens that llama.cpp samples greedily after a prompt."""
    pytest.importorskip("xllamacpp", reason="there is no ready built llama.cpp for this machine")
    done = subprocess.run(
        [sys.executable, "-P", "-c", LLAMA_CPP, str(file), json.dumps(prompt), str(count)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    found = re.search(r"^TOKENS (.+)$", done.stdout, re.MULTILINE)
    assert found, done.stderr[-2000:]
    tokens: list[int] = json.loads(found[1])
    return tokens


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated")  # peft asks for it
@pytest.mark.parametrize("rank", [4, 0])
def test_a_checkpoint_loads_with_nothing_set(tmp_path: Path, rank: int) -> None:
    base = make_base(tmp_path / "base")
    checkpoint = trained(base, tmp_path / "policy_version_1", rank)
    found = logits(AutoModelForCausalLM.from_pretrained(checkpoint))
    if rank:
        own = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), checkpoint)
        torch.testing.assert_close(logits(own), found, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(found, logits(AutoModelForCausalLM.from_pretrained(base)), atol=1e-2)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {}),
        ("llama", {"rope_parameters": LLAMA3_ROPE}),
        ("llama", {"tie_word_embeddings": False}),
        ("qwen2", {}),
        ("qwen3", {}),
    ],
)
def test_what_is_exported_is_the_same_model_again(
    tmp_path: Path, kind: str, changes: dict[str, Any]
) -> None:
    base = make_base(tmp_path / "base", kind, **changes)
    checkpoint = trained(base, tmp_path / "policy_version_1")
    target = tmp_path / "out" / "mine"
    write_weights(base, checkpoint, target, ["F32", "F16", "Q8_0"], ignore)
    expected = logits(AutoModelForCausalLM.from_pretrained(checkpoint))
    again = AutoModelForCausalLM.from_pretrained(target)
    torch.testing.assert_close(logits(again), expected, atol=1e-4, rtol=1e-4)
    assert AutoTokenizer.from_pretrained(target)("Hello")["input_ids"] == PROMPT[:5]
    assert llama_cpp(target / "model-F32.gguf", PROMPT, 12) == greedy(again, PROMPT, 12)
    assert not list((tmp_path / "out").glob(".*"))


@pytest.mark.parametrize(("file", "tolerance"), [("F32", 1e-4), ("F16", 3e-2), ("Q8_0", 0.3)])
def test_other_readers_of_gguf_find_the_same_weights(
    tmp_path: Path, file: str, tolerance: float
) -> None:
    base = make_base(tmp_path / "base")
    checkpoint = trained(base, tmp_path / "policy_version_1")
    write_weights(base, checkpoint, tmp_path / "mine", [file], ignore)  # type: ignore[list-item]
    expected = logits(AutoModelForCausalLM.from_pretrained(tmp_path / "mine"))
    name = f"model-{file}.gguf"
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "mine", gguf_file=name)
    torch.testing.assert_close(logits(theirs), expected, atol=tolerance, rtol=tolerance)
    if file != "F32":
        assert not torch.equal(logits(theirs), expected)
    assert (tmp_path / "mine" / "Modelfile").read_text().startswith(f"FROM ./{name}\n")


def test_nothing_is_left_of_an_export_that_fails(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", "gpt2")
    out = tmp_path / "out"
    with pytest.raises(TrainingError, match="GPT2LMHeadModel is not written as GGUF"):
        write_weights(base, base, out / "mine", ["F32"], ignore)
    assert list(out.iterdir()) == []
    write_weights(base, base, out / "mine", [], ignore)
    assert logits(AutoModelForCausalLM.from_pretrained(out / "mine")).shape[-1] == VOCABULARY
    with pytest.raises(ConfigError, match="exists already"):
        write_weights(base, base, out / "mine", [], ignore)


def test_versions_are_named_and_what_is_broken_is_refused(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base")
    checkpoints = tmp_path / "checkpoints"
    path = trained(base, checkpoints / "policy_version_3")
    (path / "step.json").write_text("{}")
    (path / "COMPLETE").touch()
    with pytest.raises(ConfigError, match=r"version 4 has no checkpoint in .*: there are 0, 3"):
        export_version(base, checkpoints, 4, tmp_path / "a", [], ignore)
    assert export_version(base, checkpoints, None, tmp_path / "newest", [], ignore) == 3
    assert export_version(base, checkpoints, 0, tmp_path / "base-again", [], ignore) == 0
    (path / "adapter_model.safetensors").write_bytes(b"no weights")
    with pytest.raises(TrainingError, match=r"damaged|cannot be"):
        export_version(base, checkpoints, 3, tmp_path / "b", [], ignore)
    assert not (tmp_path / "b").exists()


def test_the_command_writes_the_version_of_a_run_directory(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base")
    path = trained(base, tmp_path / "run" / "checkpoints" / "policy_version_1")
    (path / "step.json").write_text("{}")
    (path / "COMPLETE").touch()
    words = ["export", "--weights", "--policy-version", "1", "--to", str(tmp_path / "mine")]
    settings = [f"run.dir={tmp_path / 'run'}", f"model.path={base}"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "hermes_tui.cli.main", *words, "--gguf", "Q8_0", *settings],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "policy version 1" in done.stdout
    names = {file.name for file in (tmp_path / "mine").iterdir()}
    assert {"model.safetensors", "tokenizer.json", "model-Q8_0.gguf", "Modelfile"} <= names


@pytest.mark.embedded
@pytest.mark.timeout(600)
def test_the_embedded_model_travels(tmp_path: Path) -> None:
    base = prepare_model(EMBEDDED_MODEL, lambda _line: None)
    checkpoint = trained(base, tmp_path / "policy_version_1", change=0.003)
    target = tmp_path / "mine"
    write_weights(base, checkpoint, target, ["F32", "F16", "Q8_0"], ignore)
    tokenizer = AutoTokenizer.from_pretrained(target)
    text = "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n"
    prompt = tokenizer(text)["input_ids"]
    adapted = AutoModelForCausalLM.from_pretrained(checkpoint)
    merged = AutoModelForCausalLM.from_pretrained(target)
    torch.testing.assert_close(
        logits(merged, prompt), logits(adapted, prompt), atol=1e-2, rtol=1e-2
    )
    count = 24
    expected = greedy(merged, prompt, count)
    in_f32 = llama_cpp(target / "model-F32.gguf", prompt, count)
    assert tokenizer.decode(in_f32) == tokenizer.decode(expected)
    for kind in ("F16", "Q8_0"):
        found = llama_cpp(target / f"model-{kind}.gguf", prompt, count)
        pairs = enumerate(zip(found, expected, strict=True))
        differs = next((place for place, (ours, theirs) in pairs if ours != theirs), None)
        print(f"{kind}: first difference at token {differs}")
        assert found[0] == expected[0]
    modelfile = (target / "Modelfile").read_text()
    assert 'PARAMETER stop "<|im_end|>"' in modelfile
    assert 'SYSTEM """You are a helpful AI assistant named SmolLM' in modelfile
