"""Object stores on this machine, and a bucket for each test.

The packages of ``s3://`` are part of the tests' extra. Those of ``gs://`` need another environment,
as both file systems want a version of fsspec of their own: ``pip install gcp-storage-emulator -e
'.[gcs]'`` beside pytest, hypothesis, chex and psutil, then ``pytest tests/core/storage -m ""``.
"""

import contextlib
import http
import importlib.util
import itertools
import logging
import socket
import socketserver

import pytest

_PACKAGES = {"s3": ("s3fs", "moto"), "gs": ("gcsfs", "gcp_storage_emulator")}
INSTALLED = [
    scheme for scheme, names in _PACKAGES.items() if all(map(importlib.util.find_spec, names))
]
_numbers = itertools.count()


@pytest.fixture(scope="session")
def object_store():
    """A scheme, and the environment in which its file system finds a server on this machine."""
    if not INSTALLED:
        pytest.skip(f"needs one of these pairs of packages: {[*_PACKAGES.values()]}")
    scheme = INSTALLED[0]
    server, environment = {"s3": _serve_s3, "gs": _serve_gs}[scheme]()
    yield scheme, environment
    server.stop()


def _serve_s3():
    from moto.server import ThreadedMotoServer

    for loud in ("werkzeug", "botocore", "aiobotocore", "s3fs"):
        logging.getLogger(loud).setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    return server, {
        "AWS_ENDPOINT_URL": "http://{}:{}".format(*server.get_host_and_port()),
        "AWS_ACCESS_KEY_ID": "tester",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def _serve_gs():
    from gcp_storage_emulator.exceptions import NotFound
    from gcp_storage_emulator.handlers import objects
    from gcp_storage_emulator.server import create_server

    upload = objects._multipart_upload

    def upload_unless_there(request, response, storage):
        """Google's server, unlike this one, writes nothing if there is such an object."""
        where = (request.params["bucket_name"], request.data["meta"]["name"])
        with contextlib.suppress(NotFound):
            if request.query.get("ifGenerationMatch") == ["0"] and storage.get_file_obj(*where):
                response.status = http.HTTPStatus.PRECONDITION_FAILED
                return None
        return upload(request, response, storage)

    objects._multipart_upload = upload_unless_there
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # A process that is killed while the server answers it is no error of the server.
    socketserver.BaseServer.handle_error = lambda *about: None
    server = create_server("127.0.0.1", port, in_memory=True)
    server.start()
    # The server does not say what kind of bucket it has.
    return server, {
        "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}",
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }


@pytest.fixture
def bucket(object_store, tmp_path, monkeypatch):
    """The URL of an empty bucket; this process and those that it starts find the server."""
    from transformer_jax.core.storage.objects import Objects, _file_system

    scheme, environment = object_store
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TRANSFORMER_JAX_STORAGE", str(tmp_path / "cache"))
    _file_system.cache_clear()
    url = f"{scheme}://bucket{next(_numbers)}"
    Objects(f"{url}/x")._files.mkdir(url[5:])
    yield url
    _file_system.cache_clear()
