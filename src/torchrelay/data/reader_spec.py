"""What another process needs to open the same reader: plain values."""

import json
from dataclasses import asdict, dataclass, fields

from torchrelay.data.order.position import DataPosition
from torchrelay.recipe.data_schema import DataSection


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSpec:
    """The arguments of `loader.open_split`."""

    section: DataSection
    store: str
    """URL of the store that holds the dataset."""
    split: str
    seed: int
    global_batch: int = 1
    position: DataPosition | None = None
    """Where the run was resumed, after `step` steps; None: at its start."""
    step: int = 0


def write_spec(spec: ReaderSpec) -> str:
    """As JSON."""
    position = None if spec.position is None else asdict(spec.position)
    tree = {field.name: getattr(spec, field.name) for field in fields(spec)}
    return json.dumps({**tree, "section": spec.section.model_dump_json(), "position": position})


def parse_spec(text: str) -> ReaderSpec:
    """What `write_spec` wrote."""
    tree = json.loads(text)
    section = DataSection.model_validate_json(tree.pop("section"))
    saved = tree.pop("position")
    position = None if saved is None else DataPosition.from_json(saved)
    return ReaderSpec(section=section, position=position, **tree)
