"""Steps of a training with swapped parts: the losses, weights and checkpoints of the plain step, to the bit; and what is refused."""

import pytest
import torch
from as_hardware import Hardware
from stoker.engine.errors import UsageError
from stoker.engine.spec.model import Memory, Stop
from stoker.runners.swap.swap_executor import SwapExecutor
from stoker.runners.swap.swapped_step import SwappedStep, step_of
from stoker.runners.train.task import Task
from stoker.runners.train.trainer import Trainer
from stoker.runners.worker import script
from stoker.runners.worker.ranks import Ranks
from torch import nn

WIDTH, VOCABULARY = 24, 40
LOCAL = Ranks(0, 1, torch.device("cpu"))


pytestmark = pytest.mark.usefixtures("one_thread")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer, self.drop = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.2)

    def forward(self, x):
        return x + self.drop(self.outer(self.inner(x).relu()))


class Words(nn.Module):
    """Blocks in a ModuleList, statistics, a head tied to the embedding, a constant, and a tensor that is no buffer."""

    def __init__(self, **options):
        super().__init__()
        self.words, self.blocks = nn.Embedding(VOCABULARY, WIDTH, **options), nn.ModuleList(Block() for _ in range(3))
        self.statistics, self.head = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.words.weight
        self.scale = torch.full((WIDTH,), 0.5)

    def forward(self, tokens):
        x = self.words(tokens) * self.scale + torch.tensor([0.25])
        for block in self.blocks:
            x = block(x)
        return self.head(self.statistics(x.transpose(1, 2)).transpose(1, 2))


def next_word(model, tokens):
    noisy = torch.where(torch.rand(tokens.shape) < 0.1, 0, tokens)  # a loss that draws before it calls the model
    answer = model(noisy[:, :-1])
    return nn.functional.cross_entropy(answer.flatten(0, 1), tokens[:, 1:].flatten())


def task(model=Words, **options):
    torch.manual_seed(5)
    data = [torch.randint(VOCABULARY, (6,)) for _ in range(40)]
    held_out = torch.stack(data[:8])
    settings = {
        "loss": next_word, "batch_size": 4, "iterations": 4, "eval_every": 2, "checkpoint_every": 2,
        "evaluate": lambda model: {"answer": float(model(held_out).square().mean())},
        "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        "scheduler": lambda optimizer, steps: torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=steps),
    }  # fmt: skip
    return Task(model=model(), train=data, **settings | options)


def trained(directory, monkeypatch, memory, made, stop=None):
    """Losses and evaluations, other metrics, and the final checkpoint."""
    told, others = [], []

    def report(*, step, total=None, checkpoint=None, **values):
        told.extend((step, name, values[name]) for name in ("loss", "answer") if name in values)
        others.append({name: value for name, value in values.items() if name.startswith("swap_")})

    monkeypatch.setattr(script, "report", report)
    trainer = Trainer(made, Stop(iterations=stop), directory, LOCAL, work=step_of(memory, made, LOCAL))
    assert trainer.run()
    return told, [each for each in others if each], trainer.checkpoints.load()


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def peak_whole(made):
    """Bytes that a step takes in one part."""
    step = SwappedStep(made, Memory(cap=1 << 30), step_of(Memory(cap=1 << 30), made, LOCAL).device)
    step.place(made.model)
    step.update([torch.stack(made.train[:4])], 1.0)
    step.close()
    return int(step.values["swap_peak"])


def cap_of(count):
    """Bytes: less than all of it takes, and what each further micro-batch keeps at the cuts."""
    return int(0.7 * peak_whole(task())) + 24_000 * (count - 1)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.5}, {"optimizer": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)}])
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.sampled(3)
def test_losses_evaluations_and_checkpoints_are_those_of_the_plain_step_to_the_bit(count, options, tmp_path, monkeypatch):
    plain = trained(tmp_path / "plain", monkeypatch, Memory(swap="off", accumulate=count), task(**options))
    cap = cap_of(count)
    swapped = trained(tmp_path / "swapped", monkeypatch, Memory(cap=cap, accumulate=count, swap="force"), task(**options))
    assert len(plain[0]) == 6 and plain[0] == swapped[0]
    assert same(plain[2], swapped[2])
    assert len(swapped[1]) == 4 and all(0 < each["swap_peak"] <= cap for each in swapped[1])
    assert all(each["swap_in"] > each["swap_out"] > 0 for each in swapped[1])


@pytest.mark.parametrize("count", [1, 2])
def test_a_training_that_is_left_goes_on_to_the_same_end(count, tmp_path, monkeypatch):
    memory = Memory(cap=cap_of(count), accumulate=count)
    whole = trained(tmp_path / "whole", monkeypatch, memory, task(scheduler=None))
    first = trained(tmp_path / "left", monkeypatch, memory, task(scheduler=None), stop=2)
    rest = trained(tmp_path / "left", monkeypatch, memory, task(scheduler=None))
    assert first[0] + rest[0] == whole[0]
    assert same(whole[2], rest[2])


def test_asked_to_stop_while_it_measures_a_training_leaves_and_goes_on_to_the_same_end(tmp_path, monkeypatch):
    memory = Memory(cap=cap_of(2), accumulate=2)
    whole = trained(tmp_path / "whole", monkeypatch, memory, task(scheduler=None))
    first = trained(tmp_path / "left", monkeypatch, memory, task(scheduler=None), stop=2)
    asked = []
    with monkeypatch.context() as patch:
        patch.setattr(script, "should_stop", lambda: asked.append(1) or len(asked) > 4)  # twice by the trainer, then between rounds
        patch.setattr(SwapExecutor, "stepped", lambda self: pytest.fail("a step was made"))
        left = Trainer(made := task(scheduler=None), Stop(), tmp_path / "left", LOCAL, work=step_of(memory, made, LOCAL))
        assert not left.run() and left.step == left.saved == 2
    rest = trained(tmp_path / "left", monkeypatch, memory, task(scheduler=None))
    assert first[0] + rest[0] == whole[0]
    assert same(whole[2], rest[2])


def test_frozen_parts_are_not_moved_back_and_weights_that_train_do_move(tmp_path, monkeypatch):
    def frozen():
        model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), Block(), Block(), nn.Linear(WIDTH, VOCABULARY))
        model[:2].requires_grad_(False)
        return model

    before = frozen().state_dict()
    plain = trained(tmp_path / "plain", monkeypatch, Memory(swap="off", accumulate=2), task(frozen))
    swapped = trained(tmp_path / "swapped", monkeypatch, Memory(cap=1 << 20, accumulate=2, swap="force"), task(frozen))
    assert plain[0] == swapped[0] and same(plain[2], swapped[2])
    trains = sum(value.numel() for value in list(before.values())[-6:]) * 4
    assert {each["swap_out"] for each in swapped[1]} == {trains}


def test_larger_batches_are_cut_anew(tmp_path, monkeypatch):
    def growing(made):
        made.collate = lambda samples: torch.stack(samples)[:, : 2 + int(samples[0].sum()) % 5]
        return made

    plain = trained(tmp_path / "plain", monkeypatch, Memory(swap="off"), growing(task()))
    cap = int(0.8 * peak_whole(task()))
    swapped = trained(tmp_path / "swapped", monkeypatch, Memory(cap=cap), growing(task()))
    assert plain[0] == swapped[0]
    assert all(each["swap_peak"] <= cap for each in swapped[1])


def test_accumulating_draws_as_many_losses_as_batches_and_averages_them(tmp_path, monkeypatch):
    one = trained(tmp_path / "one", monkeypatch, Memory(swap="off"), task(iterations=1, eval_every=None))
    four = trained(tmp_path / "four", monkeypatch, Memory(swap="off", accumulate=4), task(iterations=1, eval_every=None))
    assert one[0][0][2] != four[0][0][2]
    assert four[2]["optimizer"]["state"][0]["step"] == 1


def test_an_evaluation_that_does_not_fit_is_computed_on_the_host(tmp_path, monkeypatch, caplog):
    def held_out(model):
        return {"answer": float(model(torch.arange(6).repeat(500, 1)).square().mean())}

    plain = trained(tmp_path / "plain", monkeypatch, Memory(swap="off"), task(evaluate=held_out))
    swapped = trained(tmp_path / "swapped", monkeypatch, Memory(cap=cap_of(1)), task(evaluate=held_out))
    assert plain[0] == swapped[0] and same(plain[2], swapped[2])
    assert [line for line in caplog.messages if "evaluations are computed on the host" in line]


@pytest.fixture
def hardware(monkeypatch):
    monkeypatch.setattr("stoker.runners.swap.swapped_step.open_device", lambda cap, device: Hardware(cap))


@pytest.mark.parametrize("count", [1, 2])
def test_on_hardware_trials_are_no_part_of_what_a_step_tells(count, hardware, tmp_path, monkeypatch):
    plain = trained(tmp_path / "plain", monkeypatch, Memory(swap="off", accumulate=count), task())
    cap = cap_of(count) + 2000 * count  # the batches are in it
    swapped = trained(tmp_path / "swapped", monkeypatch, Memory(cap=cap, accumulate=count, swap="force"), task())
    assert plain[0] == swapped[0] and same(plain[2], swapped[2])
    assert len({(each["swap_in"], each["swap_out"]) for each in swapped[1]}) == 1
    assert all(0 < each["swap_peak"] <= cap for each in swapped[1])


def test_on_hardware_too_a_cap_that_is_too_small_names_the_smallest(hardware, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"does not fit into 2KiB .*; the smallest that would is \d+KiB$") as e:
        trained(tmp_path / "small", monkeypatch, Memory(cap=2000, accumulate=2), task(evaluate=None))
    least = int(str(e.value).rpartition(" ")[2][:-3]) * 1024
    told = trained(tmp_path / "least", monkeypatch, Memory(cap=least, accumulate=2), task(evaluate=None))
    assert all(each["swap_peak"] <= least for each in told[1])


# ---- what is refused ----


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, VOCABULARY)

    def forward(self, tokens):
        if tokens.sum() > 0:
            return self.words(tokens)
        return -self.words(tokens)


class Counting(Branching):
    calls = 0

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, tokens):
        self.calls += 1
        return self.words(tokens)


class Wrapped(nn.Module):
    def __init__(self, inside=Counting):
        super().__init__()
        self.first, self.inside, self.last = nn.Identity(), inside(), nn.Linear(VOCABULARY, VOCABULARY)

    def forward(self, tokens):
        return self.last(self.inside(self.first(tokens)))


def decayed(model, tokens):
    return next_word(model, tokens) + sum(each.square().sum() for each in model.parameters())


def twice(model, tokens):
    return next_word(model, tokens) + next_word(model, tokens)


def clamped(model, tokens):
    loss = next_word(model, tokens)
    with torch.no_grad():
        model.head.weight.clamp_(-0.05, 0.05)
    return loss


def swapped_head(model, tokens):
    loss = next_word(model, tokens)
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())
    return loss


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"model": Branching}, r"memory.swap: force: the model cannot be cut into parts; write swap: off"),
        ({"whole": ("block",)}, r"memory: Task.whole: the model has no module 'block'"),
        ({"units": ("head", "block")}, r"memory: Task.units: the model has no module 'block'"),
        ({"units": ("blocks.0", "blocks.0.inner")}, r"memory: Task.units: 'blocks.0.inner' lies within 'blocks.0'; name one of the two"),
        (
            {"loss": lambda model, batch: next_word(model, batch) * torch.nan},
            r"memory: the loss of a step is nan; no checkpoint has it: lower",
        ),
        ({"model": lambda: Words(max_norm=0.5)}, r"memory: the model's parameter 'words.weight' is changed while the model or its loss"),
        ({"loss": clamped}, r"memory: the model's parameter 'head.weight' is changed while the model or its loss computes"),
        ({"loss": swapped_head}, r"memory: the model's parameter 'head.weight' is changed while the model or its loss computes"),
        ({"model": lambda: Words(sparse=True)}, r"memory: words has sparse gradients, which cannot be swapped out; write sparse=False"),
        ({"loss": lambda model, batch: model(batch).detach().sum()}, r"must return a tensor of one element that depends"),
    ],
)
def test_what_cannot_be_swapped_is_one_line(options, line, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=line) as caught:
        trained(tmp_path, monkeypatch, Memory(cap=1 << 20, swap="force"), task(**options))
    assert "\n" not in str(caught.value)


class Shared(Words):
    """Its embedding answers too, under its one name."""

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return nn.functional.linear(x, self.words.weight)


def test_a_weight_used_far_apart_under_one_name_is_named_where_it_keeps_the_model_together(tmp_path, monkeypatch):
    plain = trained(tmp_path / "plain", monkeypatch, Memory(swap="off"), task(Shared, evaluate=None))
    swapped = trained(tmp_path / "swapped", monkeypatch, Memory(cap=1 << 20), task(Shared, evaluate=None))
    assert plain[0] == swapped[0] and same(plain[2], swapped[2])
    with pytest.raises(UsageError, match=r"the smallest that would is \d+KiB; words.weight is used far apart under one name, so that all"):
        trained(tmp_path / "small", monkeypatch, Memory(cap=40_000), task(Shared, evaluate=None))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"model": lambda: Wrapped(Branching)}, id="decides by values"),
        pytest.param({"model": Wrapped}, id="changes an attribute"),
        pytest.param({"model": Wrapped, "whole": ("inside",)}, id="changes an attribute, whole"),
        pytest.param({"loss": twice}, id="called twice"),
        pytest.param({"loss": decayed}, id="a loss of the weights too"),
        pytest.param({"loss": lambda model, batch: torch.zeros((), requires_grad=True)}, id="not called"),
        pytest.param({"units": ("blocks.1", "head")}, id="named units"),
    ],
)
@pytest.mark.sampled(3)
def test_the_model_itself_is_trained_whatever_its_forward_and_loss_do(options, count, tmp_path, monkeypatch):
    plain = trained(tmp_path / "plain", monkeypatch, Memory(swap="off", accumulate=count), task(**options))
    swapped = trained(tmp_path / "swapped", monkeypatch, Memory(cap=1 << 20, accumulate=count, swap="force"), task(**options))
    if options.get("loss") is twice and count > 1:  # two sums of a weight, one for each part that has it
        assert torch.allclose(*(torch.tensor([value for *_, value in told[0]]) for told in (plain, swapped)), rtol=1e-5)
    else:
        assert plain[0] == swapped[0] and same(plain[2], swapped[2])


def test_a_cap_below_the_batches_alone_is_told_as_one(tmp_path, monkeypatch):
    with pytest.raises(
        UsageError, match=r"^memory.cap: the batches of a step alone take 1KiB with accumulate: 4, and the cap is 600 bytes; raise"
    ):
        trained(tmp_path, monkeypatch, Memory(cap=600, accumulate=4), task(evaluate=None))


def test_a_cap_that_is_too_small_names_the_smallest(tmp_path, monkeypatch):
    with pytest.raises(
        UsageError, match=r"^memory.cap: this model with accumulate: 2 does not fit into 2KiB .*; the smallest .* is \d+KiB$"
    ) as e:
        trained(tmp_path / "small", monkeypatch, Memory(cap=2000, accumulate=2), task(evaluate=None))
    least = int(str(e.value).rpartition(" ")[2][:-3]) * 1024
    told = trained(tmp_path / "least", monkeypatch, Memory(cap=least, accumulate=2), task(evaluate=None))
    assert all(each["swap_peak"] <= least for each in told[1])
