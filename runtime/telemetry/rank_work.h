// How long a rank computed and waited in ranges of steps, from the samples of its machine. This
// needs only a few numbers for each rank of a large job, where spans would need a megabyte for each
// rank. Pure: no clock.
//
//   SumWork("job-1", ranges, samples);
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "proto/telemetry.pb.h"

namespace megascale::telemetry {

class RankWorkSum {
 public:
  // Ranges beyond this number are left out.
  static constexpr size_t kRangesMax = 4;

  RankWorkSum(std::string job_id, std::vector<v1::StepRange> ranges);

  // Takes the next sample. Time counts from one end of a step to another, as the samples show these
  // ends, so that a step that the samples show only in part is left out. If the newest step of a
  // rank goes back, the rank has begun another attempt, and its earlier sums are dropped.
  void Add(const v1::MachineSample& sample);

  // Returns the sums of each rank of the job that the samples have, ascending by rank.
  std::vector<v1::RankWork> Ranks() const;

 private:
  struct Sum {
    v1::StepsWork whole;  // up to the last end of a step
    v1::StepsWork open;   // since then
  };
  struct Seen {
    int64_t nanos = 0;  // at the sample before
    int64_t step = 0;
    bool has_ended_step = false;  // since the first sample
    std::vector<Sum> sums;        // by range
  };

  void AddSecond(const v1::ProcessSample& rank, double seconds, Seen* seen) const;

  const std::string job_id_;
  std::vector<v1::StepRange> ranges_;
  std::map<int, Seen> ranks_;
};

// Returns the sums of all samples, oldest first. `Samples`: a range of v1::MachineSample.
template <typename Samples>
std::vector<v1::RankWork> SumWork(std::string job_id, std::vector<v1::StepRange> ranges,
                                  const Samples& samples) {
  RankWorkSum sum(std::move(job_id), std::move(ranges));
  for (const v1::MachineSample& sample : samples) sum.Add(sample);
  return sum.Ranks();
}

}  // namespace megascale::telemetry
