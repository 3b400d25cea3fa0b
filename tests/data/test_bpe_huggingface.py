"""Our byte-pair encoding and Hugging Face's tokenizers give the same tokens on a fuzzed corpus."""

import json
import os
import random
import subprocess
from pathlib import Path

import pytest

tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")

BIN = Path(os.environ["CAPSTAN_BIN"])
SOURCE = Path(os.environ["CAPSTAN_SOURCE"])

# Ends of the ranges where classes change, and characters that normalisers and splitters stumble on.
AWKWARD = ("\u00a0\u1680\u2000\u200a\u200b\u2028\u202f\u205f\u3000\u0085\x1c\x1f\x0b\x0c\ufeff\ufffd\u0301"
           "\u00aa\u00b2\u00bc\u2160\u3007\u0e50\U0001d7ce\U0001f600\U00010d40\U0001e5f8\U000323af\ud7ff\ue000\U0010ffff")
WORDS = ["don't", "it's", "we'll", "I'M", "they've", "x'sy", "'d", " 's", "<|endoftext|>", "<|endof", "  ", "\n\n", " \n ", "\t",
         "naïve", "Straße", "мир", "你好世界", "3.14", "1e-5", "٣٤", "int64_t", "->", "{{}}", "…", "😀👍🏽", "e\u0301"]


def texts(count, seed):
    rng = random.Random(seed)

    def any_character():
        while True:
            code = rng.choice([rng.randrange(0x80), rng.randrange(0x3000), rng.randrange(0x110000)])
            if not 0xd800 <= code < 0xe000:
                return chr(code)

    result = ["", " ", "a" * 300, "ab" * 2000]
    for _ in range(count):
        pieces = [rng.choice([rng.choice(WORDS), rng.choice(AWKWARD), any_character(), " ", rng.choice("abcXYZ019'._- \n")])
                  for _ in range(rng.randrange(30))]
        result.append("".join(pieces))
    return result


def repository_text():
    files = sorted([*SOURCE.rglob("capstan/**/*.h"), *SOURCE.rglob("*.md")])
    return [path.read_text(errors="ignore")[:20000] for path in files[:60]]


def make_tokenizer(path, vocab_size, **options):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, **options)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(repository_text() + texts(300, seed=99), trainer)
    tokenizer.save(str(path))
    return tokenizer


def our_tokens(tokenizer_json, samples, folder, round_trip=True):
    with open(folder / "texts", "wb") as file:
        for sample in samples:
            data = sample.encode()
            file.write(f"{len(data)}\n".encode() + data)
    environment = dict(os.environ, **({"EXPECT_ROUND_TRIP": "1"} if round_trip else {}))
    subprocess.run([BIN / "bpe_encode", tokenizer_json, folder / "texts", folder / "out"], check=True, env=environment,
                   timeout=300)
    return [[int(token) for token in line.split()] for line in (folder / "out").read_text().splitlines()]


def compare(tokenizer, path, samples, folder, round_trip=True):
    ours = our_tokens(path, samples, folder, round_trip)
    assert len(ours) == len(samples)
    for sample, tokens in zip(samples, ours):
        assert tokens == tokenizer.encode(sample, add_special_tokens=False).ids, repr(sample)


def test_fuzzed_text_and_the_repositorys_own(tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizer = make_tokenizer(path, vocab_size=1500)
    compare(tokenizer, path, texts(3000, seed=1) + repository_text(), tmp_path)


def test_every_class_of_character(tmp_path):
    """Each code point near a change of class, between a letter, a digit and a space."""
    table = (SOURCE / "capstan/data/unicode_table.cpp").read_text()
    codes = {int(word.strip("{},;"), 16) + shift for word in table.replace("{", " ").replace("}", " ").split()
             if word.startswith("0x") for shift in (-1, 0, 1)}
    samples = ["".join(f"a{chr(code)}1{chr(code)} {chr(code)}" for code in sorted(codes)[start:start + 20]
                       if not 0xd800 <= code < 0xe000) for start in range(0, len(codes), 20)]
    path = tmp_path / "tokenizer.json"
    compare(make_tokenizer(path, vocab_size=600), path, samples, tmp_path)


def test_without_splitting(tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizer = make_tokenizer(path, vocab_size=800, use_regex=False)
    compare(tokenizer, path, texts(500, seed=2), tmp_path)


def test_a_space_in_front_and_missing_bytes(tmp_path):
    """A vocabulary of a few characters only: what it lacks is left out, as Hugging Face does."""
    vocab = {character: number for number, character in enumerate("abcĠ'")}
    vocab.update({"ab": 5, "Ġa": 6, "Ġab": 7, "abc": 8})
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [("a", "b"), ("Ġ", "a"), ("Ġ", "ab"), ("ab", "c")]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    rng = random.Random(5)
    samples = ["".join(rng.choice("aabbcc' xé\n") for _ in range(rng.randrange(40))) for _ in range(1000)]
    compare(tokenizer, path, samples, tmp_path, round_trip=False)


def test_merges_written_as_strings(tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizer = make_tokenizer(path, vocab_size=500)
    content = json.loads(path.read_text())
    content["model"]["merges"] = [merge if isinstance(merge, str) else " ".join(merge) for merge in content["model"]["merges"]]
    path.write_text(json.dumps(content))
    compare(tokenizer, path, texts(200, seed=3), tmp_path)


def test_a_vocabulary_is_learnt_as_hugging_face_learns_it(tmp_path):
    """The same text gives the same merges in the same order, and their reader takes our file."""
    folder, path = tmp_path / "text", tmp_path / "tokenizer.json"
    folder.mkdir()
    samples = repository_text() + texts(300, seed=7) + ["aaaa aaaaaaa abababab " * 50]
    for number, sample in enumerate(samples):
        (folder / f"{number:04}.txt").write_bytes(sample.replace("\0", "").encode())
    subprocess.run([BIN / "bpe_learn", "1500", folder, path], check=True, timeout=300)
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE())
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=1500, special_tokens=["<|endoftext|>"], show_progress=False, min_frequency=2,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    theirs.train_from_iterator([file.read_bytes().decode() for file in sorted(folder.iterdir())], trainer)
    learnt, expected = json.loads(path.read_text())["model"], json.loads(theirs.to_str())["model"]
    assert learnt["merges"] == expected["merges"] and learnt["vocab"] == expected["vocab"]
    ours = tokenizers.Tokenizer.from_file(str(path))
    compare(ours, path, samples[:20], tmp_path)
    assert ours.decode(ours.encode(samples[0]).ids) == samples[0]
