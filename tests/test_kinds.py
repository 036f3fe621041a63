"""A run of the other kind of model, through every command."""

from tests.tiny_runs import command, metrics, read_lines, tiny_corpus, train, train_in_process
from transformer_jax.tables.experiment import Job, Scale
from transformer_jax.tables.results import hypotheses as hypotheses_of

SETTINGS = {
    **{"model__kind": "recurrent", "model__d_hidden": 24, "train__steps": 12},
    **{"train__valid_every": 6, "train__checkpoint_every": 4, "train__remat": True},
}


def test_a_recurrent_run_goes_through_every_command(tmp_path, capsys):
    folder = tmp_path / "run"
    assert train(folder, **SETTINGS) == 0
    assert train(folder, **{**SETTINGS, "train__steps": 16}) == 0  # resumes
    assert metrics(folder)[-1]["step"] == 16
    assert command("average", f"--workdir={folder}", "--last=2") == 0
    for search in (["--beam_size=1"], ["--beam_size=3", "--checkpoint=average"]):
        capsys.readouterr()
        assert command("evaluate", f"--workdir={folder}", *search) == 0
        assert "BLEU" in capsys.readouterr().out
    hypotheses = sorted((folder / "evaluations").glob("*.txt"))
    assert [path.name for path in hypotheses] == ["test.16-last2.beam3.txt", "test.16.beam1.txt"]
    sources = (tiny_corpus() / "test.en").read_text().splitlines()
    assert [len(path.read_text().splitlines()) for path in hypotheses] == [len(sources)] * 2
    job = Job("any", "any", 0, Scale("configs/demo.py", average=2), {"train.steps": 16}, folder)
    beam_of_3 = job._replace(overrides={"train.steps": 16, "decode.beam_size": 3})
    assert hypotheses_of(beam_of_3) == read_lines(hypotheses[0])
    capsys.readouterr()
    picture = tmp_path / "attention.png"
    assert command("attention", f"--workdir={folder}", f"--output={picture}", sources[0]) == 2
    assert "of a Transformer alone" in capsys.readouterr().err and not picture.exists()


def test_the_kind_is_part_of_what_a_run_is(tmp_path, capsys):
    assert train(tmp_path / "run", train__steps=1, train__checkpoint_every=1) == 0
    capsys.readouterr()
    assert train(tmp_path / "run", train__steps=2, model__kind="recurrent") == 2
    assert "model.kind" in capsys.readouterr().err
    assert train(tmp_path / "other", model__kind="recurent") == 2
    assert "Did you mean 'recurrent'?" in capsys.readouterr().err


def test_a_recurrent_run_is_the_same_on_four_devices(tmp_path):
    assert train(tmp_path / "one", **SETTINGS) == 0
    four = "--xla_force_host_platform_device_count=4"
    mesh = {"mesh__fsdp": 2, "mesh__tensor": 2}
    process = train_in_process(tmp_path / "four", tmp_path / "log", four, **SETTINGS, **mesh)
    process.join()
    assert process.exitcode == 0, (tmp_path / "log").read_text()
    for one, other in zip(metrics(tmp_path / "one"), metrics(tmp_path / "four"), strict=True):
        assert abs(one["nats_per_token"] - other["nats_per_token"]) < 1e-4
