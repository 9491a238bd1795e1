#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

namespace deepinfer {

void init_log(const std::string& level) {
  auto logger = spdlog::stderr_color_mt("deepinfer");
  logger->set_pattern("%H:%M:%S.%e %^%L%$ %v");
  spdlog::set_default_logger(std::move(logger));
  spdlog::set_level(spdlog::level::from_str(level));
}

}  // namespace deepinfer
