"""The router's memory: affinity, the least busy pair, dead pairs, and learning it all again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from fakes.roles import eventually

from hermes_tui_common.errors import ApiError
from hermes_tui_services.api.protocol import RegisterBody
from hermes_tui_services.router.pairs import MAX_SLOW_POLLS, Pairs


class Network:
    """Answers health checks as the test says: "ok", "down", "slow" or a status."""

    def __init__(self) -> None:
        self.state: dict[str, str] = {}
        self.num_asked = 0

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.num_asked += 1
        state = self.state.get(f"http://{request.url.host}", "ok")
        if state == "down":
            raise httpx.ConnectError("refused")
        if state == "slow":
            raise httpx.ReadTimeout("slow")
        return httpx.Response(200 if state == "ok" else int(state))


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture
async def pairs(network: Network) -> AsyncIterator[Pairs]:
    async with httpx.AsyncClient(transport=httpx.MockTransport(network.answer)) as client:
        yield Pairs(client)


def register(
    pairs: Pairs, name: str, *, instance: str = "1", sessions: tuple[str, ...] = ()
) -> bool:
    body = RegisterBody(
        addr=f"http://{name}",
        worker_addr=f"http://{name}-worker",
        instance=instance,
        sessions=list(sessions),
    )
    return pairs.register(body)


async def route(pairs: Pairs, key: str, *, create: bool = True, avoid: str | None = None) -> str:
    return (await pairs.route(key, create=create, avoid=avoid)).removeprefix("http://")


async def poll(pairs: Pairs, network: Network) -> None:
    """Return once every pair was polled: the next round begins when the one before is over."""
    a_round = network.num_asked + 2 * len(pairs.all())
    watch = asyncio.create_task(pairs.watch(0.0))
    await eventually(lambda: network.num_asked > a_round)
    watch.cancel()


async def test_a_session_stays_where_it_is(pairs: Pairs) -> None:
    register(pairs, "a")
    first = await route(pairs, "s")
    register(pairs, "b")
    assert [await route(pairs, "s") for _ in range(3)] == [first] * 3


async def test_new_sessions_go_to_the_least_busy_pair(pairs: Pairs) -> None:
    for name in "abc":
        register(pairs, name)
    places = [await route(pairs, f"s{i}") for i in range(6)]
    assert sorted(places) == ["a", "a", "b", "b", "c", "c"]
    freed = [f"s{i}" for i, place in enumerate(places) if place == "b"]
    for key in freed:
        pairs.remove_session(key)
    assert pairs.num_sessions == 4
    assert await route(pairs, "new") == "b"


async def test_looking_makes_no_affinity(pairs: Pairs) -> None:
    register(pairs, "a")
    assert await route(pairs, "s", create=False) == "a"
    assert pairs.num_sessions == 0


async def test_without_a_pair_the_answer_says_why(pairs: Pairs, network: Network) -> None:
    with pytest.raises(ApiError, match="none has registered") as none:
        await route(pairs, "s")
    assert (none.value.status, none.value.retry_after_s) == (503, 1.0)
    register(pairs, "a")
    network.state["http://a-worker"] = "down"
    await poll(pairs, network)
    with pytest.raises(ApiError, match=r"worker is down \(refused\)"):
        await route(pairs, "s")


@pytest.mark.parametrize("part", ["http://a", "http://a-worker"])
async def test_sessions_of_a_dead_pair_move_and_come_to_life_again(
    pairs: Pairs, network: Network, part: str
) -> None:
    register(pairs, "a")
    assert await route(pairs, "s") == "a"
    register(pairs, "b")
    network.state[part] = "down"
    assert await route(pairs, "s", avoid="http://a") == "b"
    assert await route(pairs, "s") == "b"
    assert [await route(pairs, f"n{i}") for i in range(3)] == ["b"] * 3
    network.state[part] = "ok"
    await poll(pairs, network)
    assert await route(pairs, "more") == "a"


async def test_a_slow_answer_is_forgiven_for_a_while(pairs: Pairs, network: Network) -> None:
    register(pairs, "a")
    network.state["http://a-worker"] = "slow"
    for _ in range(MAX_SLOW_POLLS - 1):
        assert await route(pairs, "s", avoid="http://a") == "a"
    with pytest.raises(ApiError, match="does not answer in time"):
        await route(pairs, "s", avoid="http://a")


async def test_a_router_without_memory_learns_where_sessions_are(pairs: Pairs) -> None:
    assert register(pairs, "a") is False
    assert register(pairs, "b", sessions=("s1", "s2")) is False
    assert register(pairs, "a") is True
    assert [await route(pairs, key) for key in ("s1", "s2")] == ["b", "b"]
    assert register(pairs, "a", instance="2", sessions=("s1",)) is False
    assert await route(pairs, "s1") == "b"


async def test_an_unregistered_pair_is_gone(pairs: Pairs) -> None:
    register(pairs, "a")
    await route(pairs, "s")
    register(pairs, "b")
    pairs.unregister("http://a")
    assert await route(pairs, "s") == "b"
    assert [pair.addr for pair in pairs.all()] == ["http://b"]


async def test_only_its_own_pair_frees_a_session(pairs: Pairs) -> None:
    register(pairs, "a")
    await route(pairs, "s")
    pairs.remove_session("s", "http://other")
    assert pairs.num_sessions == 1
    pairs.remove_session("s", "http://a")
    assert pairs.num_sessions == 0


async def test_health_says_which_pairs_are_down(pairs: Pairs, network: Network) -> None:
    assert pairs.problem == "no pair of data proxy and worker has registered: turns wait for one"
    register(pairs, "a")
    register(pairs, "b")
    assert pairs.problem == ""
    network.state["http://b-worker"] = "down"
    await poll(pairs, network)
    assert pairs.problem == "1 of 2 pairs are down: worker is down (refused)"
