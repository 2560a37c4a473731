"""Settings of model and trainer: ``[model]`` and ``[training.*]``, and what each role gets.

Free of torch: the app reads it too.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from hermes_tui_common.serving import RoleConfig
from hermes_tui_common.settings import OptionalKey, RoleKey, Secret, Section


class ModelConfig(Section):
    """``[model]``: what is served and trained."""

    path: str = "smollm2-135m"
    """The embedded model's name, a local Hugging Face directory, or a hub id."""
    renderer: str = "auto"
    """Family that turns messages into tokens; "auto" chooses by the model."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the weights; "auto" is float32 on a CPU and bfloat16 on a GPU."""


class InferenceGatewayConfig(Section):
    """``[training.gateway]``: the OpenAI-compatible server that records."""

    host: str = "127.0.0.1"
    """Address to listen on. Beyond loopback a strong training.admin_api_key is required."""
    port: int = Field(0, ge=0, le=65535)
    """Port to listen on; 0 takes a free one, kept for the life of the stack."""
    accept_foreign_keys: bool = False
    """Whether start_session takes an unknown api_key that begins with sk-sess-."""
    top_logprobs: int = Field(4, ge=0, le=20)
    """Likeliest tokens recorded at each sampled one, for the token view; 0 for none."""
    max_sessions: int = Field(0, ge=0)
    """Sessions that may be open together. Beyond it start_session is answered 429 with Retry-After;
    0 for no bound."""
    session_timeout_s: float = Field(604_800.0, ge=0)
    """A session without a completion for this long is ended; 0 ends none."""


class EngineConfig(Section):
    """``[training.engine]``: what samples the tokens."""

    kind: Literal["auto", "torch", "vllm"] = "auto"
    """Which engine; "auto" is vllm where there are a CUDA device and an installed vLLM, else
    torch."""
    python: str = ""
    """Interpreter that has vLLM; empty is the one that `hermes-tui engine install vllm` made."""
    vllm_args: tuple[str, ...] = ()
    """More arguments of the vLLM server, such as ["--tensor-parallel-size", "2"]."""
    base_url: str = ""
    """Address of a vLLM server that runs already, instead of starting one."""
    api_key: Secret = SecretStr("")
    """Its key."""
    max_num_seqs: int = Field(16, ge=1)
    """Requests decoded together; more wait their turn."""
    max_model_len: int = Field(0, ge=0)
    """Longest prompt plus reply in tokens; 0 is what the model was made for."""
    prefix_cache_tokens: int = Field(32768, ge=0)
    """Tokens whose keys and values are kept for the next turn."""


class RewardConfig(Section):
    """``[training.reward]``: from a reward to an advantage."""

    range: tuple[float, float] = (-1.0, 1.0)
    """Rewards outside are refused."""
    grace_s: float = Field(6.0, ge=0)
    """Seconds a reward waits for an undo before the trainer may claim its episode."""
    scale: float = 1.0
    """Factor of the advantage."""
    bias: float = 0.0
    """Added to the reward before scaling."""
    clip: float = Field(20.0, gt=0)
    """Bound of the advantage's magnitude."""
    baseline_decay: float = Field(1.0, ge=0, le=1)
    """Decay of the running mean reward, per topic and turn, that a lone episode is measured
    against. With 1 there is none: a score is what it says, and 0 is neutral. Less suits judges that
    never give a minus."""
    turn_discount: float = Field(1.0, ge=0, le=1)
    """Discount per completion, counted back from a judged turn to those before it without a score
    of their own."""
    unscored: float | Literal["skip"] = "skip"
    """Reward of an episode whose session ends before anybody gave one; "skip" trains nothing. A
    reward that is given later replaces it until the trainer has claimed the episode."""

    @field_validator("unscored", mode="before")
    @classmethod
    def _within_range(cls, value: Any, info: ValidationInfo) -> Any:
        low, high = info.data.get("range", (-math.inf, math.inf))
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value != "skip" and not (is_number and low <= value <= high):
            raise ValueError(f'must be "skip" or a reward from {low:g} to {high:g}, not {value!r}')
        return value

    @field_validator("range")
    @classmethod
    def _lowest_first(cls, value: tuple[float, float]) -> tuple[float, float]:
        low, high = value
        if not low < high:
            raise ValueError(
                f"must be the lowest reward and then the highest, not {low:g}, {high:g}"
            )
        return value


class GroupConfig(Section):
    """``[training.group]``: siblings of one task, measured against each other."""

    timeout_s: float = Field(60.0, ge=0)
    """Seconds that a group waits, from its first reward on, for siblings without one; then those
    that have one go."""
    advantage: Literal["leave_one_out", "mean"] = "leave_one_out"
    """What a sibling's return is measured against: the mean of the others, or of all."""
    min_size: int = 2
    """Fewer scored siblings than this are lone episodes, measured against the running baseline."""
    divide_by_std: bool = False
    """Whether advantages are divided by the group's standard deviation. Off: it overweights tasks
    that are too easy or too hard (arXiv:2503.20783)."""

    @field_validator("min_size")
    @classmethod
    def _never_center_a_lone_episode(cls, value: int) -> int:
        if value < 2:
            raise ValueError(
                "would center a group of one: x - mean(x) is always zero, so nothing would be "
                "learned while every counter still moves; use 2 or more"
            )
        return value


Topic = Annotated[
    str,
    StringConstraints(
        strip_whitespace=True, min_length=1, max_length=40, pattern=r"^[^#\x00-\x1f\x7f]+$"
    ),
]
"""Name of a topic: a few words in one line. No ``#``, which the baselines' names use."""


TOPIC_RULE = "a topic is 1 to 40 characters in one line, without #"


def is_topic(text: str) -> bool:
    """Return whether a text can be a topic."""
    try:
        TypeAdapter[str](Topic).validate_python(text)
    except ValidationError:
        return False
    return True


class TopicsConfig(Section):
    """``[training.topics]``: what a session is about. Sessions of one topic share a baseline.

    The first message decides, by its words. Everywhere that sessions are listed the topic can be
    seen, and set for one session.
    """

    tasks: tuple[str, ...] = ("chat", "compare")
    """Tasks whose sessions get a topic by their words; those of any other task have the task as
    their topic. These two are what the screen and --plain start."""
    words: dict[Topic, tuple[str, ...]] = Field(
        default_factory=lambda: {
            "code": ("code", "python", "function", "script", "program", "bug", "sql", "git"),
            "files": ("file", "files", "folder", "directory", "install", "run"),
            "writing": ("write", "rewrite", "email", "letter", "story", "poem", "translate"),
            "numbers": ("calculate", "plus", "minus", "times", "percent", "how many", "how much"),
            "questions": ("what", "who", "when", "where", "why", "which", "how"),
        }
    )
    """Topics with their words: the first topic one of whose words is in the first message, as a
    whole word in whatever case. None: the topic is the task. What is set here replaces the list."""


_Decay = Annotated[float, Field(ge=0, lt=1)]


class StepConfig(Section):
    """``[training.step]``: how far one step moves the policy."""

    nats_per_unit: float = Field(0.5, ge=0)
    """How far a score of 1 moves the judged reply: change of its tokens' mean log-probability, in
    nats. 0.1 moves it a tenth of that. 0 trains nothing."""
    max_reference_drift: float = Field(0.1, gt=0)
    """How far the mean log-probability of the reference text may fall over the whole run, in nats a
    token. A step that would go beyond is shortened."""
    reference_text: str = (
        "A river begins high in the hills, where rain and melting snow gather in small streams. "
        '"How far is it to the sea?" asked Maria. Two days on foot, said the old man. In 1891 a '
        "bridge was built there; it still stands."
    )
    """A text that no score is about. What happens to it is what happens to the rest of the model;
    choose one in the language and of the kind that should stay as it is."""


class OptimizerConfig(Section):
    """``[training.optimizer]``: without effect, and accepted so that older files load.

    ``[training.step]`` says how far a step goes; nothing is kept from step to step.
    """

    learning_rate: float = Field(3e-4, gt=0)
    """Without effect: the length of a step is searched."""
    betas: tuple[_Decay, _Decay] = (0.0, 0.99)
    """Without effect."""
    weight_decay: float = Field(0.0, ge=0)
    """Without effect."""
    warmup_steps: int = Field(0, ge=0)
    """Without effect."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Without effect."""


class LoraConfig(Section):
    """``[training.lora]``: low-rank adapters."""

    rank: int = Field(16, ge=0)
    """Rank of the adapters on every linear layer; 0 trains all weights."""
    alpha: float = Field(32.0, gt=0)
    """Scale of the adapters: alpha / rank."""


class LossConfig(Section):
    """``[training.loss]``: decoupled, clipped policy gradient (AReaL, arXiv:2505.24298)."""

    clip_low: float = Field(0.2, gt=0, le=1)
    """How far below 1 the policy ratio counts as moved past the clip, in ``clip_frac``."""
    clip_high: float = Field(0.2, gt=0)
    """How far above 1 it does."""
    tis_cap: float = Field(2.0, gt=0)
    """Bound of the truncated importance weight between sampler and trainer."""
    reject: float = Field(5.0, gt=1)
    """Tokens whose behaviour ratio leaves [1/reject, reject] are masked out and counted."""
    kl_coef: float = Field(0.0, ge=0)
    """Weight of the KL penalty towards the weights that training started from."""
    max_step_kl: float = Field(0.5, gt=0)
    """How far one step may move the policy at the judged tokens: KL in nats a token. A step that
    would go beyond is shortened."""


class WatchConfig(Section):
    """``[training.watch]``: signs that the model becomes another than was asked for."""

    action: Literal["warn", "hold"] = "warn"
    """What to do about one answer for all, repetition, lengths that run away, entropy that falls
    away, or a reference text that moved. warn: say so in the step's row and in the log · hold: also
    pause training, with the reason, when one begins."""


MetricsLogger = Literal["tensorboard", "trackio", "wandb"]
"""A library that plots the numbers of steps; used when it is installed and named here."""


class MetricsConfig(Section):
    """``[training.metrics]``: where the numbers of steps go beside ``metrics.jsonl``."""

    loggers: tuple[MetricsLogger, ...] = ()
    """Libraries that get them too, each when it is installed: its own settings and login count."""


class CheckpointConfig(Section):
    """``[training.checkpoint]``: what is kept on disk, so that one can go back."""

    keep_last: int = Field(3, ge=1)
    """How many of the newest policy versions are kept in any case."""
    keep_all_s: float = Field(3600.0, ge=0)
    """Versions made within this time are all kept."""
    keep_every: int = Field(10, ge=1)
    """Of older ones, those whose number this divides."""
    max_bytes: int = Field(4_000_000_000, ge=0)
    """Beyond this the versions that reach back least are deleted too; 0 for no bound. The newest,
    the served and the pinned ones are kept, even where that is too much."""


class StoreConfig(Section):
    """``[training.store]``: what is recorded, in ``trajectories.db``."""

    max_bytes: int = Field(4_000_000_000, ge=0)
    """Beyond this the sessions that were used the longest ago are deleted, in whole groups and
    with their episodes; never one that waits to be trained. 0 keeps everything."""
    keep_s: float = Field(86_400.0, ge=0)
    """Sessions in use within this time are kept, even where that is too much."""


class CanaryConfig(Section):
    """``[training.canary]``: the same questions to every version, to see whether it gets better."""

    prompts: tuple[Annotated[str, Field(min_length=1)], ...] = (
        "Say hello to a friend in one sentence.",
        "What is the capital of France?",
        "Explain in two sentences why the sky is blue.",
    )
    """Asked greedily after each version, when nobody else asks anything; none turns it off."""
    max_tokens: int = Field(32, ge=1)
    """Longest answer, in tokens."""


class TrainingConfig(Section):
    """``[training]``: the trainer."""

    enabled: bool = True
    """Whether to run the trainer and its inference gateway."""
    admin_api_key: OptionalKey = SecretStr("")
    """Key of the inference gateway's admin routes; empty mints one into keys.json."""
    batch_size: int = Field(1, ge=1)
    """Scored groups or lone episodes that a step needs at least; it takes all that are ready."""
    max_staleness: int = Field(256, ge=0)
    """Episodes sampled by weights more versions behind than this are not trained, whatever their
    divergence."""
    max_divergence: float = Field(0.5, gt=0)
    """Episodes from which the policy has moved further than this since they were sampled are not
    trained: KL(sampler, learner) in nats a token, at their own tokens."""
    max_backlog: int = Field(256, ge=1)
    """Scored episodes that may wait for a step. Beyond it a reward given with a session key is
    answered 429; with the admin key, as the screen and --plain do, never."""
    micro_batch_tokens: int = Field(4096, ge=1)
    """Padded tokens that go through the learner's model at once; changes memory, not results."""
    train_truncated: bool = False
    """Whether replies that were cut by max_tokens are trained."""
    gateway: InferenceGatewayConfig = InferenceGatewayConfig()
    engine: EngineConfig = EngineConfig()
    reward: RewardConfig = RewardConfig()
    group: GroupConfig = GroupConfig()
    topics: TopicsConfig = TopicsConfig()
    step: StepConfig = StepConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    lora: LoraConfig = LoraConfig()
    loss: LossConfig = LossConfig()
    watch: WatchConfig = WatchConfig()
    metrics: MetricsConfig = MetricsConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    store: StoreConfig = StoreConfig()
    canary: CanaryConfig = CanaryConfig()


def settings_without_effect(training: TrainingConfig) -> list[str]:
    """Return the dotted names of settings that were changed and do nothing."""
    changed = training.optimizer.model_dump(exclude_defaults=True)
    return [f"training.optimizer.{name}" for name in changed]


class VllmAddress(BaseModel):
    """Where a vLLM server answers."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    url: str = "http://vllm"
    """Its address; only a name with a socket."""
    socket: Path | None = None
    """Unix socket that it listens on, readable by its owner only."""
    api_key: Secret = SecretStr("")
    """Its key; empty for none."""


class VllmRole(RoleConfig):
    """What the process that keeps a vLLM server is started with."""

    model: ModelConfig
    """What to serve."""
    training: TrainingConfig
    """Its ``engine`` and ``lora`` sections say how."""
    python: Path
    """Interpreter that has vLLM."""
    socket: Path
    """Unix socket that the server listens on."""


class TrainerRole(RoleConfig):
    """What the trainer (inference gateway, store, engine, orchestrator) is started with."""

    admin_key: RoleKey
    """Key of the admin routes, and of the learner's."""
    model: ModelConfig
    """What to serve."""
    training: TrainingConfig
    """How to train."""
    database: Path
    """``trajectories.db`` of the run directory."""
    checkpoints: Path
    """Directory of the ``policy_version_<N>`` directories."""
    learner_run_file: Path
    """Run file of the learner; read anew whenever the learner is called, since it may restart."""
    vllm: VllmAddress | None = None
    """The vLLM server that samples; None samples in this process, with torch."""


class LearnerRole(RoleConfig):
    """What the learner is started with."""

    admin_key: RoleKey
    """Key of every route but /health."""
    model: ModelConfig
    """What to train."""
    training: TrainingConfig
    """How to train."""
    checkpoints: Path
    """Directory of the ``policy_version_<N>`` directories."""
