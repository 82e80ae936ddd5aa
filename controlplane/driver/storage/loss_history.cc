#include "controlplane/driver/storage/loss_history.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/storage/loss_line.h"
#include "runtime/base/status.h"

namespace megascale::driver {
namespace {

using megascale::telemetry::v1::StepRecord;

// Longer than any line.
constexpr size_t kProbeBytes = 512;
constexpr size_t kHistoryBlockBytes = size_t{64} << 10;
// The search ends here; the rest is read.
constexpr size_t kSearchEndBytes = 4096;

std::string PathOf(const std::string& directory) {
  return absl::StrCat(directory, "/", kLossLogFile);
}

// Calls `take` for the records of whole lines from `begin` on, until it returns false. A line that
// has no end is still being written.
absl::Status ForEachRecord(const std::string& path, JobFiles* files, size_t begin,
                           const std::function<bool(const StepRecord&)>& take) {
  std::string text;
  for (;;) {
    ASSIGN_OR_RETURN(const std::string block, files->ReadAt(path, begin, kHistoryBlockBytes));
    if (block.empty()) return absl::OkStatus();
    begin += block.size();
    text += block;
    size_t line = 0;
    for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', line)) {
      const auto record = FromLossLine(absl::string_view(text).substr(line, end - line));
      line = end + 1;
      if (record.ok() && !take(*record)) return absl::OkStatus();
    }
    text.erase(0, line);
    if (text.size() > kHistoryBlockBytes) text.clear();  // no line is so long
  }
}

// Returns the first record that begins in the bytes at `offset`; nullopt: there is none.
absl::StatusOr<std::optional<StepRecord>> RecordAt(const std::string& path, JobFiles* files,
                                                   size_t offset) {
  ASSIGN_OR_RETURN(const std::string text, files->ReadAt(path, offset, kProbeBytes));
  size_t begin = offset == 0 ? 0 : text.find('\n') + 1;
  if (offset != 0 && begin == 0) return std::nullopt;
  for (size_t end = text.find('\n', begin); end != std::string::npos;
       end = text.find('\n', begin)) {
    const auto record = FromLossLine(absl::string_view(text).substr(begin, end - begin));
    if (record.ok()) return *record;
    begin = end + 1;
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<StepRecords> ReadSteps(const std::string& directory, JobFiles* files,
                                      int64_t first_step, int64_t steps_max) {
  const std::string path = PathOf(directory);
  StepRecords records;
  if (!files->Exists(path) || steps_max <= 0) return records;
  ASSIGN_OR_RETURN(size_t high, files->Size(path));
  size_t low = 0;  // every record that begins before it has an earlier step
  while (high > low + kSearchEndBytes) {
    const size_t middle = low + (high - low) / 2;
    ASSIGN_OR_RETURN(const auto record, RecordAt(path, files, middle));
    if (record.has_value() && record->step() < first_step) {
      low = middle;
    } else {
      high = middle;
    }
  }
  int64_t last = first_step - 1;
  // The first line may be the rest of one; it is no record then.
  RETURN_IF_ERROR(ForEachRecord(path, files, low, [&](const StepRecord& record) {
    if (record.step() <= last) return true;
    last = record.step();
    records.push_back(record);
    return static_cast<int64_t>(records.size()) < steps_max;
  }));
  return records;
}

absl::StatusOr<StepRecords> ReadLastSteps(const std::string& directory, JobFiles* files,
                                          int64_t steps_max) {
  const std::string path = PathOf(directory);
  StepRecords records;
  if (!files->Exists(path) || steps_max <= 0) return records;
  ASSIGN_OR_RETURN(const size_t size, files->Size(path));
  const size_t most = static_cast<size_t>(steps_max) * kProbeBytes;
  // The first line may be the rest of one; it is no record then.
  RETURN_IF_ERROR(
      ForEachRecord(path, files, size > most ? size - most : 0, [&](const StepRecord& record) {
        if (records.empty() || record.step() > records.back().step()) records.push_back(record);
        return true;
      }));
  const auto num_old = static_cast<int64_t>(records.size()) - steps_max;
  if (num_old > 0) records.erase(records.begin(), records.begin() + num_old);
  return records;
}

absl::StatusOr<StepRecords> SampleSteps(const std::string& directory, JobFiles* files,
                                        int64_t points) {
  const std::string path = PathOf(directory);
  if (!files->Exists(path) || points <= 0) return StepRecords();
  ASSIGN_OR_RETURN(const size_t size, files->Size(path));
  if (size <= static_cast<size_t>(points) * kProbeBytes) {
    ASSIGN_OR_RETURN(StepRecords all,
                     ReadSteps(directory, files, 0, std::numeric_limits<int64_t>::max()));
    const auto count = static_cast<int64_t>(all.size());
    if (count <= points) return all;
    StepRecords some;
    for (int64_t i = 0; i < points; ++i) {
      const int64_t index = points == 1 ? count - 1 : i * (count - 1) / (points - 1);
      some.push_back(all[static_cast<size_t>(index)]);
    }
    return some;
  }
  StepRecords records;
  for (int64_t i = 0; i < points; ++i) {
    const size_t last = size - kProbeBytes;
    const size_t offset = points == 1 ? last : last / static_cast<size_t>(points - 1) * i;
    ASSIGN_OR_RETURN(const auto record, RecordAt(path, files, offset));
    if (!record.has_value()) continue;
    if (records.empty() || record->step() > records.back().step()) records.push_back(*record);
  }
  const int64_t next = records.empty() ? 0 : records.back().step() + 1;
  ASSIGN_OR_RETURN(const StepRecords rest,
                   ReadSteps(directory, files, next, static_cast<int64_t>(kProbeBytes)));
  if (!rest.empty()) records.push_back(rest.back());
  return records;
}

}  // namespace megascale::driver
