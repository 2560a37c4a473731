"""Generated requests to every route: no 5xx, no hang; what the description forbids is refused.

``make fuzz`` tries more of them; HERMES_FUZZ_EXAMPLES is how many for each route and kind.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import requests
import schemathesis
from fakes.surfaces import NAMES, Surface, apps, is_alive, served_surfaces
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.config import SchemathesisConfig
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    response_schema_conformance,
    unsupported_method,
)
from starlette.routing import Route, WebSocketRoute

EXAMPLES = int(os.environ.get("HERMES_FUZZ_EXAMPLES", "4"))
TIMEOUT_S = 20.0
"""A request that takes longer hangs."""

STREAMS = ("/events", "/rl/events", "/services/{name}/logs")
"""Answers without an end; their queries are tried below."""

CHECKS = [
    schemathesis.checks.not_a_server_error,
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    response_schema_conformance,
    unsupported_method,
]


@pytest.fixture(scope="module")
def surfaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Surface]]:
    with served_surfaces(tmp_path_factory.mktemp("surfaces")) as found:
        yield found


def description(surface: Surface) -> dict[str, object]:
    answer = httpx.get(f"{surface.url}/openapi.json", headers=surface.headers, timeout=30)
    assert answer.status_code == 200, answer.text
    raw: dict[str, object] = answer.json()
    return raw


def test_the_descriptions_are_of_every_route_and_no_other(
    surfaces: dict[str, Surface], tmp_path: Path
) -> None:
    for name, app in apps(tmp_path).items():
        told = {
            (method.upper(), path)
            for path, methods in described_paths(surfaces[name]).items()
            for method in methods
        }
        served = set()
        for route in app.routes:
            assert isinstance(route, Route | WebSocketRoute), f"{name}: {route}"
            path = re.sub(r":\w+}", "}", route.path)
            methods = route.methods or () if isinstance(route, Route) else ("GET",)
            served |= {(method, path) for method in methods if method != "HEAD"}
        assert told == served, name
        assert ("GET", "/openapi.json") in told


def described_paths(surface: Surface) -> dict[str, dict[str, object]]:
    paths = description(surface)["paths"]
    assert isinstance(paths, dict)
    return paths


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", NAMES)
def test_generated_requests(surfaces: dict[str, Surface], name: str) -> None:
    surface = surfaces[name]
    schema = schemathesis.openapi.from_dict(description(surface), config=SchemathesisConfig())
    session = requests.Session()
    session.headers.update(surface.headers)
    failures: list[str] = []
    num_cases = 0
    started = time.monotonic()
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path in STREAMS or operation.path == "/ws":
            continue
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            strategy = operation.as_strategy(generation_mode=mode)

            @settings(
                max_examples=EXAMPLES,
                deadline=None,
                database=None,
                derandomize=EXAMPLES < 50,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=strategy)
            def run(case: schemathesis.Case) -> None:
                nonlocal num_cases
                num_cases += 1
                answer = case.call(base_url=surface.url, session=session, timeout=TIMEOUT_S)
                case.validate_response(answer, checks=CHECKS, headers=dict(surface.headers))

            try:
                run()
            except Unsatisfiable:
                assert mode is GenerationMode.NEGATIVE  # there is nothing to violate
            except FailureGroup as group:
                failures += [f"{operation.label} {mode}: {one}" for one in group.exceptions]
            except Exception as error:  # the others are tried all the same
                failures.append(f"{operation.label} {mode}: {type(error).__name__}: {error}")
    print(f"{name}: {num_cases} requests in {time.monotonic() - started:.0f} s")
    assert is_alive(surface)
    assert not failures, "\n\n".join(failures)
