"""An object store on this machine, and a bucket for each test."""

import itertools
import logging

import pytest

_numbers = itertools.count()


@pytest.fixture(scope="session")
def object_store():
    """The address of a server that speaks the protocol of S3."""
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    for loud in ("werkzeug", "botocore", "aiobotocore", "s3fs"):
        logging.getLogger(loud).setLevel(logging.ERROR)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def bucket(object_store, tmp_path, monkeypatch):
    """The URL of an empty bucket; this process and those that it starts find the server."""
    from transformer_jax.storage.objects import Objects, _file_system

    for name, value in {
        "AWS_ENDPOINT_URL": object_store,
        "AWS_ACCESS_KEY_ID": "tester",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "TRANSFORMER_JAX_STORAGE": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    _file_system.cache_clear()
    url = f"s3://bucket{next(_numbers)}"
    Objects(f"{url}/x")._files.mkdir(url[5:])
    yield url
    _file_system.cache_clear()
