# SPDX-License-Identifier: MIT
"""The entry points by which inference engines find Tutti.

An engine runs its entry point in each of its processes. So these functions import nothing of Tutti before TUTTI_DISABLE allows
it, and raise nothing: where Tutti cannot be used, the engine goes on with its own communicators, and its first process logs why.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
from typing import Any, Callable

__all__ = ["sglang", "vllm"]


def _run(engine: str, log: Any, start: Callable[[], str | None]) -> str | None:
    """Returns what start() returns."""
    def refuse(why: str) -> None:
        if multiprocessing.current_process().name == "MainProcess":
            log.warning("Tutti is not used: %s. %s keeps its own communicators.", why, engine)

    if os.environ.get("TUTTI_DISABLE", "").lower() not in ("", "0", "off", "false", "no"):
        return refuse("TUTTI_DISABLE is set")
    try:
        return start()
    except Exception as error:
        return refuse(f"{type(error).__name__}: {error}")


def vllm() -> str | None:
    """vllm.platform_plugins: the path of a platform's class; None: vLLM's own platform."""
    from vllm.logger import init_logger

    def start() -> str | None:
        from tutti.integrations.vllm import platform

        return platform()

    return _run("vLLM", init_logger("vllm.tutti"), start)


def sglang() -> None:
    """sglang.srt.plugins"""
    def start() -> None:
        from tutti.integrations.sglang import register

        register()

    _run("SGLang", logging.getLogger("sglang.srt.tutti"), start)
