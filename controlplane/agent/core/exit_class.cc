#include "controlplane/agent/core/exit_class.h"

#include <sys/wait.h>

#include <csignal>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "controlplane/launch/process_keeper.h"
#include "runtime/base/text/printable.h"

namespace megascale::agent {
namespace {

constexpr char kAdvice[] =
    "; make train.micro_batch_size or the model smaller, spread it over more pipeline stages or "
    "machines, or raise the limit (`megascale submit --dry-run` shows what a rank needs)";

// True if the process ended with the words that a refused allocation prints, in whatever thread.
bool RanOutOfMemory(const ProcessEnd& end) {
  return WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGABRT &&
         absl::StrContains(end.last_lines, "std::bad_alloc");
}

// Makes text of a process's output, which may be any bytes.
std::string PrintableLines(absl::string_view text) {
  return absl::StrJoin(absl::StrSplit(text, '\n'), "\n",
                       [](std::string* joined, absl::string_view line) {
                         absl::StrAppend(joined, base::Printable(line));
                       });
}

}  // namespace

bool IsKill(int status) {
  return (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) ||
         (WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGKILL);
}

bool IsCrash(int status) {
  if (!WIFSIGNALED(status)) return false;
  const int signal = WTERMSIG(status);
  return signal == SIGSEGV || signal == SIGBUS || signal == SIGILL || signal == SIGFPE;
}

v1::RankFailure ClassifyEnd(const ProcessEnd& end, const std::optional<v1::RankFailure>& reported) {
  v1::RankFailure failure;
  if (reported.has_value()) {
    failure = *reported;
    // The store's error is the cause, the process's own report its consequence.
    if (!end.store_failure.empty()) {
      failure.set_failure_class(telemetry::v1::FAILURE_CLASS_RENDEZVOUS);
      failure.set_message(absl::StrCat(end.store_failure, "\n", reported->message()));
      return failure;
    }
    if (failure.failure_class() == telemetry::v1::FAILURE_CLASS_OUT_OF_MEMORY) {
      failure.set_message(absl::StrCat(failure.message(), kAdvice));
    }
    return failure;
  }
  failure.set_failure_class(telemetry::v1::FAILURE_CLASS_OUT_OF_MEMORY);
  if (IsKill(end.status) && !end.out_of_memory.empty()) {
    failure.set_message(absl::StrCat(end.out_of_memory, kAdvice));
  } else if (RanOutOfMemory(end)) {
    failure.set_message(absl::StrCat("was refused memory: std::bad_alloc", kAdvice));
  } else {
    failure.set_failure_class(telemetry::v1::FAILURE_CLASS_EXITED);
    if (WIFSIGNALED(end.status)) failure.set_signal(WTERMSIG(end.status));
    failure.set_message(end.status == 0 ? "exited with status 0 before its work was done"
                                        : launch::DescribeExit(end.status));
  }
  if (!end.recent.empty()) failure.set_message(absl::StrCat(failure.message(), "\n", end.recent));
  if (!end.last_lines.empty()) {
    failure.set_message(
        absl::StrCat(failure.message(), "\nits last lines:\n", PrintableLines(end.last_lines)));
  }
  return failure;
}

}  // namespace megascale::agent
