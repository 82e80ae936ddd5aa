// What the watchers of jobs are shown. It is made once for all watchers of a job, in the thread of
// one watcher.
// Threads: any. Private to this folder.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controlplane/driver/service/driver_loop.h"
#include "proto/control.pb.h"

namespace megascale::driver {

class WatchedJobs {
 public:
  struct Shown {
    std::shared_ptr<const DriverView> view;  // from which it was made
    megascale::control::v1::Job job;
    int64_t version = 0;   // jobs of one version differ in ages only
    size_t num_bytes = 0;  // of the job's message
  };

  // The maximum age of what a watcher is shown, by the size of the job. A job of many ranks is made
  // less often, even for watchers that are shown few of its ranks.
  static constexpr absl::Duration kAgeMin = absl::Milliseconds(20);
  static constexpr absl::Duration kAgeMax = absl::Seconds(1);
  static constexpr double kBytesPerSecond = 1.5e6;
  // How often a watcher looks: not more often, because the looks of hundreds of watchers wake
  // hundreds of threads.
  static constexpr absl::Duration kIntervalMin = absl::Milliseconds(100);
  static constexpr absl::Duration kIntervalMax = absl::Milliseconds(250);

  using Key = std::pair<std::string, int>;  // job, ranks_max

  // `loop` outlives the object.
  explicit WatchedJobs(const DriverLoop* loop) : loop_(*loop) {}

  // One watcher of a job. `ranks_max`: as WatchJobRequest. Rounded down to a power of two, so that
  // watchers with many different numbers share few jobs.
  class Watch {
   public:
    Watch(WatchedJobs* jobs, const std::string& job_id, int ranks_max);
    ~Watch();
    // Returns the job. The first call returns it as it is now; later calls may return it as it was
    // a moment ago.
    absl::StatusOr<std::shared_ptr<const Shown>> Show();
    // Returns how long to wait before the next call. It is longer for a large job, which is rarely
    // made anew.
    absl::Duration interval() const { return interval_; }

   private:
    WatchedJobs& jobs_;
    const Key key_;
    bool is_first_ = true;
    absl::Duration interval_ = kIntervalMin;
  };

  // Returns how many times a job was made.
  int64_t num_made() const;

 private:
  struct Entry {
    std::mutex mutex;
    std::shared_ptr<const Shown> shown;
    std::string essence;  // of `shown`: its bytes without ages
    absl::Duration made = -absl::InfiniteDuration();
    absl::Duration age_max = kAgeMin;
    int num_watchers = 0;  // guarded by mutex_
  };
  // `age_max`: how old the job may become before it is made anew.
  absl::StatusOr<std::shared_ptr<const Shown>> Show(const Key& key, bool newest,
                                                    absl::Duration* age_max);

  const DriverLoop& loop_;
  mutable std::mutex mutex_;
  std::map<Key, std::shared_ptr<Entry>> entries_;
  int64_t num_made_ = 0;
};

}  // namespace megascale::driver
