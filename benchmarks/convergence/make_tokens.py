#!/usr/bin/env python3
"""make_tokens.py FILE [--tokens N] [--vocab V] [--seed S]: tokens with structure, as uint16.

Every token is followed by one of eight others, the likelier the earlier in its list; half of the
time the list belongs to the topic of the passage, which changes every few hundred tokens. A model
learns frequencies first, then pairs, then to find out the topic.
"""
import argparse

import numpy as np

FOLLOWERS = 8
TOPICS = 16
PASSAGE = 256


def make(count, vocab, seed):
    rng = np.random.default_rng(seed)
    rows = 4096  # walks side by side: each step is one vector operation
    steps = count // rows + 1
    frequency = 1.0 / np.arange(1, vocab + 1)
    words = rng.choice(vocab, size=(TOPICS + 1, vocab, FOLLOWERS), p=frequency / frequency.sum())
    odds = np.cumsum(0.6 ** np.arange(FOLLOWERS))
    odds /= odds[-1]
    token = rng.integers(0, vocab, rows)
    topic = rng.integers(0, TOPICS, rows)
    walks = np.empty((rows, steps), np.uint16)
    for step in range(steps):
        walks[:, step] = token
        if step % PASSAGE == 0:
            topic = rng.integers(0, TOPICS, rows)
        which = np.where(rng.random(rows) < 0.5, topic, TOPICS)
        token = words[which, token, np.searchsorted(odds, rng.random(rows))]
    return walks.reshape(-1)[:count]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--tokens", type=int, default=34_000_000)
    parser.add_argument("--vocab", type=int, default=50257)
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    make(a.tokens, a.vocab, a.seed).tofile(a.file)


if __name__ == "__main__":
    main()
