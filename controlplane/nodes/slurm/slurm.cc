#include "controlplane/nodes/slurm/slurm.h"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"

namespace megascale::nodes {
namespace {

// Slurm's commands themselves give up after about 9 s.
constexpr absl::Duration kCallMax = absl::Seconds(30);
constexpr size_t kNodeNameMax = 64;
constexpr size_t kTextBytesMax = 160;
constexpr size_t kNamesKept = 1000;

bool IsNoAnswer(absl::string_view error) {
  for (const absl::string_view text : {"Unable to contact slurm controller", "Socket timed out",
                                       "slurm_load_jobs error: Unexpected", "Connection refused",
                                       "Zero Bytes were transmitted", "Transport endpoint"}) {
    if (absl::StrContains(error, text)) return true;
  }
  return false;
}

// Returns the first line that says something, without the command's name before it.
std::string FirstLine(absl::string_view error) {
  for (absl::string_view line : absl::StrSplit(error, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    for (const absl::string_view prefix :
         {"sbatch: ", "srun: ", "squeue: ", "scancel: ", "scontrol: ", "sinfo: ", "error: "}) {
      line = absl::StripPrefix(line, prefix);
    }
    if (!line.empty()) return base::Printable(line, kTextBytesMax);
  }
  return "it gave no reason";
}

// Splits a line into `count` fields; the last one may have more '|'.
std::vector<std::string> Fields(absl::string_view line, int count) {
  return absl::StrSplit(line, absl::MaxSplits('|', count - 1));
}

std::string Text(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  if (text == "(null)" || text == "none" || text == "None") return "";
  return base::Printable(text, kTextBytesMax);
}

}  // namespace

bool IsNodeName(absl::string_view name) {
  if (name.empty() || name.size() > kNodeNameMax) return false;
  if (!absl::ascii_isalnum(static_cast<unsigned char>(name[0]))) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  });
}

bool IsJobNumber(absl::string_view id) {
  if (id.empty() || id.size() > 32) return false;
  return std::all_of(id.begin(), id.end(), [](char c) {
    return absl::ascii_isdigit(static_cast<unsigned char>(c)) || c == '_' || c == '+';
  });
}

absl::StatusOr<absl::Duration> ParseTimeLeft(absl::string_view text) {
  if (text == "UNLIMITED" || text == "NOT_SET") return absl::InfiniteDuration();
  const absl::Status bad = absl::InvalidArgumentError(absl::StrCat(
      "time '", base::Printable(text, 40), "' of Slurm: expected [DAYS-][HOURS:]MINUTES:SECONDS"));
  int64_t days = 0;
  const size_t dash = text.find('-');
  absl::string_view clock = text;
  if (dash != absl::string_view::npos) {
    if (!absl::SimpleAtoi(text.substr(0, dash), &days) || days < 0) return bad;
    clock = text.substr(dash + 1);
  }
  const std::vector<absl::string_view> parts = absl::StrSplit(clock, ':');
  if (parts.size() < 2 || parts.size() > 3) return bad;
  int64_t seconds = 0;
  for (const absl::string_view part : parts) {
    int64_t value = 0;
    if (!absl::SimpleAtoi(part, &value) || value < 0 || value > 1'000'000) return bad;
    seconds = seconds * 60 + value;
  }
  return absl::Hours(24) * days + absl::Seconds(seconds);
}

std::string NeverStarts(const SlurmJob& job) {
  if (job.state != "PD") return "";
  static constexpr std::array<absl::string_view, 14> kForGood = {
      "PartitionNodeLimit", "PartitionTimeLimit",
      "PartitionInactive",  "PartitionDown",
      "BadConstraints",     "JobHeldAdmin",
      "JobHeldUser",        "InvalidAccount",
      "InvalidQOS",         "DependencyNeverSatisfied",
      "AccountNotAllowed",  "QOSNotAllowed",
      "JobLaunchFailure",   "launch failed"};
  for (const absl::string_view word : kForGood) {
    if (absl::StrContains(job.reason, word)) return job.reason;
  }
  // AssocMaxNodePerJobLimit, QOSMaxCpuPerJobLimit …: limits of one job, which no end of another
  // job changes.
  const bool is_limit = absl::StartsWith(job.reason, "AssocMax") ||
                        absl::StartsWith(job.reason, "QOSMax") ||
                        absl::StartsWith(job.reason, "MaxNode");
  return is_limit && absl::StrContains(job.reason, "PerJob") ? job.reason : "";
}

absl::StatusOr<std::string> Slurm::Call(const std::vector<std::string>& words) {
  auto finished = run_(words, kCallMax);
  if (absl::IsDeadlineExceeded(finished.status())) {
    return absl::UnavailableError(finished.status().message());
  }
  if (absl::IsNotFound(finished.status())) {
    return absl::NotFoundError(absl::StrCat(
        words[0], " is not on this machine's PATH: run this where Slurm's commands are"));
  }
  if (!finished.ok()) return finished.status();
  if (finished->exit_code == 0) return std::move(finished->out);
  if (IsNoAnswer(finished->err)) {
    return absl::UnavailableError(
        absl::StrCat("Slurm does not answer: ", FirstLine(finished->err)));
  }
  return absl::FailedPreconditionError(absl::StrCat(words[0], ": ", FirstLine(finished->err)));
}

absl::Status Slurm::Check(const std::vector<std::string>& options, const std::string& script) {
  std::vector<std::string> words = {"sbatch", "--test-only"};
  words.insert(words.end(), options.begin(), options.end());
  words.push_back(script);
  return Call(words).status();
}

absl::StatusOr<std::string> Slurm::Submit(const std::vector<std::string>& options,
                                          const std::string& script) {
  std::vector<std::string> words = {"sbatch", "--parsable"};
  words.insert(words.end(), options.begin(), options.end());
  words.push_back(script);
  ASSIGN_OR_RETURN(const std::string out, Call(words));
  // "12" or "12;cluster".
  const std::string id(
      absl::StripAsciiWhitespace(absl::string_view(out).substr(0, out.find_first_of(";\n"))));
  if (!IsJobNumber(id)) {
    return absl::FailedPreconditionError(
        absl::StrCat("sbatch: expected a job's number, found '", base::Printable(id, 40), "'"));
  }
  return id;
}

absl::StatusOr<std::vector<SlurmJob>> Slurm::Jobs(const std::vector<std::string>& names) {
  ASSIGN_OR_RETURN(
      const std::string out,
      Call({"squeue", "--noheader", "--array", absl::StrCat("--user=", ::geteuid()),
            absl::StrCat("--name=", absl::StrJoin(names, ",")), "--format=%i|%t|%j|%L|%k|%N|%r"}));
  std::vector<SlurmJob> jobs;
  for (const absl::string_view line : absl::StrSplit(out, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> fields = Fields(line, 7);
    SlurmJob job;
    if (fields.size() != 7 || !IsJobNumber(fields[0])) continue;
    job.id = fields[0];
    job.state = fields[1];
    job.name = fields[2];
    job.time_left = ParseTimeLeft(fields[3]).value_or(absl::InfiniteDuration());
    job.comment = Text(fields[4]);
    job.node_list = fields[5];
    job.reason = Text(fields[6]);
    jobs.push_back(std::move(job));
  }
  return jobs;
}

absl::StatusOr<std::map<std::string, SlurmNode>> Slurm::Nodes(const std::string& node_list) {
  std::map<std::string, SlurmNode> nodes;
  if (node_list.empty()) return nodes;
  ASSIGN_OR_RETURN(const std::string out,
                   Call({"sinfo", "--noheader", "--Node", absl::StrCat("--nodes=", node_list),
                         "--format=%N|%T|%E"}));
  for (const absl::string_view line : absl::StrSplit(out, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> fields = Fields(line, 3);
    if (fields.size() != 3 || !IsNodeName(fields[0])) continue;
    SlurmNode node;
    node.name = fields[0];
    node.state = fields[1].substr(0, fields[1].find_first_of("*~#!%$@^-+"));
    node.reason = Text(fields[2]);
    nodes[node.name] = std::move(node);
  }
  return nodes;
}

absl::StatusOr<std::vector<std::string>> Slurm::NamesIn(const std::string& node_list) {
  if (node_list.empty()) return std::vector<std::string>();
  if (const auto known = names_.find(node_list); known != names_.end()) return known->second;
  ASSIGN_OR_RETURN(const std::string out, Call({"scontrol", "show", "hostnames", node_list}));
  std::vector<std::string> names;
  for (const absl::string_view line : absl::StrSplit(out, '\n', absl::SkipEmpty())) {
    if (!IsNodeName(line)) {
      return absl::FailedPreconditionError(
          absl::StrCat("Slurm names a node '", base::Printable(line, 80),
                       "'; expected letters, digits, '-', '_' and '.', at most ", kNodeNameMax));
    }
    names.emplace_back(line);
  }
  if (names_.size() >= kNamesKept) names_.clear();
  names_[node_list] = names;
  return names;
}

absl::Status Slurm::Cancel(const std::string& job_id, bool pending_only) {
  return Signal(job_id, pending_only ? std::vector<std::string>{"--state=PENDING"}
                                     : std::vector<std::string>());
}

absl::Status Slurm::Terminate(const std::string& job_id, bool batch) {
  std::vector<std::string> options = {"--signal=TERM"};
  if (batch) options.push_back("--full");
  return Signal(job_id, options);
}

absl::Status Slurm::Signal(const std::string& job_id, const std::vector<std::string>& options) {
  if (!IsJobNumber(job_id)) return absl::InvalidArgumentError("not a job's number");
  std::vector<std::string> words = {"scancel", "--quiet"};
  words.insert(words.end(), options.begin(), options.end());
  words.push_back(job_id);
  const absl::Status called = Call(words).status();
  // What it may say is that the job has ended.
  return absl::IsFailedPrecondition(called) ? absl::OkStatus() : called;
}

absl::StatusOr<absl::Duration> Slurm::KillWait() {
  ASSIGN_OR_RETURN(const std::string out, Call({"scontrol", "show", "config"}));
  for (const absl::string_view line : absl::StrSplit(out, '\n')) {
    if (!absl::StartsWith(line, "KillWait ")) continue;
    const absl::string_view value = line.substr(line.find('=') + 1);
    int64_t seconds = 0;
    const std::vector<absl::string_view> words = absl::StrSplit(value, ' ', absl::SkipEmpty());
    if (!words.empty() && absl::SimpleAtoi(words[0], &seconds)) return absl::Seconds(seconds);
  }
  return absl::FailedPreconditionError("scontrol show config: has no KillWait");
}

}  // namespace megascale::nodes
