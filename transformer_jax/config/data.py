"""The keys of the corpus."""

import dataclasses
import itertools
import re
from collections.abc import Iterator

from transformer_jax.config.keys import key
from transformer_jax.config.texts import Text, code, overlap

# What reads some of the keys.
FOLDERS = ("data.source=files", "data.source=parquet", "data.source=tfds")
BUILT_IN = ("data.source=grammar",)
SPEECH, PICTURES = ("data.src_kind=speech",), ("data.src_kind=pictures",)
TEXT_ONLY = ("data.directions", "data.context", "data.alignments", "vocabulary.separate")
LONGEST = 1_000_000
MOST_TIMES = 1_000  # that an epoch has a pair
GRAMMAR = (["de", "en"], ["de"], ["en"])  # languages of the built-in corpus, source and target
DIRECTION = re.compile(r"(\w+)-(\w+)")
LANGUAGE = re.compile(r"[a-z]{2,3}([-_]\w+)?")
SEVERAL = ("mul", "tgt")  # names of a target that is one of several languages


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Where the sentence pairs come from."""

    source: str = key(
        "files",
        "text files, Parquet files with a column translation, TensorFlow Datasets, or the built-in "
        "corpus (grammar)",
        choices_of="transformer_jax.text.corpora:SOURCES",
    )
    path: str | None = key(
        None, "folder of the files, or of the TFDS data sets", mutable=True, read_with=FOLDERS
    )
    name: str | None = key(
        None, "TFDS builder, such as wmt14_translate/de-en", read_with=("data.source=tfds",)
    )
    src: str = key(
        "en",
        "source language: the text file's suffix, or its name in Parquet or TFDS; several, such as "
        "de,fr: a source sentence in each, which lines of text have with tabs between them "
        "(model.sources); empty: none, for a language model (model.encoder=none)",
    )
    tgt: str = key("de", "target language: the text file's suffix, or its name in Parquet or TFDS")
    train: tuple[str, ...] = key(
        ("train",),
        "training text: file stems (STEM.en or STEM.en.gz; STEM.parquet, STEM-*-of-*.parquet, also "
        "patterns), or TFDS split names; STEM[:5000] is the first 5,000 pairs. STEM*2: an epoch "
        "has each pair twice (also *0.5); STEM@TAG: source lines begin with the subword >>TAG<<; "
        "STEM:en-de: only this one of data.directions",
        read_with=FOLDERS,
    )
    valid: tuple[str, ...] = key(
        (),
        "validation text, as in data.train; empty: valid.*, or, without such files, min(2000, 5 %) "
        "of the training pairs, not trained on then (of each text; of those with a tag only if "
        "all have one); TFDS: the split valid",
        mutable=True,
        read_with=FOLDERS,
    )
    test: tuple[str, ...] = key(
        ("test",),
        "test text, as in data.train; `evaluate` scores each part alone, and all together",
        mutable=True,
        read_with=FOLDERS,
    )
    directions: tuple[str, ...] = key(
        (),
        "several directions of translation that one model learns, such as en-de,de-en,en-fr, in "
        "place of data.src and data.tgt: each text is read in each of them, and source lines "
        "begin with the subword of their target language, such as >>de<< (decode.to)",
    )
    src_kind: str = key(
        "text",
        "what the source is; speech, pictures: lines of STEM.SRC name files of recordings (WAV, "
        "FLAC) or pictures (PNG, JPEG) in data.path or in folders inside, and the model reads rows "
        "of numbers instead of subwords (model.features)",
        choices_of="transformer_jax.text.features:KINDS",
        excludes={
            **dict.fromkeys(TEXT_ONLY, "it is for text"),
            "train.agreement_weight": "no model writes recordings or pictures",
            "vocabulary.dropout": "every recording or picture would be stored several times",
            "data.source=grammar": "the built-in corpus is text",
            "data.source=parquet": "files of recordings or pictures are named in text files",
            "data.source=tfds": "files of recordings or pictures are named in text files",
        },
    )
    sample_rate: int = key(
        16_000,
        "samples a second of every recording",
        at_least=1_000,
        at_most=1_000_000,
        read_with=SPEECH,
    )
    mel_bands: int = key(
        80,
        "bands of the mel scale, whose logarithms are computed every 10 ms (windows of 25 ms), "
        "with mean 0 and variance 1 over the recording",
        at_least=1,
        at_most=1_000,
        read_with=SPEECH,
    )
    stacked_frames: int = key(
        4,
        "consecutive frames of 10 ms that make up one source position",
        at_least=1,
        at_most=100,
        read_with=SPEECH,
    )
    masked_bands: int = key(
        0,
        "SpecAugment (Park et al. 2019): training hides 2 ranges of up to this many bands less one "
        "of each recording, anew whenever it is read; there 27 of 80; 0: none",
        at_least=0,
        at_most=1_000,
        read_with=SPEECH,
    )
    masked_frames: int = key(
        0,
        "the same for 2 ranges of frames, each up to a fifth of the recording; there 100; 0: none",
        at_least=0,
        at_most=LONGEST,
        read_with=SPEECH,
    )
    patch_height: int = key(
        16,
        "pixels; a picture, in gray from -1 to 1, is cut into patches, row by row, each a source "
        "position; white fills the last ones up",
        at_least=1,
        at_most=4_096,
        read_with=PICTURES,
    )
    patch_width: int = key(16, "pixels", at_least=1, at_most=4_096, read_with=PICTURES)
    context: int = key(
        0,
        "source sentences before each one, in its document, which the model reads too, as further "
        "source sentences (model.sources), or with model.sources=1 as one with it; STEM.doc names "
        "the document of each pair, or pairs that are blank on both sides end one",
        at_least=0,
        at_most=63,
        read_with=("data.source=files",),
    )
    temperature: float = key(
        1.0,
        "T: with several texts or directions, the share p of an epoch's pairs that is one's "
        "becomes p^(1/T), normalized (Arivazhagan et al. 2019); 1: as they are, 100: equal shares",
        at_least=1,
        below=1_000_000,
    )
    pairs: int = key(
        20_000,
        "training pairs of the built-in corpus, which has 60,000",
        at_least=1,
        at_most=10_000_000,
        read_with=BUILT_IN,
    )
    invented_names: int = key(
        0,
        "of the built-in corpus's sentences with names, the percentage that get invented names, "
        "which differ between training, validation and test",
        at_least=0,
        at_most=100,
        read_with=BUILT_IN,
    )
    alignments: bool = key(
        False,
        "training reads links between words: STEM.align beside the text files, a line i-j i-j ... "
        "for each pair (source and target word, from 0), or those of the built-in corpus",
        read_with=("train.alignment_weight", "train.avoidance_weight"),
    )
    aligned_pairs: int | None = key(
        None,
        "only this many training pairs, the first, keep their links; None: all",
        at_least=1,
        read_with=("data.alignments",),
    )
    seed: int = key(
        0,
        "of a validation split that is cut off (data.valid), and of the lines that train the "
        "vocabulary, if not all do; runs with another `seed` share both, as an ensemble needs",
        at_least=0,
        at_most=2**32 - 1,  # SentencePiece's largest
    )
    max_length: int = key(
        128,
        "subwords per side, EOS included; training skips, and counts, pairs that are longer",
        at_least=2,
    )

    @property
    def sources(self) -> tuple[str, ...]:
        """What a pair's source sentences are: languages, or sentences before; (): no source."""
        named = ["any"] if self.directions else self.languages[:-1]
        return (*named, *(f"{n} before" for n in range(1, self.context + 1)))

    @property
    def languages(self) -> tuple[str, ...]:
        """The source languages, and then the target language."""
        return *(self.src.split(",") if self.src else ()), self.tgt

    @property
    def direction(self) -> str:
        """The languages in one word, for messages."""
        if self.directions:
            return ", ".join(one.replace("-", "→") for one in self.directions)
        return f"{self.src}→{self.tgt}" if self.src else self.tgt

    @property
    def targets(self) -> tuple[str, ...]:
        """The target languages of data.directions, each once."""
        return tuple(dict.fromkeys(one.partition("-")[2] for one in self.directions))

    @property
    def codes(self) -> tuple[str, ...]:
        """The subwords that source lines may begin with: target languages and tags."""
        tags = (Text.of(one).tag for one in self.train)
        return tuple(map(code, dict.fromkeys((*self.targets, *filter(None, tags)))))

    @property
    def is_mixed(self) -> bool:
        """Whether a text has a direction, a tag or a weight of its own, or the mixture has."""
        texts = (*self.train, *self.valid, *self.test)
        plain = all(Text.of(one) == Text(Text.of(one).stem) for one in texts)
        return bool(self.directions) or self.temperature != 1 or not plain

    def between(self, text: str = "", to: str | None = None) -> tuple[str, str]:
        """Source and target language of a split or text, or of all (into `to`), joined by "+"."""
        split = text in ("train", "valid", "test")
        texts = list(map(Text.of, getattr(self, text) if split else (text,)))
        given = [one.direction for one in texts]
        into = [one for one in self.directions if not text and one.endswith(f"-{to}")]  # of lines
        directions = given if given and all(given) else into or self.directions
        if not directions:
            tag = to or "+".join({one.tag for one in texts})
            # Lines are wanted in `to`, unless it is a mark of the run's text, such as bt. A mark
            # names a language if the target is one of several.
            is_asked = tag == to and code(tag) not in self.codes
            is_several = not LANGUAGE.fullmatch(self.tgt) or self.tgt in SEVERAL
            is_language = LANGUAGE.fullmatch(tag) and (is_asked or is_several)
            return self.src, tag if is_language else self.tgt
        src, tgt = zip(*(one.split("-") for one in directions), strict=True)
        return "+".join(dict.fromkeys(src)), "+".join(dict.fromkeys(tgt))

    def train_pairs_in(self, stems: tuple[str, ...]) -> tuple[str, str] | None:
        """The first stem of `train` and of `stems` that share pairs; None: there are none."""
        for pair in itertools.product(self.train, stems):
            if overlap(*(Text.of(one).stem for one in pair)):
                return pair
        return None

    def problems(self) -> Iterator[str]:
        """What is wrong with these keys together: a sentence each."""
        if self.source in ("files", "parquet") and not self.path:
            yield (
                f"data.path is not set, and data.source={self.source!r} needs the folder of the "
                "files: add --config.data.path=FOLDER."
            )
        if self.source == "tfds" and not self.name:
            fix = "add --config.data.name=wmt14_translate/de-en, for example."
            yield f"data.name is not set, and data.source='tfds' needs a data set: {fix}"
        yield from self._wrong_directions() if self.directions else self._wrong_languages()
        if not self.train:
            yield "data.train is empty: name a split or file stem, such as ('train',)."
        for name in ("train", "valid", "test"):
            stems = getattr(self, name)
            if name != "train" and len(set(stems)) < len(stems):
                yield f"data.{name}={','.join(stems)} names a text twice: its lines count twice."
            for stem in stems:
                yield from (f"data.{name}={stem}: {wrong}" for wrong in self._wrong(name, stem))
        if shared := self.train_pairs_in(self.valid or ("valid",)):
            yield (
                f"data.train={shared[0]!r} and the validation text {shared[1]!r} share pairs. Name "
                "text on which the model is not trained: data.valid."
            )
        if self.temperature != 1 and len(self.train) * max(1, len(self.directions)) < 2:
            yield f"data.temperature={self.temperature} has nothing to mix: data.train is one text."
        if self.context and ("," in self.src or not self.src) and not self.directions:
            yield (
                f"data.context={self.context} and data.src={self.src!r} do not go together: the "
                "sentences before are of one source language. Leave one of them out."
            )
        if self.src_kind != "text" and "," in self.src:
            yield (
                f"data.src={self.src!r} and data.src_kind={self.src_kind!r} do not go together: "
                "several sources are text. Leave one of them out."
            )
        if self.codes and self.alignments:
            yield (
                f"data.alignments=True does not go with {self.codes[0]}, which begins source "
                "lines: links count words without it. Leave one of them out."
            )

    def _wrong_languages(self) -> Iterator[str]:
        names = self.languages
        if self.source == "grammar" and sorted(filter(None, names)) not in GRAMMAR:
            yield (
                f"data.src={self.src!r}, data.tgt={self.tgt!r}: the built-in corpus is in 'en' and "
                "'de'. Use these, or data.source='files'."
            )
        elif any(name != name.strip() for name in names):
            yield f"data.src={self.src!r}, data.tgt={self.tgt!r}: leave the spaces out."
        elif not all(names) or len(set(names)) < len(names) or "," in self.tgt:
            yield (
                f"data.src={self.src!r}, data.tgt={self.tgt!r} must be two different suffixes, "
                "such as 'en' and 'de'. For two sources and a target: 'de,fr' and 'en'."
            )

    def _wrong_directions(self) -> Iterator[str]:
        for one in self.directions:
            found = DIRECTION.fullmatch(one)
            if found is None or found[1] == found[2]:
                yield f"data.directions holds {one!r}: expected SRC-TGT, such as en-de."
            elif self.source == "grammar" and {found[1], found[2]} != {"en", "de"}:
                yield f"data.directions holds {one!r}: the built-in corpus is in 'en' and 'de'."
        known = {name for one in self.directions for name in one.split("-")}
        for name in ("src", "tgt"):
            value, default = getattr(self, name), getattr(DataConfig, name)
            if value != default and not known.issuperset(value.split(",")):
                yield f"data.{name}={value!r} changes nothing beside data.directions. Leave it out."
        own = {Text.of(one).direction for one in self.train}
        for one in sorted({*self.directions} - own) if own and all(own) else ():
            yield f"data.directions: no text of data.train has {one}. Name one, or leave it out."
        if len(set(self.directions)) < len(self.directions):
            yield "data.directions names a direction twice: give one of its texts a weight."

    def _wrong(self, split: str, given: str) -> Iterator[str]:
        text = Text.of(given)
        if not given or "," in given:
            yield (
                f"{given!r} names no split or file. For several: --config.data.{split}=A,B, or "
                "('A', 'B') in a config file."
            )
        if text.weight != 1 and split != "train":
            yield "a weight is for training text. Leave it out."
        if not text.weight:
            yield "the weight 0 leaves the text out. Do not name it."
        if text.weight > MOST_TIMES:
            yield f"the weight {text.weight:g} is above {MOST_TIMES}. Lower the others instead."
        if text.tag and not (self.sources and self.src_kind == "text"):
            yield "a tag begins a source line of text, and there is none. Leave it out."
        if text.tag and split != "train" and code(text.tag) not in self.codes:
            yield f"no text of data.train has the tag {text.tag}, so the model does not know it."
        if text.tag and text.tag in self.targets:
            yield f"the tag {text.tag} is also a target language. Give it another name."
        if text.direction and not self.directions:
            yield f"name its direction in data.directions too: {text.direction}."
        elif text.direction and split == "train" and text.direction not in self.directions:
            yield f"its direction is none of data.directions={','.join(self.directions)}."
        elif text.direction and text.direction.partition("-")[2] not in self.targets:
            yield f"the model learns no such target: data.directions={','.join(self.directions)}."
        if self.source == "grammar" and text != Text(text.stem):
            yield "the built-in corpus is one text. Leave direction, tag and weight out."
