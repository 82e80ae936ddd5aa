// local: a whole cluster on this machine for one job.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/command_line/report.h"
#include "cli/commands/commands.h"
#include "cli/commands/follow.h"
#include "cli/commands/submit.h"
#include "cli/connection/connection.h"
#include "cli/training_report/training_report.h"
#include "cli/view/live_view.h"
#include "cli/view/terminal.h"
#include "controlplane/address/address.h"
#include "controlplane/agent/service/agent_server.h"
#include "controlplane/driver/service/driver_server.h"
#include "controlplane/launch/local_cluster.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/process/program.h"
#include "runtime/base/process/resource_limit.h"
#include "runtime/base/status.h"
#include "runtime/base/text/counted.h"
#include "runtime/data/corpus.h"
#include "runtime/data/dataset/job_tokenizer.h"
#include "runtime/job/job_spec.h"
#include "runtime/layout/node_memory.h"

namespace megascale::cli {
namespace {

constexpr absl::Duration kDriverStart = absl::Seconds(30);
constexpr absl::Duration kCancelGrace = absl::Seconds(10);
constexpr absl::Duration kCancelMax = absl::Seconds(30);
constexpr int64_t kAgentsMax = 1000;
constexpr int64_t kSlotsMax = agent::kSlotsMax;

struct LocalFlags {
  JobFlags job;
  int64_t agents = 1;
  int64_t slots = 0;  // 0: as many as the job needs
  std::string state_directory;
  std::string machine_tests = "quick";
  std::string http_address;
  std::string held_out_windows = "auto";
  std::string format = "text";
};

// Passes lines from the supervising thread to the thread that shows them.
class Notes {
 public:
  void Add(std::string line) {
    const std::lock_guard<std::mutex> lock(mutex_);
    lines_.push_back(std::move(line));
  }
  std::vector<std::string> Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(lines_, {});
  }
  bool empty() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return lines_.empty();
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

// Returns the number of slots that each agent needs so that the job fits.
int64_t NeededOfEach(const job::v1::JobSpec& spec, int64_t agents) {
  const int64_t groups = job::WorldSize(spec) / job::TensorSize(spec);
  return (groups + agents - 1) / agents * job::TensorSize(spec);
}

// Makes all checks that are possible before a process starts.
absl::Status CheckFits(const LocalFlags& flags, const job::v1::JobSpec& spec) {
  const std::string& tests = flags.machine_tests;
  if (tests != "off" && tests != "quick" && tests != "full") {
    return absl::InvalidArgumentError(
        absl::StrCat("--machine-tests: unknown value '", tests, "'; expected off, quick or full"));
  }
  if (!flags.http_address.empty()) {
    const auto address = client::ParseAddress(flags.http_address);
    if (!address.ok() || !address->loopback) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--http: expected HOST:PORT of this machine, such as 127.0.0.1:0, found '",
          flags.http_address, "'; other machines reach the page through a tunnel, such as ssh -L"));
    }
  }
  if (flags.agents < 1 || flags.agents > kAgentsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--agents: ", flags.agents, " is out of range; expected 1 to ", kAgentsMax));
  }
  if (flags.slots < 1 || flags.slots > kSlotsMax) {
    return absl::InvalidArgumentError(absl::StrCat("--slots: ", flags.slots,
                                                   " is out of range; expected 1 to ", kSlotsMax,
                                                   ", or 0 for as many as the job needs"));
  }
  if (NeededOfEach(spec, flags.agents) > flags.slots) {
    const std::string together = job::TensorSize(spec) == 1
                                     ? ""
                                     : absl::StrCat("; the ", job::TensorSize(spec),
                                                    " ranks of a tensor group share an agent");
    return absl::InvalidArgumentError(absl::StrCat(
        flags.job.file, ": ", job::NeededSlots(spec), "; ", base::Counted(flags.agents, "agent"),
        " × ", base::Counted(flags.slots, "slot"), " = ", flags.agents * flags.slots, together));
  }
  // How many tokens text has is known when it is encoded; bytes are counted now.
  const bool bytes = !data::UsesTokenizer(spec.data());
  const auto corpus = data::Corpus::Open(spec.data(), bytes ? spec.train().seq_length() : 0);
  if (!corpus.ok()) {
    const absl::string_view why = corpus.status().message();
    const bool names_field = absl::StartsWith(why, "data.");
    return absl::InvalidArgumentError(
        absl::StrCat(flags.job.file, names_field ? ": " : ": data.files: ", why));
  }
  ASSIGN_OR_RETURN(const layout::NodeMemory needed, layout::MemoryOfJob(spec));
  const std::optional<base::MemoryLimit> limit = base::LeastMemoryLimit();
  RETURN_IF_ERROR(layout::CheckRings(needed, limit));
  return layout::CheckMemory(needed, limit);
}

// One run of `local`, from the started cluster to the job's end.
class LocalRun {
 public:
  LocalRun(const LocalFlags& flags, const control::v1::SubmitJobRequest& request)
      : flags_(flags), request_(request) {}

  absl::Status Start() {
    state_directory_ = AbsolutePath(flags_.state_directory.empty()
                                        ? absl::StrCat("megascale-out/", request_.job_id())
                                        : flags_.state_directory);
    RETURN_IF_ERROR(base::MakeDirectories(state_directory_));
    launch::LocalClusterOptions options;
    options.program = base::ProgramPath();
    options.num_agents = static_cast<int>(flags_.agents);
    options.slots_per_agent = static_cast<int>(flags_.slots);
    options.state_directory = state_directory_;
    options.machine_tests = flags_.machine_tests;
    options.http_address = flags_.http_address;
    options.on_restart = [this](const launch::ClusterRestart& restart) {
      if (restart.backoff == absl::InfiniteDuration()) {
        notes_.Take();  // of the starts before, which said the same
        return refusal_.Add(ErrorOf(restart));
      }
      notes_.Add(absl::StrCat(restart.process, " ", restart.how, "; started again in ",
                              absl::FormatDuration(restart.backoff),
                              "; its output: ", restart.log_path));
    };
    ASSIGN_OR_RETURN(cluster_, launch::LocalCluster::Start(options));
    ConnectionFlags connection;
    connection.address = cluster_->driver_address();
    ASSIGN_OR_RETURN(client_, Connect(connection));
    // After one signal the driver still gets the job, so that Follow cancels it: a submit without
    // an answer may be in the driver's log, and the job would run in the next run.
    const auto must_end = [this] { return interrupt_.Count() > 1; };
    const auto should_stop = [&] { return !refusal_.empty() || must_end(); };
    const absl::Duration began_at = base::RealClock().Monotonic();
    const auto job = client_->Submit(request_, {.time = kDriverStart, .should_stop = should_stop});
    // The driver's own words say why it could not be reached.
    if (!job.ok()) RETURN_IF_ERROR(Refusal());
    if (!job.ok() && must_end()) return absl::CancelledError("ended before the job began");
    RETURN_IF_ERROR(job.status());
    if (IsTerminal(job->state()) && IsOlder(*job, base::RealClock().Monotonic() - began_at)) {
      return EndedBefore(*job);
    }
    if (live()) PrintStart();
    PrintPage();
    return absl::OkStatus();
  }

  // Follows the job to its end. A first Ctrl-C cancels the job, as does the end of who reads the
  // output; after a second one the end of the cluster ends it.
  absl::StatusOr<FollowResult> Follow() {
    FollowOptions options;
    options.style = live() ? FollowStyle::kLive : FollowStyle::kJson;
    options.interrupt = &interrupt_;
    options.take_notes = [this] { return notes_.Take(); };
    options.needs_output = true;
    options.should_stop = [this] { return !refusal_.empty(); };
    ASSIGN_OR_RETURN(FollowResult result, FollowJob(client_.get(), request_.job_id(), options));
    if (result.end == FollowResult::End::kJobEnded) return result;
    if (result.end == FollowResult::End::kStopped) return CancelRefused();
    const bool output_lost = result.end == FollowResult::End::kOutputLost;
    std::fprintf(stderr, "%s\ncancelling %s; Ctrl-C%s ends it at once\n",
                 output_lost ? "megascale: standard output is closed" : "",
                 request_.job_id().c_str(), output_lost ? "" : " again");
    options.needs_output = false;
    options.signals_before = output_lost ? 0 : 1;
    RETURN_IF_ERROR(
        client_->Cancel(MakeCancelRequest(request_.job_id(), kCancelGrace, false)).status());
    options.timeout = kCancelMax;
    return FollowJob(client_.get(), request_.job_id(), options);
  }

  void Stop() {
    client_.reset();
    if (cluster_) cluster_->Stop();
    for (const std::string& note : notes_.Take()) std::fprintf(stderr, "%s\n", note.c_str());
  }

  // Returns "" if no process has started.
  std::string LogAdvice() const {
    const std::string logs = absl::StrCat(state_directory_, "/logs");
    return std::filesystem::exists(logs) ? absl::StrCat("logs: ", logs) : "";
  }
  bool live() const { return flags_.format != "json"; }

 private:
  static std::string ErrorOf(const launch::ClusterRestart& restart) {
    if (restart.process == "driver") {
      return restart.error.empty() ? absl::StrCat("the driver ", restart.how) : restart.error;
    }
    return absl::StrCat(restart.process, ": ", restart.error.empty() ? restart.how : restart.error);
  }

  // Why a process of the cluster cannot run; OK if all can.
  absl::Status Refusal() {
    for (const std::string& why : refusal_.Take()) return absl::InternalError(why);
    return absl::OkStatus();
  }

  // Cancels the job, which otherwise would run in the next cluster on this state directory, and
  // returns why it cannot run in this one.
  absl::Status CancelRefused() {
    absl::Status why = Refusal();
    const auto request = MakeCancelRequest(request_.job_id(), absl::ZeroDuration(), false);
    // An error means that the driver is gone, too.
    if (!client_->Cancel(request).ok()) return why;
    FollowOptions options;
    options.style = FollowStyle::kQuiet;
    options.interrupt = &interrupt_;
    options.timeout = kCancelMax;
    FollowJob(client_.get(), request_.job_id(), options).IgnoreError();
    return why;
  }

  // The driver writes the file before it answers.
  void PrintPage() const {
    if (flags_.http_address.empty()) return;
    const auto url =
        base::ReadFile(absl::StrCat(state_directory_, "/", driver::kPageUrlFile), 4096);
    if (!url.ok()) return;
    FILE* out = live() ? stdout : stderr;
    if (::isatty(::fileno(out)) == 1) {
      std::fprintf(out, "the page: %s", url->c_str());
    } else {  // perhaps a log that others may read
      std::fprintf(out, "the page: its URL with the token is in %s/%s\n", state_directory_.c_str(),
                   driver::kPageUrlFile);
    }
    std::fflush(stdout);
  }

  void PrintStart() const {
    const job::v1::ParallelSpec& parallel = request_.spec().parallel();
    std::printf("job %s: data %d x pipeline %d on %s with %s each\nstate and logs: %s\n",
                request_.job_id().c_str(), parallel.data_parallel_size(),
                parallel.pipeline_model_parallel_size(),
                base::Counted(flags_.agents, "agent").c_str(),
                base::Counted(flags_.slots, "slot").c_str(), state_directory_.c_str());
    std::fflush(stdout);
  }

  const LocalFlags& flags_;
  const control::v1::SubmitJobRequest& request_;
  Interrupt interrupt_;  // before any thread
  Notes notes_;          // these outlive the cluster, which calls back
  Notes refusal_;        // why a process of the cluster cannot run
  std::string state_directory_;
  std::unique_ptr<launch::LocalCluster> cluster_;
  std::unique_ptr<client::JobClient> client_;
};

int Report(const LocalFlags& flags, const WindowLimit& limit, const FollowResult& result) {
  const bool json = flags.format == "json";
  if (!json) {
    PrintCurve(LossesOf(result.job, result.losses), data::UsesTokenizer(result.job.spec().data()));
    std::printf("\nmeasuring the model on held-out text\n");
    std::fflush(stdout);
  }
  EvaluateOptions options;
  options.limit = limit;
  options.on_start = [&](int64_t num_windows, int64_t whole_windows) {
    if (json || num_windows == whole_windows) return;
    std::printf("%s of %s windows (%s); --held-out-windows all measures all\n",
                WithCommas(num_windows).c_str(), WithCommas(whole_windows).c_str(),
                limit.flops > 0 ? "2e13 FLOP" : "--held-out-windows");
    std::fflush(stdout);
  };
  const auto now = [] { return base::RealClock().Monotonic(); };
  std::optional<WorkProgress> progress;
  options.on_progress = [&](int64_t done, int64_t all) {
    if (progress) progress->Show(done, all, now());
  };
  if (!json) {
    progress.emplace(ProgressWords{"held-out text", "windows"}, DetectTerminal(STDOUT_FILENO),
                     stdout, now());
  }
  const auto report = MakeTrainingReport(result.job, options);
  progress.reset();
  if (!report.ok()) return ReportError(base::Annotate(report.status(), "the trained model"));
  if (json) {
    PrintTrainingReportJson(result.job, *report);
  } else {
    PrintTrainingReport(*report, ProgramToType(base::ProgramPath()));
  }
  return kExitGood;
}

int RunLocal(LocalFlags flags) {
  ::umask(077);  // what it makes belongs to its owner alone, in all its processes
  // A reader that leaves, as `head` does, must not end the cluster in mid-step. A handler, because
  // programs that are started would inherit that a signal is ignored.
  ::signal(SIGPIPE, [](int) {});
  if (!CheckOutputFormat(flags.format)) return kExitUsage;
  const auto limit = ParseWindowLimit("--held-out-windows", flags.held_out_windows);
  if (!limit.ok()) return ReportError(limit.status());
  const auto request = MakeSubmitRequest(flags.job, JobPlace::kHere);
  if (!request.ok()) return ReportMistakes(request.status());
  if (flags.slots == 0 && flags.agents > 0) {
    flags.slots = std::min(NeededOfEach(request->spec(), flags.agents), kSlotsMax);
  }
  const absl::Status fits = CheckFits(flags, request->spec());
  if (!fits.ok()) return ReportError(fits);
  absl::StatusOr<FollowResult> result = FollowResult();
  {
    LocalRun run(flags, *request);
    const absl::Status started = run.Start();
    if (started.ok()) result = run.Follow();
    run.Stop();
    if (absl::IsAlreadyExists(started)) {
      return ReportError(started,
                         "nothing ran; give another --job-id, or none; --from CHECKPOINT goes on "
                         "from a checkpoint");
    }
    if (!started.ok()) return ReportError(started, run.LogAdvice());
    if (!result.ok()) return ReportError(result.status(), run.LogAdvice());
    if (result->job.state() != control::v1::JOB_STATE_SUCCEEDED) {
      std::fprintf(stderr, "megascale: %s  %s\n  %s\n", request->job_id().c_str(),
                   StateLine(result->job).c_str(), run.LogAdvice().c_str());
      if (result->job.has_last_checkpoint()) {
        const auto& checkpoint = result->job.last_checkpoint();
        std::fprintf(stderr, "  another job can go on from step %lld: --from %s\n",
                     static_cast<long long>(checkpoint.step()),
                     ShellWord(checkpoint.directory()).c_str());
      }
      return kExitFailed;
    }
  }
  return Report(flags, *limit, *result);
}

}  // namespace

void AddLocalCommand(CommandLine* line) {
  auto flags = std::make_shared<LocalFlags>();
  Command* command = line->Add("local",
                               "trains one job on this machine: driver, agents and workers as "
                               "processes; opens no port without "
                               "--http");
  AddJobOptions(command, &flags->job);
  command->Integer("--agents", &flags->agents,
                   "agents to start: machines, as far as the job can tell");
  command->Integer("--slots", &flags->slots,
                   "worker processes on each; 0: as many as the job needs");
  command->Path("--state-dir", &flags->state_directory,
                "keeps logs, metrics and checkpoints (default: ./megascale-out/JOB)");
  command->Text("--machine-tests", &flags->machine_tests,
                "tests of this machine before the job starts: off, quick (about a second) or full "
                "(half a minute)");
  command->Text("--http", &flags->http_address,
                "serves a page that shows the run on this HOST:PORT, such as 127.0.0.1:0 for any "
                "free port (default: no page)");
  command->Text("--held-out-windows", &flags->held_out_windows,
                "windows of held-out text to measure at the end: a number, all, or auto: as many "
                "as 2e13 FLOP allow (a minute at 300 GFLOP/s)");
  AddOutputOption(command, &flags->format);
  command->Details(
      "Starts a driver and agents with Unix sockets in a folder of their own, follows the job, and "
      "samples from what was trained. However it ends, no process and no socket is left. Ctrl-C "
      "cancels the job.");
  command->Examples(
      "megascale local examples/fortunes.yaml --agents 2 --slots 2\n"
      "megascale local examples/single.yaml --data book.txt\n"
      "megascale local examples/tiny.yaml --set train.steps=40\n"
      "megascale local examples/fortunes.yaml --slots 4 --http 127.0.0.1:7078");
  command->Runs([flags] { return RunLocal(*flags); });
}

}  // namespace megascale::cli
