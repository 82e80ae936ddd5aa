#include "controlplane/agent/evidence/machine_reader.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/base/process/resource_limit.h"
#include "runtime/base/repeated.h"
#include "runtime/telemetry/machine_series.h"
#include "runtime/telemetry/rank_work.h"

namespace megascale::agent {
namespace {

constexpr size_t kTextMax = 256 << 10;

// Returns the file's text, or as much of it as can be read.
std::string ReadText(const std::string& path) {
  const base::UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  if (!file.valid()) return text;
  char buffer[8192];
  while (text.size() < kTextMax) {
    const ssize_t count = ::read(file.get(), buffer, sizeof(buffer));
    if (count <= 0) break;
    text.append(buffer, static_cast<size_t>(count));
  }
  return text;
}

// Returns where the nearest control group of this process counts its throttling; "": nowhere.
std::string FindCpuStat() {
  for (const base::ControlGroup& group : base::ControlGroupsOf("cpu")) {
    std::string path = absl::StrCat(group.directory, "/cpu.stat");
    if (::access(path.c_str(), R_OK) == 0) return path;
  }
  return "";
}

absl::Duration Tick() { return absl::Seconds(1) / static_cast<double>(::sysconf(_SC_CLK_TCK)); }

}  // namespace

MachineReader::MachineReader(std::string directory, std::string proc)
    : directory_(std::move(directory)), proc_(std::move(proc)), cpu_stat_(FindCpuStat()) {}

std::string MachineReader::Text(const std::string& name) const {
  return ReadText(absl::StrCat(proc_, "/", name));
}

void MachineReader::Read(absl::Duration now, const std::vector<SampledRank>& ranks,
                         std::vector<telemetry::v1::GpuSample> gpus) {
  const telemetry::MachineTexts texts = {.stat = Text("stat"),
                                         .loadavg = Text("loadavg"),
                                         .meminfo = Text("meminfo"),
                                         .vmstat = Text("vmstat"),
                                         .diskstats = Text("diskstats"),
                                         .net_dev = Text("net/dev"),
                                         .net_snmp = Text("net/snmp"),
                                         .cpu_stat = cpu_stat_.empty() ? "" : ReadText(cpu_stat_)};
  telemetry::MachineCounters counters = telemetry::ParseMachine(texts, Tick());
  struct statvfs space = {};
  if (::statvfs(directory_.c_str(), &space) == 0) {
    counters.disk_free_bytes = static_cast<int64_t>(space.f_bavail * space.f_frsize);
  }
  const bool is_first = read_ == -absl::InfiniteDuration();
  const absl::Duration length = now - std::exchange(read_, now);
  telemetry::v1::MachineSample sample;
  if (!is_first) sample = telemetry::SampleOf(before_, counters, length);
  std::map<int, absl::Duration> busy;
  for (const SampledRank& rank : ranks) {
    const telemetry::ProcessCounters process = telemetry::ParseProcess(
        Text(absl::StrCat(rank.pid, "/stat")), Tick(), ::sysconf(_SC_PAGESIZE));
    busy[rank.pid] = process.busy;
    telemetry::v1::ProcessSample* shown = sample.add_ranks();
    shown->set_job_id(rank.job_id);
    shown->set_rank(rank.rank);
    shown->set_step(rank.step);
    shown->set_memory_bytes(process.memory_bytes);
    shown->set_compute_share(rank.compute_share);
    shown->set_wait_share(rank.wait_share);
    if (rank.exchanges.has_value()) {
      shown->set_awaiting_share(rank.exchanges->awaiting);
      shown->set_transfer_share(rank.exchanges->transfer);
    }
    shown->set_tokens_per_second(rank.tokens_per_second);
    const auto known = busy_before_.find(rank.pid);
    if (known == busy_before_.end() || is_first) continue;
    shown->set_busy_cores(std::max(0.0, absl::FDivDuration(process.busy - known->second, length)));
  }
  before_ = std::move(counters);
  busy_before_ = std::move(busy);
  if (is_first) return;
  *sample.mutable_gpus() = {std::make_move_iterator(gpus.begin()),
                            std::make_move_iterator(gpus.end())};
  sample.set_monotonic_nanos(absl::ToInt64Nanoseconds(now));
  ring_.Add(std::move(sample));
}

telemetry::v1::Evidence MachineReader::Samples(const std::string& job_id) const {
  telemetry::v1::Evidence evidence;
  for (const telemetry::v1::MachineSample& sample : ring_.samples()) {
    telemetry::v1::MachineSample* shown = evidence.add_samples();
    *shown = sample;
    if (job_id.empty()) continue;
    base::EraseIf(shown->mutable_ranks(),
                  [&](const auto& rank) { return rank.job_id() != job_id; });
  }
  return evidence;
}

telemetry::v1::Evidence MachineReader::Series(const std::string& job_id) const {
  telemetry::v1::Evidence evidence;
  *evidence.mutable_series() = telemetry::SeriesOf(ring_.samples(), job_id);
  return evidence;
}

telemetry::v1::Evidence MachineReader::Work(const std::string& job_id,
                                            std::vector<telemetry::v1::StepRange> ranges) const {
  telemetry::v1::Evidence evidence;
  for (telemetry::v1::RankWork& rank :
       telemetry::SumWork(job_id, std::move(ranges), ring_.samples())) {
    *evidence.add_work() = std::move(rank);
  }
  return evidence;
}

}  // namespace megascale::agent
