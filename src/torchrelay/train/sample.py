"""Let a run's newest checkpoint write text. One process, on the CPU."""

from dataclasses import dataclass

import torch
from torch import nn

from torchrelay.checkpoint.manifest import Manifest
from torchrelay.checkpoint.shelf import Shelf
from torchrelay.checkpoint.state import MODEL, model_state
from torchrelay.checkpoint.storage import read_tensors
from torchrelay.core.errors import ModelError, NotFoundError
from torchrelay.data.dataset import open_dataset
from torchrelay.data.loader import open_split
from torchrelay.data.order.position import DataPosition
from torchrelay.data.recipe_plan import pin_versions, references
from torchrelay.data.tokenizer import load_tokenizer
from torchrelay.model.generate import generate
from torchrelay.model.task import Task
from torchrelay.observe.rundir import read_run
from torchrelay.parallel.materialise import materialise
from torchrelay.recipe.schema import Recipe
from torchrelay.store.base import Store
from torchrelay.store.open import open_store
from torchrelay.train.session import build_task


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """What to write."""

    prompt: str
    num_tokens: int
    temperature: float
    """0 always takes the likeliest token."""
    top_k: int | None
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The text and what wrote it."""

    text: str
    """The prompt and what follows it."""
    step: int
    checkpoint: str


def write_sample(store: Store, run: str, request: SampleRequest) -> Written:
    """Continue the prompt with the newest good checkpoint of a run whose model predicts tokens."""
    record = read_run(store, run)
    recipe, shelf = Recipe.model_validate(record.recipe), Shelf(store, run)
    usable = shelf.usable()
    manifest = shelf.read_manifest(usable[0]) if usable else None
    if manifest is not None:
        recipe = _pinned(recipe, manifest.position)
    datasets, task = references(recipe.data), _task_of(recipe, store)
    if not datasets or not hasattr(task, "logits"):
        raise ModelError(f"run {run!r} does not train a model that writes text")
    if manifest is None:
        raise NotFoundError(f"run {run!r} has no checkpoint yet", hint="train it for longer")
    module = _load_module(task, shelf, manifest)
    data_store = open_store(recipe.data.store or store.url)
    tokenizer = load_tokenizer(data_store, open_dataset(data_store, datasets[0]).manifest)
    tokens = tokenizer.encode(request.prompt).tolist() or [tokenizer.end_token]
    with torch.no_grad():
        written = generate(
            lambda ids: task.logits(module, ids),
            tokens,
            num_tokens=request.num_tokens,
            temperature=request.temperature,
            top_k=request.top_k,
            generator=torch.Generator().manual_seed(request.seed),
            context=recipe.data.sequence_length,
            stop_token=tokenizer.end_token,
        )
    return Written(text=tokenizer.decode(written), step=usable[0].step, checkpoint=usable[0].checkpoint)


def _pinned(recipe: Recipe, position: DataPosition) -> Recipe:
    """The recipe with the versions of the datasets that the run trained on, not the newest."""
    versions = {part.dataset: part.version for part in position.segments[-1].parts}
    return recipe.model_copy(update={"data": pin_versions(recipe.data, versions)})


def _task_of(recipe: Recipe, store: Store) -> Task:
    data_store = open_store(recipe.data.store or store.url)
    return build_task(recipe, open_split(recipe.data, data_store, "train", seed=recipe.run.seed))


def _load_module(task: Task, shelf: Shelf, manifest: Manifest) -> nn.Module:
    module = task.build(seed=0)
    materialise(module, task, seed=0, device=torch.device("cpu"))
    own = {name: saved for name, saved in manifest.tensors.items() if name.startswith(MODEL)}
    targets = model_state(module)
    for name, tensor in read_tensors(shelf.store, f"{shelf.prefix}/{manifest.checkpoint}", own):
        targets[name].copy_(tensor)
    return module.eval()
