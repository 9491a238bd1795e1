// What the engine and its requests did lately, as a Chrome trace: opens in Perfetto (ui.perfetto.dev) and
// about:tracing.
//
//   engine     a slice for each step with its forward pass, sampling and drafting inside; rows, running and waiting as
//              counters
//   requests   a slice for each request that ended: waiting for its first token, then answering
//   Times are microseconds of one clock, so that both lie on one axis.
#pragma once

#include <span>
#include <string>

#include "deepinfer/engine.h"
#include "serve/request_spans.h"

namespace deepinfer::serve {

std::string step_trace(std::span<const StepRecord> steps, const RequestSpans& requests);

}  // namespace deepinfer::serve
