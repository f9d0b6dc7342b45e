"""`ostler setup github` and `ostler setup ping`: create the GitHub App, and test that its webhooks arrive.

GitHub creates the App from a manifest and shows the App's secrets only once. The command writes the secrets into a
Secret or a file and prints them nowhere (law L13). If the write fails, it writes them into a new file instead.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.kubeconfigs import Kubeconfig
from cli.output import AWAY, NOT_FOUND, fail
from ostler.errors import ConfigurationError, RateLimited, Retryable, UpstreamError
from ostler.github_urls import GITHUB, api_url_of
from ostler.secrets import Secret

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cli.setup.store import Store
    from github_adapters.client import GitHub
    from github_adapters.manifest import AppMade

app = typer.Typer(no_args_is_help=True, help="Set up a new installation: create the GitHub App and test its webhook.")

DEFAULT_NAME = "ostler"
WEBHOOKS = "/webhooks/github"
"""Path at which web accepts webhooks."""

Within = Annotated[float, typer.Option(help="seconds to wait for GitHub's ping; 0 skips the test")]


@app.command()
def github(
    webhook_url: Annotated[str, typer.Option(help="URL at which GitHub reaches web: https://HOST/webhooks/github")],
    organization: Annotated[
        str | None, typer.Option(help="organisation that owns the App; default: your own account")
    ] = None,
    name: Annotated[str, typer.Option(help="name of the App, unique on all of GitHub")] = "",
    namespace: Annotated[
        str | None, typer.Option(help="namespace of the cluster into which the Secret is written")
    ] = None,
    secret: Annotated[str, typer.Option(help="name of the Secret: the chart's existingSecret")] = DEFAULT_NAME,
    kubeconfig: Kubeconfig = None,
    env_file: Annotated[
        Path | None, typer.Option(help="write the secrets into this file instead, with mode 0600")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="overwrite secrets of an App that already exist")] = False,
    github_url: Annotated[
        str, typer.Option(help="https://SUBDOMAIN.ghe.com, or https://HOST of an Enterprise Server")
    ] = "https://github.com",
    github_api_url: Annotated[
        str | None, typer.Option(help="URL of the API, if it is neither api.SUBDOMAIN.ghe.com nor HOST/api/v3")
    ] = None,
    check_runs: Annotated[
        bool, typer.Option("--check-runs", help="also request checks: write, for OSTLER_CHECK_RUNS_AFTER")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="port of the local page; 0 chooses a free port")] = 0,
    browser: Annotated[
        bool, typer.Option(help="open the local page in a browser; with --no-browser, open it yourself")
    ] = True,
    timeout: Annotated[float, typer.Option(min=1, help="seconds to wait until the App is created")] = 900.0,
    ping_within: Within = 300.0,
) -> None:
    """Create the GitHub App, store its secrets where Ostler reads them, and wait for a webhook of the App."""
    from cli.setup.page import Page
    from cli.setup.reach import open_browser, way_from_elsewhere
    from cli.setup.store import store_of
    from github_adapters import manifest as flow

    _check_webhook_url(webhook_url, github_url=github_url)
    store = store_of(namespace=namespace, secret=secret, kubeconfig=kubeconfig, env_file=env_file, replace=replace)
    api_url = github_api_url or api_url_of(github_url)
    try:
        store.check()
        page = Page(port=port)
        content = flow.manifest(
            name=name or f"ostler-{organization or 'runners'}"[: flow.LONGEST_NAME],
            homepage=homepage_of(webhook_url),
            webhook_url=webhook_url,
            redirect_url=page.callback_url,
            organization=organization is not None,
            check_runs=check_runs,
        )
        target = flow.registration_url(github_url, organization=organization, state=page.state)
    except (UpstreamError, OSError) as error:
        away = isinstance(error, Retryable | RateLimited)
        fail(f"nothing was created yet: {error}", status=AWAY if away else NOT_FOUND)
    with page:
        page.serve(manifest=content, target=target)
        typer.echo(f"1. Open {page.url} in a browser that is logged in to {github_url}, and create the App.")
        if not (browser and open_browser(page.url, os.environ)):
            typer.echo("   If your browser runs on another machine, first run this command there and leave it running:")
            typer.echo(f"   {way_from_elsewhere(page.port, os.environ)}")
        code = page.wait(timeout)
    if code is None:
        fail(
            f"GitHub sent no code within {timeout:.0f} s, and no secrets were stored. If GitHub shows the App, delete "
            "it there. Then run `ostler setup github` again."
        )
    typer.echo("2. GitHub created the App, and its secrets are fetched.")
    try:
        made = flow.exchange(api_url=api_url, code=code)
    except UpstreamError as error:
        fail(
            f"{error}. If GitHub shows the App, delete it there, because GitHub shows its secrets only once. Then run "
            "`ostler setup github` again."
        )
    keep(store, made, api_url=api_url)
    typer.echo(f"4. Install it on the repositories that should use Ostler: {made.html_url}/installations/new")
    if ping_within <= 0:
        typer.echo(f"5. When web runs with these secrets, run `{store.ping}`.")
        return
    typer.echo(f"5. Start web (or restart it) with these secrets; a ping is repeated until it answers at {webhook_url}")
    client = _client(api_url=api_url, app_id=made.client_id, private_key=made.private_key)
    _see_ping(client, within=ping_within)


def _check_webhook_url(url: str, *, github_url: str) -> None:
    """Raise `ConfigurationError` if GitHub could not reach web at this URL."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    expected = f"; it must be https://HOST{WEBHOOKS}, as GitHub reaches web"
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigurationError(f"--webhook-url: found {url!r}{expected}")
    if not parts.path.endswith(WEBHOOKS):
        raise ConfigurationError(f"--webhook-url: found the path {parts.path or '/'!r}{expected}")
    if github_url.rstrip("/") != GITHUB:
        return  # an Enterprise Server might reach addresses that github.com cannot
    if parts.scheme != "https":
        raise ConfigurationError(f"--webhook-url: found {parts.scheme}://{expected}")
    if _is_local(parts.hostname):
        raise ConfigurationError(f"--webhook-url: github.com cannot reach {parts.hostname}{expected}")


def _is_local(host: str) -> bool:
    """Return whether only this machine or this network can reach a host."""
    from ipaddress import ip_address

    try:
        return not ip_address(host).is_global
    except ValueError:
        return host == "localhost" or "." not in host or host.endswith((".localhost", ".local", ".internal", ".svc"))


def homepage_of(webhook_url: str) -> str:
    """Return the homepage of the App for the App's manifest. It is the root of the webhook URL."""
    from urllib.parse import urlsplit

    parts = urlsplit(webhook_url)
    return f"{parts.scheme}://{parts.netloc}"


def keep(store: Store, made: AppMade, *, api_url: str) -> None:
    """Write the secrets of the App to the store.

    If the write fails, write the secrets into a new file, because GitHub shows them only once. Then end the command
    with exit status 1.
    """
    values = {
        "OSTLER_GITHUB_APP_ID": Secret(made.client_id),
        "OSTLER_GITHUB_PRIVATE_KEY": made.private_key,
        "OSTLER_WEBHOOK_SECRETS": made.webhook_secret,
    }
    try:
        store.write(values, api_url=api_url)
    except (UpstreamError, ConfigurationError, OSError) as error:
        rescue = _rescue(values, api_url=api_url)
        if rescue is None:
            fail(
                f"{store.where} could not be written: {error}. No other file could be written either, so the secrets "
                f"of App {made.slug} are lost: delete the App on GitHub and begin again."
            )
        fail(
            f"{store.where} could not be written: {error}. The secrets of App {made.slug} are in {rescue}, "
            "which only you may read: copy the secrets from there and delete the file."
        )
    typer.echo(f"3. App {made.slug} of {made.owner}: its id, key and webhook secret are in {store.where}.")
    if store.further(api_url):
        typer.echo(f"   {store.further(api_url)}")


def _rescue(values: Mapping[str, Secret], *, api_url: str) -> Path | None:
    """Write secrets to a new file in the working directory or, if that fails, in the folder for temporary files.

    Return the path of the file, or None if neither folder can be written.
    """
    from cli.setup.store import EnvFile

    name = f"ostler-{secrets.token_hex(4)}.env"
    for folder in (Path(), Path(tempfile.gettempdir())):
        try:
            EnvFile(folder / name, replace=False).write(values, api_url=api_url)
        except (UpstreamError, OSError):
            continue
        return (folder / name).resolve()
    return None


@app.command()
def ping(within: Annotated[float, typer.Option(min=1, help="seconds to wait for GitHub's ping")] = 60.0) -> None:
    """Test that a webhook of the App arrives. Needs OSTLER_GITHUB_APP_ID and OSTLER_GITHUB_PRIVATE_KEY."""
    from ostler.settings import load_app

    access = load_app()
    client = _client(api_url=access.github_api_url, app_id=access.github_app_id, private_key=access.github_private_key)
    _see_ping(client, within=within)


def _client(*, api_url: str, app_id: str, private_key: Secret) -> GitHub:
    from github_adapters.client import GitHub

    return GitHub(api_url=api_url, app_id=app_id, private_key=private_key)


def _see_ping(client: GitHub, *, within: float) -> None:
    from cli.setup.ping import see_ping

    try:
        problem = see_ping(client, within=within, say=typer.echo)
    except Retryable as error:
        fail(str(error), status=AWAY)
    finally:
        client.close()
    if problem is not None:
        fail(problem)
    typer.echo("A webhook of GitHub arrives at web, signed with this secret. Next: docs/first-run.md, step 2.")
