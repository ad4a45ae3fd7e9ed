"""Where and as whom to reach an S3-compatible service: environment variables, else a profile.

The names are the ones that every S3 tool reads: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
`AWS_SESSION_TOKEN`, `AWS_ENDPOINT_URL`, `AWS_REGION`, and `AWS_PROFILE` in the files
`~/.aws/credentials` and `~/.aws/config`. A variable wins over the profile.
"""

import configparser
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchrelay.core.errors import StoreError

_KEYS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}
"""Name in the file (and, in capitals, in the environment) to the name that obstore takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What was found; absent values are left to the service's own rules (a machine's role)."""

    keys: Mapping[str, str] = field(repr=False)
    """`access_key_id`, `secret_access_key`, `session_token`, or none of them."""
    endpoint: str | None
    region: str | None


def read_credentials(variables: Mapping[str, str]) -> Credentials:
    """Look in `variables`, then in the profile; StoreError when the named profile is nowhere."""
    profile = _read_profile(variables)
    keys = {ours: variables[name.upper()] for name, ours in _KEYS.items() if variables.get(name.upper())}
    if "access_key_id" not in keys:
        keys = {ours: profile[name] for name, ours in _KEYS.items() if name in profile}
    return Credentials(
        keys=keys,
        endpoint=variables.get("AWS_ENDPOINT_URL_S3")
        or variables.get("AWS_ENDPOINT_URL")
        or profile.get("endpoint_url"),
        region=variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION") or profile.get("region"),
    )


def _read_profile(variables: Mapping[str, str]) -> dict[str, str]:
    """The settings of the profile in both files; empty when none is named and there is no default."""
    name = variables.get("AWS_PROFILE") or "default"
    secrets = _file(variables, "AWS_SHARED_CREDENTIALS_FILE", "credentials")
    settings = _file(variables, "AWS_CONFIG_FILE", "config")
    in_config = name if name == "default" else f"profile {name}"
    found = [
        dict(parser[section])
        for parser, section in ((settings, in_config), (secrets, name))
        if section in parser
    ]
    if not found and variables.get("AWS_PROFILE"):
        raise StoreError(
            f"AWS_PROFILE={name!r} is in neither of the credential files",
            hint=f"profiles there: {', '.join(secrets.sections()) or 'none'}",
        )
    return {key: value for part in found for key, value in part.items()}


def _file(variables: Mapping[str, str], variable: str, name: str) -> configparser.ConfigParser:
    home = Path(variables["HOME"]) if "HOME" in variables else Path.home()
    path = Path(variables[variable]).expanduser() if variables.get(variable) else home / ".aws" / name
    parser = configparser.ConfigParser(interpolation=None)  # a token may contain "%"
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, OSError, UnicodeDecodeError) as error:
        raise StoreError(f"cannot read the credential file {path}: {error}") from error
    return parser
