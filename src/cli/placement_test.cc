// Plans of the released model on known machines; what does not fit is refused with sizes.

#include "cli/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/quantity.h"

namespace deepinfer {
namespace {

using testing::HasSubstr;

ModelConfig released() {
  return load_config(std::string(DI_SOURCE_DIR) + "/tests/golden/released").value();
}

TEST(Quantity, UnitsArePowersOf1024) {
  EXPECT_EQ(parse_quantity("--ram", "1T").value(), int64_t{1} << 40);
  EXPECT_EQ(parse_quantity("--context", "1M").value(), 1048576);
  EXPECT_EQ(parse_quantity("--ram", "1.5GiB").value(), 3 * (int64_t{1} << 29));
  EXPECT_EQ(parse_quantity("--ram", "17").value(), 17);
  for (const char* bad : {"", "x", "1Q", "-1", "1KM", "1e40"}) {
    EXPECT_THAT(parse_quantity("--ram", bad).error().message, HasSubstr("--ram is"));
  }
}

TEST(Placement, ReleasedModelOnEightH200) {
  auto p = place(released(), parse_machine("8xH200", int64_t{1} << 40).value(), 1048576).value();
  EXPECT_EQ(p.host_experts, 0);
  EXPECT_EQ(p.disk_engram, 0);
  EXPECT_NEAR(p.sequence_bytes, 890.0 * 1048576 + 1.2 * 3128352, 1);
  EXPECT_GT(p.num_sequences, 8 * 50);
  EXPECT_LE(static_cast<double>(p.num_sequences / 8) * p.sequence_bytes + p.dense + p.device_experts + p.workspace,
            150e9);
  EXPECT_GT(p.full_step_seconds, p.single_step_seconds);
}

TEST(Placement, ExpertsSpillToTheHost) {
  auto p = place(released(), parse_machine("H200", int64_t{1} << 40).value(), 131072).value();
  EXPECT_GT(p.host_experts, 100e9);
  EXPECT_GE(p.num_sequences, 1);
  EXPECT_THAT(place(released(), parse_machine("H200", int64_t{1} << 36).value(), 131072).error().message,
              HasSubstr("is short of"));
  EXPECT_THAT(place(released(), parse_machine("RTX4090", int64_t{1} << 40).value(), 1 << 24).error().message,
              HasSubstr("one RTX4090"));
}

TEST(Placement, ProcessorsAlone) {
  auto p = place(released(), parse_machine("cpu", int64_t{400} << 30).value(), 65536).value();
  EXPECT_GT(p.disk_engram, 0);
  EXPECT_GE(p.num_sequences, 1);
}

TEST(Placement, UnknownDevicesAreListed) {
  for (const char* bad : {"8xH900", "0xH200", "xH200", "9999999xH200"}) {
    EXPECT_THAT(parse_machine(bad, 1).error().message, testing::AllOf(HasSubstr(bad), HasSubstr("H200, H100")));
  }
}

}  // namespace
}  // namespace deepinfer
