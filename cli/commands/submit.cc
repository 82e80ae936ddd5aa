#include "cli/commands/submit.h"

#include <cstdio>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cli/command_line/report.h"
#include "cli/job_file/job_file.h"
#include "cli/view/live_view.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/numerics.h"
#include "runtime/job/names.h"

namespace megascale::cli {
namespace {

constexpr size_t kShownBytesMax = 60;
constexpr size_t kShownLineMax = 4096;

absl::Status Mistake(absl::string_view option, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(option, ": ", why));
}

// The machines that train may see another folder at this path than this machine, or have a newer
// program: their preflight decides then.
absl::Status CheckFrom(const std::string& path, JobPlace place) {
  RETURN_IF_ERROR(job::CheckPath("--from", path));
  const auto manifest = checkpoint::ReadManifest(path);
  const absl::Status& read = manifest.status();
  if (!read.ok() && !absl::IsDataLoss(read) && place == JobPlace::kElsewhere) return {};
  if (absl::IsNotFound(read) || absl::IsPermissionDenied(read)) {
    return Mistake("--from", read.message());
  }
  if (!read.ok()) return base::Annotate(read, "--from");
  if (manifest->kind() != checkpoint::v1::CHECKPOINT_KIND_WEIGHTS) return absl::OkStatus();
  return Mistake("--from", absl::StrCat(path,
                                        ": holds weights alone, no optimizer state to go on "
                                        "from; begin with them by model.from"));
}

// A checkpoint may be named on purpose that is another job's. Says nothing of what is no
// checkpoint, or cannot be read on this machine.
void SayWhose(absl::string_view option, const std::string& path) {
  if (path.empty()) return;
  const auto manifest = checkpoint::ReadManifest(path);
  if (!manifest.ok() || manifest->job_id().empty()) return;
  std::fprintf(stderr, "%s\n",
               base::Printable(absl::StrCat(option, ": begins with step ", manifest->step(),
                                            " of job ", manifest->job_id(), ", ", path),
                               kShownLineMax)
                   .c_str());
}

}  // namespace

void AddJobOptions(Command* command, JobFlags* flags) {
  command->PathPositional("FILE", &flags->file, "job file (YAML); examples/ has some");
  command->Repeated("--set", &flags->overrides,
                    "FIELD=VALUE instead of the file's, such as train.steps=100");
  command->Words(
      "--data", &flags->data_files,
      "files and directories to train on instead of the file's; relative ones are taken from the "
      "current directory");
  command->Text("--tokenizer", &flags->tokenizer,
                "data.tokenizer instead of the file's: a tokenizer.json, a SentencePiece .model, a "
                "folder with one of them, or bytes");
  command->Text("--json-field", &flags->json_field,
                "data.json_field instead of the file's: the data is JSON Lines, and this field of "
                "a line is a document");
  command->Flag("--skip-bad", &flags->skip_bad,
                "count and leave out bad lines, and bytes that are not UTF-8");
  command->Name("--job-id", &flags->job_id,
                "the job's id (default: its name, 8 random hex digits)");
  command->Path("--from", &flags->from_checkpoint, "checkpoint directory to start from");
  command->Repeated(
      "--allow-changed", &flags->allow_changed,
      "what may differ from that checkpoint: data, numerics areas, or all; with commas");
  command->Flag("--take-over", &flags->take_over,
                "take the checkpoint directory over from the job that owns it, even one of another "
                "driver; its checkpoints are moved aside");
}

absl::Status EndedBefore(const control::v1::Job& job) {
  const absl::Time ended_at = absl::FromUnixSeconds(job.ended_at().seconds());
  return absl::AlreadyExistsError(
      absl::StrCat("job ", job.job_id(), ": exists already, ", StateName(job.state()), " since ",
                   absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", ended_at, absl::UTCTimeZone())));
}

bool IsOlder(const control::v1::Job& job, absl::Duration running_for) {
  return absl::Seconds(job.submitted_age_seconds()) > running_for;
}

std::string MakeJobId(const std::string& name) {
  std::random_device random;
  return absl::StrFormat("%s-%08x", name, random());
}

absl::StatusOr<control::v1::SubmitJobRequest> MakeSubmitRequest(const JobFlags& flags,
                                                                JobPlace place) {
  control::v1::SubmitJobRequest request;
  ASSIGN_OR_RETURN(*request.mutable_spec(), LoadJobFile(flags.file, {.overrides = flags.overrides,
                                                                     .data_files = flags.data_files,
                                                                     .tokenizer = flags.tokenizer,
                                                                     .json_field = flags.json_field,
                                                                     .skip_bad = flags.skip_bad}));
  request.set_job_id(flags.job_id.empty() ? MakeJobId(request.spec().name()) : flags.job_id);
  RETURN_IF_ERROR(job::CheckJobId(request.job_id()));
  request.set_take_over(flags.take_over);
  request.set_from_checkpoint(AbsolutePath(flags.from_checkpoint));
  if (!request.from_checkpoint().empty()) {
    RETURN_IF_ERROR(CheckFrom(request.from_checkpoint(), place));
    SayWhose("--from", request.from_checkpoint());
  } else if (!flags.allow_changed.empty()) {
    return Mistake("--allow-changed",
                   "says what may differ from a checkpoint; give that checkpoint by --from");
  }
  SayWhose("model.from", request.spec().model().from());
  for (const std::string& words : flags.allow_changed) {
    if (!base::IsUtf8(words)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--allow-changed: '", base::Printable(words, kShownBytesMax),
                       "' is not text; expected data, numerics areas, or all"));
    }
    for (const absl::string_view word : absl::StrSplit(words, ',', absl::SkipEmpty())) {
      request.add_allow_changed(std::string(word));
      RETURN_IF_ERROR(checkpoint::CheckAllowed("--allow-changed", word));
    }
  }
  return request;
}

}  // namespace megascale::cli
