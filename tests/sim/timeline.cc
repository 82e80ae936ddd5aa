#include "tests/sim/timeline.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_format.h"

namespace megascale::sim {

void Timeline::At(absl::Duration when, std::function<void()> run) {
  entries_.push({absl::ToInt64Nanoseconds(std::max(when, now_)), ++num_entries_, std::move(run)});
}

bool Timeline::RunNext() {
  if (entries_.empty()) return false;
  // The queue offers its top as constant; it is popped at once.
  std::function<void()> run = std::move(const_cast<Entry&>(entries_.top()).run);
  now_ = absl::Nanoseconds(entries_.top().when);
  entries_.pop();
  run();
  return true;
}

void Timeline::Mix(absl::string_view bytes) {
  for (const char byte : bytes) {
    hash_ = (hash_ ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  }
}

void Timeline::Say(absl::string_view who, absl::string_view what) {
  Say(who, what, [what] { return std::string(what); });
}

void Timeline::Say(absl::string_view who, absl::string_view bytes,
                   const std::function<std::string()>& in_words) {
  const int64_t now = absl::ToInt64Nanoseconds(now_);
  Mix(absl::string_view(reinterpret_cast<const char*>(&now), sizeof(now)));
  Mix(who);
  Mix(bytes);
  ++num_lines_;
  if (!print_) return;
  std::puts(
      absl::StrFormat("%12.6f s  %-9s %s", absl::ToDoubleSeconds(now_), who, in_words()).c_str());
}

}  // namespace megascale::sim
