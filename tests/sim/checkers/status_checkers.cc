#include "tests/sim/checkers/status_checkers.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "controlplane/driver/storage/loss_line.h"
#include "runtime/job/evaluation.h"
#include "tests/sim/worker_process.h"

namespace megascale::sim {

// --- StatusWasTrue ----------------------------------------------------------------------------

void StatusChecker::OnLoaded(const ProcessName& process, int64_t step) {
  loaded_[{process.job_id, process.attempt}].insert(process.rank);
}

void StatusChecker::OnStepCompleted(const ProcessName& process, int64_t step) {
  int64_t& highest = completed_[process.job_id];
  highest = std::max(highest, step);
}

void StatusChecker::OnStatus(const control::Job& job, const DriverState& durable) {
  const std::string lie = FindLie(job, durable);
  if (!lie.empty()) {
    world_.Violate("StatusWasTrue", absl::StrCat("job ", job.job_id(), " was shown as ",
                                                 control::JobState_Name(job.state()), ": ", lie));
  }
  shown_[job.job_id()] = job;
}

std::string StatusChecker::FindLie(const control::Job& job, const DriverState& durable) {
  const JobRecord* record = driver::FindJob(durable, job.job_id());
  if (record == nullptr) return "it is not durable";
  if (record->state() != job.state() || record->reason() != job.reason() ||
      record->attempt() != job.attempt() || !absl::StartsWith(job.message(), record->message())) {
    return absl::StrCat("durable is ", control::JobState_Name(record->state()), " ",
                        record->reason(), ", attempt ", record->attempt());
  }
  // Whether it is guilty is checked once it is durable (RecoveryHasACause).
  if (job.culprit().SerializeAsString() != record->culprit().SerializeAsString()) {
    return absl::StrCat("it names ", job.culprit().ShortDebugString(), "; durable is ",
                        record->culprit().ShortDebugString());
  }
  const auto before = shown_.find(job.job_id());
  if (before != shown_.end()) {
    const control::Job& old = before->second;
    if (old.attempt() > job.attempt()) return absl::StrCat("attempt ", old.attempt(), " before");
    if (old.has_ended_at() && old.state() != job.state()) return "it had ended otherwise";
    if (old.last_checkpoint().step() > job.last_checkpoint().step()) {
      return absl::StrCat("the checkpoint of step ", old.last_checkpoint().step(), " before");
    }
  }
  const int64_t given =
      record->submitted().from_checkpoint().empty() ? 0 : CheckpointStorage::kGivenStep;
  int64_t& completed = completed_[job.job_id()];
  completed = std::max(completed, given);
  return FindLieAboutProgress(job);
}

std::string StatusChecker::FindLieAboutProgress(const control::Job& job) {
  if (job.last_step() > completed_[job.job_id()]) {
    return absl::StrCat("step ", job.last_step(), ", but no rank went beyond ",
                        completed_[job.job_id()]);
  }
  if (job.state() == control::JOB_STATE_RUNNING) {
    const size_t num_loaded = loaded_[{job.job_id(), job.attempt()}].size();
    if (num_loaded < static_cast<size_t>(job.ranks_size())) {
      return absl::StrCat("only ", num_loaded, " of ", job.ranks_size(), " ranks had loaded");
    }
  }
  if (job.has_last_checkpoint()) {
    const auto* directory = storage_.Find(job.last_checkpoint().directory());
    if (directory == nullptr || !directory->complete) {
      return absl::StrCat(job.last_checkpoint().directory(), " is not on storage");
    }
  }
  if (job.state() == control::JOB_STATE_SUCCEEDED &&
      job.last_checkpoint().step() < job.spec().train().steps()) {
    return absl::StrCat("its last checkpoint is of step ", job.last_checkpoint().step(), " of ",
                        job.spec().train().steps());
  }
  return "";
}

// --- LossLogIsWhole ---------------------------------------------------------------------------

// Lines that were damaged, or could not be written for too long, are lost. All others are in order,
// each step at most once.
void LossLogChecker::CheckDamaged(const JobRecord& job) {
  const std::string text = driver_.LossLogOf(driver::JobId(job));
  int64_t newest = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const auto record = driver::FromLossLine(line);
    if (!record.ok()) continue;
    const int64_t step = record->step();
    if (step > newest && step <= job.submitted().spec().train().steps()) {
      newest = step;
      continue;
    }
    return world_.Violate("LossLogIsWhole",
                          absl::StrCat("job ", driver::JobId(job), ": step ", step,
                                       " follows step ", newest, " in its damaged loss log"));
  }
}

// --- AgesAreTrue --------------------------------------------------------------------------------

void AgeChecker::OnReport(const std::string& node_id, const agent::ActualState& report) {
  constexpr absl::Duration kErrorMax = absl::Seconds(1);
  for (const auto& job : report.jobs()) {
    for (const auto& rank : job.ranks()) {
      const auto progressed =
          world_.progressed.find({node_id, job.job_id(), job.attempt(), rank.status().rank()});
      if (rank.state() != agent::ActualRank::STATE_RUNNING || progressed == world_.progressed.end())
        continue;
      const absl::Duration real = world_.timeline.now() - progressed->second;
      const absl::Duration told = absl::Seconds(rank.status().progress_age_seconds());
      if (told + kErrorMax >= real) continue;
      world_.Violate(
          "AgesAreTrue",
          absl::StrCat("rank ", rank.status().rank(), " of ", job.job_id(), " on ", node_id,
                       " made progress ", absl::FormatDuration(real),
                       " ago, and is said to have done so ", absl::FormatDuration(told), " ago"));
    }
  }
}

void LossLogChecker::OnEnd(const DriverState& durable) {
  for (const JobRecord& job : durable.jobs()) {
    if (job.state() != control::JOB_STATE_SUCCEEDED) continue;
    if (driver_.IsLossLogCorrupt(driver::JobId(job)) || driver_.MayLackSteps()) {
      CheckDamaged(job);
      continue;
    }
    const std::string text = driver_.LossLogOf(driver::JobId(job));
    const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
    int64_t expected =
        job.submitted().from_checkpoint().empty() ? 0 : CheckpointStorage::kGivenStep;
    for (const std::string& line : lines) {
      if (absl::StartsWith(line, absl::StrCat("{\"step\":", ++expected, ","))) continue;
      return world_.Violate("LossLogIsWhole", absl::StrCat("job ", driver::JobId(job), ": line ",
                                                           expected, " of its loss log is ", line));
    }
    CheckEvaluations(job, lines);
    if (expected == job.submitted().spec().train().steps()) continue;
    world_.Violate("LossLogIsWhole",
                   absl::StrCat("job ", driver::JobId(job), ": its loss log has step ", expected,
                                " as its last step, of ", job.submitted().spec().train().steps()));
  }
}

// Attempts do not evaluate while the driver or one of their agents is of an older version.
void LossLogChecker::CheckEvaluations(const JobRecord& job, const std::vector<std::string>& lines) {
  const auto& spec = job.submitted().spec();
  const bool are_all_new = world_.old_agents.empty() && !world_.old_driver;
  for (const std::string& line : lines) {
    const auto record = driver::FromLossLine(line);
    if (!record.ok()) continue;  // LossLogIsWhole
    const bool is_due = job::IsEvaluated(spec, record->step());
    const bool is_there = record->has_held_out_loss();
    const bool is_right =
        !is_there || std::abs(record->held_out_loss() - HeldOutLossAfter(record->step())) < 1e-9;
    if (is_right && (is_there ? is_due : !is_due || !are_all_new)) continue;
    return world_.Violate(
        "EvaluationsAreWhole",
        absl::StrCat("job ", driver::JobId(job), ": line ", line,
                     is_due ? ", and the step is" : ", and the step is not", " evaluated"));
  }
  const bool wants_best = spec.checkpoint().keep_best() && job.has_lowest_held_out();
  const agent::StoredManifest& best = job.best_checkpoint();
  const bool is_kept =
      std::any_of(job.committed().begin(), job.committed().end(), [&best](const auto& manifest) {
        return manifest.step() == best.step() && manifest.attempt() == best.attempt();
      });
  if (!wants_best || (job.has_best_checkpoint() && is_kept)) return;
  world_.Violate("EvaluationsAreWhole",
                 absl::StrCat("job ", driver::JobId(job), ": the checkpoint of step ", best.step(),
                              ", which is the best, is not kept"));
}

}  // namespace megascale::sim
