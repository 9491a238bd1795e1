// Who may enter, counted in time: requests are refused early, with the time after which to try again, rather than left
// to wait beyond what anybody wants.
//
//   predicted wait = error x ((prompt tokens that wait + own prompt) / rate
//                             + the time until a place frees, if more requests are in than can run)
//   rate           = rows a second while the engine works on prompts, a moving average of what it did; steps that
//   decode
//                    alone hold few rows and cost nearly as much as full ones, so they say nothing of prompts
//   error          = what the waits of all but a few requests stayed below, as a multiple of their prediction: running
//                    answers take their share of each step, and how large it is shows only afterwards
//
//   503   the wait exceeds the limit or the request's deadline, or the bound on requests is reached
//   429   a key over its requests or tokens a minute; or over its share of a system that is more than half full
//
// Times come from the caller, so that tests own the clock. Owned by the loop.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "serve/api_error.h"
#include "serve/keys.h"

namespace deepinfer::serve {

struct AdmissionLimits {
  double max_wait_s = 60;
  int max_requests = 2048;
  int max_running = 256;  // sequences that the engine runs together
};

struct Work {
  double prompt_tokens = 0;
  double output_tokens = 0;  // at most
  std::optional<double> deadline_s;
  int num_choices = 1;
};

class Admission {
 public:
  explicit Admission(AdmissionLimits limits) : limits_(limits) {}

  // Takes the work in and returns its ticket, or says why not. `now_s` never goes back.
  ApiResult<uint64_t> admit(const Principal& who, const Work& work, double now_s);
  // The first token of a ticket's answer came: its prompt no longer waits.
  void start(uint64_t ticket, double now_s);
  void produce(uint64_t ticket, int64_t tokens);
  void release(uint64_t ticket);

  // Since the last call the engine computed `rows` in `busy_s`.
  void observe(double rows, double busy_s);
  void set_max_running(int n) { limits_.max_running = n; }

  double predicted_wait_s(double prompt_tokens) const;
  double queued_work_s() const;  // all that is in, prompts and answers
  // 1: nothing more fits, and at least that if a request was refused for lack of room since the last call.
  double take_load();
  int num_requests() const { return static_cast<int>(tickets_.size()); }

 private:
  struct Bucket {  // tokens refill with time, up to a minute's worth
    double level = 0, updated_s = 0;
    bool is_new = true;
  };
  struct Tenant {
    Bucket requests, tokens;
    double work = 0;  // of its tickets, tokens
    int num_tickets = 0;
  };
  struct Ticket {
    std::string tenant;
    double prompt = 0, output = 0;         // still to do
    double begin_s = 0, plain_wait_s = 0;  // admitted when, with which prediction before its error
    bool is_waiting = true;
  };
  ApiResult<> check_rates(const Principal& who, Tenant& tenant, const Work& work, double now_s);
  ApiResult<> check_room(const Principal& who, const Tenant& tenant, const Work& work);
  double load(double wait_s) const;
  double expected_output(const Work& work) const;
  double plain_wait_s(double prompt_tokens) const;
  void learn_error(double plain_wait_s, double wait_s);

  AdmissionLimits limits_;
  std::map<std::string, Tenant> tenants_;
  std::map<uint64_t, Ticket> tickets_;
  uint64_t next_ticket_ = 1;
  double waiting_prompt_ = 0, output_ = 0;  // tokens of all tickets
  double rate_ = 0;                         // rows a second; 0: not known yet
  double error_ = 1;                        // of predicted waits
  int64_t num_judged_ = 0;                  // waits that it was learned from
  double usual_output_ = 256;               // moving average of finished answers' lengths
  std::map<uint64_t, int64_t> produced_;
  bool had_prompts_ = false;  // some waited at the last observation, or had their first token since then
  bool has_refused_ = false;  // for lack of room, since the load was taken
};

}  // namespace deepinfer::serve
