import pytest
import torch
import torch.nn.functional as F

from torchrelay.data.batch import IGNORE_LABEL
from torchrelay.model import loss
from torchrelay.model.loss import sum_cross_entropy


def scores_and_labels(rows: int = 23, classes: int = 11, dtype: torch.dtype = torch.float32):
    generator = torch.Generator().manual_seed(2)
    scores = (4 * torch.randn(rows, classes, generator=generator)).to(dtype).requires_grad_()
    labels = torch.randint(0, classes, (rows,), generator=generator)
    labels[::5] = IGNORE_LABEL
    return scores, labels


def reference(scores: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and gradient in double precision, by the definition."""
    exact = scores.detach().double().requires_grad_()
    known = labels != IGNORE_LABEL
    total = -exact.log_softmax(1)[known, labels[known]].sum()
    (gradient,) = torch.autograd.grad(total, exact)
    return total.detach(), gradient


@pytest.fixture(params=["whole", "pieces", "single rows"])
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Scores taken as one, in pieces with a smaller last one, and row by row."""
    size = {"whole": 10**6, "pieces": 4 * 11, "single rows": 1}[request.param]
    monkeypatch.setattr(loss, "_PIECE", {"cpu": size})
    return request.param


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_loss_and_gradient_are_those_of_the_definition(piece: str, dtype, tolerance: float) -> None:
    scores, labels = scores_and_labels(dtype=dtype)
    total = sum_cross_entropy(scores, labels)
    (3 * total).backward()
    expected, gradient = reference(scores, labels)
    assert total.dtype == torch.float32
    assert total.shape == ()
    assert total.item() == pytest.approx(expected.item(), rel=1e-6)
    assert scores.grad is not None
    assert scores.grad.dtype == dtype
    torch.testing.assert_close(scores.grad.double(), 3 * gradient, atol=tolerance, rtol=tolerance)


def test_rows_that_are_ignored_have_no_gradient(piece: str) -> None:
    scores, labels = scores_and_labels()
    sum_cross_entropy(scores, labels).backward()
    assert scores.grad is not None
    assert torch.equal(scores.grad[labels == IGNORE_LABEL], torch.zeros(5, 11))


def test_nothing_to_predict_is_a_loss_of_zero_with_a_graph(piece: str) -> None:
    scores, labels = scores_and_labels()
    total = sum_cross_entropy(scores, torch.full_like(labels, IGNORE_LABEL))
    total.backward()
    assert total.item() == 0
    assert scores.grad is not None
    assert not scores.grad.any()


def test_leading_dimensions_are_flattened(piece: str) -> None:
    scores, labels = scores_and_labels(rows=24)
    flat = sum_cross_entropy(scores, labels)
    assert torch.equal(sum_cross_entropy(scores.view(2, 3, 4, 11), labels.view(2, 3, 4)), flat)


@pytest.mark.parametrize("label", [-1, 11])
def test_a_label_that_is_no_class_is_not_taken_for_another(piece: str, label: int) -> None:
    scores, labels = scores_and_labels()
    labels[1] = label
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        sum_cross_entropy(scores, labels)


def test_large_scores_are_not_copied_to_fp32() -> None:
    rows, classes = 64, 2**16
    scores = torch.zeros(rows, classes, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.arange(rows)
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        total = sum_cross_entropy(scores, labels)
    kept = sum(t.numel() * t.element_size() for t in saved if t.data_ptr() != scores.data_ptr())
    assert kept < 1000 * rows
    expected = F.cross_entropy(scores.detach().float(), labels, reduction="sum")
    assert total.item() == pytest.approx(expected.item(), rel=1e-5)
