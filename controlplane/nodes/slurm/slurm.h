// What this program asks of Slurm, 20.11 and newer, through its commands: every output has a format
// of our own with '|' between the fields, the free text last. Names and texts of Slurm are checked
// or made printable here. Threads: one.
//
// Errors of all calls: Unavailable - the controller does not answer, so nothing is known; NotFound
// - this machine has no Slurm; FailedPrecondition - Slurm refuses, with its reason.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controlplane/nodes/slurm/run_command.h"

namespace megascale::nodes {

struct SlurmJob {
  std::string id = {};
  std::string state = {};  // Slurm's short form: "PD", "CF", "R", "CG" …
  std::string name = {};
  absl::Duration time_left = absl::InfiniteDuration();
  std::string comment = {};
  std::string node_list = {};  // as Slurm writes it: "n[1-3]"; empty: it has none
  std::string reason = {};     // one line: why it is pending
};

struct SlurmNode {
  std::string name = {};
  std::string state = {};   // without flags: "allocated", "draining", "down" …
  std::string reason = {};  // one line
};

class Slurm {
 public:
  using Run = std::function<absl::StatusOr<Finished>(const std::vector<std::string>& words,
                                                     absl::Duration timeout)>;
  explicit Slurm(Run run = RunCommand) : run_(std::move(run)) {}

  // Asks whether Slurm would take such a job now or later, without submitting it.
  absl::Status Check(const std::vector<std::string>& options, const std::string& script);
  // Submits the script with these options of sbatch; returns the job's id.
  absl::StatusOr<std::string> Submit(const std::vector<std::string>& options,
                                     const std::string& script);
  // Returns this user's jobs of these names that have not ended.
  absl::StatusOr<std::vector<SlurmJob>> Jobs(const std::vector<std::string>& names);
  // Returns the nodes by name.
  absl::StatusOr<std::map<std::string, SlurmNode>> Nodes(const std::string& node_list);
  // Returns the names in a list such as "n[1-3,7]".
  absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& node_list);
  // Ends a job; with `pending_only`, one that has not started. One that has ended is no error.
  absl::Status Cancel(const std::string& job_id, bool pending_only);
  // Sends SIGTERM to all processes of a job's steps; with `batch`, of its batch script, too.
  absl::Status Terminate(const std::string& job_id, bool batch);
  // The time between SIGTERM and SIGKILL when a job is cancelled or at its end.
  absl::StatusOr<absl::Duration> KillWait();

 private:
  absl::StatusOr<std::string> Call(const std::vector<std::string>& words);
  absl::Status Signal(const std::string& job_id, const std::vector<std::string>& options);

  Run run_;
  std::map<std::string, std::vector<std::string>> names_;  // what NamesIn answered
};

// True for a name that may stand on a command line and be a node id: letters, digits, '-', '_' and
// '.', beginning with a letter or digit, at most 64.
bool IsNodeName(absl::string_view name);
// True for "123" and "123_4".
bool IsJobNumber(absl::string_view id);
// Reads "1-02:03:04", "02:03:04", "03:04" or "UNLIMITED" (infinite). Errors: InvalidArgument.
absl::StatusOr<absl::Duration> ParseTimeLeft(absl::string_view text);
// Returns why a pending job will never start by itself, as Slurm's word; "": it may start.
std::string NeverStarts(const SlurmJob& job);

}  // namespace megascale::nodes
