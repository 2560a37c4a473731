"""Random frames, configurations and run directories: an error that says so, and no crash."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import websockets.sync.client
from fakes.surfaces import Surface, is_alive, served_surfaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes_tui.config.paths import RunDir
from hermes_tui.config.secrets import read_keys
from hermes_tui.config.settings import Config, load_config
from hermes_tui_common.errors import HermesTuiError
from hermes_tui_common.run_file import RoleRunFile, RunFile

EXAMPLES = 5 * int(os.environ.get("HERMES_FUZZ_EXAMPLES", "4"))
QUICK = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=EXAMPLES < 250,
    suppress_health_check=list(HealthCheck),
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(("type", "id", "method", "params", "message", "sessionKey"))
            | st.text(),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)
FRAMES = (
    st.text()
    | st.binary()
    | JSON.map(json.dumps)
    | st.builds(
        lambda params, extra: json.dumps({"type": "req", "id": "1", "params": params, **extra}),
        JSON,
        st.dictionaries(st.text(max_size=8), JSON, max_size=2),
    )
)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Surface]:
    with served_surfaces(tmp_path_factory.mktemp("frames")) as found:
        yield found["agent gateway"]


@pytest.mark.timeout(1800)
def test_random_frames_are_answered(gateway: Surface) -> None:
    url = gateway.url.replace("http", "ws", 1) + "/ws"
    with websockets.sync.client.connect(url, additional_headers=gateway.headers) as socket:

        @QUICK
        @given(FRAMES)
        def run(frame: str | bytes) -> None:
            if isinstance(frame, str):
                frame = frame.encode(errors="replace").decode()
            socket.send(frame)
            while True:
                answer = json.loads(socket.recv(timeout=20))
                if answer["type"] == "res" and answer["payload"]["status"] != "accepted":
                    break
            assert answer["ok"] or answer["payload"]["error"]
            assert "Traceback" not in str(answer)

        run()
    assert is_alive(gateway)


KEYS = [
    f"{section}.{name}"
    for section, field in Config.model_fields.items()
    for name in getattr(field.annotation, "model_fields", {})
]


@QUICK
@given(
    st.text(max_size=60)
    | st.builds("{} = {}".format, st.sampled_from(KEYS), JSON.map(json.dumps))
    | st.builds("[{}]\n{} = 1".format, st.sampled_from(KEYS), st.text(max_size=10))
)
def test_random_configurations_are_one_line_or_valid(text: str) -> None:
    path = Path(os.environ["PYTEST_TMP_TOML"])
    path.write_bytes(text.encode(errors="surrogatepass"))
    told = ""
    try:
        load_config(path=path, environ={})
    except HermesTuiError as error:
        told = str(error)
    assert not told or str(path) in told


@pytest.fixture(autouse=True)
def toml_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTEST_TMP_TOML", str(tmp_path / "hermes.toml"))
    return tmp_path


@QUICK
@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_damaged_files_of_a_run_directory_are_told(content: bytes) -> None:
    run_dir = RunDir(Path(os.environ["PYTEST_TMP_TOML"]).parent)
    run_dir.keys.write_bytes(content)
    with pytest.raises(HermesTuiError, match=r"keys\.json"):
        read_keys(run_dir)
    for kind in (RunFile, RoleRunFile):
        with pytest.raises((OSError, ValueError)):
            kind.read(run_dir.keys)
