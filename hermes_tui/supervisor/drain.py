"""Letting a data proxy finish the turns that run before it is taken away."""

from __future__ import annotations

import asyncio
import logging

import httpx

logger = logging.getLogger(__name__)

_POLL_S = 0.25
_TIMEOUT_S = 5.0


async def drain(url: str, admin_key: str, timeout_s: float) -> bool:
    """Wait until no turn runs at a data proxy.

    Args:
        url: where the data proxy answers.
        admin_key: the agent service's key.
        timeout_s: how long to wait at most.

    Returns: whether it came to rest; False when it is gone or the time is up.
    """
    headers = {"Authorization": f"Bearer {admin_key}"}
    deadline = asyncio.get_running_loop().time() + timeout_s
    async with httpx.AsyncClient(
        base_url=url, headers=headers, timeout=_TIMEOUT_S, trust_env=False
    ) as http:
        while True:
            try:
                answer = await http.get("/turns")
                answer.raise_for_status()
                running = answer.json()["data"]
            except (httpx.HTTPError, ValueError, KeyError) as error:
                logger.warning("not drained url=%s cause=%s", url, error)
                return False
            if not running:
                return True
            if asyncio.get_running_loop().time() > deadline:
                logger.warning("turns are cut off url=%s num_turns=%d", url, len(running))
                return False
            await asyncio.sleep(_POLL_S)
