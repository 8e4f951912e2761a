"""Models of many forms, a few lines each: what `test_right_whatever_models_do` trains under a cap."""

import contextvars
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

WIDTH, LENGTH, WORDS = 12, 5, 30


@dataclass
class Form:
    make: object
    may: str | None = None  #: a refusal that is right too, as a pattern
    must: str | None = None  #: what every refusal of it says: it cannot be right
    several: str | None = None  #: a refusal that is right where a step has several micro-batches: they are computed side by side
    grows: bool = False  #: later batches take more than the first ones: so the cap that is named then counts


FORMS: dict[str, Form] = {}
LINE = "^memory: "  #: what may be refused for whatever reason, in one line


def form(make=None, **options):
    """A function that makes a model, or a model and fields of its task."""
    if make is None:
        return lambda make: form(make, **options)
    FORMS[make.__name__.replace("_", " ")] = Form(make, **options)
    return make


# ---- what the forms are made of ----


class Block(nn.Module):
    """A residual layer, or ``what`` it is told to compute with its modules."""

    def __init__(self, what=None, **modules):
        super().__init__()
        self.what, self.layer = what, nn.Linear(WIDTH, WIDTH)
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, x, *args, **kwargs):
        return x + self.layer(x).tanh() if self.what is None else self.what(self, x, *args, **kwargs)


class Net(nn.Module):
    """Some blocks between two layers; ``what``: its forward, with further ``modules``, parameters and values."""

    def __init__(self, what=None, block=Block, first=None, last=None, count=4, **modules):
        super().__init__()
        self.what = what
        self.first, self.last = first or nn.Linear(WIDTH, WIDTH), last or nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(count))
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, x, *args, **kwargs):
        return self.last(self.through(self.first(x))) if self.what is None else self.what(self, x, *args, **kwargs)

    def through(self, x, *args, **kwargs):
        for block in self.blocks:
            x = block(x, *args, **kwargs)
        return x


def blocks(what, **modules):
    """A net of blocks that compute ``what``; their modules are made anew for each."""
    return Net(block=lambda: Block(what, **{name: make() for name, make in modules.items()}))


def words(what=None, tied=False, **options):
    """A language model, and its task."""
    model = Net(what, first=nn.Embedding(WORDS, WIDTH), last=nn.Linear(WIDTH, WORDS, bias=False), **options)
    if tied:
        model.last.weight = model.first.weight
    return model, of_words()


def next_word(model, tokens):
    return functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten())


def of_words(**options):
    return {"train": [torch.randint(WORDS, (LENGTH,)) for _ in range(24)], "loss": next_word, **options}


def judged(answer, x):
    return (answer - x.roll(1, 0)).abs().square().mean()


def calls(call):
    """A loss of what is called so: call(model, x)."""
    return {"loss": lambda model, x: judged(call(model, x), x)}


def images(**options):
    return {"train": [torch.randn(3, 6, 6) for _ in range(24)],
            "loss": lambda model, x: functional.cross_entropy(model(x), torch.arange(len(x)) % 3), **options}  # fmt: skip


def from_step(change, step=1):
    """A schedule of the learning rate that changes something else too."""

    def rate(now):
        if now == step:
            change()
        return 1.0

    return {"scheduler": lambda optimizer, steps: torch.optim.lr_scheduler.LambdaLR(optimizer, rate)}


# ---- what goes on beside tensors ----


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.round(x * 4) / 4

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@form
def own_function_between_blocks():
    return Net(lambda it, x: it.last(Rounded.apply(it.through(Rounded.apply(it.first(x))))))


@form
def own_function_in_blocks():
    return blocks(lambda it, x: x + Rounded.apply(it.layer(x)))


@form
def asks_what_it_is_given():
    def shifted(it, x):
        x = it.first(x)
        return it.last(it.through(x * 3 + 1 if isinstance(x, torch.Tensor) and type(x) is torch.Tensor else x))

    return Net(shifted)


@form
def asks_for_sizes_and_values():
    def what(it, x):
        assert x.size(1) <= LENGTH, f"at most {LENGTH}"
        return it.last(it.through(it.first(x) * len(x) / (1 + float(x.abs().max()))))

    return Net(what)


def with_kept_feature(of):
    model, kept = Net(), {}
    of(model).register_forward_hook(lambda module, given, answer: kept.update(h=answer))
    return model, {"loss": lambda model, x: judged(model(x), x) + 0.1 * kept["h"].square().mean()}


@form(several=LINE)
def loss_uses_a_block_s_answer_kept_by_a_hook():
    return with_kept_feature(lambda model: model.blocks[1])


@form(may=LINE)
def loss_uses_a_layer_s_answer_kept_by_a_hook():
    return with_kept_feature(lambda model: model.blocks[1].layer)


@form
def hooks_that_change_what_comes_and_goes():
    model = Net()
    model.blocks[1].register_forward_pre_hook(lambda module, given: (given[0] * 0.5,))
    model.blocks[2].layer.register_forward_hook(lambda module, given, answer: answer + 1)
    model.blocks[2].register_forward_hook(lambda module, given, answer: answer * 2)
    return model


COLLECTED = contextvars.ContextVar("collected")


@form
def hooks_that_the_first_forward_makes():
    """So transformers collects what layers answer."""

    def what(it, x):
        if not hasattr(it, "hooked"):
            it.hooked = True
            for block in it.blocks:
                block.register_forward_hook(lambda block, given, answer: COLLECTED.get().append(answer))
        COLLECTED.set([])
        it.through(it.first(x))
        return it.last(sum(of * each for of, each in zip((1, 2, 3, 4), COLLECTED.get(), strict=True)))

    return Net(what)


@form(may=LINE)
def hook_on_a_backward():
    model = Net()
    model.blocks[1].register_full_backward_hook(lambda module, come, goes: (come[0] * 0.5,))
    return model


@form(may=LINE)
def hook_on_a_gradient_of_a_weight():
    model = Net()
    model.blocks[1].layer.weight.register_hook(lambda gradient: gradient * 0.5)
    return model


OUTSIDE = {"scale": 1.0}


@form
def global_value_that_changes():
    OUTSIDE["scale"] = 1.0
    return Net(lambda it, x: it.last(it.through(it.first(x) * OUTSIDE["scale"]))), from_step(lambda: OUTSIDE.update(scale=0.5))


@form
def global_value_in_blocks_that_changes():
    OUTSIDE["scale"] = 1.0
    return blocks(lambda it, x: x + it.layer(x) * OUTSIDE["scale"]), from_step(lambda: OUTSIDE.update(scale=0.5))


@form
def attribute_that_changes():
    model = blocks(lambda it, x: x + it.layer(x) * it.scale, scale=lambda: 1.0)
    return model, from_step(lambda: setattr(model.blocks[1], "scale", 0.25))


@form
def rate_of_dropout_that_changes():
    model = blocks(lambda it, x: x + it.drop(it.layer(x)), drop=lambda: nn.Dropout(0.1))
    return model, from_step(lambda: setattr(model.blocks[1].drop, "p", 0.5))


@form(may=LINE)
def counts_its_calls():
    def what(it, x):
        it.calls += 1
        return x + it.layer(x) / it.calls

    return blocks(what, calls=lambda: 0)


@form
def keeps_a_mask_from_its_first_call():
    def what(it, x):
        if it.mask is None:
            it.mask = torch.ones(LENGTH, WIDTH).tril()
        return x + it.layer(x) * it.mask

    return blocks(what, mask=lambda: None)


VALUE = contextvars.ContextVar("value", default=1.0)


@form(may=LINE)
def value_of_the_context():
    def loss(model, x):
        token = VALUE.set(0.5)
        try:
            return judged(model(x), x)
        finally:
            VALUE.reset(token)

    return blocks(lambda it, x: x + it.layer(x) * VALUE.get()), {"loss": loss}


# ---- checkpoints of activations ----


@form
def checkpointed_blocks():
    return Net(lambda it, x: it.last(checkpoint(it.through, it.first(x), use_reentrant=False)))


@form
def each_block_checkpointed():
    def what(it, x):
        x = it.first(x)
        for block in it.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return it.last(x)

    return Net(what, block=lambda: Block(lambda it, x: x + functional.dropout(it.layer(x), 0.3)))


@form
def each_block_checkpointed_reentrant():
    def what(it, x):
        x = it.first(x)
        for block in it.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        return it.last(x)

    return Net(what, block=lambda: Block(lambda it, x: x + functional.dropout(it.layer(x), 0.3)))


@form
def checkpoints_in_blocks():
    return blocks(lambda it, x: x + checkpoint(lambda x: it.layer(x).tanh(), x, use_reentrant=False))


@form
def reentrant_checkpoints_in_blocks():
    return blocks(lambda it, x: x + checkpoint(lambda x: functional.dropout(it.layer(x).tanh(), 0.3), x, use_reentrant=True))


# ---- arguments and answers ----


@dataclass
class Answer:
    hidden: torch.Tensor
    again: torch.Tensor | None = None
    more: dict = field(default_factory=dict)


class ModelOutput(OrderedDict):
    """As transformers has it: items that are attributes too."""

    def __init__(self, **items):
        super().__init__(items)
        self.__dict__.update(items)


Pair = namedtuple("Pair", "hidden other")

ANSWERS = {
    "dict": (lambda h: {"hidden": h, "none": None, "name": "block"}, lambda a: a["hidden"]),
    "dataclass": (Answer, lambda a: a.hidden),
    "dataclass with tensors in a dict": (lambda h: Answer(h * 0, None, {"h": h}), lambda a: a.more["h"] + a.hidden),
    "attributes": (lambda h: ModelOutput(hidden=h, none=None), lambda a: a.hidden),
    "tuple": (lambda h: (h,), lambda a: a[0]),
    "tuple with None": (lambda h: (None, h, None), lambda a: a[1]),
    "named tuple": (lambda h: Pair(h, h.detach()), lambda a: a.hidden),
    "lists in a tuple": (lambda h: ([h, h * 2], [h.argmax(-1)]), lambda a: a[0][0] + a[0][1]),
    "one tensor twice": (lambda h: (h, h), lambda a: a[0] + a[1]),
    "two of which one is not used": (lambda h: (h * 3, h), lambda a: a[1]),
    "integers and numbers": (lambda h: (h, h.argmax(-1), 2, float(h.sum() > 0)), lambda a: a[0] * a[2] + a[3] + a[1][..., None]),
    "views": (lambda h: h.split(WIDTH // 2, -1), lambda a: torch.cat(a[::-1], -1)),
}  # fmt: skip

for _name, (_pack, _unpack) in ANSWERS.items():

    def _of_blocks(pack=_pack, unpack=_unpack):
        def what(it, x):
            x = it.first(x)
            for block in it.blocks:
                x = unpack(block(x))
            return it.last(x)

        return Net(what, block=lambda: Block(lambda it, x: pack(x + it.layer(x).tanh())))

    def _of_models(pack=_pack, unpack=_unpack):
        return Net(lambda it, x: pack(it.last(it.through(it.first(x))))), calls(lambda model, x: unpack(model(x)))

    FORMS[f"blocks answer {_name}"], FORMS[f"it answers {_name}"] = Form(_of_blocks), Form(_of_models)


@form
def none_from_a_block():
    def what(it, x):
        x = it.first(x)
        for block in it.blocks:
            found = block(x)
            x = x if found is None else found
        return it.last(x)

    model = Net(what)
    model.blocks[1].what = lambda it, x: None
    return model


@form
def keywords():
    block = lambda it, x, *, scale, mask=None: x + it.layer(x) * scale * (1 if mask is None else mask)  # noqa: E731
    return Net(lambda it, x, double=False: it.last(it.through(it.first(x), scale=x.mean(), mask=None)) * (2 if double else 1),
               block=lambda: Block(block)), calls(lambda model, x: model(x=x, double=True))  # fmt: skip


@form
def arguments_of_any_number():
    def what(it, *args, **kwargs):
        return it.last(it.through(it.first(args[0]), *args[1:], **kwargs))

    model = Net(what, block=lambda: Block(lambda it, x, *more, **named: x + it.layer(x) * more[0] + sum(named.values())))
    return model, calls(lambda model, x: model(x, x.mean(), one=0.5, two=x.std()))


@form
def argument_that_is_none_at_times():
    what = lambda it, x, mask=None: it.last(it.through(it.first(x)) if mask is None else it.first(x) * mask)  # noqa: E731
    return Net(what), calls(lambda model, x: model(x, mask=None if x[0, 0, 0] > 0 else torch.full((WIDTH,), 0.5)))


@form
def one_argument_twice():
    def what(it, x):
        x = it.first(x)
        for block in it.blocks:
            x = block(x, x)
        return it.last(x)

    return Net(what, block=lambda: nn.Bilinear(WIDTH, WIDTH, WIDTH))


@form
def batch_that_is_a_dict():
    model = Net(lambda it, given, target=None: judged(it.last(it.through(it.first(given["x"]))), target))
    train = [{"x": torch.randn(WIDTH), "target": torch.randn(WIDTH), "name": "a"} for _ in range(24)]
    return model, {"train": train, "loss": lambda model, batch: model({"x": batch["x"]}, target=batch["target"])}


@form
def list_that_grows():
    """As DenseNet: each block is given the answers of all before it."""

    def what(it, x):
        found = [it.first(x)]
        for block in it.blocks:
            found = [*found, block(found)]
        return it.last(sum(found))

    return Net(what, block=lambda: Block(lambda it, found: it.layer(torch.stack(found).mean(0)).tanh())), {}


@form
def list_in_which_the_answers_are_put():
    def what(it, x):
        found = [it.first(x)]
        for block in it.blocks:
            found.append(block(found[-1]))
        return it.last(torch.stack(found).sum(0))

    return Net(what)


@form(may=LINE)
def list_that_blocks_append_to():
    def what(it, x):
        found = []
        return it.last(it.through(it.first(x), found) + sum(found))

    return Net(what, block=lambda: Block(lambda it, x, found: found.append(it.layer(x)) or x + found[-1]))


class Holder:
    """Of tensors, which nobody but the model knows to look into."""

    def __init__(self, **held):
        self.__dict__.update(held)


@form(may=LINE)
def tensor_in_an_object():
    def what(it, x):
        x = it.first(x)
        return it.last(it.through(x, Holder(scale=x.mean(1, keepdim=True).sigmoid())))

    return Net(what, block=lambda: Block(lambda it, x, held: x + it.layer(x) * held.scale))


@form(may=LINE)
def object_from_blocks():
    def what(it, x):
        x = it.first(x)
        for block in it.blocks:
            x = block(x).hidden
        return it.last(x)

    return Net(what, block=lambda: Block(lambda it, x: Holder(hidden=x + it.layer(x))))


@form(may=LINE)
def tensor_that_goes_by_an_attribute():
    """As a condition that is put into each block before it is called."""

    def what(it, x):
        x = it.first(x)
        for block in it.blocks:
            block.given["scale"] = x.mean(1, keepdim=True).sigmoid()
            x = block(x)
        return it.last(x)

    return Net(what, block=lambda: Block(lambda it, x: x + it.layer(x) * it.given["scale"], given={}))


@form(may=LINE)
def tensor_that_a_block_leaves_for_a_later_one():
    left = {}
    model = Net()
    model.blocks[0].what = lambda it, x: left.update(h=it.layer(x)) or x + left["h"]
    model.blocks[3].what = lambda it, x: x + it.layer(x) * left["h"]
    return model


@form
def sparse_argument():
    def what(it, x):
        near = torch.eye(LENGTH).roll(1, 1).to_sparse()
        return it.last(it.through(it.first(x), near))

    mixed = lambda it, x, near: x + torch.stack([torch.sparse.mm(near, each) for each in it.layer(x)])  # noqa: E731
    return Net(what, block=lambda: Block(mixed))


# ---- how parts are joined ----


@form
def skips_over_parts():
    """As a U-Net."""

    def what(it, x):
        one = it.blocks[0](it.first(x))
        two = it.blocks[1](one)
        return it.last(it.join(torch.cat([it.blocks[3](it.blocks[2](two) + two), one], -1)))

    return Net(what, join=nn.Linear(2 * WIDTH, WIDTH))


@form
def net_of_images_with_skips():
    def what(it, x):
        kept = []
        for block in it.blocks:
            kept.append(x := block(x))
            x = functional.max_pool2d(x, 2)
        for up in it.up:
            x = up(torch.cat([functional.interpolate(x, scale_factor=2), kept.pop()], 1))
        return it.last(x).mean((2, 3))

    layers = iter([(3, 6), (6, 8)])
    up = nn.ModuleList(nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.ReLU()) for i, o in ((16, 8), (14, 6)))
    down = lambda: nn.Sequential(nn.Conv2d(*next(layers), 3, padding=1), nn.ReLU())  # noqa: E731
    model = Net(what, block=down, count=2, first=nn.Identity(), last=nn.Conv2d(6, 3, 1), up=up)
    return model, images(train=[torch.randn(3, 4, 4) for _ in range(24)])


@form
def answer_that_all_later_blocks_use():
    """As T5's decoder uses the encoder's answer."""

    def what(it, x):
        encoded = it.blocks[1](it.blocks[0](it.first(x)))
        y = x
        for block in it.blocks[2:]:
            y = block(y, encoded)
        return it.last(y)

    cross = lambda it, x, other=None: x + it.layer(x if other is None else x + other).tanh() * (1 if other is None else other)  # noqa: E731
    return Net(what, block=lambda: Block(cross))


@form
def bias_that_all_blocks_share():
    def what(it, x):
        positions = torch.arange(x.shape[1])
        bias = it.bias(positions[:, None] - positions + LENGTH)[..., 0]
        return it.last(it.through(it.first(x), bias))

    return Net(what, block=lambda: Block(lambda it, x, bias: x + (bias.softmax(-1) @ it.layer(x))), bias=nn.Embedding(2 * LENGTH, 1))


@form
def residuals_outside_of_units():
    lstm = lambda: nn.LSTM(WIDTH, WIDTH, batch_first=True)  # noqa: E731

    def what(it, tokens):
        h = it.first(tokens)
        for layer in it.layers:
            h = h + it.drop(layer(h)[0])
        return it.last(it.norm(h))

    return words(what, tied=True, layers=nn.ModuleList(lstm() for _ in range(3)), drop=nn.Dropout(0.2), norm=nn.LayerNorm(WIDTH))


@form
def residuals_of_norms_outside_of_blocks():
    def what(it, x):
        x = it.first(x)
        for norm, block in zip(it.norms, it.blocks, strict=True):
            x = x + 0.5 * block(norm(x))
        return it.last(x)

    return Net(what, block=lambda: nn.Linear(WIDTH, WIDTH), norms=nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(4)))


@form(may=r"words?\.|first\.weight|tied|one name|far apart")
def embedding_that_answers_too():
    return words(lambda it, tokens: functional.linear(it.through(it.first(tokens)), it.first.weight))


@form
def head_tied_to_the_embedding():
    return words(tied=True)


@form
def one_block_that_is_called_four_times():
    """As ALBERT."""

    def what(it, x):
        x = it.first(x)
        for _ in range(4):
            x = it.blocks[0](x)
        return it.last(x)

    return Net(what)


@form
def one_block_at_four_places():
    block = Block()
    return Net(block=lambda: block)


@form
def weight_of_two_blocks():
    model = Net()
    model.blocks[3].layer.weight = model.blocks[0].layer.weight
    return model


@form
def blocks_in_reverse():
    def what(it, x):
        x = it.first(x)
        for block in reversed(it.blocks):
            x = block(x)
        return it.last(x)

    return Net(what)


@form
def forth_and_back():
    def what(it, x):
        x = it.first(x)
        for block in (*it.blocks, *reversed(it.blocks)):
            x = block(x)
        return it.last(x)

    return Net(what)


@form
def nested_dicts_of_modules():
    make = lambda: nn.ModuleDict({"a": Block(), "b": nn.ModuleDict({"c": Block(), "d": nn.ModuleList([Block(), Block()])})})  # noqa: E731

    def what(it, x):
        x = it.first(x)
        for each in it.tree.values():
            x = each["b"]["d"][1](each["b"]["d"][0](each["b"]["c"](each["a"](x))))
        return it.last(x)

    return Net(what, tree=nn.ModuleDict({"one": make(), "two": make()}))


@form
def block_that_calls_another_one_s_layer():
    model = Net()
    model.blocks[2].what = lambda it, x: x + model.blocks[0].layer(it.layer(x)).tanh()
    return model


@form
def block_that_reads_another_one_s_weight():
    model = Net()
    model.blocks[2].what = lambda it, x: x + it.layer(x) * model.blocks[0].layer.weight.mean()
    return model


@form
def weights_that_the_root_reads():
    return Net(lambda it, x: it.last(it.through(it.first(x))) + sum(block.layer.weight.mean() for block in it.blocks))


@form
def root_that_calls_layers_inside_of_blocks():
    def what(it, x):
        x = it.first(x)
        for block in it.blocks:
            x = x + block.layer(x).tanh()
        return it.last(x)

    return Net(what)


@form
def forward_that_is_called_itself():
    def what(it, x):
        x = it.first(x)
        for block in it.blocks:
            x = block.forward(x)
        return it.last.forward(x)

    return Net(what)


@form(may=LINE)
def forward_of_the_class():
    def what(it, x):
        x = it.first(x)
        for block in it.blocks:
            x = Block.forward(block, x)
        return it.last(x)

    return Net(what)


@form
def forward_that_was_replaced():
    model = Net()
    for block in model.blocks:
        block.forward = lambda x, it=block: x + 2 * it.layer(x)
    return model


@form(may=LINE)
def called_with_other_weights():
    def what(it, x):
        x = it.first(x)
        for block in it.blocks:
            x = torch.func.functional_call(block, {"layer.weight": block.layer.weight * 0.5}, (x,))
        return it.last(x)

    return Net(what)


@form(may=LINE)
def scripted_blocks():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *(torch.jit.trace(Block(), torch.randn(2, LENGTH, WIDTH)) for _ in range(3)))


@form
def hooks_on_what_flows():
    def what(it, x):
        x = it.first(x)
        x.register_hook(lambda gradient: gradient * 0.5)
        return it.last(it.through(x))

    def block(it, x):
        y = it.layer(x)
        y.register_hook(lambda gradient: gradient * 2)
        return x + y

    return Net(what, block=lambda: Block(block))


@form
def attention_of_the_root():
    return Net(lambda it, x: it.last((y := it.through(it.first(x))) + it.attention(y, y, y, need_weights=False)[0]),
               attention=nn.MultiheadAttention(WIDTH, 2, batch_first=True))  # fmt: skip


@form(may=LINE)
def teacher_that_follows():
    """As in MoCo: its weights are a mean of the student's, moved by the forward."""

    def what(it, x):
        with torch.no_grad():
            for slow, fast in zip(it.teacher.parameters(), it.blocks.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
            wanted = it.first(x)
            for block in it.teacher:
                wanted = block(wanted)
        return it.last(it.through(it.first(x)) - wanted)

    return Net(what, teacher=nn.ModuleList(Block() for _ in range(4)).requires_grad_(False))


@form
def blocks_side_by_side():
    return Net(lambda it, x: it.last(torch.stack([block(it.first(x)) for block in it.blocks]).mean(0)))


@form
def sequential():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3)))


@form
def one_layer():
    return nn.Linear(WIDTH, WIDTH)


@form
def block_that_answers_its_argument():
    model = Net()
    model.blocks[1].what = lambda it, x: x
    model.blocks[2].what = lambda it, x: x.transpose(0, 1).transpose(0, 1)
    return model


@form
def block_whose_answer_is_detached():
    def what(it, x):
        x = it.blocks[0](it.first(x))
        return it.last(it.blocks[3](it.blocks[1](x).detach() + it.blocks[2](x)))

    return Net(what)


@form
def blocks_without_gradients():
    def what(it, x):
        x = it.first(x)
        with torch.no_grad():
            x = it.blocks[1](it.blocks[0](x))
        return it.last(it.blocks[2](x))

    return Net(what)


@form
def no_gradients_in_a_block():
    model = Net()
    model.blocks[1].what = lambda it, x: x + it.layer(x).detach()
    return model


# ---- weights beside and inside of blocks ----


@form
def class_token_positions_and_a_scale():
    def what(it, x):
        x = torch.cat([it.token.expand(len(x), -1, -1), it.first(x)], 1) + it.positions
        return it.last(it.through(x)[:, 0] * it.scale).unsqueeze(1).expand(-1, LENGTH, -1)

    return Net(what, token=nn.Parameter(torch.randn(1, 1, WIDTH)), positions=nn.Parameter(torch.randn(1, LENGTH + 1, WIDTH)),
               scale=nn.Parameter(torch.tensor(0.5)))  # fmt: skip


@form
def list_of_parameters():
    def what(it, x):
        x = it.first(x)
        for scale, block in zip(it.scales, it.blocks, strict=True):
            x = block(x) * scale
        return it.last(x)

    return Net(what, scales=nn.ParameterList(torch.rand(WIDTH) for _ in range(4)), ends=nn.ParameterDict({"a": torch.rand(2)}))


@form
def scale_of_each_layer_in_blocks():
    return blocks(lambda it, x: x + it.scale * it.layer(x), scale=lambda: nn.Parameter(torch.full((WIDTH,), 0.1)))


class Queries(nn.Module):
    """It is given nothing, and answers its weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(LENGTH, WIDTH))

    def forward(self):
        return self.weight


@form
def modules_that_answer_their_weights():
    def what(it, x):
        x = it.first(x)
        for block, queries in zip(it.blocks, it.queries, strict=True):
            x = block(x) * queries()
        return it.last(x)

    return Net(what, queries=nn.ModuleList(Queries() for _ in range(4)))


@form
def standardised_weights():
    def what(it, x):
        weight = it.layer.weight
        return x + functional.linear(x, (weight - weight.mean(1, keepdim=True)) / (weight.std(1, keepdim=True) + 1e-5), it.layer.bias)

    return blocks(what)


@form
def weight_norm():
    return Net(block=lambda: parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)))


@form
def weight_norm_as_it_was():
    return Net(block=lambda: torch.nn.utils.weight_norm(nn.Linear(WIDTH, WIDTH)))


@form
def spectral_norm():
    return Net(block=lambda: parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)))


@form
def spectral_norm_as_it_was():
    return Net(block=lambda: torch.nn.utils.spectral_norm(nn.Linear(WIDTH, WIDTH)))


class Symmetric(nn.Module):
    def forward(self, x):
        return (x + x.T) / 2


@form
def parametrized_weight():
    model = Net()
    for block in model.blocks:
        parametrize.register_parametrization(block.layer, "weight", Symmetric())
    return model


@form
def unused_weights():
    model = Net(spare=nn.Linear(WIDTH, WIDTH), token=nn.Parameter(torch.zeros(3)))
    model.blocks[2].spare = nn.Linear(WIDTH, WIDTH)
    return model


@form
def frozen_parts():
    model = Net()
    for each in (model.first, model.blocks[1], model.blocks[2].layer.bias):
        each.requires_grad_(False)
    return model


@form
def frozen_but_for_the_head():
    model = Net()
    model.requires_grad_(False)
    model.last.requires_grad_(True)
    return model


@form
def adapters_beside_frozen_layers():
    model = blocks(lambda it, x: x + it.layer(x) + it.up(it.down(x)), down=lambda: nn.Linear(WIDTH, 2), up=lambda: nn.Linear(2, WIDTH))
    for block in model.blocks:
        block.layer.requires_grad_(False)
    return model


@form
def frozen_from_a_step_on():
    model = Net()
    return model, from_step(lambda: model.blocks[0].requires_grad_(False))


@form(may=LINE)
def trained_from_a_step_on():
    model = Net()
    model.blocks[0].layer.bias.requires_grad_(False)
    return model, from_step(lambda: model.blocks[0].layer.bias.requires_grad_(True))
