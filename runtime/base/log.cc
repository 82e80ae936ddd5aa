#include "runtime/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace megascale::base {
namespace {

spdlog::level::level_enum Level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

}  // namespace

void InitLog(absl::string_view process, LogLevel lowest) {
  auto logger = spdlog::stderr_logger_mt(std::string(process));
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %L %n: %v", spdlog::pattern_time_type::utc);
  logger->set_level(Level(lowest));
  logger->flush_on(spdlog::level::debug);
  spdlog::set_default_logger(logger);
}

void Log(LogLevel level, absl::string_view message) {
  spdlog::default_logger_raw()->log(Level(level), "{}",
                                    spdlog::string_view_t(message.data(), message.size()));
}

}  // namespace megascale::base
