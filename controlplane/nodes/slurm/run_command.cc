#include "controlplane/nodes/slurm/run_command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"

extern char** environ;

namespace megascale::nodes {
namespace {

constexpr size_t kOutputBytesMax = size_t{64} << 20;

struct Pipe {
  base::UniqueFd read;
  base::UniqueFd write;
};

absl::StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return base::ErrnoStatus(errno, "pipe");
  return Pipe{base::UniqueFd(ends[0]), base::UniqueFd(ends[1])};
}

std::vector<char*> FilteredEnvironment() {
  std::vector<char*> kept;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view variable = *entry;
    if (!IsDroppedVariable(variable.substr(0, variable.find('=')))) kept.push_back(*entry);
  }
  kept.push_back(nullptr);
  return kept;
}

absl::StatusOr<pid_t> SpawnCommand(const std::vector<std::string>& words, int out, int err) {
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, out, 1);
  ::posix_spawn_file_actions_adddup2(&actions, err, 2);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  std::vector<char*> environment = FilteredEnvironment();
  pid_t pid = 0;
  const int error = ::posix_spawnp(&pid, arguments[0], &actions, &attributes, arguments.data(),
                                   environment.data());
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return base::ErrnoStatus(error, absl::StrCat("run ", words[0]));
  return pid;
}

// Reads both ends until they are closed. Returns false at the deadline, or at too much output.
absl::Status Collect(const Pipe& out, const Pipe& err, absl::Duration end, Finished* finished) {
  pollfd entries[] = {{out.read.get(), POLLIN, 0}, {err.read.get(), POLLIN, 0}};
  std::string* const texts[] = {&finished->out, &finished->err};
  std::vector<char> buffer(1 << 16);
  while (entries[0].fd >= 0 || entries[1].fd >= 0) {
    const absl::Duration left = end - base::RealClock().Monotonic();
    if (left <= absl::ZeroDuration()) return absl::DeadlineExceededError("no end");
    ::poll(entries, 2, base::PollMilliseconds(left));
    for (int i = 0; i < 2; ++i) {
      if (entries[i].fd < 0 || entries[i].revents == 0) continue;
      const ssize_t count = ::read(entries[i].fd, buffer.data(), buffer.size());
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) {
        entries[i].fd = -1;
      } else {
        texts[i]->append(buffer.data(), static_cast<size_t>(count));
      }
      if (texts[i]->size() > kOutputBytesMax)
        return absl::ResourceExhaustedError("prints too much");
    }
  }
  return absl::OkStatus();
}

}  // namespace

bool IsDroppedVariable(absl::string_view name) {
  if (name == "SLURM_CONF") return false;
  for (const absl::string_view prefix : {"SLURM_", "SLURMD_", "SBATCH_", "SALLOC_", "SRUN_",
                                         "SQUEUE_", "SINFO_", "SCONTROL_", "SCANCEL_"}) {
    if (absl::StartsWith(name, prefix)) return true;
  }
  return false;
}

absl::StatusOr<Finished> RunCommand(const std::vector<std::string>& words, absl::Duration timeout) {
  ASSIGN_OR_RETURN(Pipe out, MakePipe());
  ASSIGN_OR_RETURN(Pipe err, MakePipe());
  ASSIGN_OR_RETURN(const pid_t pid, SpawnCommand(words, out.write.get(), err.write.get()));
  out.write.reset();
  err.write.reset();
  Finished finished;
  const absl::Status collected =
      Collect(out, err, base::RealClock().Monotonic() + timeout, &finished);
  if (!collected.ok()) ::kill(pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!collected.ok()) {
    return absl::Status(collected.code(), absl::StrCat(words[0], ": ", collected.message(), " in ",
                                                       absl::FormatDuration(timeout)));
  }
  finished.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return finished;
}

}  // namespace megascale::nodes
