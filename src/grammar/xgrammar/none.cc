// Stands for this folder in programs built without it (./build.sh run, which is to answer within minutes):
// requests for structured outputs are refused, so that there is never a grammar to follow.
#include "grammar/compiler.h"
#include "grammar/matcher.h"

namespace deepinfer::grammar {

struct Compiler::Library {};
struct Grammar::Compiled {};
struct Matcher::Library {};

Compiler::Compiler(std::function<Vocabulary()>, Options) {}
Compiler::~Compiler() = default;
void Compiler::compile(const StructuralTag&, Clock::time_point, Done done) {
  done(fail(Code::kUnsupported, "this quick build has no structured outputs; ./build.sh builds them"));
}
int64_t Compiler::cached_bytes() const {
  return 0;
}

Grammar::~Grammar() = default;

Matcher::Matcher(std::shared_ptr<const Grammar> grammar, Trigger trigger)
    : grammar_(std::move(grammar)), trigger_(std::move(trigger)) {}
Matcher::~Matcher() = default;
Matcher::Matcher(Matcher&&) noexcept = default;
Matcher& Matcher::operator=(Matcher&&) noexcept = default;
Result<void> Matcher::accept_prefix(const std::string&) {
  return {};
}
Result<bool> Matcher::accept(int32_t) {
  return true;
}
void Matcher::rollback(int) {}
Result<bool> Matcher::fill(uint32_t*) {
  return false;
}
std::vector<int32_t> Matcher::likely_next(int) {
  return {};
}
bool Matcher::can_end() const {
  return true;
}

}  // namespace deepinfer::grammar
