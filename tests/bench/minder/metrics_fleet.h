// Simulated agents that have metrics: each has a stream of its own to a real driver, runs the ranks
// that it is told to, and answers a question for metrics with the samples of 15 minutes. Threads:
// those of gRPC, and one that reports.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "proto/telemetry.pb.h"

namespace megascale::bench {

class MetricsAgent;

class MetricsFleet {
 public:
  struct Options {
    std::string address;  // of the driver
    int num_agents = 1500;
    // The last ones never answer a question, as machines do that hang.
    int num_silent = 0;
    // Agent i answers with `samples[samples_of[i]]`; agents beyond it with the first.
    std::vector<telemetry::v1::Evidence> samples;
    std::vector<size_t> samples_of;
  };

  explicit MetricsFleet(Options options);
  ~MetricsFleet();

  static std::string NodeId(int index);

 private:
  void Beat();

  const Options options_;
  std::vector<std::unique_ptr<MetricsAgent>> agents_;
  std::atomic<bool> stopping_ = false;
  std::thread beating_;
};

}  // namespace megascale::bench
