#include "tests/chaos/calm_run.h"

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "runtime/checkpoint/directory.h"
#include "tests/e2e/cluster.h"

namespace megascale::chaos {
namespace {

// Trains further than requested, because the next run with faults may get further.
constexpr int64_t kStepsBeyond = 60;

}  // namespace

std::vector<std::string> JobFields(const ChaosJob& job) {
  std::vector<std::string> fields = {
      "train.steps=1000000",
      // Only this limit finds a process that is stopped before its first heartbeat.
      "fault.start_timeout=20s", "fault.restart_backoff=100ms",
      // Several faults may hit the same start.
      "fault.max_restarts_without_progress=10"};
  fields.insert(fields.end(), job.fields.begin(), job.fields.end());
  return fields;
}

std::vector<std::string> LossesUpTo(const std::vector<std::string>& losses, int64_t step) {
  std::vector<std::string> upto;
  for (const std::string& line : losses) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    int64_t of = 0;
    if (absl::SimpleAtoi(words[0], &of) && of <= step) upto.push_back(line);
  }
  return upto;
}

Ending CalmRun::At(int64_t step) {
  if (endings_.count(step) == 0) TrainTo(step);
  const auto found = endings_.find(step);
  return found == endings_.end() ? Ending() : found->second;
}

void CalmRun::TrainTo(int64_t step) {
  e2e::Cluster cluster;
  cluster.StartDriver();
  for (int i = 0; i < kNumAgents; ++i) cluster.StartAgent(i, kSlots);
  std::vector<std::string> fields = JobFields(job_);
  fields.push_back("checkpoint.keep=1000000");
  cluster.Submit(kJobId, fields);
  const int64_t last = is_shared_ ? step + kStepsBeyond : step;
  e2e::WaitUntil([&] { return cluster.Status(kJobId).last_checkpoint().step() >= last; },
                 kEndSeconds);
  cluster.Megascale({"cancel", kJobId});
  cluster.WaitForEnd(kJobId, kEndSeconds);
  const std::vector<std::string> losses = cluster.LossLog(kJobId);
  const auto complete = checkpoint::ListCheckpoints(cluster.checkpoints(kJobId));
  if (!complete.ok()) return;
  for (const auto& found : *complete) {
    if (!is_shared_ && found.step() != step) continue;
    const auto digest = cluster.Megascale({"checkpoint", "digest", found.directory()});
    endings_[found.step()] = {found.step(), std::string(absl::StripAsciiWhitespace(digest.out)),
                              LossesUpTo(losses, found.step())};
  }
}

}  // namespace megascale::chaos
