"""Shared by all exporters: the model to write, and the check of what a format cannot hold."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.config.schema import KEYS, Config
from transformer_jax.config.texts import code
from transformer_jax.errors import UserError
from transformer_jax.text.vocabulary import TableVocabulary, Vocabulary

LEAST_POSITIONS = 1_024  # an engine gets at least these; it refuses longer sentences
# Keys that every format expresses; `require_supported` refuses some values of three of them.
EXPRESSED = frozenset(
    "num_layers num_encoder_layers num_decoder_layers d_model num_heads num_key_heads d_k d_v d_ff "
    "dropout attention_dropout activation_dropout norm_epsilon attention_bias max_positions "
    "tie_embeddings tie_output output_bias dtype residual_dtype attention_kernel watched_layer "
    "watched_heads".split()
)
# Keys of encoders and decoders that no format has; nothing else reads them.
OF_OTHER_PARTS = frozenset({"d_hidden", "kernel_width"})


class Exported(NamedTuple):
    """A run's model, as an export needs it."""

    config: Config
    params: Any  # NumPy arrays
    vocabulary: Vocabulary
    banned: tuple[int, ...]  # ids that are never generated
    # What an engine aligns by: a layer and its head (None: the mean of its heads), from 0.
    aligner: tuple[int, int | None] | None = None  # None: model.watched_layer

    @property
    def pieces(self) -> tuple[list[str], list[str]]:
        """The pieces of source and target by id."""
        both = self.vocabulary, self.vocabulary.target
        source, target = (side.pieces(range(side.size)) for side in both)
        return source, target

    @property
    def positions(self) -> int:
        """How many positions the engine should know."""
        decode = self.config.decode
        return max(LEAST_POSITIONS, decode.max_length + decode.max_extra_length + 1)

    @property
    def is_pre_norm(self) -> bool:
        """Whether norms are before sub-layers; then one more follows the last layer of a stack."""
        return "encoder_norm" in self.params

    @property
    def before_subwords(self) -> dict[str, Any]:
        """What happens to a source line before it is split into subwords."""
        own = self.vocabulary
        language = own.bundle.languages[0] if isinstance(own, TableVocabulary) else ""
        codes = {"language_codes": own.reads_codes, "unknown_codes": own.reads_unknown_codes}
        targets = [code(one) for one in self.config.data.targets]
        to = self.config.decode.to
        return {"punctuation": language, "targets": targets, "to": to and code(to), **codes}

    def write_sentencepiece(self, folder: Path) -> None:
        """Writes the SentencePiece models source.spm and target.spm; one model serves as both."""
        own = self.vocabulary
        models = own.bundle[:2] if isinstance(own, TableVocabulary) else (own.model, own.model)
        for name, model in zip(("source.spm", "target.spm"), models, strict=True):
            (folder / name).write_bytes(model)


def require_supported(config: Config, supported: Mapping[str, Sequence[Any]], what: str) -> None:
    """Refuses a model that a format cannot express: other engines would ignore what they lack.

    Args:
      config: the run's.
      supported: by key of the model, the values that the format has. A key that is neither here
        nor in EXPRESSED must have its default.
      what: the format's name.

    Raises:
      UserError: it names each key whose value the format cannot express.
    """
    wrong = []
    for field in dataclasses.fields(config.model):
        name, value = f"model.{field.name}", getattr(config.model, field.name)
        # Whether only a part of the model reads the key, which no format has.
        of_a_part = any(setting.startswith("model.") for setting in KEYS[name].read_with)
        if field.name not in EXPRESSED | OF_OTHER_PARTS and not of_a_part:
            if value not in supported.get(field.name, (field.default,)):
                wrong.append(f"{name}={value!r}")
    d_k, d_v = config.model.head_sizes
    if d_v != d_k:
        wrong.append(f"model.d_v={d_v} that is not model.d_k={d_k}")
    if config.model.key_heads != config.model.num_heads:
        wrong.append(f"model.num_key_heads={config.model.num_key_heads}")
    if not config.model.d_ff:
        wrong.append("model.d_ff=0")
    if wrong:
        raise UserError(f"{what} cannot express {', '.join(wrong)}.")
