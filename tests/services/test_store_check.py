"""`torchrelay store check` against a real server: what works, what is missing, one sentence each."""

import json
import socket
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.services.conftest import ABSENT, BUCKET, S3Server
from tests.services.proxy import Fault, FaultProxy, Rule
from torchrelay.store.open import open_store

pytestmark = pytest.mark.services

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def place() -> str:
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


def test_a_good_place_passes_everything_and_is_left_empty(
    torchrelay: Command, s3: S3Server, place: str
) -> None:
    done = torchrelay("store", "check", place)
    assert done.returncode == 0, done.stderr
    assert f"ok {place} can be used" in done.stdout
    assert done.stdout.count(" yes ") == 9
    assert "s3:DeleteObject" in done.stdout
    assert [*open_store(place).list("")] == []


def test_programs_get_the_same_as_json(torchrelay: Command, s3: S3Server, place: str) -> None:
    report = json.loads(torchrelay("store", "check", place, "--json").stdout)
    assert report["works"] is True
    large = next(row for row in report["checks"] if row["check"] == "large object")
    assert large["bytes_per_s"] > 10**5


def test_a_key_that_may_only_read_is_told_what_it_lacks(
    torchrelay: Command, s3: S3Server, place: str
) -> None:
    open_store(place).put("a/b", b"12345")
    done = torchrelay("store", "check", place, **s3.read_only)
    assert done.returncode == 78
    assert "s3:PutObject is missing, needed for building datasets" in done.stderr
    done = torchrelay("store", "check", place, "--read-only", **s3.read_only)
    assert done.returncode == 0, done.stderr
    assert "can be read" in done.stdout


def test_a_key_for_datasets_is_good_there_and_only_there(torchrelay: Command, s3: S3Server) -> None:
    open_store(f"s3://{BUCKET}/datasets").put(f"{uuid.uuid4().hex}/a", b"12345")
    good = torchrelay("store", "check", f"s3://{BUCKET}/datasets", "--read-only", **s3.datasets_only)
    assert good.returncode == 0, good.stderr
    bad = torchrelay("store", "check", f"s3://{BUCKET}/runs", "--read-only", **s3.datasets_only)
    assert bad.returncode == 78
    assert "s3:ListBucket is missing" in bad.stderr


def test_what_may_be_written_and_not_deleted_is_found_with_the_object_that_stays(
    torchrelay: Command, faulty_s3: FaultProxy, place: str
) -> None:
    faulty_s3.set(Rule(Fault.STATUS, method="DELETE", status=403, code="AccessDenied"))
    done = torchrelay("store", "check", place)
    assert done.returncode == 78
    assert "s3:DeleteObject is missing" in done.stderr
    (left,) = open_store(place).list("")
    assert f"{left.key}: access denied" in done.stderr
    assert "that object is left there" in done.stderr


@pytest.mark.parametrize(
    ("variables", "bucket", "told", "hint"),
    [
        ({"AWS_ACCESS_KEY_ID": "nobody"}, BUCKET, "does not know the access key id", "AWS_ACCESS_KEY_ID"),
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, BUCKET, "the secret access key does not belong", "AWS_SECRET"),
        ({}, ABSENT, "the bucket does not exist", "check that the bucket exists"),
    ],
    ids=["key", "secret", "bucket"],
)
def test_a_wrong_setup_is_one_sentence_and_a_hint(
    torchrelay: Command, s3: S3Server, variables: dict[str, str], bucket: str, told: str, hint: str
) -> None:
    done = torchrelay("store", "check", f"s3://{bucket}/p", **variables)
    assert done.returncode == 78
    (message,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert told in message
    assert hint in done.stderr.partition("hint: ")[2]
    assert "wrong" not in done.stderr


@pytest.mark.parametrize(
    ("rule", "told", "hint"),
    [
        (Rule(Fault.STATUS, status=403, code="RequestTimeTooSkewed"), "the clocks of this machine", "clock"),
        (
            Rule(Fault.STATUS, status=301, code="PermanentRedirect"),
            "the bucket is in another region",
            "AWS_REGION",
        ),
        (
            Rule(
                Fault.STATUS,
                status=400,
                code="AuthorizationHeaderMalformed",
                body=b"<Region>eu-west-7</Region>",
            ),
            "the bucket is in the region eu-west-7",
            "set AWS_REGION=eu-west-7",
        ),
    ],
    ids=["clock", "redirect", "region"],
)
def test_a_wrong_region_or_clock_is_one_sentence_and_a_hint(
    torchrelay: Command, faulty_s3: FaultProxy, place: str, rule: Rule, told: str, hint: str
) -> None:
    faulty_s3.set(rule)
    done = torchrelay("store", "check", place)
    assert done.returncode == 78
    assert told in done.stderr
    assert hint in done.stderr.partition("hint: ")[2]
    assert len(faulty_s3.requests) == 1


@pytest.fixture
def web_server() -> Iterator[str]:
    """Something that answers and is no object store."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html><body>It works!</body></html>")

        def log_message(self, *_: object) -> None:
            return None

    server = HTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_an_endpoint_that_speaks_something_else_is_told(
    torchrelay: Command, s3: S3Server, place: str, web_server: str
) -> None:
    done = torchrelay("store", "check", place, AWS_ENDPOINT_URL=web_server)
    assert done.returncode == 78
    assert "what answers there seems to be no object store" in done.stderr
    assert "AWS_ENDPOINT_URL" in done.stderr


def test_an_endpoint_where_nobody_is_is_told_within_half_a_minute(
    torchrelay: Command, s3: S3Server, place: str
) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{held.getsockname()[1]}"
        done = torchrelay("store", "check", place, AWS_ENDPOINT_URL=endpoint, timeout_s=30)
    assert done.returncode == 78
    assert "cannot be reached: connection refused" in done.stderr
