"""What is handed to obstore; nothing is asked of any service here."""

from pathlib import Path
from typing import Any

import pytest

from torchrelay.core.errors import StoreError
from torchrelay.store import services
from torchrelay.store.credentials import read_credentials
from torchrelay.store.open import open_store
from torchrelay.store.services import open_azure, open_gcs, open_s3, s3_config

NOBODY = {"HOME": "/nonexistent"}
KEYS = NOBODY | {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}


def config(bucket: str = "bucket", **variables: str) -> dict[str, Any]:
    return s3_config(read_credentials(KEYS | variables), bucket)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """What clients were made with; they answer nothing."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def record(*given: Any, **named: Any) -> object:
        calls.append((given, named))
        return object()

    for name in ("S3Store", "GCSStore", "AzureStore"):
        monkeypatch.setattr(services, name, record)
    return calls


@pytest.mark.parametrize(
    ("variables", "virtual", "endpoint"),
    [
        ({}, True, None),
        ({"AWS_S3_ADDRESSING_STYLE": "path"}, False, None),
        ({"AWS_ENDPOINT_URL": "https://s3.example.com:9"}, False, "https://s3.example.com:9"),
        (
            {"AWS_ENDPOINT_URL": "https://s3.example.com:9/p", "AWS_S3_ADDRESSING_STYLE": "virtual"},
            True,
            "https://bucket.s3.example.com:9/p",
        ),
    ],
)
def test_the_bucket_is_in_the_path_of_a_given_endpoint_and_in_the_name_elsewhere(
    variables: dict[str, str], virtual: bool, endpoint: str | None
) -> None:
    made = config(**variables)
    assert made["virtual_hosted_style_request"] is virtual
    assert made.get("endpoint") == endpoint


def test_a_bucket_with_a_dot_is_always_in_the_path() -> None:
    assert config("a.b")["virtual_hosted_style_request"] is False


def test_a_style_can_be_set_in_the_profile(tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/config").write_text("[default]\ns3 =\n    addressing_style = virtual\nregion = r\n")
    found = read_credentials({"HOME": str(tmp_path)})
    assert (found.style, found.region) == ("virtual", "r")


def test_an_unknown_style_is_refused() -> None:
    with pytest.raises(StoreError, match="'vhost' is not a style"):
        config(AWS_S3_ADDRESSING_STYLE="vhost")


def test_keys_of_the_environment_with_a_token_go_to_obstore() -> None:
    made = config(AWS_SESSION_TOKEN="token", AWS_REGION="r")
    assert (made["access_key_id"], made["session_token"], made["region"]) == ("id", "token", "r")


def test_nobody_asks_without_any_key() -> None:
    made = config(AWS_SKIP_SIGNATURE="true")
    assert made["skip_signature"] is True
    assert "access_key_id" not in made


@pytest.mark.parametrize("given", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_half_of_the_keys_is_refused(given: str) -> None:
    with pytest.raises(StoreError, match="half of the S3 keys"):
        read_credentials(NOBODY | {given: "x"})


def profile(tmp_path: Path, *lines: str) -> dict[str, str]:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/config").write_text("[default]\n" + "\n".join(lines) + "\n")
    return {"HOME": str(tmp_path)}


def test_a_web_identity_of_a_profile_is_left_to_obstore(tmp_path: Path) -> None:
    found = read_credentials(profile(tmp_path, "web_identity_token_file = /t", "role_arn = arn"))
    made = s3_config(found, "bucket")
    assert (made["web_identity_token_file"], made["role_arn"]) == ("/t", "arn")


@pytest.mark.parametrize("line", ["sso_session = x", "role_arn = arn"])
def test_a_profile_that_needs_another_tool_says_how_it_works(tmp_path: Path, line: str) -> None:
    with pytest.raises(StoreError, match="torchrelay does not do itself") as caught:
        read_credentials(profile(tmp_path, line))
    assert "credential_process = aws configure export-credentials" in caught.value.hint


def test_a_web_identity_of_the_environment_wins_over_a_profile(tmp_path: Path) -> None:
    variables = profile(tmp_path, "aws_access_key_id = a", "aws_secret_access_key = b")
    assert read_credentials(variables).from_profile
    assert not read_credentials(variables | {"AWS_WEB_IDENTITY_TOKEN_FILE": "/t"}).keys


def test_no_client_is_made_before_the_first_use_and_then_two(made: list[Any]) -> None:
    store = open_s3("s3://b", "b", "", retry_s=1, variables=KEYS)
    assert made == []
    connection = store._connection
    assert connection.clients() is connection.clients()
    assert len(made) == 2


@pytest.mark.parametrize(
    ("endpoint", "plain"), [("http://127.0.0.1:1", True), ("https://s3.example.com", False)]
)
def test_plain_http_is_spoken_only_where_the_endpoint_says_so(
    made: list[Any], endpoint: str, plain: bool
) -> None:
    stores = [
        open_s3("s3://b", "b", "", retry_s=1, variables=KEYS | {"AWS_ENDPOINT_URL": endpoint}),
        open_gcs("gs://b", "b", "", retry_s=1, variables={"GOOGLE_BASE_URL": endpoint}),
        open_azure("az://b", "b", "", retry_s=1, variables={"AZURE_STORAGE_ENDPOINT": endpoint}),
    ]
    for store in stores:
        store._connection.clients()
    assert {named["client_options"]["allow_http"] for _, named in made} == {plain}


@pytest.mark.parametrize("opening", [open_s3, open_gcs, open_azure])
def test_without_an_endpoint_nothing_is_sent_in_the_clear(made: list[Any], opening: Any) -> None:
    opening("x://b", "b", "", retry_s=1, variables=KEYS)._connection.clients()
    assert {named["client_options"]["allow_http"] for _, named in made} == {False}


def test_keys_of_a_file_are_asked_for_again_and_never_part_of_the_setup(
    made: list[Any], tmp_path: Path
) -> None:
    variables = profile(tmp_path, "aws_access_key_id = a", "aws_secret_access_key = b-secret")
    open_s3("s3://b", "b", "", retry_s=1, variables=variables)._connection.clients()
    for _, named in made:
        assert "access_key_id" not in named["config"]
        assert named["credential_provider"]()["secret_access_key"] == "b-secret"


def test_an_authority_of_one_s_own_is_trusted(made: list[Any], tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(b"certificate")
    variables = KEYS | {"AWS_CA_BUNDLE": str(tmp_path / "ca.pem")}
    open_s3("s3://b", "b", "", retry_s=1, variables=variables)._connection.clients()
    assert made[0][1]["client_options"]["root_certificate"] == b"certificate"
    (tmp_path / "ca.pem").unlink()
    with pytest.raises(StoreError, match=r"cannot read the certificates in .*/ca.pem: No such file"):
        open_s3("s3://b", "b", "", retry_s=1, variables=variables)._connection.clients()


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_a_bucket_of_every_service_is_opened_by_its_url(scheme: str) -> None:
    assert open_store(f"{scheme}://bucket/some/prefix/").url == f"{scheme}://bucket/some/prefix"
    with pytest.raises(StoreError, match="names no bucket") as caught:
        open_store(f"{scheme}:///x")
    assert f"{scheme}://" in caught.value.hint


def test_no_account_of_azure_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_USE_EMULATOR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StoreError, match="az://b") as caught:
        open_azure("az://b", "b", "", retry_s=1, variables=NOBODY)._connection.clients()
    assert "AZURE_STORAGE_ACCOUNT_NAME" in caught.value.hint


def test_nobody_is_asked_for_a_role_where_that_is_forbidden() -> None:
    variables = NOBODY | {"AWS_EC2_METADATA_DISABLED": "true"}
    store = open_s3("s3://b", "b", "", retry_s=1, variables=variables)
    with pytest.raises(StoreError, match="no keys were found"):
        store._connection.clients()
    for more in ({"AWS_SKIP_SIGNATURE": "true"}, {"AWS_WEB_IDENTITY_TOKEN_FILE": "/t"}):
        open_s3("s3://b", "b", "", retry_s=1, variables=variables | more)._connection.clients()
