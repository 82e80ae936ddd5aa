#include "controlplane/driver/event_log.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace megascale::driver {
namespace {

class MemoryLog : public LogStore {
 public:
  explicit MemoryLog(LogContents* contents) : contents_(*contents) {}

  absl::StatusOr<LogContents> ReadAll() override { return contents_; }

  absl::Status Append(int64_t num_before, const std::vector<Event>& events) override {
    MEGASCALE_CHECK(num_before ==
                    contents_.state.num_events() + static_cast<int64_t>(contents_.events.size()));
    contents_.events.insert(contents_.events.end(), events.begin(), events.end());
    return absl::OkStatus();
  }

  absl::Status WriteSnapshot(const DriverState& state) override {
    const int64_t covered = state.num_events() - contents_.state.num_events();
    MEGASCALE_CHECK(covered >= 0 && covered <= static_cast<int64_t>(contents_.events.size()));
    contents_.state = state;
    contents_.events.erase(contents_.events.begin(), contents_.events.begin() + covered);
    return absl::OkStatus();
  }

 private:
  LogContents& contents_;
};

}  // namespace

std::unique_ptr<LogStore> MakeMemoryLog(LogContents* contents) {
  return std::make_unique<MemoryLog>(contents);
}

}  // namespace megascale::driver
