// From what became of each request to the figures.
//
//   ttft   from sending to the first text          itl    between two texts of one answer
//   e2el   from sending to the last text           tpot   (e2el - ttft) / (tokens - 1)
//   Completed requests only. A server may send several tokens as one text: itl then counts their gap once, tpot does
//   not. Refused (429, 503) and broken requests count as failed; how long a refusal took is reported on its own.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "serve/load/load.h"

namespace deepinfer::serve {

struct RequestOutcome {
  double start_s = 0;             // when it was sent, after the begin
  double ttft_s = 0, e2el_s = 0;  // e2el of a failed one: until the failure
  std::vector<double> itl_s;
  int64_t input_tokens = 0, output_tokens = 0;
  int status = 0;     // of HTTP; 0: no answer
  std::string error;  // empty: completed

  bool is_refused() const { return status == 429 || status == 503; }
};

// The p-th percentile of values in order, linear between neighbours; 0 of nothing.
double percentile(std::span<const double> sorted, double p);

LoadResult report_load(const LoadOptions& options, const std::string& model, double duration_s,
                       std::span<const RequestOutcome> outcomes);

}  // namespace deepinfer::serve
