"""The bank in a job: used where there is time, its choice kept for later attempts, and one clear line where it cannot be used."""

import json

import numpy as np
import pytest
import torch
from stoker.engine.errors import Conflict, NotFound, StokerError
from stoker.engine.home import Home
from stoker.engine.spec.model import JobSpec
from stoker.runners.backbones.pretrained import load_llm
from stoker.runners.lease.rundir import ENV_CHECKPOINTS, ENV_RUN_DIR
from stoker.runners.prompts import initial_prompt, soft_prompt
from stoker.runners.prompts.activations import features
from stoker.runners.prompts.initial_prompt import Beginning
from stoker.runners.prompts.labelled_samples import load_samples
from stoker.runners.prompts.prompt_score import score
from stoker.runners.train.batches import Interrupted
from stoker.runners.worker import script, worker

PROMPTS = [f"{verb} {what} {'now' * more}" for verb in ("sort", "find", "tell", "mark") for what in ("mails", "spam") for more in range(3)]
HERE = r"tiny@\w{12}"  #: the LLM, by its revision
MEDOID = [row // 6 * 6 for row in range(24)]  # four clusters of six


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def samples(tmp_path):
    rows = [f'{{"text": "note {number} {"zz" if number % 2 else "aa"}", "label": {number % 2}}}' for number in range(60)]
    (tmp_path / "mails.jsonl").write_text("\n".join(rows))
    return load_samples(load_llm("tiny"), str(tmp_path / "mails.jsonl"), max_tokens=24)


def write_bank(home, prompts=PROMPTS, medoid=MEDOID, llm="", place=()):
    tiny = load_llm("tiny")
    path = Home(home).bank(*(place or (tiny.name, tiny.revision, tiny.tokens)))
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = features(tiny, prompts)
    np.savez(path, prompts=np.array(prompts, dtype=str), features=rows, medoid=np.array(medoid, dtype=np.int32),
             ids=np.arange(100, 100 + len(prompts)), llm=llm or tiny.key, tokenizer=tiny.tokens)  # fmt: skip
    return path


class Clock:
    """Time passes by ``tick`` with each look."""

    def __init__(self, tick):
        self.now, self.tick = 1000.0, tick

    def __call__(self):
        self.now += self.tick
        return self.now


def beginning(samples, home, **options):
    return Beginning(load_llm("tiny"), samples, 8, 16, 0, home=home, **options)


@pytest.fixture
def reports(monkeypatch):
    told = []
    monkeypatch.setattr(script, "report", lambda **values: told.append(values))
    return told


def test_a_lookup_gives_the_best_prompt_of_the_best_cluster(tmp_path, samples, reports, caplog):
    caplog.set_level("INFO")
    write_bank(tmp_path)
    start = beginning(samples, tmp_path).start("bank", tmp_path / "checkpoints")
    scores = score(load_llm("tiny"), PROMPTS, samples.common(16, 0), samples.answers, length=8)
    cluster = min(range(0, 24, 6), key=lambda row: scores[row])
    best = min(range(cluster, cluster + 6), key=lambda row: scores[row])
    assert start.how["text"] == PROMPTS[best] and start.how["score"] == scores[best] and start.how["id"] == 100 + best
    assert torch.equal(start.vectors, soft_prompt.of_text(load_llm("tiny"), PROMPTS[best], 8))
    (told,) = reports
    assert (told["bank_used"], told["bank_scores"], told["bank_score"]) == (1.0, 4 + 5, scores[best])  # in place of 24
    assert "the bank is used: 9 of 24 prompts were scored in" in caplog.text


def test_a_tuned_prompt_begins_with_its_vectors_in_later_attempts_too(tmp_path, samples, reports):
    """Of two prompts with one text, one is tuned, and by its score it wins or loses: what is scored is its vectors."""
    llm = load_llm("tiny")
    draw = torch.Generator().manual_seed(3)
    tuned = [soft_prompt.of_text(llm, "tell spam", 8) + scale * torch.randn(8, 32, generator=draw) for scale in (0.5, 1.0, 2.0)]
    prompts = ["tell spam", *tuned]
    scores = score(llm, prompts, samples.common(16, 0), samples.answers, length=8)
    best = scores.index(min(scores))
    assert best > 0, "the draw has one that is better than the text"
    path = write_bank(tmp_path, ["tell spam"] * 4, [0] * 4)
    with np.load(path) as bank:
        arrays = dict(bank)
    np.savez(path, **arrays, vectors=torch.stack(tuned).numpy().ravel(), ends=np.array([0, 256, 512, 768]))
    first = beginning(samples, tmp_path).start("bank", tmp_path / "checkpoints")
    assert torch.equal(first.vectors, tuned[best - 1]) and first.how["score"] == scores[best] and "vectors" not in first.how
    path.unlink()
    again = beginning(samples, tmp_path).start("bank", tmp_path / "checkpoints")
    assert torch.equal(again.vectors, first.vectors) and again.how == first.how
    longer = Beginning(llm, samples, 20, 16, 0, home=tmp_path).start("bank", tmp_path / "checkpoints")
    assert torch.equal(longer.vectors, torch.cat([first.vectors] * 3)[:20]), "said again from its beginning, as a text is"


@pytest.mark.parametrize(("left", "used"), [(5 * 60, False), (110 / 0.2 - 2, False), (110 / 0.2 + 8, True)])
def test_a_bank_is_used_only_if_a_fifth_of_the_time_is_enough_for_its_longest_lookup(tmp_path, samples, reports, caplog, left, used):
    """110 scores at 1 s are more than 20 % of a deadline of 5 minutes: 4.5.2, whose printed condition is the opposite."""
    caplog.set_level("INFO")
    medoid = [row if row < 50 else 0 for row in range(110)]  # 50 representatives, and 60 more in the largest cluster
    write_bank(tmp_path, [f"prompt {row}" for row in range(110)], medoid)
    clock = Clock(1.0)  # a score lies between two looks
    start = beginning(samples, tmp_path, deadline=1000 + left, clock=clock).start("bank", tmp_path / "checkpoints")
    assert (start.how["init"] == "bank") == used
    assert reports[0]["bank_used"] == float(used)
    if not used:
        assert "the bank is not used: 110 scores may take 110 s, more than 20 % (" in caplog.text
        assert start.how["bank"].startswith("not used: 110 scores may take 110 s, more than 20 % (")
        assert torch.equal(start.vectors, soft_prompt.of_vocabulary(load_llm("tiny"), 8, 0))
        assert reports[0]["bank_scores"] == 2  # that is how long one takes was found


def test_a_later_attempt_begins_where_the_first_did(tmp_path, samples, reports):
    path = write_bank(tmp_path)
    first = beginning(samples, tmp_path).start("bank", tmp_path / "checkpoints")
    path.unlink()  # the bank may have changed, and the time has
    again = beginning(samples, tmp_path, deadline=0.0).start("bank", tmp_path / "checkpoints")
    assert torch.equal(first.vectors, again.vectors) and again.how == first.how
    assert len(reports) == 1
    write_bank(tmp_path)
    none = beginning(samples, tmp_path, deadline=0.0).start("bank", tmp_path / "others")
    path.unlink()
    assert torch.equal(beginning(samples, tmp_path).start("bank", tmp_path / "others").vectors, none.vectors)


def test_a_job_that_is_asked_to_stop_leaves_the_lookup(tmp_path, samples, monkeypatch, reports):
    write_bank(tmp_path)
    monkeypatch.setattr(script, "should_stop", lambda: True)
    with pytest.raises(Interrupted):
        beginning(samples, tmp_path).start("bank", tmp_path / "checkpoints")
    assert not (tmp_path / "checkpoints").exists() and reports == []  # its next attempt looks up anew


def test_a_bank_that_cannot_be_used_is_told_in_one_line(tmp_path, samples):
    build = r"'stoker prompt bank build --llm tiny --from FILE.jsonl' makes one; or give another params.init, such as vocabulary"
    with pytest.raises(NotFound, match=rf"params.init: there is no prompt bank of {HERE} in .*: {build}"):
        beginning(samples, tmp_path).start("bank", tmp_path / "checkpoints")
    with pytest.raises(NotFound, match=r"params.init: a bank is read by a job only"):
        beginning(samples, None).start("bank", tmp_path / "checkpoints")
    other = write_bank(tmp_path, llm="tiny@2", place=("tiny", "2", load_llm("tiny").tokens))
    with pytest.raises(
        Conflict, match=rf"the bank is of tiny@2 \(\w+\), and the LLM here is {HERE} \(\w+\); they are never mixed: {build}"
    ):
        beginning(samples, tmp_path).start("bank", tmp_path / "checkpoints")
    own = write_bank(tmp_path, llm="tiny@2")
    with pytest.raises(Conflict, match=rf"bank.npz is of tiny@2, and the LLM here is {HERE} \(\w+\); they are never mixed"):
        beginning(samples, tmp_path).start("bank", tmp_path / "checkpoints")
    own.write_bytes(other.read_bytes()[:100])
    with pytest.raises(StokerError, match=r"bank.npz cannot be read \(.*\); the daemon writes it again when it starts"):
        beginning(samples, tmp_path).start("bank", tmp_path / "checkpoints")
    write_bank(tmp_path, [], [])
    with pytest.raises(NotFound, match=rf"params.init: the prompt bank of {HERE} is empty: {build}"):
        beginning(samples, tmp_path).start("bank", tmp_path / "checkpoints")
    assert not (tmp_path / "checkpoints").exists()


def test_a_worker_finds_the_bank_and_the_deadline_of_its_job(tmp_path, samples, monkeypatch, reports):
    write_bank(tmp_path)
    run = tmp_path / "jobs" / "3" / "run-7"
    run.mkdir(parents=True)
    spec = {"demand": {"kind": "strict", "tiers": [{"deadline": initial_prompt.time.time() - 1}]}}
    (run / "assignment.json").write_text(json.dumps({"spec": spec}))
    monkeypatch.setenv(ENV_RUN_DIR, str(run))
    monkeypatch.setenv(ENV_CHECKPOINTS, str(tmp_path / "jobs" / "3" / "checkpoints"))
    params = {"data": str(tmp_path / "mails.jsonl"), "init": "bank"}
    worker.build(JobSpec(name="job", recipe="prompt-tune", backbone="tiny", params=params))
    assert reports[0]["bank_used"] == 0.0 and reports[0]["bank_budget"] < 0  # its deadline has passed
    assert (tmp_path / "jobs" / "3" / "checkpoints" / "initial-prompt.json").exists()
