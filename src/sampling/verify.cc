#include "sampling/verify.h"

#include <algorithm>

#include "base/check.h"

namespace deepinfer::sampling {
namespace {

std::size_t at(int i) {
  return static_cast<std::size_t>(i);
}

Stream stream_of(const VerifyRequest& r, int row) {
  Stream s = r.stream;
  s.index += static_cast<uint32_t>(row);
  return s;
}

int32_t draw_token(const Distribution& law, const Stream& s) {
  return law.count == 1 ? law.id_at(0) : draw_race(law, s, Purpose::kNoise);
}

// The drafts that the walk has taken as history, given back when it ends.
class History {
 public:
  explicit History(const VerifyRequest& r) : r_(r) {}
  ~History() {
    for (; taken_ > 0; --taken_) {
      if (r_.counts != nullptr) r_.counts->remove(r_.drafts[at(taken_ - 1)]);
      if (r_.output != nullptr) r_.output->pop_back();
    }
  }
  History(const History&) = delete;
  History& operator=(const History&) = delete;

  void advance_to(int row) {  // rows 0 .. row - 1 were accepted
    for (; taken_ < row; ++taken_) {
      if (r_.counts != nullptr) r_.counts->add(r_.drafts[at(taken_)]);
      if (r_.output != nullptr) r_.output->push_back(r_.drafts[at(taken_)]);
    }
  }

 private:
  const VerifyRequest& r_;
  int taken_ = 0;
};

Row row_of(const VerifyRequest& r, int row) {
  return {.logits = r.logits[at(row)],
          .vocab = r.vocab,
          .mask = r.masks.empty() ? nullptr : r.masks[at(row)],
          .params = r.params,
          .counts = r.counts,
          .output = r.output != nullptr ? std::span<const int32_t>(*r.output) : std::span<const int32_t>()};
}

Result<void> shape(const VerifyRequest& r, int row, VerifyWorkspace& ws, Distribution* law) {
  auto result = shape_row(row_of(r, row), ws.row, law);
  if (!result)
    return fail(result.error().code, "output token {}: {}", r.stream.index + static_cast<uint32_t>(row),
                result.error().message);
  return {};
}

const Distribution& draft_law(const VerifyRequest& r, int row, VerifyWorkspace& ws) {
  const Distribution* law = r.draft_laws.empty() ? nullptr : r.draft_laws[at(row)];
  if (law != nullptr) return *law;
  ws.one_hot.set_one_hot(r.drafts[at(row)]);
  return ws.one_hot;
}

void emit(const VerifyRequest& r, int row, const Distribution& law, int32_t token, VerifyWorkspace& ws,
          VerifyResult* out) {
  if (static_cast<int>(out->tokens.size()) <= out->num_tokens) out->tokens.emplace_back();
  describe(row_of(r, row), law, token, ws.row, &out->tokens[at(out->num_tokens++)]);
}

void accept(const VerifyRequest& r, int row, const Distribution& law, VerifyWorkspace& ws, VerifyResult* out) {
  emit(r, row, law, r.drafts[at(row)], ws, out);
  bool is_sampled = !r.draft_laws.empty() && r.draft_laws[at(row)] != nullptr;
  out->draft_probabilities.push_back(
      is_sampled ? static_cast<float>(r.draft_laws[at(row)]->probability(r.drafts[at(row)])) : 1.0f);
  ++out->num_accepted;
}

int32_t golden_at(const VerifyRequest& r, int row) {
  return r.golden.empty() ? -1 : r.golden[at(row)];
}

// One row under kToken or kNoise: the token, and whether the walk goes on.
RowVerdict judge(const VerifyRequest& r, int row, const Distribution& p, VerifyWorkspace& ws) {
  int32_t draft = r.drafts[at(row)];
  Stream s = stream_of(r, row);
  if (r.mode == VerifyMode::kNoise || r.params->is_greedy) {
    int32_t token = draw_token(p, s);
    return {token == draft, token, token == draft ? 1.0 : 0.0};
  }
  return verify_row(p, draft_law(r, row, ws), draft, uniform(s, Purpose::kCoin), uniform(s, Purpose::kResidual));
}

Result<void> verify_in_order(const VerifyRequest& r, VerifyWorkspace& ws, VerifyResult* out) {
  History history(r);
  int q = static_cast<int>(r.logits.size());
  for (int row = 0; row < q; ++row) {
    history.advance_to(row);
    Distribution& law = ws.row.law;
    DI_TRY_VOID(shape(r, row, ws, &law));
    bool has_draft = row + 1 < q && r.drafts[at(row)] >= 0;
    int32_t forced = golden_at(r, row);
    RowVerdict verdict;
    if (has_draft) {
      verdict = judge(r, row, law, ws);
      out->labels.push_back(static_cast<float>(verdict.accept_probability));
      if (forced >= 0) verdict.is_accepted = forced == r.drafts[at(row)];
    } else if (forced < 0) {
      verdict.token = draw_token(law, stream_of(r, row));
    }
    if (!verdict.is_accepted) {
      emit(r, row, law, forced >= 0 ? forced : verdict.token, ws, out);
      return {};
    }
    accept(r, row, law, ws, out);
  }
  DI_CHECK(false, "the last of {} rows has no draft", q);
  return {};
}

// Block verification (Sun et al. 2024, algorithm 2): the longest prefix whose coin falls under
//   h_i = S_i / (S_i + 1 - P_i),   P_i = min(1, P_{i-1} p(x_i) / d(x_i)),   S_i = sum max(0, P_i p - d) at row i; h_n =
//   P_n.
Result<void> verify_block(const VerifyRequest& r, VerifyWorkspace& ws, VerifyResult* out) {
  int q = static_cast<int>(r.logits.size());
  int num_drafts = 0;
  while (num_drafts + 1 < q && r.drafts[at(num_drafts)] >= 0) ++num_drafts;
  if (static_cast<int>(ws.laws.size()) < num_drafts + 1) ws.laws.resize(at(num_drafts + 1));
  History history(r);
  double joint = 1.0, kept_joint = 1.0;
  int accepted = 0;
  for (int i = 0; i <= num_drafts; ++i) {
    // Row i is reached with positive probability only while the joint ratio is positive.
    if (!(joint > 0.0)) break;
    history.advance_to(i);
    DI_TRY_VOID(shape(r, i, ws, &ws.laws[at(i)]));
    double accept_with = joint;
    if (i < num_drafts) {
      double left = 0.0;
      draw_residual(ws.laws[at(i)], draft_law(r, i, ws), 0.0f, &left, joint);
      accept_with = left + 1.0 - joint > 0.0 ? left / (left + 1.0 - joint) : 1.0;
    }
    // Coins past the accepted prefix were looked at, so they are keyed by the step's start, which no other step shares.
    if (i > 0 && uniform_of(random_words(r.stream, Purpose::kCoin, static_cast<uint32_t>(i))[0]) < accept_with)
      accepted = i, kept_joint = joint;
    if (i == num_drafts) break;
    const Distribution& d = draft_law(r, i, ws);
    double drawn = d.probability(r.drafts[at(i)]);
    joint = drawn > 0.0 ? std::min(1.0, joint * ws.laws[at(i)].probability(r.drafts[at(i)]) / drawn) : 0.0;
    out->labels.push_back(static_cast<float>(overlap(ws.laws[at(i)], d)));
  }
  out->labels.resize(std::min(out->labels.size(), at(accepted + 1)));
  for (int i = 0; i < accepted; ++i) accept(r, i, ws.laws[at(i)], ws, out);
  Distribution& law = ws.laws[at(accepted)];
  int32_t token = -1;
  if (accepted < num_drafts) {
    double left = 0.0;
    token = draw_residual(law, draft_law(r, accepted, ws), uniform(stream_of(r, accepted), Purpose::kResidual), &left,
                          kept_joint);
  }
  if (token < 0) token = draw_token(law, stream_of(r, accepted));
  emit(r, accepted, law, token, ws, out);
  return {};
}

}  // namespace

int32_t draw_draft(const Distribution& law, const Stream& block, int k, VerifyMode mode) {
  if (law.count == 1) return law.id_at(0);
  if (mode == VerifyMode::kBlock)
    return draw_inverse(law, uniform_of(random_words(block, Purpose::kDraft, static_cast<uint32_t>(k) + 1)[0]));
  Stream s = block;
  s.index += static_cast<uint32_t>(k);
  return mode == VerifyMode::kNoise ? draw_race(law, s, Purpose::kNoise)
                                    : draw_inverse(law, uniform(s, Purpose::kDraft));
}

RowVerdict verify_row(const Distribution& p, const Distribution& d, int32_t draft, float u_accept, float u_residual,
                      double alpha) {
  RowVerdict verdict{.accept_probability = overlap(p, d, alpha)};
  double drawn = draft >= 0 ? d.probability(draft) : 0.0;
  if (drawn > 0.0 &&
      static_cast<double>(u_accept) * drawn < p.probability(draft)) {  // U < p / d; U < 1, so p >= d accepts
    verdict.is_accepted = true;
    verdict.token = draft;
    return verdict;
  }
  double mass = 0.0;
  verdict.token = draw_residual(p, d, u_residual, &mass, 1.0, alpha);
  if (verdict.token < 0) verdict.token = draw_inverse(p, u_residual);
  return verdict;
}

Chain accepted_chain(std::span<const bool> row_accepts, std::span<const bool> has_draft,
                     std::span<const int32_t> forced, std::span<const int32_t> drafts) {
  Chain chain;
  for (std::size_t row = 0; row < row_accepts.size(); ++row) {
    chain.final_row = static_cast<int>(row);
    bool accepts = row_accepts[row];
    if (!forced.empty() && forced[row] >= 0) accepts = !drafts.empty() && drafts[row] == forced[row];
    if (!has_draft[row] || !accepts) break;
    ++chain.accepted;
  }
  return chain;
}

Result<void> verify(const VerifyRequest& r, VerifyWorkspace& ws, VerifyResult* result) {
  DI_CHECK(!r.logits.empty() && r.drafts.size() + 1 == r.logits.size(), "{} rows, {} drafts", r.logits.size(),
           r.drafts.size());
  result->num_accepted = result->num_tokens = 0;
  result->draft_probabilities.clear();
  result->labels.clear();
  bool has_golden = std::any_of(r.golden.begin(), r.golden.end(), [](int32_t id) { return id >= 0; });
  // Golden tokens replace the law of a prefix, which a joint test cannot express; arg-max needs no coin.
  bool is_block = r.mode == VerifyMode::kBlock && !r.params->is_greedy && !has_golden;
  return is_block ? verify_block(r, ws, result) : verify_in_order(r, ws, result);
}

}  // namespace deepinfer::sampling
