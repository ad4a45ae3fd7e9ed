"""A proxy that makes an S3 server misbehave: slow, stalled, cut off, damaged, refusing, on demand.

It stands between a client and the real server, speaks HTTP/1.1, runs in a thread of its own and keeps
no connection alive, so that every request meets the rules that hold when it comes:

    proxy.set(Rule(Fault.STATUS, status=503, code="SlowDown", method="GET", key="*/shards/*", times=6))
    proxy.set(Rule(Fault.RESET, at=100_000))      # rules add up; the first that matches is taken
    proxy.clear()

A key is matched without its bucket. `proxy.requests` tells what was asked for and how much was sent.
"""

import asyncio
import fnmatch
import random
import socket
import struct
import threading
import urllib.parse
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum

_PIECE = 65536
_ERRORS = (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError)


class Fault(StrEnum):
    """What happens to a request. The body meant is the answer's, of a PUT or POST the request's."""

    SLOW = "slow"
    """The body passes at `bytes_per_s`."""
    STATUS = "status"
    """The server is never asked; the answer is `status` with the XML error `code`."""
    RESET = "reset"
    """The connection is reset after `at` bytes of the body."""
    STALL = "stall"
    """Nothing passes any more after `at` bytes of the body; the connection stays open."""
    TRUNCATE = "truncate"
    """The body ends after `at` bytes as if it were complete."""
    FLIP = "flip"
    """Byte `at` of the object (not of a range of it) arrives with one bit changed."""
    REPLACE = "replace"
    """The object's content is `body` for every GET; ranges are cut from it."""
    LOSE = "lose"
    """The server carries the request out; its answer is lost and the connection reset."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A fault and the requests that it hits; a field that the fault does not use is ignored."""

    fault: Fault
    key: str = "*"
    """Pattern as in a shell; "*" matches "/" too."""
    method: str = "*"
    times: int | None = None
    """How many requests it hits; None for all."""
    share: float = 1.0
    """Probability that it hits a request that matches."""
    at: int = 0
    bytes_per_s: int = 1000
    status: int = 503
    code: str = "SlowDown"
    body: bytes = b""


@dataclass(slots=True)
class Request:
    """One request as it went; `sent` and `status` grow while it goes on."""

    method: str
    key: str
    query: str
    start: int = 0
    """First byte of the range that was asked for."""
    status: int = 0
    sent: int = 0
    """Bytes of the answer's body that were sent to the client."""
    received: int = 0
    """Bytes of the request's body that came."""
    fault: Fault | None = None


class FaultProxy:
    """A proxy in front of `upstream` ("http://host:port"); close it when done. Safe from any thread."""

    def __init__(self, upstream: str, *, seed: int = 0, hidden: tuple[str, ...] = ()) -> None:
        """`hidden`: headers of requests, in lower case, that the server does not get to see."""
        self._hidden = ("connection", "expect", *hidden)
        address = urllib.parse.urlsplit(upstream)
        self._upstream = (str(address.hostname), int(address.port or 80))
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._rules: list[tuple[Rule, int]] = []
        self.requests: list[Request] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault proxy", daemon=True)
        self._thread.start()
        self._server: asyncio.Server | None = None
        self._port = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._await(self._listen())

    @property
    def endpoint(self) -> str:
        """The address for `AWS_ENDPOINT_URL`."""
        return f"http://127.0.0.1:{self._port}"

    def set(self, rule: Rule) -> None:
        """Add a rule; of several that match a request the one that was set first is taken."""
        with self._lock:
            self._rules.append((rule, 0))

    def clear(self) -> None:
        """Forget all rules and requests; what is in mid-air goes on under its old rule."""
        with self._lock:
            self._rules.clear()
            self.requests.clear()

    def fetched(self, pattern: str = "*") -> dict[str, int]:
        """Bytes of objects that were sent to clients, by key."""
        sent: Counter[str] = Counter()
        for request in list(self.requests):
            if request.method == "GET" and request.key and fnmatch.fnmatchcase(request.key, pattern):
                sent[request.key] += request.sent
        return dict(sent)

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Nobody listens meanwhile: connections are refused, and the open ones are reset."""
        self._await(self._stop())
        try:
            yield
        finally:
            self._await(self._listen())

    def close(self) -> None:
        """Stop listening, reset what is open, end the thread."""
        self._await(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _await(self, coroutine: object) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)  # type: ignore[arg-type]

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port, limit=2**20)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(asyncio.CancelledError, *_ERRORS):
                await self._serve(reader, writer)
                writer.close()
                await writer.wait_closed()
        finally:
            _reset(writer)
            self._tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = _Head.parse(await reader.readuntil(b"\r\n\r\n"))
        request = head.request()
        rule = self._choose(request)
        self.requests.append(request)
        if head.headers.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if rule is not None and rule.fault in (Fault.STATUS, Fault.REPLACE):
            async for piece in head.body(reader):
                request.received += len(piece)
            await _answer(request, rule, head, writer)
            return
        upstream, sink = await asyncio.open_connection(*self._upstream, limit=2**20)
        try:
            await self._forward(request, rule, head, (reader, sink))
            if rule is not None and rule.fault is Fault.LOSE:
                await upstream.readuntil(b"\r\n\r\n")
                raise ConnectionResetError
            await self._return(request, rule, upstream, writer)
        finally:
            _reset(sink)

    def _choose(self, request: Request) -> Rule | None:
        with self._lock:
            for place, (rule, used) in enumerate(self._rules):
                if _matches(rule, request, used) and self._random.random() < rule.share:
                    self._rules[place] = (rule, used + 1)
                    request.fault = rule.fault
                    return rule
        return None

    async def _forward(
        self,
        request: Request,
        rule: Rule | None,
        head: "_Head",
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """The request to the server; a fault of an upload happens here."""
        reader, sink = streams
        sink.write(head.forwarded(self._hidden))
        hit = rule if request.method in ("PUT", "POST") else None
        async for piece in head.body(reader, _piece_bytes(hit)):
            room = await _hold(hit, request.received, len(piece))
            request.received += room
            sink.write(piece[:room])
            await sink.drain()
            if room < len(piece):
                await _break(hit)

    async def _return(
        self,
        request: Request,
        rule: Rule | None,
        upstream: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """The answer to the client; a fault of a download happens here."""
        head = await upstream.readuntil(b"\r\n\r\n")
        request.status = int(head.split(None, 2)[1])
        hit = None if request.method in ("PUT", "POST") else rule
        if hit is not None and hit.fault is Fault.TRUNCATE:
            head = _shortened(head, hit.at)
        writer.write(head)
        while piece := await upstream.read(_piece_bytes(hit)):
            room = await _hold(hit, request.sent, len(piece))
            if hit is not None and hit.fault is Fault.FLIP:
                piece = _flipped(piece, hit.at - request.start - request.sent)
            request.sent += room
            writer.write(piece[:room])
            await writer.drain()
            if room < len(piece):
                await _break(hit)
                return


@dataclass(frozen=True, slots=True)
class _Head:
    """First line and headers of a request."""

    line: str
    headers: dict[str, str]

    @staticmethod
    def parse(raw: bytes) -> "_Head":
        line, *rest = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
        pairs = (one.partition(":") for one in rest)
        return _Head(line, {name.lower(): value.strip() for name, _, value in pairs})

    def request(self) -> Request:
        method, target, _ = self.line.split(" ")
        path, _, query = target.partition("?")
        key = urllib.parse.unquote(path).lstrip("/").partition("/")[2]
        return Request(method, key, query, start=_range(self.headers)[0])

    def forwarded(self, hidden: tuple[str, ...]) -> bytes:
        kept = {name: value for name, value in self.headers.items() if name not in hidden}
        lines = [self.line, *(f"{name}: {value}" for name, value in kept.items()), "connection: close"]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    async def body(self, reader: asyncio.StreamReader, most: int = _PIECE) -> AsyncIterator[bytes]:
        left = int(self.headers.get("content-length", "0"))
        while left:
            piece = await reader.read(min(left, most))
            if not piece:
                raise ConnectionResetError
            left -= len(piece)
            yield piece
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            size = -1
            while size != 0:
                line = await reader.readuntil(b"\r\n")
                size = int(line.split(b";")[0], 16)
                yield line + await reader.readexactly(size + 2)


def _matches(rule: Rule, request: Request, used: int) -> bool:
    if rule.times is not None and used >= rule.times:
        return False
    return rule.method in ("*", request.method) and fnmatch.fnmatchcase(request.key, rule.key)


def _piece_bytes(rule: Rule | None) -> int:
    """A slow body moves ten times a second."""
    slow = rule is not None and rule.fault is Fault.SLOW
    return min(_PIECE, max(1, rule.bytes_per_s // 10)) if slow and rule is not None else _PIECE


async def _hold(rule: Rule | None, passed: int, size: int) -> int:
    """How many of the next `size` bytes may pass, after the time that they take."""
    if rule is None:
        return size
    if rule.fault is Fault.SLOW:
        await asyncio.sleep(size / rule.bytes_per_s)
    if rule.fault in (Fault.RESET, Fault.STALL, Fault.TRUNCATE):
        return max(0, min(size, rule.at - passed))
    return size


async def _break(rule: Rule | None) -> None:
    if rule is not None and rule.fault is Fault.STALL:
        await asyncio.sleep(3600)
    if rule is not None and rule.fault is Fault.RESET:
        raise ConnectionResetError


async def _answer(request: Request, rule: Rule, head: _Head, writer: asyncio.StreamWriter) -> None:
    status, extra, body = rule.status, "", _error_body(rule)
    if rule.fault is Fault.REPLACE:
        start, stop = _range(head.headers)
        stop = len(rule.body) if stop is None else min(stop, len(rule.body))
        status, body = (206 if "range" in head.headers else 200), rule.body[start:stop]
        extra = f"content-range: bytes {start}-{stop - 1}/{len(rule.body)}\r\n" if status == 206 else ""
        extra += 'etag: "0"\r\nlast-modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n'
    request.status, request.sent = status, len(body)
    writer.write(
        f"HTTP/1.1 {status} Answer\r\ncontent-length: {len(body)}\r\ncontent-type: application/xml\r\n"
        f"{extra}connection: close\r\n\r\n".encode()
        + (b"" if request.method == "HEAD" else body)
    )
    await writer.drain()


def _error_body(rule: Rule) -> bytes:
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{rule.code}</Code>'
        f"<Message>the proxy says so</Message>{rule.body.decode()}</Error>"
    ).encode()


def _range(headers: dict[str, str]) -> tuple[int, int | None]:
    """Start and stop (exclusive) of the range that is asked for."""
    unit, _, span = headers.get("range", "bytes=0-").partition("=")
    start, _, last = span.partition("-")
    return (int(start or 0), int(last) + 1 if last else None) if unit == "bytes" else (0, None)


def _shortened(head: bytes, size: int) -> bytes:
    lines = head.decode("latin-1").split("\r\n")
    kept = [line for line in lines if not line.lower().startswith("content-length:")]
    kept.insert(1, f"content-length: {size}")
    return "\r\n".join(kept).encode("latin-1")


def _flipped(piece: bytes, place: int) -> bytes:
    if not 0 <= place < len(piece):
        return piece
    return piece[:place] + bytes([piece[place] ^ 1]) + piece[place + 1 :]


def _reset(writer: asyncio.StreamWriter) -> None:
    """End the connection with a reset instead of a polite end; nothing where it has ended already."""
    raw = writer.get_extra_info("socket")
    with suppress(OSError):
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
