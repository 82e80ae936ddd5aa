#include "tests/diagnose/machines.h"

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "runtime/base/log.h"
#include "runtime/base/process/resource_limit.h"
#include "runtime/base/status.h"
#include "tests/e2e/cluster.h"

namespace megascale::injection {
namespace {

constexpr absl::string_view kGroupPrefix = "megascale-inject-";
constexpr int kPeriodMicros = 100'000;
constexpr int kPeriodMinMicros = 50'000;  // of small quotas: the shortest quota is 1 ms
constexpr double kSmallPercent = 15;
constexpr int kMtu = 9000;
constexpr int kTrafficPort = 9;

void WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
}

void EndProcessesOf(const std::string& group) {
  std::ifstream processes(group + "/cgroup.procs");
  for (pid_t pid = 0; processes >> pid;) {
    if (pid > 0) ::kill(pid, SIGKILL);
  }
}

// Removes the groups of tests that were killed.
void RemoveStaleGroups(const std::string& parent) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(parent, ignored)) {
    const std::string filename = entry.path().filename().string();
    absl::string_view name = filename;
    int pid = 0;
    if (!absl::ConsumePrefix(&name, kGroupPrefix)) continue;
    if (!absl::SimpleAtoi(name.substr(0, name.find('-')), &pid)) continue;
    if (::kill(pid, 0) == 0 || errno != ESRCH) continue;
    EndProcessesOf(entry.path());
    ::rmdir(entry.path().c_str());
  }
}

std::string LinkName(int machine) { return absl::StrCat("link", machine); }

}  // namespace

Machines::Machines(int count) {
  char directory[] = "/tmp/ms-inject-XXXXXX";
  if (::mkdtemp(directory) == nullptr) {
    status_ = base::ErrnoStatus(errno, "mkdtemp");
    return;
  }
  directory_ = directory;
  Enter();
  for (int i = 0; i < count && status_.ok(); ++i) Add(i);
}

Machines::~Machines() {
  for (const pid_t child : children_) e2e::KillAndReap(child);
  for (size_t i = 0; i < machines_.size(); ++i) {
    e2e::KillAndReap(machines_[i].holder);
    status_ = absl::OkStatus();
    Do({"ip", "link", "delete", LinkName(static_cast<int>(i))});
    RemoveGroup(machines_[i].group);
  }
  std::error_code ignored;
  if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
}

void Machines::Do(const std::vector<std::string>& command) {
  if (!status_.ok()) return;
  std::vector<std::string> whole = {"/usr/bin/env"};
  whole.insert(whole.end(), command.begin(), command.end());
  const e2e::CommandResult result = e2e::Run(whole);
  if (result.exit_code == 0) return;
  status_ = absl::FailedPreconditionError(absl::StrCat(absl::StrJoin(command, " "), ": ",
                                                       result.err, " (exit ", result.exit_code,
                                                       "); needs root, iproute2, util-linux"));
}

// Moves this process into a network namespace of its own, once. A process that was forked after
// that moves into another one (side_by_side.h).
void Machines::Enter() {
  static pid_t entered_by = 0;
  static bool entered = false;
  const auto enter = [] {
    if (::unshare(CLONE_NEWNET) != 0) return false;
    e2e::Run({"/usr/bin/env", "ip", "link", "set", "lo", "up"});
    const bool made =
        e2e::Run({"/usr/bin/env", "ip", "link", "add", "bridge0", "type", "bridge"}).exit_code == 0;
    e2e::Run({"/usr/bin/env", "ip", "addr", "add", OwnAddress() + "/24", "dev", "bridge0"});
    e2e::Run({"/usr/bin/env", "ip", "link", "set", "bridge0", "mtu", absl::StrCat(kMtu), "up"});
    return made;
  };
  if (entered_by != ::getpid()) {
    entered_by = ::getpid();
    entered = enter();
  }
  if (!entered) {
    status_ = absl::FailedPreconditionError(
        "no network namespace with a bridge can be made; needs root, iproute2, and the kernel's "
        "bridge module");
  }
}

void Machines::Add(int index) {
  Machine machine;
  machine.switches = absl::StrCat(directory_, "/switches-", index);
  ::mkdir(machine.switches.c_str(), 0755);
  machine.holder = e2e::Spawn({"/usr/bin/unshare", "-n", "/bin/sleep", "1000000"}, "/dev/null");
  const std::string space = absl::StrCat("/proc/", machine.holder, "/ns/net");
  const auto is_apart = [&] {
    std::error_code ignored;
    return std::filesystem::read_symlink(space, ignored) !=
           std::filesystem::read_symlink("/proc/self/ns/net", ignored);
  };
  if (!e2e::WaitUntil(is_apart, 10)) {
    status_ = absl::FailedPreconditionError("unshare -n: made no network namespace");
  }
  MakeGroup(&machine);
  machines_.push_back(machine);
  const std::string link = LinkName(index);
  const std::string mtu = absl::StrCat(kMtu);
  Do({"ip", "link", "add", link, "mtu", mtu, "type", "veth", "peer", "name", "eth0", "mtu", mtu,
      "netns", absl::StrCat(machine.holder)});
  Do({"ip", "link", "set", link, "master", "bridge0", "up"});
  const std::string enter = absl::StrCat("--net=", space);
  Do({"nsenter", enter, "ip", "link", "set", "lo", "up"});
  Do({"nsenter", enter, "ip", "addr", "add", absl::StrCat(Address(index), "/24"), "dev", "eth0"});
  Do({"nsenter", enter, "ip", "link", "set", "eth0", "up"});
}

void Machines::MakeGroup(Machine* machine) {
  // A name of its own: the group of a test before this one may not be gone yet.
  static int num_made = 0;
  const std::string name = absl::StrCat(kGroupPrefix, ::getpid(), "-", num_made++);
  std::string why;
  for (const base::ControlGroup& own : base::ControlGroupsOf("cpu")) {
    RemoveStaleGroups(own.directory);
    const std::string group = absl::StrCat(own.directory, "/", name);
    if (::mkdir(group.c_str(), 0755) != 0) {
      absl::StrAppend(&why, "; ", base::ErrnoStatus(errno, group).message());
      continue;
    }
    const std::string quota = own.version == 1 ? "/cpu.cfs_quota_us" : "/cpu.max";
    if (::access((group + quota).c_str(), W_OK) == 0) {
      // Other programs of this machine must not decide who is slow.
      WriteFile(group + (own.version == 1 ? "/cpu.shares" : "/cpu.weight"),
                own.version == 1 ? "16384" : "1600");
      machine->group = group;
      machine->group_version = own.version;
      return;
    }
    absl::StrAppend(&why, "; ", group, ": has no ", quota.substr(1));
    ::rmdir(group.c_str());
  }
  status_ = absl::FailedPreconditionError(
      absl::StrCat("no control group with a quota of processor time", why));
}

void Machines::RemoveGroup(const std::string& group) const {
  if (group.empty()) return;
  const auto removed = [&] {
    EndProcessesOf(group);
    return ::rmdir(group.c_str()) == 0;
  };
  if (!e2e::WaitUntil(removed, 20)) base::LogWarning(absl::StrCat("cannot remove ", group));
}

std::string Machines::Address(int machine) const { return absl::StrCat("10.77.0.", machine + 1); }

std::vector<std::string> Machines::Prefix(int machine) const {
  const Machine& at = At(machine);
  const std::string command =
      absl::StrCat("echo $$ > ", at.group, "/cgroup.procs && export MEGASCALE_PACE=", at.switches,
                   " && exec nsenter --net=/proc/", at.holder, "/ns/net unshare --mount \"$@\"");
  return {"/bin/sh", "-c", command, "sh"};
}

void Machines::SetSwitch(int machine, const std::string& name, const std::string& text) {
  const std::string path = absl::StrCat(switches(machine), "/", name);
  WriteFile(path + ".new", text);
  std::filesystem::rename(path + ".new", path);
}

void Machines::LimitCores(int machine, double percent) {
  const Machine& at = At(machine);
  const int period = percent < kSmallPercent ? kPeriodMinMicros : kPeriodMicros;
  const auto quota = static_cast<int64_t>(period * percent / 100);
  if (at.group_version == 1) {
    WriteFile(at.group + "/cpu.cfs_quota_us", "-1");
    WriteFile(at.group + "/cpu.cfs_period_us", absl::StrCat(period));
    if (percent > 0) WriteFile(at.group + "/cpu.cfs_quota_us", absl::StrCat(quota));
  } else {
    WriteFile(at.group + "/cpu.max",
              percent > 0 ? absl::StrCat(quota, " ", period) : absl::StrCat("max ", period));
  }
}

void Machines::LimitLink(int machine, double mbit) {
  const std::vector<std::string> limit = {
      "tbf", "rate", absl::StrCat(mbit, "mbit"), "burst", "64kb", "latency", "100ms"};
  DoQueue(machine, Way::kBoth, "replace", limit);
}

void Machines::DoQueue(int machine, Way way, const std::string& verb,
                       const std::vector<std::string>& more) {
  const auto run = [&](std::vector<std::string> command, const std::string& link) {
    command.insert(command.end(), {"tc", "qdisc", verb, "dev", link, "root"});
    command.insert(command.end(), more.begin(), more.end());
    Do(command);
  };
  // A queue works where packets leave.
  if (way != Way::kFrom) run({}, LinkName(machine));
  if (way == Way::kTo) return;
  run({"nsenter", absl::StrCat("--net=/proc/", At(machine).holder, "/ns/net")}, "eth0");
}

// No packet fits into a queue of one byte.
void Machines::Block(int machine, Way way) {
  DoQueue(machine, way, "replace", {"bfifo", "limit", "1"});
}

void Machines::Unblock(int machine) {
  DoQueue(machine, Way::kBoth, "replace", {"pfifo", "limit", "1000"});
}

// It sends them to a network card that does not exist.
void Machines::Swallow(int from, int to) {
  Do({"nsenter", absl::StrCat("--net=/proc/", At(from).holder, "/ns/net"), "ip", "neigh", "replace",
      Address(to), "lladdr", "02:00:00:00:00:01", "dev", "eth0", "nud", "permanent"});
}

void Machines::CutLink(int machine) { Do({"ip", "link", "set", LinkName(machine), "down"}); }

void Machines::FillDisk(pid_t process, const std::string& directory) {
  // What `head` cannot write is meant to fail.
  const std::string fill =
      absl::StrCat("mount -t tmpfs -o size=64k full '", directory, "' && { head -c 1M /dev/zero >'",
                   directory, "/full' 2>/dev/null; true; }");
  Do({"nsenter", "--mount", "--target", absl::StrCat(process), "/bin/sh", "-c", fill});
}

void Machines::StartLoad(int machine, int num_processes) {
  std::vector<std::string> command = Prefix(machine);
  command.insert(command.end(), {"/bin/sh", "-c", "while :; do :; done"});
  for (int i = 0; i < num_processes; ++i) {
    children_.push_back(e2e::Spawn(command, "/dev/null"));
  }
}

void Machines::StartTraffic(int machine, const std::string& program, double mbit) {
  const std::string rate = absl::StrCat(mbit);
  const std::string port = absl::StrCat(kTrafficPort);
  children_.push_back(e2e::Spawn({program, Address(machine), port, rate}, "/dev/null"));
  std::vector<std::string> from = Prefix(machine);
  from[2] = absl::StrCat("exec nsenter --net=/proc/", At(machine).holder, "/ns/net \"$@\"");
  from.insert(from.end(), {program, OwnAddress(), port, rate});
  children_.push_back(e2e::Spawn(from, "/dev/null"));
}

}  // namespace megascale::injection
