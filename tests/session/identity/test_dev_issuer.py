"""Tokens for a laptop, and what the program refuses to start with."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from turnkeeper.v1.identity_service_pb2 import WhoAmIRequest
from turnkeeper.wire.serving import ServingError

from session_service.app import session_app
from session_service.identity.dev_issuer import DevIssuer
from session_service.settings import Settings
from session_service.storage import migrate
from tests.fixtures.client import Client


def run(*arguments: str, directory: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "session_service", *arguments]
    return subprocess.run(
        command, cwd=directory, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_a_dev_token_is_taken_by_a_service_on_loopback(database_url: str, tmp_path: Path) -> None:
    done = run(
        *("dev-token", "--tenant", "acme", "--user", "ada", "--roles", "cook baker", "--json"),
        directory=tmp_path,
        TURNKEEPER_SESSION_DATABASE_URL=database_url,
    )
    answer = json.loads(done.stdout)

    async with (
        session_app(Settings(database_url=database_url, listen="127.0.0.1:0")) as app,
        Client(app.address, app.address, answer["token"]) as client,
    ):
        me = await client.identity.WhoAmI(WhoAmIRequest())

    assert (me.tenant_id, me.user_id, list(me.roles)) == ("acme", "ada", ["cook", "baker"])
    assert "sessions:write" in me.scopes
    assert "admin" not in me.scopes
    key = tmp_path / "dev-issuer.jwk"
    assert key.stat().st_mode & 0o777 == 0o600
    public = (tmp_path / "dev-issuer.jwks.json").read_text()
    assert answer["user_jwks"] == str(tmp_path / "dev-issuer.jwks.json")
    assert json.loads(key.read_text())["d"] not in public + done.stdout


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"listen": "0.0.0.0:0"}, "without TLS"),
        ({"listen": "0.0.0.0:0", "insecure": True}, "TURNKEEPER_SESSION_USER_JWKS"),
        ({"tls_cert": "gone.pem", "tls_key": "gone.pem"}, "TLS certificate"),
        ({"user_jwks": "gone.json"}, "cannot read the user_jwks"),
        ({"user_jwks": "http://issuer.example/jwks"}, "https URL"),
        ({"listen": "nonsense"}, "host:port"),
        ({"database_url": "sqlite:////nowhere/at/all.db"}, "cannot use the database"),
    ],
)
async def test_what_a_service_refuses_to_start_with(
    database_url: str, changes: dict[str, object], said: str, tmp_path: Path
) -> None:
    given: dict[str, object] = {"database_url": database_url, "listen": "127.0.0.1:0", "data_dir": tmp_path}
    with pytest.raises(ServingError, match=said):
        async with session_app(Settings(**{**given, **changes})):  # type: ignore[arg-type]
            pass


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
async def test_a_service_does_not_migrate_postgresql_by_itself(database_url: str, tmp_path: Path) -> None:
    from alembic import command

    async with migrate.opened(database_url) as connection:
        await connection.run_sync(lambda sync: command.downgrade(migrate.config(sync), "base"))
    settings = Settings(database_url=database_url, listen="127.0.0.1:0", data_dir=tmp_path)

    with pytest.raises(ServingError, match="run `session-service migrate`"):
        async with session_app(settings):
            pass
    assert not await migrate.is_current(database_url)

    done = run("migrate", directory=tmp_path, TURNKEEPER_SESSION_DATABASE_URL=database_url)
    assert done.returncode == 0, done.stderr
    async with session_app(settings):
        pass


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(
            ("--confirm-seconds", "8.9"),
            "confirm_seconds must be at least lease_seconds + stop_grace_seconds (6 + 3)",
            marks=pytest.mark.spec("4.6"),
        ),
        (("--lease-seconds", "nan"), "setting lease_seconds (TURNKEEPER_SESSION_LEASE_SECONDS)"),
        (("--lease-seconds", "inf"), "setting lease_seconds"),
        (("--sweep-seconds", "0"), "setting sweep_seconds"),
        (("--max-queued", "-1"), "setting max_queued"),
        (("--database-url", "sqlite://"), "write it as sqlite:///path/to/file"),
        (("--database-url", "sqlite:///:memory:"), "write it as sqlite:///path/to/file"),
        (("--user-jwks", "gone.json"), "cannot read the user_jwks gone.json"),
        (("--listen", "0.0.0.0:0"), "without TLS"),
        (("--database-url", "mysql://ada:hunter2@db/x"), "setting database_url"),
        (("--database-url", "postgresql://ada:hunter2@127.0.0.1:1/x", "--data-dir", "."), "cannot use the database"),
    ],
)
def test_wrong_settings_are_named_and_nothing_secret_is_said(
    arguments: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = run("serve", *arguments, directory=tmp_path)

    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    if "postgresql" not in " ".join(arguments):  # where only the database itself can say no, the key is made
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--tenant", "", "--user", "ada"), "--tenant"),
        (("--tenant", "acme", "--user", " "), "--user"),
        (("--tenant", "acme", "--user", "ada", "--scopes", "runs:read runs:rite"), "sessions:write"),
    ],
)
def test_a_token_that_no_service_would_take_is_not_made(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = run("dev-token", *arguments, directory=tmp_path, COLUMNS="400")

    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_every_setting_is_a_flag_and_a_variable_in_the_help(tmp_path: Path) -> None:
    done = run("serve", "--help", directory=tmp_path, COLUMNS="400")
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in done.stdout
        assert f"TURNKEEPER_SESSION_{name.upper()}" in done.stdout
        assert field.description


def test_the_laptops_key_is_made_once_and_its_jwks_follows_it(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def jwks() -> str:
        return DevIssuer.open(tmp_path).jwks_path.read_text()

    with ThreadPoolExecutor(8) as threads:
        [first] = set(threads.map(lambda _: jwks(), range(8)))
    assert jwks() == first
    (tmp_path / "dev-issuer.jwk").unlink()
    assert jwks() != first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dev-issuer.jwk", "dev-issuer.jwks.json"]
