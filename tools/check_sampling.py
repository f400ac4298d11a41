#!/usr/bin/env python3
"""What `transformers` makes of a few logits: the numbers in tests/model/sampling_test.cpp.

Needs `pip install torch transformers`. Prints, for each set of options, the ids that are left and their probabilities, after the
processors of `generate` in its own order: repetition penalty, temperature, top-k, top-p, min-p.
"""

import torch
from transformers import (LogitsProcessorList, MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper,
                          TopKLogitsWarper, TopPLogitsWarper)

LOGITS = [1.5, -0.25, 3.0, 0.75, 2.25, -1.0, 3.0, 0.0, 1.25, -2.5, 2.0]
SEEN = [2, 9, 4, 2]
CASES = [
    dict(temperature=1.0),
    dict(temperature=0.5),
    dict(temperature=1.0, top_k=3),
    dict(temperature=1.0, top_k=1),
    dict(temperature=1.0, top_p=0.7),
    dict(temperature=1.0, top_p=0.1),
    dict(temperature=2.0, min_p=0.4),
    dict(temperature=1.0, repetition_penalty=1.5),
    dict(temperature=0.7, top_k=6, top_p=0.85, min_p=0.2, repetition_penalty=1.3),
]


def processors(options):
    found = LogitsProcessorList()
    if "repetition_penalty" in options:
        found.append(RepetitionPenaltyLogitsProcessor(options["repetition_penalty"]))
    found.append(TemperatureLogitsWarper(options["temperature"]))
    if "top_k" in options:
        found.append(TopKLogitsWarper(options["top_k"]))
    if "top_p" in options:
        found.append(TopPLogitsWarper(options["top_p"]))
    if "min_p" in options:
        found.append(MinPLogitsWarper(options["min_p"]))
    return found


for options in CASES:
    scores = processors(options)(torch.tensor([SEEN]), torch.tensor([LOGITS]))
    chances = scores.double().softmax(-1)[0]
    print(options, {i: round(p, 6) for i, p in enumerate(chances.tolist()) if p > 0})
