#include "controlplane/nodes/slurm/batch_script.h"

#include <algorithm>
#include <array>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "runtime/base/text/printable.h"

namespace megascale::nodes {
namespace {

struct OwnOption {
  absl::string_view name;
  absl::string_view instead;
};

constexpr std::array<OwnOption, 17> kOwnOptions = {{
    {"--nodes", "--nodes of this command"},
    {"-N", "--nodes of this command"},
    {"--ntasks", "one agent runs on each machine"},
    {"-n", "one agent runs on each machine"},
    {"--ntasks-per-node", "one agent runs on each machine"},
    {"--job-name", "--name of this command"},
    {"-J", "--name of this command"},
    {"--time", "--time of this command"},
    {"-t", "--time of this command"},
    {"--partition", "--partition of this command"},
    {"-p", "--partition of this command"},
    {"--array", "a launch is one job"},
    {"-a", "a launch is one job"},
    {"--dependency", "the launch uses it for its successor"},
    {"-d", "the launch uses it for its successor"},
    {"--comment", "the launch keeps its requests there"},
    {"--wrap", "the launch has a script of its own"},
}};

}  // namespace

std::string BatchScript(const std::vector<std::string>& words) {
  std::string script = "#!/bin/sh\nexec";
  for (const std::string& word : words) {
    absl::StrAppend(&script, " '", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
  }
  return script + "\n";
}

absl::Status CheckSbatchOptions(const std::vector<std::string>& options) {
  for (const std::string& option : options) {
    const std::string shown = base::Printable(option, 60);
    if (!absl::StartsWith(option, "-")) {
      return absl::InvalidArgumentError(absl::StrCat(
          "after `--`: '", shown, "' is no option of sbatch; write a value as --OPTION=VALUE"));
    }
    const std::string name = option.substr(0, option.find('='));
    const bool is_long = absl::StartsWith(option, "--");
    for (const OwnOption& own : kOwnOptions) {
      const bool is_same =
          is_long ? name == own.name : own.name.size() == 2 && absl::StartsWith(option, own.name);
      if (!is_same) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("after `--`: ", shown, ": the launch sets it itself; ", own.instead));
    }
  }
  return absl::OkStatus();
}

}  // namespace megascale::nodes
