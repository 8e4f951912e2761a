"""Costs of suspension and resumption as they were measured, to be asked for by name."""

from __future__ import annotations

from collections.abc import Mapping

from .run_options import Costs

#: `thesis`: 002 ch. 5.3.2.3 with fig. 5.3. Suspension takes up to 4 s, whatever the model and the number of GPUs (fig. 5.3a).
#: Resumption grows with the GPUs, and that of VGG19 on 16 differs from that on 2 by at most 5 s (fig. 5.3b as the text reads it).
#: Its height is drawn but not printed; 18 s is what the author's later simulator (Titan) takes for one GPU.
PRESETS: Mapping[str, Costs] = {
    "none": Costs(),
    "thesis": Costs(suspend=4.0, resume=18.0, resume_per_gpu=5.0 / 14.0),
}
