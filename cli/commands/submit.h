// The common part of `submit` and `local`: reads the job file that the command line names, and
// makes the request to the driver.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/command_line/command_line.h"
#include "proto/control.pb.h"

namespace megascale::cli {

struct JobFlags {
  std::string file;
  std::vector<std::string> overrides;
  std::vector<std::string> data_files;
  std::string tokenizer;   // instead of the file's data.tokenizer; empty: the file's
  std::string json_field;  // instead of the file's data.json_field; empty: the file's
  bool skip_bad = false;   // sets data.skip_bad
  std::string job_id;      // empty: made from the job's name
  std::string from_checkpoint;
  std::vector<std::string> allow_changed;  // each "data,numerics,…"
  bool take_over = false;
};

// Adds FILE, --set, --data and how to read it, --job-id, --from and --allow-changed.
void AddJobOptions(Command* command, JobFlags* flags);

// Where a job runs: on other machines, whose files this machine may not see, or on this machine.
enum class JobPlace { kElsewhere, kHere };

// Reads and checks the job file, and --from as far as this machine sees it. Errors:
// InvalidArgument; those of a damaged manifest.
absl::StatusOr<control::v1::SubmitJobRequest> MakeSubmitRequest(const JobFlags& flags,
                                                                JobPlace place);

// Returns an error which says that the job had ended before this command submitted it again.
absl::Status EndedBefore(const control::v1::Job& job);

// True if the job was submitted before this command began, and so not by an earlier try of this
// command whose answer was lost.
bool IsOlder(const control::v1::Job& job, absl::Duration running_for);

// Returns "<name>-<8 random hexadecimal digits>".
std::string MakeJobId(const std::string& name);

}  // namespace megascale::cli
