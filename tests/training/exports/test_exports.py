"""Exports by value, and as the projects that they are for read them.

Those projects pull in a lot and pin each other out, so they are no test dependencies: their tests
run where the package is installed. The schema that each one checks is written down beside it.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest
from fakes.engine import byte_tokenizer
from fakes.episodes import make_completion, make_episode

from hermes_tui_training.api.types import Completion, Episode
from hermes_tui_training.api.wire import EpisodeRecord, TopLogprob
from hermes_tui_training.chat_template.detokenizer import TokenTexts
from hermes_tui_training.exports.formats import FORMATS
from hermes_tui_training.exports.rows import ExportOptions, rows_of
from hermes_tui_training.inference_gateway.routes.episodes import episode_record

HI = {"role": "user", "content": "Hi"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALLED: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "red"}
SAID = {"role": "assistant", "content": "It is red."}


def conversation() -> list[Completion]:
    """Return a call (prompt 10 11, sampled 12 13) and the reply after its result (14, 15 16)."""
    first = make_completion(
        "chatcmpl-1",
        (10, 11),
        (12, 13),
        logprobs=(-0.5, -0.25),
        finish_reason="tool_calls",
        request_messages=[HI],
        message=CALLED,
        tools=[TOOL],
    )
    second = make_completion(
        "chatcmpl-2",
        (10, 11, 12, 13, 14),
        (15, 16),
        version=1,
        logprobs=(-1.0, -2.0),
        turn_index=1,
        request_messages=[HI, CALLED, RESULT],
        message=SAID,
        tools=[TOOL],
    )
    return [first, second]


@pytest.fixture
def episode() -> Episode:
    return make_episode(*conversation(), reward=1.0)


@pytest.fixture
def sibling() -> Episode:
    first, second = conversation()
    cut = replace(second, trainable=False, untrainable_reason="truncated", finish_reason="length")
    return make_episode(first, cut, episode_id="ep-2", reward=-0.5)


def converted(name: str, *episodes: Episode, **options: Any) -> list[dict[str, Any]]:
    """Return a format's rows as they are read back from its lines."""
    file = io.BytesIO()
    rows = FORMATS[name].convert(episodes, ExportOptions(**options))
    written = FORMATS[name].write(rows, file)
    lines = file.getvalue().decode().splitlines()
    assert written == len(lines)
    return [json.loads(line) for line in lines]


# -- rows --------------------------------------------------------------------------------------


def test_a_run_of_completions_is_one_row(episode: Episode) -> None:
    (row,) = converted("jsonl", episode, discount=0.5)
    assert row["input_ids"] == [10, 11, 12, 13, 14, 15, 16]
    assert row["loss_mask"] == [0, 0, 1, 1, 0, 1, 1]
    assert row["logprobs"] == [0.0, 0.0, -0.5, -0.25, 0.0, -1.0, -2.0]
    assert row["versions"] == [-1, -1, 0, 0, -1, 1, 1]
    assert row["interaction_ids"] == ["chatcmpl-1", "chatcmpl-2"]
    assert row["rewards"] == [0.5, 1.0]
    assert row["reward"] == 1.0
    assert row["messages"] == [HI, CALLED, RESULT, SAID]
    assert row["trainable"]


def test_individual_rows_have_one_completion_each(episode: Episode) -> None:
    first, second = converted("jsonl", episode, style="individual", discount=0.5)
    assert (first["input_ids"], first["loss_mask"]) == ([10, 11, 12, 13], [0, 0, 1, 1])
    assert second["loss_mask"] == [0, 0, 0, 0, 0, 1, 1]
    assert [first["reward"], second["reward"]] == [0.5, 1.0]


def test_tokens_that_may_not_be_trained_are_in_no_mask(sibling: Episode) -> None:
    (row,) = converted("jsonl", sibling)
    assert row["loss_mask"] == [0, 0, 1, 1, 0, 0, 0]
    assert row["versions"][-2:] == [1, 1], "they were sampled all the same"
    assert row["logprobs"][-2:] == [-1.0, -2.0]
    assert row["rewards"] == [-0.5, None]
    assert row["reward"] == -0.5
    assert not row["trainable"]
    assert row["untrainable_reasons"] == [None, "truncated"]


def test_a_break_starts_a_row(episode: Episode) -> None:
    other = make_completion("chatcmpl-3", (10, 99), (17,), turn_index=2, logprobs=(-3.0,))
    rows = rows_of(replace(episode, completions=(*episode.completions, other)), ExportOptions())
    assert [row.token_ids for row in rows] == [[10, 11, 12, 13, 14, 15, 16], [10, 99, 17]]
    for row in rows:
        assert len(row.token_ids) == len(row.loss_mask) == len(row.logprobs) == len(row.versions)


def test_what_has_no_reward_is_only_in_the_plain_forms(episode: Episode) -> None:
    open_ = replace(episode, reward=None, reward_log=(), state="open")
    (row,) = converted("jsonl", open_)
    assert (row["reward"], row["rewards"]) == (None, [None, None])
    assert len(converted("verifiers", open_)) == 1
    for name in ("trl", "art", "atropos", "tinker"):
        assert converted(name, open_) == [], name


def test_what_was_said_with_the_reward_is_in_every_form_that_has_a_place(
    episode: Episode,
) -> None:
    said = replace(episode, feedback="too long")
    assert converted("jsonl", said)[0]["feedback"] == "too long"
    assert converted("trl", said)[0]["feedback"] == "too long"
    assert converted("art", said)[0]["metadata"]["feedback"] == "too long"
    assert converted("atropos", said)[0]["overrides"][0]["feedback"] == "too long"
    assert converted("verifiers", said)[0]["info"]["feedback"] == "too long"


def test_an_episode_survives_the_wire(episode: Episode) -> None:
    first, second = episode.completions
    whole = replace(
        episode,
        feedback="why",
        completions=(
            replace(first, top_logprobs=(((12, -0.5), (7, -1.5)), ((13, -0.25),))),
            second,
        ),
    )
    texts = TokenTexts(byte_tokenizer())
    wire = episode_record(whole, 3, texts).model_dump_json(exclude_unset=True)
    arrived = EpisodeRecord.model_validate_json(wire)
    assert arrived.to_episode() == whole
    assert asdict(arrived.to_episode()) == asdict(whole)
    assert arrived.completions[0].top_logprobs[0][1] == TopLogprob(
        token_id=7, token=texts.alone(7), logprob=-1.5
    )
    assert "".join(arrived.completions[0].texts) == texts.decode([12, 13])
    assert arrived.staleness == 3 - whole.policy_version_min


# -- parquet -----------------------------------------------------------------------------------


def test_parquet_holds_what_the_lines_hold(episode: Episode, sibling: Episode) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="hermes-tui[export] is not installed")
    file = io.BytesIO()
    rows = list(FORMATS["parquet"].convert([episode, sibling], ExportOptions()))
    assert FORMATS["parquet"].write(rows, file) == 2
    read = parquet.read_table(io.BytesIO(file.getvalue())).to_pylist()
    for row in read:
        for name in ("messages", "tools", "sampling"):
            row[name] = json.loads(row[name])
    assert read == rows


def test_parquet_without_pyarrow_says_what_to_install(
    episode: Episode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(Exception, match=r"pip install 'hermes-tui\[export\]'"):
        FORMATS["parquet"].write(iter(()), io.BytesIO())


# -- TRL ---------------------------------------------------------------------------------------


def test_trl_rows(episode: Episode, sibling: Episode) -> None:
    """https://huggingface.co/docs/trl/dataset_formats: conversational prompt-completion, with
    KTO's ``label``; and the fields of a GRPO ``rollout_func``."""
    rows = converted("trl", episode, sibling)
    assert [row["completion_id"] for row in rows] == ["chatcmpl-1", "chatcmpl-2", "chatcmpl-1"]
    assert [row["label"] for row in rows] == [True, True, False]
    second = rows[1]
    assert second["prompt"] == [HI, CALLED, RESULT]
    assert second["completion"] == [SAID]
    assert second["prompt_ids"] == [10, 11, 12, 13, 14]
    assert second["completion_ids"] == [15, 16]
    assert len(second["logprobs"]) == len(second["completion_ids"])


def test_trl_reads_its_rows(episode: Episode, sibling: Episode) -> None:
    datasets = pytest.importorskip("datasets", reason="TRL's datasets package is not installed")
    data_utils = pytest.importorskip("trl.data_utils", reason="TRL is not installed")
    dataset = datasets.Dataset.from_list(converted("trl", episode, sibling))
    assert dataset.num_rows == 3
    assert data_utils.is_conversational(dataset[0])
    assert dataset[1]["completion_ids"] == [15, 16]


# -- ART ---------------------------------------------------------------------------------------


def test_art_trajectories(episode: Episode, sibling: Episode) -> None:
    """``art.Trajectory``: messages_and_choices, tools, additional_histories, reward, versions,
    metrics and metadata; a choice's logprobs name tokens ``token_id:N``."""
    first, second = converted("art", episode, sibling)
    (history,) = first["additional_histories"]
    assert history["messages_and_choices"][:-1] == [HI, CALLED, RESULT]
    choice = history["messages_and_choices"][-1]
    assert choice["message"] == SAID
    content = choice["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["token_id:15", "token_id:16"]
    assert [entry["logprob"] for entry in content] == [-1.0, -2.0]
    assert (first["initial_policy_version"], first["final_policy_version"]) == (0, 1)
    assert (second["reward"], second["additional_histories"]) == (-0.5, [])


def test_art_reads_its_trajectories(episode: Episode, sibling: Episode) -> None:
    art = pytest.importorskip("art", reason="ART (openpipe-art) is not installed")
    from openai.types.chat.chat_completion import Choice

    trajectories = []
    for row in converted("art", episode, sibling):
        for history in (row, *row["additional_histories"]):
            *messages, choice = history["messages_and_choices"]
            history["messages_and_choices"] = [*messages, Choice.model_validate(choice)]
        trajectories.append(art.Trajectory.model_validate(row))
    group = art.TrajectoryGroup(trajectories)
    assert [trajectory.reward for trajectory in group] == [1.0, -0.5]
    assert isinstance(group.trajectories[0].messages_and_choices[-1], Choice)
    assert group.trajectories[0].messages()[-1]["tool_calls"][0]["id"] == "call_1"
    assert group.trajectories[0].metadata["group_id"] == "group-1"


# -- Atropos -----------------------------------------------------------------------------------


def test_atropos_groups(episode: Episode, sibling: Episode) -> None:
    """``atroposlib.envs.base.ScoredDataGroup``: lists over the siblings, masks of -100 or ids."""
    (group,) = converted("atropos", episode, sibling)
    assert group["scores"] == [1.0, -0.5]
    assert group["tokens"] == [[10, 11, 12, 13, 14, 15, 16]] * 2
    assert group["masks"] == [
        [-100, -100, 12, 13, -100, 15, 16],
        [-100, -100, 12, 13, -100, -100, -100],
    ]
    assert group["inference_logprobs"][0] == [1.0, 1.0, -0.5, -0.25, 1.0, -1.0, -2.0]
    assert [message["role"] for message in group["messages"][0]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert all(isinstance(m["content"], str) for m in group["messages"][0])


def test_atropos_keeps_groups_apart(episode: Episode, sibling: Episode) -> None:
    groups = converted("atropos", episode, replace(sibling, group_id="group-2"))
    assert [group["scores"] for group in groups] == [[1.0], [-0.5]]


def test_atropos_reads_its_groups(episode: Episode, sibling: Episode) -> None:
    server = pytest.importorskip("atroposlib.api.server", reason="atroposlib is not installed")
    (group,) = converted("atropos", episode, sibling)
    read = server.ScoredData.model_validate(group)
    assert read.scores == [1.0, -0.5]
    assert read.masks == group["masks"]
    assert read.inference_logprobs == group["inference_logprobs"]


# -- verifiers ---------------------------------------------------------------------------------


def spread(nodes: Sequence[dict[str, Any]], leaf: int) -> tuple[list[int], list[bool], list[float]]:
    """Return the tokens, mask and logprobs along the path to a leaf, as verifiers puts them."""
    path, index = [], leaf
    while index is not None:
        path.append(nodes[index])
        index = nodes[index]["parent"]  # type: ignore[assignment]
    tokens: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    for node in reversed(path):
        values = iter(node.get("logprobs", []))
        tokens += node.get("token_ids", [])
        mask += node.get("mask", [])
        logprobs += [next(values) if sampled else 0.0 for sampled in node.get("mask", [])]
    return tokens, mask, logprobs


def test_verifiers_traces(episode: Episode, sibling: Episode) -> None:
    """``verifiers.v1.Trace``: nodes with a parent, whose tokens along a path are the sequence."""
    trace, cut = converted("verifiers", episode, sibling)
    tokens, mask, logprobs = spread(trace["nodes"], len(trace["nodes"]) - 1)
    assert tokens == [10, 11, 12, 13, 14, 15, 16]
    assert mask == [False, False, True, True, False, True, True]
    assert logprobs == [0.0, 0.0, -0.5, -0.25, 0.0, -1.0, -2.0]
    roles = [node["message"]["role"] for node in trace["nodes"]]
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert trace["nodes"][1]["message"]["tool_calls"] == [
        {"id": "call_1", "name": "look", "arguments": "{}"}
    ]
    assert [call["node"] for call in trace["calls"]] == [1, 3]
    assert trace["rewards"]["judgement"]["score"] == 1.0
    assert spread(cut["nodes"], 3)[1] == [False, False, True, True, False, False, False]


def test_verifiers_reads_its_traces(episode: Episode, sibling: Episode) -> None:
    verifiers = pytest.importorskip("verifiers.v1", reason="verifiers is not installed")
    trace, cut = (
        verifiers.WireTrace.model_validate(row) for row in converted("verifiers", episode, sibling)
    )
    (branch,) = trace.branches
    assert branch.token_ids == [10, 11, 12, 13, 14, 15, 16]
    assert branch.sampled_mask == [False, False, True, True, False, True, True]
    assert branch.logprobs == [0.0, 0.0, -0.5, -0.25, 0.0, -1.0, -2.0]
    assert [tool.name for tool in branch.tools] == ["look"]
    assert (trace.reward, cut.reward) == (1.0, -0.5)


# -- Tinker ------------------------------------------------------------------------------------


def test_tinker_datums(episode: Episode, sibling: Episode) -> None:
    """``tinker.Datum``: inputs without the last token; targets, logprobs and advantages without
    the first."""
    datum, cut = converted("tinker", episode, sibling, discount=0.5)
    inputs = datum["loss_fn_inputs"]
    assert datum["model_input"]["chunks"][0]["tokens"] == [10, 11, 12, 13, 14, 15]
    assert inputs["target_tokens"]["data"] == [11, 12, 13, 14, 15, 16]
    assert inputs["logprobs"]["data"] == [0.0, -0.5, -0.25, 0.0, -1.0, -2.0]
    assert inputs["advantages"]["data"] == [0.0, 0.5, 0.5, 0.0, 1.0, 1.0]
    assert cut["loss_fn_inputs"]["advantages"]["data"] == [0.0, -0.5, -0.5, 0.0, 0.0, 0.0]
    assert cut["loss_fn_inputs"]["logprobs"]["data"] == [0.0, -0.5, -0.25, 0.0, 0.0, 0.0]


def test_tinker_reads_its_datums(episode: Episode, sibling: Episode) -> None:
    tinker = pytest.importorskip("tinker", reason="tinker is not installed")
    for row in converted("tinker", episode, sibling):
        datum = tinker.Datum(
            model_input=tinker.ModelInput.model_validate(row["model_input"]),
            loss_fn_inputs={
                name: tinker.TensorData(**tensor) for name, tensor in row["loss_fn_inputs"].items()
            },
        )
        assert datum.model_input.to_ints() == [10, 11, 12, 13, 14, 15]
        targets = datum.loss_fn_inputs["target_tokens"].to_numpy()
        assert targets.tolist() == [11, 12, 13, 14, 15, 16]
        for tensor in datum.loss_fn_inputs.values():
            assert tensor.to_numpy().shape == (datum.model_input.length,)
            assert all(math.isfinite(value) for value in tensor.to_numpy())
