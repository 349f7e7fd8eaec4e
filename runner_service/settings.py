"""The runner service's settings: environment variables and flags, nowhere else read."""

import json
import socket
from typing import Annotated, Any

from pydantic import AliasChoices, Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from turnkeeper.wire.budgets import parse_budget

from runner_service.tools.address import AddressRefused, origin_of
from runner_service.tools.targets import read_targets

ENV_PREFIX = "TURNKEEPER_RUNNER_"
FACTS_SECONDS = 2.0
"""What a turn may spend on its facts where the setting names no budget."""
PROMPT_BYTES = 32 * 2**20
"""What a prompt's history may take where the setting does not say."""


def _also(name: str) -> AliasChoices:
    """The setting's own variable, or the one that other programs use for the same thing."""
    return AliasChoices(ENV_PREFIX + name, name)


class Settings(BaseSettings):
    """Every setting, with its unit and default. Flags win over the environment."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, populate_by_name=True, env_ignore_empty=True, hide_input_in_errors=True
    )

    listen: str = Field(default="127.0.0.1:7602", description="Where to listen: host:port (port 0: any free one).")
    tls_cert: str | None = Field(default=None, description="PEM file of the server's certificate chain.")
    tls_key: str | None = Field(default=None, description="PEM file of the certificate's private key.")
    insecure: bool = Field(default=False, description="Listen beyond loopback without TLS.")
    session_target: str = Field(default="127.0.0.1:7601", description="The session service, as a gRPC target.")
    session_tls_ca: str | None = Field(default=None, description="PEM file of the CA to trust for the session service.")
    user_jwks: str | None = Field(default=None, description="JWKS of the user tokens' issuer: a file or an https URL.")
    user_issuer: str | None = Field(default=None, description="`iss` of user tokens.")
    user_audience: str | None = Field(default=None, description="`aud` of user tokens.")
    openai_base_url: str | None = Field(
        default=None,
        validation_alias=_also("OPENAI_BASE_URL"),
        description="Base URL of the openai harness's service; any compatible one.",
    )
    openai_api_key: SecretStr | None = Field(
        default=None,
        validation_alias=_also("OPENAI_API_KEY"),
        description="Key of the openai harness's service. Better in the environment than in a flag.",
    )
    tool_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="Origins that HTTP tools may call, separated by commas: https://tools.example:443."
    )
    grpc_targets: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Targets that gRPC tools may call, separated by commas: host:port, or grpcs://host:port over TLS.",
    )
    grpc_tls_ca: str | None = Field(
        default=None, description="PEM file of the CA to trust for gRPC tools. Default: the system's."
    )
    tool_headers: Annotated[dict[str, dict[str, SecretStr]], NoDecode] = Field(
        default_factory=dict,
        description="Headers to add to tool calls, as JSON by origin or target: "
        '{"https://tools.example:443": {"X-Api-Key": "..."}}. Better in the environment than in a flag.',
    )
    tool_result_bytes: int = Field(
        default=64 * 1024, ge=1024, le=2**20 - 1024, description="Size to which a tool's result is cut, in bytes."
    )
    max_prompt_bytes: int = Field(
        default=PROMPT_BYTES,
        ge=2**10,
        le=2**30,
        description="Size of the history that a turn may have as its prompt, in bytes; with more, it fails.",
    )
    gate_address: str | None = Field(
        default=None, description="host:port that `wait_gate` of scripts connects to; for tests."
    )
    store_id: str = Field(
        default_factory=socket.gethostname,
        min_length=1,
        max_length=255,
        description="Id of the store that keeps harness sessions. Default: the host's name.",
    )
    # Text, because what is no budget must not keep the runner from starting: the default is taken then.
    facts_budget: str = Field(
        default=f"{FACTS_SECONDS:g}",
        description="What a turn may spend on its facts, in seconds. What is not finite and positive is the default.",
    )
    metrics_listen: str | None = Field(
        default=None,
        description="Where to serve metrics for Prometheus: host:port, on loopback unless insecure. Default: nowhere.",
    )
    stop_grace_seconds: float = Field(
        default=3.0,
        gt=0,
        le=60,
        description="How long a stopped turn may take to end; at most the session service's value.",
    )
    shutdown_grace_seconds: float = Field(
        default=15.0, gt=0, le=3600, description="How long running turns may go on after SIGTERM, reports included."
    )

    @property
    def facts_seconds(self) -> float:
        """What a turn may spend on its facts, in seconds: finite and positive, whatever the setting says."""
        return parse_budget(self.facts_budget, FACTS_SECONDS)

    @field_validator("tool_headers", mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except json.JSONDecodeError:
            # Its own message would quote what it read.
            raise ValueError("is not JSON") from None

    @field_validator("tool_origins", "grpc_targets", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(each.strip() for each in value.split(",") if each.strip()) if isinstance(value, str) else value

    @field_validator("tool_origins", "grpc_targets")
    @classmethod
    def _are_destinations(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        try:
            if info.field_name == "tool_origins":
                for each in value:
                    origin_of(each)
            else:
                read_targets(value)
        except AddressRefused as error:
            raise ValueError(str(error)) from None
        return value


def variables(name: str) -> tuple[str, ...]:
    """The environment variables that a setting is read from, the first that is set."""
    alias = Settings.model_fields[name].validation_alias
    if isinstance(alias, AliasChoices):
        return tuple(str(choice) for choice in alias.choices)
    return (ENV_PREFIX + name.upper(),)
