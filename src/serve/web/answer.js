// Putting an answer together from the chunks of its stream, and timing it. Pure: no element, no network.

// Until the server says how it ended, an answer counts as stopped: a page that is closed has nobody to say so.
export const newAnswer = () => ({
  role: "assistant",
  content: "",
  reasoning: "",
  calls: [],
  finish: "stopped",
  error: null,
  figures: null,
  tokens: [],
});

// Takes one chunk into the answer.
export function addChunk(answer, chunk) {
  for (const choice of chunk.choices) {
    const delta = choice.delta;
    answer.content += delta.content ?? "";
    answer.reasoning += delta.reasoning_content ?? "";
    for (const call of delta.tool_calls ?? []) addCall(answer.calls, call);
    answer.tokens.push(...(choice.logprobs?.content ?? []));
    answer.finish = choice.finish_reason ?? answer.finish;
  }
}

function addCall(calls, part) {
  calls[part.index] ??= { id: part.id, name: part.function.name, arguments: "" };
  calls[part.index].arguments += part.function.arguments ?? "";
}

// Counts tokens while they come; the server's own counts replace the estimate in the last chunk. Times in milliseconds.
export class Meter {
  constructor(now) {
    this.begin = now;
    this.first = null;
    this.last = null;
    this.tokens = 0;
    this.usage = null;
    this.timings = null;
  }

  add(chunk, now) {
    const count = chunk.choices.reduce((sum, choice) => sum + (choice.token_ids?.length ?? 0), 0);
    if (count > 0) {
      this.first ??= { at: now, tokens: count };
      this.last = now;
      this.tokens += count;
    }
    this.usage = chunk.usage ?? this.usage;
    this.timings = chunk.timings ?? this.timings;
  }

  // {generated, perSecond, firstMs, drafted, accepted, prompt, hit}; null where nothing is known (yet). The tokens of
  // the first event are left out of the rate, since nobody knows how long they took.
  figures() {
    const timed = this.first && this.last > this.first.at ? this.tokens - this.first.tokens : 0;
    const details = this.usage?.completion_tokens_details;
    return {
      generated: this.usage?.completion_tokens ?? this.tokens,
      perSecond: timed > 0 ? (1000 * timed) / (this.last - this.first.at) : null,
      firstMs: this.timings?.first_token_ms ?? (this.first ? this.first.at - this.begin : null),
      drafted: details?.drafted_tokens ?? null,
      accepted: details?.accepted_draft_tokens ?? null,
      prompt: this.usage?.prompt_tokens ?? null,
      hit: this.usage?.prompt_cache_hit_tokens ?? null,
    };
  }
}
