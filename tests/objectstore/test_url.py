"""Store URLs: what is taken, what is refused, and that every refusal says what to do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptfs.env import RealEnv
from ckptfs.errors import UsageError
from ckptfs.objectstore.retry import RetryingObjectStore
from ckptfs.objectstore.url import StoreURL, open_store, parse_store_url

RIGHT = {
    "s3://bucket": StoreURL("s3", "bucket"),
    "s3://bucket/": StoreURL("s3", "bucket"),
    "s3://bucket/runs/llm": StoreURL("s3", "bucket", "runs/llm"),
    "s3://bucket/runs/llm/": StoreURL("s3", "bucket", "runs/llm"),
    "s3://bucket/a%20b/%23%3F": StoreURL("s3", "bucket", "a b/#?"),
    "s3://my.bucket-1?region=eu-central-1": StoreURL("s3", "my.bucket-1", "", {"region": "eu-central-1"}),
    "s3://bucket/p?endpoint=http://127.0.0.1:9000&region=r&path_style=false": StoreURL(
        "s3", "bucket", "p", {"endpoint": "http://127.0.0.1:9000", "region": "r", "path_style": "false"}
    ),
    "s3://bucket?endpoint=https%3A%2F%2Fhost": StoreURL("s3", "bucket", "", {"endpoint": "https://host"}),
    "file:///data/bucket": StoreURL("file", "/data/bucket"),
    "file:///data/bucket/": StoreURL("file", "/data/bucket"),
    "file:///data//x/../bucket": StoreURL("file", "/data/bucket"),
    "file:///a%20b%3F%23": StoreURL("file", "/a b?#"),
    "file:///not-utf8-%FF": StoreURL("file", "/not-utf8-\udcff"),
    "file:////data": StoreURL("file", "/data"),
}

WRONG = {
    "": "s3://BUCKET",
    "bucket": "s3://BUCKET",
    "/data/bucket": "file:///data/bucket",
    "http://host/bucket": "s3://BUCKET",
    "s3:bucket": "s3://BUCKET",
    "s3://": "s3://BUCKET/PREFIX",
    "s3:///prefix": "s3://BUCKET/PREFIX",
    "s3://b": "letters",
    "s3://bucket:9000/x": "port",
    "s3://bucket/a#b": "%23",
    "s3://bucket/a//b": "plain path",
    "s3://bucket/../b": "plain path",
    "s3://bucket?regoin=x": "region",
    "s3://bucket?region": "NAME",
    "s3://bucket?region=": "region=",
    "s3://bucket?region=a&region=b": "remove",
    "s3://bucket?endpoint=127.0.0.1:9000": "endpoint=https://HOST",
    "s3://bucket?endpoint=ftp://host": "endpoint=https://HOST",
    "s3://bucket?path_style=maybe": "path_style=true",
    "file://data/bucket": "file:///DIRECTORY",
    "file://localhost/data": "file:///DIRECTORY",
    "file://": "file:///DIRECTORY",
    "file:///data?x=y": "%3F",
    "r2://account/bucket/prefix": "s3://BUCKET",
    "gs://bucket/prefix": "s3://BUCKET",
    "az://account/container": "s3://BUCKET",
    "s3://[::1/x": "s3://BUCKET",
}

SECRET = [
    "s3://AKIAEXAMPLE:wJalrXUtn@bucket/prefix",
    "s3://bucket?access_key=AKIAEXAMPLE",
    "s3://bucket?secret=wJalrXUtn",
    "s3://bucket?aws_session_token=wJalrXUtn",
    "s3://bucket?endpoint=http://AKIAEXAMPLE:wJalrXUtn@host",
    "file://user:wJalrXUtn@host/data",
]


@pytest.mark.parametrize(("text", "expected"), RIGHT.items())
def test_a_right_url_is_read(text: str, expected: StoreURL) -> None:
    assert parse_store_url(text) == expected


@pytest.mark.parametrize("text", RIGHT)
def test_the_canonical_form_reads_back_as_itself(text: str) -> None:
    url = parse_store_url(text)
    assert parse_store_url(str(url)) == url


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1).filter(lambda s: s not in {".", ".."})
)
def test_any_prefix_and_directory_can_be_named(name: str) -> None:
    for url in (StoreURL("s3", "bucket", f"a/{name}"), StoreURL("file", f"/a/{name}")):
        assert parse_store_url(str(url)) == url


@pytest.mark.parametrize(("text", "remedy"), WRONG.items())
def test_a_wrong_url_is_refused_with_a_remedy(text: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_store_url(text)
    assert remedy in caught.value.hint
    assert str(caught.value)


@pytest.mark.parametrize("text", SECRET)
def test_credentials_are_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_store_url(text)
    assert "credentials" in str(caught.value)
    assert caught.value.hint
    for secret in ("wJalrXUtn", "AKIAEXAMPLE"):
        assert secret not in str(caught.value) + caught.value.hint


@pytest.mark.parametrize("scheme", ["r2", "gs", "az"])
def test_stores_of_later_versions_are_named_as_such(scheme: str) -> None:
    with pytest.raises(UsageError, match="this version does not have"):
        parse_store_url(f"{scheme}://a/b/c")


@pytest.mark.parametrize("text", ["s3://bucket/p?region=us-east-1", "file:///data"])
def test_a_store_is_opened_with_retries_and_without_a_request(text: str) -> None:
    store = open_store(text, RealEnv())
    assert isinstance(store, RetryingObjectStore)
    assert store.url == text
