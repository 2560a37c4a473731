"""Translates the settings of AReaL's ``train.py``, YAML files and command lines, into ours.

AReaL's words come from its ``examples/hermes/config.yaml`` and its command-line reference. Each is
mapped, or left out with the reason; what is left out is reported, since a setting that silently
does nothing misleads. docs/areal.md has the same table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hermes_tui_common.errors import ConfigError

Overrides = Mapping[str, Any]
"""Our settings by dotted key."""


def _to(*keys: str) -> Callable[[Any], Overrides]:
    return lambda value: dict.fromkeys(keys, value)


def _dtype(value: Any) -> Overrides:
    if value not in ("bfloat16", "float32", "auto"):
        raise ValueError('model.dtype is "auto", "float32" or "bfloat16"')
    return {"model.dtype": value}


def _lora(value: Any) -> Overrides:
    return {} if value else {"training.lora.rank": 0}


def _wandb(value: Any) -> Overrides:
    return {} if value == "disabled" else {"training.metrics.loggers": ["wandb"]}


MAPPED: Mapping[str, Callable[[Any], Overrides]] = {
    "actor.path": _to("model.path"),
    "actor.dtype": _dtype,
    "rollout.admin_api_key": _to("training.admin_api_key"),
    "train_dataset.batch_size": _to("training.batch_size"),
    "rollout.consumer_batch_size": _to("training.batch_size"),
    "rollout.max_head_offpolicyness": _to("training.max_staleness"),
    "rollout.max_concurrent_rollouts": _to("training.gateway.max_sessions"),
    "rollout.agent.turn_discount": _to("training.reward.turn_discount"),
    "rollout.agent.session_timeout_seconds": _to("training.gateway.session_timeout_s"),
    "actor.reward_scaling": _to("training.reward.scale"),
    "actor.reward_bias": _to("training.reward.bias"),
    "actor.reward_clip": _to("training.reward.clip"),
    "actor.eps_clip": _to("training.loss.clip_low", "training.loss.clip_high"),
    "actor.eps_clip_higher": _to("training.loss.clip_high"),
    "actor.kl_ctl": _to("training.loss.kl_coef"),
    "actor.behav_imp_weight_cap": _to("training.loss.tis_cap"),
    "actor.rejection_sampling.upper": _to("training.loss.reject"),
    "actor.mb_spec.max_tokens_per_mb": _to("training.micro_batch_tokens"),
    "actor.optimizer.lr": _to("training.optimizer.learning_rate"),
    "actor.optimizer.weight_decay": _to("training.optimizer.weight_decay"),
    "actor.optimizer.gradient_clipping": _to("training.optimizer.max_grad_norm"),
    "actor.use_lora": _lora,
    "actor.lora_rank": _to("training.lora.rank"),
    "actor.lora_alpha": _to("training.lora.alpha"),
    "saver.freq_steps": _to("training.checkpoint.keep_every"),
    "sglang.max_running_requests": _to("training.engine.max_num_seqs"),
    "vllm.max_num_seqs": _to("training.engine.max_num_seqs"),
    "stats_logger.wandb.mode": _wandb,
}
"""AReaL's words that have a counterpart; ``null`` leaves ours at its default."""

LEFT_OUT: Mapping[str, str] = {
    "actor.admin_api_key": "rollout.admin_api_key guards both gateway and trainer",
    "actor.optimizer": "the length of a step is searched: training.step.nats_per_unit",
    "actor.reward_norm": "siblings are measured against each other: training.group.advantage",
    "actor.adv_norm": "training.group.divide_by_std",
    "actor.backend": "there is one learner, on this machine",
    "actor": "has no counterpart",
    "cluster.fileroot": "files go to run.dir",
    "cluster": "everything runs on this machine",
    "enable_offload": "has no counterpart",
    "evaluator": "every version answers training.canary.prompts",
    "experiment_name": "a run is a run directory: run.dir",
    "gconfig.greedy": "each request says its temperature",
    "gconfig.max_new_tokens": "each request says max_tokens; the agent's: "
    "services.agent.max_tokens",
    "gconfig.n_samples": "start_session takes group_size",
    "gconfig.temperature": "each request says its temperature; the agent's: "
    "services.agent.temperature",
    "gconfig": "each request says how it is sampled",
    "perf_tracer": "has no counterpart; see docs/performance.md",
    "recover": "a stack that starts again always goes on from its newest checkpoint",
    "ref": "training.loss.kl_coef is towards the weights that training started from",
    "rollout.agent.export_style": "/export_trajectories takes style with each request",
    "rollout.agent.tool_call_parser": "model.renderer knows the model's format",
    "rollout.agent.reasoning_parser": "model.renderer knows the model's format",
    "rollout": "has no counterpart",
    "saver": "every version is a checkpoint: training.checkpoint.*",
    "scheduler": "everything runs on this machine",
    "seed": "each request says its seed",
    "sglang": "the engine is chosen by training.engine.kind; the context is the model's",
    "stats_logger.tensorboard": "training.metrics.loggers",
    "stats_logger": "training.metrics.loggers",
    "tokenizer_path": "the tokenizer is the model's",
    "total_train_epochs": "training goes on until somebody pauses it",
    "total_train_steps": "training goes on until somebody pauses it",
    "train_dataset": "there is no data set: what is said is the data",
    "trial_name": "a run is a run directory: run.dir",
    "valid_dataset": "every version answers training.canary.prompts",
    "vllm": "the engine is chosen by training.engine.kind; the context is the model's",
}
"""AReaL's words, or the sections they are in, that are left out, and why."""

_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")
"""A number that YAML 1.1 takes for a text, such as 5e-6."""

_REFERENCE = re.compile(r"\$\{([\w.]+)\}")


@dataclass(slots=True, kw_only=True)
class Translation:
    """AReaL's settings as ours."""

    overrides: dict[str, str] = field(default_factory=dict)
    """Our settings by dotted key, as TOML; a later word wins."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Words that were left out, and why."""

    def words(self) -> list[str]:
        """Return the settings as ``section.key=value`` words."""
        return [f"{key}={value}" for key, value in self.overrides.items()]

    def add(self, word: str, value: Any) -> None:
        """Translate one word.

        Args:
            word: AReaL's dotted key; one that is not AReaL's is taken for one of ours.
            value: as YAML or the command line has it; None leaves ours as it is.

        Raises: ConfigError: the value is none that ours can have.
        """
        if word in MAPPED:
            if value is None:
                return
            if isinstance(value, str) and _NUMBER.fullmatch(value):
                value = float(value)
            try:
                found = MAPPED[word](value)
            except ValueError as error:
                raise ConfigError(f"{word} = {value!r} cannot be taken over: {error}") from error
            self.overrides |= {key: json.dumps(ours) for key, ours in found.items()}
        elif (reason := _why_left_out(word)) is not None:
            self.left_out[word] = reason
        else:
            self.overrides[word] = value if isinstance(value, str) else json.dumps(value)


def _why_left_out(word: str) -> str | None:
    """Return the reason that its longest known prefix has; None for a word that is not AReaL's."""
    parts = word.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((LEFT_OUT[prefix] for prefix in prefixes if prefix in LEFT_OUT), None)


def read_yaml(file: Path) -> Translation:
    """Return what a YAML file of AReaL's says.

    Raises: ConfigError: it cannot be read, is no YAML, or has a word that is not AReaL's.
    """
    import yaml  # late: few commands need it

    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror})") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = file if line is None else f"{file}:{line + 1}"
        raise ConfigError(f"{where}: not YAML: {getattr(error, 'problem', error)}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{file}: holds no settings")
    flat = dict(_flat(tree))
    translation = Translation()
    for word, value in flat.items():
        if word not in MAPPED and _why_left_out(word) is None:
            raise ConfigError(
                f"{file}: {word} is no setting of AReaL's train.py that is known here; settings of "
                "ours stand in a TOML file, or on the command line"
            )
        translation.add(word, _resolved(value, flat))
    return translation


def read_words(words: Sequence[str]) -> Translation:
    """Return what ``key=value`` words of a command line say, AReaL's and ours.

    Raises: ConfigError: a word is no setting, or its value is none that ours can have.
    """
    import yaml

    translation = Translation()
    for text in words:
        word, equals, raw = text.lstrip("+").partition("=")
        if not equals:
            raise ConfigError(f"{text!r} is no setting; write key=value")
        try:
            value = yaml.safe_load(raw) if word in MAPPED else raw
        except yaml.YAMLError:
            value = raw
        translation.add(word, value)
    return translation


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each setting of nested tables under its dotted key."""
    for name, value in tree.items():
        word = f"{prefix}{name}"
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{word}.")
        else:
            yield word, value


def _resolved(value: Any, flat: Mapping[str, Any]) -> Any:
    """Return a value with its reference to another one, ``${section.key}``, followed."""
    seen = set()
    while isinstance(value, str) and (found := _REFERENCE.fullmatch(value)):
        name = found[1]
        if name in seen or name not in flat:
            return None
        seen.add(name)
        value = flat[name]
    return value
