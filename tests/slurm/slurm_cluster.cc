#include "tests/slurm/slurm_cluster.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/base/fd.h"

namespace megascale::slurm {
namespace {

constexpr int kCoresOfNode = 4;

int FreePort() {
  const base::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  socklen_t size = sizeof(address);
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  return ntohs(address.sin_port);
}

std::string ShortHostName() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return std::string(name).substr(0, std::string(name).find('.'));
}

// Returns the processes whose environment says that they belong to this cluster.
std::vector<pid_t> ProcessesOf(const std::string& variable) {
  std::vector<pid_t> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename().string();
    if (!absl::ascii_isdigit(static_cast<unsigned char>(name[0]))) continue;
    const std::string environment =
        base::ReadFile(entry.path().string() + "/environ", 1 << 20).value_or("");
    const std::vector<std::string> variables = absl::StrSplit(environment, '\0');
    for (const std::string& one : variables) {
      if (one == variable && std::stoi(name) != ::getpid()) found.push_back(std::stoi(name));
    }
  }
  return found;
}

}  // namespace

bool SlurmCluster::IsInstalled() {
  for (const char* const program : {"slurmctld", "slurmd", "munged", "sbatch"}) {
    const auto found =
        e2e::Run({"/bin/sh", "-c", absl::StrCat("PATH=$PATH:/usr/sbin command -v ", program)});
    if (found.exit_code != 0) return false;
  }
  return ::geteuid() == 0;
}

SlurmCluster::SlurmCluster(int num_nodes) {
  char folder[] = "/tmp/ms-slurm-XXXXXX";
  EXPECT_NE(::mkdtemp(folder), nullptr);
  folder_ = folder;
  ::chmod(folder, 0711);
  for (const char* const name : {"munge", "state", "spool", "log"}) {
    ::mkdir((folder_ + "/" + name).c_str(), 0755);
  }
  environment_ = {{"SLURM_CONF", folder_ + "/slurm.conf"},
                  {"PATH", absl::StrCat(::getenv("PATH"), ":/usr/sbin")}};
  WriteConfiguration(num_nodes);
  const std::string key = folder_ + "/munge/key";
  EXPECT_TRUE(base::WriteFileDurably(key, std::string(128, 'k')).ok());
  ::chmod(key.c_str(), 0600);
  const std::string munge = folder_ + "/munge/";
  munge_ = e2e::Spawn({"/usr/sbin/munged", "--foreground", "--force", "--key-file=" + key,
                       "--socket=" + munge + "socket", "--pid-file=" + munge + "pid",
                       "--log-file=" + munge + "log", "--seed-file=" + munge + "seed"},
                      Log("munged"));
  EXPECT_TRUE(e2e::WaitUntil([&] { return ::access((munge + "socket").c_str(), F_OK) == 0; }, 30));
  controller_ = e2e::Spawn({"/usr/bin/env", "SLURM_CONF=" + environment_["SLURM_CONF"],
                            "/usr/sbin/slurmctld", "-D", "-c", "-i"},
                           Log("slurmctld"));
  for (int i = 1; i <= num_nodes; ++i) StartNode(i);
  const auto all_idle = [&] {
    const std::string states = Out({"sinfo", "--noheader", "--Node", "--format=%T"});
    int idle = 0;
    for (const auto& line : absl::StrSplit(states, '\n')) idle += line == "idle" ? 1 : 0;
    return idle == num_nodes;
  };
  EXPECT_TRUE(e2e::WaitUntil(all_idle, 60)) << Out({"sinfo", "--Node"});
}

void SlurmCluster::WriteConfiguration(int num_nodes) {
  const std::string host = ShortHostName();
  std::string text = absl::StrCat(
      "ClusterName=test\nSlurmctldHost=", host, "(127.0.0.1)\nSlurmctldPort=", FreePort(),
      "\nSlurmUser=root\nSlurmdUser=root\nAuthType=auth/munge\nAuthInfo=socket=", folder_,
      "/munge/socket\nCryptoType=crypto/munge\nStateSaveLocation=", folder_,
      "/state\nSlurmdSpoolDir=", folder_, "/spool/%n\nSlurmctldPidFile=", folder_,
      "/slurmctld.pid\nSlurmdPidFile=", folder_,
      "/slurmd-%n.pid\nSlurmctldLogFile=", Log("controller"), "\nSlurmdLogFile=", Log("node-%n"),
      R"(
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout=10
KillWait=20
SchedulerParameters=sched_interval=1,batch_sched_delay=0
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
)");
  for (int i = 1; i <= num_nodes; ++i) {
    absl::StrAppend(&text, "NodeName=n", i, " NodeHostname=", host,
                    " NodeAddr=127.0.0.1 Port=", FreePort(), " CPUs=", kCoresOfNode,
                    " RealMemory=1000 State=UNKNOWN\n");
  }
  absl::StrAppend(&text, "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n");
  EXPECT_TRUE(base::WriteFileDurably(environment_["SLURM_CONF"], text).ok());
}

void SlurmCluster::StartNode(int index) {
  nodes_[index] = e2e::Spawn({"/usr/bin/env", "SLURM_CONF=" + environment_["SLURM_CONF"],
                              "/usr/sbin/slurmd", "-D", "-N", absl::StrCat("n", index)},
                             Log(absl::StrCat("slurmd-", index)));
}

void SlurmCluster::KillNode(int index) {
  e2e::KillAndReap(nodes_.at(index));
  nodes_.erase(index);
  // Its step daemons have no mark of the node but their name; its tasks and their children have.
  for (const pid_t pid : ProcessesOf(absl::StrCat("SLURMD_NODENAME=n", index))) {
    const std::string environment =
        base::ReadFile(absl::StrCat("/proc/", pid, "/environ"), 1 << 20).value_or("");
    if (absl::StrContains(environment, environment_["SLURM_CONF"])) ::kill(pid, SIGKILL);
  }
}

e2e::CommandResult SlurmCluster::Run(const std::vector<std::string>& command,
                                     int seconds_max) const {
  std::vector<std::string> words = {"/usr/bin/env"};
  words.insert(words.end(), command.begin(), command.end());
  return e2e::Run(words, environment_, seconds_max);
}

std::string SlurmCluster::Out(const std::vector<std::string>& command) const {
  return std::string(absl::StripAsciiWhitespace(Run(command).out));
}

std::string SlurmCluster::StateOf(const std::string& job_id) const {
  return Out({"squeue", "--noheader", "--job=" + job_id, "--format=%t"});
}

SlurmCluster::~SlurmCluster() {
  Run({"scancel", "--quiet", "--user=root"}, 15);
  e2e::WaitUntil([&] { return Out({"squeue", "--noheader"}).empty(); }, 10);
  for (const auto& [index, pid] : nodes_) e2e::KillAndReap(pid);
  for (const pid_t pid : {controller_, munge_}) {
    if (pid > 0) e2e::KillAndReap(pid);
  }
  for (const pid_t pid : ProcessesOf("SLURM_CONF=" + environment_["SLURM_CONF"])) {
    ::kill(pid, SIGKILL);
  }
  if (::testing::Test::HasFailure()) {
    std::printf("Slurm's logs are in %s\n", folder_.c_str());
    return;
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

}  // namespace megascale::slurm
