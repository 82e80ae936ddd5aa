// Log lines of a process, on standard error: "2026-01-31T12:00:00.123Z I driver: text". Only log.cc
// includes the logging library, whose headers are large.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace megascale::base {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Sets the prefix of every line of this process ("agent n0", "worker 3") and the lowest level
// shown. Call it once, first thing in main.
void InitLog(absl::string_view process, LogLevel lowest);

void Log(LogLevel level, absl::string_view message);
inline void LogInfo(absl::string_view message) { Log(LogLevel::kInfo, message); }
inline void LogWarning(absl::string_view message) { Log(LogLevel::kWarning, message); }
inline void LogError(absl::string_view message) { Log(LogLevel::kError, message); }

}  // namespace megascale::base
