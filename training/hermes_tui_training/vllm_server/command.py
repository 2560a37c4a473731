"""How a vLLM server is started: its arguments, and its environment. Checked with vLLM 0.32."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

from hermes_tui_training.api.config import VllmRole

MODULE = "vllm.entrypoints.openai.api_server"
"""Run as a module: the ``vllm`` program of the CPU package (0.32) looks for the metadata of a
package of another name, and ends."""

LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Bounds of an adapter's rank that vLLM takes."""

NUM_LORAS = 4
"""Versions in use side by side: replies in flight end with the one they began with."""

NUM_TOP_LOGPROBS = 20
"""The most alternatives a token that a client may ask for."""

_CPU_CACHE_GIB = "1"
"""Room for keys and values on a CPU, where vLLM would take 4 GiB or more."""


def command(role: VllmRole, model_dir: Path) -> list[str]:
    """Return the argv of a server.

    The model's served name is drawn anew: a request with an older one is refused, which tells the
    trainer that the server was started again and has lost its weights.

    Args:
        role: what it is started with.
        model_dir: Hugging Face directory of the base model.
    """
    engine, lora = role.training.engine, role.training.lora
    arguments = {
        "--model": str(model_dir),
        "--served-model-name": f"base-{secrets.token_hex(4)}",
        "--uds": str(role.socket),
        "--dtype": role.model.dtype,
        "--max-num-seqs": str(engine.max_num_seqs),
        # What comes with a model must not change how it is sampled.
        "--generation-config": "vllm",
        "--logprobs-mode": "processed_logprobs",
        "--max-logprobs": str(NUM_TOP_LOGPROBS),
        # Our grammars are written for llguidance.
        "--structured-outputs-config": '{"backend": "guidance"}',
    }
    if engine.max_model_len:
        arguments["--max-model-len"] = str(engine.max_model_len)
    flags = ["--enable-prefix-caching", "--disable-uvicorn-access-log"]
    if lora.rank:
        flags.append("--enable-lora")
        rank = next((bound for bound in LORA_RANKS if bound >= lora.rank), lora.rank)
        arguments["--max-lora-rank"] = str(rank)
        arguments["--max-loras"] = str(NUM_LORAS)
    named = [word for pair in arguments.items() for word in pair]
    return [str(role.python), "-P", "-m", MODULE, *named, *flags, *engine.vllm_args]


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return a server's environment: routes for weights are open, nothing is reported home."""
    defaults = {
        "VLLM_CPU_KVCACHE_SPACE": _CPU_CACHE_GIB,
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "HF_HUB_OFFLINE": "1",
    }
    return {
        **defaults,
        **environ,
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
