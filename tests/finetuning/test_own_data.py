"""Data of one's own: columns by any name, Parquet beside CSV and JSONL, a file that is held out; pictures in folders, or listed."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import duckdb
import numpy as np
import pytest
import torch
from PIL import Image
from stoker.engine.errors import StokerError, UsageError
from stoker.engine.spec.model import Memory
from stoker.runners.prompts.labelled_files import ColumnNames, read_labelled, samples_of
from stoker.runners.recipes.pictures import picture
from tiny_models import build, same, trainer, weights

pytestmark = pytest.mark.xdist_group("tiny models")
NAMED = ColumnNames("review", "is it good")
ROWS = [(f"text {number}", "yes" if number % 2 else "no") for number in range(20)]


def parquet(path, rows, columns=NAMED):
    values = ", ".join(f"({text}, {label})" for text, label in rows)
    named = f'"{columns.text}", "{columns.label}"'
    duckdb.sql(f"COPY (SELECT * FROM (VALUES {values}) rows({named})) TO '{path}' (FORMAT parquet)")
    return path


def written(folder, kind):
    path = folder / f"rows.{kind}"
    if kind == "csv":
        path.write_text("number,is it good,review\n" + "".join(f"{n},{label},{text}\n" for n, (text, label) in enumerate(ROWS)))
    elif kind == "jsonl":
        path.write_text("\n".join(json.dumps({"review": text, "is it good": label, "other": [1]}) for text, label in ROWS))
    else:
        parquet(path, [(f"'{text}'", f"'{label}'") for text, label in ROWS])
    return path


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_columns_have_any_names_in_any_kind_of_file(kind, tmp_path):
    assert samples_of(written(tmp_path, kind), NAMED) == ROWS


def test_numbers_and_dates_of_a_parquet_file_are_labels_as_they_are_in_others(tmp_path):
    path = parquet(tmp_path / "x.parquet", [("'a'", "1"), ("'b'", "2")])
    assert samples_of(path, NAMED) == [("a", "1"), ("b", "2")]
    path = parquet(tmp_path / "y.parquet", [("'a'", "DATE '2026-11-28'"), ("'b'", "NULL")])
    with pytest.raises(UsageError, match=r'params.data: y.parquet, row 2 has no is it good; each sample is {"review": …, "is it good": …}'):
        samples_of(path, NAMED)


def test_a_file_that_is_held_out_is_held_out_as_a_whole(tmp_path, caplog):
    (tmp_path / "held.jsonl").write_text(
        "\n".join(json.dumps({"review": text, "is it good": label}) for text, label in [*ROWS[:3], ("new", "no")])
    )
    found = read_labelled(str(written(tmp_path, "csv")), columns=NAMED, held_out=str(tmp_path / "held.jsonl"))
    assert len(found.train) == 20 and sorted(found.held_out) == [("new", 0), ("text 0", 0), ("text 1", 1), ("text 2", 0)]
    assert "3 of the samples that are held out are trained on too" in caplog.text


@pytest.mark.parametrize(
    ("name", "content", "given", "line"),
    [
        ("x.csv", "review,label\na,b\n", {}, r"params.data: x.csv has no column 'is it good'; its first line names review, label"),
        ("x.parquet", b"PAR1 nonsense", {}, r"params.data: x.parquet cannot be read as Parquet: "),
        ("x.txt", "", {}, r"give FILE.csv, FILE.jsonl or FILE.parquet"),
        ("x.parquet", None, {}, r"params.data: .*x.parquet cannot be read: No such file"),
        ("x.csv", "review,is it good\na,yes\nb,no\na,yes\n", {"held_out": "y.jsonl"}, r"params.held_out: y.jsonl has the label 'maybe'"),
        ("x.csv", "review,is it good\na,yes\nb,no\n", {"held_out": "z.jsonl"}, r"params.held_out: .*z.jsonl cannot be read: No such file"),
        ("x.csv", "review,is it good\na,yes\nb,no\n", {"held_out": "empty.csv"}, r"params.held_out: empty.csv has no column"),
        ("x.csv", "review,is it good\na,yes\nb,no\n", {"columns": ColumnNames("review", "review")}, r"params.label_column: 'review' is"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_told_by_file_and_line(name, content, given, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("y.jsonl").write_text(json.dumps({"review": "c", "is it good": "maybe"}))
    Path("empty.csv").write_text("")
    if content is not None:
        (Path(name).write_bytes if isinstance(content, bytes) else Path(name).write_text)(content)
    with pytest.raises(StokerError, match=line) as told:
        read_labelled(name, str(tmp_path), **{"columns": NAMED, **given})
    assert "\n" not in str(told.value)


def test_a_parquet_file_without_a_column_says_which_there_are(tmp_path):
    with pytest.raises(UsageError, match=r"params.data: rows.parquet has no column 'text'; there are review, is it good"):
        samples_of(written(tmp_path, "parquet"))


def test_recipes_take_them(model_of, tmp_path):
    path = written(tmp_path, "parquet")
    for recipe, model in (("text-classifier", "bert"), ("prompt-tune", "llama")):
        task = build(recipe, model_of(model), data=str(path), text_column="review", label_column="is it good")
        assert len(task.train) == 16


# ---- pictures ----


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Bright and dark pictures of several forms."""
    folder = tmp_path_factory.mktemp("pictures")
    draw = np.random.default_rng(0)
    for name, low in (("bright", 150), ("dark", 0)):
        (folder / name).mkdir()
        for number in range(10):
            pixels = draw.integers(low, low + 100, (20 + number, 30, 3), dtype=np.uint8)
            Image.fromarray(pixels).convert("L" if number == 3 else "RGB").save(
                folder / name / f"{number}.{'png' if number % 2 else 'jpg'}"
            )
    (folder / "list.csv").write_text(
        "file,label\n" + "".join(f"{name}/{n}.{'png' if n % 2 else 'jpg'},{name}\n" for name in ("bright", "dark") for n in range(10))
    )
    return folder


PICTURES = [
    ("vit", {}),
    ("vit", {"layers": "all"}),
    ("vit", {"petl": "lora", "lr": 1e-2}),
    ("convnext", {"layers": "all"}),
    ("resnet", {"layers": "all"}),
    ("convnext", {"petl": "lora", "lr": 1e-2}),
]


@pytest.mark.parametrize(("model", "params"), PICTURES)
@pytest.mark.sampled(3)
def test_pictures_are_learnt_and_a_training_resumes_to_the_last_bit(model, params, folder, model_of, tmp_path, monkeypatch):
    from stoker.runners.worker import script

    def made(where):
        return trainer(build("image-classifier", model_of(model), data=str(folder), **params), tmp_path / where)

    whole = made("whole")
    before = weights(whole)
    assert whole.run() and not same(before, weights(whole))
    first = made("parts")
    monkeypatch.setattr(script, "should_stop", lambda: first.step == 2)
    assert not first.run()
    monkeypatch.undo()
    second = made("parts")
    assert second.step == 2 and second.run() and same(weights(whole), weights(second))
    assert (whole.checkpoints.path / "adapter" / "adapter_config.json").exists() == ("petl" in params)


def test_it_answers_with_the_class_of_a_picture_that_is_sent(folder, model_of):
    task = build("image-classifier", model_of("vit"), data=str(folder))
    names = [name for name, _ in task.train.rows[:3]]
    sent = [task.prepare(base64.b64encode((folder / name).read_bytes()).decode()) for name in names]
    assert all(torch.equal(image, task.train[number][0]) for number, image in enumerate(sent))
    task.model.eval()
    with torch.no_grad():
        expected = task.model(torch.stack(sent)).softmax(1)
        answers = task.answer(task.model, sent)
    labels = sorted(each.name for each in folder.iterdir() if each.is_dir())
    assert [answer["label"] for answer in answers] == [labels[number] for number in expected.argmax(1).tolist()]
    assert [answer["probability"] for answer in answers] == expected.max(1).values.tolist()
    for wrong, said in (
        (7, "in base64, not int"),
        ("no picture!", "in base64, as 'base64 -w0 FILE'"),
        ("bm8gcGljdHVyZQ==", "the request cannot be read"),
    ):
        with pytest.raises(UsageError, match=said):
            task.prepare(wrong)


def test_in_parts_it_is_the_plain_training_to_the_bit(folder, model_of, tmp_path):
    plain, swapped = (
        trainer(build("image-classifier", model_of("vit"), data=str(folder), layers="all"), tmp_path / name, memory=memory)
        for name, memory in (("plain", Memory(swap="off", accumulate=2)), ("parts", Memory(cap=460 << 10, accumulate=2)))
    )
    assert plain.run() and swapped.run()
    assert same(weights(plain), weights(swapped))


def test_a_list_of_pictures_is_as_a_folder_of_them(folder, model_of):
    listed, found = (build("image-classifier", model_of("vit"), data=str(path)) for path in (folder / "list.csv", folder))
    assert [listed.train.rows[n] for n in range(16)] == [found.train.rows[n] for n in range(16)]
    assert torch.equal(listed.train[3][0], found.train[3][0])
    held = build("image-classifier", model_of("vit"), data=str(folder), held_out=str(folder))
    assert len(held.train) == 20


def test_the_middle_of_a_picture_is_seen_and_its_shorter_side_fits(tmp_path):
    pixels = np.zeros((10, 30, 3), dtype=np.uint8)
    pixels[:, 10:20] = 255
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    assert picture(tmp_path / "wide.png", 10, "RGB").eq(255).all()
    assert picture(tmp_path / "wide.png", 20, "L").shape == (1, 20, 20)


def test_what_is_no_picture_is_named(folder, model_of, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with pytest.raises(UsageError, match=r"params.data: .*/a has no pictures \(.jpg, "):
        build("image-classifier", model_of("vit"), data=str(tmp_path))
    for name in ("a", "b"):
        for number in range(3):
            (tmp_path / name / f"{number}.png").write_bytes(b"no picture")
    task = build("image-classifier", model_of("vit"), data=str(tmp_path))
    with pytest.raises(UsageError, match=r"params.data: .*png cannot be read as a picture: "):
        task.train[0]
    (tmp_path / "list.csv").write_text("file,label\na/0.png,a\na/9.png,a\nb/0.png,b\nb/1.png,b\n")
    with pytest.raises(UsageError, match=r"params.data: list.csv names the picture a/9.png, and there is no .*/a/9.png"):
        build("image-classifier", model_of("vit"), data=str(tmp_path / "list.csv"))
    with pytest.raises(UsageError, match=r"params.data: .*nowhere does not exist; give a folder with a folder of pictures for each class"):
        build("image-classifier", model_of("vit"), data=str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match=r"backbone: .* is an encoder \(bert\); image-classifier takes a model of pictures"):
        build("image-classifier", model_of("bert"), data=str(folder))
    with pytest.raises(UsageError, match=r"params.petl: a prompt is for models that read texts; give lora or adapter"):
        build("image-classifier", model_of("vit"), data=str(folder), petl="prompt")


@pytest.mark.nightly
@pytest.mark.parametrize("params", [{"layers": "last"}, {"petl": "lora"}])
def test_a_model_of_timm_where_that_is_installed(params, folder, tmp_path):
    timm = pytest.importorskip("timm")
    from safetensors.torch import save_file

    given = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 3, "num_heads": 2}
    path = tmp_path / "vit"
    path.mkdir()
    save_file(timm.create_model("vit_tiny_patch16_224", **given).state_dict(), path / "model.safetensors", metadata={"format": "pt"})
    seen = {"input_size": [3, 32, 32], "mean": [0.4, 0.4, 0.4], "std": [0.2, 0.2, 0.2]}
    config = {"architecture": "vit_tiny_patch16_224", "num_classes": 1000, "pretrained_cfg": seen, "model_args": given}
    (path / "config.json").write_text(json.dumps(config))
    trained = trainer(build("image-classifier", path, data=str(folder), lr=1e-2, **params), tmp_path, steps=12)
    assert trained.run() and trained.task.train[0][0].shape == (3, 32, 32)
    assert trained.model.mean.flatten().tolist() == pytest.approx([0.4] * 3)
