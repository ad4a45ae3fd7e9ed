"""The task of a transformers model: from a local folder or from a configuration. No network, ever.

This is the only file that imports transformers, and only when such a task is asked for.

Weights are real, on the CPU, in fp32. Weights that no file holds are drawn by the model's own
initializer. It works on whole modules (a parent may draw a child's weights again), so it cannot be
asked for one parameter; the model is therefore built as a whole under the run's seed: equal on all
ranks.
"""

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from torchrelay.core.errors import ModelError, RecipeError
from torchrelay.core.plugins import nearest
from torchrelay.data.batch import DataFacts
from torchrelay.model.fit import demand_fit
from torchrelay.model.huggingface_fit import (
    IMAGES,
    LABELS,
    WHERE,
    data_problems,
    image_misfit,
    image_problems,
    key_problems,
    label_problems,
    token_problems,
)
from torchrelay.model.loss import sum_cross_entropy
from torchrelay.model.probe import demand_apart, demand_causal
from torchrelay.model.seed import seeded
from torchrelay.model.task import ExportFormat, Task
from torchrelay.recipe.model_schema import HuggingFaceSection, ModelSection
from torchrelay.recipe.problem import Problem

_CAUSAL = "causal-lm"
_IMAGE = "image-classification"
_CLASSES: Final = {
    _CAUSAL: "AutoModelForCausalLM",
    "sequence-classification": "AutoModelForSequenceClassification",
    _IMAGE: "AutoModelForImageClassification",
}
_KINDS: Final = {
    _CAUSAL: "MODEL_FOR_CAUSAL_LM_MAPPING",
    "sequence-classification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING",
    _IMAGE: "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Origin:
    """Where the model comes from."""

    config: Any
    """transformers' PreTrainedConfig."""
    folder: Path | None
    """Holds the weights; None: they are drawn."""
    kind: str
    """`causal-lm`, `sequence-classification` or `image-classification`."""

    def build(self, seed: int) -> nn.Module:
        """See `Task.build`: real weights on the CPU, in fp32."""
        auto = getattr(_transformers(), _CLASSES[self.kind])
        config = copy.deepcopy(self.config)
        config.use_cache = False  # training reads every text once
        with seeded(seed), _as_recipe_error(WHERE), _quiet():
            if self.folder is None:
                module: nn.Module = auto.from_config(config, dtype=torch.float32)
            else:
                module = _load(auto, self.folder, config, self.kind)
        return module.train()

    def export(self) -> ExportFormat:
        """The configuration, and the weights under their own names, a tied one once."""
        auto = getattr(_transformers(), _CLASSES[self.kind])
        with torch.device("meta"):
            module = auto.from_config(copy.deepcopy(self.config))
        tied = set(module.state_dict()) - {name for name, _ in module.named_parameters()}
        tied -= {name for name, _ in module.named_buffers()}
        config = {**self.config.to_dict(), "architectures": [type(module).__name__], "dtype": "float32"}
        config.pop("_name_or_path", None)
        return ExportFormat(
            config=json.loads(json.dumps(config, default=str)),
            convert=lambda name, tensor: [] if name in tied else [(name, tensor)],
            extra=list,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalTask:
    """A TextTask; see there for the contract of every method."""

    origin: _Origin
    has_bounds: bool
    """Whether rows hold several documents that must not see each other."""

    def build(self, seed: int) -> nn.Module:
        """Real weights on the CPU, in fp32; ModelError when the model sees what it must not."""
        module = self.origin.build(seed)
        demand_causal(module)
        if self.has_bounds:
            demand_apart(module)
        return module

    def initial(self, name: str, like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Never needed: `build` leaves nothing on meta."""
        raise _left_on_meta(name)

    def loss(self, module: Callable[..., Any], tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Cross-entropy summed over the labels that are not IGNORE_LABEL."""
        positions = tensors.get("positions")
        if positions is None:
            return sum_cross_entropy(self.logits(module, tensors["tokens"]), tensors["labels"])
        # Without an attention mask, transformers takes positions that start anew for another document.
        scores = module(input_ids=tensors["tokens"], position_ids=positions).logits
        return sum_cross_entropy(scores, tensors["labels"])

    def blocks(self, module: nn.Module) -> Sequence[nn.Module]:
        """The list of layers that holds the most parameters."""
        return _largest_list(module)

    def export(self) -> ExportFormat:
        """A model of the transformers library."""
        return self.origin.export()

    def logits(self, module: Callable[..., Any], tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the next token after every position; padding at the end needs no mask."""
        scores: torch.Tensor = module(input_ids=tokens).logits
        return scores


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassificationTask:
    """A Task that predicts one class a document; see `Task` for the contract of every method."""

    origin: _Origin

    def build(self, seed: int) -> nn.Module:
        """Real weights on the CPU, in fp32."""
        return self.origin.build(seed)

    def initial(self, name: str, like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Never needed: `build` leaves nothing on meta."""
        raise _left_on_meta(name)

    def loss(self, module: Callable[..., Any], tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Cross-entropy summed over the samples."""
        mask = tensors["attention_mask"]
        # Decoders find the end of a document by the padding's token, not by the mask.
        padding = self.origin.config.get_text_config().pad_token_id
        tokens = tensors["tokens"].masked_fill(mask == 0, padding)
        return sum_cross_entropy(module(input_ids=tokens, attention_mask=mask).logits, tensors["labels"])

    def blocks(self, module: nn.Module) -> Sequence[nn.Module]:
        """The list of layers that holds the most parameters."""
        return _largest_list(module)

    def export(self) -> ExportFormat:
        """A model of the transformers library."""
        return self.origin.export()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTask:
    """A Task that predicts one class an image; see `Task` for the contract of every method."""

    origin: _Origin

    def build(self, seed: int) -> nn.Module:
        """Real weights on the CPU, in fp32."""
        return self.origin.build(seed)

    def initial(self, name: str, like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Never needed: `build` leaves nothing on meta."""
        raise _left_on_meta(name)

    def loss(self, module: Callable[..., Any], tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Cross-entropy summed over the samples; ModelError when they are not images the model takes."""
        fault = _find_image_fault(self.origin.config, tensors)
        if fault:
            raise ModelError(
                f"image-classification: {fault}",
                hint=f"it takes {IMAGES}, float [samples, channels, height, width], and {LABELS}, whole "
                "numbers [samples], as data.decode: image with a size gives them",
            )
        return sum_cross_entropy(module(pixel_values=tensors[IMAGES]).logits, tensors[LABELS].long())

    def blocks(self, module: nn.Module) -> Sequence[nn.Module]:
        """The list of layers that holds the most parameters."""
        return _largest_list(module)

    def export(self) -> ExportFormat:
        """A model of the transformers library."""
        return self.origin.export()


def build_huggingface_task(section: ModelSection, facts: DataFacts) -> Task:
    """The task of `model.huggingface`: a TextTask for causal-lm.

    Raises RecipeError that lists everything that does not fit, ModelError without transformers.
    """
    if section.huggingface is None:
        raise ModelError("the recipe has no model.huggingface")
    source = section.huggingface
    given, config = _read_config(source)
    demand_fit(
        [
            *key_problems(source, config),
            *_kind_problems(source, config),
            *data_problems(source, config, facts),
        ]
    )
    folder = None if source.from_scratch or source.path is None else Path(source.path)
    if source.task == _CAUSAL:
        demand_fit(token_problems(facts))
        origin = _Origin(config=config, folder=folder, kind=source.task)
        return CausalTask(origin=origin, has_bounds=facts.has_bounds)
    if source.task == _IMAGE:
        demand_fit(image_problems(source, given, config, facts))
        _name_classes(config, given, facts)
        return ImageTask(origin=_Origin(config=config, folder=folder, kind=source.task))
    demand_fit(label_problems(source, given, config, facts))
    config.num_labels = facts.num_labels
    _name_classes(config, given, facts)
    text = config.get_text_config()
    text.pad_token_id = facts.end_token if text.pad_token_id is None else text.pad_token_id
    return ClassificationTask(origin=_Origin(config=config, folder=folder, kind=source.task))


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ModelError(
            f"{WHERE} needs the transformers library, which cannot be imported: {error}",
            hint='install it with: pip install "torchrelay[hf]"',
        ) from error
    return transformers


def _read_config(source: HuggingFaceSection) -> tuple[dict[str, Any], Any]:
    """What the recipe or `config.json` says, and transformers' object for it."""
    auto = _transformers().AutoConfig
    if source.config is not None:
        given = dict(source.config)
        model_type = given.pop("model_type", None)
        _demand_model_type(model_type)
        with _as_recipe_error(f"{WHERE}.config"):
            return given, auto.for_model(model_type, **given)
    folder = Path(source.path or "")
    given = _read_json(folder, source)
    with _as_recipe_error(f"{WHERE}.path"):
        return given, auto.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)


def _read_json(folder: Path, source: HuggingFaceSection) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(
            f"{WHERE}.path: cannot read {path}: {error.strerror}",
            hint="give a local folder; models are never downloaded",
        ) from error
    except ValueError as error:
        raise RecipeError(f"{WHERE}.path: {path} is not valid JSON: {error}") from error
    if not isinstance(given, dict):
        raise RecipeError(f"{WHERE}.path: {path} holds no mapping")
    if not source.from_scratch and not [*folder.glob("*.safetensors"), *folder.glob("*.bin")]:
        raise RecipeError(
            f"{WHERE}.path: {folder} holds no weights (*.safetensors or *.bin)",
            hint=f"set {WHERE}.from_scratch: true to initialise them",
        )
    return given


def _demand_model_type(model_type: object) -> None:
    known = list(_transformers().CONFIG_MAPPING.keys())
    if model_type not in known:
        raise RecipeError(
            f"{WHERE}.config.model_type: transformers has no {model_type!r}{nearest(str(model_type), known)}",
            hint="it decides the architecture, such as llama, gpt2 or bert",
        )


def _kind_problems(source: HuggingFaceSection, config: Any) -> Iterator[Problem]:
    if type(config) not in getattr(_transformers(), _KINDS[source.task]):
        yield Problem(
            f"{WHERE}.task", f"transformers has no {source.task} model of type {config.model_type!r}"
        )


def _name_classes(config: Any, given: Mapping[str, Any], facts: DataFacts) -> None:
    """What the data calls its classes, unless the model has names for them."""
    if facts.label_names is not None and "id2label" not in given:
        config.id2label = dict(enumerate(facts.label_names))
        config.label2id = {name: number for number, name in enumerate(facts.label_names)}


def _find_image_fault(config: Any, tensors: Mapping[str, torch.Tensor]) -> str | None:
    images, labels = tensors.get(IMAGES), tensors.get(LABELS)
    if images is None or labels is None:
        return f"the samples have {', '.join(tensors)}"
    if not images.is_floating_point() or labels.is_floating_point() or labels.dim() != 1:
        return f"{IMAGES} are {images.dtype} {[*images.shape]}, {LABELS} {labels.dtype} {[*labels.shape]}"
    return image_misfit(config, images.shape[1:])


def _load(auto: Any, folder: Path, config: Any, kind: str) -> nn.Module:
    """Weights of the folder; only the head of a classifier may be new."""
    module: nn.Module
    module, report = auto.from_pretrained(
        str(folder), config=config, local_files_only=True, dtype=torch.float32, output_loading_info=True
    )
    missing = sorted(report["missing_keys"])
    if kind != _CAUSAL:
        inner = {id(p) for block in _largest_list(module) for p in block.parameters()}
        missing = [name for name in missing if id(module.get_parameter(name)) in inner]
    if missing:
        raise ModelError(
            f"{folder} lacks {len(missing)} weights of the model that its config.json describes, "
            f"{missing[0]} first",
            hint=f"check that weights and config.json belong together, or set {WHERE}.from_scratch: true",
        )
    return module


@contextmanager
def _as_recipe_error(where: str) -> Iterator[None]:
    from huggingface_hub.errors import StrictDataclassError  # comes with transformers

    try:
        yield
    except (ValueError, TypeError, OSError, RuntimeError, StrictDataclassError) as error:
        text = " ".join(str(error).split())
        raise RecipeError(f"{where}: transformers refuses it: {text[:500]}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and load reports of transformers; its settings are put back."""
    logging = _transformers().utils.logging
    bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _largest_list(module: nn.Module) -> list[nn.Module]:
    lists = [part for part in module.modules() if isinstance(part, nn.ModuleList)]
    sizes = [sum(p.numel() for p in part.parameters()) for part in lists]
    return list(lists[sizes.index(max(sizes))]) if lists else []


def _left_on_meta(name: str) -> ModelError:
    return ModelError(f"transformers left {name} without values")
