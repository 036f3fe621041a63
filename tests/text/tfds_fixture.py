"""Small `wmt14_translate` data, made without a network: a prepared data set, or its archives."""

import contextlib
import functools
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

TEST_DOCUMENT = '<srcset setid="newstest2014">\n<doc>\n<p>\n{}</p>\n</doc>\n</srcset>\n'


def write_wmt14_like(
    data_dir: str | Path, pairs_by_split: Mapping[str, Sequence[tuple[str, str]]]
) -> Path:
    """Writes a TFDS folder that `wmt14_translate/de-en` opens.

    Args:
      data_dir: what data.path names; made where it is missing.
      pairs_by_split: "train", "validation", "test": German and English sentences.

    Returns:
      The folder of the data set, with its shards. TFDS orders examples by a hash.
    """
    import tensorflow_datasets as tfds
    from tensorflow_datasets.translate import wmt14

    tfds.disable_progress_bar()
    builder = wmt14.Wmt14Translate(config="de-en", data_dir=data_dir)
    builder._split_generators = lambda dl_manager: {
        split: [
            (place, dict(zip(("de", "en"), pair, strict=True))) for place, pair in enumerate(pairs)
        ]
        for split, pairs in pairs_by_split.items()
    }
    builder.download_and_prepare(file_format="array_record")
    return Path(builder.data_path)


def write_wmt14_archives(
    folder: Path, pairs_by_file: Mapping[str, Sequence[tuple[str, str]]]
) -> None:
    """Writes the archives that `wmt14_translate` downloads, small, with their names and layout.

    Args:
      folder: gets wmt13/training-parallel-europarl-v7.tgz and so on, as on WMT's server.
      pairs_by_file: of German and English: "europarl", "commoncrawl", "newscommentary",
        "newstest2013" and "newstest2014".
    """
    members = {
        "wmt13/training-parallel-europarl-v7.tgz": ("europarl", "training/europarl-v7.de-en"),
        "wmt13/training-parallel-commoncrawl.tgz": ("commoncrawl", "commoncrawl.de-en"),
        "wmt14/training-parallel-nc-v9.tgz": (
            "newscommentary",
            "training/news-commentary-v9.de-en",
        ),
    }
    for archive, (key, member) in members.items():
        sides = zip(*pairs_by_file[key], strict=True)
        files = {
            f"{member}.{language}": "".join(f"{line}\n" for line in side)
            for language, side in zip(("de", "en"), sides, strict=True)
        }
        _write_archive(folder / archive, files)
    dev = {}
    for language, role, side2013, side2014 in zip(
        ("de", "en"),
        ("src", "ref"),
        zip(*pairs_by_file["newstest2013"], strict=True),
        zip(*pairs_by_file["newstest2014"], strict=True),
        strict=True,
    ):
        dev[f"dev/newstest2013.{language}"] = "".join(f"{line}\n" for line in side2013)
        segments = (f'<seg id="{n}">{line}</seg>\n' for n, line in enumerate(side2014, 1))
        name = f"dev/newstest2014-deen-{role}.{language}.sgm"
        dev[name] = TEST_DOCUMENT.format("".join(segments))
    _write_archive(folder / "wmt19/translation-task/dev.tgz", dev)


@contextlib.contextmanager
def serve_as_wmt(folder: Path) -> Iterator[None]:
    """Lets TFDS fetch WMT's archives from a folder, through a server on this machine."""
    from tensorflow_datasets.translate import wmt

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_) -> None:
            """Logs nothing."""

    handler = functools.partial(Handler, directory=folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    here = f"http://127.0.0.1:{server.server_port}"
    originals = {name: subset._urls for name, subset in wmt.DATASET_MAP.items()}
    for subset in wmt.DATASET_MAP.values():
        subset._urls = tuple(
            url.replace("http://www.statmt.org", here).replace("http://data.statmt.org", here)
            for url in subset._urls
        )
    try:
        yield
    finally:
        for name, urls in originals.items():
            wmt.DATASET_MAP[name]._urls = urls
        server.shutdown()
        server.server_close()


def _write_archive(path: Path, files: Mapping[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w") as archive:
        for name, text in files.items():
            content = text.encode()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
