#include "controlplane/agent/exit_class.h"

#include <sys/wait.h>

#include <csignal>

#include "absl/strings/str_cat.h"
#include "controlplane/launch/process_keeper.h"

namespace megascale::agent {

v1::RankFailure ClassifyEnd(const ProcessEnd& end, const std::optional<v1::RankFailure>& reported) {
  if (reported.has_value()) return *reported;
  const bool killed = (WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGKILL) ||
                      (WIFEXITED(end.status) && WEXITSTATUS(end.status) == 128 + SIGKILL);
  v1::RankFailure failure;
  failure.set_peer_rank(-1);
  if (killed && end.out_of_memory) {
    failure.set_failure_class(telemetry::v1::FAILURE_CLASS_OUT_OF_MEMORY);
    failure.set_message("killed by the kernel: out of memory");
  } else {
    failure.set_failure_class(telemetry::v1::FAILURE_CLASS_EXITED);
    failure.set_message(end.status == 0 ? "exited with status 0 before its work was done"
                                        : launch::DescribeExit(end.status));
  }
  if (!end.last_lines.empty()) {
    failure.set_message(absl::StrCat(failure.message(), "; its last lines:\n", end.last_lines));
  }
  return failure;
}

}  // namespace megascale::agent
