from torchrelay.cli.build_progress import Details, PlainLines, tell_resumed
from torchrelay.data.build.merge import Status


def status(done: int, items: int = 0, total: int | None = 2**20) -> Status:
    return Status("tokenizing", done, total, documents=10 * bool(items), items=items, shards=items // 1000)


def test_lines_come_at_most_every_ten_seconds() -> None:
    now = [0.0]
    written: list[str] = []
    lines = PlainLines("tokens", lambda: now[0], written.append)
    for now[0] in (1.0, 9.9):
        lines.show(status(1024, 500))
    assert written == []
    for now[0] in (10.0, 15.0, 21.0):
        lines.show(status(2048, 9500))
    assert written == [
        "tokenizing 2.00 KiB of 1.00 MiB after 10 s, 10 documents, 1.00 k tokens/s, 9 shards",
        "tokenizing 2.00 KiB of 1.00 MiB after 21 s, 10 documents, 450 tokens/s, 9 shards",
    ]


def test_a_pass_that_makes_nothing_has_no_details() -> None:
    assert Details("tokens", lambda: 0.0).tell(status(5)) == ""


def test_speed_counts_what_was_made_since_the_start_alone() -> None:
    now = [0.0]
    details = Details("bytes", lambda: now[0])
    details.tell(status(5, 10_000))
    now[0] = 2.0
    assert "1.00 KiB/s" in details.tell(status(5, 12_048))


def test_what_an_earlier_process_left_is_told_once_and_at_once() -> None:
    written: list[str] = []
    lines = PlainLines("tokens", lambda: 0.0, written.append)
    lines.show(Status("going on", 30, 100, 5, 0, 12, is_resumed=True))
    lines.show(status(40, 500))
    assert written == ["going on: 12 of about 40 shards are there"]
    assert tell_resumed(Status("going on", 30, None, 5, 0, 1)) == "going on: 1 shard is there"
