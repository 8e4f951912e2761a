"""Labelled texts in files of people's own: what is read is what was meant, or the line that cannot be used is named."""

import json
import logging
from collections import Counter

import pytest
from stoker.engine.errors import UsageError
from stoker.runners.backbones.pretrained import load_llm
from stoker.runners.prompts.labelled_files import samples_of
from stoker.runners.prompts.labelled_samples import load_samples
from stoker.runners.texts import split_by_class


def written(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def lines(*rows):
    return "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)


def row(text, label):
    return {"text": text, "label": label}


PAIR = [("one", "a"), ("two", "b")]


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("x.csv", "text,label\none,a\ntwo,b\n", PAIR),
        ("x.csv", "\ufefftext,label\r\none,a\r\ntwo,b\r\n", PAIR),
        ("x.csv", "text,label\rone,a\rtwo,b", PAIR),
        ("x.csv", "\ntext, label\n\none , a\n\ntwo, b \n", PAIR),
        ("x.CSV", "id,label,text\n1,a,one\n2,b,two\n", PAIR),
        ("x.csv", "text,label\none,a,\ntwo,b, ,\n", PAIR),
        ("x.csv", 'text,label\n"one,\n""1""",a\nthe 5" pipe,b\n', [('one,\n"1"', "a"), ('the 5" pipe', "b")]),
        ("x.jsonl", lines(row("one", "a"), "", row("two", "b")), PAIR),
        ("x.jsonl", "\ufeff" + lines(row("one", "a"), row("two", "b")).replace("\n", "\r\n"), PAIR),
        ("x.jsonl", lines(row("one", 1), row("two", 1.0), row("three", "1"), row(4, True)),
         [("one", "1"), ("two", "1"), ("three", "1"), ("4", "True")]),
        ("x.jsonl", '{"text": "one\u2028\x85more", "label": "a"}\n{"text": "\\ud83d\\ude00", "label": 0.5}',
         [("one\u2028\x85more", "a"), ("\U0001f600", "0.5")]),
        ("x.jsonl", lines({"text": "one", "label": "a", "extra": [1, {"text": 2}]}), [("one", "a")]),
        ("x.csv", "text,label\nthe same,a\nthe same ,a\n", [("the same", "a"), ("the same", "a")]),
    ],
)  # fmt: skip
def test_a_file_is_read_as_it_is_meant(tmp_path, name, content, rows):
    assert samples_of(written(tmp_path, name, content)) == rows


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        # a cell too many would shift the label
        ("x.csv", "text,label\nfine,a\nhello, world,b\nbye,b\none, two, three,b\n",
         "x.csv, line 3 has 3 cells, the first line 2; a text with a comma stands in quotes; 2 lines cannot be used"),
        # lines are counted where cells have several
        ("x.csv", 'text,label\n"one\ntwo\nthree",a\n\n"four\nfive"\n', "x.csv, line 6 has no label; each sample is"),
        ("x.csv", 'text,label\nfine,a\n"never closed,a\nmore,b\n', "x.csv, line 3 is not CSV: unexpected end of data"),
        ("x.csv", 'text,label\nfine,a\n"quoted" and more,a\n', "x.csv, line 3 is not CSV: ',' expected after '\"'"),
        ("x.csv", "text,label\nfine,a\n" + "x" * 200_000 + ",a\n", "x.csv, line 3 is not CSV: field larger than field limit"),
        ("x.csv", "text,label\nfine,a\n ,a\nbye,\n  , \n", "x.csv, line 3 has no text; each sample is .*; 3 lines cannot be used"),
        ("x.csv", "text;label\none;a\n", "x.csv has no column 'text'; its first line names text;label; cells are separated by commas"),
        ("x.csv", "text\tlabel\none\ta\n", "x.csv has no column 'text'; .* cells are separated by commas"),
        ("x.csv", "text,label,label\none,a,b\n", "x.csv has two columns 'label'; its first line names text, label, label"),
        ("x.csv", "one,a\ntwo,b\n", "x.csv has no column 'text'; its first line names one, a"),
        ("x.csv", "text,label\nfine,a\nna\u00efve,b\n".encode("latin-1"),
         r"x.csv, line 3 is not text in UTF-8 \(byte 0xef\); save the file as UTF-8"),
        ("x.csv", "text,label\none\0,a\n", "x.csv, line 2 has a NUL character in its text"),
        ("x.jsonl", lines(row("one", "a"), row("two", None), row("three", ["b"]), {"label": "b"}, "{", row("five", " ")),
         "x.jsonl, line 2 has no label; each sample is .*; 5 lines cannot be used"),
        ("x.jsonl", lines(row("one", ["a", "b"])), "x.jsonl, line 1 has no label but a list or a mapping"),
        ("x.jsonl", '{"text": "one", "label": NaN}', "x.jsonl, line 1 has no label"),
        ("x.jsonl", '{"text": "one", "label": "a", "label": "b"}', "x.jsonl, line 1 has two values of 'label'"),
        ("x.jsonl", '{"text": "one", "label": "a"}\n{"text": "half \\ud800", "label": "b"}',
         r"x.jsonl, line 2 has half a character \(.*lone surrogate\) in its text; write the whole one"),
        ("x.jsonl", '{"text": "one", "label": "\\udfff"}', "x.jsonl, line 1 has half a character .* in its label"),
        ("x.jsonl", "[" * 100_000, "x.jsonl, line 1 is not JSON"),
        # two labels of one text, and two ways to write one label
        ("x.csv", "text,label\none,a\ntwo,a\none,b\ntwo ,b\none,c\n",
         "x.csv, line 4 has the label 'b' for the text of line 2, which has 'a' there; 2 texts have two labels or more: keep one of each"),
        ("x.jsonl", lines(row("one", 1), row("one", 2)),
         "x.jsonl, line 2 has the label '2' for the text of line 1, .*; 1 text has two labels or more"),
        ("x.csv", "text,label\none,Spam\ntwo,ham\nthree,spam\nfour,spam\n",
         r"the labels 'Spam' \(1 samples, the first in line 2\) and 'spam' \(2 samples, the first in line 4\) differ by capitals"),
        ("x.csv", "text,label\none,not  spam\ntwo,not spam\n", "'not  spam' .* and 'not spam' .* differ by capitals or blanks only"),
    ],
)  # fmt: skip
def test_what_would_be_trained_as_something_else_is_refused_with_its_line(tmp_path, name, content, message):
    with pytest.raises(UsageError, match=message) as raised:
        samples_of(written(tmp_path, name, content))
    assert str(raised.value).startswith("params.data: ") and "\n" not in str(raised.value)
    str(raised.value).encode()


def test_of_each_class_a_fifth_is_held_out():
    counts = {"two": 2, "nine": 9, "ten": 10, "hundred": 100}
    rows = [(f"{label} {number}", label) for label, count in counts.items() for number in range(count)]
    texts = split_by_class(rows + rows[:7])
    assert texts.classes == tuple(sorted(counts))
    held_out = Counter(texts.classes[label] for _, label in texts.held_out)
    assert held_out == {"two": 1, "nine": 1, "ten": 2, "hundred": 20}
    assert sorted(texts.train + texts.held_out) == sorted((text, texts.classes.index(label)) for text, label in rows)
    assert texts == split_by_class(reversed(rows))
    assert texts.train[:10] != sorted(texts.train)[:10]


@pytest.mark.parametrize(("classes", "each"), [(10, 10), (26, 2), (2, 2)])
def test_few_samples_of_each_label_are_enough(tmp_path, classes, each):
    rows = [row(f"text {label} {number}", f"label {label}") for label in range(classes) for number in range(each)]
    samples = load_samples(load_llm("tiny"), str(written(tmp_path, "x.jsonl", lines(*rows))), max_tokens=32)
    assert len(samples.train) + len(samples.held_out) == classes * each
    for part in (samples.train, samples.held_out):
        assert set(part.labels) == set(range(classes))


def test_what_is_left_out_is_told(tmp_path, caplog):
    rows = [row(f"text {number}", "rare" if number < 5 else "common") for number in range(100)]
    path = written(tmp_path, "x.jsonl", lines(*rows, *rows[:3]))
    with caplog.at_level(logging.INFO):
        samples = load_samples(load_llm("tiny"), str(path), max_tokens=32)
    assert "x.jsonl has 3 samples more than once; each counts once" in caplog.text
    assert "8 of 80 samples are tuned on, as many of each label (balance: false takes all)" in caplog.text
    assert Counter(samples.train.labels) == {0: 4, 1: 4}
    with pytest.raises(UsageError, match=r"has one sample of 'c' and of 1 more labels; bring two or more of each label"):
        load_samples(load_llm("tiny"), str(written(tmp_path, "y.jsonl", lines(*rows, row("x", "c"), row("y", "d")))), max_tokens=32)
    with pytest.raises(UsageError, match=r"all samples of .* have the label 'c'"):
        load_samples(load_llm("tiny"), str(written(tmp_path, "z.jsonl", lines(row("x", "c")))), max_tokens=32)
