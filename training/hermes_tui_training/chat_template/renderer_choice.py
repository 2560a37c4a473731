"""Which renderer speaks a model's chat format, and the tokenizer that it speaks with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from renderers.base import MODEL_RENDERER_MAP, load_tokenizer
from renderers.configs import BaseRendererConfig, DefaultRendererConfig, config_from_name
from transformers import PreTrainedTokenizerFast

from hermes_tui_common.errors import ConfigError
from hermes_tui_training.chat_template.chatml import ChatMLRenderer, ChatMLRendererConfig

_PROBES: tuple[list[dict[str, str]], ...] = (
    [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}],
    [
        {"role": "user", "content": " 1 + 1?\n"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "x  5 é"},
    ],
)
"""A template that renders these conversations like ``ChatMLRenderer`` is plain ChatML."""


def load_model_tokenizer(directory: Path) -> Any:
    """Return a model's tokenizer.

    A tokenizer without code of its own is loaded directly: ``AutoTokenizer`` imports the
    configurations of all models first, which takes seconds (transformers 5.24).
    """
    settings = directory / "tokenizer_config.json"
    if settings.exists():
        name = json.loads(settings.read_text(encoding="utf-8")).get("tokenizer_class")
        if name == "PreTrainedTokenizerFast":
            return PreTrainedTokenizerFast.from_pretrained(str(directory))
    return load_tokenizer(str(directory))


def choose_renderer(tokenizer: Any, name: str) -> BaseRendererConfig:
    """Return the configuration of the renderer named by ``model.renderer``."""
    if name == "chatml" or (name == "auto" and _speaks_chatml(tokenizer)):
        return ChatMLRendererConfig(default_system_prompt=_default_system_prompt(tokenizer))
    try:
        if name == "auto":
            config = _known_family(tokenizer)
        else:
            config = config_from_name(name)
            assert config is not None, "only auto has no configuration"
    except ValueError as error:
        raise ConfigError(f'model.renderer = "{name}": {error}') from error
    if isinstance(config, DefaultRendererConfig):
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                "the model has no chat template and is not of a known family; set model.renderer "
                'to its family, to "chatml", or use an instruct model'
            )
        return config
    # Keep sampled reasoning in the conversation: the model is trained on what it saw.
    try:
        return config.model_copy(update={"thinking_retention": "all"})
    except ValueError:
        return config


def _known_family(tokenizer: Any) -> BaseRendererConfig:
    family = MODEL_RENDERER_MAP.get(tokenizer.name_or_path, "default")
    config = config_from_name(family)
    assert config is not None
    return config


def _speaks_chatml(tokenizer: Any) -> bool:
    """Return whether the model's template renders the probes as plain ChatML."""
    try:
        renderer = ChatMLRenderer(
            tokenizer,
            ChatMLRendererConfig(default_system_prompt=_default_system_prompt(tokenizer)),
        )
    except ConfigError:
        return False
    if not getattr(tokenizer, "chat_template", None):
        return True
    return all(
        renderer.render_ids(list(probe), add_generation_prompt=True)
        == list(tokenizer.apply_chat_template(probe, add_generation_prompt=True, return_dict=False))
        for probe in _PROBES
    )


def _default_system_prompt(tokenizer: Any) -> str | None:
    """Return the system message that the template adds to conversations without one, or None."""
    if not getattr(tokenizer, "chat_template", None):
        return None
    text = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    opening, _, rest = text.partition("<|im_start|>system\n")
    return rest.partition("<|im_end|>")[0] if not opening and rest else None
