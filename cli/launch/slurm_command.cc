// launch slurm: checks, writes the launch's folder, submits, and waits for the driver.
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "cli/command_line/report.h"
#include "cli/launch/launch_command.h"
#include "cli/launch/launch_plan.h"
#include "cli/view/interrupt.h"
#include "controlplane/agent/service/agent_server.h"
#include "controlplane/nodes/slurm/batch_script.h"
#include "controlplane/nodes/slurm/slurm.h"
#include "controlplane/nodes/slurm/slurm_source.h"
#include "controlplane/security/authority.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/process/program.h"
#include "runtime/base/socket/own_socket.h"
#include "runtime/base/status.h"
#include "runtime/base/text/counted.h"
#include "runtime/job/names.h"

namespace megascale::cli {
namespace {

constexpr int64_t kNodesMax = 100'000;
constexpr absl::Duration kAuthorityLife = absl::Hours(24 * 3650);
constexpr absl::Duration kPendingShown = absl::Seconds(10);  // then the reason is shown
constexpr absl::Duration kDriverStart = absl::Seconds(60);
constexpr absl::Duration kStartPoll = absl::Milliseconds(500);
// statfs's kinds of file systems that only this machine sees: tmpfs, ramfs.
constexpr int64_t kTmpfs = 0x01021994;
constexpr int64_t kRamfs = 0x858458f6;

struct LaunchFlags {
  LaunchPlan plan;
  absl::Duration end_before = absl::Minutes(2);
  absl::Duration idle = absl::Minutes(10);
  std::string job_file;
  std::vector<std::string> overrides;
  std::string job_id;
  bool dry_run = false;
};

absl::Status CheckRange(const std::string& option, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(option, ": ", value, " is out of range; expected ", min, " to ", max));
}

absl::Status CheckNumbers(const LaunchFlags& flags) {
  const LaunchPlan& plan = flags.plan;
  RETURN_IF_ERROR(CheckRange("--nodes", plan.nodes, 1, kNodesMax));
  RETURN_IF_ERROR(CheckRange("--spares", plan.spares, 0, kNodesMax));
  RETURN_IF_ERROR(CheckRange("--slots", plan.slots, 1, agent::kSlotsMax));
  if (plan.max_nodes != 0 && plan.max_nodes < plan.nodes) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-nodes: ", plan.max_nodes, " is less than --nodes, ", plan.nodes));
  }
  return nodes::CheckSbatchOptions(plan.options);
}

// Slurm's own words for a time, so that what it would refuse is refused before anything is asked
// for; sbatch says no more than "Invalid --time specification".
absl::Status CheckTime(const std::string& time) {
  const bool is_word = absl::EqualsIgnoreCase(time, "unlimited");
  const bool is_number =
      !time.empty() && time.find_first_not_of("0123456789:-") == std::string::npos;
  if (time.empty() || is_word || is_number) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--time: '", time, "': expected MINUTES, HOURS:MINUTES:SECONDS, DAYS-HOURS or unlimited"));
}

// A folder in this machine's memory is seen by no other machine.
absl::Status CheckIsNoMemory(const std::string& folder) {
  std::filesystem::path path = folder;
  std::error_code ignored;
  while (!std::filesystem::exists(path, ignored) && path.has_relative_path()) {
    path = path.parent_path();
  }
  struct statfs info = {};
  if (::statfs(path.c_str(), &info) != 0) return absl::OkStatus();
  if (static_cast<int64_t>(info.f_type) != kTmpfs && static_cast<int64_t>(info.f_type) != kRamfs) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(folder,
                   " lies in this machine's memory (tmpfs): expected a folder that all "
                   "machines of the launch see, such as one in your home"));
}

absl::Status CheckDriver(const LaunchPlan& plan) {
  const bool has_agent_files = !plan.agent_tls.certificate.empty() || !plan.agent_tls.key.empty();
  if (plan.driver.address.empty()) {
    if (!plan.driver.tls.any() && !has_agent_files && !plan.driver.insecure) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        "--tls-…, --agent-… and --insecure are for an existing driver: give --driver, too");
  }
  const bool both = !plan.agent_tls.certificate.empty() && !plan.agent_tls.key.empty();
  if (plan.driver.tls.any() == both && has_agent_files == both) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--driver with TLS: expected --tls-ca, --tls-cert and --tls-key (a user's), and --agent-cert "
      "and --agent-key (the agents')");
}

absl::Status PreparePlan(LaunchFlags* flags) {
  LaunchPlan& plan = flags->plan;
  RETURN_IF_ERROR(CheckNumbers(*flags));
  RETURN_IF_ERROR(CheckTime(plan.time));
  plan.folder = AbsolutePath(plan.folder);
  RETURN_IF_ERROR(job::CheckPath("FOLDER", plan.folder));
  while (plan.folder.size() > 1 && plan.folder.back() == '/') plan.folder.pop_back();
  RETURN_IF_ERROR(CheckIsNoMemory(plan.folder));
  plan.program = base::ProgramPath();
  if (plan.name.empty()) {
    plan.name = absl::StrCat("megascale-", std::filesystem::path(plan.folder).filename().string());
  }
  if (const absl::Status named = job::CheckJobId(plan.name); !named.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--name: ", named.message()));
  }
  for (std::string* file : {&plan.driver.tls.ca, &plan.driver.tls.certificate, &plan.driver.tls.key,
                            &plan.agent_tls.certificate, &plan.agent_tls.key}) {
    *file = AbsolutePath(*file);
  }
  RETURN_IF_ERROR(CheckDriver(plan));
  plan.end_before_seconds = absl::ToInt64Seconds(flags->end_before);
  plan.idle_seconds = absl::ToInt64Seconds(flags->idle);
  return absl::OkStatus();
}

// Refuses a launch that is there already.
absl::Status CheckIsNew(nodes::Slurm* slurm, const LaunchPlan& plan) {
  ASSIGN_OR_RETURN(const auto jobs, slurm->Jobs({plan.name, nodes::MachineJobName(plan.name)}));
  if (jobs.empty()) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(
      "the launch ", plan.name, " has job ", jobs.front().id, " of Slurm (", jobs.front().state,
      ") already; `scancel --name ", plan.name, "` ends it, or give this one another --name"));
}

absl::Status WriteFolder(const LaunchPlan& plan, const control::v1::SubmitJobRequest* job) {
  RETURN_IF_ERROR(base::MakeOwnFolder(plan.folder, "choose another folder"));
  RETURN_IF_ERROR(base::MakeDirectories(plan.Path("logs")));
  if (plan.driver.address.empty() && ::access(plan.Path("certs/ca.pem").c_str(), F_OK) != 0) {
    const absl::Time not_after = absl::Now() + kLaunchCertificateLife;
    RETURN_IF_ERROR(security::MakeAuthority(plan.Path("certs"), kAuthorityLife,
                                            {{security::Role::kUser, "user", {}, not_after}})
                        .status());
  }
  std::error_code ignored;
  std::filesystem::remove(plan.Path("address"), ignored);
  std::filesystem::remove(plan.Path("job.pb"), ignored);
  if (job != nullptr) {
    RETURN_IF_ERROR(base::WriteFileDurably(plan.Path("job.pb"), job->SerializeAsString()));
  }
  RETURN_IF_ERROR(base::WriteFileDurably(
      plan.Path("batch.sh"),
      nodes::BatchScript({plan.program, "launch", "slurm-run", plan.folder})));
  RETURN_IF_ERROR(base::WriteFileDurably(
      plan.Path("machine.sh"),
      nodes::BatchScript({plan.program, "launch", "slurm-agent", plan.folder, "--own-job"})));
  return SavePlan(plan);
}

void PrintDryRun(const LaunchPlan& plan) {
  std::vector<std::string> words = {"sbatch"};
  for (const std::string& option : plan.FirstJobOptions()) words.push_back(ShellWord(option));
  words.push_back(ShellWord(plan.Path("batch.sh")));
  std::printf("# %s\n%s\n%s", plan.Path("batch.sh").c_str(), absl::StrJoin(words, " ").c_str(),
              nodes::BatchScript({plan.program, "launch", "slurm-run", plan.folder}).c_str());
}

void PrintReached(const LaunchPlan& plan, const ConnectionFlags& connection, bool has_job) {
  std::printf("the driver answers at %s\nnext:\n  %s\n  %s\n", connection.address.c_str(),
              NextCommand("nodes", connection).c_str(),
              NextCommand(has_job ? "list" : "submit JOB.yaml --follow", connection).c_str());
  std::printf(
      "`scancel --name %s` ends the launch; `megascale cancel JOB` alone ends a job with a "
      "checkpoint\n",
      plan.name.c_str());
}

// Waits until the driver answers, says why it waits, or fails because the job will never start.
absl::Status AwaitStart(nodes::Slurm* slurm, const LaunchPlan& plan, const std::string& id,
                        Interrupt* interrupt) {
  const absl::Duration begin = base::RealClock().Monotonic();
  bool runs = false;
  for (;;) {
    if (interrupt->Count() > 0) {
      std::printf("the launch goes on without this command\n");
      return absl::OkStatus();
    }
    const absl::Duration waited = base::RealClock().Monotonic() - begin;
    const auto connection = plan.Connection();
    if (connection.ok() && (runs || plan.driver.address.empty())) {
      ConnectionFlags once = *connection;
      once.retry_for = absl::ZeroDuration();
      const auto client = Connect(once);
      if (client.ok() && (*client)->Cluster().ok()) {
        PrintReached(plan, *connection, plan.has_job);
        return absl::OkStatus();
      }
    }
    const auto jobs = slurm->Jobs({plan.name});
    if (jobs.ok()) {
      const auto job = std::find_if(jobs->begin(), jobs->end(),
                                    [&](const nodes::SlurmJob& one) { return one.id == id; });
      if (job == jobs->end()) {
        return absl::InternalError(absl::StrCat("job ", id, " of Slurm has ended; its output: ",
                                                plan.Path("logs"), "/launch-", id, ".log"));
      }
      if (const std::string why = nodes::NeverStarts(*job); !why.empty()) {
        slurm->Cancel(id, false).IgnoreError();
        return absl::FailedPreconditionError(
            absl::StrCat("Slurm will never start job ", id, ": ", why, "; it is cancelled"));
      }
      if (job->state == "PD" && waited >= kPendingShown) {
        std::printf(
            "job %s waits in Slurm's queue (%s) and starts by itself; `squeue --job %s` "
            "shows when\n",
            id.c_str(), job->reason.c_str(), id.c_str());
        return absl::OkStatus();
      }
      if (job->state == "R" && !std::exchange(runs, true)) {
        std::printf("job %s runs on %s\n", id.c_str(), job->node_list.c_str());
        std::fflush(stdout);
      }
    }
    if (waited >= kDriverStart) {
      return absl::DeadlineExceededError(
          absl::StrCat("the driver of job ", id, " does not answer after ",
                       absl::FormatDuration(kDriverStart), "; its output: ", plan.Path("logs")));
    }
    absl::SleepFor(kStartPoll);
  }
}

int RunLaunch(LaunchFlags flags, const MakeLaunchJob& make_job) {
  if (const absl::Status prepared = PreparePlan(&flags); !prepared.ok()) {
    return ReportError(prepared);
  }
  LaunchPlan& plan = flags.plan;
  control::v1::SubmitJobRequest job;
  plan.has_job = !flags.job_file.empty();
  if (plan.has_job) {
    auto made = make_job({flags.job_file, flags.overrides, flags.job_id});
    if (!made.ok()) return ReportMistakes(made.status());
    job = *std::move(made);
  }
  if (flags.dry_run) {
    PrintDryRun(plan);
    return kExitGood;
  }
  Interrupt interrupt;
  nodes::Slurm slurm;
  if (const absl::Status is_new = CheckIsNew(&slurm, plan); !is_new.ok()) {
    return ReportError(is_new);
  }
  if (const absl::Status written = WriteFolder(plan, plan.has_job ? &job : nullptr);
      !written.ok()) {
    return ReportError(written);
  }
  if (const absl::Status fits = slurm.Check(plan.FirstJobOptions(), plan.Path("batch.sh"));
      !fits.ok()) {
    return ReportError(fits);
  }
  if (const auto wait = slurm.KillWait(); wait.ok()) {
    std::printf(
        "Slurm ends a cancelled job %s after its signal (KillWait): a checkpoint that takes "
        "longer is lost then\n",
        absl::FormatDuration(*wait).c_str());
  }
  const auto id = slurm.Submit(plan.FirstJobOptions(), plan.Path("batch.sh"));
  if (!id.ok()) return ReportError(id.status());
  std::printf("job %s of Slurm: %s and %s, %s each; certificates, state and logs: %s\n",
              id->c_str(), base::Counted(plan.nodes, "machine").c_str(),
              base::Counted(plan.spares, "spare").c_str(),
              base::Counted(plan.slots, "slot").c_str(), plan.folder.c_str());
  if (plan.has_job) std::printf("it runs job %s and ends with it\n", job.job_id().c_str());
  std::fflush(stdout);
  const absl::Status started = AwaitStart(&slurm, plan, *id, &interrupt);
  return started.ok() ? static_cast<int>(kExitGood) : ReportError(started);
}

void AddSlurm(Command* launch, const MakeLaunchJob& make_job) {
  auto flags = std::make_shared<LaunchFlags>();
  LaunchPlan* plan = &flags->plan;
  Command* command = launch->Add("slurm", "on machines of Slurm");
  command->PathPositional("FOLDER", &plan->folder,
                          "the launch's folder, which all machines see: certificates, the driver's "
                          "state, logs; made owner-only if it is missing");
  command->Rest("SBATCH-OPTION", &plan->options,
                "after `--`: options of sbatch for every machine, such as --account=physics or "
                "--gres=gpu:8");
  command->Integer("--nodes", &plan->nodes, "machines for jobs");
  command->Integer("--spares", &plan->spares,
                   "machines beside them that replace lost ones at once");
  command->Integer("--max-nodes", &plan->max_nodes,
                   "jobs that need more machines get up to this many; idle ones go back after ten "
                   "minutes; 0: as --nodes");
  command->Integer("--slots", &plan->slots, "worker processes on each machine");
  command->Text("--time", &plan->time,
                "time limit, as sbatch takes it; a successor takes over at its end (default: the "
                "partition's)");
  command->Name("--partition", &plan->partition, "Slurm's partition (default: Slurm's)");
  command->Name("--name", &plan->name,
                "name of the jobs in Slurm (default: megascale- and the folder's name)");
  command->Path("--job", &flags->job_file,
                "a job file: the launch submits it and ends when it has ended");
  command->Repeated("--set", &flags->overrides, "FIELD=VALUE: changes a field of that job");
  command->Name("--job-id", &flags->job_id, "its id (default: made from its name)");
  command->Duration("--end-before", &flags->end_before,
                    "jobs make a checkpoint and leave this long before the time limit");
  command->Duration("--idle", &flags->idle,
                    "without a job for this long the launch ends; 0: never");
  command->Text("--machine-tests", &plan->machine_tests,
                "tests of machines before they get ranks: off, quick or full (default: full)");
  command->Address(
      "--driver", &plan->driver.address,
      "an existing driver, instead of one of the launch's own; its files below must be "
      "where all machines see them");
  AddTlsOptions(command, "that driver", "the launch, a user's", &plan->driver.tls,
                &plan->driver.insecure);
  command->Path("--agent-cert", &plan->agent_tls.certificate,
                "PEM file of the certificate that agents show to that driver");
  command->Path("--agent-key", &plan->agent_tls.key, "PEM file of its private key");
  command->Flag("--dry-run", &flags->dry_run, "prints the script and how it would be submitted");
  command->Details(
      "Asks Slurm for one job of all machines, with an agent on each and the driver on the first. "
      "A machine that Slurm drains is left with a checkpoint; one that is lost or in quarantine is "
      "replaced by a job of one machine that excludes it. At the time limit jobs make a "
      "checkpoint, "
      "and a successor, queued from the start, goes on.");
  command->Examples(
      "megascale launch slurm ~/runs/gpt --nodes 16 --spares 1 --slots 8 --time 24:00:00 \\\n"
      "  --job gpt.yaml -- --account=physics --gres=gpu:8 --exclusive\n"
      "megascale launch slurm ~/runs/shared --nodes 4 --slots 8\n"
      "megascale launch slurm ~/runs/shared --nodes 4 --dry-run");
  command->Runs([flags, make_job] { return RunLaunch(*flags, make_job); });
}

}  // namespace

void AddLaunchCommand(CommandLine* line, const MakeLaunchJob& make_job) {
  Command* launch =
      line->Add("launch", "starts a driver and agents on machines that a site's manager grants");
  launch->Details(
      "The machines come from the manager and go back to it; the driver is the same as everywhere. "
      "docs/slurm.md shows a whole run.");
  AddSlurm(launch, make_job);
  auto folder = std::make_shared<std::string>();
  auto own_job = std::make_shared<bool>(false);
  Command* run = launch->Add("slurm-run", "what the script of a launch's first job runs");
  run->PathPositional("FOLDER", folder.get(), "the launch's folder");
  run->Runs([folder] { return RunSlurmLaunch(AbsolutePath(*folder)); });
  run->Hide();
  Command* agent = launch->Add("slurm-agent", "what runs on each machine of a launch");
  agent->PathPositional("FOLDER", folder.get(), "the launch's folder");
  agent->Flag("--own-job", own_job.get(), "this machine has a job of its own");
  agent->Runs([folder, own_job] { return RunSlurmAgent(AbsolutePath(*folder), *own_job); });
  agent->Hide();
}

}  // namespace megascale::cli
