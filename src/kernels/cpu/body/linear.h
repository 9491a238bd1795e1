// linear and grouped_linear: all jobs of a call in one fork-join, cut into units of weight rows.
#pragma once

#include "kernels/cpu/body/input.h"

namespace deepinfer::kernels::cpu {
namespace {

// Rows [row, row + count) of a weight against columns from group `group` of the input, into columns `column` of y.
// Rows [first_token, end_token) of x and y. `next`: codes of the weight rows that this thread is likely to read next.
struct Unit {
  const Weight* weight;
  int64_t row, count, group, column;
  TensorView y;
  bool accumulate;
  int64_t first_token, end_token;
  const uint8_t* next;
};

inline void run_unit(const Unit& u, const Input& input) {
  // Sums go where they belong, unless a whole last panel does not fit there or they are to be added to what is there.
  const bool in_place = !u.accumulate && u.count % kPanel == 0;
  alignas(64) float buffer[kMaxTokens * kBlockRows];
  for (int64_t t0 = u.first_token; t0 < u.end_token; t0 += kMaxTokens) {
    Tokens tokens;
    tokens.input = input.from_group(u.group);
    tokens.first = t0;
    tokens.count = static_cast<int>(u.end_token - t0 < kMaxTokens ? u.end_token - t0 : kMaxTokens);
    float* sums = in_place ? u.y.f32(t0) + u.column : buffer;
    DI_ISA::product(*u.weight, u.row, u.count, tokens, sums, in_place ? u.y.stride : int64_t{kBlockRows}, u.next);
    if (in_place) continue;
    for (int i = 0; i < tokens.count; ++i) {
      float* y = u.y.f32(t0 + i) + u.column;
      const float* a = buffer + i * kBlockRows;
      for_lanes(u.count, [&](int64_t c, int n) {
        const VF v = load(a + c);
        store_any(y + c, u.accumulate ? add(load_any(y + c, n), v) : v, n);
      });
    }
  }
}

}  // namespace

namespace DI_ISA {

void linear(const Context& ctx, const LinearParams& p) {
  if (p.x.rows == 0) return;
  Scratch scratch(ctx);
  InputNeeds needs;
  int64_t total_rows = 0, code_bytes = 0;
  for (const LinearJob& job : p.jobs) {
    needs.add(job.weight.kind);
    total_rows += job.weight.rows;
    code_bytes += job.weight.rows * bytes_of_columns(job.weight.kind, job.weight.cols);
  }
  const PackedInput packed = pack_input(ctx, scratch, p.x, needs);
  const int64_t num_tokens = p.x.rows, step = unit_rows(total_rows, num_tokens, ctx.pool.size());
  int64_t num_units = 0;
  for (const LinearJob& job : p.jobs) num_units += (job.weight.rows + step - 1) / step;
  const int64_t tokens = unit_tokens(num_units, num_tokens, ctx.pool.size(), code_bytes, 4 * (p.x.cols + total_rows));
  const int64_t pieces = (num_tokens + tokens - 1) / tokens;
  struct Place {
    const LinearJob* job;
    int64_t row;
  };
  auto place_of = [&](int64_t i) {
    const LinearJob* job = p.jobs.data();
    for (int64_t n; i >= (n = (job->weight.rows + step - 1) / step); ++job) i -= n;
    return Place{job, i * step};
  };
  ctx.pool.each(num_units * pieces, [&](int64_t unit) {
    const int64_t first = unit / num_units * tokens, end = first + tokens < num_tokens ? first + tokens : num_tokens;
    const int64_t i = unit % num_units, later = i + ctx.pool.stride() < num_units ? i + ctx.pool.stride() : i;
    const auto [job, row] = place_of(i);
    const auto [later_job, later_row] = place_of(later);
    const int64_t left = job->weight.rows - row;
    run_unit({&job->weight, row, left < step ? left : step, 0, row, job->y, job->accumulate, first, end,
              row_codes(later_job->weight, later_row)},
             packed.of(job->weight.kind));
  });
}

void grouped_linear(const Context& ctx, const GroupedLinearParams& p) {
  if (p.x.rows == 0) return;
  Scratch scratch(ctx);
  InputNeeds needs;
  needs.add(p.weight.kind);
  const PackedInput packed = pack_input(ctx, scratch, p.x, needs);
  const Input& input = packed.of(p.weight.kind);
  const int64_t rows = p.weight.rows / p.groups, input_groups = p.weight.cols / 32;
  int64_t step = unit_rows(p.weight.rows, p.x.rows, ctx.pool.size());
  // A panel must not cross a row of FP8 scales: where groups do not start at multiples of 32 rows, pieces end there.
  const bool aligned = rows % 32 == 0;
  if (!aligned) step = 16;
  const int64_t per_group = aligned ? (rows + step - 1) / step : (rows + 15) / 16 + 1;
  const int64_t tokens =
      unit_tokens(p.groups * per_group, p.x.rows, ctx.pool.size(),
                  p.weight.rows * bytes_of_columns(p.weight.kind, p.weight.cols), 4 * (p.x.cols + p.weight.rows));
  const int64_t pieces = (p.x.rows + tokens - 1) / tokens;
  const int64_t num_units = p.groups * per_group;
  ctx.pool.each(num_units * pieces, [&](int64_t unit) {
    const int64_t first = unit / num_units * tokens, i = unit % num_units, g = i / per_group, end = (g + 1) * rows;
    int64_t row = g * rows + i % per_group * step, stop = row + step;
    if (!aligned) {
      const int64_t base = g * rows / 16 * 16 + i % per_group * 16;
      row = base > g * rows ? base : g * rows;
      stop = base + 16;
    }
    if (stop > end) stop = end;
    if (row >= stop) return;
    run_unit({&p.weight, row, stop - row, g * input_groups, row, p.y, false, first,
              first + tokens < p.x.rows ? first + tokens : p.x.rows, nullptr},
             input);
  });
}

}  // namespace DI_ISA
}  // namespace deepinfer::kernels::cpu
