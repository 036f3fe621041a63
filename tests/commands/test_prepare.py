"""The `prepare` command prepares a TFDS data set, and refuses any other corpus."""

from tests import tiny_runs as runs
from transformer_jax.text import tfds_corpus


def prepare(tmp_path, **data: str) -> int:
    values = {f"data.{key}": value for key, value in data.items()}
    preset = runs.write_preset(tmp_path / "preset.py", values)
    return runs.command("prepare", f"--config={preset}")


def test_the_data_set_is_prepared_and_standard_output_stays_empty(
    tmp_path, monkeypatch, capsys, caplog
):
    asked = []

    def folder_of(data):
        asked.append((data.name, data.tgt))
        return "/tfds/wmt14_translate"

    monkeypatch.setattr(tfds_corpus, "prepare", folder_of)
    with caplog.at_level("INFO"):
        assert prepare(tmp_path, source="tfds", name="wmt14_translate/fr-en", tgt="fr") == 0
    assert asked == [("wmt14_translate/fr-en", "fr")]
    assert "wmt14_translate/fr-en is prepared in /tfds/wmt14_translate" in caplog.text
    assert capsys.readouterr().out == ""
