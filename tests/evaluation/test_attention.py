"""The attention that is drawn is that of the model while it says the translation."""

import numpy as np
import pytest

from tests import runs
from transformer_jax.decoding.translate import LineTranslator, load_model
from transformer_jax.evaluation.attention import CrossAttention, cross_attention

SOURCE = "The old man bought a car."


def test_the_command_says_the_translation_and_draws_it(tmp_path, capsys):
    drawn = tmp_path / "heat.png"
    flags = [f"--workdir={runs.trained_run()}", f"--sentence={SOURCE}", f"--output={drawn}"]
    assert runs.command("attention", *flags) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("translation ") and out[1] == f"attention   {drawn}"
    assert drawn.read_bytes().startswith(b"\x89PNG")


def test_weights_are_a_distribution_over_the_source_and_causal_in_the_target():
    loaded = load_model(str(runs.trained_run()))

    def said(translation: str) -> CrossAttention:
        [source, target] = LineTranslator(loaded.vocabulary, loaded.translator).encode(
            [SOURCE, translation]
        )
        return cross_attention(loaded, source, target)

    found = said("Der alte Mann .")
    shape = (1, 2, len(found.tgt_pieces), len(found.src_pieces))
    assert found.weights_NHLM.shape == shape
    np.testing.assert_allclose(found.weights_NHLM.sum(-1), 1, atol=1e-5)
    assert found.src_pieces[-1] == found.tgt_pieces[-1] == "</s>"
    assert loaded.vocabulary.decode(loaded.vocabulary.encode(SOURCE)) == SOURCE
    # The row of a subword does not depend on what is said from it on: it sees what is before it.
    other = said("Der alte Mann !")
    same = next(
        i
        for i, (a, b) in enumerate(zip(found.tgt_pieces, other.tgt_pieces, strict=False))
        if a != b
    )
    assert same > 2
    np.testing.assert_allclose(
        found.weights_NHLM[:, :, : same + 1], other.weights_NHLM[:, :, : same + 1], atol=1e-6
    )
    assert np.abs(found.weights_NHLM[:, :, 0] - found.weights_NHLM[:, :, 1]).max() > 1e-4


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--layer=2", "--sentence=x"], "--layer=2: this model's decoder has layers 1 to 1"),
        (["--layer=0", "--sentence=x"], "--layer=0: this model's decoder has layers 1 to 1"),
        (["--sentence= "], "--sentence is blank"),
        (["--sentence=x", "--output=no/such/folder/x.png"], "its folder is not there"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(flags, said, tmp_path, capsys):
    common = [f"--workdir={runs.trained_run()}", f"--output={tmp_path}/x.png"]
    assert runs.command("attention", *common, *flags) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
