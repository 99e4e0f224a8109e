"""The command as a process: its address, its end, other hosts, many reads, slow browsers."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import anyio
import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from support.web import WebProcess

from hermes_actor.web.reads import READS
from hermes_actor.web.stores import Stores


def test_pages_are_served_until_interrupted(shared_process):
    with shared_process.client() as client:
        assert "s0001" in client.get("/s/state.db/sessions").text
        assert client.get("/s/state.db/session?id=hostile").status_code == 200


BROWSER = """#!{python}
import http.cookiejar, pathlib, sys, urllib.request as ask
opened = pathlib.Path({file!r})
visitor = ask.build_opener(ask.HTTPCookieProcessor(http.cookiejar.CookieJar()))
page = visitor.open(sys.argv[1], timeout=60).read().decode()
opened.with_suffix(".part").write_text(sys.argv[1] + "\\n" + page)
opened.with_suffix(".part").rename(opened)
"""
"""A browser that ends when it has read the page."""


def fake_browser(path, opened):
    path.write_text(BROWSER.format(python=sys.executable, file=str(opened)))
    path.chmod(0o755)
    return str(path)


def test_open_starts_a_browser_which_may_enter_once(shared_home, tmp_path):
    opened = tmp_path / "opened"
    program = fake_browser(tmp_path / "browser", opened)
    with WebProcess(shared_home, "--open", BROWSER=program) as web:
        give_up = time.monotonic() + 90
        while not opened.exists():
            assert time.monotonic() < give_up
            time.sleep(0.05)
        url, _, page = opened.read_text().partition("\n")
        assert "<h1>Stores</h1>" in page
        assert url.startswith(f"{web.base}/?entry=")
        # Command lines can be read by every user of the machine.
        assert web.token not in url
        assert httpx2.get(url, timeout=60).status_code == 401
        with web.client() as client:
            assert client.get("/").status_code == 200


def test_open_without_a_display_says_so(shared_home, tmp_path):
    for name in ("xdg-open", "www-browser", "lynx", "w3m", "links"):
        fake_browser(tmp_path / name, tmp_path / "opened")
    env = {"BROWSER": "", "DISPLAY": "", "WAYLAND_DISPLAY": "", "TERM": "xterm",
           "PATH": f"{tmp_path}:{os.environ['PATH']}"}  # fmt: skip
    with WebProcess(shared_home, "--open", **env) as web:
        with web.client() as client:
            assert client.get("/").status_code == 200
        _, said = web.end()
    assert "there is no display" in said
    assert not (tmp_path / "opened").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_by_a_signal(shared_home, number):
    with (
        WebProcess(shared_home, "--read-only") as web,
        web.client() as client,
        client.stream("GET", "/s/state.db/events") as events,
    ):
        assert events.status_code == 200
        code, said = web.end(number)
    assert code in (130, -number)
    assert "Traceback" not in said


def test_a_port_in_use_is_named(shared_home):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "hermes_actor", "web", "--port", str(port), "--home",
             str(shared_home)],
            capture_output=True, text=True, timeout=90,
        )  # fmt: skip
    assert done.returncode == 1
    assert f"127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_rebinding_is_refused_by_the_process(shared_process):
    host, port = shared_process.base.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as sock:
        request = (
            f"GET /?token={shared_process.token} HTTP/1.1\r\nHost: evil.example:{port}\r\n\r\n"
        )
        sock.sendall(request.encode())
        assert sock.recv(1000).startswith(b"HTTP/1.1 421")


def test_an_unsafe_address_is_refused(shared_home):
    done = subprocess.run(
        [sys.executable, "-m", "hermes_actor", "web", "--address", "0.0.0.0", "--port", "0",
         "--json", "--home", str(shared_home)],
        capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert done.returncode == 1
    assert "--tls-certificate" in json.loads(done.stdout or done.stderr)["error"]


def test_an_unknown_store_is_an_error(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "hermes_actor", "web", "--port", "0", "--store",
         str(tmp_path / "none.db")],
        capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert done.returncode == 1
    assert "there is no store at" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_tls(shared_home, tmp_path):
    chain, key = certificate(tmp_path)
    options = ("--tls-certificate", str(chain), "--tls-key", str(key))
    with WebProcess(shared_home, *options) as web:
        assert web.url.startswith("https://127.0.0.1:")
        trust = ssl.create_default_context(cafile=str(chain))
        with httpx2.Client(base_url=web.base, verify=trust, timeout=60) as client:
            answer = client.get("/", params={"token": web.token})
            assert "Secure" in answer.headers["set-cookie"]
            assert client.get("/s/state.db/sessions").status_code == 200


def certificate(folder):
    """A certificate for this machine, and its key, as files."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    chain, secret = folder / "chain.pem", folder / "key.pem"
    chain.write_bytes(made.public_bytes(Encoding.PEM))
    secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return chain, secret


def test_reads_of_a_store_are_few_at_a_time(shared_home):
    (store,) = [one for one in Stores(shared_home).all() if one.name == "state.db"]
    begun, release = threading.Semaphore(0), threading.Event()

    def read():
        begun.release()
        assert release.wait(60)

    async def main():
        async with anyio.create_task_group() as tasks:
            for _ in range(3 * READS):
                tasks.start_soon(store.read, read)
            for _ in range(READS):
                assert await anyio.to_thread.run_sync(begun.acquire, True, 60)
            # A further one would have begun by now: what does not happen has no event.
            assert not await anyio.to_thread.run_sync(begun.acquire, True, 0.5)
            release.set()

    anyio.run(main)


def test_a_browser_that_does_not_read_slows_no_other(shared_process):
    host, port = shared_process.base.removeprefix("http://").split(":")
    lazy = []
    try:
        for _ in range(20):
            sock = socket.create_connection((host, int(port)), timeout=60)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.append(sock)
            head = (
                f"GET /s/state.db/message?session=hostile&id=PLACE HTTP/1.1\r\nHost: {host}:{port}"
            )
            with_token = f"{head}\r\nAuthorization: Bearer {shared_process.token}\r\n\r\n"
            sock.sendall(with_token.replace("PLACE", large_message(shared_process)).encode())
        with shared_process.client() as client, ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda _: client.get("/s/state.db/sessions"), range(40)))
        assert {answer.status_code for answer in answers} == {200}
    finally:
        for sock in lazy:
            sock.close()


def large_message(web):
    with web.client() as client:
        found = client.get("/api/stores/state.db/session?id=hostile").json()["messages"]
    return str(found[-1]["id"])
