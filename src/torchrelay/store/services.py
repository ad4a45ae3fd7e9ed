"""Buckets of the services that obstore speaks to, set up from the environment.

Plain http is spoken only where an endpoint says `http://`. What a service needs besides is left to
obstore, which reads the variables that the service's own tools read: `GOOGLE_APPLICATION_CREDENTIALS`
and its kin, `AZURE_STORAGE_ACCOUNT_NAME`, `AZURE_STORAGE_ACCOUNT_KEY` and their kin, web identities
and the roles of machines.
"""

import functools
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from torchrelay.core.errors import StoreError
from torchrelay.store.connection import Connection
from torchrelay.store.credentials import Credentials, read_credentials
from torchrelay.store.key_source import KeySource
from torchrelay.store.objects import ObjectStore
from torchrelay.store.trial import Observer

_GIVE_KEYS = (
    "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; AWS_SKIP_SIGNATURE=true for public data"
)
_ROLES = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_AZURE_ENDPOINTS = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")


def open_s3(
    url: str,
    bucket: str,
    prefix: str,
    *,
    retry_s: float,
    observer: Observer | None = None,
    variables: Mapping[str, str] = os.environ,
) -> ObjectStore:
    """A bucket of an S3-compatible service; an operation gives up after `retry_s` seconds of waiting."""
    _check_bucket(url, bucket)
    found = read_credentials(variables)
    source = KeySource(variables) if found.from_profile or found.process is not None else None

    def make(*, client_options: dict[str, Any], retry_config: dict[str, Any]) -> Any:
        now = read_credentials(variables) if source is not None else found
        if source is not None:
            source()  # told here, in our own words, when there are no keys
        elif _nobody(found, variables):
            raise StoreError(f"{url}: no keys were found", hint=_GIVE_KEYS)
        return S3Store(
            bucket,
            config=s3_config(now, bucket),
            client_options=client_options | _transport(now),
            retry_config=retry_config,
            credential_provider=source,
        )

    forget = source.forget if source is not None else None
    connection = Connection(url, make, patience_s=retry_s, forget_keys=forget, observer=observer)
    return ObjectStore(url, connection, prefix)


def s3_config(found: Credentials, bucket: str) -> dict[str, Any]:
    """What obstore's client of S3 is told."""
    config: dict[str, Any] = {
        "region": found.region or "us-east-1",
        "disable_bulk_delete": True,  # one request for one object, which every service understands
        **found.role,
    }
    if found.metadata_endpoint is not None:
        config["metadata_endpoint"] = found.metadata_endpoint
    if found.anonymous:
        config["skip_signature"] = True
    elif not found.from_profile:
        config |= found.keys
    virtual = found.style == "virtual" or (
        # A name with a dot is not covered by the certificate of the service.
        found.style == "auto" and found.endpoint is None and "." not in bucket
    )
    config["virtual_hosted_style_request"] = virtual
    if found.endpoint is not None:
        config["endpoint"] = _with_bucket(found.endpoint, bucket) if virtual else found.endpoint
    return config


def open_gcs(
    url: str,
    bucket: str,
    prefix: str,
    *,
    retry_s: float,
    observer: Observer | None = None,
    variables: Mapping[str, str] = os.environ,
) -> ObjectStore:
    """A bucket of Google Cloud Storage."""
    _check_bucket(url, bucket)
    base_url = variables.get("GOOGLE_BASE_URL", "")

    def make(*, client_options: dict[str, Any], retry_config: dict[str, Any]) -> Any:
        options = client_options | {"allow_http": base_url.startswith("http://")}
        return GCSStore(bucket, client_options=options, retry_config=retry_config)

    return ObjectStore(url, Connection(url, make, patience_s=retry_s, observer=observer), prefix)


def open_azure(
    url: str,
    container: str,
    prefix: str,
    *,
    retry_s: float,
    observer: Observer | None = None,
    variables: Mapping[str, str] = os.environ,
) -> ObjectStore:
    """A container of an Azure storage account, which the environment names."""
    _check_bucket(url, container)
    endpoint = next((variables[name] for name in _AZURE_ENDPOINTS if variables.get(name)), "")
    emulated = _is_true(variables, "AZURE_STORAGE_USE_EMULATOR")

    def make(*, client_options: dict[str, Any], retry_config: dict[str, Any]) -> Any:
        options = client_options | {"allow_http": emulated or endpoint.startswith("http://")}
        return AzureStore(container, client_options=options, retry_config=retry_config)

    return ObjectStore(url, Connection(url, make, patience_s=retry_s, observer=observer), prefix)


def open_memory(url: str, name: str, prefix: str) -> ObjectStore:
    """A store of this process alone; every open of the same name gives the same objects."""
    connection = Connection(url, functools.partial(_take_memory, name), patience_s=1.0)
    return ObjectStore(url, connection, prefix)


def _take_memory(name: str, *, client_options: object, retry_config: object) -> MemoryStore:
    return _memory(name)


@functools.cache
def _memory(name: str) -> MemoryStore:
    return MemoryStore()


def _nobody(found: Credentials, variables: Mapping[str, str]) -> bool:
    """Whether there are no keys and the machine may not be asked for its role.

    The same variable forbids that question to every other tool that speaks to S3.
    """
    known = found.keys or found.role or found.anonymous or any(variables.get(name) for name in _ROLES)
    return not known and _is_true(variables, "AWS_EC2_METADATA_DISABLED")


def _is_true(variables: Mapping[str, str], name: str) -> bool:
    return variables.get(name, "").lower() in ("true", "1", "yes")


def _check_bucket(url: str, bucket: str) -> None:
    if not bucket:
        raise StoreError(f"{url!r} names no bucket", hint=f"write {url.partition('://')[0]}://bucket/prefix")


def _transport(found: Credentials) -> dict[str, Any]:
    options: dict[str, Any] = {"allow_http": bool(found.endpoint and found.endpoint.startswith("http://"))}
    if found.ca_file is not None:
        try:
            options["root_certificate"] = found.ca_file.read_bytes()
        except OSError as error:
            raise StoreError(
                f"cannot read the certificates in {found.ca_file}: {error.strerror}",
                hint="check AWS_CA_BUNDLE",
            ) from error
    return options


def _with_bucket(endpoint: str, bucket: str) -> str:
    parts = urlsplit(endpoint)
    return urlunsplit(parts._replace(netloc=f"{bucket}.{parts.netloc}"))
