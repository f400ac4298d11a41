#!/usr/bin/env python3
"""Compares Cairn's tokenizers with the PyPI package `tokenizers`: the same ids, and the same text again, on 100,000 strings each.

    python3 -m venv build/peers && build/peers/bin/pip install tokenizers sentencepiece
    build/peers/bin/python tools/check_tokenizers.py [--cairn PROGRAM] [--strings N] [--gpt2 FOLDER] [--sentencepiece FILE]
        [--llama2c FILE] [--text FILE]...

Vocabularies are learned here, with the patterns and parts that the real files have, from the texts given (else from Cairn's own
stories and this repository's pages); GPT-2's own files, a SentencePiece model and a llama2.c tokenizer are checked where given.
Strings are lines of the texts, and made up: white space, contractions, digits, marks, special tokens, characters of all Unicode.
Ends with 0 only if every id and every decoded text is equal.
"""
import argparse
import glob
import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + REST
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + REST
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + CONTRACTIONS + r"?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + CONTRACTIONS + r"?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>"]


def byte_level(texts, pre, normalizer=None, vocab=3000, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(SPECIALS)
    return tokenizer


def split(pattern, *more):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), *more,
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def characters(texts, vocab=2000):
    """As Llama 2: characters with a mark for the space, bytes for those without a piece."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    fixed = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % byte for byte in range(256)]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=vocab, special_tokens=fixed, limit_alphabet=150, show_progress=False))
    tokenizer.pre_tokenizer = None
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    written = json.loads(tokenizer.to_str())
    written["added_tokens"] = written["added_tokens"][:3]
    return written


def llama2(texts):
    written = characters(texts)
    written["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                                                               {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    tokenizer = Tokenizer.from_str(json.dumps(written))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return tokenizer


def mistral(texts, scheme, cut):
    written = characters(texts)
    written["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}
    return Tokenizer.from_str(json.dumps(written))


def with_odd_tokens(tokenizer):
    tokenizer.add_tokens([AddedToken("word", single_word=True), AddedToken("<mask>", lstrip=True, rstrip=True, special=True),
                          AddedToken("<left>", lstrip=True), AddedToken("<right>", rstrip=True, normalized=True), AddedToken("é!"),
                          AddedToken("<mask>x", normalized=False)])
    return tokenizer


def tokenizers_of(options, texts):
    """(name, the peer, the file for ours, whether its pattern has no scanner and is run by PCRE2)."""
    found = []
    for folder in options.gpt2:
        names = [(a, b) for a, b in (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"), ("gpt2-encoder.json", "gpt2-vocab.bpe"))
                 if os.path.exists(os.path.join(folder, a))]
        vocab, merges = (os.path.join(folder, name) for name in names[0])
        peer = Tokenizer(models.BPE.from_file(vocab, merges))
        peer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        peer.decoder = decoders.ByteLevel()
        peer.add_special_tokens(["<|endoftext|>"])
        found.append(("GPT-2, its own files", peer, vocab, False))
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made = [("GPT-2 pattern", byte_level(texts, plain), False),
            ("Llama 3 pattern", byte_level(texts, split(LLAMA3), ignore_merges=True), False),
            ("Qwen pattern, NFC", byte_level(texts, split(QWEN2), normalizers.NFC()), False),
            ("Llama 2", llama2(texts), False),
            ("Mistral, Metaspace", mistral(texts, "first", False), False),
            ("Metaspace, cut", mistral(texts, "always", True), False),
            ("GPT-4o pattern", byte_level(texts, split(O200K)), True),
            ("several cuts", byte_level(texts, split(r"\p{N}{1,3}", pre_tokenizers.Split(Regex("[一-龥぀-ゟ゠-ヿ]+"), "isolated"),
                                                     pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Split("-", "merged_with_previous"))), True),
            ("prefix space, NFKC, odd added tokens", with_odd_tokens(byte_level(texts, pre_tokenizers.ByteLevel(add_prefix_space=True), normalizers.NFKC())), False)]
    for name, peer, general in made:
        path = os.path.join(options.scratch, name.replace(" ", "_").replace(",", "") + ".json")
        peer.save(path)
        found.append((name, peer, path, general))
    for path in options.sentencepiece:
        import sentencepiece
        found.append(("SentencePiece " + os.path.basename(path), sentencepiece.SentencePieceProcessor(model_file=path), path, False))
    for path in options.llama2c:  # ours writes a tokenizer.json, which the peer opens
        found.append(("llama2.c " + os.path.basename(path), Tokenizer.from_str(run(options, ["--tokenizer", path, "--tokenizer-json"], "")), path, False))
    return found


def made_up(rng, known):
    """One string; `known` keeps to characters that every Unicode version at hand has."""
    parts = []
    for _ in range(rng.randint(0, 12)):
        kind = rng.randrange(14)
        if kind == 0:
            parts.append("".join(rng.choice(" \t\n\r\x0b\x0c\x85\xa0\u2003\u2028\u3000\u180e\u200b") for _ in range(rng.randint(1, 5))))
        elif kind == 1:
            parts.append(rng.choice(["'s", "'S", "'t", "'LL", "'re", "'Ve", "'ſ", "'", "''", "'d", "'M", "’s"]))
        elif kind == 2:
            parts.append("".join(rng.choice("0123456789٣४½²Ⅷ") for _ in range(rng.randint(1, 7))))
        elif kind == 3:
            parts.append(rng.choice(SPECIALS + ["<mask>", " <mask> ", "<mask>x", "word", "sword", "<left>", "<right>", "é!", "<|im", "<unk>", "▁", "<0x41>"]))
        elif kind == 4:
            parts.append(rng.choice("aeoui나가각") + "".join(chr(rng.randrange(0x300, 0x370)) for _ in range(rng.randint(1, 3))))
        elif kind == 5:
            parts.append(rng.choice(["한국어", "ᄀ" + "ᅡ" + "ᆨ", "日本語", "中文字符", "हिन्दी", "ไทย", "עברית", "العربية", "Ελληνικά", "русский"]))
        elif kind == 6:
            parts.append(rng.choice(["👍", "👨‍👩‍👧", "🏳️‍🌈", "™", "…", "—", "€", "ﬁ", "Å", "Ω", "ǆ", "İ", "ß"]))
        elif kind == 7:
            parts.append("".join(rng.choice("!?.,;:-_/\\()[]{}<>|@#$%^&*+=~`\"") for _ in range(rng.randint(1, 4))))
        elif kind == 8:
            while True:
                c = chr(rng.randrange(0x80, 0x110000) if rng.random() < 0.3 else rng.randrange(0x80, 0x3000))
                if not 0xD800 <= ord(c) <= 0xDFFF and (not known or unicodedata.category(c) != "Cn"):
                    break
            parts.append(c)
        elif kind == 9:
            parts.append(" " * rng.randint(1, 6))
        elif kind == 10:
            parts.append(rng.choice("abcxyz") * rng.randint(1, 60))
        else:
            parts.append(rng.choice(["", " ", " "]) + rng.choice(["the", "and", "Hello", "world", "tokenizer", "it", "don", "I", "HTTP", "camelCase"]))
    return "".join(parts)


def unknown_to_peer():
    """Characters that the peer's normal forms, of an older Unicode, do not know: marks that it leaves behind one that goes last, and
    those that it does not take apart."""
    nfkd = normalizers.NFKD()
    characters = [chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    marks = {c for c in characters if 0 < unicodedata.combining(c) < 240 and nfkd.normalize_str("\u0345" + c)[0] == "\u0345"}
    return marks | {c for c in characters if unicodedata.decomposition(c) and nfkd.normalize_str(c) == c}


def run(options, arguments, lines):
    done = subprocess.run([options.cairn, "tokenize", *arguments], input=lines.encode(), capture_output=True)
    if done.returncode:
        sys.exit(f"cairn tokenize {' '.join(arguments)}: {done.stderr.decode()}")
    return done.stdout.decode()


def compare(options, name, peer, path, strings):
    """Prints the differences; their number."""
    lines = "".join(json.dumps(text) + "\n" for text in strings)
    plain = ["--plain-specials"] if hasattr(peer, "piece_to_id") else []  # SentencePiece itself knows none in a text
    ours = [json.loads(line) for line in run(options, ["--tokenizer", path, "--lines", *plain], lines).split("\n")[:-1]]
    theirs = peer.encode(strings) if hasattr(peer, "piece_to_id") else [e.ids for e in peer.encode_batch(strings, add_special_tokens=False)]
    wrong = [i for i in range(len(strings)) if ours[i] != theirs[i]]
    if not plain:  # and with what belongs around a text
        some = strings[-1000:]
        around = [json.loads(line) for line in run(options, ["--tokenizer", path, "--lines", "--add-special"], "".join(json.dumps(t) + "\n" for t in some)).split("\n")[:-1]]
        wrong += [len(strings) - len(some) + i for i, e in enumerate(peer.encode_batch(some)) if e.ids != around[i]]
    decoded = [json.loads(line) for line in run(options, ["--tokenizer", path, "--lines", "--decode"], "".join(json.dumps(ids) + "\n" for ids in theirs)).split("\n")[:-1]]
    texts = peer.decode(theirs) if hasattr(peer, "piece_to_id") else peer.decode_batch(theirs, skip_special_tokens=False)
    unlike = [i for i in range(len(strings)) if decoded[i] != texts[i]]
    print(f"{name:40} {len(strings)} strings: {len(wrong)} encoded otherwise, {len(unlike)} decoded otherwise", flush=True)
    for i in wrong[:5]:
        print(f"  {strings[i]!r}\n    ours   {ours[i]}\n    theirs {theirs[i]}")
    for i in unlike[:5]:
        print(f"  {theirs[i]}\n    ours   {decoded[i]!r}\n    theirs {texts[i]!r}")
    return len(wrong) + len(unlike)


def compare_trainers(options, texts):
    """Both learn 2,000 pieces from the same text. They number the bytes otherwise, so ties fall otherwise: nearly all pieces agree."""
    path, ours = os.path.join(options.scratch, "learn.txt"), os.path.join(options.scratch, "learned.json")
    text = "".join(texts[:20000])
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(text)
    run(options, ["train", path, "--vocab", "2000", "--out", ours], "")
    peer = Tokenizer(models.BPE())
    peer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    peer.train_from_iterator([text], trainers.BpeTrainer(vocab_size=2000, min_frequency=2, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                                         special_tokens=["<|endoftext|>"], show_progress=False))
    mine = Tokenizer.from_file(ours)
    shared = len(set(mine.get_vocab()) & set(peer.get_vocab()))
    lengths = [len(tokenizer.encode(text).ids) for tokenizer in (mine, peer)]
    good = shared >= 1950 and abs(lengths[0] / lengths[1] - 1) < 0.001
    print(f"{'trainers':40} {shared} of 2000 pieces identical; the text has {lengths[0]} tokens of ours, {lengths[1]} of theirs")
    return 0 if good else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser.add_argument("--cairn", default=os.path.join(root, "build/release/cairn"))
    parser.add_argument("--strings", type=int, default=100000)
    parser.add_argument("--only", default="", help="part of a name")
    parser.add_argument("--seed", type=int, default=1)
    for name in ("gpt2", "sentencepiece", "llama2c", "text"):
        parser.add_argument("--" + name, action="append", default=[])
    options = parser.parse_args()
    files = options.text or glob.glob(os.path.join(root, "docs/*/*.md")) + glob.glob(os.path.join(root, "src/data/*.cpp"))
    texts = []
    for path in files:
        with open(path, encoding="utf-8", errors="ignore") as file:
            texts += [line for line in file.read(4_000_000).splitlines(keepends=True) if line.strip()]
    rng = random.Random(options.seed)
    texts += [made_up(rng, True) for _ in range(3000)]
    unknown = unknown_to_peer()
    failures = 0
    with tempfile.TemporaryDirectory() as options.scratch:
        if options.only in "trainers":
            failures += compare_trainers(options, [text for text in texts if "<|endoftext|>" not in text])
        for name, peer, path, general in tokenizers_of(options, texts):
            if options.only not in name:
                continue
            real = rng.sample(texts, min(len(texts), options.strings // 4))
            strings = real + [made_up(rng, general or "NF" in name or "Sentence" in name) for _ in range(options.strings - len(real))]
            if "NF" in name:
                strings = ["" if unknown.intersection(text) else text for text in strings]
            failures += compare(options, name, peer, path, strings)
    print("all equal" if failures == 0 else f"{failures} differences")
    sys.exit(failures > 0)


main()
