"""The peer of `cairn bench tokenizer`: the PyPI package `tokenizers` on one thread, on the same texts with the same tokenizer.json.

Prints one JSON object: the seconds of each round, the number of ids, and their checksum.
"""
import json
import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import Tokenizer  # noqa: E402


def main():
    settings = json.loads(sys.argv[1])
    tokenizer = Tokenizer.from_file(settings["tokenizer"])
    with open(settings["text"], encoding="utf-8", newline="") as file:
        texts = file.read().split(settings["between"])
    seconds = []
    for _ in range(settings["rounds"]):
        began = time.perf_counter()
        encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        seconds.append(time.perf_counter() - began)
    count = checksum = 0
    for one in encoded:
        for token in one.ids:
            count += 1
            checksum = (checksum * 31 + token) % (1 << 32)
    print(json.dumps({"seconds": seconds, "ids": count, "checksum": checksum}))


main()
