"""The regularisation that a training loses by reuse (004 ch. 4.3), and the settings that lose too much.

Training for tau steps of size eps from small weights regularises as L2 with alpha ~ 1 / (tau eps) does (Eqn 4.21); more steps on
the same data are less of it. The derivation is approximate, and so is everything here: the step from (4.20) to (4.21) takes
logarithms and keeps their first terms, which needs eps lambda_i << 1 and lambda_i / alpha << 1 for the eigenvalues lambda_i of
the Hessian, and a quadratic loss. (The argument around Eqns 4.10 and 4.11, that n uses multiply the squared error by n^2, scales
the estimate itself by n, which n uses of a sample do not do; nothing here rests on it.)

The tau of a sample with r uses depends on their distance. Uses in successive steps are r steps on the same sample; uses a whole pass
apart are as in a training without reuse. With g batches between two uses and the share f of the data in the buffer we count
1 + (r - 1) (1 - f) / g. That reproduces the text's results for r = 3, augmented at each use: 1 and 2 batches of buffer (tau 2.9 and
1.7) missed the accuracy, 3 batches (1.4) of CIFAR-10 and 16 (1.1) of ImageNet met it. Without augmentation uses resemble each other
more; the lower bound for that case is ours.
"""

from __future__ import annotations

import math

_BAD_AUGMENTED = 1.6  #: successive steps on a sample from which on there is a warning: between the text's 2 and 3 batches
_BAD_REPEATED = 1.3  #: the same if a sample looks the same at each use


def successive_uses(repeat: int, buffer_batches: float, share: float = 0.0) -> float:
    """tau: the number of successive steps on a sample that equal its ``repeat`` uses; 1 in a training without reuse.

    ``buffer_batches``: samples in the buffer / samples in a batch; ``share``: samples in the buffer / samples of the data.
    """
    if repeat <= 1:
        return 1.0
    return 1 + (repeat - 1) * (1 - min(1.0, share)) / gap(repeat, buffer_batches)


def gap(repeat: int, buffer_batches: float) -> float:
    """Batches between two uses of a sample, in the mean (Little's law; see `buffer`)."""
    return max(1.0, (buffer_batches - 1 / repeat) / (1 - 1 / repeat))


def implied_decay(steps: float, lr: float) -> float:
    """alpha of Eqn 4.21: the L2 coefficient equivalent to stopping after so many steps. ``lr``: the mean learning rate."""
    return math.inf if steps <= 0 or lr <= 0 else 1 / (steps * lr)


def buffer_needed(repeat: int, share_per_batch: float, *, augment: bool) -> int:
    """Batches of buffer from which on there is no warning. ``share_per_batch``: samples in a batch / samples of the data."""
    batches = 1
    while successive_uses(repeat, batches, batches * share_per_batch) >= _bound(augment):
        batches += 1
    return batches


def _bound(augment: bool) -> float:
    return _BAD_AUGMENTED if augment else _BAD_REPEATED


def warning(
    *, repeat: int, buffer: int, batch_size: int, samples: int, steps: int, lr: float, weight_decay: float, augment: bool
) -> str | None:
    """One sentence if these settings are likely to cost accuracy before fine-tuning; else None.

    ``buffer``, ``samples``: samples in a rank's buffer and in a rank's part of the data; ``steps``: of the whole training;
    ``lr``: its mean or typical learning rate; ``weight_decay``: as L2, the coefficient of `torch.optim.SGD`; ``augment``: whether
    a sample looks different at each use, so that its uses are not mere repetitions.
    """
    tau = successive_uses(repeat, buffer / batch_size, buffer / samples)
    before, after = implied_decay(steps, lr), implied_decay(steps * tau, lr)
    if tau < _bound(augment) or before - after <= weight_decay:
        return None
    wanted = buffer_needed(repeat, batch_size / samples, augment=augment) * batch_size
    return (
        f"reuse: {repeat} uses of a sample through a buffer of {buffer} "
        f"({buffer / samples:.1%} of the data, {buffer / batch_size:.2g} batches) are like {tau:.1f} successive steps on it: "
        f"the regularisation that {steps} steps of learning rate {lr:.2g} imply falls from "
        f"{before:.1e} to {after:.1e} (weight decay: {weight_decay:.1e}), so expect overfitting until the stage without reuse; "
        f"set reuse.shuffle_buffer to {wanted} or more, or reuse.repeat lower"
    )
