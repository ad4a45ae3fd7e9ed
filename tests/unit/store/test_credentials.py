from pathlib import Path

import pytest

from torchrelay.core.errors import StoreError
from torchrelay.store.credentials import read_credentials

SECRETS = """\
[default]
aws_access_key_id = default-id
aws_secret_access_key = default-secret

[farm]
aws_access_key_id = farm-id
aws_secret_access_key = farm/secret+%
aws_session_token = to%ken
"""
SETTINGS = """\
[default]
region = eu-west-1

[profile farm]
region = us-west-2
endpoint_url = http://127.0.0.1:9000
"""


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text(SECRETS)
    (tmp_path / ".aws/config").write_text(SETTINGS)
    return {"HOME": str(tmp_path)}


def test_a_named_profile_gives_keys_region_and_endpoint(home: dict[str, str]) -> None:
    found = read_credentials(home | {"AWS_PROFILE": "farm"})
    assert found.keys == {
        "access_key_id": "farm-id",
        "secret_access_key": "farm/secret+%",
        "session_token": "to%ken",
    }
    assert (found.region, found.endpoint) == ("us-west-2", "http://127.0.0.1:9000")


def test_without_a_name_the_default_profile_is_taken(home: dict[str, str]) -> None:
    found = read_credentials(home)
    assert found.keys["access_key_id"] == "default-id"
    assert (found.region, found.endpoint) == ("eu-west-1", None)


def test_variables_win_over_the_profile(home: dict[str, str]) -> None:
    found = read_credentials(
        home
        | {
            "AWS_PROFILE": "farm",
            "AWS_ACCESS_KEY_ID": "id",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "here",
            "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        }
    )
    assert found.keys == {"access_key_id": "id", "secret_access_key": "secret"}, (
        "no token of another identity"
    )
    assert (found.region, found.endpoint) == ("here", "http://127.0.0.1:1")


def test_the_endpoint_of_the_service_wins_over_the_general_one(home: dict[str, str]) -> None:
    variables = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:2"}
    assert read_credentials(home | variables).endpoint == "http://127.0.0.1:2"


def test_nothing_anywhere_is_left_to_the_service(tmp_path: Path) -> None:
    found = read_credentials({"HOME": str(tmp_path)})
    assert (dict(found.keys), found.region, found.endpoint) == ({}, None, None)


def test_an_unknown_profile_is_refused_with_the_known_ones(home: dict[str, str]) -> None:
    with pytest.raises(StoreError, match="AWS_PROFILE='fram' is in neither") as caught:
        read_credentials(home | {"AWS_PROFILE": "fram"})
    assert caught.value.hint == "profiles there: default, farm"


def test_other_files_can_be_named(home: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "other").write_text("[x]\naws_access_key_id = x-id\naws_secret_access_key = x-secret\n")
    found = read_credentials(
        home | {"AWS_PROFILE": "x", "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "other")}
    )
    assert found.keys == {"access_key_id": "x-id", "secret_access_key": "x-secret"}


@pytest.mark.parametrize("content", [b"no section\n", b"[a]\n[a]\n", b"\xff\xfe"])
def test_a_broken_file_is_named(home: dict[str, str], tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".aws/credentials").write_bytes(content)
    with pytest.raises(StoreError, match=r"cannot read the credential file .*/\.aws/credentials"):
        read_credentials(home)


def test_a_secret_is_not_shown(home: dict[str, str]) -> None:
    assert "secret" not in repr(read_credentials(home))
