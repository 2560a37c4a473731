"""The configuration: mistakes by value, precedence, the loopback rule, the reference file."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomli

from hermes_tui.config.errors import known_keys
from hermes_tui.config.recommend import Recommendation
from hermes_tui.config.reference import config_toml, machine_toml, reference_toml
from hermes_tui.config.settings import (
    Config,
    find_file,
    is_loopback,
    load_config,
    load_with_sources,
)
from hermes_tui_common.errors import ConfigError

ROOT = Path(__file__).parents[3]


def load(text: str, tmp_path: Path, *words: str, **environ: str) -> Config:
    file = tmp_path / "hermes.toml"
    file.write_text(text)
    return load_config(words, path=file, environ=environ)


def fault(text: str, tmp_path: Path, *words: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as error:
        load(text, tmp_path, *words, **environ)
    message = str(error.value)
    assert "\n" not in message
    return message.replace(f"{tmp_path}/", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[services.agent]\nmax_turns = 3\nmax_token = 5\n",
            "hermes.toml:3: unknown key services.agent.max_token; "
            "did you mean services.agent.max_tokens?",
        ),
        (
            "[service.pairs]\ncount = 2\n",
            "hermes.toml:1: unknown key service; did you mean services?",
        ),
        (
            "training.optimiser.learning_rate = 1.0",
            "hermes.toml:1: unknown key training.optimiser; did you mean training.optimizer?",
        ),
        (
            "zzz = 1",
            "hermes.toml:1: unknown key zzz; remove it, or use one of "
            "run, model, upstream, http, services, training, tui",
        ),
        (
            "# first\n\n[services.pairs]\n  count = 'two'",
            'hermes.toml:4: services.pairs.count must be a whole number, not "two"; '
            "the default is 1",
        ),
        (
            "[services]\npairs = {count = 0}",
            "hermes.toml:2: services.pairs.count must be greater than or equal to 1, not 0; "
            "the default is 1",
        ),
        (
            "[training]\nenabled = 'yes'",
            'hermes.toml:2: training.enabled must be true or false, not "yes"; the default is true',
        ),
        (
            "[training.reward]\nrange = [0, 'x']",
            'hermes.toml:2: training.reward.range must be a number, not "x"; '
            "the default is [-1.0, 1.0]",
        ),
        (
            "[training.engine]\nkind = 'vlm'",
            "hermes.toml:2: training.engine.kind must be 'auto'",
        ),
        (
            "[training.group]\nmin_size = 1",
            "hermes.toml:2: training.group.min_size would center a group of one: x - mean(x) is "
            "always zero, so nothing would be learned while every counter still moves; "
            "use 2 or more, not 1; the default is 2",
        ),
        (
            "[training.reward]\nrange = [1, -1]",
            "hermes.toml:2: training.reward.range must be the lowest reward and then the highest, "
            "not 1, -1",
        ),
        (
            "[training.reward]\nrange = [0, 1]\nunscored = -1",
            'hermes.toml:3: training.reward.unscored must be "skip" or a reward from 0 to 1, '
            "not -1",
        ),
        (
            "[training.reward]\nunscored = 'none'",
            'hermes.toml:2: training.reward.unscored must be "skip" or a reward from -1 to 1, '
            "not 'none'",
        ),
        ("services = 5", "hermes.toml:1: services must be a table, not 5"),
        (
            "[services.gateway]\nadmin_api_key = 12345",
            "hermes.toml:2: services.gateway.admin_api_key must be text in quotes",
        ),
        ("[run]\ndir = ?\n", "hermes.toml:2: not TOML: "),
    ],
)
def test_mistake_in_the_file(tmp_path: Path, text: str, message: str) -> None:
    assert fault(text, tmp_path).startswith(message)


def test_text_in_triple_quotes_hides_no_line(tmp_path: Path) -> None:
    text = "[services.agent]\nsystem_prompt = '''\nmax_tokens = no\n'''\nmax_tokens = 'no'\n"
    assert fault(text, tmp_path).startswith("hermes.toml:5: services.agent.max_tokens must be")


def test_several_mistakes_are_counted(tmp_path: Path) -> None:
    assert fault("[run]\na = 1\nb = 2\nc = 3", tmp_path).endswith(
        "(and 2 more; `hermes-tui config check` lists them)"
    )


def test_secret_is_not_shown_in_its_own_error(tmp_path: Path) -> None:
    text = "[services.gateway]\nhost = '0.0.0.0'\nadmin_api_key = 'sk-abc123'"
    assert "sk-abc123" not in fault(text, tmp_path)


def test_mistake_in_a_word_or_the_environment(tmp_path: Path) -> None:
    assert (
        fault("", tmp_path, "services.pairs.cout=2")
        == "command line: unknown key services.pairs.cout; did you mean services.pairs.count?"
    )
    assert (
        fault("", tmp_path, HERMES_TUI__MODEL__PAHT="x")
        == "environment HERMES_TUI__MODEL__PAHT: unknown key model.paht; did you mean model.path?"
    )
    assert fault("", tmp_path, "run.dir").startswith("command line: 'run.dir' is no setting;")


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(path=tmp_path / "none.toml", environ={})


def test_precedence(tmp_path: Path) -> None:
    text = "[services.agent]\nmax_turns = 1\nmax_tokens = 1\ntemperature = 0.1\n"
    environ = {
        "HERMES_TUI__SERVICES__AGENT__MAX_TOKENS": "2",
        "HERMES_TUI__SERVICES__AGENT__TEMPERATURE": "0.2",
        "HERMES_MAX_TURNS": "2",
    }
    agent = load(text, tmp_path, "services.agent.temperature=0.3", **environ).services.agent
    assert (agent.max_turns, agent.max_tokens, agent.temperature) == (2, 2, 0.3)
    assert agent.approvals == "ask"
    both = {**environ, "HERMES_TUI__SERVICES__AGENT__MAX_TURNS": "7"}
    assert load(text, tmp_path, **both).services.agent.max_turns == 7


def test_the_last_word_wins(tmp_path: Path) -> None:
    config = load("", tmp_path, "services.pairs.count=2", "services.pairs.count=3")
    assert config.services.pairs.count == 3


def test_values_of_words(tmp_path: Path) -> None:
    config = load(
        "",
        tmp_path,
        "run.dir=/x y",
        'model.path="/quoted"',
        "upstream.model=123",
        "services.agent.enabled_toolsets=file, todo",
        'services.agent.disabled_toolsets=["web"]',
        "training.enabled=false",
        "training.reward.range=[0, 1]",
        "tui.keymap.score_good=f5",
    )
    assert config.run.dir == "/x y"
    assert config.model.path == "/quoted"
    assert config.upstream.model == "123"
    assert config.services.agent.enabled_toolsets == ("file", "todo")
    assert config.services.agent.disabled_toolsets == ("web",)
    assert config.training.enabled is False
    assert config.training.reward.range == (0.0, 1.0)
    assert config.tui.keymap == {"score_good": "f5"}


def test_a_word_cannot_smuggle_in_another_key(tmp_path: Path) -> None:
    config = load("", tmp_path, "model.path=1\nrenderer = 2")
    assert config.model.path == "1\nrenderer = 2"
    assert config.model.renderer == "auto"


def test_areal_environment(tmp_path: Path) -> None:
    config = load(
        "",
        tmp_path,
        HERMES_UPSTREAM_BASE_URL="http://u/v1",
        HERMES_UPSTREAM_API_KEY="sk-up",
        HERMES_UPSTREAM_MODEL="m",
        HERMES_ENABLED_TOOLSETS="file,todo",
        HERMES_DISABLED_TOOLSETS="",
        HERMES_TUI_HOME="/home/x",
    )
    assert config.upstream.base_url == "http://u/v1"
    assert config.upstream.api_key.get_secret_value() == "sk-up"
    assert config.upstream.model == "m"
    assert config.services.agent.enabled_toolsets == ("file", "todo")
    assert config.run.dir == "/home/x"
    assert "sk-up" not in repr(config)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("", "is missing"),
        ("short-key", "is too short (9 characters)"),
        ("areal-agent-admin", "is a well-known or guessable one"),
        ("aaaaaaaaaaaaaaaaaaaaaa", "is a well-known or guessable one"),
    ],
)
@pytest.mark.parametrize("section", ["services.gateway", "training.gateway"])
def test_beyond_loopback_needs_a_real_key(
    tmp_path: Path, section: str, key: str, said: str
) -> None:
    key_key = {
        "services.gateway": "services.gateway.admin_api_key",
        "training.gateway": "training.admin_api_key",
    }[section]
    message = fault("", tmp_path, f"{section}.host=0.0.0.0", f"{key_key}={key}")
    assert f"{key_key} {said}" in message


def test_a_real_key_opens_the_address(tmp_path: Path) -> None:
    words = ("services.gateway.host=0.0.0.0", "services.gateway.admin_api_key=correct-horse-4711")
    assert load("", tmp_path, *words).services.gateway.host == "0.0.0.0"


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("192.168.0.7", False),
        ("example.org", False),
    ],
)
def test_what_counts_as_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_nearest_file_wins(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    user = tmp_path / "xdg" / "hermes-tui" / "hermes.toml"
    user.parent.mkdir(parents=True)
    user.write_text("")
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    assert find_file(inner, environ) == user
    (tmp_path / "hermes.toml").write_text("")
    assert find_file(inner, environ) == tmp_path / "hermes.toml"
    (inner / "hermes.toml").write_text("")
    assert find_file(inner, environ) == inner / "hermes.toml"


def test_resolved_json_is_the_same_configuration(tmp_path: Path) -> None:
    config = load("", tmp_path, "upstream.api_key=sk-x", "services.agent.class=a.B")
    assert Config.model_validate_json(config.to_json()) == config


OWN_TABLE = "training.topics.words"
"""A setting whose value is a table: its rows are no settings."""


def test_reference_is_the_defaults_and_names_every_key() -> None:
    text = (ROOT / "hermes.toml").read_text()
    assert text == reference_toml()
    assert load_config(path=ROOT / "hermes.toml", environ={}) == Config()
    named = {key for key in flat(tomli.loads(text)) if not key.startswith(f"{OWN_TABLE}.")}
    assert named == set(known_keys(Config))


def test_reference_explains_every_key() -> None:
    lines = reference_toml().splitlines()
    settings = [i for i, line in enumerate(lines) if " = " in line and not line.startswith("#")]
    assert len(settings) > 40
    header = lines.index(f"[{OWN_TABLE}]")
    assert lines[header - 1].startswith("# "), "the table is the setting"
    settings = [i for i in settings if i < header or "" in lines[header:i]]
    assert [lines[i] for i in settings if not lines[i - 1].startswith("# ")] == []


def test_a_machine_s_file_sets_what_that_machine_needs_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "hermes.toml"
    file.write_text(machine_toml({}, "a machine"))
    tables = tomli.loads(file.read_text())
    assert not [key for key in flat(tables) if not isinstance(value_at(tables, key), dict)]
    assert load_config(path=file, environ={}) == Config()

    needs = {"training.engine.max_num_seqs": Recommendation(value=64, why="a GPU of 80 GiB")}
    file.write_text(machine_toml(needs, "a machine with a GPU"))
    assert "# Written for a machine with a GPU: what is not commented" in file.read_text()
    assert "# For a GPU of 80 GiB; the default is 16.\nmax_num_seqs = 64\n" in file.read_text()
    tables = tomli.loads(file.read_text())
    set_there = [key for key in flat(tables) if not isinstance(value_at(tables, key), dict)]
    assert set_there == list(needs)
    assert load_config(path=file, environ={}).training.engine.max_num_seqs == 64


def test_shown_configuration_masks_keys_and_names_places(tmp_path: Path) -> None:
    file = tmp_path / "hermes.toml"
    file.write_text("[upstream]\napi_key = 'sk-secret'\n")
    config, sources = load_with_sources(["services.pairs.count=2"], path=file, environ={})
    shown = config_toml(config, lambda key: sources.where(key) if sources.sets(key) else "")
    assert "sk-secret" not in shown
    assert f'api_key = "**********"  # {file}:2' in shown
    assert "count = 2  # command line" in shown
    assert 'path = "smollm2-135m"\n' in shown


def flat(tables: dict[str, object], prefix: str = "") -> set[str]:
    keys = set()
    for key, value in tables.items():
        keys.add(prefix + key)
        if isinstance(value, dict):
            keys |= flat(value, f"{prefix}{key}.")
    return keys


def value_at(tables: dict[str, object], key: str) -> object:
    value: object = tables
    for part in key.split("."):
        assert isinstance(value, dict)
        value = value[part]
    return value
