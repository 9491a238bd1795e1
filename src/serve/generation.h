// Requests of the API on their way through the engine.
//
//   endpoint --GenerationPlan--> Generations --Request--> engine
//                                     ^                     | TokenEvent, on the engine's thread
//                                     +---- queue, loop ----+
//                                     +--> OutputParser --> Responder --> client
//
//   The engine's thread only appends to a queue; everything else happens on the loop. Events that wait together are
//   given to the responder as one piece, so a busy loop sends fewer, larger events.
//   A client that goes away, a cancellation by id, a deadline and the end of the drain all end in the same place: the
//   engine is told to cancel, and the call ends exactly once.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "net/loop.h"
#include "serve/admission.h"
#include "serve/fields.h"
#include "serve/metrics.h"
#include "serve/model.h"
#include "serve/request_spans.h"
#include "serve/responder.h"
#include "serve/written.h"

namespace deepinfer::serve {

// What an endpoint makes of a request's body. A plain value: made on any thread.
struct GenerationPlan {
  std::vector<Request> requests;  // one a prompt; choice i of prompt p is number p * n + i
  bool is_chat = false;           // the output is parsed: reasoning, content, calls
  text::OutputFormat format;
  std::string form_field;  // of the request: what asked for the form of the answer
  bool wants_token_ids = false;
  std::string id;  // of the answer
  std::vector<std::string> unknown_fields;
  std::unique_ptr<Responder> responder;
};

class Generations {
 public:
  Generations(net::Loop& loop, Admission& admission, Metrics& metrics, WrittenAnswers& written);
  ~Generations();

  // Answers the call in any case.
  void start(const Model& model, CallPtr call, GenerationPlan plan);
  // Ends what runs under this answer or request id for this tenant; false if there is no such thing.
  bool cancel(const Principal& who, std::string_view id);
  void cancel_all(const ApiError& why);
  // Sends comments to streams that had nothing to say for a while. Called every second.
  void tick(net::Loop::Clock::time_point now);

  int num_active() const { return static_cast<int>(runs_.size()); }
  RequestSpans& spans() { return spans_; }

 private:
  struct Run;
  struct Choice;
  struct Inbox;

  bool admit(Run& run);
  void submit(Run& run);
  void ensure_begun(Run& run);
  void deliver();
  void on_event(Run& run, int prompt, TokenEvent& event);
  void on_token(Run& run, Choice& choice, const TokenEvent& event);
  void end_choice(Run& run, Choice& choice, const TokenEvent& event);
  void flush(Run& run);
  void finish(Run& run);
  void fail(uint64_t run_id, const ApiError& why);
  void on_closed(uint64_t run_id, net::CloseReason reason);
  void remove(Run& run);

  net::Loop& loop_;
  Admission& admission_;
  Metrics& metrics_;
  WrittenAnswers& written_;
  std::shared_ptr<Inbox> inbox_;                   // shared with the engine's sinks, which may outlive this
  std::map<uint64_t, std::shared_ptr<Run>> runs_;  // shared with whoever works on one while it ends
  std::map<std::string, uint64_t, std::less<>> by_id_;
  uint64_t next_run_ = 1;
  RequestSpans spans_;
};

}  // namespace deepinfer::serve
