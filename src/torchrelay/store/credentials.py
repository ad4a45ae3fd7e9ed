"""Where and as whom to reach an S3-compatible service: environment variables, else a profile.

The names are the ones that every S3 tool reads: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
`AWS_SESSION_TOKEN`, `AWS_ENDPOINT_URL`, `AWS_REGION`, and `AWS_PROFILE` in the files
`~/.aws/credentials` and `~/.aws/config`. A variable wins over the profile. Two more:
`AWS_SKIP_SIGNATURE=true` asks without any keys, `AWS_S3_ADDRESSING_STYLE` is `auto`, `path` or `virtual`.
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

_ROLE = ("web_identity_token_file", "role_arn", "role_session_name")
"""Settings of a profile that obstore itself turns into keys, and renews."""

_STYLES = ("auto", "path", "virtual")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What was found; absent values are left to the service's own rules (a machine's role)."""

    keys: Mapping[str, str] = field(repr=False)
    """`access_key_id`, `secret_access_key`, `session_token`, or none of them."""
    endpoint: str | None
    region: str | None
    from_profile: bool = False
    """The keys come from a file, which may get other ones while we run."""
    process: str | None = field(default=None, repr=False)
    """A command that prints keys, where the profile has one instead of keys."""
    role: Mapping[str, str] = field(default_factory=dict)
    """The web identity of the profile."""
    style: str = "auto"
    """How the bucket is put into the address: `path`, `virtual`, or as fits the endpoint."""
    anonymous: bool = False
    ca_file: Path | None = None
    """Certificates of an authority of one's own."""
    metadata_endpoint: str | None = None
    """Where the machine is asked for its role, if not at the usual address."""


def read_credentials(variables: Mapping[str, str]) -> Credentials:
    """Look in `variables`, then in the profile; StoreError when the named profile is nowhere."""
    profile = _read_profile(variables)
    keys = {ours: variables[name.upper()] for name, ours in _KEYS.items() if variables.get(name.upper())}
    _check_complete(keys, "in the environment")
    may_ask_profile = "access_key_id" not in keys and not variables.get("AWS_WEB_IDENTITY_TOKEN_FILE")
    process, role = None, {}
    if may_ask_profile:
        keys = {ours: profile[name] for name, ours in _KEYS.items() if name in profile}
        _check_complete(keys, "in the profile")
        process = None if keys else profile.get("credential_process")
        role = {} if keys or process else _read_role(profile)
    ca_file = variables.get("AWS_CA_BUNDLE") or profile.get("ca_bundle")
    return Credentials(
        keys=keys,
        endpoint=variables.get("AWS_ENDPOINT_URL_S3")
        or variables.get("AWS_ENDPOINT_URL")
        or profile.get("endpoint_url"),
        region=variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION") or profile.get("region"),
        from_profile=may_ask_profile and bool(keys),
        process=process,
        role=role,
        style=_read_style(variables, profile),
        anonymous=variables.get("AWS_SKIP_SIGNATURE", "").lower() in ("true", "1", "yes"),
        ca_file=Path(ca_file).expanduser() if ca_file else None,
        metadata_endpoint=variables.get("AWS_METADATA_ENDPOINT") or None,
    )


def credential_files(variables: Mapping[str, str]) -> tuple[Path, Path]:
    """The two files that may hold profiles, whether or not they exist: settings, and secrets."""
    home = Path(variables["HOME"]) if "HOME" in variables else Path.home()

    def place(variable: str, name: str) -> Path:
        return Path(variables[variable]).expanduser() if variables.get(variable) else home / ".aws" / name

    return place("AWS_CONFIG_FILE", "config"), place("AWS_SHARED_CREDENTIALS_FILE", "credentials")


def _check_complete(keys: Mapping[str, str], where: str) -> None:
    if ("access_key_id" in keys) != ("secret_access_key" in keys):
        raise StoreError(
            f"half of the S3 keys is {where}: an access key id and a secret access key belong together",
            hint="give both, or neither",
        )


def _read_role(profile: Mapping[str, str]) -> dict[str, str]:
    """The web identity of a profile; StoreError for the ways to sign in that need a tool of their own."""
    if "web_identity_token_file" in profile:
        return {name: profile[name] for name in _ROLE if name in profile}
    foreign = [name for name in profile if name.startswith("sso_") or name in ("role_arn", "source_profile")]
    if foreign:
        raise StoreError(
            f"the profile gets its keys by {foreign[0]}, which torchrelay does not do itself",
            hint="set credential_process = aws configure export-credentials --profile NAME in the profile",
        )
    return {}


def _read_style(variables: Mapping[str, str], profile: Mapping[str, str]) -> str:
    nested = configparser.ConfigParser(interpolation=None)
    nested.read_string("[s3]\n" + "\n".join(line.strip() for line in profile.get("s3", "").splitlines()))
    style = variables.get("AWS_S3_ADDRESSING_STYLE") or nested["s3"].get("addressing_style") or "auto"
    if style not in _STYLES:
        raise StoreError(
            f"{style!r} is not a style of S3 addresses",
            hint=f"AWS_S3_ADDRESSING_STYLE is {', '.join(_STYLES)}",
        )
    return style


def _read_profile(variables: Mapping[str, str]) -> dict[str, str]:
    """The settings of the profile in both files; empty when none is named and there is no default."""
    name = variables.get("AWS_PROFILE") or "default"
    settings, secrets = (_read_file(path) for path in credential_files(variables))
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


def _read_file(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)  # a token may contain "%"
    try:
        parser.read(path, encoding="utf-8")
    except configparser.Error as error:  # its text quotes the line, which may be a key
        line = getattr(error, "lineno", None) or next(iter(getattr(error, "errors", [])), ("?",))[0]
        raise StoreError(
            f"cannot read the credential file {path}: line {line} is not understood",
            hint="a file of profiles has lines [name] and key = value",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise StoreError(f"cannot read the credential file {path}: {reason}") from None
    return parser
