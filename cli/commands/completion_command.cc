// completion: scripts for shells and a page for `man` about this program.
#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cli/command_line/report.h"
#include "cli/commands/commands.h"
#include "runtime/base/text/printable.h"
#include "runtime/base/version.h"

namespace megascale::cli {

void AddCompletionCommand(CommandLine* line) {
  auto shell = std::make_shared<std::string>();
  Command* command =
      line->Add("completion", "writes completion for bash or zsh, or the manual page");
  command->Positional("SHELL", shell.get(), "bash, zsh, or man");
  command->Details(
      "Made from the options and commands of this very program. `./dev install PREFIX` puts all "
      "three where shells and man look for them.");
  command->Examples(
      "megascale completion bash  # for the shell to source\n"
      "megascale completion zsh   # the same, or a file _megascale in a folder of $fpath\n"
      "megascale completion man   # roff: a file man/man1/megascale.1");
  command->Runs([shell, line] {
    const std::string text = line->Completion(*shell, absl::StrCat("megascale ", base::kVersion));
    if (text.empty()) {
      return ReportError(absl::InvalidArgumentError(absl::StrCat(
          "SHELL: expected bash, zsh or man, found '", base::Printable(*shell, 60), "'")));
    }
    std::fwrite(text.data(), 1, text.size(), stdout);
    return static_cast<int>(kExitGood);
  });
}

}  // namespace megascale::cli
