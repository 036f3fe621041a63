"""Text that experiments write: each file whole, so that the last one tells that all are there."""

from pathlib import Path

import pytest

from experiments import own_text


def test_a_full_disk_leaves_no_half_file(tmp_path, monkeypatch):
    own_text.write_split(tmp_path / "new", "a", {"en": ["x", 1], "de": ["y", 2]})
    assert (tmp_path / "new" / "a.de").read_text() == "y\n2\n"
    write = own_text.write_atomically

    def full(path: Path, content: bytes) -> None:
        if path.suffix == ".de":
            raise OSError
        write(path, content)

    monkeypatch.setattr(own_text, "write_atomically", full)
    with pytest.raises(OSError):
        own_text.write_split(tmp_path, "b", {"en": ["x"], "de": ["y"]})
    assert [path.name for path in tmp_path.glob("b.*")] == ["b.en"]
