"""DSpark: three draft stages propose a block of tokens at once, a Markov head makes the block consistent."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from .model import Net


@dataclass
class DraftCache:
    """Per stage: positions and rotated window KV of the committed tokens."""

    window: dict = field(default_factory=dict)


class Draft(Net):
    def commit(self, features: torch.Tensor, positions: torch.Tensor, cache: DraftCache) -> None:
        """Add committed tokens: `features` [n, targets * d] as returned by Model.forward for these positions [n]."""
        main = self.norm("mtp.0.main_norm", self.lin("mtp.0.main_proj", features))
        for s in range(self.cfg.num_nextn_predict_layers):
            kv = self.window_kv(f"mtp.{s}.attn.", main, positions, self.freq[False])
            if s in cache.window:
                positions_all, kv = torch.cat([cache.window[s][0], positions]), torch.cat([cache.window[s][1], kv])
            else:
                positions_all = positions
            cache.window[s] = (positions_all[-self.cfg.sliding_window :], kv[-self.cfg.sliding_window :])

    def hidden(self, token: int, cache: DraftCache, trace: dict | None = None) -> torch.Tensor:
        """Folded states [block, d] of the block [token, noise, noise, ...] placed after the last committed token.

        `token` is the newest token: sampled from the last committed position, its own features not yet known."""
        cfg, n = self.cfg, self.cfg.dspark_block_size
        pos = int(cache.window[0][0][-1]) + 1 + torch.arange(n)
        ids = [token] + [cfg.dspark_noise_token_id] * (n - 1)
        h, pre = self.embed(ids)

        def attention(x, s):
            p, freq = f"mtp.{s}.attn.", self.freq[False]
            _, q = self.queries(p, x, pos, freq)
            keys = torch.cat([cache.window[s][1], self.window_kv(p, x, pos, freq)])
            mask = torch.ones(n, len(keys), dtype=torch.bool)  # whole window and whole block, in both directions
            return self.output(p, self.attend(p, q, keys, mask), pos, freq)

        for s in range(cfg.num_nextn_predict_layers):
            h, pre = self.block(f"mtp.{s}.", h, pre, lambda x, s=s: attention(x, s), draft=True, trace=trace)
            if trace is not None:
                trace[f"mtp.{s}.streams"] = h
        return self.fold(h, pre)

    def propose(self, token: int, cache: DraftCache, pick=None, trace: dict | None = None):
        """(draft tokens [block], logits [block, vocab], confidence logits [block]).

        `pick(logits) -> token` chooses each token (default: the first maximum). Token k is meant for the position
        after block row k; sigmoid(confidence[k]) estimates the chance that it is accepted given that all before are."""
        pick = pick or (lambda logits: int(logits.argmax()))
        last = f"mtp.{self.cfg.num_nextn_predict_layers - 1}."
        x = self.hidden(token, cache, trace)
        base = self.product(self.norm(last + "norm", x), self.w["head.weight"])
        tokens, logits, confidence = [], [], []
        for k in range(self.cfg.dspark_block_size):
            e = self.w.rows(last + "markov_head.embed.weight", torch.tensor(token))  # of the previous token
            logits.append(base[k] + self.w[last + "markov_head.head.weight"] @ e)
            confidence.append(self.w[last + "confidence_head.proj.weight"][0] @ torch.cat([x[k], e]))
            token = pick(logits[-1])
            tokens.append(token)
        if trace is not None:
            trace["draft_hidden"], trace["draft_base_logits"] = x, base
        return tokens, torch.stack(logits), torch.stack(confidence)
