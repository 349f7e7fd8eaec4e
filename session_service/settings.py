"""The session service's settings: environment variables and flags, nowhere else read."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from sqlalchemy.engine import make_url

from session_service.storage.engine import full_url, is_sqlite

ENV_PREFIX = "TURNKEEPER_SESSION_"


def _supported(url: SecretStr) -> SecretStr:
    try:
        whole = full_url(url.get_secret_value())
        if is_sqlite(whole) and make_url(whole).database in {None, "", ":memory:"}:
            raise ValueError  # each connection would have a database of its own
    except Exception:
        # Without the cause: it would show the URL, and with it a password.
        raise ValueError("write it as sqlite:///path/to/file or postgresql://user@host/database") from None
    return url


class Settings(BaseSettings):
    """Every setting, with its unit and default. Flags win over the environment."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_ignore_empty=True, allow_inf_nan=False, hide_input_in_errors=True, frozen=True
    )

    database_url: Annotated[SecretStr, AfterValidator(_supported)] = Field(
        SecretStr("sqlite:///turnkeeper.db"),
        description="Where everything is kept: sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE. "
        "With a password, better in the environment than in a flag.",
    )
    pool_size: int = Field(10, ge=1, le=200, description="PostgreSQL connections of this process, at most.")
    listen: str = Field("127.0.0.1:7601", description="Where to listen: host:port (port 0: any free one).")
    tls_cert: Path | None = Field(None, description="PEM file of the server's certificate chain.")
    tls_key: Path | None = Field(None, description="PEM file of the certificate's private key.")
    insecure: bool = Field(False, description="Listen beyond loopback without TLS.")
    user_jwks: str | None = Field(
        None,
        description="JWKS of the user tokens' issuer: a file or an https URL. Without it, on loopback only, the keys "
        "of dev-token.",
    )
    user_issuer: str = Field("turnkeeper-dev", min_length=1, description="`iss` of user tokens.")
    user_audience: str = Field("turnkeeper", min_length=1, description="`aud` of user tokens.")
    data_dir: Path | None = Field(
        None, description="Directory of the key of dev-token; by default that of the SQLite file."
    )
    runner_target: str = Field("127.0.0.1:7602", description="The runner service, as a gRPC target.")
    runner_tls_ca: Path | None = Field(None, description="PEM file of the CA to trust for the runner service.")
    lease_seconds: float = Field(6.0, gt=0, le=3600, description="How long an attempt's lease lasts without renewal.")
    stop_grace_seconds: float = Field(
        3.0, gt=0, le=600, description="How long a runner may take to stop a turn when its lease is over."
    )
    confirm_seconds: float = Field(
        10.0,
        gt=0,
        le=3600,
        description="How long a cancel waits for the runner's report; at least lease plus stop grace.",
    )
    hold_seconds: float = Field(
        600.0, gt=0, le=86_400, description="How long a turn's call may be held open for human answers, in all."
    )
    sweep_seconds: float = Field(1.0, gt=0, le=600, description="Time between sweeps for lost and overdue runs.")
    poll_seconds: float = Field(1.0, gt=0, le=600, description="Time between looks at the queue without any hint.")
    shutdown_grace_seconds: float = Field(
        15.0, gt=0, le=3600, description="How long running calls and turns may go on after SIGTERM."
    )
    run_seconds: float = Field(
        3600.0, gt=0, le=86_400, description="Time from start to deadline of a run that names no timeout."
    )
    max_attempts: int = Field(64, ge=1, le=10_000, description="Turns that this process dispatches at once.")
    max_queued: int = Field(1000, ge=1, le=10_000_000, description="Queued runs of one tenant, at most.")
    keep_keys_days: float = Field(
        7.0, gt=0, le=3650, description="Days after which idempotency keys and request ids are forgotten."
    )

    @model_validator(mode="after")
    def _stops_before_it_is_confirmed(self) -> Self:
        if self.confirm_seconds < self.lease_seconds + self.stop_grace_seconds:
            raise ValueError(
                "confirm_seconds must be at least lease_seconds + stop_grace_seconds "
                f"({self.lease_seconds:g} + {self.stop_grace_seconds:g}): "
                "else a cancelled run could still start requests"
            )
        return self

    @property
    def url(self) -> str:
        """The database's URL, password and all."""
        return self.database_url.get_secret_value()

    @property
    def dev_directory(self) -> Path | None:
        """Where dev-token's key is; None when there is no place for it."""
        if self.data_dir is not None:
            return self.data_dir
        if not is_sqlite(self.url):
            return None
        return Path(full_url(self.url).partition(":///")[2]).absolute().parent
