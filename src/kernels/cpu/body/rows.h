// What works on one row at a time: tables, norms, means, the Engram gate.
#pragma once

#include "kernels/cpu/body/input.h"

namespace deepinfer::kernels::cpu {
namespace {

// out[0 .. cols) = values of a stored row.
inline void decode_row(const Weight& w, int64_t row, float* out) {
  const int64_t cols = w.cols;
  if (w.kind == Weight::Kind::kF32) {
    __builtin_memcpy(out, static_cast<const float*>(w.codes) + row * cols, static_cast<size_t>(cols) * 4);
  } else if (w.kind == Weight::Kind::kBF16) {
    const bf16* codes = static_cast<const bf16*>(w.codes) + row * cols;
    for_lanes(cols, [&](int64_t c, int n) {
      store_any(out + c, n == 16 ? load_bf16(codes + c) : load_bf16_n(codes + c, n), n);
    });
  } else if (w.kind == Weight::Kind::kFp4) {
    const uint8_t* codes = static_cast<const uint8_t*>(w.codes) + row * (cols / 2);
    const uint8_t* scales = w.scales + row * (cols / 32);
    for (int64_t c = 0; c < cols; ++c) {
      const float v = e2m1_to_float(static_cast<uint8_t>(codes[c / 2] >> (c % 2 * 4) & 15));
      const uint8_t s = scales[c / 32];
      out[c] = v * std::bit_cast<float>(s == 0 ? 0x00400000u : static_cast<uint32_t>(s) << 23);
    }
  } else {
    const uint8_t* codes = static_cast<const uint8_t*>(w.codes) + row * cols;
    const uint8_t* scales = w.scales + (w.kind == Weight::Kind::kFp8 ? row / 32 : row) * (cols / 32);
    for (int64_t c = 0; c < cols; c += 16) {
      store(out + c, mul(e4m3_value<0>(load_u8(codes + c)), ue8m0_value<0>(seti(scales[c / 32]))));
    }
  }
}
DI_INLINE void fill_zero(float* x, int64_t n) {
  __builtin_memset(x, 0, static_cast<size_t>(n) * 4);
}
DI_INLINE void copy_floats(float* to, const float* from, int64_t n) {
  __builtin_memcpy(to, from, static_cast<size_t>(n) * 4);
}

}  // namespace

namespace DI_ISA {

void embed(const Context& ctx, const EmbedParams& p) {
  const int64_t d = p.table.empty() ? p.given.cols : p.table.cols;
  for_rows(ctx, p.streams.rows, p.streams.cols, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* first = p.streams.f32(t);
      const int64_t row = p.ids[t] - p.row_begin;
      if (p.ids[t] < 0) {
        if (p.given.empty()) {
          fill_zero(first, d);
        } else {
          copy_floats(first, p.given.f32(t), d);
        }
      } else if (row >= 0 && row < p.table.rows) {
        decode_row(p.table, row, first);
      } else {
        fill_zero(first, d);
      }
      for (int64_t at = d; at < p.streams.cols; at += d) copy_floats(first + at, first, d);
    }
  });
}

void gather_rows(const Context& ctx, const GatherRowsParams& p) {
  for_rows(ctx, p.out.rows, p.out.cols, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t row = p.ids[t] - p.row_begin;
      if (row >= 0 && row < p.table.rows) {
        decode_row(p.table, row, p.out.f32(t));
      } else {
        fill_zero(p.out.f32(t), p.out.cols);
      }
    }
  });
}

void rms_norm(const Context& ctx, const RmsNormParams& p) {
  for_rows(ctx, p.x.rows, p.x.cols, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) norm_row(p.x.f32(t), p.gain, p.x.cols, p.eps, p.y.f32(t));
  });
}

void stream_mean(const Context& ctx, const StreamMeanParams& p) {
  const int64_t d = p.mean.cols;
  for_rows(ctx, p.mean.rows, p.streams.cols, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float* h = p.streams.f32(t);
      for_lanes(d, [&](int64_t c, int n) {
        VF sum = zero();
        for (int j = 0; j < p.m; ++j) sum = add(sum, load_any(h + j * d + c, n));
        store_any(p.mean.f32(t) + c, div(sum, set(static_cast<float>(p.m))), n);
      });
    }
  });
}

// Rows come from a table far larger than memory caches: all of a batch row's addresses are touched before the first is
// used.
void engram_gather(const Context& ctx, const EngramGatherParams& p) {
  const int64_t dim = p.table.cols, n = p.rows.cols;
  for_rows(ctx, p.rows.rows, 4 * n * dim, [&](int64_t begin, int64_t end) {
    auto touch = [&](int64_t t) {
      for (int64_t i = 0; i < n; ++i) {
        const int64_t row = p.rows.row<int64_t>(t)[i] - p.row_begin;
        if (row < 0 || row >= p.table.rows) continue;
        const char* codes = static_cast<const char*>(p.table.codes) + row * dim;
        for (int64_t b = 0; b < dim; b += 64) __builtin_prefetch(codes + b);
        __builtin_prefetch(p.table.scales + row * (dim / 32));
      }
    };
    touch(begin);
    for (int64_t t = begin; t < end; ++t) {
      if (t + 1 < end) touch(t + 1);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t row = p.rows.row<int64_t>(t)[i] - p.row_begin;
        float* out = p.out.f32(t) + i * dim;
        if (row >= 0 && row < p.table.rows) {
          decode_row(p.table, row, out);
        } else {
          fill_zero(out, dim);
        }
      }
    }
  });
}

// Sums over a stream's channels: 16 lanes in ascending order, then the lane tree.
void engram_gate(const Context& ctx, const EngramGateParams& p) {
  const int64_t d = p.streams.cols / p.m;
  const float width_factor = static_cast<float>(1 / __builtin_sqrt(static_cast<double>(d)));
  for_rows(ctx, p.streams.rows, 3 * p.streams.cols, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      if (p.is_image != nullptr && p.is_image[t] != 0) continue;
      const float* value = p.kv.f32(t) + p.m * d;
      for (int64_t j = 0; j < p.m; ++j) {
        float* h = p.streams.f32(t) + j * d;
        const float* key = p.kv.f32(t) + j * d;
        const bf16 *qw = p.q_weight + j * d, *kw = p.k_weight + j * d;
        VF dot = zero(), hh = zero(), kk = zero();
        for_lanes(d, [&](int64_t c, int n) {
          const VF w =
              n == 16 ? mul(load_bf16(qw + c), load_bf16(kw + c)) : mul(load_bf16_n(qw + c, n), load_bf16_n(kw + c, n));
          const VF a = load_any(h + c, n), b = load_any(key + c, n);
          dot = fma(mul(a, w), b, dot);
          hh = fma(a, a, hh);
          kk = fma(b, b, kk);
        });
        const float rms = inverse_rms(reduce(hh), d, p.eps) * inverse_rms(reduce(kk), d, p.eps);
        const float product = reduce(dot) * rms * width_factor;
        const float magnitude = __builtin_fabsf(product);
        const float root = __builtin_sqrtf(magnitude > 1e-6f ? magnitude : 1e-6f);
        alignas(64) float gate[16];
        store(gate, vsigmoid(set(__builtin_copysignf(root, product))));
        const VF g = set(gate[0]);
        for_lanes(
            d, [&](int64_t c, int n) { store_any(h + c, add(load_any(h + c, n), mul(g, load_any(value + c, n))), n); });
      }
    }
  });
}

}  // namespace DI_ISA
}  // namespace deepinfer::kernels::cpu
