#include "controlplane/launch/local_cluster.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "controlplane/launch/process_keeper.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/socket/own_socket.h"
#include "runtime/base/status.h"

namespace megascale::launch {
namespace {

constexpr absl::Duration kBackoffFirst = absl::Milliseconds(200);
constexpr absl::Duration kBackoffMax = absl::Seconds(5);
constexpr absl::Duration kSoundLife = absl::Seconds(10);
constexpr absl::Duration kStopGrace = absl::Seconds(5);
constexpr off_t kOldLogBytes = 8 << 20;
constexpr off_t kLogReserveBytes = 64 << 10;
constexpr absl::Duration kListenPoll = absl::Milliseconds(100);
constexpr int kBadStartsMax = 3;  // in a row; about a second with the backoff
constexpr int kAgentsMax = 1000;
// Socket paths have 107 bytes; what follows the run directory ("/n999/t9999/r99999-99999.sock")
// fits.
constexpr size_t kRunDirectoryBytesMax = 70;

// Makes an owner-only directory with a short path.
absl::StatusOr<std::string> MakeRunDirectory(const std::string& wanted) {
  if (wanted.size() > kRunDirectoryBytesMax) {
    return absl::FailedPreconditionError(
        absl::StrCat("run directory ", wanted, ": its path has ", wanted.size(), " bytes, at most ",
                     kRunDirectoryBytesMax, " leave room for socket names; choose a shorter one"));
  }
  if (!wanted.empty()) {
    RETURN_IF_ERROR(base::MakeDirectories(wanted));
    std::error_code error;
    if (!std::filesystem::is_empty(wanted, error) || error) {
      return absl::FailedPreconditionError(
          absl::StrCat("run directory ", wanted,
                       " is not empty; it would be removed at the end: choose another"));
    }
    RETURN_IF_ERROR(base::TakeOwnFolder(wanted, "choose another run directory"));
    return std::filesystem::absolute(wanted).string();
  }
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  absl::Status refused;
  for (const std::string& parent :
       {std::string(runtime == nullptr ? "" : runtime), std::string("/tmp")}) {
    std::string path = absl::StrCat(parent, "/megascale-XXXXXX");
    if (parent.empty() || path.size() > kRunDirectoryBytesMax) continue;
    if (::mkdtemp(path.data()) == nullptr) continue;
    // Driver and agents would refuse it, too: XDG_RUNTIME_DIR of another user, as sudo may leave
    // it.
    refused = base::CheckOwnFolder(path, "set XDG_RUNTIME_DIR to a folder of your own");
    if (refused.ok()) return path;
    ::rmdir(path.c_str());
  }
  if (!refused.ok()) return refused;
  return base::ErrnoStatus(errno, "make a run directory in /tmp");
}

off_t SizeOf(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 ? info.st_size : 0;
}

// Opens a log for appending; renames it first if it has grown large.
absl::StatusOr<base::UniqueFd> OpenLog(const std::string& path) {
  if (SizeOf(path) > kOldLogBytes) {
    ::rename(path.c_str(), absl::StrCat(path, ".1").c_str());
  }
  base::UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!fd.valid()) return base::ErrnoStatus(errno, absl::StrCat("open log ", path));
  return fd;
}

// Makes room for what a driver says when it cannot start: the disk may be full. A file system that
// cannot reserve space is taken as it is.
absl::Status ReserveLog(const base::UniqueFd& log, const std::string& path) {
  if (::fallocate(log.get(), FALLOC_FL_KEEP_SIZE, SizeOf(path), kLogReserveBytes) == 0) return {};
  if (errno != ENOSPC && errno != EDQUOT) return absl::OkStatus();
  return base::ErrnoStatus(errno, absl::StrCat("write ", path));
}

// Returns false for a process that was asked to end, or killed: the next one may do better.
bool FailedByItself(int status) {
  if (WIFEXITED(status)) return WEXITSTATUS(status) != 0;
  const int signal = WTERMSIG(status);
  return signal == SIGABRT || signal == SIGSEGV || signal == SIGBUS || signal == SIGILL ||
         signal == SIGFPE;
}

// Returns the message of an error in what a program printed since `begin`; else its last line.
std::string ErrorIn(const std::string& path, off_t begin) {
  constexpr absl::string_view kPrefix = "megascale: ";
  const std::string log = base::ReadFile(path, 2 * kOldLogBytes).value_or("");
  const std::string output = log.substr(std::min(log.size(), static_cast<size_t>(begin)));
  std::string last;
  std::string error;
  for (const absl::string_view line : absl::StrSplit(output, '\n', absl::SkipEmpty())) {
    last = std::string(line);
    if (absl::StartsWith(line, kPrefix)) error = std::string(line.substr(kPrefix.size()));
  }
  return error.empty() ? last : error;
}

}  // namespace

absl::Duration RestartBackoff::OnDeath(absl::Duration lived) {
  times_in_a_row_ = lived >= kSoundLife ? 1 : times_in_a_row_ + 1;
  absl::Duration backoff = kBackoffFirst;
  for (int i = 1; i < times_in_a_row_ && backoff < kBackoffMax; ++i) backoff *= 2;
  return std::min(backoff, kBackoffMax);
}

// Keeps driver and agents running; after the first start, on its own thread.
class LocalCluster::Supervisor {
 public:
  Supervisor(LocalClusterOptions options, std::string run_directory,
             std::unique_ptr<ProcessKeeper> keeper);
  ~Supervisor() { Stop(); }

  absl::Status Start();
  void Stop();
  const std::string& run_directory() const { return run_directory_; }
  std::string driver_address() const {
    return absl::StrCat("unix:", run_directory_, "/driver.sock");
  }

 private:
  struct Member {
    std::string name;
    std::vector<std::string> arguments;
    std::string log_path;
    off_t log_begin = 0;  // its size when the process started
    bool is_driver = false;
    int64_t token = 0;  // 0: it does not run
    absl::Duration started;
    absl::Duration start_at = absl::ZeroDuration();
    RestartBackoff backoff;
    bool was_sound = false;  // it has lived for kSoundLife once
    int num_bad_starts = 0;  // in a row
  };

  void AddMembers();
  absl::Status StartMember(Member* member);
  void Supervise();
  void StartDue(absl::Duration now);
  absl::Duration NextStart() const;
  // Takes the exits of processes; returns false if the keeper is gone.
  bool TakeExits(bool restart);
  // The member died, or could not be started. Starts it again later, unless that is hopeless.
  void OnDeath(Member* member, const std::string& how, bool by_itself);
  // Returns true if the member ended by itself at its start, as it did before: it would again.
  bool IsHopeless(Member* member, bool by_itself);
  void GiveUp(Member* member, const std::string& how);
  // Notes it when the driver listens.
  bool HasListened();
  void EndMembers(bool driver);
  bool AnyRuns(bool driver) const;

  const LocalClusterOptions options_;
  const std::string run_directory_;
  std::unique_ptr<ProcessKeeper> keeper_;
  base::UniqueFd stop_;  // eventfd
  std::vector<Member> members_;
  int64_t last_token_ = 0;
  bool has_listened_ = false;
  std::thread thread_;
};

LocalCluster::Supervisor::Supervisor(LocalClusterOptions options, std::string run_directory,
                                     std::unique_ptr<ProcessKeeper> keeper)
    : options_(std::move(options)),
      run_directory_(std::move(run_directory)),
      keeper_(std::move(keeper)),
      stop_(::eventfd(0, EFD_CLOEXEC)) {
  AddMembers();
}

void LocalCluster::Supervisor::AddMembers() {
  const std::string logs = absl::StrCat(options_.state_directory, "/logs");
  Member driver;
  driver.name = "driver";
  driver.is_driver = true;
  driver.arguments = {options_.program, "driver",      "--listen",
                      driver_address(), "--state-dir", options_.state_directory};
  if (!options_.machine_tests.empty()) {
    driver.arguments.insert(driver.arguments.end(), {"--machine-tests", options_.machine_tests});
  }
  if (!options_.http_address.empty()) {
    driver.arguments.insert(driver.arguments.end(), {"--http", options_.http_address});
  }
  driver.log_path = absl::StrCat(logs, "/driver.log");
  members_.push_back(std::move(driver));
  for (int i = 0; i < options_.num_agents; ++i) {
    const std::string node = absl::StrCat("n", i);
    Member agent;
    agent.name = absl::StrCat("agent ", node);
    agent.arguments = {options_.program, "agent",
                       "--driver",       driver_address(),
                       "--slots",        absl::StrCat(options_.slots_per_agent),
                       "--node-id",      node,
                       "--run-dir",      absl::StrCat(run_directory_, "/", node),
                       "--log-dir",      absl::StrCat(logs, "/", node)};
    agent.log_path = absl::StrCat(logs, "/agent-", node, ".log");
    members_.push_back(std::move(agent));
  }
}

absl::Status LocalCluster::Supervisor::Start() {
  if (!stop_.valid()) return base::ErrnoStatus(errno, "eventfd");
  RETURN_IF_ERROR(base::MakeDirectories(absl::StrCat(options_.state_directory, "/logs")));
  for (Member& member : members_) RETURN_IF_ERROR(StartMember(&member));
  thread_ = std::thread([this] { Supervise(); });
  return absl::OkStatus();
}

absl::Status LocalCluster::Supervisor::StartMember(Member* member) {
  ASSIGN_OR_RETURN(const base::UniqueFd log, OpenLog(member->log_path));
  SpawnRequest request;
  request.token = ++last_token_;
  request.program = options_.program;
  request.arguments = member->arguments;
  request.output = log.get();
  if (member->is_driver && !HasListened()) {
    // The agents of the cluster before ended with it.
    request.arguments.push_back("--agents-ended");
    RETURN_IF_ERROR(ReserveLog(log, member->log_path));
  }
  member->log_begin = SizeOf(member->log_path);
  RETURN_IF_ERROR(keeper_->Spawn(request).status());
  member->token = request.token;
  member->started = base::RealClock().Monotonic();
  return absl::OkStatus();
}

void LocalCluster::Supervisor::Supervise() {
  for (;;) {
    StartDue(base::RealClock().Monotonic());
    const absl::Duration wait =
        std::clamp(NextStart() - base::RealClock().Monotonic(), absl::ZeroDuration(),
                   HasListened() ? absl::Minutes(1) : kListenPoll);
    pollfd entries[] = {{stop_.get(), POLLIN, 0}, {keeper_->exits_fd(), POLLIN, 0}};
    ::poll(entries, 2, base::PollMilliseconds(wait));
    if (entries[0].revents != 0) break;
    if (!TakeExits(/*restart=*/true)) {
      if (options_.on_restart) {
        options_.on_restart({"process keeper", "it ended, and all processes with it", 1,
                             absl::InfiniteDuration(), "", ""});
      }
      return;
    }
  }
  EndMembers(/*driver=*/false);
  EndMembers(/*driver=*/true);
}

void LocalCluster::Supervisor::StartDue(absl::Duration now) {
  for (Member& member : members_) {
    if (member.token != 0 || now < member.start_at) continue;
    if (absl::Status started = StartMember(&member); !started.ok()) {
      member.started = now;
      member.log_begin = SizeOf(member.log_path);  // what an older process said is not the reason
      OnDeath(&member, std::string(started.message()), /*by_itself=*/true);
    }
  }
}

absl::Duration LocalCluster::Supervisor::NextStart() const {
  absl::Duration next = absl::InfiniteDuration();
  for (const Member& member : members_) {
    if (member.token == 0) next = std::min(next, member.start_at);
  }
  return next;
}

bool LocalCluster::Supervisor::TakeExits(bool restart) {
  const absl::StatusOr<std::vector<ProcessExit>> exits = keeper_->TakeExits();
  if (!exits.ok()) return false;
  for (const ProcessExit& exited : *exits) {
    for (Member& member : members_) {
      if (member.token != exited.token) continue;
      member.token = 0;
      if (!restart) continue;
      OnDeath(&member, DescribeExit(exited.status), FailedByItself(exited.status));
    }
  }
  return true;
}

void LocalCluster::Supervisor::OnDeath(Member* member, const std::string& how, bool by_itself) {
  const absl::Duration now = base::RealClock().Monotonic();
  const absl::Duration lived = now - member->started;
  member->was_sound = member->was_sound || lived >= kSoundLife;
  if (IsHopeless(member, by_itself)) return GiveUp(member, how);
  const absl::Duration backoff = member->backoff.OnDeath(lived);
  member->start_at = now + backoff;
  if (!options_.on_restart) return;
  options_.on_restart(
      {member->name, how, member->backoff.times_in_a_row(), backoff, member->log_path, ""});
}

bool LocalCluster::Supervisor::IsHopeless(Member* member, bool by_itself) {
  const bool has_started = member->is_driver ? HasListened() : member->was_sound;
  member->num_bad_starts = by_itself && !has_started ? member->num_bad_starts + 1 : 0;
  return member->num_bad_starts >= kBadStartsMax;
}

void LocalCluster::Supervisor::GiveUp(Member* member, const std::string& how) {
  member->start_at = absl::InfiniteDuration();
  if (!options_.on_restart) return;
  options_.on_restart({member->name, how, member->num_bad_starts, absl::InfiniteDuration(),
                       member->log_path, ErrorIn(member->log_path, member->log_begin)});
}

bool LocalCluster::Supervisor::HasListened() {
  has_listened_ =
      has_listened_ || ::access(absl::StrCat(run_directory_, "/driver.sock").c_str(), F_OK) == 0;
  return has_listened_;
}

bool LocalCluster::Supervisor::AnyRuns(bool driver) const {
  return std::any_of(members_.begin(), members_.end(), [driver](const Member& member) {
    return member.is_driver == driver && member.token != 0;
  });
}

void LocalCluster::Supervisor::EndMembers(bool driver) {
  for (const int signal : {driver ? SIGTERM : SIGINT, SIGKILL}) {
    for (const Member& member : members_) {
      if (member.is_driver != driver || member.token == 0) continue;
      keeper_->Kill(member.token, signal).IgnoreError();  // gone with the keeper
    }
    const absl::Duration end = base::RealClock().Monotonic() + kStopGrace;
    while (AnyRuns(driver) && base::RealClock().Monotonic() < end) {
      pollfd entry = {keeper_->exits_fd(), POLLIN, 0};
      ::poll(&entry, 1, 100);
      if (!TakeExits(/*restart=*/false)) return;
    }
  }
}

void LocalCluster::Supervisor::Stop() {
  if (keeper_ == nullptr) return;
  if (thread_.joinable()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof(one));
    thread_.join();
  }
  keeper_->Stop();
  keeper_.reset();
  std::error_code ignored;  // the keeper removed it, unless it was killed itself
  std::filesystem::remove_all(run_directory_, ignored);
}

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Start(LocalClusterOptions options) {
  if (options.num_agents < 1 || options.num_agents > kAgentsMax || options.slots_per_agent < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "local cluster: ", options.num_agents, " agents with ", options.slots_per_agent,
        " slots; expected 1 to ", kAgentsMax, " agents and at least 1 slot"));
  }
  if (::access(options.program.c_str(), X_OK) != 0) {
    return base::ErrnoStatus(errno, absl::StrCat("program ", options.program));
  }
  ASSIGN_OR_RETURN(const std::string run_directory, MakeRunDirectory(options.run_directory));
  ProcessKeeper::Options keeper_options;
  keeper_options.remove_at_end = {run_directory};
  absl::StatusOr<std::unique_ptr<ProcessKeeper>> keeper = ProcessKeeper::Start(keeper_options);
  if (!keeper.ok()) {
    std::error_code ignored;
    std::filesystem::remove(run_directory, ignored);
    return keeper.status();
  }
  auto supervisor =
      std::make_unique<Supervisor>(std::move(options), run_directory, *std::move(keeper));
  RETURN_IF_ERROR(supervisor->Start());
  return std::unique_ptr<LocalCluster>(new LocalCluster(std::move(supervisor)));
}

LocalCluster::LocalCluster(std::unique_ptr<Supervisor> supervisor)
    : supervisor_(std::move(supervisor)) {}
LocalCluster::~LocalCluster() = default;
std::string LocalCluster::driver_address() const { return supervisor_->driver_address(); }
std::string LocalCluster::run_directory() const { return supervisor_->run_directory(); }
void LocalCluster::Stop() { supervisor_->Stop(); }

}  // namespace megascale::launch
