"""Tests reading bytes: compression, pipes, and every bad file with one sentence."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import threading
from pathlib import Path

import pytest
from kineto_events import event, write

from opreplay.trace import TraceError, read_trace
from opreplay.trace.source import read_pieces

DOCUMENT = {"traceEvents": [event("aten::mm"), event("aten::add", ts=20)]}
TEXT = json.dumps(DOCUMENT).encode()


either_inflater = pytest.mark.usefixtures("inflater")


@pytest.fixture(params=["zlib", "isal.isal_zlib"])
def inflater(request, monkeypatch) -> None:
    monkeypatch.setattr("opreplay.trace.source.zlib", pytest.importorskip(request.param))


def failure_of(path: Path | str) -> str:
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    message = str(caught.value)
    assert "\n" not in message
    assert re.match(rf"{re.escape(str(path))}: byte \d+: ", message)
    assert ";" in message, "no remedy"
    return message


@either_inflater
def test_gzip_is_told_by_its_first_bytes_and_not_by_its_name(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(TEXT))
    assert len(read_trace(path)) == 2


def test_plain_json_reads_under_a_gz_name(tmp_path):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(TEXT)
    assert len(read_trace(path)) == 2


@either_inflater
def test_gzip_members_and_padding_after_them_read_as_one_document(tmp_path):
    path = tmp_path / "trace.gz"
    path.write_bytes(gzip.compress(TEXT[:30]) + gzip.compress(TEXT[30:]) + b"\0" * 100)
    assert b"".join(read_pieces(path)) == TEXT


@either_inflater
def test_a_gzip_member_that_begins_at_a_chunk_boundary_is_read(tmp_path, monkeypatch):
    first, second = gzip.compress(TEXT[:30]), gzip.compress(TEXT[30:])
    monkeypatch.setattr("opreplay.trace.source._CHUNK", len(first))
    path = tmp_path / "trace.gz"
    path.write_bytes(first + second + b"\0" * 2 * len(first))
    assert b"".join(read_pieces(path)) == TEXT


def test_a_pipe_is_read(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(gzip.compress(TEXT),))
    writer.start()
    sizes = []
    assert len(read_trace(path, progress=lambda done, size: sizes.append(size))) == 2
    writer.join()
    assert set(sizes) == {None}


def test_a_dash_reads_standard_input(monkeypatch):
    stdin = io.TextIOWrapper(io.BytesIO(TEXT))
    monkeypatch.setattr("sys.stdin", stdin)
    assert len(read_trace("-")) == 2


def test_progress_counts_the_bytes_of_the_file_up_to_its_size(tmp_path):
    path = write(tmp_path / "trace.json.gz", DOCUMENT)
    seen = []
    read_trace(path, progress=lambda done, size: seen.append((done, size)))
    size = path.stat().st_size
    assert seen[-1] == (size, size)


@either_inflater
def test_truncated_gzip_names_the_byte_where_the_data_ends(tmp_path):
    path = tmp_path / "cut.json.gz"
    whole = gzip.compress(TEXT)
    path.write_bytes(whole[: len(whole) // 2])
    message = failure_of(path)
    assert f"byte {len(whole) // 2}: " in message
    assert "truncated" in message


@either_inflater
def test_gzip_without_its_trailer_is_truncated(tmp_path):
    path = tmp_path / "cut.json.gz"
    path.write_bytes(gzip.compress(TEXT)[:-4])
    assert "truncated" in failure_of(path)


@either_inflater
def test_damaged_gzip_is_named(tmp_path):
    path = tmp_path / "bad.json.gz"
    whole = bytearray(gzip.compress(TEXT))
    whole[-6] ^= 0xFF  # the checksum
    path.write_bytes(bytes(whole))
    assert "gzip data is damaged" in failure_of(path)


def test_json_cut_in_half_names_the_byte_where_the_text_ends(tmp_path):
    path = write(tmp_path / "cut.json", TEXT[: len(TEXT) // 2])
    message = failure_of(path)
    assert f"byte {len(TEXT) // 2}: " in message
    assert "truncated" in message


def test_json_cut_after_an_event_is_truncated(tmp_path):
    path = write(tmp_path / "cut.json", TEXT[: TEXT.index(b"}}") + 2])
    assert "truncated" in failure_of(path)


def test_json_damaged_in_the_middle_names_the_place(tmp_path):
    damaged = TEXT.replace(b'"ts": 20', b'"ts": 20;')
    path = write(tmp_path / "bad.json", b"\xef\xbb\xbf" + damaged)
    message = failure_of(path)
    assert f"byte {damaged.index(b';') + 3}: found ';, " in message


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 20, "a PNG image"),
        (b"\xff\xd8\xff\xe0", "a JPEG image"),
        (b"PK\x03\x04rest", "a zip archive"),
        (b"\x28\xb5\x2f\xfd1", "Zstandard data"),
        (b"hello, this is text", "'hello, this ', which begins no JSON document"),
        (b"\x80\x02}q\x00", "begins no JSON document"),
        (b'"text"', "begins no JSON document"),
        (b"{" * 5000 + b"}" * 5000, "byte 1: found '{{{{{{{{{{{{' where JSON expects"),
    ],
    ids=["png", "jpeg", "zip", "zstd", "text", "pickle", "string", "braces"],
)
def test_a_foreign_file_is_named(tmp_path, data, found):
    assert re.search(found, failure_of(write(tmp_path / "file", data)))


def test_deep_nesting_takes_no_stack(tmp_path):
    path = write(tmp_path / "deep.json", b"[" * 200_000 + b"]" * 200_000)
    assert "holds no event" in failure_of(path)


def nested_deep(before: bytes) -> bytes:
    fields = b"{" + before + b"[" * 9999 + b"]" * 9999 + b"}"
    return b"[" + json.dumps(event("deep")).encode().replace(b"{}", fields) + b"]"


def test_an_event_whose_sizes_are_nested_too_deep_is_refused(tmp_path):
    path = write(tmp_path / "deep.json", nested_deep(b'"Input type": ["float"], "Input Dims": '))
    assert "byte 1: the event that begins here is no JSON" in failure_of(path)


def test_fields_that_nobody_reads_may_hold_anything(tmp_path):
    assert len(read_trace(write(tmp_path / "deep.json", nested_deep(b'"a": ')))) == 1


def test_a_json_object_without_events_names_its_keys(tmp_path):
    path = write(tmp_path / "other.json", {"weights": 1, "bias": 2})
    assert "without traceEvents (keys: bias, weights)" in failure_of(path)


@pytest.mark.parametrize("document", [{"traceEvents": []}, []], ids=["object", "list"])
def test_a_trace_without_events_is_refused(tmp_path, document):
    assert "the trace holds no event" in failure_of(write(tmp_path / "empty.json", document))


def test_an_empty_file_is_refused(tmp_path):
    assert "the file is empty" in failure_of(write(tmp_path / "empty", b""))


def test_an_empty_gzip_is_refused(tmp_path):
    assert "begins no JSON" in failure_of(write(tmp_path / "empty.gz", b""))


def test_a_number_is_no_trace(tmp_path):
    assert "found '12', which begins no JSON" in failure_of(write(tmp_path / "n.json", b"12"))


def test_a_missing_file_is_refused(tmp_path):
    assert "No such file" in failure_of(tmp_path / "nowhere.json")


def test_a_file_that_fails_while_it_is_read_is_refused(monkeypatch):
    class Broken(io.RawIOBase):
        def read(self, size=-1):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": Broken()}))
    assert "Input/output error" in failure_of("-")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_without_permission_is_refused(tmp_path):
    path = write(tmp_path / "secret.json", DOCUMENT)
    path.chmod(0)
    assert "Permission denied" in failure_of(path)
