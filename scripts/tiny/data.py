"""Packed training rows from worker processes, and padded rows for evaluation."""

from __future__ import annotations

import multiprocessing as mp
import os

import corpus
import numpy as np
from tokenizers import Tokenizer

PAD = 2


def encode_documents(tok: Tokenizer, documents) -> list[tuple[np.ndarray, np.ndarray]]:
    """Token ids and percent weights of documents given as (text, weight) segments."""
    flat = [text for doc in documents for text, _ in doc]
    ids = iter(tok.encode_batch(flat, add_special_tokens=False))
    out = []
    for doc in documents:
        tokens, weights = [], []
        for _, weight in doc:
            piece = next(ids).ids
            tokens += piece
            weights += [round(weight * 100)] * len(piece)
        weights[0] = 0  # nothing predicts the first token
        if len(tokens) % 2:  # documents start at even positions, so that pairs never mix two of them
            tokens.append(PAD)
            weights.append(0)
        out.append((np.array(tokens, np.uint16), np.array(weights, np.uint8)))
    return out


class Packer:
    """Fill rows with documents one after the other; what does not fit at the end of a row is dropped."""

    def __init__(self, tok: Tokenizer, seed: int, glosses: str | None, more: dict | None = None) -> None:
        self.tok, self.corpus, self.pending = tok, corpus.Corpus(seed, glosses, more), []

    def rows(self, count: int, length: int):
        tokens = np.full((count, length), PAD, np.uint16)
        weights = np.zeros((count, length), np.uint8)
        doc = np.full((count, length), -1, np.int16)
        for r in range(count):
            at, n = 0, 0
            while at < length:
                if not self.pending:
                    self.pending = encode_documents(self.tok, [self.corpus.document() for _ in range(256)])
                t, w = self.pending.pop()
                k = min(len(t), length - at)
                tokens[r, at : at + k], weights[r, at : at + k], doc[r, at : at + k] = t[:k], w[:k], n
                at, n = at + k, n + 1
        return tokens, weights, doc


def _work(index, tokenizer, seed, glosses, length, out, more):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = "1"
    packer = Packer(Tokenizer.from_file(tokenizer), seed * 1000003 + index, glosses, more)
    while True:
        now = length.value
        out.put((now, packer.rows(8, now)))


class Rows:
    """Endless batches; every worker has its own seed, so a run is random but never repeats a document stream."""

    def __init__(
        self, tokenizer: str, seed: int, glosses: str | None, workers: int, length: int, more: dict | None = None
    ) -> None:
        context = mp.get_context("fork")
        self.length, self.out = context.Value("i", length), context.Queue(maxsize=16 * workers)
        self.workers = [
            context.Process(target=_work, args=(i, tokenizer, seed, glosses, self.length, self.out, more), daemon=True)
            for i in range(workers)
        ]
        for w in self.workers:
            w.start()
        self.left: list = []

    def batch(self, rows: int, length: int):
        self.length.value = length
        got, have = [], 0
        while have < rows:
            made, arrays = self.left.pop() if self.left else self.out.get(timeout=120)
            if made != length:
                continue  # made before the length changed
            if have + len(arrays[0]) > rows:
                cut = rows - have
                self.left.append((made, tuple(a[cut:] for a in arrays)))
                arrays = tuple(a[:cut] for a in arrays)
            got.append(arrays)
            have += len(arrays[0])
        return tuple(np.concatenate(parts) for parts in zip(*got, strict=False))

    def close(self) -> None:
        for w in self.workers:  # the queue may hold half a message: it is left alone
            w.terminate()


def eval_rows(tok: Tokenizer, items: list[dict], multiple: int):
    """Task items -> (tokens, answer mask, doc) of one padded batch, and the items it holds."""
    rows = []
    for item in items:
        p = tok.encode(item["prompt"], add_special_tokens=False).ids
        a = tok.encode(item["answer"], add_special_tokens=False).ids + [1]
        rows.append((p, a))
    longest = max(len(p) + len(a) for p, a in rows)
    length = -(-longest // multiple) * multiple
    tokens = np.full((len(rows), length), PAD, np.int64)
    mask = np.zeros((len(rows), length), bool)
    doc = np.full((len(rows), length), -1, np.int64)
    for i, (p, a) in enumerate(rows):
        n = len(p) + len(a)
        tokens[i, :n], doc[i, :n] = p + a, 0
        mask[i, len(p) : n] = True
    return tokens, mask, doc
