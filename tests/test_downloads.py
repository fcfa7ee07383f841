"""Downloads of chamber data, from a server on this machine that behaves or does not; by function and by command."""

from __future__ import annotations

import contextlib
import hashlib
import io
import shutil
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from chamber_files import write_impulses

from fmcpe import tasks
from fmcpe.cli import download as command
from fmcpe.cli import main
from fmcpe.tasks.chambers import IMPULSES
from fmcpe.tasks.downloads import _DATASETS


def zipped(folder) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for path in folder.rglob("*.csv"):
            file.write(path, path.relative_to(folder))
    return archive.getvalue()


class Server:
    """What is served at ``/wt.zip``; a test may spoil it."""

    def __init__(self, archive: bytes):
        self.serve(archive)
        self.status, self.missing_bytes, self.sizeless = 200, 0, False
        self.directory = ""
        self.fetched: list[str] = []

    def serve(self, archive: bytes, md5: str | None = None) -> None:
        self.archive, self.md5 = archive, md5 or hashlib.md5(archive).hexdigest()

    def reply(self, request: BaseHTTPRequestHandler) -> None:
        self.fetched.append(request.path)
        request.send_response(self.status)
        body = self.archive if self.status == 200 else b"<html>an error page</html>"
        if not self.sizeless:
            request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body[: len(body) - self.missing_bytes])


def forget_datasets():
    """The package fetches its list of data sets on import."""
    for name in [name for name in sys.modules if name.startswith("causalchamber.datasets")]:
        del sys.modules[name]


@pytest.fixture
def server(tmp_path, monkeypatch):
    requests = pytest.importorskip("requests")
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.importorskip("causalchamber")
    write_impulses(tmp_path / "source")
    state = Server(zipped(tmp_path / "source"))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            state.reply(self)

        def log_message(self, *_args):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    state.url = f"http://127.0.0.1:{http.server_address[1]}/wt.zip"
    state.stop = lambda: (http.shutdown(), http.server_close())
    directory, get = requests.Response(), requests.get

    def intercepted(url, **options):
        if not url.endswith("directory.yaml"):
            return get(url, **options)
        directory.status_code = 200
        listed = f"datasets: {{{IMPULSES[0]}: {{url: '{state.url}', md5: '{state.md5}'}}}}"
        directory._content = (state.directory or listed).encode()
        return directory

    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(requests, "get", intercepted)
    forget_datasets()
    yield state
    forget_datasets()
    with contextlib.suppress(OSError):
        state.stop()


def test_download_announces_fetches_and_checks(server, tmp_path, capsys):
    said: list[str] = []
    folder = tasks.download(
        "wind-tunnel", tmp_path / "data", say=lambda text: said.append(f"{len(server.fetched)} {text}")
    )
    assert folder == tmp_path / "data" / IMPULSES[0]
    assert said[0] == (
        f"1 Fetching {IMPULSES[0]} for 'wind-tunnel' from {server.url} ({len(server.archive) / 1e6:.1f} MB) to {folder}."
    )
    assert [entry.name for entry in (tmp_path / "data").iterdir()] == [IMPULSES[0]]
    assert tasks.get("wind-tunnel", data=tmp_path / "data").calibration_set(3, seed=0)[1].shape == (3, 50)
    server.stop()  # what is there is not fetched again
    assert tasks.download("wind-tunnel", tmp_path / "data") == folder
    assert capsys.readouterr().out == ""


def test_the_command_downloads_and_says_how_to_go_on(server, tmp_path, capsys):
    assert main(["download", "wind-tunnel", "--to", str(tmp_path / "data")]) == 0
    out = capsys.readouterr().out
    assert f"MB) to {tmp_path / 'data' / IMPULSES[0]}" in out
    assert f"fmcpe demo wind-tunnel --data {tmp_path / 'data'}" in out
    assert (tmp_path / "data" / IMPULSES[0] / f"{IMPULSES[1]}.csv").is_file()


def wrong_checksum(server, _path):
    server.serve(server.archive, md5="0" * 32)


def broken_off(server, _path):
    server.missing_bytes = 100


def broken_off_unnoticed(server, _path):
    server.missing_bytes, server.sizeless = 100, True


def not_found(server, _path):
    server.status = 404


def not_found_with_that_checksum(server, _path):
    server.serve(server.archive, md5=hashlib.md5(b"<html>an error page</html>").hexdigest())
    server.status = 403


def not_an_archive(server, _path):
    server.serve(b"<html>")


def other_folder(server, path):
    (path / "source" / IMPULSES[0]).rename(path / "source" / "something")
    server.serve(zipped(path / "source"))


def lacking_a_column(server, path):
    shutil.rmtree(path / "source")
    write_impulses(path / "source", columns=("hatch",))
    server.serve(zipped(path / "source"))


def unreachable(server, _path):
    server.stop()


FAILURES = {
    wrong_checksum: "got .* MB with checksum",
    broken_off: "^Expected all of .*, got .* MB",
    broken_off_unnoticed: "got .* MB with checksum",
    not_found: "got 404 Not Found",
    not_found_with_that_checksum: "got 403 Forbidden",
    not_an_archive: "^Expected the known layout .*, got another one",
    other_folder: "^Expected the known layout .*, got another one",
    lacking_a_column: "^Expected the known layout .*, got another one .* no column 'pressure_downwind'",
    unreachable: "^Expected an answer from .*, got ConnectionError",
}


@pytest.mark.parametrize("spoil", FAILURES, ids=lambda spoil: spoil.__name__)
def test_failed_downloads_say_why_and_leave_nothing(server, tmp_path, capsys, spoil):
    spoil(server, tmp_path)
    with pytest.raises(OSError, match=rf"(?s){FAILURES[spoil]}.*Nothing was kept") as raised:
        tasks.download("wind-tunnel", tmp_path / "data", say=lambda _text: None)
    assert list(tmp_path.glob("data/*")) == []
    assert main(["download", "wind-tunnel", "--to", str(tmp_path / "data")]) == 2
    assert capsys.readouterr().err == f"fmcpe download: {raised.value}\n"
    if spoil in (not_found, unreachable):
        assert "checksum" not in str(raised.value)
        assert not (tmp_path / "data").exists()


def test_folders_that_are_empty_or_incomplete_are_not_trusted(server, tmp_path):
    folder = tmp_path / "data" / IMPULSES[0]
    folder.mkdir(parents=True)
    assert tasks.download("wind-tunnel", tmp_path / "data", say=lambda _text: None) == folder
    assert len(server.fetched) == 1
    path = folder / f"{IMPULSES[1]}.csv"
    path.write_text(path.read_text()[:2000])
    with pytest.raises(FileExistsError, match=r"(?s)is not complete .* Remove it, or download to another folder"):
        tasks.download("wind-tunnel", tmp_path / "data")
    assert len(server.fetched) == 1
    assert len(path.read_text()) == 2000  # what is not ours to remove is left alone


@pytest.mark.parametrize("page", ["<html>Please log in</html>", "datasets: {", "<p>a: b: c</p>"])
def test_a_page_in_place_of_the_list_of_data_sets_is_no_network(server, tmp_path, page):
    server.directory = page
    with pytest.raises(ConnectionError, match=r"^Expected the list of data sets from the network, got .*Try again"):
        tasks.download("wind-tunnel", tmp_path / "data")


def test_data_sets_that_are_not_listed_any_more_are_named(server, tmp_path):
    server.directory = "datasets: {another: {}}"
    with pytest.raises(
        FileNotFoundError, match=rf"^Expected data set '{IMPULSES[0]}' .*, got a list without it\. Look"
    ):
        tasks.download("wind-tunnel", tmp_path / "data")


def test_downloads_without_network_or_package_say_so(server, tmp_path, monkeypatch, capsys):
    import requests

    def refuse(*_args, **_options):
        raise requests.ConnectionError("no route to host")

    monkeypatch.setattr(requests, "get", refuse)
    with pytest.raises(ConnectionError, match=r"^Expected the list of data sets from the network, got .*Try again"):
        tasks.download("wind-tunnel", tmp_path / "data")
    assert main(["download", "wind-tunnel", "--to", str(tmp_path / "data")]) == 2
    assert "Expected the list of data sets from the network" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()
    assert main(["download", "pendulum"]) == 2
    assert (
        "Expected a task with measurements, 'wind-tunnel' and 'light-tunnel', got 'pendulum'" in capsys.readouterr().err
    )
    monkeypatch.setitem(sys.modules, "causalchamber", None)
    assert main(["download", "wind-tunnel", "--to", str(tmp_path / "data")]) == 2
    assert "pip install 'fmcpe[chambers]'" in capsys.readouterr().err


def test_help_names_what_can_be_downloaded():
    assert all(name in command.HELP for name in _DATASETS)
