"""A world of one process and small checkpoints to put on a shelf."""

import torch
import xxhash
from torch import nn

from torchrelay.checkpoint.manifest import Commit, Manifest, Origin, Part, Progress
from torchrelay.checkpoint.save import Snapshot, save_checkpoint
from torchrelay.checkpoint.shelf import Shelf
from torchrelay.checkpoint.state import model_state, optimizer_state
from torchrelay.data.order import history
from torchrelay.data.order.order import ORDER_VERSION
from torchrelay.data.order.position import DataPosition
from torchrelay.parallel.world import World

ALONE = World(
    rank=0,
    size=1,
    local_rank=0,
    local_size=1,
    host="h",
    device=torch.device("cpu"),
    control=None,  # type: ignore[arg-type]  # one process exchanges nothing
    checkpoint=None,  # type: ignore[arg-type]
)


def origin(**fields: object) -> Origin:
    values: dict[str, object] = {
        "run": "t",
        "attempt": 1,
        "world": 1,
        "engine": "ddp",
        "replicate": 1,
        "shard": 1,
        "micro_batch": 4,
        "recipe_hash": "r",
        "code": "0.1",
        "created_s": 1.5,
    }
    return Origin(**(values | fields))  # type: ignore[arg-type]


def position(step: int) -> DataPosition:
    """Of a run that trains on 8 samples a step."""
    part = history.Part(dataset="d", version="v", samples=100, base=0, weight=1.0, first=0)
    return DataPosition(
        dataset_version="v",
        seed=7,
        order_version=ORDER_VERSION,
        global_slot=8 * step,
        segments=(history.Segment(start=0, parts=(part,)),),
    )


def manifest(step: int, folder: str = "a-1-aa", content: bytes = b"weights", **fields: object) -> Manifest:
    """Of one part with `content` and no tensors."""
    return Manifest(
        checkpoint=f"step-{step:09d}/{folder}",
        progress=Progress(step=step, samples=8 * step, tokens=80 * step),
        origin=origin(**fields),
        position=position(step),
        tensors={},
        optimizer_groups=[],
        optimizer_values={},
        random_states=[],
        parts=(Part("rank-00000.bin", len(content), xxhash.xxh3_128_hexdigest(content)),),
    )


def put(shelf: Shelf, step: int, folder: str = "a-1-aa", content: bytes = b"weights") -> Commit:
    """Write the part and commit."""
    new = manifest(step, folder, content)
    shelf.store.put(f"{shelf.prefix}/{new.checkpoint}/rank-00000.bin", content)
    return shelf.commit(new)


class Trained:
    """A small module with a moved optimizer."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.module = nn.Sequential(nn.Linear(5, 3), nn.LayerNorm(3), nn.Linear(3, 2, bias=False))
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=0.01)
        self.move()

    def move(self) -> None:
        self.module(torch.randn(4, 5)).square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def tensors(self) -> dict[str, torch.Tensor]:
        return model_state(self.module) | optimizer_state(self.module, self.optimizer)

    def save(self, shelf: Shelf, step: int) -> Commit:
        snapshot = Snapshot(
            tensors=self.tensors(),
            progress=Progress(step=step, samples=8 * step, tokens=80 * step),
            origin=origin(),
            position=position(step),
            optimizer_groups=[{"lr": 0.01}],
            optimizer_values={},
            random_state={"python": [3, [1, 2], None]},
        )
        return save_checkpoint(shelf, ALONE, snapshot)
