"""Trainings whose samples are reused or decoded in a pipeline: the same weights, to the last bit, whatever stops them and whenever."""

import random
import re
import threading

import numpy
import pytest
import torch
from stoker.engine.errors import UsageError
from stoker.engine.spec.model import PipelineOptions, Reuse, Stop, Switch
from stoker.runners.lease.rundir import PREEMPTED_EXIT
from stoker.runners.loaders.pipeline import Pipeline
from stoker.runners.loaders.readings import sizes
from stoker.runners.train import piped, redrawn, rng
from stoker.runners.train.checkpoint import Checkpoints
from stoker.runners.train.feed_choice import Loading
from stoker.runners.train.profiling_run import Profiling
from stoker.runners.train.task import Task
from stoker.runners.train.trainer import Trainer
from stoker.runners.worker import script
from stoker.runners.worker.ranks import Ranks
from test_training import Job, assert_same
from waiting import patient, until_left

pytestmark = pytest.mark.usefixtures("roomy")  # for what is trained in this process

STEPS, SAMPLES, BATCH = 24, 40, 4
ALONE = Ranks(0, 1, torch.device("cpu"))
SWITCH_AT = 12
SIZE = sizes.nbytes((torch.zeros(4), torch.zeros(1)))  #: bytes of a sample
HALF = Switch(on="fraction", fraction=0.5)
REUSE, ONCE = Reuse(repeat=3, switch=HALF), Reuse(repeat=3, switch=HALF, augment="once")
THREADS, PROCESSES = PipelineOptions(interval=0.05), PipelineOptions(processes=True)


class Data:
    """Samples that are decoded by drawing from every global generator; ``still``: without."""

    def __init__(self, still=False):
        self.still, self.decoded = still, []

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        self.decoded.append(index)
        noise = 0.0 if self.still else torch.randn(4) + random.random() + torch.from_numpy(numpy.random.rand(4)).float()
        return torch.full((4,), index / SAMPLES) + 0.1 * noise, torch.tensor([index % 2.0])


def shaken(sample):
    inputs, target = sample
    return inputs + 0.01 * torch.randn(4) + 0.01 * random.random(), target


def turned(sample):
    inputs, target = sample
    return inputs.flip(0), target


def loss(model, batch):
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


def held_out(model):
    return {"eval_loss": float(loss(model, (torch.linspace(-1, 1, 32).reshape(8, 4), torch.ones(8, 1))))}


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-4),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


def task(*, still=False, optimizer="adamw", augment=shaken, **given):
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
    scheduled = {"scheduler": lambda optimizer, steps: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=steps + 1)}
    fields = {"train": Data(still), "loss": loss, "batch_size": BATCH, "checkpoint_every": 5, "optimizer": OPTIMIZERS[optimizer], "seed": 2}
    return Task(**{"model": model, "augment": augment} | fields | scheduled | given)


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Trains in directory ``name`` until it leaves; answers the trainer. ``reported`` of it: all values, by step."""
    reported = {}

    def run(name, made=None, *, stop_at=None, crash_at=None, steps=STEPS, **blocks):
        with monkeypatch.context() as patch, rng.preserved():
            trainer = Trainer(made or task(), Stop(iterations=steps), tmp_path / name, ALONE, **blocks)
            of_run = reported.setdefault(name, {})
            patch.setattr(script, "report", lambda step, total, checkpoint, **values: of_run.setdefault(step, {}).update(values))
            patch.setattr(script, "should_stop", lambda: trainer.step == stop_at)
            if crash_at is not None:
                patch.setattr(trainer, "update", lambda *given: crashing(trainer, crash_at, *given))
            try:
                ended = trainer.run()
            except Crashed:
                ended = False
            until_left(trainer)
        assert ended == (stop_at is None and crash_at is None)
        trainer.reported = of_run
        return trainer

    return run


class Crashed(Exception):
    pass


def crashing(trainer, at, *given):
    if trainer.step == at:
        raise Crashed
    return Trainer.update(trainer, *given)


def state(tmp_path, name):
    return Checkpoints(tmp_path / name).load()


def weights(trainer):
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


@pytest.fixture(autouse=True)
def one_thread_as_a_worker_has():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def enough_samples_are_looked_at(monkeypatch):
    """However slowly they come on a busy machine."""
    monkeypatch.setattr(piped, "_LOOKING", 600.0)


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before and thread.name != "QueueFeederThread"]
    for thread in left:
        thread.join(patient(60))
    assert not [thread.name for thread in left if thread.is_alive()]


# ---- the same training as without the blocks ----


@pytest.mark.parametrize(
    ("reuse", "augment", "samples"),
    [(None, turned, BATCH), (Reuse(repeat=2), turned, BATCH), (Reuse(repeat=2), shaken, BATCH // 2)],
    ids=["batches", "reuse in the stages", "reuse behind them"],
)
def test_a_tuner_is_told_of_samples_and_not_of_the_lists_they_travel_in(train, monkeypatch, reuse, augment, samples):
    made = []
    monkeypatch.setattr(piped, "Pipeline", lambda *given, **options: made.append(Pipeline(*given, **options)) or made[-1])
    blocks = {} if reuse is None else {"reuse": reuse}
    train("told", task(still=True, augment=augment), pipeline=THREADS, **blocks)
    assert made
    assert {pipeline.observe().batch_size for pipeline in made} <= {samples, BATCH}
    assert made[0].observe().batch_size == samples


@pytest.mark.parametrize(
    "pipeline", [THREADS, PipelineOptions(tune="fixed", workers={"decode": 3, "augment": 2, "batch": 2})], ids=["tuned", "by hand"]
)
@pytest.mark.parametrize("augment", [None, turned], ids=["decode", "augment"])
@pytest.mark.sampled(2)
def test_a_pipeline_trains_the_very_model(train, pipeline, augment):
    if augment is None:
        pipeline = PipelineOptions(tune=pipeline.tune, workers={stage: n for stage, n in pipeline.workers.items() if stage != "augment"})
    plain = train("plain", task(still=True, augment=augment))
    staged = train("piped", task(still=True, augment=augment), pipeline=pipeline)
    assert_same(weights(staged), weights(plain))
    assert plain.reported == staged.reported


def test_one_use_of_each_sample_is_the_training_without_reuse(train):
    plain, once = train("plain"), train("once", reuse=Reuse(repeat=1))
    assert_same(weights(once), weights(plain))
    assert plain.reported == once.reported


@pytest.mark.parametrize("pipeline", [None, THREADS], ids=["alone", "pipeline"])
def test_what_is_drawn_for_a_sample_does_not_depend_on_where_it_is_decoded(train, pipeline):
    """Reuse alone decodes when a batch is wanted, the pipeline ahead of it."""
    made = train("reuse", task(still=True), reuse=REUSE)
    other = train("other", task(still=True), reuse=REUSE, pipeline=pipeline)
    assert_same(weights(other), weights(made))


@pytest.mark.slow
def test_processes_decode_what_threads_may_not(train):
    made = train("reuse", reuse=REUSE)
    other = train("other", reuse=REUSE, pipeline=PROCESSES)
    assert_same(weights(other), weights(made))
    assert_same(weights(train("once piped", reuse=ONCE, pipeline=PROCESSES)), weights(train("once", reuse=ONCE)))


def test_a_data_set_smaller_than_the_buffer_has_no_sample_twice_in_a_batch(tmp_path):
    inputs = [(torch.tensor([float(index)] * 4), torch.zeros(1)) for index in range(10)]
    made = task(train=inputs, augment=None)
    trainer = Trainer(made, Stop(iterations=200), tmp_path / "job", ALONE, reuse=Reuse(repeat=3, shuffle_buffer=500, switch=HALF))
    for _ in range(100):
        samples = trainer.feed.fetch().data[0][:, 0].tolist()
        assert len(samples) == len(set(samples)) == BATCH
        trainer.feed.used()
    trainer.close()


# ---- stopped, killed, resumed ----


@pytest.fixture(scope="module")
def whole():
    """Final states of runs that nothing disturbed, by their settings."""
    return {}


def final(whole, train, tmp_path, optimizer, blocks):
    key = (optimizer, repr(blocks))
    if key not in whole:
        made = train("whole", task(optimizer=optimizer, still=still(blocks)), **blocks)
        whole[key] = state(tmp_path, "whole"), made.reported
    return whole[key]


def still(blocks):
    return blocks.get("pipeline") is not None


BLOCKS = {
    "reuse": {"reuse": REUSE},
    "both": {"reuse": REUSE, "pipeline": THREADS},
    "pipeline": {"pipeline": THREADS},
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("at", [1, 3, SWITCH_AT - 1, SWITCH_AT, SWITCH_AT + 1, STEPS - 1])
@pytest.mark.sampled(3)
def test_a_stop_at_any_step_changes_nothing(train, whole, tmp_path, optimizer, at):
    expected, reported = final(whole, train, tmp_path, optimizer, BLOCKS["reuse"])
    train("parts", task(optimizer=optimizer), stop_at=at, **BLOCKS["reuse"])
    assert state(tmp_path, "parts")["step"] == at
    resumed = train("parts", task(optimizer=optimizer), **BLOCKS["reuse"])
    assert_same(state(tmp_path, "parts"), expected)
    assert resumed.reported == reported


@pytest.mark.parametrize("blocks", BLOCKS)
def test_a_job_that_is_stopped_and_killed_again_and_again_ends_the_same(train, whole, tmp_path, blocks):
    expected, reported = final(whole, train, tmp_path, "adamw", BLOCKS[blocks])
    for how in ({"stop_at": 2}, {"crash_at": 7}, {"stop_at": 11}, {"crash_at": 12}, {"stop_at": 12}, {"crash_at": 18}, {"stop_at": 20}):
        train("parts", task(still=still(BLOCKS[blocks])), **how, **BLOCKS[blocks])
    resumed = train("parts", task(still=still(BLOCKS[blocks])), **BLOCKS[blocks])
    assert_same(state(tmp_path, "parts"), expected)
    assert resumed.reported == reported


def test_a_finished_job_is_finished_when_it_is_started_again(train, tmp_path):
    train("job", reuse=REUSE)
    before = state(tmp_path, "job")
    assert train("job", reuse=REUSE).step == STEPS
    assert_same(state(tmp_path, "job"), before)


def test_a_search_for_the_peak_leaves_no_trace_but_the_peak(train, tmp_path):
    found = train("search", reuse=Reuse(repeat=3, switch=HALF, peak="search"))
    given = train("given", reuse=Reuse(repeat=3, switch=HALF, peak=max(found.reusing.peaks)))
    assert_same(weights(given), weights(found))
    by_rule = 0.45 * max(found.reusing._rates.highest)
    assert any(max(found.reusing.peaks) == pytest.approx(factor * by_rule) for factor in (0.5, 1, 2))


# ---- augmented and collated behind the buffer, ahead of the training ----

BY_HAND = PipelineOptions(tune="fixed", workers={"decode": 2, "augment": 3, "batch": 2})
STAGED = {"reuse": REUSE, "pipeline": BY_HAND}
TIGHT = Reuse(repeat=3, switch=HALF, memory=6 * SIZE)  #: bytes of some 6 samples


@pytest.mark.parametrize("pipeline", [THREADS, BY_HAND], ids=["tuned", "by hand"])
@pytest.mark.parametrize("reuse", [REUSE, ONCE, TIGHT], ids=["each use", "once", "little memory"])
@pytest.mark.sampled(3)
def test_what_is_done_behind_the_buffer_trains_the_very_model(train, reuse, pipeline):
    plain = train("reuse", task(still=True, augment=turned), reuse=reuse)
    staged = train("staged", task(still=True, augment=turned), reuse=reuse, pipeline=pipeline)
    assert_same(weights(staged), weights(plain))
    assert staged.reported == plain.reported


def test_samples_in_batches_under_way_count_with_those_in_the_buffer(train, monkeypatch):
    most = []
    draw = redrawn.StagedReuse._draw

    def drawn(feed, take):
        batch = draw(feed, take)
        most.append(feed._held())
        return batch

    monkeypatch.setattr(redrawn.StagedReuse, "_draw", drawn)
    train("staged", task(still=True, augment=turned), reuse=TIGHT, pipeline=BY_HAND)
    assert len(most) >= SWITCH_AT and TIGHT.memory // 2 < max(most) <= TIGHT.memory


def test_batches_are_augmented_beside_one_another(train):
    """The first waits until there is another at work."""
    inside, both = set(), threading.Event()

    def met(sample):
        if (worker := threading.current_thread().name).startswith("augment"):
            inside.add(worker)
            if len(inside) > 1:
                both.set()
            assert both.wait(patient(60))
        return turned(sample)

    two = PipelineOptions(tune="fixed", workers={"augment": 2})
    train("two", task(still=True, augment=met), reuse=Reuse(repeat=3, switch=Switch(on="fraction", fraction=0.01)), pipeline=two)


@pytest.mark.slow
@pytest.mark.parametrize("at", [*(pytest.param(at, marks=pytest.mark.nightly) for at in (1, SWITCH_AT - 1, SWITCH_AT + 1)), SWITCH_AT])
def test_what_has_been_drawn_ahead_is_drawn_again_after_a_stop(train, tmp_path, at):
    train("whole", task(still=True, augment=turned), **STAGED)
    train("parts", task(still=True, augment=turned), stop_at=at, **STAGED)
    resumed = train("parts", task(still=True, augment=turned), **STAGED)
    assert_same(state(tmp_path, "parts"), state(tmp_path, "whole"))
    assert resumed.reported.keys() == set(range(1, STEPS + 1))


def test_a_job_with_stages_behind_the_buffer_may_be_stopped_and_killed_again_and_again(train, tmp_path):
    whole = train("whole", task(still=True, augment=turned), reuse=REUSE)
    for how in ({"stop_at": 2}, {"crash_at": 7}, {"stop_at": 11}, {"crash_at": 12}, {"stop_at": 12}, {"crash_at": 18}, {"stop_at": 20}):
        train("parts", task(still=True, augment=turned), **how, **STAGED)
    resumed = train("parts", task(still=True, augment=turned), **STAGED)
    assert_same(state(tmp_path, "parts"), state(tmp_path, "whole"))
    assert resumed.reported == whole.reported


def test_a_smaller_buffer_takes_up_what_a_larger_one_held(train, tmp_path):
    made = {}
    for name, blocks in {"alone": {}, "staged": {"pipeline": BY_HAND}}.items():
        large, small = Reuse(repeat=3, shuffle_buffer=20, switch=HALF), Reuse(repeat=3, shuffle_buffer=5, switch=HALF)
        train(name, task(still=True, augment=turned), stop_at=8, reuse=large, **blocks)
        made[name] = train(name, task(still=True, augment=turned), reuse=small, **blocks)
    assert made["staged"].reported == made["alone"].reported
    assert_same(state(tmp_path, "staged"), state(tmp_path, "alone"))


@pytest.mark.nightly  # by day in threads, and what processes decode
def test_processes_augment_each_use_of_what_draws(train, tmp_path):
    made = train("reuse", task(collate=masked), reuse=REUSE)
    processes = PipelineOptions(tune="fixed", processes=True, workers={"decode": 1, "augment": 2})
    for at in (5, SWITCH_AT):
        train("processes", task(collate=masked), stop_at=at, reuse=REUSE, pipeline=processes)
    other = train("processes", task(collate=masked), reuse=REUSE, pipeline=processes)
    assert_same(state(tmp_path, "processes"), state(tmp_path, "reuse"))
    assert other.reported == made.reported


# ---- a collate that draws ----

RESUMED_BY_DAY = (("plain", "pipeline"), ("augmented", "both"))


def masked(samples):
    inputs, targets = torch.utils.data.default_collate(samples)
    return inputs * (torch.rand(inputs.shape) > 0.2) + 0.01 * random.random() + 0.01 * numpy.random.rand(), targets


@pytest.mark.parametrize("quiet", [False, True], ids=["the training draws", "it does not"])
@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.sampled(3)
def test_a_collate_draws_anew_for_each_batch_and_nothing_of_the_training_s_own(train, blocks, quiet):
    draws, own = [], []

    def drawing(samples):
        if threading.current_thread() is not threading.main_thread():  # not the look at it before the training
            draws.append((torch.rand(1).item(), random.random(), numpy.random.rand()))
        else:
            torch.rand(1)
        return torch.utils.data.default_collate(samples)

    def noisy(model, batch):
        if model.training and not quiet:
            own.append((torch.rand(1).item(), random.random(), numpy.random.rand()))
        return loss(model, batch)

    fields = {"still": True, "augment": None, "loss": noisy}
    if quiet:
        fields["model"] = torch.nn.Linear(4, 1)
    train("plain", task(**fields), **BLOCKS[blocks])
    expected = own.copy()
    own.clear()
    train("drawing", task(collate=drawing, **fields), **BLOCKS[blocks])
    assert own == expected and len(own) == (0 if quiet else STEPS)
    assert len(draws) >= STEPS
    # The first uses of a batch are collated apart, as that batch is where they are its beginning.
    values = [{draw[kind] for draw in draws} for kind in range(3)]
    assert all(len(of_kind) >= STEPS for of_kind in values)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("augment", "blocks"),
    [
        pytest.param(augment, blocks, id=f"{name}-{blocks}", marks=() if (name, blocks) in RESUMED_BY_DAY else pytest.mark.nightly)
        for name, augment in (("plain", None), ("augmented", shaken))
        for blocks in BLOCKS
    ],
)
def test_a_job_with_a_collate_that_draws_is_resumed_exactly(train, tmp_path, blocks, augment):
    fields = {"still": True, "augment": augment, "collate": masked}
    whole = train("whole", task(**fields), **BLOCKS[blocks])
    for how in ({"stop_at": 1}, {"stop_at": 3}, {"crash_at": 7}, {"stop_at": 11}, {"stop_at": SWITCH_AT}, {"crash_at": 18}):
        train("parts", task(**fields), **how, **BLOCKS[blocks])
    resumed = train("parts", task(**fields), **BLOCKS[blocks])
    assert_same(state(tmp_path, "parts"), state(tmp_path, "whole"))
    assert resumed.reported == whole.reported


@pytest.mark.slow
def test_a_collate_draws_the_same_in_processes(train):
    fields = {"still": True, "augment": shaken, "collate": masked}
    made = train("threads", task(**fields), pipeline=THREADS)
    assert_same(weights(train("processes", task(**fields), pipeline=PROCESSES)), weights(made))


def test_a_data_set_that_draws_for_some_samples_is_refused_in_threads(train):
    class Cropped(Data):
        def __getitem__(self, index):
            return shaken(super().__getitem__(index)) if index % 3 == 2 else super().__getitem__(index)

    with pytest.raises(UsageError, match=r"train\[index\] draws from the global random generators"):
        train("job", task(train=Cropped(still=True)), pipeline=THREADS)


def test_what_a_controller_of_a_trial_s_pipeline_seeds_changes_nothing(train, monkeypatch):
    search = Reuse(repeat=3, switch=HALF, peak="search")
    plain = train("plain", reuse=search)
    once = Loading.once

    def seeding(*given):
        rng.seed_all(3)
        return once(*given)

    monkeypatch.setattr(Loading, "once", seeding)
    assert_same(weights(train("seeding", reuse=search)), weights(plain))


# ---- what is counted and watched ----


def test_steps_and_fresh_samples_are_counted_apart(train):
    made = train("job", reuse=REUSE)
    values = [made.reported[step] for step in range(1, STEPS + 1)]
    assert [value["stage"] for value in values] == [1.0] * SWITCH_AT + [2.0] * (STEPS - SWITCH_AT)
    assert [value["samples"] for value in values] == [4.0 * step for step in range(1, STEPS + 1)]
    fresh = [value["fresh_samples"] for value in values]
    first, second = fresh[:SWITCH_AT], fresh[SWITCH_AT:]
    assert first[0] == BATCH and first == sorted(first)
    least = SWITCH_AT * BATCH / 3
    assert least <= first[-1] <= least + 3 * BATCH  # two thirds of the decoding are saved, but for what fills the buffer
    assert second == [first[-1] + BATCH * step for step in range(1, STEPS - SWITCH_AT + 1)]
    assert len(made.task.train.decoded) == fresh[-1]


def test_decoding_is_what_reuse_saves_and_augmentation_is_done_at_each_use(train):
    seen = []

    def counted(sample):
        seen.append(sample)
        return shaken(sample)

    made = train("each", task(augment=counted), reuse=REUSE)
    assert len(seen) == STEPS * BATCH
    seen.clear()
    once = train("once", task(augment=counted), reuse=ONCE)
    assert len(seen) == len(once.task.train.decoded) == len(made.task.train.decoded)


def test_the_loss_on_first_uses_is_that_before_the_step_on_them(train):
    made = train("job", task(augment=None, still=True, eval_every=None), reuse=Reuse(repeat=3))
    probed = {step: values["first_use_loss"] for step, values in made.reported.items() if "first_use_loss" in values}
    assert set(probed) <= {step + 1 for step in range(0, STEPS, 4)} and 1 in probed
    untrained = task(augment=None, still=True)
    first = Trainer(untrained, Stop(iterations=STEPS), made.checkpoints.path / "other", ALONE, reuse=Reuse(repeat=3))
    (part,) = first.parts()
    first.close()
    untrained.model.eval()
    assert part.fresh == BATCH
    assert probed[1] == pytest.approx(loss(untrained.model, part.first).item())


def test_a_watched_metric_that_stands_still_ends_the_reuse_on_a_plateau(train, tmp_path):
    flat = {"evaluate": lambda model: {"quality": 1.0}, "eval_every": 2}
    plateau = Reuse(repeat=2, switch=Switch(patience=2, min_epochs=0.1))
    made = train("job", task(**flat), reuse=plateau)
    stages = {step: values["stage"] for step, values in made.reported.items() if "stage" in values}
    assert [step for step, stage in stages.items() if stage == 1.0] == [1, 2, 3, 4, 5, 6]
    assert not any("first_use_loss" in values for values in made.reported.values())
    parts = None
    for at in (3, 6, 7):
        train("parts", task(**flat), reuse=plateau, stop_at=at)
    parts = train("parts", task(**flat), reuse=plateau)
    assert parts.reported == made.reported
    assert_same(state(tmp_path, "parts"), state(tmp_path, "job"))


def test_a_bad_mix_is_said_in_the_log(train, caplog):
    train("job", task(augment=None), reuse=Reuse(repeat=8, shuffle_buffer=BATCH, switch=HALF))
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING" and record.message.startswith("reuse:")]
    assert "8 uses of a sample" in warning and "shuffle_buffer" in warning


# ---- what is wrong gets one line ----

AFTER_9 = Switch(on="epochs", epochs=9.0)
AUGMENTS, BATCHES = PipelineOptions(workers={"augment": 2}), PipelineOptions(workers={"batch": 2})
JUDGED, STILL = {"evaluate": held_out, "eval_every": 2}, {"still": True}


@pytest.mark.parametrize(
    ("given", "blocks", "message"),
    [
        ({}, {"reuse": Reuse(shuffle_buffer=3)}, "reuse.shuffle_buffer: 3 samples are less than the 4 that a rank uses of each batch"),
        ({}, {"reuse": Reuse(memory=40)}, "reuse.memory: 40 bytes hold . of the 4 samples of a batch; give at least"),
        ({}, {"reuse": Reuse(switch=AFTER_9)}, "reuse.switch.epochs: 9 passes over the data are more than 24 steps"),
        ({}, {"reuse": Reuse(switch=Switch(watch="accuracy"))}, "reuse.switch.plateau.watch: 'accuracy' is never known before the end"),
        (JUDGED, {"reuse": Reuse(switch=Switch(watch="eval_los"))}, "this task reports no 'eval_los' .did you mean 'eval_loss'"),
        ({}, {"pipeline": THREADS}, r"pipeline: the task's train\[index\] draws from the global random generators, .*processes: true"),
        (STILL | {"augment": None}, {"pipeline": AUGMENTS}, "workers.augment: there is no such stage: the task has no augment"),
        (STILL, {"pipeline": AUGMENTS}, "workers.augment: there is no such stage: it draws from the global"),
        (STILL, {"reuse": REUSE, "pipeline": AUGMENTS}, "workers.augment: there is no such stage: it draws from the global"),
        ({}, {"reuse": ONCE, "pipeline": PipelineOptions(processes=True, workers={"augment": 2})}, "it is done with the decoding"),
        (STILL, {"reuse": REUSE, "pipeline": BATCHES}, "workers.batch: there is no such stage: augment draws from the global"),
        (STILL | {"augment": None, "collate": masked}, {"pipeline": BATCHES}, "workers.batch: there is no such stage: collate draws"),
        ({"collate": masked}, {"pipeline": PipelineOptions(processes=True, workers={"batch": 2})}, "in processes a collate of the task's"),
        ({}, {"pipeline": PipelineOptions(processes=True, workers={"augment": 2})}, "in processes it is done with the decoding"),
    ],
)
def test_settings_that_cannot_work(train, given, blocks, message):
    with pytest.raises(UsageError, match=message) as caught:
        train("job", task(**given), **blocks)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_is_not_taken_up_with_other_reuse(train):
    train("job", reuse=REUSE, stop_at=3)
    with pytest.raises(UsageError, match=re.escape("reuse.repeat: the checkpoint was made with 3, the job has 4")):
        train("job", reuse=Reuse(repeat=4, switch=HALF))
    with pytest.raises(UsageError, match="was made with reuse; submit it as a new job"):
        train("job")


def test_what_the_data_set_raises_comes_through_with_its_place(train):
    class Broken(Data):
        def __getitem__(self, index):
            if index == 7:
                raise ValueError("sample 7 is unreadable")
            return super().__getitem__(index)

    for name, blocks in BLOCKS.items():
        with pytest.raises(ValueError, match="sample 7 is unreadable"):
            train(name, task(train=Broken(still=True)), **blocks)


# ---- profiling, ranks, a request to stop ----


@pytest.mark.parametrize("blocks", BLOCKS)
def test_a_profiling_run_measures_with_both_blocks_and_leaves_nothing(tmp_path, monkeypatch, blocks):
    told = []
    monkeypatch.setattr(script, "report_speed", lambda **speed: told.append(speed))
    with rng.preserved():
        trainer = Trainer(task(still=True), Stop(iterations=STEPS), tmp_path / "scratch", ALONE, parts=2, **BLOCKS[blocks])
        ticks = iter(range(10**9))
        assert Profiling(trainer, lambda: next(ticks) / 100).run()
    (speed,) = told
    assert speed["steps"] >= 20 and speed["compute"] > 0 and speed["total"] == STEPS
    assert not (tmp_path / "scratch").exists()


@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.sampled(2)
def test_a_request_to_stop_is_obeyed_while_a_sample_takes_for_ever(tmp_path, monkeypatch, blocks):
    begun, released = threading.Event(), threading.Event()

    class Stuck(Data):
        def __getitem__(self, index):
            if len(self.decoded) >= 30:
                begun.set()
                assert released.wait(patient(60))
            return super().__getitem__(index)

    monkeypatch.setattr(script, "should_stop", begun.is_set)
    made = task(train=Stuck(still=True), augment=None)
    trainer = Trainer(made, Stop(iterations=STEPS), tmp_path / "job", ALONE, **BLOCKS[blocks])
    try:
        assert not trainer.run()
    finally:
        released.set()
    saved = state(tmp_path, "job") or {"step": 0}  # a pipeline is stuck ahead of the training, perhaps before the first step
    assert trainer.step == saved["step"] < STEPS


#: A user's module for gangs: the phases of `user` to pause in, and samples whose decoding and augmentation draw.
LOADED = """
import random
import torch
import user
from stoker.runners.training import Task

class Data:
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return torch.full((4,), index / 40) + 0.1 * torch.randn(4), torch.tensor([index % 2.0])

def shaken(sample):
    return sample[0] + 0.1 * random.random(), sample[1]

def task():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
    return Task(model=model, train=Data(), augment=shaken, loss=user.loss, batch_size=5, checkpoint_every=4)
"""


@pytest.fixture
def gang(tmp_path):
    made = []

    def make(name, **switch):
        one = Job(tmp_path / name, entrypoint="loaded:task")
        (one.path / "loaded.py").write_text(LOADED)
        one.spec["reuse"] = {"repeat": 3, "switch": switch or {"on": "fraction", "fraction": 0.5}}
        made.append(one)
        return one

    yield make
    for each in made:
        each.close()


@pytest.mark.nightly  # by day: a gang's reuse below, one rank stopped anywhere above, two that leave together in test_training.py
def test_two_ranks_switch_together_and_end_the_same_however_they_are_stopped(gang):
    whole, parts = gang("whole"), gang("parts")
    assert whole.start(ranks=2).end() == 0, whole.log
    for step in (4, 5):  # in step 4, and in what is then step 9: before the switch at 6, and after it
        parts.start(ranks=2, PAUSE=f"step:{step}").when("in-step-0", "in-step-1").signal()
        assert parts.end() == PREEMPTED_EXIT, parts.log
        for mark in parts.path.glob("in-*"):
            mark.unlink()
    assert parts.state["step"] == 9 and parts.state["reuse"]["stage"] == 2
    assert parts.start(ranks=2).end() == 0, parts.log
    assert parts.losses() == whole.losses()
    assert_same(parts.state, whole.state)
    assert whole.log.count("from here on without reuse") == 2  # once a rank
    stages = [record.values["stage"] for record in whole.records if "stage" in record.values]
    assert stages == [1.0] * 6 + [2.0] * 6


@pytest.mark.slow
def test_a_gang_s_buffers_are_taken_up_by_another_number_of_ranks(gang):
    one = gang("job", on="plateau").start(ranks=2, PAUSE="step:4").when("in-step-0", "in-step-1").signal()
    assert one.end() == PREEMPTED_EXIT, one.log
    left_at, fresh, held = one.state["step"], one.state["reuse"]["fresh"], [feed["buffer"] for feed in one.state["feeds"]]
    assert one.start(ranks=1).end() == 0, one.log
    assert one.state["step"] == 12 and len(one.state["feeds"]) == 1
    values = {record.step: record.values for record in one.records if "fresh_samples" in record.values}
    assert min(values) == left_at + 1 and values[left_at + 1]["fresh_samples"] >= fresh
    assert sum(len(buffer["positions"]) for buffer in held) > 0
    assert "first_use_loss" in {name for value in values.values() for name in value}
