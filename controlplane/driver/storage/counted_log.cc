#include "controlplane/driver/storage/counted_log.h"

#include <compare>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "runtime/base/checksum.h"
#include "runtime/base/status.h"

namespace megascale::driver {
namespace {

constexpr size_t kCountBytesMax = 128;

// How far a log goes.
struct Count {
  int64_t epoch = 0;
  int64_t num_events = 0;
  auto operator<=>(const Count&) const = default;
};

// With a checksum: a damaged file must not claim a loss.
std::string TextOf(const Count& count) {
  const std::string text = absl::StrCat(count.epoch, " ", count.num_events);
  return absl::StrFormat("%s %016x\n", text, base::Xxh3(text.data(), text.size()));
}

void Add(const std::vector<Event>& events, Count* count) {
  for (const Event& event : events) {
    if (event.driver_started().epoch() != 0) count->epoch = event.driver_started().epoch();
  }
  count->num_events += static_cast<int64_t>(events.size());
}

Count CountOf(const LogContents& contents) {
  Count count = {contents.state.epoch(), contents.state.num_events()};
  Add(contents.events, &count);
  return count;
}

// Returns what the file says; zeros: there is no file, or it is not whole.
Count ReadCount(const std::string& path, JobFiles* files) {
  const absl::StatusOr<std::string> text = files->ReadAt(path, 0, kCountBytesMax);
  if (!text.ok()) return {};
  const std::vector<absl::string_view> words = absl::StrSplit(*text, ' ');
  Count count;
  const bool are_numbers = words.size() == 3 && absl::SimpleAtoi(words[0], &count.epoch) &&
                           absl::SimpleAtoi(words[1], &count.num_events);
  return are_numbers && TextOf(count) == *text ? count : Count();
}

absl::Status Compare(const Count& found, const Count& acknowledged, const std::string& path) {
  if (found >= acknowledged) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "the driver's log has ", found.num_events, " events in epoch ", found.epoch, ", but ",
      acknowledged.num_events, " in epoch ", acknowledged.epoch, " were acknowledged (", path,
      "): its end was damaged, or it is an older copy; put the newest log back, make one of a copy "
      "with `megascale driver restore`, or give another --state-dir"));
}

class CountedLog : public EventLog {
 public:
  CountedLog(std::unique_ptr<EventLog> log, std::string count_path, JobFiles* files)
      : log_(std::move(log)), count_path_(std::move(count_path)), files_(*files) {}

  absl::StatusOr<LogContents> ReadAll() override {
    ASSIGN_OR_RETURN(LogContents contents, log_->ReadAll());
    count_ = CountOf(contents);
    RETURN_IF_ERROR(Compare(count_, ReadCount(count_path_, &files_), count_path_));
    return contents;
  }

  absl::Status Append(int64_t num_before, const std::vector<Event>& events) override {
    RETURN_IF_ERROR(log_->Append(num_before, events));
    count_.num_events = num_before;
    Add(events, &count_);
    return files_.WriteSoon(count_path_, TextOf(count_));
  }

  absl::Status WriteSnapshot(const DriverState& state) override {
    return log_->WriteSnapshot(state);
  }

 private:
  const std::unique_ptr<EventLog> log_;
  const std::string count_path_;
  JobFiles& files_;
  Count count_;
};

}  // namespace

std::string CountPathOf(absl::string_view state_directory) {
  return absl::StrCat(state_directory, "/log.events");
}

absl::Status CheckCount(const std::string& state_directory, JobFiles* files) {
  const std::string path = CountPathOf(state_directory);
  // First: another driver may append meanwhile.
  const Count acknowledged = ReadCount(path, files);
  if (acknowledged == Count()) return absl::OkStatus();  // any log has as many
  const absl::StatusOr<LogContents> contents =
      ReadRocksDbLog(absl::StrCat(state_directory, "/log"));
  return contents.ok() ? Compare(CountOf(*contents), acknowledged, path) : absl::OkStatus();
}

std::unique_ptr<EventLog> CountEvents(std::unique_ptr<EventLog> log, const std::string& count_path,
                                      JobFiles* files) {
  return std::make_unique<CountedLog>(std::move(log), count_path, files);
}

}  // namespace megascale::driver
