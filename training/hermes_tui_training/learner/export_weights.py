"""Writes a policy version's weights for other programs: Hugging Face, GGUF, an Ollama Modelfile.

The app starts this module as a process, since it keeps torch out of its own. It prints a JSON line
per stage, as ``models.prepare`` does; on failure a sentence on standard error, and exit code 3.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save_file

from hermes_tui_common.errors import ConfigError, HermesTuiError, TrainingError
from hermes_tui_training.engine.decoder import State
from hermes_tui_training.engine.llama import LlamaShape
from hermes_tui_training.engine.weight_loader import read_checkpoint
from hermes_tui_training.models.gguf_writer import GgufType, Source, chat_template, write_gguf
from hermes_tui_training.models.prepare import prepare_model
from hermes_tui_training.store.checkpoint import checkpoint_path, complete_versions, reading

EXIT_NOT_WRITTEN = 3

WEIGHTS = "model.safetensors"

_COPIED = (
    "chat_template.jinja",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)
"""Files of the base model that its weights go with."""

Report = Callable[[str, str], None]
"""Called with a stage and its detail."""


def export_version(
    model_dir: Path,
    checkpoints: Path,
    version: int | None,
    target: Path,
    kinds: Sequence[GgufType],
    report: Report,
) -> int:
    """Write a version's weights into a new directory, or nothing at all; return the version.

    Args:
        model_dir: Hugging Face directory of the base model.
        checkpoints: directory of the ``policy_version_<N>`` directories.
        version: which; 0 is the base model, None the newest.
        target: must not exist, or be empty.
        kinds: GGUF files to write.
        report: called with each stage.

    Raises:
        ConfigError: there is no such version, or the target cannot be written to.
        TrainingError: the weights cannot be read, or not be written as GGUF.
    """
    there = complete_versions(checkpoints)
    chosen = version if version is not None else max(there, default=0)
    if chosen and chosen not in there:
        names = ", ".join(map(str, (0, *there)))
        raise ConfigError(f"version {chosen} has no checkpoint in {checkpoints}: there are {names}")
    if chosen == 0:
        write_weights(model_dir, model_dir, target, kinds, report)
    else:
        path = checkpoint_path(checkpoints, chosen)
        with reading(checkpoints, chosen):
            write_weights(model_dir, path, target, kinds, report)
    return chosen


def write_weights(
    model_dir: Path,
    checkpoint: Path,
    target: Path,
    kinds: Sequence[GgufType],
    report: Report,
) -> None:
    """Write a checkpoint's weights, an adapter merged into the base model's, into a new directory.

    The directory appears when it is complete: a Hugging Face model, and for each kind
    ``model-KIND.gguf``; with one also a Modelfile for Ollama.

    Raises: ConfigError, TrainingError: as ``export_version``.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} exists already; name a directory that does not")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as scratch:
            directory = Path(scratch) / target.name
            directory.mkdir()
            _write(model_dir, checkpoint, directory, kinds, report)
            if target.exists():
                target.rmdir()
            directory.rename(target)
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror or error}") from error


def _write(
    model_dir: Path,
    checkpoint: Path,
    directory: Path,
    kinds: Sequence[GgufType],
    report: Report,
) -> None:
    state = read_checkpoint(model_dir, checkpoint)
    report("writing the model", WEIGHTS)
    for name in _COPIED:
        if (model_dir / name).exists():
            shutil.copyfile(model_dir / name, directory / name)
    config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    _save(state, config, directory)
    source = _source(state, config, directory)
    for kind in kinds:
        report("writing GGUF", _gguf_name(kind))
        try:
            write_gguf(source, directory / _gguf_name(kind), kind)
        except ValueError as error:
            raise TrainingError(
                f"{_gguf_name(kind)} cannot be written: {error}; --gguf none leaves it out"
            ) from error
    if kinds:
        (directory / "Modelfile").write_text(_modelfile(directory, kinds[0]), encoding="utf-8")


def _gguf_name(kind: GgufType) -> str:
    return f"model-{kind}.gguf"


def _save(state: State, config: dict[str, Any], directory: Path) -> None:
    """Write all weights as one file, in the precision that they had before an adapter was added."""
    unchanged = [name for name in state if state.is_base(name)] or list(state)
    dtype = state[unchanged[0]].dtype
    tensors = {
        name: tensor.to(dtype).contiguous()
        for name, tensor in state.items()
        if not (name == "lm_head.weight" and config.get("tie_word_embeddings"))
    }
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})
    config = {key: value for key, value in config.items() if key != "torch_dtype"}
    config["dtype"] = str(dtype).removeprefix("torch.")
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _source(state: State, config: dict[str, Any], directory: Path) -> Source:
    shape = LlamaShape.from_config(config)

    def read(name: str) -> NDArray[np.float32]:
        values: NDArray[np.float32] = state[name].float().numpy()
        return values

    return Source(
        directory=directory,
        shapes={name: tuple(tensor.shape) for name, tensor in state.items()},
        read=read,
        rope_factors=None if shape is None else _rope_factors(shape, config),
    )


def _rope_factors(shape: LlamaShape, config: dict[str, Any]) -> tuple[float, ...] | None:
    """Return what scaling divides each rotary frequency by; None when nothing is scaled."""
    rope = config.get("rope_parameters") or {}
    theta = rope.get("rope_theta") or config.get("rope_theta") or 10_000.0
    size = shape.head_size
    plain = [1.0 / theta ** (index / size) for index in range(0, size, 2)]
    factors = tuple(p / f for p, f in zip(plain, shape.inverse_frequencies, strict=True))
    return None if all(abs(factor - 1.0) < 1e-6 for factor in factors) else factors


# -- Ollama -----------------------------------------------------------------------------------

_CHATML = """TEMPLATE \"\"\"{{ range .Messages }}<|im_start|>{{ .Role }}
{{ .Content }}<|im_end|>
{{ end }}<|im_start|>assistant
\"\"\"
PARAMETER stop "<|im_end|>"
"""

_SYSTEM = re.compile(r"<\|im_start\|>system\n(.*?)<\|im_end\|>", re.DOTALL)


def _modelfile(directory: Path, kind: GgufType) -> str:
    """Return a Modelfile for Ollama; a model that speaks no ChatML has its template in the GGUF."""
    text = f"FROM ./{_gguf_name(kind)}\n"
    template = chat_template(directory)
    if "<|im_start|>" not in template:
        return text
    text += _CHATML
    # What the template says when nobody gave a system prompt, as the model was trained with it.
    if "tools" not in template and (said := _SYSTEM.search(template.replace("\\n", "\n"))):
        text += f'SYSTEM """{said[1]}"""\n'
    return text


def main() -> int:
    """Export what the command line names."""
    parser = argparse.ArgumentParser(prog="python -P -m hermes_tui_training.learner.export_weights")
    parser.add_argument("--model", required=True, help="model.path of the base model")
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--policy-version", type=int)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--gguf", action="append", default=[], choices=get_args(GgufType))
    arguments = parser.parse_args()

    def report(stage: str, detail: str) -> None:
        print(json.dumps({"stage": stage, "detail": detail}), flush=True)

    try:
        model_dir = prepare_model(arguments.model, lambda line: report("preparing", line))
        version = export_version(
            model_dir,
            arguments.checkpoints,
            arguments.policy_version,
            arguments.to.absolute(),
            arguments.gguf,
            report,
        )
    except HermesTuiError as error:
        print(error, file=sys.stderr)
        return EXIT_NOT_WRITTEN
    report("exported", f"policy version {version} to {os.fspath(arguments.to)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
