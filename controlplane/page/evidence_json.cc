#include "controlplane/page/evidence_json.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "controlplane/page/json_number.h"
#include "runtime/base/text/printable.h"
#include "runtime/comm/communicator.h"
#include "runtime/diagnose/exchange_state.h"
#include "runtime/plan/instruction.h"

namespace megascale::page {
namespace {

using nlohmann::json;
using telemetry::v1::Evidence;
using telemetry::v1::ExchangeState;
using telemetry::v1::MachineSample;

constexpr size_t kGroupBytesMax = 100;

std::string OperationWord(uint32_t operation) {
  if (operation > static_cast<uint32_t>(comm::Operation::kRecv)) return "unknown";
  return std::string(comm::Name(static_cast<comm::Operation>(operation)));
}

double SecondsBetween(int64_t begin_nanos, int64_t end_nanos) {
  // In floating point, where a hostile pair cannot overflow.
  const double seconds = (static_cast<double>(end_nanos) - static_cast<double>(begin_nanos)) / 1e9;
  return std::max(0.0, std::round(seconds * 1e4) / 1e4);
}

// Returns how far the call's bytes have come: those that the rank sends first, then those that it
// receives, of which it knows only its own end.
std::string StateOf(const ExchangeState& state) {
  if (state.ok()) return diagnose::Name(diagnose::FlowState::kDone);
  const diagnose::FlowState sent = diagnose::StateOf({.expected = state.send_bytes(),
                                                      .ready = state.send_bytes(),
                                                      .transmitted = state.transmitted_bytes(),
                                                      .arrived = state.delivered_bytes()});
  if (sent != diagnose::FlowState::kDone) return diagnose::Name(sent);
  if (state.received_bytes() < state.receive_bytes()) {
    return state.received_bytes() == 0 ? "nothing received" : "partly received";
  }
  const bool has_bytes = state.send_bytes() + state.receive_bytes() > 0;
  return diagnose::Name(has_bytes ? diagnose::FlowState::kDone : diagnose::FlowState::kNotStarted);
}

json StateJson(const ExchangeState& state, int64_t now_nanos) {
  const auto id = plan::InstructionId::FromPacked(state.instruction());
  const int64_t end = state.end_nanos() != 0 ? state.end_nanos() : now_nanos;
  return {{"group", base::Printable(state.group(), kGroupBytesMax)},
          {"operation", OperationWord(state.operation())},
          {"sequence", state.sequence()},
          {"instruction", id == plan::InstructionId() ? "" : id.ToString()},
          {"peer", state.peer()},
          {"state", StateOf(state)},
          {"send_bytes", state.send_bytes()},
          {"transmitted_bytes", state.transmitted_bytes()},
          {"delivered_bytes", state.delivered_bytes()},
          {"receive_bytes", state.receive_bytes()},
          {"received_bytes", state.received_bytes()},
          {"seconds", SecondsBetween(state.begin_nanos(), end)},
          {"quiet_seconds", SecondsBetween(state.changed_nanos(), end)},
          {"ok", state.ok()}};
}

double SumOver(const MachineSample& sample,
               double (telemetry::v1::InterfaceSample::*rate)() const) {
  double sum = 0;
  for (const auto& interface : sample.interfaces()) sum += (interface.*rate)();
  return sum;
}

double MeanOfRanks(const MachineSample& sample,
                   double (telemetry::v1::ProcessSample::*share)() const) {
  double sum = 0;
  for (const auto& rank : sample.ranks()) sum += (rank.*share)();
  return sample.ranks().empty() ? 0 : sum / sample.ranks_size();
}

struct Column {
  const char* name;
  double (*value)(const MachineSample& sample);
};

constexpr Column kColumns[] = {
    {"busy_cores", [](const MachineSample& s) { return s.busy_cores(); }},
    {"throttled_share", [](const MachineSample& s) { return s.throttled_share(); }},
    {"load", [](const MachineSample& s) { return s.load(); }},
    {"memory_available_bytes",
     [](const MachineSample& s) { return static_cast<double>(s.memory_available_bytes()); }},
    {"major_faults", [](const MachineSample& s) { return s.major_faults(); }},
    {"disk_read_bytes", [](const MachineSample& s) { return s.disk_read_bytes(); }},
    {"disk_written_bytes", [](const MachineSample& s) { return s.disk_written_bytes(); }},
    {"disk_free_bytes",
     [](const MachineSample& s) { return static_cast<double>(s.disk_free_bytes()); }},
    {"received_bytes",
     [](const MachineSample& s) {
       return SumOver(s, &telemetry::v1::InterfaceSample::received_bytes);
     }},
    {"sent_bytes",
     [](const MachineSample& s) {
       return SumOver(s, &telemetry::v1::InterfaceSample::sent_bytes);
     }},
    {"network_errors",
     [](const MachineSample& s) { return SumOver(s, &telemetry::v1::InterfaceSample::errors); }},
    {"retransmitted_segments", [](const MachineSample& s) { return s.retransmitted_segments(); }},
    {"transfer_share",
     [](const MachineSample& s) {
       return MeanOfRanks(s, &telemetry::v1::ProcessSample::transfer_share);
     }},
    {"awaiting_share",
     [](const MachineSample& s) {
       return MeanOfRanks(s, &telemetry::v1::ProcessSample::awaiting_share);
     }},
    {"tokens_per_second",
     [](const MachineSample& s) {
       double sum = 0;
       for (const auto& rank : s.ranks()) sum += rank.tokens_per_second();
       return sum;
     }},
};

using telemetry::v1::GpuSample;

// Returns the mean, sum or largest value of the GPUs that have one; NaN: none has.
enum class Joined { kMean, kSum, kMost };
double JoinGpus(const MachineSample& sample, Joined how,
                std::optional<double> (*value)(const GpuSample& gpu)) {
  double sum = 0;
  double most = 0;
  int count = 0;
  for (const GpuSample& gpu : sample.gpus()) {
    const std::optional<double> number = value(gpu);
    if (!number.has_value()) continue;
    sum += *number;
    most = count == 0 ? *number : std::max(most, *number);
    ++count;
  }
  if (count == 0) return std::numeric_limits<double>::quiet_NaN();
  return how == Joined::kMean ? sum / count : how == Joined::kSum ? sum : most;
}

struct GpuColumn {
  const char* name;
  Joined how;
  std::optional<double> (*value)(const GpuSample& gpu);
};

std::optional<double> Known(bool is_known, double value) {
  return is_known ? std::optional<double>(value) : std::nullopt;
}

constexpr GpuColumn kGpuColumns[] = {
    {"gpu_busy_share", Joined::kMean,
     [](const GpuSample& g) { return Known(g.has_busy_share(), g.busy_share()); }},
    {"gpu_memory_busy_share", Joined::kMean,
     [](const GpuSample& g) { return Known(g.has_memory_busy_share(), g.memory_busy_share()); }},
    {"gpu_memory_used_bytes", Joined::kSum,
     [](const GpuSample& g) {
       return Known(g.has_memory_used_bytes(), static_cast<double>(g.memory_used_bytes()));
     }},
    {"gpu_temperature_celsius", Joined::kMost,
     [](const GpuSample& g) {
       return Known(g.has_temperature_celsius(), g.temperature_celsius());
     }},
    {"gpu_power_watts", Joined::kSum,
     [](const GpuSample& g) { return Known(g.has_power_watts(), g.power_watts()); }},
    {"gpu_core_clock_megahertz", Joined::kMean,
     [](const GpuSample& g) {
       return Known(g.has_core_clock_megahertz(), g.core_clock_megahertz());
     }},
    {"gpu_memory_clock_megahertz", Joined::kMean,
     [](const GpuSample& g) {
       return Known(g.has_memory_clock_megahertz(), g.memory_clock_megahertz());
     }},
    {"gpus_throttled", Joined::kSum,
     [](const GpuSample& g) { return Known(true, g.throttled_by().empty() ? 0 : 1); }},
    {"gpu_corrected_errors", Joined::kSum,
     [](const GpuSample& g) {
       return Known(g.has_corrected_errors(), static_cast<double>(g.corrected_errors()));
     }},
    {"gpu_uncorrected_errors", Joined::kSum,
     [](const GpuSample& g) {
       return Known(g.has_uncorrected_errors(), static_cast<double>(g.uncorrected_errors()));
     }},
};

// GPUs are read every few seconds: a sample without them repeats the values of the one before. A
// machine without GPUs has no such columns.
void AddGpuColumns(const Evidence& evidence, int first, json* columns) {
  const bool has_gpus = std::any_of(evidence.samples().begin(), evidence.samples().end(),
                                    [](const MachineSample& s) { return !s.gpus().empty(); });
  if (!has_gpus) return;
  for (const GpuColumn& column : kGpuColumns) {
    json values = json::array();
    json newest = nullptr;
    for (int i = first; i < evidence.samples_size(); ++i) {
      const MachineSample& sample = evidence.samples(i);
      if (!sample.gpus().empty()) newest = Number(JoinGpus(sample, column.how, column.value));
      values.push_back(newest);
    }
    (*columns)[column.name] = std::move(values);
  }
}

}  // namespace

json ExchangesJson(const Evidence& evidence) {
  std::vector<const ExchangeState*> running;
  for (const ExchangeState& state : evidence.running()) running.push_back(&state);
  std::stable_sort(running.begin(), running.end(), [](const auto* a, const auto* b) {
    return a->changed_nanos() < b->changed_nanos();
  });
  const auto count = [](int size) { return std::min(size, kExchangesMax); };
  json shown = {{"num_running", evidence.running_size()},
                {"num_lost", evidence.num_lost()},
                {"running", json::array()},
                {"completed", json::array()}};
  for (int i = 0; i < count(evidence.running_size()); ++i) {
    shown["running"].push_back(
        StateJson(*running[static_cast<size_t>(i)], evidence.monotonic_nanos()));
  }
  for (int i = 0; i < count(evidence.completed_size()); ++i) {
    shown["completed"].push_back(StateJson(evidence.completed(evidence.completed_size() - 1 - i),
                                           evidence.monotonic_nanos()));
  }
  return shown;
}

json MachineMetricsJson(const Evidence& evidence) {
  const int first = std::max(0, evidence.samples_size() - kSamplesMax);
  json columns = {{"seconds", json::array()}};
  for (int i = first; i < evidence.samples_size(); ++i) {
    columns["seconds"].push_back(
        -SecondsBetween(evidence.samples(i).monotonic_nanos(), evidence.monotonic_nanos()));
  }
  for (const Column& column : kColumns) {
    json values = json::array();
    for (int i = first; i < evidence.samples_size(); ++i) {
      values.push_back(Number(column.value(evidence.samples(i))));
    }
    columns[column.name] = std::move(values);
  }
  AddGpuColumns(evidence, first, &columns);
  return columns;
}

}  // namespace megascale::page
