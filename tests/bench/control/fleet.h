// Agents without machines: each a gRPC stream of its own to a real driver, that says what an agent
// says of healthy ranks. Everything that the driver tells them is done at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"

namespace megascale::bench {

class SimulatedAgent;

class Fleet {
 public:
  struct Options {
    std::string address;  // of the driver
    int num_agents = 1;
    int slots = 8;
    absl::Duration heartbeat_interval = absl::Seconds(1);
  };

  // Connects them all, and reports for each once per interval, spread over it, until destroyed.
  explicit Fleet(const Options& options);
  ~Fleet();

  // The step that ranks are in, from now on; agent 0 reports the completed ones.
  void SetStep(int64_t step) { step_ = step; }
  // Reports of agent 0 at once.
  void ReportFirst();
  // One agent's stream ends and is not opened again.
  void Lose(int index);

  int64_t num_reports() const { return num_reports_; }
  // Mean size of a report.
  double report_bytes() const;
  // A report as agent `index` would send it now.
  std::string SampleReport(int index) const;

 private:
  void Beat();

  const Options options_;
  std::vector<std::unique_ptr<SimulatedAgent>> agents_;
  std::atomic<int64_t> step_ = 0;
  std::atomic<int64_t> num_reports_ = 0;
  std::atomic<int64_t> report_bytes_ = 0;
  std::atomic<bool> stopping_ = false;
  std::thread beating_;
};

}  // namespace megascale::bench
