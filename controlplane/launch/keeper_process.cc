#include "controlplane/launch/keeper_process.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/frame.h"

namespace megascale::launch {
namespace {

constexpr absl::Duration kSendTimeout = absl::Seconds(10);
constexpr absl::Duration kReapTimeout = absl::Seconds(8);

// Returns the part of /proc/PID/stat after the process's name, which may contain any character:
// "state parent …"; "": the process is gone.
std::string StatOf(pid_t pid) {
  const absl::StatusOr<std::string> stat =
      base::ReadFile("/proc/" + std::to_string(pid) + "/stat", 1 << 16);
  const size_t name_end = stat.ok() ? stat->rfind(')') : std::string::npos;
  return name_end == std::string::npos ? std::string() : stat->substr(name_end + 1);
}

// True as soon as the end of a process is certain, which may be long before it can be reaped. A
// large process closes its sockets early, and its peers learn of its end from that.
bool IsEnding(pid_t pid) {
  constexpr unsigned kExiting = 0x4;  // PF_EXITING of the kernel's flags
  unsigned flags = 0;
  return std::sscanf(StatOf(pid).c_str(), " %*c %*d %*d %*d %*d %*d %u", &flags) == 1 &&
         (flags & kExiting) != 0;
}

class Keeper {
 public:
  Keeper(const KeeperSetup& setup, std::vector<std::string> environment)
      : setup_(setup), environment_(std::move(environment)) {
    const sigset_t handled = KeeperSignals();
    signals_ = base::UniqueFd(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  }

  // Serves until the parent is gone.
  void Serve();
  void KillEverything();

 private:
  bool ParentLives() const { return ::getppid() == setup_.parent_pid; }
  bool ServeCommand();
  void Complete(SpawnCommand* spawn) const;
  KeeperReply StartChild(const SpawnCommand& spawn);
  [[noreturn]] void BecomeChild(const SpawnCommand& spawn, int keeper_pid, int error_pipe) const;
  // Reaps children that ended. Returns false if there is no child at all.
  bool Reap(bool report);
  // Sends it to the parent. If that is gone, the caller notices.
  void TellParent(const KeeperExit& exited) const;
  void DrainSignals();

  KeeperSetup setup_;
  std::vector<std::string> environment_;
  base::UniqueFd signals_;
  std::map<pid_t, int64_t> tokens_;
  std::map<int64_t, pid_t> pids_;
  std::set<int64_t> killed_;  // tokens that a signal was sent to while they lived
};

void Keeper::Serve() {
  while (ParentLives()) {
    pollfd entries[] = {{setup_.commands, POLLIN, 0}, {signals_.get(), POLLIN, 0}};
    if (::poll(entries, 2, -1) < 0 && errno != EINTR) return;
    DrainSignals();
    Reap(/*report=*/true);
    if (entries[0].revents != 0 && !ServeCommand()) return;
  }
}

void Keeper::DrainSignals() {
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof(info)) > 0) {
  }
}

bool Keeper::ServeCommand() {
  absl::StatusOr<base::Frame> frame = base::ReceiveFrame(setup_.commands, kSendTimeout);
  KeeperCommand command;
  if (!frame.ok() || !ReadCommand(*frame, &command)) return false;
  if (command.kind == KeeperCommand::kPing) {
    TellParent(KeeperExit());
    return true;
  }
  if (command.kind == KeeperCommand::kKill) {
    // A child that has ended keeps its process id until it is reaped.
    if (const auto pid = pids_.find(command.token); pid != pids_.end()) {
      if (!IsEnding(pid->second)) killed_.insert(command.token);
      ::kill(-pid->second, command.signal);
    }
    return true;
  }
  KeeperReply reply = {command.token, 0, 0};
  if (frame->fds.size() < NumDescriptors(command)) {
    reply.error = EMFILE;  // the kernel leaves out what this process has no room for
  } else {
    SpawnCommand spawn;
    if (!ReadSpawn(&*frame, &spawn)) return false;
    Complete(&spawn);
    reply = StartChild(spawn);
  }
  const std::string payload(reinterpret_cast<const char*>(&reply), sizeof(reply));
  return base::SendFrame(setup_.commands, payload, {}, kSendTimeout).ok();
}

// Completes the arguments of execve: adds this process's environment, except for variables that the
// command sets.
void Keeper::Complete(SpawnCommand* spawn) const {
  const size_t num_given = spawn->environment.size();
  for (const std::string& ours : environment_) {
    const size_t name_size = ours.find('=') + 1;
    const auto given_end = spawn->environment.begin() + static_cast<int64_t>(num_given);
    const bool replaced = std::any_of(
        spawn->environment.begin(), given_end,
        [&](const char* given) { return std::strncmp(given, ours.c_str(), name_size) == 0; });
    if (!replaced) spawn->environment.push_back(const_cast<char*>(ours.c_str()));
  }
  spawn->arguments.push_back(nullptr);
  spawn->environment.push_back(nullptr);
}

KeeperReply Keeper::StartChild(const SpawnCommand& spawn) {
  KeeperReply reply = {spawn.token, 0, 0};
  int error_pipe[2];  // closes when exec succeeds, brings errno when it does not
  if (::pipe2(error_pipe, O_CLOEXEC) != 0) {
    reply.error = errno;
    return reply;
  }
  const int keeper_pid = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) BecomeChild(spawn, keeper_pid, error_pipe[1]);
  if (pid < 0) reply.error = errno;
  ::close(error_pipe[1]);
  if (pid > 0 && ::read(error_pipe[0], &reply.error, sizeof(reply.error)) > 0) {
    ::waitpid(pid, nullptr, 0);
  } else if (pid > 0) {
    reply.error = 0;
    reply.pid = pid;
    tokens_[pid] = spawn.token;
    pids_[spawn.token] = pid;
  }
  ::close(error_pipe[0]);
  return reply;
}

void Keeper::BecomeChild(const SpawnCommand& spawn, int keeper_pid, int error_pipe) const {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != keeper_pid) ::_exit(127);  // it died before the line above
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const auto fail = [](int pipe) {
    const int error = errno;
    [[maybe_unused]] const ssize_t written = ::write(pipe, &error, sizeof(error));
    ::_exit(127);
  };
  // Moves the descriptors first to free numbers, so that they do not collide, then to their final
  // ones. All others close at exec.
  int last_number = STDERR_FILENO;
  for (const auto& descriptor : spawn.descriptors) {
    last_number = std::max(last_number, descriptor.second);
  }
  const auto aside = [&](int ours) {
    const int moved = ours < 0 ? ours : ::fcntl(ours, F_DUPFD_CLOEXEC, last_number + 1);
    if (moved < 0) fail(error_pipe);
    return moved;
  };
  const int errors = aside(error_pipe);
  std::vector<std::pair<int, int>> moves;
  moves.push_back({aside(::open("/dev/null", O_RDONLY | O_CLOEXEC)), STDIN_FILENO});
  if (spawn.output >= 0) {
    const int output = aside(spawn.output);
    moves.push_back({output, STDOUT_FILENO});
    moves.push_back({output, STDERR_FILENO});
  }
  for (const auto& [ours, number] : spawn.descriptors) moves.push_back({aside(ours), number});
  for (const auto& [from, to] : moves) {
    if (::dup2(from, to) < 0) fail(errors);
  }
  ::execve(spawn.program, spawn.arguments.data(), spawn.environment.data());
  fail(errors);
  ::_exit(127);
}

bool Keeper::Reap(bool report) {
  for (;;) {
    siginfo_t info = {};
    const int waited = ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT);
    if (waited != 0 && errno == EINTR) continue;
    if (waited != 0) return false;
    if (info.si_pid == 0) return true;
    const pid_t pid = info.si_pid;
    const auto child = tokens_.find(pid);
    // The kernel cannot reuse the group's number while its leader is not reaped.
    if (child != tokens_.end()) ::kill(-pid, SIGKILL);
    int status = 0;
    ::waitpid(pid, &status, 0);
    if (child == tokens_.end()) continue;  // an orphan of a child
    const KeeperExit exited = {child->second, pid, status,
                               static_cast<int32_t>(killed_.erase(child->second))};
    pids_.erase(child->second);
    tokens_.erase(child);
    if (!report) continue;
    TellParent(exited);
  }
}

void Keeper::TellParent(const KeeperExit& exited) const {
  const std::string payload(reinterpret_cast<const char*>(&exited), sizeof(exited));
  base::SendFrame(setup_.exits, payload, {}, kSendTimeout).IgnoreError();
}

// Returns the process ids of all children, orphans that were reparented to this process included.
std::vector<pid_t> Children() {
  std::vector<pid_t> children;
  DIR* const processes = ::opendir("/proc");
  if (processes == nullptr) return children;
  while (const dirent* entry = ::readdir(processes)) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid <= 0) continue;
    int parent = 0;
    if (std::sscanf(StatOf(pid).c_str(), " %*c %d", &parent) == 1 && parent == ::getpid()) {
      children.push_back(pid);
    }
  }
  ::closedir(processes);
  return children;
}

void Keeper::KillEverything() {
  for (const auto& [pid, token] : tokens_) ::kill(-pid, SIGKILL);
  const absl::Duration end = base::RealClock().Monotonic() + kReapTimeout;
  while (Reap(/*report=*/false) && base::RealClock().Monotonic() < end) {
    for (const pid_t pid : Children()) ::kill(pid, SIGKILL);
    pollfd entry = {signals_.get(), POLLIN, 0};
    ::poll(&entry, 1, 20);
    DrainSignals();
  }
}

}  // namespace

sigset_t KeeperSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT}) sigaddset(&set, signal);
  return set;
}

void RunKeeperProcess(const KeeperSetup& setup, const std::vector<std::string>& remove_at_end) {
  ::prctl(PR_SET_NAME, "megascale-keep");
  ::setpgid(0, 0);  // out of reach of the terminal's Ctrl-C
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  Keeper keeper(setup, std::move(environment));
  // Its handler sees that the parent changed; SIGKILL would leave no time to clean up.
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  keeper.Serve();
  ::prctl(PR_SET_PDEATHSIG, 0);
  keeper.KillEverything();
  for (const std::string& path : remove_at_end) {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  ::_exit(0);
}

}  // namespace megascale::launch
