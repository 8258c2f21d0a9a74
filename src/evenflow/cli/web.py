"""`evenflow web`: the dashboard of an app, on this machine unless a login and TLS are configured."""

import os
import signal
from pathlib import Path
from typing import Any

import click

from evenflow import Evenflow
from evenflow.cli.listening import listeners
from evenflow.cli.places import load_app, refuse_missing
from evenflow.errors import ConfigError, DriverMissing
from evenflow.web.access import SPECS, read_specs
from evenflow.web.exposure import check_exposure
from evenflow.worker.logs import LEVELS, configure_logging

AUTH_VARIABLE = "EVENFLOW_WEB_AUTH"
STOP_WITHIN_S = 5


@click.command()
@click.argument("locator", metavar="MODULE:APP", required=False)
@click.option("--url", metavar="URL", help="A database instead of an app: its tasks are then unknown here.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8600, show_default=True, help="The port.")
@click.option(
    "--auth", "specs", multiple=True, metavar="SPEC", help=f"Who may come in: {SPECS}. May be repeated."
)
@click.option(
    "--allow-host", "hosts", multiple=True, metavar="NAME", help="A name under which this is reached."
)
@click.option(
    "--tls-cert", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Certificate chain."
)
@click.option(
    "--tls-key", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Its private key."
)
@click.option("--trusted-proxy", metavar="ADDRESS", help="A proxy that speaks TLS and says who asks.")
@click.option("--root-path", default="", metavar="PATH", help="The path under which a proxy shows this.")
@click.option("--enqueue", is_flag=True, help="Take jobs over HTTP, from the roles producer and admin.")
@click.option(
    "--writes-per-minute", type=click.IntRange(0), default=600, show_default=True,
    help="How often each login may change something; 0 is no limit.",
)  # fmt: skip
@click.option(
    "--loglevel", type=click.Choice(LEVELS, case_sensitive=False), default="info", show_default=True
)
def web(
    locator: str | None, url: str | None, host: str, port: int, specs: tuple[str, ...], hosts: tuple[str, ...],
    tls_cert: Path | None, tls_key: Path | None, trusted_proxy: str | None, root_path: str, enqueue: bool,
    writes_per_minute: int, loglevel: str,
) -> None:  # fmt: skip
    """Serve the dashboard and its JSON API.

    Any other address than this machine's own needs --auth, and TLS or a trusted proxy; else it does not start. Passwords
    are better kept in a file (--auth @FILE) or in EVENFLOW_WEB_AUTH than on a command line, which others can see.
    """
    # The extra is asked for first: without it nothing else about this command matters.
    uvicorn = _server()
    configure_logging(loglevel)
    auth = read_specs([*specs, *os.environ.get(AUTH_VARIABLE, "").splitlines()])
    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key belong together; give both or none")
    check_exposure(
        host, has_auth=bool(auth), has_tls=tls_cert is not None, has_proxy=trusted_proxy is not None
    )
    app = _app(locator, url)
    asgi = app.web(
        auth=auth or None,
        hosts=(*hosts, *_own_name(host)),
        enqueue=enqueue,
        writes_per_minute=writes_per_minute or None,
    )
    config = uvicorn.Config(
        asgi, root_path=root_path.rstrip("/"), log_config=None, access_log=False, server_header=False,
        proxy_headers=trusted_proxy is not None, forwarded_allow_ips=trusted_proxy, timeout_graceful_shutdown=STOP_WITHIN_S,
        ssl_certfile=tls_cert, ssl_keyfile=tls_key, lifespan="off",
    )  # fmt: skip
    sockets = listeners(host, port)
    shown, at = f"[{host}]" if ":" in host else host, sockets[0].getsockname()[1]
    scheme = "https" if tls_cert else "http"
    click.echo(
        f"Dashboard of {app.settings.database.masked()} on {scheme}://{shown}:{at}{root_path}/ (Ctrl-C stops it)"
    )
    # The server stops gracefully on these, then raises them once more: a stop that was asked for is no failure.
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: None)
    with app:
        uvicorn.Server(config).run(sockets)


def _server() -> Any:
    try:
        import uvicorn
    except ImportError as missing:
        raise DriverMissing(f"the dashboard needs {missing.name}", extra="web") from missing
    return uvicorn


def _app(locator: str | None, url: str | None) -> Evenflow:
    if (locator is None) == (url is None):
        raise click.UsageError("name an app, as in shop:app, or a database with --url; one of them")
    app = load_app(locator) if locator is not None else Evenflow(url)
    if app.settings.database.memory:
        raise ConfigError("a database in memory belongs to one process: mount app.web() in it")
    if locator is None:
        refuse_missing(app.settings)  # a mistyped address would be served as an empty database
    return app


def _own_name(host: str) -> tuple[str, ...]:
    """An address that was asked for is a name of ours; all addresses together are none."""
    return () if host in ("0.0.0.0", "::") else (host,)
