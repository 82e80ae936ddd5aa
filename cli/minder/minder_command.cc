#include "cli/minder/minder_command.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "cli/command_line/report.h"
#include "cli/connection/connection.h"
#include "cli/minder/job_series.h"
#include "cli/minder/method.h"
#include "cli/minder/verdict_text.h"
#include "cli/view/interrupt.h"
#include "cli/view/live_view.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/minder/examine.h"
#include "runtime/minder/model_file.h"
#include "runtime/minder/training.h"

namespace megascale::cli {
namespace {

constexpr size_t kFileBytesMax = size_t{1} << 30;
constexpr absl::Duration kInterruptInterval = absl::Milliseconds(100);
constexpr int64_t kContinuitySecondsMax = minder::kExaminedSeconds - minder::kWindow;

struct MinderFlags {
  ConnectionFlags connection;
  std::string job_id;
  std::string series;
  std::string models;
  std::string method = "minder";
  std::string format = "text";
  std::string out;
  bool force = false;
  absl::Duration continuity = absl::Minutes(4);
  absl::Duration every = absl::Minutes(8);
  bool report = false;
  bool quiet = false;  // watch: tell people only
  std::vector<std::string> recordings;
  int64_t epochs = 30;
  int64_t seed = 1;
};

int Threads() { return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 16); }

absl::StatusOr<minder::DetectorOptions> OptionsOf(const MinderFlags& flags) {
  ASSIGN_OR_RETURN(minder::DetectorOptions options, OptionsOfMethod(flags.method));
  options.num_threads = Threads();
  const int64_t seconds = absl::ToInt64Seconds(flags.continuity);
  if (seconds < 1 || seconds > kContinuitySecondsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--continuity ", absl::FormatDuration(flags.continuity), ": expected 1s to ",
                     kContinuitySecondsMax, "s"));
  }
  options.continuity_windows = static_cast<int>(seconds);
  return options;
}

absl::StatusOr<minder::MinderModels> ModelsOf(const MinderFlags& flags) {
  if (flags.models.empty()) return minder::DefaultModels();
  ASSIGN_OR_RETURN(const std::string text, base::ReadFile(flags.models, kFileBytesMax));
  auto models = minder::ParseModels(text);
  if (!models.ok()) return base::Annotate(models.status(), flags.models);
  return models;
}

absl::StatusOr<minder::Recording> ReadRecording(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, base::ReadFile(path, kFileBytesMax));
  auto recording = minder::ParseRecording(text);
  if (!recording.ok()) return base::Annotate(recording.status(), path);
  if (recording->num_bad_lines > 0) {
    std::fprintf(stderr, "megascale: %s: %d malformed lines are left out; the first: %s\n",
                 path.c_str(), static_cast<int>(recording->num_bad_lines),
                 recording->first_bad_line.c_str());
  }
  return recording;
}

double EndOf(const minder::Recording& recording) {
  const minder::CommonTime time =
      minder::CommonTimeOf(recording, {.seconds_max = minder::kExaminedSeconds});
  return time.begin + time.num_seconds;
}

// What one look needs, checked before the driver is asked.
struct Examiner {
  minder::MinderModels models;
  minder::DetectorOptions options;

  static absl::StatusOr<Examiner> Create(const MinderFlags& flags) {
    Examiner examiner;
    ASSIGN_OR_RETURN(examiner.options, OptionsOf(flags));
    ASSIGN_OR_RETURN(examiner.models, ModelsOf(flags));
    return examiner;
  }
};

absl::StatusOr<Examined> ExamineFile(const MinderFlags& flags, const Examiner& examiner) {
  ASSIGN_OR_RETURN(const minder::Recording recording, ReadRecording(flags.series));
  Examined examined;
  examined.subject = flags.series;
  examined.examination = minder::Examine(recording, {}, examiner.models, examiner.options);
  examined.now = EndOf(recording);
  return examined;
}

// A machine that differed and does so no more is told to people, not to the driver.
absl::StatusOr<Examined> ExamineJob(const MinderFlags& flags, const Examiner& examiner,
                                    client::JobClient* client, const std::function<bool()>& stop) {
  ASSIGN_OR_RETURN(JobSeries series, FetchSeries(client, flags.job_id, stop));
  Examined examined;
  examined.subject = absl::StrCat("job ", flags.job_id);
  examined.examination =
      minder::Examine(series.recording, series.groups, examiner.models, examiner.options);
  examined.now = EndOf(series.recording);
  std::move(series.notes.begin(), series.notes.end(),
            std::back_inserter(examined.examination.notes));
  const auto& verdict = examined.examination.verdict;
  if (!flags.report || !verdict.has_value() || !verdict->lasts) return examined;
  const auto job = client->ReportSuspect(ReportOf(examined, series.job));
  if (!job.ok()) {
    examined.action = absl::StrCat("could not be reported: ", job.status().message());
  } else {
    const control::v1::Suspicion& kept = job->suspicion();
    examined.action = kept.node_id() == verdict->machine
                          ? kept.action()
                          : absl::StrCat("suspects ", kept.node_id(), " already");
  }
  return examined;
}

void Print(const Examined& examined, const std::string& format) {
  const std::string text =
      format == "json" ? absl::StrCat(ExaminedJson(examined), "\n") : ExaminedText(examined);
  std::fwrite(text.data(), 1, text.size(), stdout);
  FlushOutput();
}

int RunCheck(const MinderFlags& flags) {
  if (!CheckOutputFormat(flags.format)) return kExitUsage;
  if (flags.job_id.empty() == flags.series.empty()) {
    return ReportError(absl::InvalidArgumentError(
        flags.job_id.empty() ? "expected a job's id, or --series FILE"
                             : "a job's id and --series exclude each other; give one of them"));
  }
  const auto examiner = Examiner::Create(flags);
  if (!examiner.ok()) return ReportError(examiner.status());
  if (!flags.series.empty()) {
    const auto examined = ExamineFile(flags, *examiner);
    if (!examined.ok()) return ReportError(examined.status());
    Print(*examined, flags.format);
    return kExitGood;
  }
  Interrupt interrupt;
  const auto stop = [&] { return interrupt.Count() > 0; };
  const auto client = Connect(flags.connection, stop);
  if (!client.ok()) return ReportError(client.status());
  const auto examined = ExamineJob(flags, *examiner, client->get(), stop);
  if (!examined.ok()) return ReportCallError(examined.status(), flags.connection);
  Print(*examined, flags.format);
  return kExitGood;
}

// A job that does not train now has no series, a driver that restarts cancels its calls and comes
// back, and one that has too much to do refuses some.
bool IsPassing(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsAborted(status) ||
         absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status) || absl::IsResourceExhausted(status);
}

// Looks once and prints it; returns false when the job has ended.
absl::StatusOr<bool> Look(const MinderFlags& flags, const Examiner& examiner,
                          client::JobClient* client, const std::function<bool()>& stop) {
  ASSIGN_OR_RETURN(const control::v1::Job job, client->Get(flags.job_id));
  if (IsTerminal(job.state())) return false;
  ASSIGN_OR_RETURN(const Examined examined, ExamineJob(flags, examiner, client, stop));
  Print(examined, flags.format);
  return true;
}

// Looks again and again until the job ends.
absl::Status Watch(const MinderFlags& flags, const Examiner& examiner, client::JobClient* client,
                   const std::function<bool()>& stop) {
  for (;;) {
    const auto looked = Look(flags, examiner, client, stop);
    if (looked.ok() && !*looked) return absl::OkStatus();
    if (!looked.ok()) {
      if (!IsPassing(looked.status())) return looked.status();
      const std::string why(looked.status().message());
      std::fprintf(stderr, "megascale: %s; looks again in %s\n", why.c_str(),
                   absl::FormatDuration(flags.every).c_str());
    }
    const absl::Duration end = base::RealClock().Monotonic() + flags.every;
    while (base::RealClock().Monotonic() < end) {
      if (stop()) return absl::OkStatus();
      absl::SleepFor(kInterruptInterval);
    }
  }
}

int RunWatch(MinderFlags flags) {
  if (!CheckOutputFormat(flags.format)) return kExitUsage;
  flags.report = !flags.quiet;
  if (flags.every < absl::Seconds(1)) {
    return ReportError(absl::InvalidArgumentError(
        absl::StrCat("--every ", absl::FormatDuration(flags.every), ": expected at least 1s")));
  }
  const auto examiner = Examiner::Create(flags);
  if (!examiner.ok()) return ReportError(examiner.status());
  Interrupt interrupt;
  const auto stop = [&] { return interrupt.Count() > 0 || OutputFailed(); };
  const auto client = Connect(flags.connection, stop);
  if (!client.ok()) return ReportError(client.status());
  const absl::Status watched = Watch(flags, *examiner, client->get(), stop);
  if (watched.ok() || stop()) return kExitGood;
  return ReportCallError(watched, flags.connection);
}

int ReportNoOutput() {
  return ReportError(absl::InvalidArgumentError("--out: is missing; expected a file to write"));
}

int RunRecord(const MinderFlags& flags) {
  if (flags.out.empty()) return ReportNoOutput();
  const OutputKind recording = KindThatBegins("a recording", "machine,seconds");
  if (const absl::Status replaces = CheckReplaces("--out", flags.out, recording, flags.force);
      !replaces.ok()) {
    return ReportError(replaces);
  }
  Interrupt interrupt;
  const auto stop = [&] { return interrupt.Count() > 0; };
  const auto client = Connect(flags.connection, stop);
  if (!client.ok()) return ReportError(client.status());
  const auto series = FetchSeries(client->get(), flags.job_id, stop);
  if (!series.ok()) return ReportCallError(series.status(), flags.connection);
  for (const std::string& note : series->notes) {
    std::fprintf(stderr, "megascale: %s\n", note.c_str());
  }
  const absl::Status written =
      WriteOutputFile(flags.out, minder::FormatRecording(series->recording));
  return written.ok() ? kExitGood : ReportError(base::Annotate(written, "--out"));
}

int RunTrain(const MinderFlags& flags) {
  if (flags.out.empty()) return ReportNoOutput();
  if (flags.epochs < 1 || flags.epochs > 10'000 || flags.seed < 0) {
    return ReportError(absl::InvalidArgumentError(
        "--epochs, --seed: expected 1 to 10000 epochs and a seed from 0"));
  }
  absl::Status keeps = CheckKeepsInputs("--out", flags.out, flags.recordings);
  const OutputKind models_file = KindThatBegins("models", "{\"format\": ");
  keeps.Update(CheckReplaces("--out", flags.out, models_file, flags.force));
  if (!keeps.ok()) return ReportError(keeps);
  std::vector<minder::Recording> recordings;
  for (const std::string& path : flags.recordings) {
    auto recording = ReadRecording(path);
    if (!recording.ok()) return ReportError(recording.status());
    recordings.push_back(*std::move(recording));
  }
  minder::TrainingOptions options;
  options.model.epochs = static_cast<int>(flags.epochs);
  options.model.seed = static_cast<uint64_t>(flags.seed);
  options.set.seed = options.model.seed;
  options.num_threads = Threads();
  auto models = minder::TrainModels(recordings, MachineMetrics(), options);
  if (!models.ok()) return ReportError(models.status());
  models->made_by = absl::StrCat("megascale minder train ", absl::StrJoin(flags.recordings, " "),
                                 " --epochs ", flags.epochs, " --seed ", flags.seed);
  const absl::Status written = WriteOutputFile(flags.out, minder::FormatModels(*models));
  return written.ok() ? kExitGood : ReportError(base::Annotate(written, "--out"));
}

void AddLookOptions(Command* command, MinderFlags* flags) {
  command->Path("--models", &flags->models,
                "models that `megascale minder train` made (default: those in this program)");
  command->Duration("--continuity", &flags->continuity,
                    "how long a machine must differ without a break");
  command->Text("--method", &flags->method,
                "minder; or what it was compared with: raw, concatenated, one-model, mahalanobis, "
                "no-continuity, one-candidate");
  AddOutputOption(command, &flags->format);
}

void AddWatch(Command* minder) {
  auto flags = std::make_shared<MinderFlags>();
  Command* command =
      minder->Add("watch", "looks at a job's machines until it ends, and tells the driver");
  command->Positional("JOB", &flags->job_id, "the job's id");
  command->Duration("--every", &flags->every, "time from one look to the next");
  command->Flag("--only-tell", &flags->quiet, "print verdicts, and report nothing to the driver");
  AddLookOptions(command, flags.get());
  AddRetryOption(command, &flags->connection);
  AddConnectionOptions(command, &flags->connection);
  command->Details(
      "Runs beside the driver, on any machine. Each look fetches 15 minutes of each machine's "
      "metrics and compares the machines that hold the same pipeline stages. A machine that "
      "differs now, and has for four minutes, becomes the job's suspicion: what follows is the "
      "job's fault.on_suspect (tell, or evict within the driver's limits). Prints a verdict for "
      "each look; with -o json one object a line.");
  command->Examples(
      "megascale minder watch fortunes-1a2b3c4d\n"
      "megascale minder watch fortunes-1a2b3c4d --every 2m --only-tell -o json");
  command->Runs([flags] { return RunWatch(*flags); });
}

void AddCheck(Command* minder) {
  auto flags = std::make_shared<MinderFlags>();
  Command* command = minder->Add("check", "looks once at a job's machines, or at a recording");
  command->OptionalPositional("JOB", &flags->job_id, "the job's id");
  command->Path("--series", &flags->series, "a recording to look at in place of a job");
  command->Flag("--report", &flags->report, "tell the driver what differs now");
  AddLookOptions(command, flags.get());
  AddRetryOption(command, &flags->connection);
  AddConnectionOptions(command, &flags->connection);
  command->Details("The exit code is 0 whatever the verdict. docs/minder.md explains the numbers.");
  command->Examples(
      "megascale minder check fortunes-1a2b3c4d\n"
      "megascale minder check --series machines.csv --method raw -o json");
  command->Runs([flags] { return RunCheck(*flags); });
}

void AddRecord(Command* minder) {
  auto flags = std::make_shared<MinderFlags>();
  Command* command =
      minder->Add("record", "writes the last 15 minutes of a job's machines to a file");
  command->Positional("JOB", &flags->job_id, "the job's id");
  command->Path("--out", &flags->out, "the file, in CSV; -: standard output");
  AddForceOption(command, &flags->force);
  AddRetryOption(command, &flags->connection);
  AddConnectionOptions(command, &flags->connection);
  command->Examples("megascale minder record fortunes-1a2b3c4d --out normal-1.csv");
  command->Runs([flags] { return RunRecord(*flags); });
}

void AddTrain(Command* minder) {
  auto flags = std::make_shared<MinderFlags>();
  Command* command = minder->Add("train", "trains the models of all metrics on normal recordings");
  command->Positionals("FILE", &flags->recordings, "recordings of jobs without faults");
  command->Path("--out", &flags->out, "the file for the models");
  AddForceOption(command, &flags->force);
  command->Integer("--epochs", &flags->epochs, "how often the windows are gone through");
  command->Integer("--seed", &flags->seed, "the same seed and recordings give the same models");
  command->Details(
      "A recording may have metrics of other programs, such as those of GPUs: a column each, with "
      "any name. They are looked at after the agents' own, in the order of their columns.");
  command->Examples(
      "megascale minder train normal-1.csv normal-2.csv --out models.json\n"
      "megascale minder check fortunes-1a2b3c4d --models models.json");
  command->Runs([flags] { return RunTrain(*flags); });
}

}  // namespace

void AddMinderCommand(CommandLine* line) {
  Command* minder = line->Add("minder", "finds the machine of a job that differs from the others");
  AddWatch(minder);
  AddCheck(minder);
  AddRecord(minder);
  AddTrain(minder);
}

}  // namespace megascale::cli
