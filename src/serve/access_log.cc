#include "serve/access_log.h"

#include <cerrno>
#include <cstring>
#include <ctime>

#include "serve/json_writer.h"
#include "text/utf8.h"

namespace deepinfer::serve {
namespace {

std::string time_text() {
  timespec now{};
  std::timespec_get(&now, TIME_UTC);
  std::tm parts{};
  gmtime_r(&now.tv_sec, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  return fmt::format("{}.{:03}Z", text, now.tv_nsec / 1'000'000);
}

std::string printable(std::string_view text) {
  return text::is_valid_utf8(text) ? std::string(text) : "(not UTF-8)";
}

}  // namespace

Result<AccessLog> AccessLog::open(const std::string& target, bool logs_prompts) {
  AccessLog log;
  log.logs_prompts_ = logs_prompts;
  if (target == "off") return log;
  log.file_.reset(target == "-" ? stderr : std::fopen(target.c_str(), "ae"));
  if (!log.file_) return fail(Code::kIo, "access log {}: {}", target, std::strerror(errno));
  if (target != "-") std::setvbuf(log.file_.get(), nullptr, _IOLBF, 1 << 16);
  return log;
}

void AccessLog::write(const Call& call) {
  if (!file_) return;
  const net::Exchange& exchange = *call.exchange;
  std::chrono::duration<double, std::milli> taken = net::Loop::Clock::now() - exchange.begin;
  JsonWriter w;
  w.begin_object().field("time", time_text()).field("id", call.request_id).field("key", call.principal.name);
  w.field("peer", exchange.request.peer).field("method", printable(exchange.request.method));
  w.field("path", printable(exchange.request.path)).field("status", exchange.status);
  w.key("ms").raw(fmt::format("{:.1f}", taken.count())).field("bytes", exchange.bytes_sent);
  if (call.prompt_tokens >= 0) {
    w.field("prompt_tokens", call.prompt_tokens).field("cached_tokens", call.cached_tokens);
    w.field("completion_tokens", call.completion_tokens);
  }
  if (!call.finish.empty()) w.field("finish", call.finish);
  if (!call.error.empty()) w.field("error", logs_prompts_ || exchange.status >= 500 ? call.error : "(see the answer)");
  if (logs_prompts_ && !call.logged_body.empty()) w.field("body", printable(call.logged_body));
  std::string line = w.end_object().take() + "\n";
  std::fwrite(line.data(), 1, line.size(), file_.get());
}

}  // namespace deepinfer::serve
