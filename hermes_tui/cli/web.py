"""``web``: the screen in a browser."""

from __future__ import annotations

import click

from hermes_tui.cli.overrides import Invocation, OverridesCommand


@click.command(cls=OverridesCommand)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--expose",
    is_flag=True,
    help="Allow an address that other machines reach: whoever has the link commands the agent.",
)
@click.option("--public-url", help="Address that browsers use, where a proxy is in between.")
@click.pass_obj
def web(invocation: Invocation, host: str, port: int, expose: bool, public_url: str | None) -> None:
    """Serve the screen to browsers; every tab shows the one stack.

    Starts the stack when none runs, and prints a link with a key. Without the link nobody gets in.
    """
    from hermes_tui.cli.web_server import WebSettings, serve

    settings = WebSettings(host=host, port=port, expose=expose, public_url=public_url)
    raise SystemExit(serve(invocation.load(), settings))
