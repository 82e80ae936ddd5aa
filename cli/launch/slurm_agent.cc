// What runs on each machine of a launch: an agent, started again when it dies.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/command_line/report.h"
#include "cli/launch/launch_command.h"
#include "cli/launch/launch_plan.h"
#include "cli/view/interrupt.h"
#include "controlplane/launch/local_cluster.h"
#include "controlplane/launch/process_keeper.h"
#include "controlplane/nodes/slurm/slurm.h"
#include "controlplane/security/authority.h"
#include "runtime/base/checksum.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace megascale::cli {
namespace {

constexpr absl::Duration kAgentPoll = absl::Milliseconds(200);
constexpr absl::Duration kAddressWait = absl::Minutes(2);
constexpr absl::Duration kLaunchLook = absl::Seconds(10);
// An agent whose driver went with the launch cannot drain.
constexpr absl::Duration kDrainMax = absl::Seconds(15);
constexpr int kDeathsMax = 5;  // in a row

// Returns the name under which Slurm knows this machine.
absl::StatusOr<std::string> NameOfMachine() {
  const char* const name = std::getenv("SLURMD_NODENAME");
  if (name != nullptr && nodes::IsNodeName(name)) return std::string(name);
  return absl::FailedPreconditionError(
      "SLURMD_NODENAME is not set to a machine's name: Slurm runs this, on the machines of a "
      "launch");
}

// Puts this process's output into the machine's own log.
absl::Status UseLog(const LaunchPlan& plan, const std::string& name) {
  ASSIGN_OR_RETURN(const base::UniqueFd log, plan.OpenLog(absl::StrCat("agent-", name, ".log")));
  ::dup2(log.get(), STDOUT_FILENO);
  ::dup2(log.get(), STDERR_FILENO);
  return absl::OkStatus();
}

absl::StatusOr<security::TlsFiles> CertificateOf(const LaunchPlan& plan, const std::string& name) {
  if (!plan.driver.address.empty()) return plan.agent_tls;
  const std::string file = absl::StrCat("machine-", name);
  const auto issued = security::IssueCertificate(
      plan.Path("certs"), {security::Role::kAgent, file, {}, absl::Now() + kLaunchCertificateLife});
  if (!issued.ok() && !absl::IsAlreadyExists(issued.status())) return issued.status();
  return plan.Certificate(file);
}

// Waits for the driver's address, which the first job writes.
absl::StatusOr<std::string> AwaitAddress(const LaunchPlan& plan, Interrupt* interrupt) {
  const absl::Duration end = base::RealClock().Monotonic() + kAddressWait;
  for (;;) {
    const auto connection = plan.Connection();
    if (connection.ok()) return connection->address;
    if (interrupt->Count() > 0) return absl::CancelledError("ended before it began");
    if (base::RealClock().Monotonic() >= end) {
      return absl::DeadlineExceededError(
          absl::StrCat(plan.Path("address"), ": the launch's first job has not written it within ",
                       absl::FormatDuration(kAddressWait)));
    }
    absl::SleepFor(kAgentPoll);
  }
}

std::vector<std::string> AgentWords(const LaunchPlan& plan, const std::string& name,
                                    const std::string& address, const security::TlsFiles& tls) {
  std::vector<std::string> words = {plan.program,  "agent",
                                    "--driver",    address,
                                    "--node-id",   name,
                                    "--slots",     absl::StrCat(plan.slots),
                                    "--state-dir", plan.Path(absl::StrCat("nodes/", name)),
                                    "--log-dir",   plan.Path(absl::StrCat("logs/", name))};
  // Another one than that of an agent of another launch, which may run here, too.
  const std::string launch = base::Sha256Hex(plan.folder).substr(0, 8);
  words.insert(words.end(),
               {"--run-dir", absl::StrCat("/tmp/megascale-", ::geteuid(), "/", launch, "/", name)});
  if (plan.driver.insecure) words.push_back("--insecure");
  for (const std::string& word : TlsWords(tls)) words.push_back(word);
  return words;
}

// Starts the program; it gets SIGINT when this process ends.
pid_t StartAgent(const std::vector<std::string>& words) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGINT);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (::getppid() == parent) ::execv(arguments[0], arguments.data());
  ::_exit(127);
}

// Keeps an agent running until a signal, its own good end, or the end of the launch.
class AgentRun {
 public:
  AgentRun(const LaunchPlan& plan, bool launch_ends) : plan_(plan), launch_ends_(launch_ends) {}

  int Run(const std::vector<std::string>& words, Interrupt* interrupt) {
    for (;;) {
      const absl::Duration started = base::RealClock().Monotonic();
      pid_ = StartAgent(words);
      if (pid_ < 0) return ReportError(base::ErrnoStatus(errno, "fork"));
      const int status = Await(interrupt);
      // Slurm has sent the signal to the agent, too.
      if (interrupt->Count() > 0 || ending_) return kExitGood;
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return kExitGood;
      const absl::Duration wait = backoff_.OnDeath(base::RealClock().Monotonic() - started);
      base::LogWarning(absl::StrCat("the agent ", launch::DescribeExit(status),
                                    "; starts again in ", absl::FormatDuration(wait)));
      if (backoff_.times_in_a_row() >= kDeathsMax) return kExitFailed;
      absl::SleepFor(wait);
    }
  }

 private:
  int Await(Interrupt* interrupt) {
    int status = 0;
    while (::waitpid(pid_, &status, WNOHANG) == 0) {
      absl::SleepFor(kAgentPoll);
      if (launch_ends_ && !ending_ && interrupt->Count() == 0 && LaunchHasEnded()) {
        base::LogWarning("the launch's first job has ended: this machine goes back");
        ending_ = true;
        end_at_ = base::RealClock().Monotonic() + kDrainMax;
        ::kill(pid_, SIGTERM);
      }
      if (ending_ && base::RealClock().Monotonic() >= end_at_) ::kill(pid_, SIGINT);
    }
    return status;
  }

  // Two looks in a row, so that the moment between a job and its successor is no end. A Slurm that
  // does not answer says nothing.
  bool LaunchHasEnded() {
    const absl::Duration now = base::RealClock().Monotonic();
    if (now < look_at_) return false;
    look_at_ = now + kLaunchLook;
    const auto jobs = slurm_.Jobs({plan_.name});
    if (!jobs.ok()) return false;
    bool runs = false;
    for (const nodes::SlurmJob& job : *jobs) runs = runs || job.state != "PD";
    num_absent_ = runs ? 0 : num_absent_ + 1;
    return num_absent_ >= 2;
  }

  const LaunchPlan& plan_;
  const bool launch_ends_;
  nodes::Slurm slurm_;
  launch::RestartBackoff backoff_;
  pid_t pid_ = -1;
  bool ending_ = false;
  absl::Duration end_at_ = absl::ZeroDuration();
  absl::Duration look_at_ = absl::ZeroDuration();
  int num_absent_ = 0;
};

absl::StatusOr<std::vector<std::string>> Prepare(const LaunchPlan& plan, Interrupt* interrupt) {
  ASSIGN_OR_RETURN(const std::string name, NameOfMachine());
  RETURN_IF_ERROR(UseLog(plan, name));
  base::InitLog(absl::StrCat("machine ", name), base::LogLevel::kInfo);
  ASSIGN_OR_RETURN(const std::string address, AwaitAddress(plan, interrupt));
  ASSIGN_OR_RETURN(const security::TlsFiles tls, CertificateOf(plan, name));
  return AgentWords(plan, name, address, tls);
}

}  // namespace

int RunSlurmAgent(const std::string& folder, bool launch_ends) {
  Interrupt interrupt;
  const auto plan = LoadPlan(folder);
  if (!plan.ok()) {
    return ReportError(plan.status(),
                       "the folder of a launch must be one that all its machines see");
  }
  const auto words = Prepare(*plan, &interrupt);
  if (!words.ok()) return ReportError(words.status());
  return AgentRun(*plan, launch_ends).Run(*words, &interrupt);
}

}  // namespace megascale::cli
