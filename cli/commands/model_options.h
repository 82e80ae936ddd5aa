// The options of commands that use a trained model without a driver: generate, evaluate.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "cli/command_line/command_line.h"
#include "cli/command_line/report.h"

namespace megascale::cli {

struct ModelOptions {
  std::string checkpoint;
  int64_t threads = 0;
  std::string format = "text";
};

// `what`: help text that says what --checkpoint may name.
inline void AddModelOptions(Command* command, ModelOptions* options, const std::string& what) {
  command->Path("--checkpoint", &options->checkpoint, what);
  command->Integer("--threads", &options->threads, "threads to compute with; 0: one for each core");
  AddOutputOption(command, &options->format);
}

inline absl::Status CheckModelOptions(const ModelOptions& options) {
  constexpr int64_t kThreadsMax = 1024;
  if (options.checkpoint.empty())
    return absl::InvalidArgumentError("--checkpoint: is missing; expected a directory");
  if (options.threads < 0 || options.threads > kThreadsMax) {
    return absl::InvalidArgumentError("--threads: is out of range; expected 0 (all cores) to 1024");
  }
  return absl::OkStatus();
}

// Runs a command whose output has a format; returns the program's exit code.
inline int RunModelCommand(const ModelOptions& options, const std::function<absl::Status()>& run) {
  if (!CheckOutputFormat(options.format)) return kExitUsage;
  const absl::Status status = run();
  return status.ok() ? static_cast<int>(kExitGood) : ReportError(status);
}

}  // namespace megascale::cli
