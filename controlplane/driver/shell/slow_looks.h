// When a slow rank is named: once two looks in a row have found its machine, from different steps.
// A machine may be slow for a moment, and a job that has recovered shows its slow steps for some
// time. Pure. Threads: one owner.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace megascale::driver {

class SlowLooks {
 public:
  // A look judges this many of the newest steps: the second one begins behind those of the first.
  static constexpr int64_t kStepsBetween = 5;

  struct Finding {
    std::string node_id;  // whose ranks are slow; empty: no machine is found
    int64_t attempt = 0;
    int64_t newest_step = 0;  // that the look judged
  };

  // Takes what a look found in a job. Returns whether an earlier look found the same machine in the
  // same attempt, in steps before those that this one judged, and each look since then found it.
  bool IsConfirmed(const std::string& job_id, const Finding& finding);

  // This round does not judge whether the job is slow, because it takes it for one that stands
  // still or could read no step: what earlier looks found stays. Steps of many times the usual
  // length look as if the job stood still before they end.
  void PassOver(const std::string& job_id);

  // The looks at all jobs are over: a job of which this round found nothing begins anew.
  void EndRound();

 private:
  struct Kept {
    Finding first;
    bool is_of_round = true;
  };
  std::map<std::string, Kept> found_;  // by job
};

}  // namespace megascale::driver
