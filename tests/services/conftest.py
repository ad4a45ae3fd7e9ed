"""A real S3 server for the session: SeaweedFS in a folder of its own, on ports that were free."""

import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.services.proxy import FaultProxy

BUCKET = "relay-test"
OPEN = "relay-open"
"""A bucket that everybody may use without keys."""
ABSENT = "relay-absent"
"""A bucket that the writer may use and nobody made."""
_START_S = 90.0
_VERBS = ("Read", "Write", "List")


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Server:
    """A running server with one bucket and several identities."""

    endpoint: str
    bucket: str
    environment: dict[str, str]
    """What a process needs to use the bucket."""
    read_only: dict[str, str]
    """The same for an identity that may only read and list."""
    datasets_only: dict[str, str]
    """The same for one that may only read and list what lies under `datasets/` in the bucket."""


@pytest.fixture(scope="session")
def s3_server(
    require_tool: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[S3Server]:
    """Start the server once; tests use prefixes of their own in its bucket."""
    program = require_tool("weed")
    folder = tmp_path_factory.mktemp("seaweedfs")
    endpoint, command = _command(program, folder)
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    try:
        _make_bucket(endpoint, process, folder / "server.log")
        yield S3Server(
            endpoint=endpoint,
            bucket=BUCKET,
            environment=_environment(endpoint, "writer"),
            read_only=_environment(endpoint, "reader"),
            datasets_only=_environment(endpoint, "student"),
        )
    finally:
        process.kill()  # its folder is thrown away; a polite end takes ten seconds
        process.wait()


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, with the environment of its writing identity set."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest.fixture
def fault_proxy(s3_server: S3Server) -> Iterator[FaultProxy]:
    """A proxy in front of the server that does what its rules say; see `tests.services.proxy`."""
    proxy = FaultProxy(s3_server.endpoint)
    yield proxy
    proxy.close()


@pytest.fixture
def faulty_s3(s3: S3Server, fault_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> FaultProxy:
    """The proxy, with the environment of the writing identity set so that everything goes through it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", fault_proxy.endpoint)
    return fault_proxy


def _environment(endpoint: str, who: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": f"{who}-key",
        "AWS_SECRET_ACCESS_KEY": f"{who}-secret-0123456789",
    }


def _identity(who: str, *actions: str) -> dict[str, object]:
    keys = _environment("", who)
    credentials = {"accessKey": keys["AWS_ACCESS_KEY_ID"], "secretKey": keys["AWS_SECRET_ACCESS_KEY"]}
    return {"name": who, "credentials": [credentials], "actions": list(actions)}


def _command(program: str, folder: Path) -> tuple[str, list[str]]:
    identities = [
        _identity("admin", "Admin", "Read", "Write", "List", "Tagging"),
        _identity("writer", *(f"{verb}:{name}" for verb in _VERBS for name in (BUCKET, ABSENT))),
        _identity("reader", f"Read:{BUCKET}", f"List:{BUCKET}"),
        {"name": "anonymous", "actions": [f"{verb}:{OPEN}" for verb in _VERBS]},
        _identity("student", f"Read:{BUCKET}/datasets/*", f"List:{BUCKET}/datasets/*"),
    ]
    (folder / "identities.json").write_text(json.dumps({"identities": identities}))
    (folder / "data").mkdir()
    # Every port is given, the gRPC ones too: a default would collide with a second server.
    names = ["master.port", "master.port.grpc", "volume.port", "volume.port.grpc"]
    names += ["filer.port", "filer.port.grpc", "s3.port", "s3.port.grpc"]
    ports = dict(zip(names, _free_ports(len(names)), strict=True))
    options = {
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "dir": str(folder / "data"),
        "master.telemetry": "false",
        "master.volumeSizeLimitMB": "64",
        "volume.max": "30",
        "s3": "true",
        "s3.config": str(folder / "identities.json"),
        "s3.autoCreateBucket": "false",
        "s3.localSocket": str(folder / "s3.sock"),
        "filer.localSocket": str(folder / "filer.sock"),
        "s3.port.iceberg": "0",
        "s3.port.lance": "0",
        **{name: str(port) for name, port in ports.items()},
    }
    flags = [f"-{name}={value}" for name, value in options.items()]
    return f"http://127.0.0.1:{ports['s3.port']}", [program, "server", *flags]


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:  # held together, so that no two are the same
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _make_bucket(endpoint: str, process: subprocess.Popen[bytes], log: Path) -> None:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    keys = _environment(endpoint, "admin")
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=keys["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=keys["AWS_SECRET_ACCESS_KEY"],
        config=Config(retries={"max_attempts": 1}, connect_timeout=2, read_timeout=10),
    )
    deadline_s = time.monotonic() + _START_S
    waiting = [BUCKET, OPEN]
    while waiting:
        try:
            with suppress(client.exceptions.BucketAlreadyOwnedByYou):
                client.create_bucket(Bucket=waiting[0])
            client.put_object(Bucket=waiting[0], Key=".ready", Body=b"1")  # a volume can be written too
            waiting.pop(0)
            continue
        except (BotoCoreError, ClientError) as error:
            if process.poll() is not None or time.monotonic() > deadline_s:
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
                raise RuntimeError(f"the S3 server does not answer: {error}\n{tail}") from error
        time.sleep(0.1)
