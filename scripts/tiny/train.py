"""Train the embedded tiny model: the backbone, its tuning for inference, then the draft blocks on the frozen backbone.

    python train.py --state DIR --tokenizer tok/ --glosses glosses.tsv.xz --minutes 9 --total 18 backbone
    python train.py --state DIR --tokenizer tok/ --glosses glosses.tsv.xz --minutes 9 --total 9 tune
    python train.py --state DIR --tokenizer tok/ --glosses glosses.tsv.xz --minutes 7 --total 7 draft
    python train.py --state DIR --tokenizer tok/ --out CHECKPOINT export
    python train.py --state DIR --tokenizer tok/ eval

`--minutes` bounds this call, `--total` the whole training time over all calls
that share the state folder: learning rate and phases follow the time spent, so
a run can be cut into several calls and fits any machine.  Every call goes on
from the state it finds.  Phases of the backbone, as shares of the total time:

    0.00  dense: every visible compressed position is attended, the indexer learns along
    0.20  caches rounded as in inference
    0.50  only the indexer's selection is attended
    0.65  activations rounded too
    0.75  rows twice as long

`tune` goes on from the backbone (or from `--init CHECKPOINT`) as inference will run it: everything rounded,
selection on, long rows with more long tables, and half of the documents cut for the decoder half, as a bounded
replay of the prompt does.

Weights are rounded to the checkpoint's formats from the start (straight-through).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time

import corpus
import data
import torch
import torch.nn.functional as F
from export import export, load_checkpoint
from tokenizers import Tokenizer

import model as m

# --- optimizers --------------------------------------------------------------------------------------


def orthogonalize(g: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Newton-Schulz iteration towards the orthogonal factor of the last two axes."""
    x = g.bfloat16() if g.is_cuda else g.float()
    turn = x.shape[-2] > x.shape[-1]
    if turn:
        x = x.transpose(-1, -2)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.transpose(-1, -2)
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return (x.transpose(-1, -2) if turn else x).to(g.dtype)


class Muon:
    """Momentum with orthogonalized steps for the matrices; equal shapes are batched."""

    def __init__(
        self, params: list, lr: float, decay: float = 0.02, momentum: float = 0.95, boosts: list | None = None
    ) -> None:
        self.params, self.base, self.lr, self.decay, self.momentum = params, lr, lr, decay, momentum
        self.velocity = [torch.zeros_like(p) for p in params]
        self.groups: dict = {}
        for i, p in enumerate(params):
            self.groups.setdefault((tuple(p.shape), boosts[i] if boosts else 1.0), []).append(i)

    @torch.no_grad()
    def step(self) -> None:
        for (shape, boost), members in self.groups.items():
            grads = torch.stack([self.params[i].grad for i in members])
            speed = torch.stack([self.velocity[i] for i in members])
            speed = self.momentum * speed + (1 - self.momentum) * grads
            for k, i in enumerate(members):
                self.velocity[i].copy_(speed[k])
            update = orthogonalize((1 - self.momentum) * grads + self.momentum * speed)
            rate = self.lr * boost * math.sqrt(max(1.0, shape[-2] / shape[-1]))
            for k, i in enumerate(members):
                self.params[i].mul_(1 - self.lr * self.decay).sub_(rate * update[k])

    def state_dict(self) -> dict:
        return {"velocity": self.velocity}

    def load_state_dict(self, state: dict) -> None:
        for own, saved in zip(self.velocity, state["velocity"], strict=False):
            own.copy_(saved)


def build_optimizers(net: m.Tiny, draft: bool, lr: float, muon_lr: float, index_boost: float = 1.0, only: str = ""):
    """`index_boost` multiplies the rate of the indexer, which learns from its own loss alone.

    `only` (comma-separated pieces) freezes the parameters whose names hold none of them.
    """
    matrices, boosts, tables, index, rest = [], [], [], [], []
    for name, p in net.items():
        if name.startswith("mtp.") != draft or not any(part in name for part in only.split(",")):
            p.requires_grad_(False)
            continue
        p.requires_grad_(True)
        if net.weight_format(name) in ("fp8", "fp4") or name.endswith(
            ("compressor.wkv.weight", "compressor.wgate.weight", "indexer.wk.weight")
        ):
            matrices.append(p)
            boosts.append(index_boost if ".indexer." in name else 1.0)
        elif ".indexer." in name:
            index.append(p)
        elif name.endswith(("embed.weight", "head.weight")):
            tables.append(p)
        else:
            rest.append(p)
    groups = [
        {"params": params, "lr": lr, "base": lr * boost, "weight_decay": 0.0}
        for params, boost in ((tables, 1.5), (rest, 1.0), (index, index_boost))
        if params
    ]
    adam = torch.optim.AdamW(groups, betas=(0.9, 0.97), eps=1e-10)
    return adam, Muon(matrices, muon_lr, boosts=boosts)


def set_rate(adam, muon, factor: float) -> None:
    for group in adam.param_groups:
        group["lr"] = group["base"] * factor
    muon.lr = muon.base * factor


def rate(progress: float) -> float:
    """A short warm-up, a plateau, a straight way down."""
    warm = min(1.0, progress / 0.02 + 0.02)
    return warm * min(1.0, max(0.01, (1 - progress) / 0.65))


# --- state --------------------------------------------------------------------------------------------


def load_tokenizer(folder: str):
    tok = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    table, count = m.compressed_tokens(tok)
    from train_tokenizer import IMAGE_TOKEN, NOISE_TOKEN

    config = m.tiny_config(tok.get_vocab_size(), tok.token_to_id(IMAGE_TOKEN), tok.token_to_id(NOISE_TOKEN), count)
    return tok, table, config


def save(path: str, **content) -> None:
    torch.save(content, path + ".new")
    os.replace(path + ".new", path)


EARLIER = {"backbone": (), "tune": ("backbone",), "draft": ("tune", "backbone"), "none": ()}


def open_state(args, net: m.Tiny, part: str, adam=None, muon=None) -> dict:
    """Load the newest weights; the clock and optimizers only when they belong to this part.

    Without a state, `--init` may name an exported checkpoint to go on from.
    """
    progress = {"seconds": 0.0, "steps": 0, "tokens": 0}
    path = os.path.join(args.state, f"{part}.pt")
    if os.path.exists(path):
        saved = torch.load(path, map_location=args.device)
        net.load_state(saved["net"])
        if adam is not None and saved.get("adam"):
            adam.load_state_dict(saved["adam"])
            muon.load_state_dict(saved["muon"])
        progress = saved["progress"]
    elif before := [f for f in (os.path.join(args.state, f"{p}.pt") for p in EARLIER[part]) if os.path.exists(f)]:
        net.load_state(torch.load(before[0], map_location=args.device)["net"])
    elif args.init:
        load_checkpoint(net, args.init)
    return progress


class Keeper:
    """Saves the state and exports the checkpoint now and then, and at the end."""

    def __init__(self, args, net, part, adam, muon, clock) -> None:
        self.args, self.net, self.part, self.adam, self.muon, self.clock = args, net, part, adam, muon, clock
        self.last = time.time()

    def maybe(self) -> None:
        if time.time() - self.last > self.args.keep * 60:
            self.now()

    def now(self) -> None:
        save(
            os.path.join(self.args.state, f"{self.part}.pt"),
            net=self.net.state(),
            adam=self.adam.state_dict(),
            muon=self.muon.state_dict(),
            progress=self.clock,
        )
        if self.args.out:
            export(self.net, self.args.out, self.args.tokenizer)
        self.last = time.time()


# --- backbone -------------------------------------------------------------------------------------------


def phases(net: m.Tiny, progress: float, args) -> int:
    """Switch the roundings on; returns the row length."""
    net.fake_weights = True
    if args.part == "tune":
        net.fake_cache = net.sparse = net.fake_acts = True
        return args.length * 2
    net.fake_cache = progress >= 0.20
    net.sparse = progress >= 0.50
    net.fake_acts = progress >= 0.65
    return args.length * (2 if progress >= 0.75 else 1)


def to_device(arrays, device):
    tokens, weights, doc = (torch.from_numpy(a.astype("int64")) for a in arrays)
    if device.startswith("cuda"):
        tokens, weights, doc = (x.pin_memory().to(device, non_blocking=True) for x in (tokens, weights, doc))
    return tokens, weights.float() / 100, doc


def random_segments(doc):
    """Cut half of the documents at random places: what the windows of the decoder half never cross.

    A prompt of L tokens is cut at L - K.  All distances between a cut and the tokens after it should be seen, thus
    every document has its own spacing of cuts and its own first one.
    """
    b, n = doc.shape
    pos = torch.arange(n, device=doc.device)
    which = doc.clamp_min(0)
    most = int(which.max()) + 1
    spacing = torch.randint(150, 600, (b, most), device=doc.device)
    spacing = torch.where(torch.rand(b, most, device=doc.device) < 0.5, spacing, 1 << 20)
    first = (torch.rand(b, most, device=doc.device) * spacing.clamp_max(600)).long()
    start = (
        torch.where(torch.cat((torch.ones_like(doc[:, :1], dtype=torch.bool), doc[:, 1:] != doc[:, :-1]), 1), pos, 0)
        .cummax(1)
        .values
    )
    return which * n + (pos - start + first.gather(1, which)) // spacing.gather(1, which)


def prompt_segments(doc, prompt, keep: int):
    """The cut that a bounded replay makes in rows of one document: `keep` tokens before the end of the prompt."""
    pos = torch.arange(doc.shape[1], device=doc.device)
    return (pos >= (prompt - keep).unsqueeze(1)).long()


def replay_keep(net) -> int:
    """Rows of a prompt that the decoder half computes: the window, what a rewind may need, and 6 to spare."""
    return net.text["sliding_window"] + net.text["dspark_block_size"] + 1 + 6


def backbone_loss(net, tokens, weights, doc, loads, total_weight, tune=False, dense=0.0):
    aux: list = []
    teach = F.pad(weights[:, 1:], (0, 1)) + 0.2  # the predictions that matter teach the indexer most
    segment = random_segments(doc) if tune else None
    dense_rows = torch.rand(tokens.shape[0], device=tokens.device) < dense if dense and net.sparse else None
    hidden, _, _ = net.backbone(tokens, doc, loads, aux, segment, teach, dense_rows)
    logits = net.logits(hidden[:, :-1]).flatten(0, 1)
    losses = F.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="none")
    want = weights[:, 1:].flatten()
    return (losses * want).sum() / total_weight, sum(aux) / len(aux)


def train_backbone(args, net, rows) -> None:
    tune = args.part == "tune"
    adam, muon = build_optimizers(net, False, args.lr, args.muon_lr, args.index_boost, args.only)
    clock = open_state(args, net, args.part, adam, muon)
    dtype = torch.bfloat16 if args.device.startswith("cuda") or args.bf16 else torch.float32
    begin, shown = time.time(), time.time()
    started = clock["seconds"]
    micro = args.micro
    keeper = Keeper(args, net, args.part, adam, muon, clock)
    looked = time.time()
    while True:
        clock["seconds"] = started + time.time() - begin
        progress = clock["seconds"] / (args.total * 60)
        if args.max_steps:
            progress = clock["steps"] / args.max_steps
        if progress >= 1 or time.time() - begin > args.minutes * 60:
            break
        length = phases(net, progress, args)
        factor = rate(progress)
        set_rate(adam, muon, factor)
        count = max(1, args.tokens // length)
        tokens, weights, doc = to_device(rows.batch(count, length), args.device)
        total = weights[:, 1:].sum().clamp_min(1)
        loads: dict = {}
        while True:
            try:
                size = max(1, micro // length)
                shown_loss = shown_aux = 0.0
                for at in range(0, count, size):
                    net.prepare(dtype, "backbone")  # rounding the weights is cheap next to a pass
                    part = slice(at, at + size)
                    now: dict = {}
                    loss, aux = backbone_loss(
                        net, tokens[part], weights[part], doc[part], now, total, tune, 0.15 if progress < 0.85 else 0.0
                    )
                    share = tokens[part].shape[0] / count
                    (loss + aux * share).backward()
                    shown_loss, shown_aux = shown_loss + loss.detach(), shown_aux + aux.detach() * share
                    for k, v in now.items():
                        loads[k] = loads.get(k, 0) + v * share
                break
            except torch.cuda.OutOfMemoryError:
                micro //= 2
                print(f"out of memory: going on with {micro} tokens at a time", flush=True)
                adam.zero_grad(set_to_none=True)
                for p in muon.params:
                    p.grad = None
                torch.cuda.empty_cache()
        parameters = [p for p in net.parameters() if p.grad is not None]
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        adam.step()
        muon.step()
        for p in parameters:
            p.grad = None
        for k, load in ({} if args.only else loads).items():  # the router's correction bias follows the load
            net.bias[k + "ffn.gate.bias"].add_(torch.sign(load.mean() - load) * 0.003 * factor)
        clock["steps"] += 1
        clock["tokens"] += tokens.numel()
        if time.time() - shown > args.every or clock["steps"] <= 3:
            shown = time.time()
            spread = torch.stack([v.max() / v.mean() for v in loads.values()]).max()
            print(
                f"step {clock['steps']} {clock['seconds']:.0f}s progress {progress:.3f} "
                f"tokens {clock['tokens'] / 1e6:.1f}M loss {float(shown_loss):.4f} index {float(shown_aux):.4f} "
                f"norm {float(norm):.2f} load {float(spread):.2f} "
                f"rows {count}x{length} ready {rows.out.qsize()}",
                flush=True,
            )
        if args.look and time.time() - looked > args.look:
            print(
                json.dumps(
                    evaluate(net, load_tokenizer(args.tokenizer)[0], args.device, dtype, 64, only=("lookup_long",))
                ),
                flush=True,
            )
            looked = time.time()
        keeper.maybe()
    keeper.now()
    print(
        f"{args.part}: {clock['steps']} steps, {clock['tokens'] / 1e6:.1f}M tokens, "
        f"{clock['seconds']:.0f}s of {args.total * 60:.0f}s"
    )


# --- draft blocks ------------------------------------------------------------------------------------------


def pick_anchors(doc, count: int, size: int):
    """Positions whose next size + 1 tokens lie in the same document (uniform over such positions)."""
    n = doc.shape[1]
    ahead = torch.zeros_like(doc, dtype=torch.bool)
    ahead[:, : n - size - 1] = (doc[:, : n - size - 1] == doc[:, size + 1 :]) & (doc[:, : n - size - 1] >= 0)
    chance = torch.rand(doc.shape, device=doc.device).masked_fill(~ahead, -1)
    best = chance.topk(count, 1)
    return best.indices.clamp_max(n - size - 2), best.values >= 0


def draft_losses(net, tokens, doc, count, loads=None, segment=None):
    """Cross entropy, distance to the backbone's distribution, and the confidence head's loss."""
    size = net.text["dspark_block_size"]
    with torch.no_grad():
        hidden, taps, rows = net.backbone(tokens, doc, segment=segment)
    anchors, valid = pick_anchors(doc, count, size)
    state, normed = net.draft(taps, rows, tokens, anchors, loads)
    ahead = anchors.unsqueeze(-1) + torch.arange(1, size + 2, device=tokens.device)
    window = tokens.gather(1, ahead.flatten(1)).view(ahead.shape)
    previous, labels = window[..., :-1], window[..., 1:]
    logits, confidence = net.draft_heads(state, normed, previous)
    with torch.no_grad():  # the backbone's prediction from the same prefix
        source = ahead[..., :-1].flatten(1).unsqueeze(-1).expand(-1, -1, hidden.shape[-1])
        target = net.logits(hidden.gather(1, source)).view(logits.shape).softmax(-1)
    prob = logits.softmax(-1)
    agree = torch.minimum(prob, target).sum(-1)  # the chance that sampling accepts this token
    with torch.no_grad():
        same = logits.argmax(-1) == target.argmax(-1)
        # a slot counts as far as the text before it is one that the backbone would have written
        likely = target.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        reach = torch.cat((torch.ones_like(likely[..., :1]), likely[..., :-1]), -1).cumprod(-1).clamp_min(0.05)
    weight = reach * valid.unsqueeze(-1)
    norm = weight.sum().clamp_min(1)
    ce = F.cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="none").view(labels.shape)
    soft = -(target * logits.log_softmax(-1)).sum(-1)
    bce = F.binary_cross_entropy_with_logits(confidence, agree.detach(), reduction="none")
    mean = lambda v: (v * weight).sum() / norm  # noqa: E731
    mask = valid.unsqueeze(-1)
    report = {
        "agree": (agree.detach() * mask).sum((0, 1)) / mask.sum().clamp_min(1),
        "same": (same * mask).sum((0, 1)) / mask.sum().clamp_min(1),
        "run": ((same.cumprod(-1).sum(-1)) * valid).sum() / valid.sum().clamp_min(1),
    }
    return 0.1 * mean(ce) + 0.5 * mean(soft) + mean(1 - agree), mean(bce), report


def train_draft(args, net, rows) -> None:
    adam, muon = build_optimizers(net, True, args.lr, args.muon_lr)
    clock = open_state(args, net, "draft", adam, muon)
    dtype = torch.bfloat16 if args.device.startswith("cuda") or args.bf16 else torch.float32
    net.fake_weights = net.fake_cache = net.fake_acts = net.sparse = True
    keeper = Keeper(args, net, "draft", adam, muon, clock)
    with torch.no_grad():
        net.prepare(dtype)
    begin, shown, started = time.time(), time.time(), clock["seconds"]
    while True:
        clock["seconds"] = started + time.time() - begin
        progress = clock["seconds"] / (args.total * 60)
        if args.max_steps:
            progress = clock["steps"] / args.max_steps
        if progress >= 1 or time.time() - begin > args.minutes * 60:
            break
        factor = rate(progress)
        set_rate(adam, muon, factor)
        count = max(1, args.tokens // args.length)
        tokens, _, doc = to_device(rows.batch(count, args.length), args.device)
        loads: dict = {}
        net.prepare(dtype, "draft")
        loss, bce, report = draft_losses(
            net, tokens, doc, min(args.anchors, args.length // 4), loads, random_segments(doc)
        )
        (loss + bce).backward()
        parameters = [p for p in net.parameters() if p.grad is not None]
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        adam.step()
        muon.step()
        for p in parameters:
            p.grad = None
        for k, load in loads.items():
            net.bias[k + "ffn.gate.bias"].add_(torch.sign(load.mean() - load) * 0.003 * factor)
        clock["steps"] += 1
        clock["tokens"] += tokens.numel()
        if time.time() - shown > args.every or clock["steps"] <= 3:
            shown = time.time()
            print(
                f"draft step {clock['steps']} {clock['seconds']:.0f}s progress {progress:.3f} "
                f"loss {float(loss.detach()):.4f} confidence {float(bce.detach()):.4f} "
                f"greedy run {float(report['run']):.2f} of {net.text['dspark_block_size']} same "
                + " ".join(f"{float(v):.2f}" for v in report["same"])
                + " accept "
                + " ".join(f"{float(v):.2f}" for v in report["agree"]),
                flush=True,
            )
        keeper.maybe()
    keeper.now()


# --- evaluation ------------------------------------------------------------------------------------------------


@torch.no_grad()
def evaluate(net: m.Tiny, tok, device, dtype, per_task: int = 128, batch: int = 32, only: tuple = ()) -> dict:
    """Held-out loss of stories, exact-match rate of every task (greedy decoding, checked in one pass), draft agreement.

    "TASK compact" has the decoder half start K tokens before the end of the prompt, "TASK dense" no selection.
    """
    net.fake_weights = net.fake_cache = net.fake_acts = net.sparse = True
    net.prepare(dtype)
    out: dict = {}
    window = net.text["sliding_window"]

    def passes(items):
        order = sorted(items, key=lambda i: len(i["prompt"]))
        for at in range(0, len(order), batch):
            arrays = data.eval_rows(tok, order[at : at + batch], window)
            yield [torch.from_numpy(a).to(device) for a in arrays]

    for task in [*(only or corpus.TASKS), "lookup_long dense"]:
        net.sparse = not task.endswith("dense")  # what the selection costs on long texts
        right, same, total, long = {"": 0, " compact": 0}, 0, 0, False
        for tokens, mask, doc in passes(corpus.task_items(task.split()[0], per_task)):
            segment = prompt_segments(doc, mask.long().argmax(-1), replay_keep(net))
            for mode in right:
                if mode and not bool(segment.amin(-1).eq(0).any()):  # nothing is cut
                    right[mode] += same
                    continue
                long = long or bool(mode)
                guess = net.logits(net.backbone(tokens, doc, segment=segment if mode else None)[0][:, :-1]).argmax(-1)
                same = int((~((guess != tokens[:, 1:]) & mask[:, 1:]).any(-1)).sum())
                right[mode] += same
            total += tokens.shape[0]
        out[task] = round(right[""] / total, 4)
        if long:
            out[task + " compact"] = round(right[" compact"] / total, 4)
    net.sparse = True
    if only:
        return out
    stories = [
        {"prompt": corpus.BOS, "answer": s[len(corpus.BOS) : -len(corpus.EOS)]}
        for s in corpus.heldout_stories(per_task)
    ]
    loss = count = 0.0
    for tokens, mask, doc in passes(stories):
        logits = net.logits(net.backbone(tokens, doc)[0][:, :-1])
        ce = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none").view(tokens.shape[0], -1)
        loss, count = loss + float((ce * mask[:, 1:]).sum()), count + float(mask.sum())
    out["story_loss"] = loss / count
    runs = []
    for tokens, _, doc in passes(stories):
        _, bce, report = draft_losses(net, tokens, doc, 16)
        runs.append((float(report["run"]), report["agree"].tolist(), float(bce)))
    out["draft_greedy_run"] = sum(r[0] for r in runs) / len(runs)
    out["draft_accept"] = [round(sum(r[1][i] for r in runs) / len(runs), 3) for i in range(len(runs[0][1]))]
    out["draft_rounds"] = round(accepted_per_round(net, tok, device), 3)
    return out


@torch.no_grad()
def accepted_per_round(net, tok, device, stories: int = 40, given: int = 40, make: int = 100) -> float:
    """Mean number of accepted draft tokens (of 5) when stories are continued greedily; the weights are prepared."""
    size, win = net.text["dspark_block_size"], net.text["sliding_window"]
    texts = [tok.encode(s, add_special_tokens=False).ids[:given] for s in corpus.heldout_stories(stories)]
    last = given + make + size + 1  # a few more, so that the last round can be judged
    tokens = torch.full((stories, -(-last // win) * win), data.PAD, device=device)
    tokens[:, :given] = torch.tensor(texts, device=device)
    doc = torch.zeros_like(tokens)
    for at in range(given, last):
        hidden, taps, rows = net.backbone(tokens, doc)
        tokens[:, at] = net.logits(hidden[:, at - 1]).argmax(-1)
    anchors = torch.arange(given - 1, given + make - 1, device=device).expand(stories, -1)
    state, normed = net.draft(taps, rows, tokens, anchors)
    ahead = anchors.unsqueeze(-1) + torch.arange(1, size + 2, device=device)
    window = tokens.gather(1, ahead.flatten(1)).view(ahead.shape)
    logits, _ = net.draft_heads(state, normed, window[..., :-1])
    # a proposal equals the text as long as all before it did: its own earlier tokens are the text's
    run = (logits.argmax(-1) == window[..., 1:]).cumprod(-1).sum(-1)
    rounds = total = 0
    for s in range(stories):
        at = 0  # the anchor given - 1 + at has a known next token; a round yields its accepted tokens and one more
        while at < make and (tokens[s, given : given + at + 1] != 1).all():
            rounds, total = rounds + 1, total + int(run[s, at])
            at += int(run[s, at]) + 1
    return total / max(1, rounds)


@torch.no_grad()
def complete(net, tok, prompt: str, device, dtype, most: int = 120) -> str:
    net.prepare(dtype)
    ids = tok.encode(prompt, add_special_tokens=False).ids
    start = len(ids)
    window = net.text["sliding_window"]
    while len(ids) - start < most and (len(ids) == start or ids[-1] != 1):
        n = -(-len(ids) // window) * window
        tokens = torch.full((1, n), data.PAD, device=device)
        tokens[0, : len(ids)] = torch.tensor(ids, device=device)
        doc = torch.full((1, n), -1, device=device)
        doc[0, : len(ids)] = 0
        ids.append(int(net.logits(net.backbone(tokens, doc)[0][0, len(ids) - 1]).argmax()))
    return tok.decode(ids[start:], skip_special_tokens=False)


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("part", choices=["backbone", "tune", "draft", "export", "eval"])
    ap.add_argument("--state", required=True)
    ap.add_argument("--tokenizer", required=True, help="folder with tokenizer.json and tokenizer_config.json")
    ap.add_argument("--glosses", default=None)
    ap.add_argument(
        "--out", default=None, help="folder of the exported checkpoint (also written at the end of each training call)"
    )
    ap.add_argument("--init", default=None, help="go on from this exported checkpoint when there is no state")
    ap.add_argument("--keep", type=float, default=4, help="minutes between saved states")
    ap.add_argument("--minutes", type=float, default=9)
    ap.add_argument("--total", type=float, default=18)
    ap.add_argument("--tokens", type=int, default=65536, help="tokens of one step")
    ap.add_argument("--micro", type=int, default=65536, help="tokens of one forward; halved when memory runs out")
    ap.add_argument("--length", type=int, default=1024)
    ap.add_argument("--anchors", type=int, default=128, help="draft blocks trained in one row")
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--muon-lr", type=float, default=0.02)
    ap.add_argument("--index-boost", type=float, default=1.0, help="rate of the indexer relative to the rest")
    ap.add_argument(
        "--only", default="", help="train only parameters whose names hold one of these (comma-separated) pieces"
    )
    ap.add_argument(
        "--long-tables", type=float, default=2.0, help="the share of long tables in tuning, relative to the corpus"
    )
    ap.add_argument("--tasks", nargs="*", default=[], help="evaluate these tasks only")
    ap.add_argument("--look", type=float, default=0, help="seconds between short evaluations of long tables")
    ap.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--max-steps", type=int, default=0, help="count progress in steps instead of time (tests)")
    ap.add_argument("--every", type=float, default=10, help="seconds between reports")
    ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    ap.add_argument("--bf16", action="store_true", help="bf16 on a CPU too")
    ap.add_argument("--no-compile", action="store_true")
    ap.add_argument("--per-task", type=int, default=128)
    ap.add_argument("--toy", action="store_true", help="toy sizes, for a test on a CPU")
    args = ap.parse_args()
    os.makedirs(args.state, exist_ok=True)
    tok, table, config = load_tokenizer(args.tokenizer)
    if args.toy:
        config = m.shrunk(config)
    rows = None
    if args.part in ("backbone", "tune", "draft"):  # before any use of the GPU: the workers are forked
        path = os.path.join(args.state, f"{args.part}.pt")
        salt = (
            int(os.path.getmtime(path)) if os.path.exists(path) else {"backbone": 0, "tune": 33, "draft": 77}[args.part]
        )
        more = {"lookup_long": args.long_tables} if args.part == "tune" else None
        rows = data.Rows(
            os.path.join(args.tokenizer, "tokenizer.json"),
            args.seed + salt,
            args.glosses,
            args.workers,
            args.length,
            more,
        )
    torch.manual_seed(args.seed)
    net = m.Tiny(config, table, args.seed).to(args.device)
    dtype = torch.bfloat16 if args.device.startswith("cuda") or args.bf16 else torch.float32
    if args.device.startswith("cuda") and not args.no_compile:
        print(
            "Triton Sinkhorn:",
            m.use_triton_sinkhorn(args.device),
            "compiled pieces:",
            m.compile_pieces(args.device),
            flush=True,
        )
    if args.part in ("backbone", "tune"):
        train_backbone(args, net, rows)
    elif args.part == "draft":
        train_draft(args, net, rows)
    else:
        found = next(
            (p for p in ("draft", "tune", "backbone") if os.path.exists(os.path.join(args.state, f"{p}.pt"))), "none"
        )
        open_state(args, net, found)
    if rows is not None:
        rows.close()
    if args.out and args.part in ("export", "eval"):
        print("exported:", export(net, args.out, args.tokenizer), "bytes in", args.out, flush=True)
    if args.per_task and args.part != "export":
        began = time.time()
        print(
            json.dumps(evaluate(net, tok, args.device, dtype, args.per_task, only=tuple(args.tasks))),
            f"({time.time() - began:.0f}s)",
            flush=True,
        )
        if args.tasks:
            return
        for prompt in (
            corpus.BOS + "Once upon a time,",
            corpus.BOS + corpus.USER + "Tell me a story about a fox and a key." + corpus.ASSISTANT + corpus.NO_THINK,
            corpus.BOS + corpus.USER + "What is 23 + 45?" + corpus.ASSISTANT + corpus.NO_THINK,
        ):
            print(repr(prompt), "->", repr(complete(net, tok, prompt, args.device, dtype)), flush=True)


if __name__ == "__main__":
    main()
