from pathlib import Path

import pytest

from tests.unit.checkpoint.support import ALONE
from tests.unit.train.support import Heard, recipe
from torchrelay.checkpoint.manifest import Progress
from torchrelay.core.errors import ModelError, NotFoundError
from torchrelay.data.build.dataset_build import BuildRequest, build_dataset
from torchrelay.data.build.input import TextFiles
from torchrelay.store.files import FileStore
from torchrelay.train.keep import Keeper
from torchrelay.train.sample import SampleRequest, Written, write_sample
from torchrelay.train.session import Session, open_session


def request(**fields: object) -> SampleRequest:
    values: dict[str, object] = {
        "prompt": "ab",
        "num_tokens": 5,
        "temperature": 0.8,
        "top_k": None,
        "seed": 1,
    }
    return SampleRequest(**(values | fields))  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    """With a dataset of three letters."""
    store = FileStore(tmp_path / "store")
    for number in range(12):
        (tmp_path / f"{number}.txt").write_text("abc" * (30 + number))
    wanted = BuildRequest(documents=TextFiles([f"{tmp_path}/*.txt"]), tokenizer="chars", validation=0.3)
    build_dataset(store, "abc", wanted, progress=lambda *_: None)
    return store


def begin(store: FileStore) -> Session:
    wanted = recipe(
        Path(store.url.removeprefix("file://")),
        model={
            "python": None,
            "decoder": {"layers": 1, "width": 8, "heads": 2, "dropout": 0.5, "tied": False},
        },
        data={"source": None, "dataset": "abc", "sequence_length": 8},
    )
    return open_session(wanted, ALONE, fresh=False)


def save(session: Session, step: int) -> None:
    Keeper(session=session, sink=Heard()).save(Progress(step=step, samples=4 * step, tokens=32 * step))


def write(store: FileStore, **fields: object) -> Written:
    return write_sample(store, "t", request(**fields))


def test_the_newest_checkpoint_continues_the_prompt(store: FileStore) -> None:
    session = begin(store)
    for step in (1, 2):
        save(session, step)
    written = write(store)
    assert written.text.startswith("ab")
    assert set(written.text) <= set("abc")
    assert len(written.text) <= 2 + 5
    assert (written.step, written.checkpoint) == (2, session.shelf.usable()[0].checkpoint)


def test_the_weights_are_those_of_the_checkpoint_and_not_the_first_ones(store: FileStore) -> None:
    session = begin(store)
    for parameter in session.engine.module.parameters():
        parameter.detach().zero_()
    embedding = session.engine.module.get_parameter("embed_tokens.weight").detach()
    head = session.engine.module.get_parameter("lm_head.weight").detach()
    embedding.fill_(1.0)
    session.engine.module.get_parameter("norm.weight").detach().fill_(1.0)
    head[2].fill_(10.0)  # whatever came before, the third letter follows
    save(session, 1)
    assert write(store, temperature=0.0).text == "abccccc"


def test_the_same_seed_writes_the_same_text_and_another_one_another(store: FileStore) -> None:
    save(begin(store), 1)
    texts = [write(store, seed=seed, num_tokens=40).text for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_a_run_without_a_checkpoint_cannot_write_yet(store: FileStore) -> None:
    begin(store)
    with pytest.raises(NotFoundError, match="no checkpoint yet"):
        write(store)


def test_a_run_that_does_not_train_on_text_cannot_write(tmp_path: Path) -> None:
    session = open_session(recipe(tmp_path), ALONE, fresh=False)
    with pytest.raises(ModelError, match="does not train a model that writes text"):
        write_sample(session.store, "t", request())


def test_a_missing_run_is_named(store: FileStore) -> None:
    with pytest.raises(NotFoundError, match="there is no run 'nope'"):
        write_sample(store, "nope", request())
