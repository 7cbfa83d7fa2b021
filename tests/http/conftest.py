"""Starts `1bit serve` for the tests of this folder.

What is tested is taken from the environment: ONEBIT_BINARY (build/1bit), ONEBIT_MODEL and ONEBIT_DRAFTER (the demo pair
in models/). ONEBIT_DRAFTER may be empty: no drafter.
"""
import os
import pathlib

import pytest
from serving import Server

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def binary():
    return os.environ.get("ONEBIT_BINARY", str(ROOT / "build" / "1bit"))


@pytest.fixture(scope="session")
def model_flags():
    model = os.environ.get("ONEBIT_MODEL", str(ROOT / "models" / "demo-H32.gguf"))
    drafter = os.environ.get("ONEBIT_DRAFTER", str(ROOT / "models" / "demo-dflash2.gguf"))
    return ["-m", model] + (["--dflash", drafter] if drafter else [])


@pytest.fixture(scope="session")
def start(binary, model_flags):
    """Starts a server with further flags; all are stopped at the end of the session."""
    servers = []

    def start_one(*flags, model=None, wait=True):
        server = Server([binary, "serve", *(model_flags if model is None else model), "--port", "0", *flags])
        servers.append(server)
        if wait:
            server.wait_until_ready()
        return server

    yield start_one
    statuses = [server.stop() for server in servers]
    assert not any(statuses), statuses


@pytest.fixture(scope="session")
def server(start):
    """The server that most tests share: two slots."""
    return start("--parallel", "2", "--ctx-size", "4096")


@pytest.fixture(autouse=True)
def idle_afterwards(request):
    """Every test leaves the servers it was given without work and alive: a client has its answer before the slot is free."""
    yield
    for given in request.node.funcargs.values():
        if isinstance(given, Server):
            given.wait_until_idle()
