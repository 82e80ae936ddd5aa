#include "controlplane/launch/process_keeper.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "controlplane/launch/keeper_process.h"
#include "controlplane/launch/keeper_wire.h"
#include "runtime/base/clock.h"
#include "runtime/base/frame.h"
#include "runtime/base/status.h"

namespace megascale::launch {
namespace {

constexpr absl::Duration kCommandTimeout = absl::Seconds(10);
constexpr absl::Duration kStopTimeout = absl::Seconds(10);

int NumThreads() {
  std::error_code error;
  int count = 0;
  for (auto it = std::filesystem::directory_iterator("/proc/self/task", error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    ++count;
  }
  return count;
}

void AppendString(const std::string& text, std::string* payload) {
  payload->append(text);
  payload->push_back('\0');
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessKeeper>> ProcessKeeper::Start(const Options& options) {
  if (NumThreads() > 1) {
    return absl::FailedPreconditionError(
        "process keeper: this process has other threads already; start the keeper first in main");
  }
  ASSIGN_OR_RETURN(auto commands, base::MakeSocketPair());
  ASSIGN_OR_RETURN(auto exits, base::MakeSocketPair());
  const pid_t parent = ::getpid();
  const sigset_t blocked = KeeperSignals();
  sigset_t before;
  sigprocmask(SIG_BLOCK, &blocked, &before);
  const pid_t pid = ::fork();
  const int error = errno;
  if (pid == 0) {
    commands.first.reset();
    exits.first.reset();
    RunKeeperProcess({parent, commands.second.get(), exits.second.get()}, options.remove_at_end);
  }
  sigprocmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) return base::ErrnoStatus(error, "fork the process keeper");
  return std::unique_ptr<ProcessKeeper>(
      new ProcessKeeper(pid, std::move(commands.first), std::move(exits.first)));
}

ProcessKeeper::~ProcessKeeper() { Stop(); }

absl::StatusOr<pid_t> ProcessKeeper::Spawn(const SpawnRequest& request) {
  if (request.descriptors.size() > kDescriptorsMax) {
    return absl::InvalidArgumentError(absl::StrCat("spawn ", request.program, ": ",
                                                   request.descriptors.size(),
                                                   " descriptors exceed ", kDescriptorsMax));
  }
  // Each child of a job would wait as long as the first one did, and nobody would hear of it.
  if (SilenceAt(base::RealClock().Monotonic()) >= kCommandTimeout) {
    return absl::DeadlineExceededError(
        absl::StrCat("start ", request.program, ": the process keeper (process ", pid_,
                     ") does not answer; look whether it is stopped"));
  }
  KeeperCommand command = {};
  command.kind = KeeperCommand::kSpawn;
  command.token = request.token;
  command.num_arguments = static_cast<int32_t>(request.arguments.size());
  command.num_environment = static_cast<int32_t>(request.environment.size());
  command.has_output = request.output >= 0;
  command.num_descriptors = static_cast<int32_t>(request.descriptors.size());
  std::vector<int> fds;
  if (request.output >= 0) fds.push_back(request.output);
  for (size_t i = 0; i < request.descriptors.size(); ++i) {
    fds.push_back(request.descriptors[i].first);
    command.numbers[i] = request.descriptors[i].second;
  }
  std::string payload(reinterpret_cast<const char*>(&command), sizeof(command));
  AppendString(request.program, &payload);
  for (const std::string& argument : request.arguments) AppendString(argument, &payload);
  for (const std::string& entry : request.environment) AppendString(entry, &payload);
  RETURN_IF_ERROR(base::Annotate(base::SendFrame(commands_.get(), payload, fds, kCommandTimeout),
                                 "process keeper"));
  KeeperReply reply = {};
  while (reply.token != request.token) {  // one that came too late for its caller goes before
    const auto frame = base::ReceiveFrame(commands_.get(), kCommandTimeout);
    if (!frame.ok()) return base::Annotate(frame.status(), "process keeper");
    std::memcpy(&reply, frame->payload.data(), std::min(sizeof(reply), frame->payload.size()));
  }
  if (reply.error != 0) return FailedSpawn(request.program, reply.error);
  return reply.pid;
}

// ErrnoStatus would name the limit of this process.
absl::Status ProcessKeeper::FailedSpawn(const std::string& program, int error) const {
  rlimit limit = {};
  if (error != EMFILE || ::prlimit(pid_, RLIMIT_NOFILE, nullptr, &limit) != 0) {
    return base::ErrnoStatus(error, absl::StrCat("start ", program));
  }
  return base::WithErrno(
      absl::ResourceExhaustedError(absl::StrCat(
          "start ", program, ": too many open files: the limit of the process keeper (process ",
          pid_, ") is ", limit.rlim_cur,
          "; raise it with `ulimit -n` before the program starts that has this keeper")),
      error);
}

absl::Status ProcessKeeper::Kill(int64_t token, int signal) {
  KeeperCommand command = {};
  command.kind = KeeperCommand::kKill;
  command.token = token;
  command.signal = signal;
  const std::string payload(reinterpret_cast<const char*>(&command), sizeof(command));
  return base::Annotate(base::SendFrame(commands_.get(), payload, {}, kCommandTimeout),
                        "process keeper");
}

void ProcessKeeper::Ping(absl::Duration now) {
  if (ping_is_sent_ || !commands_.valid()) return;
  KeeperCommand command = {};
  command.kind = KeeperCommand::kPing;
  const std::string payload(reinterpret_cast<const char*>(&command), sizeof(command));
  pinged_ = std::min(pinged_, now);
  // One that is gone, or that has not read its commands for long, has no room for more: the next
  // call tries again. A part of a frame must not be sent.
  pollfd entry = {commands_.get(), POLLOUT, 0};
  if (::poll(&entry, 1, 0) <= 0) return;
  ping_is_sent_ = true;
  base::SendFrame(commands_.get(), payload, {}, kCommandTimeout).IgnoreError();
}

absl::Duration ProcessKeeper::SilenceAt(absl::Duration now) const {
  return pinged_ == absl::InfiniteDuration() ? absl::ZeroDuration() : now - pinged_;
}

absl::StatusOr<std::vector<ProcessExit>> ProcessKeeper::TakeExits() {
  std::vector<ProcessExit> taken;
  pollfd entry = {exits_.get(), POLLIN, 0};
  while (::poll(&entry, 1, 0) > 0) {
    absl::StatusOr<base::Frame> frame = base::ReceiveFrame(exits_.get(), kCommandTimeout);
    if (!frame.ok()) {
      if (!taken.empty()) break;  // told first; the next call says that the keeper is gone
      return base::Annotate(frame.status(), "process keeper");
    }
    KeeperExit exited = {};
    std::memcpy(&exited, frame->payload.data(), std::min(sizeof(exited), frame->payload.size()));
    if (exited.token == 0) {
      pinged_ = absl::InfiniteDuration();
      ping_is_sent_ = false;
      continue;
    }
    taken.push_back({exited.token, exited.pid, exited.status, exited.killed != 0});
  }
  return taken;
}

void ProcessKeeper::Stop() {
  if (pid_ <= 0) return;
  commands_.reset();
  const absl::Duration end = base::RealClock().Monotonic() + kStopTimeout;
  bool killed = false;
  for (;;) {
    const pid_t waited = ::waitpid(pid_, nullptr, WNOHANG);
    if (waited == pid_ || (waited < 0 && errno != EINTR)) break;
    if (!killed && base::RealClock().Monotonic() >= end) {
      ::kill(pid_, SIGKILL);  // its children die by their parent-death signal
      killed = true;
    }
    // The keeper's end of this socket closes when it exits; exits of children may arrive before.
    pollfd entry = {exits_.get(), POLLIN, 0};
    if (::poll(&entry, 1, 20) > 0 && !base::ReceiveFrame(exits_.get(), kCommandTimeout).ok()) {
      ::poll(nullptr, 0, 1);
    }
  }
  pid_ = 0;
  exits_.reset();
}

std::string DescribeExit(int status) {
  if (WIFSIGNALED(status)) {
    return absl::StrCat("killed by signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)),
                        ")");
  }
  return absl::StrCat("exited with status ", WEXITSTATUS(status));
}

}  // namespace megascale::launch
