from torchrelay.core.errors import DataError
from torchrelay.data.readings.failure import Place, SampleFailure

PLACE = Place(17, 2, "d/a.mds", 3)


def test_a_sample_is_named_with_its_slot_and_how_to_leave_it_out() -> None:
    error = SampleFailure(PLACE, DataError("no picture", hint="look")).tell(512)
    assert error.message == "sample 17, slot 512, epoch 2 (sample 3 of shard d/a.mds): no picture"
    assert error.hint == 'look; or leave it out with data.skip: ["512..513"]'
    assert SampleFailure(PLACE, DataError("no")).tell(4).hint == 'leave it out with data.skip: ["4..5"]'


def test_what_the_recipe_cannot_leave_out_has_no_slot() -> None:
    error = SampleFailure(PLACE, DataError("no picture", hint="look")).tell(None)
    assert error.message.startswith("sample 17, epoch 2 (")
    assert error.hint == "look"


def test_the_first_cause_is_chained() -> None:
    reason = DataError("no")
    assert SampleFailure(PLACE, reason).tell(1).__cause__ is reason
    reason.__cause__ = first = ValueError("first")
    assert SampleFailure(PLACE, reason).tell(1).__cause__ is first
