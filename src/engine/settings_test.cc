#include "engine/settings.h"

#include <gtest/gtest.h>

namespace deepinfer::engine {
namespace {

using Variables = std::vector<std::pair<std::string, std::string>>;

std::string error_of(const Variables& v) {
  auto s = read_settings(v);
  return s ? "" : s.error().message;
}

TEST(Settings, AnUnknownVariableNamesTheNearest) {
  EXPECT_EQ(error_of({{"DEEPINFER_USE_NEXTN_DECOD", "3"}}),
            "unknown variable DEEPINFER_USE_NEXTN_DECOD; did you mean DEEPINFER_USE_NEXTN_DECODE?");
}

TEST(Settings, AMalformedValueNamesVariableValueAndLimit) {
  EXPECT_EQ(error_of({{"DEEPINFER_USE_NEXTN_DECODE", "33"}}),
            "DEEPINFER_USE_NEXTN_DECODE is '33'; allowed: a number from 0 to 32");
  EXPECT_EQ(error_of({{"DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE", "on"}}),
            "DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE is 'on'; allowed: off, mask, compact");
  EXPECT_NE(error_of({{"DEEPINFER_DECODE_TOKEN_BLACKLIST", "7,3"}}), "");
  EXPECT_NE(error_of({{"DEEPINFER_DFLASH_CONFIDENCE_HEAD_TEMPERATURE", "1,x"}}), "");
  EXPECT_NE(error_of({{"DEEPINFER_ACCELERATOR", "ascend"}}), "");
  EXPECT_NE(error_of({{"DEEPINFER_FORCE_LOAD_BALANCE", "1"}}), "");
}

TEST(Settings, EveryRowOfTheTableIsRead) {
  for (const SettingRow& row : environment_rows()) {
    Variables v = {{"DEEPINFER_" + std::string(row.name), std::string(row.fallback)}};
    auto s = read_settings(v);
    ASSERT_TRUE(s) << row.name << ": " << s.error().message;
    EXPECT_EQ(s->notes.size(), row.status == SettingStatus::kAccepted ? 1u : 0u) << row.name;
    EXPECT_TRUE(row.status == SettingStatus::kImplemented || !row.note.empty()) << row.name;
  }
}

TEST(Settings, ValuesArriveInTheirFields) {
  auto s = read_settings(Variables{{"DEEPINFER_USE_NEXTN_DECODE", "3"},
                                   {"DEEPINFER_ENABLE_MTP_VARLEN", "1"},
                                   {"DEEPINFER_DECODE_TOKEN_BLACKLIST", "0..3,7"},
                                   {"DEEPINFER_DFLASH_CONFIDENCE_HEAD_TEMPERATURE", "1,0.5"},
                                   {"DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE", "mask"},
                                   {"DEEPINFER_BATCH_INVARIANT", "1"}});
  ASSERT_TRUE(s);
  EXPECT_EQ(s->num_drafts, 3);
  EXPECT_EQ(s->varlen, 1);
  EXPECT_EQ(s->blacklist, (std::vector<std::pair<int32_t, int32_t>>{{0, 3}, {7, 7}}));
  EXPECT_EQ(s->confidence_temperature, (std::vector<float>{1, 0.5}));
  EXPECT_EQ(s->truncation, sched::Truncation::kMask);
  EXPECT_TRUE(s->batch_invariant);
}

}  // namespace
}  // namespace deepinfer::engine
