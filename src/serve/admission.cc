#include "serve/admission.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

namespace deepinfer::serve {
namespace {

constexpr double kMinute = 60;
constexpr double kBusyShare = 0.5;  // of the limits; above it keys are held to their share
constexpr double kNewest = 0.1;     // weight of the newest observation in the moving averages
// A wait above its prediction raises the error by one step, one below it lowers it by a small part of a step: it
// settles where 1 of 100 waits is above. The first steps are larger, since nothing is known yet.
constexpr double kErrorStep = 0.02, kShareAbove = 0.01;
constexpr int kFirstSteps = 4;  // the n-th step is 1 / (kFirstSteps + n) as long as that is larger
constexpr double kLeastError = 0.5, kMostError = 10;
constexpr double kLeastJudged = 0.05;  // of the longest wait: shorter predictions say nothing of a queue

int retry_after(double seconds) {
  return std::clamp(static_cast<int>(std::ceil(seconds)), 1, 3600);
}

tl::unexpected<ApiError> refuse(int status, std::string code, double retry_s, std::string message) {
  return tl::unexpected(ApiError{
      .status = status, .message = std::move(message), .code = std::move(code), .retry_after_s = retry_after(retry_s)});
}

}  // namespace

double Admission::expected_output(const Work& work) const {
  return std::min(work.output_tokens, usual_output_) * work.num_choices;
}

double Admission::predicted_wait_s(double prompt_tokens) const {
  return error_ * plain_wait_s(prompt_tokens);
}

double Admission::plain_wait_s(double prompt_tokens) const {
  if (rate_ <= 0) return 0;
  double wait = (waiting_prompt_ + prompt_tokens) / rate_;
  double excess = num_requests() + 1 - limits_.max_running;
  if (excess > 0) wait += std::min(1.0, excess / limits_.max_running) * output_ / rate_;
  return wait;
}

double Admission::queued_work_s() const {
  return rate_ > 0 ? (waiting_prompt_ + output_) / rate_ : 0;
}

ApiResult<> Admission::check_rates(const Principal& who, Tenant& tenant, const Work& work, double now_s) {
  auto refill = [&](Bucket& bucket, double per_minute) {
    if (bucket.is_new) bucket = {.level = per_minute, .updated_s = now_s, .is_new = false};
    bucket.level = std::min(per_minute, bucket.level + (now_s - bucket.updated_s) * per_minute / kMinute);
    bucket.updated_s = now_s;
  };
  double tokens = work.prompt_tokens + expected_output(work);
  if (who.requests_per_minute > 0) {
    refill(tenant.requests, who.requests_per_minute);
    if (tenant.requests.level < 1) {
      return refuse(429, "rate_limit_exceeded", (1 - tenant.requests.level) * kMinute / who.requests_per_minute,
                    fmt::format("the key '{}' may make {} requests a minute", who.name, who.requests_per_minute));
    }
  }
  if (who.tokens_per_minute > 0) {
    refill(tenant.tokens, who.tokens_per_minute);
    // A request larger than a whole minute passes when the bucket is full, else it never would.
    double needed = std::min(tokens, who.tokens_per_minute);
    if (tenant.tokens.level < needed) {
      return refuse(
          429, "rate_limit_exceeded", (needed - tenant.tokens.level) * kMinute / who.tokens_per_minute,
          fmt::format("the key '{}' may use {} tokens a minute; this request needs about {:.0f}, {:.0f} are left",
                      who.name, who.tokens_per_minute, tokens, std::max(0.0, tenant.tokens.level)));
    }
    tenant.tokens.level -= tokens;
  }
  if (who.requests_per_minute > 0) tenant.requests.level -= 1;
  return {};
}

double Admission::load(double wait_s) const {
  return std::max(wait_s / limits_.max_wait_s, static_cast<double>(num_requests()) / limits_.max_requests);
}

double Admission::take_load() {
  const double now = load(predicted_wait_s(0));
  return std::exchange(has_refused_, false) ? std::max(1.0, now) : now;
}

ApiResult<> Admission::check_room(const Principal& who, const Tenant& tenant, const Work& work) {
  double wait = predicted_wait_s(work.prompt_tokens);
  double limit = work.deadline_s ? std::min(*work.deadline_s, limits_.max_wait_s) : limits_.max_wait_s;
  auto is_busy = [](const auto& entry) { return entry.second.num_tickets > 0; };
  auto busy = std::count_if(tenants_.begin(), tenants_.end(), is_busy) + (tenant.num_tickets == 0 ? 1 : 0);
  double all_work = waiting_prompt_ + output_;
  if (load(wait) > kBusyShare && busy > 1 && tenant.work > all_work / static_cast<double>(busy)) {
    return refuse(429, "over_fair_share", std::max(1.0, wait / 2),
                  fmt::format("the key '{}' has more than its share, one of {}, of a busy system", who.name, busy));
  }
  has_refused_ |= num_requests() >= limits_.max_requests || wait > limits_.max_wait_s;
  if (num_requests() >= limits_.max_requests) {
    return refuse(503, "too_many_requests", std::max(1.0, queued_work_s() / std::max(1, num_requests())),
                  fmt::format("{} requests are in, which is the limit", num_requests()));
  }
  if (wait > limit) {
    return refuse(503, "overloaded", wait - limit,
                  fmt::format("the first token would come after about {:.1f} s; the limit is {:.1f} s", wait, limit));
  }
  return {};
}

ApiResult<uint64_t> Admission::admit(const Principal& who, const Work& work, double now_s) {
  Tenant& tenant = tenants_[who.name];
  DI_TRY_VOID(check_room(who, tenant, work));
  DI_TRY_VOID(check_rates(who, tenant, work, now_s));
  uint64_t id = next_ticket_++;
  Ticket ticket{.tenant = who.name,
                .prompt = work.prompt_tokens,
                .output = expected_output(work),
                .begin_s = now_s,
                .plain_wait_s = plain_wait_s(work.prompt_tokens)};
  waiting_prompt_ += ticket.prompt;
  output_ += ticket.output;
  tenant.work += ticket.prompt + ticket.output;
  tenant.num_tickets += 1;
  tickets_.emplace(id, std::move(ticket));
  return id;
}

void Admission::learn_error(double plain_wait_s, double wait_s) {
  if (plain_wait_s < kLeastJudged * limits_.max_wait_s) return;
  bool is_above = wait_s > error_ * plain_wait_s;
  double step = std::max(kErrorStep, 1.0 / static_cast<double>(kFirstSteps + ++num_judged_));
  error_ *= std::exp(is_above ? step * (1 - kShareAbove) : -step * kShareAbove);
  error_ = std::clamp(error_, kLeastError, kMostError);
}

void Admission::start(uint64_t id, double now_s) {
  auto it = tickets_.find(id);
  if (it == tickets_.end() || !it->second.is_waiting) return;
  Ticket& t = it->second;
  waiting_prompt_ -= t.prompt;
  tenants_[t.tenant].work -= t.prompt;
  t.prompt = 0;
  t.is_waiting = false;
  had_prompts_ = true;
  learn_error(t.plain_wait_s, now_s - t.begin_s);
}

void Admission::produce(uint64_t id, int64_t tokens) {
  auto it = tickets_.find(id);
  if (it == tickets_.end()) return;
  double done = std::min(it->second.output, static_cast<double>(tokens));
  it->second.output -= done;
  output_ -= done;
  tenants_[it->second.tenant].work -= done;
  produced_[id] += tokens;
}

void Admission::release(uint64_t id) {
  auto it = tickets_.find(id);
  if (it == tickets_.end()) return;
  Ticket& t = it->second;
  Tenant& tenant = tenants_[t.tenant];
  waiting_prompt_ -= t.prompt;
  output_ -= t.output;
  tenant.work -= t.prompt + t.output;
  if (--tenant.num_tickets == 0) tenant.work = 0;
  if (auto p = produced_.find(id); p != produced_.end()) {
    usual_output_ += kNewest * (static_cast<double>(p->second) - usual_output_);
    produced_.erase(p);
  }
  tickets_.erase(it);
  if (tickets_.empty()) waiting_prompt_ = output_ = 0;  // what rounding left
}

void Admission::observe(double rows, double busy_s) {
  const bool had_prompts = std::exchange(had_prompts_, waiting_prompt_ > 0);
  if (!had_prompts || rows <= 0 || busy_s <= 0) return;
  double rate = rows / busy_s;
  rate_ = rate_ <= 0 ? rate : rate_ + kNewest * (rate - rate_);
}

}  // namespace deepinfer::serve
