// metrics: shows the steps of a job's loss log.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/command_line/report.h"
#include "cli/commands/commands.h"
#include "cli/connection/connection.h"
#include "cli/view/gpu_history.h"
#include "cli/view/interrupt.h"
#include "cli/view/live_view.h"
#include "nlohmann/json.hpp"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/base/text/counted.h"

namespace megascale::cli {
namespace {

constexpr int kStepsPerCall = 5000;
constexpr absl::Duration kFollowInterval = absl::Seconds(1);
constexpr absl::Duration kInterruptInterval = absl::Milliseconds(100);
// Up to 15 minutes of samples are read from each machine, so from few of them and seldom.
constexpr size_t kGpuMachinesMax = 64;
constexpr absl::Duration kGpuInterval = absl::Seconds(10);

struct MetricsFlags {
  ConnectionFlags connection;
  std::string job_id;
  int64_t first_step = 0;
  bool follow = false;
  std::string format = "csv";
};

// A step as people plot it.
struct Line {
  const telemetry::v1::StepRecord& record;
  double tokens_per_second = 0;
  double mfu = 0;                   // 0: unknown
  std::vector<GpuValue> gpus = {};  // none: the job's machines have no GPUs
};

// Returns what one token per second is in MFU; 0: unknown.
double MfuPerToken(const control::v1::Job& job) {
  if (job.tokens_per_second() <= 0 || job.flops_ceiling() <= 0) return 0;
  return job.model_flops_per_second() / job.tokens_per_second() / job.flops_ceiling();
}

// Nine digits tell apart all values that the curve has.
std::string Number(double value) {
  return std::isfinite(value) ? absl::StrFormat("%.9g", value) : "";
}

void PrintHeader(const std::vector<GpuValue>& gpus) {
  std::printf("step,loss,grad_norm,lr,tokens,seconds,tokens_per_second,mfu,attempt,held_out_loss");
  for (const GpuValue& gpu : gpus) std::printf(",%s", std::string(gpu.name).c_str());
  std::printf("\n");
}

void PrintCsv(const Line& line) {
  std::printf("%lld,%s,%s,%s,%lld,%s,%s,%s,%lld,%s", static_cast<long long>(line.record.step()),
              Number(line.record.loss()).c_str(), Number(line.record.grad_norm()).c_str(),
              Number(line.record.lr()).c_str(), static_cast<long long>(line.record.tokens()),
              Number(line.record.seconds()).c_str(), Number(line.tokens_per_second).c_str(),
              line.mfu > 0 ? Number(line.mfu).c_str() : "",
              static_cast<long long>(line.record.attempt()),
              line.record.has_held_out_loss() ? Number(line.record.held_out_loss()).c_str() : "");
  for (const GpuValue& gpu : line.gpus) {
    std::printf(",%s", gpu.value.has_value() ? Number(*gpu.value).c_str() : "");
  }
  std::printf("\n");
}

void PrintJsonLine(const Line& line) {
  const auto number = [](double value) {
    return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
  };
  nlohmann::ordered_json json = {{"step", line.record.step()},
                                 {"loss", number(line.record.loss())},
                                 {"grad_norm", number(line.record.grad_norm())},
                                 {"lr", number(line.record.lr())},
                                 {"tokens", line.record.tokens()},
                                 {"seconds", number(line.record.seconds())},
                                 {"tokens_per_second", number(line.tokens_per_second)},
                                 {"mfu", line.mfu > 0 ? number(line.mfu) : nullptr},
                                 {"attempt", line.record.attempt()}};
  json["held_out_loss"] =
      line.record.has_held_out_loss() ? number(line.record.held_out_loss()) : nullptr;
  for (const GpuValue& gpu : line.gpus) {
    json[std::string(gpu.name)] = gpu.value.has_value() ? number(*gpu.value) : nullptr;
  }
  std::printf("%s\n", json.dump().c_str());
}

// The samples of the GPUs of a job's machines. Machines without GPUs are not asked for samples.
class GpuReader {
 public:
  GpuReader(const std::string& job_id, client::JobClient* client)
      : job_id_(job_id), client_(*client), history_(job_id) {}

  // Finds out which of the job's machines have GPUs.
  absl::Status Begin(const control::v1::Job& job) {
    ASSIGN_OR_RETURN(const control::v1::GetClusterResponse cluster, client_.Cluster());
    std::set<std::string> nodes;
    for (const control::v1::NodeView& node : cluster.nodes()) {
      if (!node.gpus().empty()) nodes.insert(node.node_id());
    }
    for (int rank = 0; rank < job.ranks_size() && !IsTerminal(job.state()); ++rank) {
      if (nodes.erase(job.ranks(rank).node_id()) == 0) continue;
      if (ranks_.size() < kGpuMachinesMax) ranks_.push_back(rank);
    }
    return absl::OkStatus();
  }
  bool has_gpus() const { return !ranks_.empty(); }

  // Reads the samples again if the last ones are old, or `at_once`. Returns whether it did. If
  // the job cannot be asked now, the last samples remain.
  bool Refresh(bool at_once, const std::function<bool()>& stop) {
    const absl::Duration now = base::RealClock().Monotonic();
    if (!has_gpus() || (now < read_ + kGpuInterval && !at_once)) return false;
    read_ = now;
    GpuHistory history(job_id_);
    control::v1::StreamEvidenceRequest request;
    request.set_job_id(job_id_);
    request.set_kind(telemetry::v1::EVIDENCE_KIND_METRICS);
    request.set_only_ranks_of_job(true);
    for (const int rank : ranks_) request.add_ranks(rank);
    const auto take = [&](const control::v1::StreamEvidenceResponse& response) {
      history.Add(response.evidence());
    };
    client_.Evidence(request, {.on_message = take, .should_stop = stop}).IgnoreError();
    newest_step_ = history.newest_step();
    if (newest_step_ > 0) history_ = std::move(history);
    return true;
  }
  // Returns the newest step that the samples of the last Refresh know; 0: there were no samples.
  int64_t newest_step() const { return newest_step_; }
  std::vector<GpuValue> At(int64_t step) const {
    return has_gpus() ? GpuValues(history_.At(step)) : std::vector<GpuValue>();
  }

 private:
  const std::string job_id_;
  client::JobClient& client_;
  std::vector<int> ranks_;  // one of each machine
  GpuHistory history_;
  int64_t newest_step_ = 0;
  absl::Duration read_ = -absl::InfiniteDuration();
};

class MetricsReader {
 public:
  MetricsReader(const MetricsFlags& flags, client::JobClient* client, const GpuReader& gpus)
      : flags_(flags), client_(*client), gpus_(gpus), next_step_(flags.first_step) {}

  // Prints the steps up to `last_step` that the log has and that are not printed yet. After a
  // rollback the steps are computed again: they are printed again, with the new attempt.
  absl::Status PrintNew(const control::v1::Job& job, int64_t last_step) {
    if (last_printed_ > 0 && job.attempt() != printed_attempt_) {
      ASSIGN_OR_RETURN(const int64_t again, FirstStepOfLaterAttempt());
      next_step_ = std::min(next_step_, again);
    }
    const double mfu_per_token = MfuPerToken(job);
    for (;;) {
      ASSIGN_OR_RETURN(const control::v1::ListStepsResponse response,
                       Read(next_step_, kStepsPerCall));
      for (const telemetry::v1::StepRecord& record : response.steps()) {
        if (record.step() > last_step) {
          FlushOutput();
          return absl::OkStatus();
        }
        Line line{record};
        if (record.seconds() > 0) {
          line.tokens_per_second = static_cast<double>(record.tokens()) / record.seconds();
        }
        line.mfu = line.tokens_per_second * mfu_per_token;
        line.gpus = gpus_.At(record.step());
        flags_.format == "csv" ? PrintCsv(line) : PrintJsonLine(line);
        last_printed_ = record.step();
        printed_attempt_ = record.attempt();
        next_step_ = record.step() + 1;
      }
      FlushOutput();
      if (response.steps_size() < kStepsPerCall || OutputFailed()) return absl::OkStatus();
    }
  }

 private:
  absl::StatusOr<control::v1::ListStepsResponse> Read(int64_t first_step, int max_steps) {
    control::v1::ListStepsRequest request;
    request.set_job_id(flags_.job_id);
    request.set_first_step(first_step);
    request.set_max_steps(max_steps);
    return client_.Steps(request);
  }

  // Returns the first printed step that the log lacks or now has from a later attempt; without such
  // a step, the one after the last printed step. Attempts ascend in the log.
  absl::StatusOr<int64_t> FirstStepOfLaterAttempt() {
    int64_t first = std::max<int64_t>(1, flags_.first_step);
    int64_t end = last_printed_ + 1;
    while (first < end) {
      const int64_t middle = first + (end - first) / 2;
      ASSIGN_OR_RETURN(const control::v1::ListStepsResponse response, Read(middle, 1));
      const bool is_later =
          response.steps_size() == 0 || response.steps(0).attempt() > printed_attempt_;
      if (is_later) {
        end = middle;
      } else {
        first = middle + 1;
      }
    }
    return end;
  }

  const MetricsFlags& flags_;
  client::JobClient& client_;
  const GpuReader& gpus_;
  int64_t next_step_;
  int64_t last_printed_ = 0;
  int64_t printed_attempt_ = 0;  // that computed it
};

// Prints what can be printed with its GPU columns: the steps that samples know, and all steps once
// no newer samples will come.
absl::Status PrintWithGpus(const control::v1::Job& job, bool is_last, GpuReader* gpus,
                           MetricsReader* reader, const std::function<bool()>& stop) {
  constexpr int64_t kAllSteps = std::numeric_limits<int64_t>::max();
  const bool refreshed = gpus->Refresh(is_last, stop);
  if (is_last || !gpus->has_gpus()) return reader->PrintNew(job, kAllSteps);
  if (!refreshed) return absl::OkStatus();
  const int64_t newest = gpus->newest_step();
  return reader->PrintNew(job, newest > 0 ? newest : kAllSteps);
}

// Refuses a job that completed steps but whose loss log has none: somebody deleted it. A job that
// begins at a checkpoint has a last step, too, before it completes one, and so has a running job
// whose steps were rolled back.
absl::Status CheckLog(const control::v1::Job& job, client::JobClient* client) {
  const int64_t num_completed = job.last_step() - job.first_step();
  if (num_completed <= 0 || (!job.has_last_record() && !IsTerminal(job.state()))) return {};
  control::v1::ListStepsRequest request;
  request.set_job_id(job.job_id());
  request.set_max_steps(1);
  ASSIGN_OR_RETURN(const control::v1::ListStepsResponse first, client->Steps(request));
  if (first.steps_size() > 0) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("job ", job.job_id(), ": completed ", base::Counted(num_completed, "step"),
                   ", but its loss log is missing or empty: ", job.directory(), "/metrics.jsonl"));
}

absl::Status ShowMetrics(const MetricsFlags& flags, client::JobClient* client,
                         const std::function<bool()>& stop) {
  ASSIGN_OR_RETURN(control::v1::Job job, client->Get(flags.job_id));
  RETURN_IF_ERROR(CheckLog(job, client));
  GpuReader gpus(flags.job_id, client);
  RETURN_IF_ERROR(gpus.Begin(job));
  if (flags.format == "csv") PrintHeader(gpus.At(0));
  MetricsReader reader(flags, client, gpus);
  for (;;) {
    const bool is_last = !flags.follow || IsTerminal(job.state());
    RETURN_IF_ERROR(PrintWithGpus(job, is_last, &gpus, &reader, stop));
    if (is_last) return absl::OkStatus();
    const absl::Duration end = base::RealClock().Monotonic() + kFollowInterval;
    while (base::RealClock().Monotonic() < end) {
      if (stop()) return absl::OkStatus();
      absl::SleepFor(kInterruptInterval);
    }
    ASSIGN_OR_RETURN(job, client->Get(flags.job_id));
  }
}

int RunMetrics(const MetricsFlags& flags) {
  if (flags.format != "csv" && flags.format != "json") {
    return ReportError(absl::InvalidArgumentError(
        absl::StrCat("--output: expected csv or json, found '", flags.format, "'")));
  }
  if (flags.first_step < 0) {
    return ReportError(absl::InvalidArgumentError(
        absl::StrCat("--from ", flags.first_step, ": expected a step from 0")));
  }
  Interrupt interrupt;
  const auto stop = [&] { return interrupt.Count() > 0 || OutputFailed(); };
  const auto client = Connect(flags.connection, stop);
  if (!client.ok()) return ReportError(client.status());
  const absl::Status shown = ShowMetrics(flags, client->get(), stop);
  if (shown.ok() || stop()) return kExitGood;
  return ReportCallError(shown, flags.connection);
}

}  // namespace

void AddMetricsCommand(CommandLine* line) {
  auto flags = std::make_shared<MetricsFlags>();
  Command* command = line->Add("metrics", "shows the loss and the speed of each step of a job");
  command->Positional("JOB", &flags->job_id, "the job's id");
  command->Flag("-f,--follow", &flags->follow, "go on until the job ends");
  command->Integer("--from", &flags->first_step, "the first step to show");
  command->Text("-o,--output", &flags->format, "csv, or json: one object a line");
  AddRetryOption(command, &flags->connection);
  AddConnectionOptions(command, &flags->connection);
  command->Details(
      "Reads the loss log through the driver: the step, the mean loss in nats per token, the norm "
      "of the gradient before clipping, the learning rate, the tokens of the step, its seconds, "
      "tokens per second, MFU as a share of 1 (empty or null: unknown), and the attempt that "
      "computed it. A value that is not finite is empty in CSV and null in JSON. Where the job's "
      "machines have GPUs, and while it runs, further columns show them in the steps of the last "
      "15 minutes, over at most 64 machines: gpu_busy_share (mean), gpu_memory_used_bytes and "
      "gpu_memory_bytes (sums), gpu_temperature_celsius (the highest), gpu_power_watts, "
      "gpus_throttled, gpu_corrected_errors and gpu_uncorrected_errors (sums). With --follow, "
      "the steps of a job on GPUs come every 10 s, with their samples; steps that a recovery "
      "computes again are shown again, with their new attempt.");
  command->Examples(
      "megascale metrics fortunes-1a2b3c4d\n"
      "megascale metrics fortunes-1a2b3c4d -o json --follow\n"
      "megascale metrics fortunes-1a2b3c4d --from 700");
  command->Runs([flags] { return RunMetrics(*flags); });
}

}  // namespace megascale::cli
