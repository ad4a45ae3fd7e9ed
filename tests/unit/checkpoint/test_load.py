from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.unit.checkpoint.support import ALONE, Trained
from torchrelay.checkpoint.load import Loaded, load_newest
from torchrelay.checkpoint.manifest import Commit, Manifest
from torchrelay.checkpoint.shelf import Shelf
from torchrelay.core.errors import DamagedError, ExitCode, ModelError, NotFoundError, StoreError
from torchrelay.store.files import FileStore

Damage = Callable[[Path, Commit], None]


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(FileStore(tmp_path), "t")


@pytest.fixture
def saved(shelf: Shelf) -> dict[int, dict[str, torch.Tensor]]:
    """Checkpoints of steps 5 and 10, and what they hold."""
    trained = Trained()
    states = {}
    for step in (5, 10):
        trained.move()
        trained.save(shelf, step)
        states[step] = {name: tensor.clone() for name, tensor in trained.tensors().items()}
    return states


def load(shelf: Shelf) -> tuple[Loaded | None, dict[str, torch.Tensor]]:
    tensors: dict[str, torch.Tensor] = {}

    def targets(manifest: Manifest) -> dict[str, torch.Tensor]:
        for name, tensor in manifest.tensors.items():
            tensors[name] = torch.full(tensor.shape, -1.0)
        return tensors

    return load_newest(shelf, ALONE, targets, clock=lambda: 0.0), tensors


def same(tensors: dict[str, torch.Tensor], state: dict[str, torch.Tensor]) -> bool:
    return tensors.keys() == state.keys() and all(tensors[name].equal(state[name]) for name in state)


def part(folder: Path, commit: Commit) -> Path:
    return folder / "runs/t/checkpoints" / commit.checkpoint / "rank-00000.bin"


def cut_short(folder: Path, commit: Commit) -> None:
    path = part(folder, commit)
    path.write_bytes(path.read_bytes()[:-1])


def flip_byte(folder: Path, commit: Commit) -> None:
    path = part(folder, commit)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def remove_part(folder: Path, commit: Commit) -> None:
    part(folder, commit).unlink()


def damage_manifest(folder: Path, commit: Commit) -> None:
    path = part(folder, commit).with_name("manifest.json")
    path.write_bytes(path.read_bytes().replace(b'"step":', b'"stop":', 1))


def remove_manifest(folder: Path, commit: Commit) -> None:
    part(folder, commit).with_name("manifest.json").unlink()


def damage_commit(folder: Path, commit: Commit) -> None:
    path = folder / "runs/t/checkpoints" / commit.name
    path.write_bytes(path.read_bytes()[:-3])


DAMAGE: dict[str, tuple[Damage, str]] = {
    "cut short": (cut_short, "rank-00000.bin ends early"),
    "flipped byte": (flip_byte, "rank-00000.bin: optimizer/"),
    "missing part": (remove_part, "rank-00000.bin is missing"),
    "damaged manifest": (damage_manifest, "manifest.json was changed"),
    "missing manifest": (remove_manifest, "manifest.json is missing"),
    "damaged commit record": (damage_commit, "COMMITTED-000000000010-1.json is damaged"),
}


def test_nothing_is_loaded_where_nothing_was_ever_committed(shelf: Shelf) -> None:
    assert load(shelf) == (None, {})


def test_the_newest_is_loaded_bit_for_bit(shelf: Shelf, saved: dict[int, dict[str, torch.Tensor]]) -> None:
    loaded, tensors = load(shelf)
    assert loaded is not None
    assert (loaded.commit.step, loaded.manifest.progress.step, loaded.quarantined) == (10, 10, [])
    assert same(tensors, saved[10])


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_checkpoint_is_named_quarantined_and_the_one_before_it_is_used(
    shelf: Shelf, saved: dict[int, dict[str, torch.Tensor]], tmp_path: Path, kind: str
) -> None:
    damage, message = DAMAGE[kind]
    damage(tmp_path, shelf.usable()[0])
    loaded, tensors = load(shelf)
    assert loaded is not None
    assert loaded.commit.step == 5
    assert same(tensors, saved[5])
    ((commit, reason),) = loaded.quarantined
    assert commit.step == 10
    assert message in reason
    found = shelf.all()[-1]
    assert found.is_recorded
    assert message in (found.quarantine_reason or "")


@pytest.mark.parametrize("kind", ["flipped byte", "damaged commit record"])
def test_what_was_quarantined_once_is_not_reported_again(
    shelf: Shelf, saved: dict[int, dict[str, torch.Tensor]], tmp_path: Path, kind: str
) -> None:
    DAMAGE[kind][0](tmp_path, shelf.usable()[0])
    load(shelf)
    loaded, _ = load(shelf)
    assert loaded is not None
    assert (loaded.commit.step, loaded.quarantined) == (5, [])


def test_when_all_are_damaged_nothing_starts_fresh_and_each_is_listed(
    shelf: Shelf, saved: dict[int, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    newest, oldest = shelf.usable()
    flip_byte(tmp_path, newest)
    damage_commit(tmp_path, oldest)
    for _ in range(2):
        with pytest.raises(DamagedError) as caught:
            load(shelf)
        assert caught.value.exit_code == ExitCode.BAD_INPUT
        assert "2 checkpoints and none can be used" in caught.value.message
        assert "step 5 (COMMITTED-000000000005-1.json)" in caught.value.message
        assert f"step 10 ({newest.checkpoint}): rank-00000.bin: optimizer/" in caught.value.message
        assert "--fresh" in caught.value.hint


def test_a_store_that_is_away_is_no_reason_to_give_a_checkpoint_up(
    shelf: Shelf, saved: dict[int, dict[str, torch.Tensor]]
) -> None:
    class Away:
        def __getattr__(self, name: str) -> object:
            return getattr(shelf.store, name)

        def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
            if key.endswith(".bin"):
                raise StoreError("the bucket cannot be reached")
            return shelf.store.get(key, start=start, length=length)

    with pytest.raises(StoreError, match="cannot be reached"):
        load(Shelf(Away(), "t"))  # type: ignore[arg-type]  # all that is used
    assert [c.step for c in shelf.usable()] == [10, 5]


def test_a_checkpoint_of_another_model_is_refused_and_not_quarantined(
    shelf: Shelf, saved: dict[int, dict[str, torch.Tensor]]
) -> None:
    def fewer(manifest: Manifest) -> dict[str, torch.Tensor]:
        return {name: torch.zeros(t.shape) for name, t in manifest.tensors.items() if "2.weight" not in name}

    def wider(manifest: Manifest) -> dict[str, torch.Tensor]:
        shapes = {name: t.shape for name, t in manifest.tensors.items()} | {"model/0.weight": (4, 5)}
        return {name: torch.zeros(shape) for name, shape in shapes.items()}

    with pytest.raises(ModelError, match="4 unknown"):
        load_newest(shelf, ALONE, fewer)
    with pytest.raises(ModelError, match=r"model/0.weight has shape \[3, 5\], the model's is \[4, 5\]"):
        load_newest(shelf, ALONE, wider)
    assert [c.step for c in shelf.usable()] == [10, 5]


def test_a_part_that_vanishes_is_damage_not_an_error_of_the_store(
    shelf: Shelf, saved: dict[int, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    remove_part(tmp_path, shelf.usable()[0])
    with pytest.raises(NotFoundError):
        shelf.store.get(f"{shelf.prefix}/{shelf.usable()[0].checkpoint}/rank-00000.bin")
    loaded, _ = load(shelf)
    assert loaded is not None
    assert loaded.commit.step == 5
