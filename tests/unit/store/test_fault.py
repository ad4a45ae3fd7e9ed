import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore import exceptions

from torchrelay.core.errors import AlreadyExistsError, NotFoundError, StoreError
from torchrelay.store.fault import Cause, Fault, explain, read_fault


def answered(status: int, code: str = "", extra: str = "") -> exceptions.GenericError:
    """An error as obstore words it for an answer of the service."""
    body = f"<Error><Code>{code}</Code><Message>so it is</Message>{extra}</Error>" if code else ""
    return exceptions.GenericError(
        f"Generic S3 error: Error performing GET http://host/b/k?sig=secret in 1ms - "
        f"Server returned non-2xx status code: {status} Words: {body}\n\nDebug source: …"
    )


def transport(kind: str, more: str = "") -> exceptions.GenericError:
    return exceptions.GenericError(
        f"Generic S3 error: HTTP error: x\n\nDebug source:\nHttp(HttpError {{\n   kind: {kind},\n {more} }})"
    )


@pytest.mark.parametrize(
    ("error", "cause", "text"),
    [
        (answered(503, "SlowDown"), Cause.TRANSIENT, "503 SlowDown"),
        (answered(503), Cause.TRANSIENT, "503"),
        (answered(500, "InternalError"), Cause.TRANSIENT, "500 InternalError"),
        (answered(502), Cause.TRANSIENT, "502"),
        (answered(504), Cause.TRANSIENT, "504"),
        (answered(429, "X"), Cause.TRANSIENT, "429 X"),
        (answered(408, "X"), Cause.TRANSIENT, "408 X"),
        (answered(400, "RequestTimeout"), Cause.TRANSIENT, "400 RequestTimeout"),
        (answered(409, "ConditionalRequestConflict"), Cause.TRANSIENT, "409 ConditionalRequestConflict"),
        (answered(409, "BlobAlreadyExists"), Cause.EXISTS, "409 BlobAlreadyExists"),
        (answered(412, "PreconditionFailed"), Cause.EXISTS, "412 PreconditionFailed"),
        (answered(404, "NoSuchKey"), Cause.ABSENT, "404 NoSuchKey"),
        (answered(404, "NoSuchBucket"), Cause.NO_BUCKET, "404 NoSuchBucket"),
        (answered(416, "InvalidRange"), Cause.BEYOND, "416 InvalidRange"),
        (answered(403, "AccessDenied"), Cause.DENIED, "403 AccessDenied"),
        (answered(400, "ExpiredToken"), Cause.DENIED, "400 ExpiredToken"),
        (answered(401), Cause.DENIED, "401"),
        (answered(403, "RequestTimeTooSkewed"), Cause.CLOCK, "403 RequestTimeTooSkewed"),
        (answered(301, "PermanentRedirect"), Cause.REGION, "301 PermanentRedirect"),
        (answered(501), Cause.OTHER, "501: what answers there seems to be no object store"),
        (answered(501, "NotImplemented"), Cause.OTHER, "501 NotImplemented: so it is"),
        (transport("Connect", "Connection refused"), Cause.UNREACHABLE, "connection refused"),
        (transport("Connect", "dns error"), Cause.UNREACHABLE, "its name cannot be resolved"),
        (
            transport("Connect", "invalid peer certificate"),
            Cause.CERTIFICATE,
            "its certificate is not trusted",
        ),
        (transport("Timeout"), Cause.UNREACHABLE, "no answer in time"),
        (transport("Interrupted"), Cause.TRANSIENT, "connection cut off"),
        (transport("Decode"), Cause.TRANSIENT, "answer cut off"),
        (exceptions.AlreadyExistsError("x"), Cause.EXISTS, "exists"),
        (FileNotFoundError("x"), Cause.ABSENT, "absent"),
        (exceptions.GenericError("Received redirect without LOCATION"), Cause.REGION, "redirected elsewhere"),
        (exceptions.GenericError("first https://host/?token=x\nsecond"), Cause.OTHER, "first …"),
    ],
)  # fmt: skip
def test_every_failure_has_its_cause_and_few_words(error: Exception, cause: Cause, text: str) -> None:
    fault = read_fault(error)
    assert (fault.cause, fault.text) == (cause, text)
    assert fault.passes == (cause in (Cause.TRANSIENT, Cause.UNREACHABLE))


def test_the_region_that_a_service_names_becomes_the_hint() -> None:
    for extra in ("<Region>eu-south-9</Region>", "the region is wrong; expecting 'eu-south-9'"):
        fault = read_fault(answered(400, "AuthorizationHeaderMalformed", extra))
        error = explain(fault, "s3://b/k", reading=True, tried="")
        assert error.hint == "set AWS_REGION=eu-south-9"


@given(st.text(alphabet="abcdefgh", min_size=12, max_size=20), st.sampled_from([200, 400, 403, 404, 503]))
def test_nothing_is_quoted_but_the_code_and_a_part_of_the_message(secret: str, status: int) -> None:
    for error in (
        answered(status, "Code", f"<Token-0>{secret}</Token-0>"),
        transport("Decode", f"http://host/?sig={secret}"),
        exceptions.GenericError(f"cannot sign https://host/?X-Amz-Signature={secret} so"),
    ):
        fault = read_fault(error)
        explained = explain(fault, "s3://b/k", reading=True, tried="")
        assert secret not in f"{fault} {explained} {explained!r}"


@pytest.mark.parametrize(
    ("fault", "reading", "kind", "message"),
    [
        (Fault(Cause.ABSENT, ""), True, NotFoundError, "s3://b/k does not exist"),
        (Fault(Cause.ABSENT, ""), False, StoreError, "s3://b/k: the bucket does not exist; tried"),
        (Fault(Cause.NO_BUCKET, ""), True, StoreError, "s3://b/k: the bucket does not exist; tried"),
        (Fault(Cause.EXISTS, ""), False, AlreadyExistsError, "s3://b/k exists already"),
        (Fault(Cause.DENIED, "403"), True, StoreError, "s3://b/k: access denied (403); tried"),
        (
            Fault(Cause.DENIED, "403 AccessDenied"),
            True,
            StoreError,
            "s3://b/k: access denied (403 AccessDenied): the keys are good, and not allowed to do this"
            "; tried",
        ),
        (Fault(Cause.UNREACHABLE, "x"), True, StoreError, "s3://b/k: cannot be reached: x; tried"),
    ],
)
def test_every_cause_gets_its_own_sentence(
    fault: Fault, reading: bool, kind: type[StoreError], message: str
) -> None:
    explained = explain(fault, "s3://b/k", reading=reading, tried="; tried")
    assert type(explained) is kind
    assert explained.message == message


@pytest.mark.parametrize(
    ("where", "variable"), [("s3://b", "AWS_PROFILE"), ("gs://b", "GOOGLE_"), ("az://b", "AZURE_")]
)
def test_the_hint_names_the_variables_of_the_service(where: str, variable: str) -> None:
    denied = explain(Fault(Cause.DENIED, "403"), where, reading=True, tried="")
    assert variable in denied.hint
    assert "AWS" not in denied.hint or where.startswith("s3")
