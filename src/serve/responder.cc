#include "serve/responder.h"

namespace deepinfer::serve {

void CollectingResponder::piece(const Piece& piece) {
  Choice& c = choices_[piece.choice];
  for (const text::OutputDelta& d : piece.deltas) c.output.add(d);
  c.call_ids.assign(piece.call_ids.begin(), piece.call_ids.end());
  c.logprobs.insert(c.logprobs.end(), piece.logprobs.begin(), piece.logprobs.end());
  c.token_ids.insert(c.token_ids.end(), piece.token_ids.begin(), piece.token_ids.end());
  if (!piece.prompt_logprobs.empty())
    c.prompt_logprobs.assign(piece.prompt_logprobs.begin(), piece.prompt_logprobs.end());
}

void CollectingResponder::choice_end(const ChoiceEnd& end) {
  Choice& c = choices_[end.choice];
  c.finish_reason = end.finish_reason;
  c.stop = end.stop;
}

}  // namespace deepinfer::serve
