// Decides when a slow rank is named: once two looks in a row have found its machine, from different
// steps. One look is not enough, because a machine may be slow for a moment, and the steps that
// were slow are judged for some time after a job has recovered. Pure. Threads: one owner.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace megascale::diagnose {

class SlowLooks {
 public:
  // The second look must judge at least this many newer steps than the first look.
  static constexpr int64_t kStepsBetween = 5;

  struct Finding {
    std::string node_id;  // whose ranks are slow; empty: no machine is found
    int64_t attempt = 0;
    int64_t newest_step = 0;  // that the look judged
  };

  // Takes what a look found in a job. Returns true if an earlier look, at least kStepsBetween steps
  // before, found the same machine in the same attempt, and each look since then found it, too.
  bool IsConfirmed(const std::string& job_id, const Finding& finding);

  // Call if this round does not judge whether the job is slow, because the job seems to stand still
  // or no step could be read. What earlier looks found stays. A job whose steps take many times
  // their usual time seems to stand still before each step ends.
  void PassOver(const std::string& job_id);

  // The looks at all jobs are over. Forgets what earlier looks found in a job if this round found
  // nothing in it.
  void EndRound();

 private:
  struct Kept {
    Finding first;
    bool is_of_round = true;
  };
  std::map<std::string, Kept> found_;  // by job
};

}  // namespace megascale::diagnose
