"""The task of a transformers model: from a local folder or from a configuration. No network, ever.

This is the only file that imports transformers, and only when such a task is asked for.

Weights are real, on the CPU, in fp32. Weights that no file holds are drawn by the model's own
initializer. It works on whole modules (a parent may draw a child's weights again), so it cannot be
asked for one parameter; the model is therefore built as a whole under the run's seed: equal on all
ranks.
"""

import copy
import difflib
import inspect
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
from torchrelay.model.loss import sum_cross_entropy
from torchrelay.model.probe import demand_apart, demand_causal
from torchrelay.model.seed import seeded
from torchrelay.model.task import ExportFormat, Task
from torchrelay.recipe.model_schema import HuggingFaceSection, ModelSection
from torchrelay.recipe.problem import Problem

_WHERE = "model.huggingface"
_CAUSAL = "causal-lm"
_CLASSES: Final = {
    _CAUSAL: "AutoModelForCausalLM",
    "sequence-classification": "AutoModelForSequenceClassification",
}
_KINDS: Final = {
    _CAUSAL: "MODEL_FOR_CAUSAL_LM_MAPPING",
    "sequence-classification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Origin:
    """Where the model comes from."""

    config: Any
    """transformers' PreTrainedConfig."""
    folder: Path | None
    """Holds the weights; None: they are drawn."""
    kind: str
    """`causal-lm` or `sequence-classification`."""

    def build(self, seed: int) -> nn.Module:
        """See `Task.build`: real weights on the CPU, in fp32."""
        auto = getattr(_transformers(), _CLASSES[self.kind])
        config = copy.deepcopy(self.config)
        config.use_cache = False  # training reads every text once
        with seeded(seed), _as_recipe_error(_WHERE), _quiet():
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
            *_key_problems(source, config),
            *_kind_problems(source, config),
            *_data_problems(source, config, facts),
        ]
    )
    folder = None if source.from_scratch or source.path is None else Path(source.path)
    if source.task == _CAUSAL:
        demand_fit(_token_problems(facts))
        origin = _Origin(config=config, folder=folder, kind=source.task)
        return CausalTask(origin=origin, has_bounds=facts.has_bounds)
    demand_fit(_label_problems(source, given, config, facts))
    config.num_labels = facts.num_labels
    text = config.get_text_config()
    text.pad_token_id = facts.end_token if text.pad_token_id is None else text.pad_token_id
    return ClassificationTask(origin=_Origin(config=config, folder=folder, kind=source.task))


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ModelError(
            f"{_WHERE} needs the transformers library, which cannot be imported: {error}",
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
        with _as_recipe_error(f"{_WHERE}.config"):
            return given, auto.for_model(model_type, **given)
    folder = Path(source.path or "")
    given = _read_json(folder, source)
    with _as_recipe_error(f"{_WHERE}.path"):
        return given, auto.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)


def _read_json(folder: Path, source: HuggingFaceSection) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(
            f"{_WHERE}.path: cannot read {path}: {error.strerror}",
            hint="give a local folder; models are never downloaded",
        ) from error
    except ValueError as error:
        raise RecipeError(f"{_WHERE}.path: {path} is not valid JSON: {error}") from error
    if not isinstance(given, dict):
        raise RecipeError(f"{_WHERE}.path: {path} holds no mapping")
    if not source.from_scratch and not [*folder.glob("*.safetensors"), *folder.glob("*.bin")]:
        raise RecipeError(
            f"{_WHERE}.path: {folder} holds no weights (*.safetensors or *.bin)",
            hint=f"set {_WHERE}.from_scratch: true to initialise them",
        )
    return given


def _demand_model_type(model_type: object) -> None:
    known = list(_transformers().CONFIG_MAPPING.keys())
    if model_type not in known:
        raise RecipeError(
            f"{_WHERE}.config.model_type: transformers has no {model_type!r}"
            f"{nearest(str(model_type), known)}",
            hint="it decides the architecture, such as llama, gpt2 or bert",
        )


def _key_problems(source: HuggingFaceSection, config: Any) -> Iterator[Problem]:
    """Transformers takes any key; one that is nearly the name of a real one is a slip."""
    kind = type(config)
    known = {*inspect.signature(kind.__init__).parameters, *kind.attribute_map, *dir(kind)}
    for key in source.config or {}:
        close = difflib.get_close_matches(key, known, n=1, cutoff=0.8)
        if close and key not in known:
            yield Problem(f"{_WHERE}.config.{key}", f"unknown key; did you mean {close[0]!r}?")


def _kind_problems(source: HuggingFaceSection, config: Any) -> Iterator[Problem]:
    if type(config) not in getattr(_transformers(), _KINDS[source.task]):
        yield Problem(
            f"{_WHERE}.task", f"transformers has no {source.task} model of type {config.model_type!r}"
        )


def _data_problems(source: HuggingFaceSection, config: Any, facts: DataFacts) -> Iterator[Problem]:
    text = config.get_text_config()
    vocabulary = getattr(text, "vocab_size", None)
    context = getattr(text, "max_position_embeddings", None)
    if vocabulary is not None and facts.vocabulary is not None and vocabulary < facts.vocabulary:
        yield Problem(
            _key_path(source, "vocab_size"),
            f"vocab_size {vocabulary} is smaller than the dataset's {facts.vocabulary} token ids",
            "build the dataset with the model's tokenizer",
        )
    if context is not None and facts.sequence_length is not None and context < facts.sequence_length:
        yield Problem(
            "data.sequence_length",
            f"{facts.sequence_length} is longer than the {context} positions of the model",
            f"lower it to {context}",
        )


def _token_problems(facts: DataFacts) -> Iterator[Problem]:
    if facts.vocabulary is None:
        yield Problem(
            f"{_WHERE}.task", "causal-lm learns from tokens, and the data has none", "use model.python"
        )
    if facts.num_labels is not None:
        yield Problem(
            f"{_WHERE}.task",
            f"causal-lm predicts tokens, but the documents carry one of {facts.num_labels} classes",
            "set it to sequence-classification, or data.reading to packed",
        )


def _label_problems(
    source: HuggingFaceSection, given: dict[str, Any], config: Any, facts: DataFacts
) -> Iterator[Problem]:
    if facts.vocabulary is None or facts.num_labels is None:
        yield Problem(
            f"{_WHERE}.task",
            "sequence-classification needs documents with labels, and the data has none",
            "build the dataset with labels and set data.reading to documents",
        )
    elif ("id2label" in given or "num_labels" in given) and config.num_labels != facts.num_labels:
        yield Problem(
            _key_path(source, "num_labels"),
            f"the model has {config.num_labels} classes, the dataset {facts.num_labels}",
            "leave num_labels and id2label out to take the dataset's",
        )
    if config.get_text_config().pad_token_id is None and facts.end_token is None:
        yield Problem(
            _key_path(source, "pad_token_id"),
            "pad_token_id is missing",
            "give the id of a token no document holds",
        )


def _key_path(source: HuggingFaceSection, key: str) -> str:
    return f"{_WHERE}.path" if source.config is None else f"{_WHERE}.config.{key}"


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
            hint=f"check that weights and config.json belong together, or set {_WHERE}.from_scratch: true",
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
