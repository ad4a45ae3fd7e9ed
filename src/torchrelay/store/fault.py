"""What went wrong with a request to an object store, and how a person is told.

obstore says it in a long text that may quote what the service answered, and that may hold a session
token or a signed address. So nothing of that text is ever shown but the status, the service's error
code and the first words of its message; everything else is put in our own words.
"""

import re
from enum import Enum
from typing import NamedTuple

from obstore import exceptions

from torchrelay.core.errors import AlreadyExistsError, NotFoundError, StoreError


class Cause(Enum):
    """Why a request failed, as far as it decides what happens next."""

    ABSENT = "absent"
    NO_BUCKET = "no bucket"
    EXISTS = "exists"
    BEYOND = "beyond"
    """The range begins behind the end of the object."""
    DENIED = "denied"
    """Worth one more try with keys that are read anew."""
    CLOCK = "clock"
    REGION = "region"
    CERTIFICATE = "certificate"
    UNREACHABLE = "unreachable"
    """Nobody answers; worth trying again."""
    TRANSIENT = "transient"
    """Worth trying again."""
    OTHER = "other"


class Fault(NamedTuple):
    """One failed request."""

    cause: Cause
    text: str
    """In a few words, without secrets: "503 SlowDown"."""
    region: str = ""
    """Where the bucket is, when the service says so."""

    @property
    def passes(self) -> bool:
        """Whether the same request may succeed a little later."""
        return self.cause in (Cause.TRANSIENT, Cause.UNREACHABLE)


CUT_OFF = Fault(Cause.TRANSIENT, "answer cut off")
STALLED = Fault(Cause.TRANSIENT, "answer stalled")

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,160})")
_REGION = re.compile(r"expecting '([a-z0-9-]+)'|<Region>([a-z0-9-]+)</Region>")
_KIND = re.compile(r"HttpError \{\s+kind: (\w+)")

_PASSING = (408, 409, 425, 429, 500, 502, 503, 504)
_BY_CODE = {
    "NoSuchBucket": Cause.NO_BUCKET,
    "ContainerNotFound": Cause.NO_BUCKET,
    "NoSuchKey": Cause.ABSENT,
    "BlobAlreadyExists": Cause.EXISTS,
    "RequestTimeTooSkewed": Cause.CLOCK,
    "PermanentRedirect": Cause.REGION,
    "AuthorizationHeaderMalformed": Cause.REGION,
    "RequestTimeout": Cause.TRANSIENT,
    "SlowDown": Cause.TRANSIENT,
    "InternalError": Cause.TRANSIENT,
    "ServiceUnavailable": Cause.TRANSIENT,
    "OperationAborted": Cause.TRANSIENT,
    "ConditionalRequestConflict": Cause.TRANSIENT,
    "ExpiredToken": Cause.DENIED,
    "ExpiredTokenException": Cause.DENIED,
    "TokenRefreshRequired": Cause.DENIED,
    "InvalidToken": Cause.DENIED,
}
"""What a service's own code says regardless of the status that comes with it."""

_BY_STATUS = {
    301: Cause.REGION,
    401: Cause.DENIED,
    403: Cause.DENIED,
    404: Cause.ABSENT,
    412: Cause.EXISTS,
    416: Cause.BEYOND,
    **dict.fromkeys(_PASSING, Cause.TRANSIENT),
}
_BY_WORDS = (
    ("redirect without LOCATION", Cause.REGION, "redirected elsewhere"),
    ("invalid peer certificate", Cause.CERTIFICATE, "its certificate is not trusted"),
    ("list response", Cause.OTHER, "what answers there seems to be no object store"),
    ("dns error", Cause.UNREACHABLE, "its name cannot be resolved"),
    ("Connection refused", Cause.UNREACHABLE, "connection refused"),
    ("Wanted range starting at", Cause.BEYOND, "range behind the end"),
)
_MACHINE_ROLE = "/latest/api/token"
"""Where a machine is asked for its role; obstore goes there when it was given no keys."""

_BY_KIND = {
    "Connect": Fault(Cause.UNREACHABLE, "no connection"),
    "Timeout": Fault(Cause.UNREACHABLE, "no answer in time"),
    "Interrupted": Fault(Cause.TRANSIENT, "connection cut off"),
}
_BY_TYPE = (
    (exceptions.AlreadyExistsError, Cause.EXISTS),
    (FileNotFoundError, Cause.ABSENT),
    (exceptions.NotFoundError, Cause.ABSENT),
    (exceptions.PermissionDeniedError, Cause.DENIED),
    (exceptions.UnauthenticatedError, Cause.DENIED),
)


def read_fault(error: Exception) -> Fault:
    """What obstore's `error` says."""
    text = str(error)
    if _MACHINE_ROLE in text:
        return Fault(Cause.DENIED, "no keys were found, and this machine has no role")
    status = _STATUS.search(text)
    if status is not None:
        return _answered(int(status[1]), text)
    for words, cause, ours in _BY_WORDS:
        if words in text:
            return Fault(cause, ours)
    for kind, cause in _BY_TYPE:
        if isinstance(error, kind):
            return Fault(cause, cause.value)
    kind_found = _KIND.search(text)
    if kind_found is not None:
        return _BY_KIND.get(kind_found[1], CUT_OFF)
    return Fault(Cause.OTHER, _first_words(text))


def _answered(status: int, text: str) -> Fault:
    code, message, region = _CODE.search(text), _MESSAGE.search(text), _REGION.search(text)
    cause = _BY_STATUS.get(status, Cause.OTHER)
    if code is not None:
        cause = _BY_CODE.get(code[1], cause)
    said = f"{status} {code[1]}" if code is not None else str(status)
    if cause is Cause.OTHER:
        reason = (
            message[1].strip() if message is not None else "what answers there seems to be no object store"
        )
        said += f": {reason}"
    return Fault(cause, said, region=(region[1] or region[2]) if region is not None else "")


def _first_words(text: str) -> str:
    """The first line without any address that it may hold."""
    line = text.strip().split("\n", 1)[0]
    return re.sub(r"\w+://\S+", "…", line)[:200]


_KEYS = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS_PROFILE",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT",
    "az": "AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
}
_PLACES = {
    "s3": "AWS_ENDPOINT_URL and AWS_REGION",
    "gs": "GOOGLE_BASE_URL, if it is set,",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ENDPOINT",
}
"""Variables that say who asks, and where, by the scheme of the store's URL."""

_HINTS = {
    Cause.DENIED: "check {keys}, and the bucket's policy",
    Cause.CLOCK: "set this machine's clock, for example with chrony or timedatectl set-ntp true",
    Cause.REGION: "set AWS_REGION to the region of the bucket, or AWS_ENDPOINT_URL to its service",
    Cause.CERTIFICATE: "set AWS_CA_BUNDLE to the file with the certificate of the authority that signed it",
    Cause.UNREACHABLE: "check {places} and the network between here and there",
    Cause.TRANSIENT: "the service is overloaded or the network is bad; start again when it is better",
}
_CHECK_PLACE = "check that the bucket exists and {places} are right"


_WHY_DENIED = {
    "InvalidAccessKeyId": ": the service does not know the access key id",
    "SignatureDoesNotMatch": ": the secret access key does not belong to the access key id",
    "ExpiredToken": ": the session token has expired, and reading the keys anew gave no better ones",
    "AccessDenied": ": the keys are good, and not allowed to do this",
}


def explain(fault: Fault, where: str, *, reading: bool, tried: str) -> StoreError:
    """The error to raise; only when `reading` can what is absent be the object.

    `tried` is how often and how long, or empty after a single try.
    """
    if fault.cause is Cause.EXISTS:
        return AlreadyExistsError(f"{where} exists already")
    if fault.cause is Cause.ABSENT and reading:
        return NotFoundError(f"{where} does not exist")
    return StoreError(f"{where}: {_sentence(fault)}{tried}", hint=_hint(fault, where))


def _sentence(fault: Fault) -> str:
    sentences = {
        Cause.ABSENT: "the bucket does not exist",
        Cause.NO_BUCKET: "the bucket does not exist",
        Cause.DENIED: f"access denied ({fault.text}){_WHY_DENIED.get(fault.text.partition(' ')[2], '')}",
        Cause.CLOCK: f"the clocks of this machine and of the service differ too much ({fault.text})",
        Cause.REGION: f"the bucket is in {_region(fault)} ({fault.text})",
        Cause.UNREACHABLE: f"cannot be reached: {fault.text}",
    }
    return sentences.get(fault.cause, fault.text)


def _hint(fault: Fault, where: str) -> str:
    if fault.region:
        return f"set AWS_REGION={fault.region}"
    scheme = where.partition("://")[0]
    hint = _HINTS.get(fault.cause, _CHECK_PLACE)
    return hint.format(keys=_KEYS.get(scheme, "the keys"), places=_PLACES.get(scheme, "the address"))


def _region(fault: Fault) -> str:
    return f"the region {fault.region}" if fault.region else "another region"
