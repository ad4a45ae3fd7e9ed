from hypothesis import given
from hypothesis import strategies as st

from torchrelay.data.reader_spec import ReaderSpec, parse_spec, write_spec
from torchrelay.recipe.data_schema import DataSection


@given(
    seed=st.integers(0, 2**63),
    timeout=st.sampled_from(["0.5s", "10min", 77.0]),
    options=st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=4), max_size=3),
)
def test_a_spec_arrives_as_it_was(seed: int, timeout: object, options: dict[str, object]) -> None:
    tree = {"source": "a:b", "options": options, "worker_timeout": timeout, "prefetch_bytes": "3MiB"}
    section = DataSection.model_validate({**tree, "skip": ("1..2",), "pad": "longest"})
    spec = ReaderSpec(section=section, store="s3://bucket/x", split="train", seed=seed, global_batch=7)
    assert parse_spec(write_spec(spec)) == spec
