// What the engine keeps of a request while it lives: where its events go and how its text is cut.
//
// Owned by the scheduling thread after submit.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "deepinfer/engine.h"
#include "engine/sequence_spec.h"
#include "grammar/structural_tag.h"
#include "sampling/stops.h"
#include "sched/scheduler.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"

namespace deepinfer::engine {

struct RequestState;

// One choice of a request.
struct ChoiceState {
  RequestState* request = nullptr;
  int index = 0;
  sched::SeqId seq = sched::kNoSequence;
  std::shared_ptr<const SequenceSpec> spec;
  std::optional<text::Detokenizer> detokenizer;
  std::optional<text::StopStrings> stops;
  int64_t num_output = 0;
  int64_t started_us = 0;  // when a step first took it in; 0: it waits
  bool ended = false;
  Usage usage;
  int64_t preemptions = 0;
  std::vector<std::optional<float>> prompt_logprobs;  // gathered until the first token
};

struct RequestState {
  uint64_t id = 0;
  Request request;
  Engine::Sink sink;
  int64_t submitted_us = 0, queued_us = 0;          // queued: with its grammar, if it has one
  grammar::StructuralTag tag;                       // of a request with so_args
  std::shared_ptr<const grammar::Grammar> grammar;  // owners: see GrammarSpec
  std::optional<Error> refusal;                     // it ends before it starts
  std::vector<int> early_cancels;                   // choices that were cancelled while the grammar was compiled
  std::vector<std::unique_ptr<ChoiceState>> choices;
  int num_ended = 0;
};

}  // namespace deepinfer::engine
