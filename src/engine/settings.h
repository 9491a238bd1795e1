// Every DEEPINFER_* variable and every LLM(...) argument, in one table.
//
//   A row is implemented, accepted without effect (with the reason), or refused (with the reason). read_settings walks
//   the environment: an unknown DEEPINFER_* name is an error that names the nearest known one, a malformed value names
//   the variable, the value and what is allowed. docs/settings.md is printed from this table (`deepinfer settings
//   --markdown`).
//
// Source of names and defaults: the public DeepInfer 0.1.0 (its environ.py and EngineArgs).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/simulated_drafts.h"
#include "sched/replay_plan.h"

namespace deepinfer::engine {

enum class SettingStatus { kImplemented, kAccepted, kRefused };

struct SettingRow {
  std::string_view name;      // without the DEEPINFER_ prefix for variables
  std::string_view fallback;  // default, as text
  SettingStatus status = SettingStatus::kImplemented;
  std::string_view note;  // effect, or the reason why there is none
};

std::span<const SettingRow> environment_rows();        // DEEPINFER_* variables
std::span<const SettingRow> engine_argument_rows();    // keyword arguments of LLM(...)
std::span<const SettingRow> sampling_argument_rows();  // fields of SamplingParams
std::string settings_markdown();

// Effective values. `std::nullopt`-like defaults are resolved where the configuration of the model is known.
struct Settings {
  std::string accelerator = "auto";           // auto, cpu, nvidia
  int num_drafts = -1;                        // USE_NEXTN_DECODE; -1: the model's block, at most 5
  int varlen = -1;                            // ENABLE_MTP_VARLEN; -1: chosen live, 0 fixed width, 1 scheduled
  int backtracking = -1;                      // MAX_BACKTRACKING_TOKENS; -1: drafts + 1
  std::vector<float> confidence_temperature;  // DFLASH_CONFIDENCE_HEAD_TEMPERATURE; empty: 1
  sched::Truncation truncation = sched::Truncation::kCompact;  // YOCO_PREFILL_TRUNCATION_MODE
  int64_t keep_tokens = 0;                                     // YOCO_PREFILL_KEEP_TOKENS; 0: window + draft block + 7
  bool batch_invariant = false;                                // BATCH_INVARIANT
  bool async_steps = true;                                     // ZERO_OVERHEAD_SCHEDULING
  double state_slots_ratio = 1.2;                              // NUM_STATE_SLOTS_RATIO
  int stored_windows = -1;                                     // STORED_WINDOWS; -1: 2 x max_num_seqs
  std::vector<std::pair<int32_t, int32_t>> blacklist;          // DECODE_TOKEN_BLACKLIST, closed ranges, strictly rising
  int logging_interval_steps = 100;                            // LOGGING_INTERVAL_STEP
  double grammar_timeout_s = 20;                               // XGRAMMAR_TIMEOUT
  int64_t grammar_cache_bytes = int64_t{10} << 30;             // XGRAMMAR_CACHE_LIMIT_BYTES
  int grammar_threads = 4;                                     // SO_BUILDER_CPUS
  int sampler_force_topk = 0;                                  // SAMPLER_FORCE_TOPK
  std::string log_level = "info";                              // CPP_LOG_LEVEL
  std::optional<DraftQuality> draft_quality;                   // no variable: for benchmarks
  std::vector<std::string> notes;  // one line for each variable that was accepted without effect
};

// From the variables of the process (or, in tests, from the given ones).
Result<Settings> read_settings();
Result<Settings> read_settings(std::span<const std::pair<std::string, std::string>> variables);

}  // namespace deepinfer::engine
