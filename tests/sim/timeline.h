// Virtual time: the queue of scheduled events, and the trace of past ones. A simulation has no
// other clock, so a run is a function of its seed.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace megascale::sim {

class Timeline {
 public:
  // `print`: print every line of the trace to standard output as it happens.
  explicit Timeline(bool print) : print_(print) {}

  absl::Duration now() const { return now_; }
  // Schedules `run`. Events of the same time run in the order in which they were scheduled.
  void At(absl::Duration when, std::function<void()> run);
  void After(absl::Duration delay, std::function<void()> run) { At(now_ + delay, std::move(run)); }
  // Runs the next event; returns false if the queue is empty.
  bool RunNext();

  // Adds a line to the trace, and prints it if `print`: "12.345678 s  n3        what".
  void Say(absl::string_view who, absl::string_view what);
  // Adds a line of bytes to the trace; `in_words` is called only to print it.
  void Say(absl::string_view who, absl::string_view bytes,
           const std::function<std::string()>& in_words);
  // The hash of all lines so far, with their times.
  uint64_t hash() const { return hash_; }
  int64_t num_lines() const { return num_lines_; }

 private:
  struct Entry {
    int64_t when;  // in nanoseconds
    uint64_t number;
    std::function<void()> run;
    bool operator<(const Entry& other) const {  // the largest runs first
      return when != other.when ? when > other.when : number > other.number;
    }
  };
  void Mix(absl::string_view bytes);

  const bool print_;
  absl::Duration now_ = absl::ZeroDuration();
  uint64_t num_entries_ = 0;
  std::priority_queue<Entry> entries_;
  uint64_t hash_ = 0xcbf29ce484222325;  // FNV-1a
  int64_t num_lines_ = 0;
};

}  // namespace megascale::sim
