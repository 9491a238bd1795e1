#include "engine/sequence_grammar.h"

#include <bit>

#include "base/check.h"

namespace deepinfer::engine {

Result<void> SequenceGrammar::start(const GrammarSpec& spec, std::span<const int32_t> output) {
  DI_TRY_VOID(matcher_.accept_prefix(spec.prefix));
  return commit(output);
}

std::span<uint32_t> SequenceGrammar::mask_row(int row) {
  auto words = static_cast<std::size_t>(matcher_.num_mask_words());
  std::size_t begin = static_cast<std::size_t>(row) * words;
  if (masks_.size() < begin + words) masks_.resize(begin + words);
  return std::span(masks_).subspan(begin, words);
}

Result<const uint32_t*> SequenceGrammar::mask(int row) {
  auto made = static_cast<int>(is_restricted_.size());
  DI_CHECK(row < made || (row == made && row == static_cast<int>(drafts_.size())), "mask of row {}, {} drafts", row,
           drafts_.size());
  if (row == made) {
    mask_row(row);  // room before anybody holds a pointer into it
    DI_TRY(bool is_restricted, matcher_.fill(mask_row(row).data()));
    is_restricted_.push_back(is_restricted);
  }
  return is_restricted_[static_cast<std::size_t>(row)] ? mask_row(row).data() : nullptr;
}

Result<bool> SequenceGrammar::accept_draft(int32_t token) {
  if (matcher_.is_ended()) return false;
  DI_TRY(bool is_allowed, matcher_.accept(token));
  if (is_allowed) drafts_.push_back(token);
  return is_allowed;
}

std::vector<int32_t> SequenceGrammar::likely_next(int limit) {
  auto row = static_cast<int>(drafts_.size());
  if (row >= static_cast<int>(is_restricted_.size()) || !is_restricted_[static_cast<std::size_t>(row)]) return {};
  int allowed = 0;
  for (uint32_t word : mask_row(row)) allowed += std::popcount(word);
  return allowed <= kFewTokens ? matcher_.likely_next(limit) : std::vector<int32_t>();
}

std::optional<int32_t> SequenceGrammar::end_token() {
  if (!matcher_.can_end()) return std::nullopt;
  auto made = mask(0);
  if (!made || *made == nullptr) return std::nullopt;  // what fails here fails again where the mask is needed
  int32_t allowed = 0, token = 0;
  for (std::size_t i = 0; i < mask_row(0).size() && allowed < 2; ++i) {
    const uint32_t word = mask_row(0)[i];
    allowed += std::popcount(word);
    if (word != 0) token = static_cast<int32_t>(i) * 32 + std::countr_zero(word);
  }
  return allowed == 1 ? std::optional(token) : std::nullopt;
}

Result<void> SequenceGrammar::commit(std::span<const int32_t> tokens) {
  std::size_t kept = 0;
  while (kept < drafts_.size() && kept < tokens.size() && drafts_[kept] == tokens[kept]) ++kept;
  matcher_.rollback(static_cast<int>(drafts_.size() - kept));
  drafts_.clear();
  is_restricted_.clear();
  for (int32_t token : tokens.subspan(kept)) {
    DI_TRY(bool is_allowed, matcher_.accept(token));
    if (!is_allowed) return fail(Code::kInvalid, "so_args: the grammar does not allow the forced token {}", token);
  }
  return {};
}

}  // namespace deepinfer::engine
