#!/usr/bin/env python3
"""Turns a TREC collection (documents and topics as XML, judgements) into folders for data.kind = "retrieval": OUT/train with pairs, OUT/test
with judgements of other queries.

Wrong passages are half the best by BM25 that nobody judged relevant, half random. Scores are 1 and 0: there is no teacher.
Usage: tools/trec_retrieval.py --documents DOCS.xml[.gz] --topics TOPICS.xml --judgements QRELS.txt --out OUT [--test 75] [--wrong 8] [--seed 1]
"""

import argparse
import collections
import gzip
import html
import math
import os
import random
import re

parser = argparse.ArgumentParser()
parser.add_argument("--documents", required=True)
parser.add_argument("--topics", required=True)
parser.add_argument("--judgements", required=True)
parser.add_argument("--out", required=True)
parser.add_argument("--test", type=int, default=75, help="queries that are kept for testing")
parser.add_argument("--wrong", type=int, default=8, help="wrong passages for each relevant one")
parser.add_argument("--seed", type=int, default=1)
a = parser.parse_args()
draw = random.Random(a.seed)


def read(path):
    with (gzip.open(path, "rt", errors="replace") if path.endswith(".gz") else open(path, errors="replace")) as file:
        return file.read()


def inside(tag, text):
    found = re.search(f"<{tag}>(.*?)</{tag}>", text, re.S)
    return " ".join(html.unescape(found.group(1)).split()) if found else ""


passages = {}
for document in re.findall(r"<doc>(.*?)</doc>", read(a.documents), re.S):
    passages[inside("docno", document)] = inside("text", document) or inside("title", document)
topics = re.findall(r"<top>(.*?)</top>", read(a.topics), re.S)
numbers = [inside("num", topic) for topic in topics]
judged = collections.defaultdict(dict)
for line in read(a.judgements).splitlines():
    query, _, passage, grade = line.split()
    if passage in passages:
        judged[query][passage] = int(grade)
# Some collections number their topics with gaps, and judge them by their place.
by_place = not set(judged) <= set(numbers)
queries = {str(i + 1) if by_place else numbers[i]: inside("title", topic) for i, topic in enumerate(topics)}
queries = {query: text for query, text in queries.items() if any(grade > 0 for grade in judged[query].values())}

words = {passage: collections.Counter(re.findall(r"\w+", text.lower())) for passage, text in passages.items()}
lengths = {passage: sum(counts.values()) for passage, counts in words.items()}
mean_length = sum(lengths.values()) / len(lengths)
seen_in = collections.Counter(word for counts in words.values() for word in counts)


def bm25(query, passage, k1=1.2, b=0.75):
    score = 0
    for word in set(re.findall(r"\w+", query.lower())):
        count = words[passage][word]
        rarity = math.log(1 + (len(words) - seen_in[word] + 0.5) / (seen_in[word] + 0.5))
        score += rarity * count * (k1 + 1) / (count + k1 * (1 - b + b * lengths[passage] / mean_length))
    return score


order = sorted(queries)
draw.shuffle(order)
parts = {"test": sorted(order[: a.test], key=int), "train": sorted(order[a.test :], key=int)}
for part, chosen in parts.items():
    folder = os.path.join(a.out, part)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "collection.tsv"), "w") as file:
        file.writelines(f"{passage}\t{text}\n" for passage, text in passages.items())
    with open(os.path.join(folder, "queries.tsv"), "w") as file:
        file.writelines(f"{query}\t{queries[query]}\n" for query in chosen)
    with open(os.path.join(folder, "qrels.tsv"), "w") as file:
        file.writelines(f"{query} 0 {passage} {grade}\n" for query in chosen for passage, grade in judged[query].items())
with open(os.path.join(a.out, "train", "pairs.tsv"), "w") as file:
    for query in parts["train"]:
        others = [passage for passage in passages if judged[query].get(passage, 0) <= 0]
        hard = sorted(others, key=lambda passage: -bm25(queries[query], passage))[:50]
        for right, grade in judged[query].items():
            if grade <= 0:
                continue
            for i in range(a.wrong):
                file.write(f"1\t0\t{query}\t{right}\t{draw.choice(hard if i % 2 == 0 else others)}\n")

# What BM25 reaches on the test queries, to compare with.
found = gain = 0
for query in parts["test"]:
    best = sorted(passages, key=lambda passage: -bm25(queries[query], passage))[:10]
    ranks = [i + 1 for i, passage in enumerate(best) if judged[query].get(passage, 0) > 0]
    found += 1 / ranks[0] if ranks else 0
    relevant = sum(grade > 0 for grade in judged[query].values())
    gain += sum(1 / math.log2(r + 1) for r in ranks) / sum(1 / math.log2(i + 2) for i in range(min(10, relevant)))
tests = len(parts["test"])
print(f"{len(passages)} passages, {len(parts['train'])} training and {tests} test queries; BM25 on the test queries: "
      f"MRR@10 {found / tests:.3f}, NDCG@10 {gain / tests:.3f}")
