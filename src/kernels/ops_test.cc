// What every CPU backend must satisfy: the operations against plain computations, and against themselves with other
// batches, thread counts and hostile inputs. golden_test.cc compares with the oracle, cpu/cpu_ops_test.cc with the
// reference backend.
#include <cmath>
#include <ostream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/compare_ops.h"
#include "kernels/testing.h"

namespace deepinfer::kernels::testing {
namespace {

using ::testing::IsEmpty;

struct Config {
  TestBackend backend;
  Numerics numerics;

  std::string name() const { return std::string(backend.name) + "_" + numerics_name(numerics); }
};
void PrintTo(const Config& config, std::ostream* out) {
  *out << config.name();
}

class OpsTest : public ::testing::TestWithParam<Config> {
 protected:
  CpuSide side(int threads = 2) const { return {GetParam().backend.make(GetParam().numerics), threads}; }
};

// ---- against themselves --------------------------------------------------------------------------

TEST_P(OpsTest, ThreadCountDoesNotChangeBits) {
  CpuSide one = side(1), two = side(2), five = side(5);
  for (int64_t rows : {1, 33}) {
    const Shape shape{.rows = rows};
    EXPECT_THAT(repeat_problems(two.backend, one.backend, shape, 11), IsEmpty());
    EXPECT_THAT(repeat_problems(five.backend, one.backend, shape, 11), IsEmpty());
  }
}

TEST_P(OpsTest, RowAloneEqualsRowInBatch) {
  CpuSide s = side();
  for (uint64_t seed : {1, 2}) {
    EXPECT_THAT(piece_problems(s.backend, {.rows = 11, .data = seed == 2 ? Data::kRough : Data::kNormal}, seed, 1),
                IsEmpty());
  }
}

TEST_P(OpsTest, ChunksDoNotChangeBits) {
  CpuSide s = side();
  for (int64_t chunk : {3, 16}) EXPECT_THAT(piece_problems(s.backend, {.rows = 37}, 21, chunk), IsEmpty());
}

// NaN and infinities may spoil their rows, but nothing hangs, leaves its memory (guard pages) or invents indices.
TEST_P(OpsTest, SurvivesNaN) {
  CpuSide s = side();
  const Shape shape{.rows = 12, .data = Data::kNaN};
  for (uint64_t seed : {1, 2}) EXPECT_THAT(invented_ids(s.backend, shape, seed), IsEmpty());
}

// ---- against plain computations ---------------------------------------------------------------------------------

TEST_P(OpsTest, LinearSumsProducts) {
  CpuSide s = side();
  for (auto [rows, num_out, cols] : {std::tuple{1, 1, 32}, {3, 33, 64}, {7, 31, 320}, {2, 100, 2080}}) {
    CallMemory m(s.backend, {.rows = rows, .hidden = cols});
    const HostMatrix x = random_activations(1, rows, cols);
    for (Weight::Kind kind :
         {Weight::Kind::kF32, Weight::Kind::kBF16, Weight::Kind::kFp8, Weight::Kind::kFp8Row, Weight::Kind::kFp4}) {
      const HostWeight w = random_weight(2, kind, num_out, cols);
      const TensorView y = m.output(DType::kF32, rows, num_out);
      const LinearJob job{.weight = m.weight(w), .y = y, .keep_f32 = true};
      s.ops->linear(s.stream, {.x = m.activations(x), .jobs = {&job, 1}, .quantize_input = false});
      HostMatrix want(rows, num_out);
      for (int t = 0; t < rows; ++t) {
        for (int i = 0; i < num_out; ++i) {
          double sum = 0;
          for (int k = 0; k < cols; ++k) sum += static_cast<double>(x.row(t)[k]) * w.values.row(i)[k];
          want.row(t)[i] = static_cast<float>(sum);
        }
      }
      // The CPU's products of FP8 and FP4 weights are integer products of rounded activations.
      const bool rounds =
          s.ops->numerics() == Numerics::kFast && (kind == Weight::Kind::kFp8 || kind == Weight::Kind::kFp4);
      EXPECT_EQ(difference("y", m.get(y), want, {rounds ? 0.02 : 1e-6, 0}), "");
    }
  }
}

// With Data::kTies the keys of entries 5 k .. 5 k + 4 are equal: a later one is never chosen without the ones before
// it.
TEST_P(OpsTest, SelectPrefersTheLowerIndexAmongEquals) {
  CpuSide s = side();
  const Shape shape{.rows = 9, .index_heads = 2, .context = 300, .top_k = 7, .data = Data::kTies};
  for (auto [role, ratio] : {std::pair{SelectParams::Role::kPlain, 2}, std::pair{SelectParams::Role::kSource, 1}}) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
      Memory m(s.backend);
      Scene scene(m, shape, seed, {0, shape.rows}, record_format(s.ops->numerics()), ratio);
      const Outputs out = cases::select(s.backend, shape, seed, {0, shape.rows}, role, ratio);
      for (int64_t t = 0; t < shape.rows; ++t) {
        std::vector<int64_t> chosen;
        for (int i = 0; i < shape.top_k && out[0].values.row(t)[i] >= 0; ++i) {
          chosen.push_back(static_cast<int64_t>(out[0].values.row(t)[i]));
        }
        EXPECT_EQ(static_cast<int64_t>(chosen.size()), std::min<int64_t>((scene.position(t) + 1) / ratio, shape.top_k));
        for (size_t i = 0; i < chosen.size(); ++i) {
          if (chosen[i] % 5 == 0) continue;
          EXPECT_TRUE(i > 0 && chosen[i - 1] == chosen[i] - 1)
              << "seed " << seed << " row " << t << " entry " << chosen[i];
        }
      }
    }
  }
}

// The newest block is a candidate however low its scores, and candidates hold the best entry unless it is full.
TEST_P(OpsTest, SourceForcesTheNewestBlock) {
  CpuSide s = side();
  const Shape shape{.rows = 20};
  const Outputs out = cases::select(s.backend, shape, 5, {0, shape.rows}, SelectParams::Role::kSource, 1);
  Memory m(s.backend);
  Scene scene(m, shape, 5, {0, shape.rows}, record_format(s.ops->numerics()), 1);
  for (int64_t t = 0; t < shape.rows; ++t) {
    const int64_t blocks = ceil_div(scene.position(t) + 1, shape.candidate_block_size);
    const int64_t count = std::min<int64_t>(blocks, shape.candidate_blocks);
    EXPECT_EQ(out[1].values.row(t)[count - 1], static_cast<float>(blocks - 1)) << "row " << t;
  }
}

// Softmax with a sink in double precision over keys decoded here.
TEST_P(OpsTest, AttentionIsSoftmaxWithSink) {
  CpuSide s = side();
  const Shape shape{.rows = 17, .context = 200};
  for (uint64_t seed : {1, 2, 3, 4}) {
    CallMemory m(s.backend, shape);
    const RecordFormat format = record_format(s.ops->numerics());
    Scene scene(m, shape, seed, {0, shape.rows}, format, 1);
    const Outputs got = cases::attention(s.backend, shape, seed, {0, shape.rows}, cases::Keys::kWindow, 1);
    const HostMatrix q = random_activations(seed, shape.rows, shape.heads * shape.head_dim);
    const HostMatrix cos = m.get(scene.rope().cos), sin = m.get(scene.rope().sin);
    std::vector<float> sink = random_floats(seed, 1, shape.heads).values;
    sink[0] = 40;
    const int64_t bytes = window_record_bytes(format, shape.head_dim), dim = shape.head_dim, pairs = shape.rope_pairs;
    const std::vector<std::byte> now = m.get(scene.records(), shape.rows * bytes);
    WindowCache cache = scene.window();
    std::vector<std::byte> before = m.get(cache.data, scene.window_bytes());
    cache.data = before.data();
    HostMatrix want(shape.rows, shape.heads * dim);
    for (const kernels::Run& run : scene.runs()) {
      for (int64_t i = 0; i < run.num_rows; ++i) {
        const int64_t t = run.row_begin + i, pos = run.first_pos + i;
        for (int h = 0; h < shape.heads; ++h) {
          auto turn = [&](double* x, double sign) {
            for (int64_t k = 0; k < pairs; ++k) {
              double &a = x[dim - 2 * pairs + 2 * k], &b = x[dim - 2 * pairs + 2 * k + 1];
              const double c = cos.row(t)[k], d = sign * sin.row(t)[k], old = a;
              a = a * c - b * d;
              b = old * d + b * c;
            }
          };
          std::vector<double> query(q.row(t) + h * dim, q.row(t) + (h + 1) * dim), sum(static_cast<size_t>(dim));
          turn(query.data(), 1);
          double total = std::exp(static_cast<double>(sink[h]));
          for (int64_t p = 0; p <= pos; ++p) {
            if (pos - p >= shape.window || p < run.window_floor) continue;
            std::vector<float> key(static_cast<size_t>(dim));
            const std::byte* record =
                p >= run.first_pos ? &now[(run.row_begin + p - run.first_pos) * bytes] : cache.record(run.slot, p);
            decode_window_record(format, record, shape.head_dim, key.data());
            double score = 0;
            for (int64_t c = 0; c < dim; ++c) score += query[c] * key[c];
            const double weight = std::exp(score / std::sqrt(static_cast<double>(dim)));
            total += weight;
            for (int64_t c = 0; c < dim; ++c) sum[c] += weight * key[c];
          }
          for (double& v : sum) v /= total;
          turn(sum.data(), -1);
          for (int64_t c = 0; c < dim; ++c) want.row(t)[h * dim + c] = static_cast<float>(sum[c]);
        }
      }
    }
    const bool rounds = s.ops->numerics() == Numerics::kVendor;
    EXPECT_EQ(difference("out", got[0].values, want, {rounds ? 0.03 : 1e-5, 0}), "");
  }
}

// Doubly stochastic up to the eps that the iteration adds.
TEST_P(OpsTest, CombSumsToOne) {
  CpuSide s = side();
  const Shape shape{.rows = 33};
  for (const Output& output : cases::mhc(s.backend, shape, 3, {0, shape.rows}, cases::Site::kInner)) {
    if (output.name != "comb") continue;
    for (int64_t t = 0; t < shape.rows; ++t) {
      for (int i = 0; i < shape.streams; ++i) {
        float row = 0, column = 0;
        for (int j = 0; j < shape.streams; ++j) {
          row += output.values.row(t)[i * shape.streams + j];
          column += output.values.row(t)[j * shape.streams + i];
        }
        EXPECT_NEAR(row, 1, 0.1);  // converges slowly; the columns come last
        EXPECT_NEAR(column, 1, 1e-5);
      }
    }
  }
}

// The sum that moe makes is the one that ranks make of its slots.
TEST_P(OpsTest, CombineOfSlotsEqualsMoe) {
  CpuSide s = side();
  const Shape shape{.rows = 6};
  const Piece whole{0, shape.rows};
  const Outputs want = cases::moe(s.backend, shape, 9, whole);
  CallMemory m(s.backend, shape);
  const cases::MoeInputs in = cases::moe_inputs(m, shape, 9, whole, 0, static_cast<int>(shape.experts));
  const TensorView slots = m.activation_output(shape.rows, shape.experts_per_token * shape.hidden);
  const TensorView gate = m.activation_output(shape.rows, shape.expert_width),
                   up = m.activation_output(shape.rows, shape.expert_width);
  const TensorView y = m.activation_output(shape.rows, shape.hidden), z = m.activation_output(shape.rows, shape.hidden);
  s.ops->moe(s.stream,
             {.x = in.x, .ids = in.ids, .weights = in.weights, .experts = in.experts, .limit = 2, .slots = slots});
  const LinearJob first[] = {{.weight = in.shared.w1, .y = gate}, {.weight = in.shared.w3, .y = up}};
  s.ops->linear(s.stream, {.x = in.x, .jobs = first});
  s.ops->swiglu(s.stream, {.gate = gate, .up = up, .a = gate, .limit = 2});
  const LinearJob second{.weight = in.shared.w2, .y = y};
  s.ops->linear(s.stream, {.x = gate, .jobs = {&second, 1}});
  s.ops->combine(s.stream, {.slots = slots, .shared = y, .top_k = shape.experts_per_token, .z = z});
  EXPECT_EQ(difference("z", m.get(z), want[0].values, {0, 1}), "");
}

std::vector<Config> all_configs() {
  std::vector<Config> configs;
  for (const TestBackend& backend : cpu_backends()) {
    for (Numerics n : backend.numerics) configs.push_back({backend, n});
  }
  return configs;
}
INSTANTIATE_TEST_SUITE_P(All, OpsTest, ::testing::ValuesIn(all_configs()),
                         [](const auto& c) { return c.param.name(); });

}  // namespace
}  // namespace deepinfer::kernels::testing
