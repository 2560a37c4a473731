"""The Hermes agent in this process: the only package that imports it."""

from hermes_tui_services.worker.hermes.agent import HermesAgent

__all__ = ["HermesAgent"]
