#include "controlplane/driver/storage/loss_log.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/storage/loss_line.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace megascale::driver {
namespace {

// The end of a file, in whole lines.
struct Tail {
  size_t begin = 0;  // offset of `text`
  std::string text;
};

constexpr size_t kTailBlockBytes = size_t{256} << 10;

// Reads whole lines backwards from `end` until `is_enough` or the beginning of the file.
absl::StatusOr<Tail> ReadTail(const std::string& path, JobFiles* files, size_t end,
                              const std::function<bool(const std::string&)>& is_enough) {
  std::string text;
  size_t begin = end;
  for (size_t block = kTailBlockBytes;; block *= 2) {
    const size_t size = std::min(block, begin);
    ASSIGN_OR_RETURN(std::string before, files->ReadAt(path, begin - size, size));
    begin -= size;
    text.insert(0, before);
    // The first line may have begun earlier.
    const size_t whole = begin == 0 ? 0 : text.find('\n') + 1;
    if (begin == 0 || (whole != 0 && is_enough(text.substr(whole)))) {
      return Tail{begin + whole, text.substr(whole)};
    }
  }
}

// Calls `take` with each record and the offset at which its line begins, until it returns false.
// Returns the number of lines that are no records.
int64_t ForEachRecord(absl::string_view text,
                      const std::function<bool(const LossLog::StepRecord&, size_t)>& take) {
  int64_t num_bad = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const auto record = FromLossLine(text.substr(begin, end - begin));
    if (!record.ok()) {
      ++num_bad;
    } else if (!take(*record, begin)) {
      break;
    }
    begin = end + 1;
  }
  return num_bad;
}

// Returns true if a file whose newest records are `found` has, in place of `records` or after them,
// others.
bool Contradicts(const RecentSteps& found, const std::vector<LossLog::StepRecord>& records) {
  size_t next = 0;
  for (const LossLog::StepRecord& record : found) {
    if (record.step() < records.front().step()) continue;
    if (next == records.size() || records[next].step() != record.step() ||
        records[next].attempt() != record.attempt()) {
      return true;
    }
    ++next;
  }
  return false;
}

}  // namespace

LossLog::LossLog(std::string path, JobFiles* files, std::unique_ptr<AppendedFile> file)
    : path_(std::move(path)), files_(*files), file_(std::move(file)) {}

absl::StatusOr<std::unique_ptr<LossLog>> LossLog::Open(const std::string& directory,
                                                       JobFiles* files) {
  const std::string path = absl::StrCat(directory, "/", kLossLogFile);
  ASSIGN_OR_RETURN(std::unique_ptr<AppendedFile> file, files->OpenAppended(path));
  ASSIGN_OR_RETURN(const size_t size, files->Size(path));
  const auto has_end = [](const std::string& text) { return !text.empty(); };
  ASSIGN_OR_RETURN(const Tail tail, ReadTail(path, files, size, has_end));
  const size_t whole = tail.begin + tail.text.rfind('\n') + 1;  // npos + 1 is 0
  if (whole < size) RETURN_IF_ERROR(file->CutTo(whole));
  // The process that wrote the last lines may have ended before its Sync.
  RETURN_IF_ERROR(file->Sync());
  std::unique_ptr<LossLog> log(new LossLog(path, files, std::move(file)));
  RETURN_IF_ERROR(log->Load(whole));
  return log;
}

absl::Status LossLog::Load(size_t size_bytes) {
  recent_.Clear();
  next_step_ = 0;
  const auto is_enough = [](const std::string& text) {
    return std::count(text.begin(), text.end(), '\n') > static_cast<std::ptrdiff_t>(kRecentMax);
  };
  ASSIGN_OR_RETURN(const Tail tail, ReadTail(path_, &files_, size_bytes, is_enough));
  int64_t num_unordered = 0;
  int64_t num_bad = ForEachRecord(tail.text, [&](const StepRecord& record, size_t) {
    if (next_step_ != 0 && record.step() < next_step_) {
      ++num_unordered;
      return true;
    }
    next_step_ = record.step() + 1;
    recent_.Load(record);
    return true;
  });
  num_bad += num_unordered;
  if (num_bad > 0) {
    base::LogWarning(absl::StrCat(path_, ": ", num_bad, num_bad == 1 ? " line" : " lines",
                                  " of its end cannot be read or are out of order; these steps "
                                  "are missing"));
  }
  synced_step_ = last_step();
  synced_position_ = recent_.end_position();
  return absl::OkStatus();
}

absl::Status LossLog::Append(const StepRecord& record) {
  if (next_step_ != 0 && record.step() != next_step_) return absl::OkStatus();
  RETURN_IF_ERROR(file_->Append(ToLossLine(record)));
  next_step_ = record.step() + 1;
  recent_.Append(record);
  dirty_ = true;
  return absl::OkStatus();
}

absl::Status LossLog::Sync() {
  if (!dirty_) return absl::OkStatus();
  RETURN_IF_ERROR(file_->Sync());
  dirty_ = false;
  synced_step_ = last_step();
  synced_position_ = recent_.end_position();
  return absl::OkStatus();
}

absl::StatusOr<std::string> LossLog::Mend() {
  if (IsAtItsPath()) return "";
  const std::string directory = path_.substr(0, path_.size() - sizeof(kLossLogFile));
  ASSIGN_OR_RETURN(const std::unique_ptr<LossLog> found, Open(directory, &files_));
  const std::vector<StepRecord> records(recent_.begin(), recent_.end());
  std::string told = found->DescribeLoss(records, records.size() < kRecentMax);
  RETURN_IF_ERROR(found->PutBack(records));
  file_ = std::move(found->file_);
  return told;
}

absl::Status LossLog::PutBack(const std::vector<StepRecord>& records) {
  if (records.empty()) return absl::OkStatus();
  if (Contradicts(recent_, records)) RETURN_IF_ERROR(DropAfter(records.front().step() - 1));
  for (const StepRecord& record : records) {
    GoOnAt(record.step());
    RETURN_IF_ERROR(Append(record));
  }
  return Sync();
}

std::string LossLog::DescribeLoss(const std::vector<StepRecord>& records, bool is_all) const {
  std::string told =
      absl::StrCat(path_, last_step() == 0 ? " was deleted or moved" : " was replaced or damaged",
                   " while the driver wrote it; the driver added the steps that it had in memory");
  if (records.empty()) return told;
  const int64_t first = records.front().step();
  absl::StrAppend(&told, ", from step ", first, " on");
  if (last_step() == 0 && !is_all) {
    absl::StrAppend(&told, "; the steps before step ", first, " were lost");
  } else if (last_step() > 0 && last_step() + 1 < first) {
    absl::StrAppend(&told, "; the steps from ", last_step() + 1, " to ", first - 1, " were lost");
  }
  return told;
}

void LossLog::ContinueFrom(int64_t step, int64_t position) {
  recent_.ContinueFrom(position);
  synced_position_ = position;
  // Steps that readers have got are gone: they were cut, or their lines are damaged.
  if (last_step() != step) recent_.NoteCut(position);
}

absl::StatusOr<LossLog::Rest> LossLog::FindRest(int64_t step, int64_t attempt) {
  ASSIGN_OR_RETURN(const size_t size, files_.Size(path_));
  const auto has_kept_line = [&](const std::string& text) {
    bool kept = false;
    ForEachRecord(text, [&](const StepRecord& record, size_t) {
      kept = record.step() <= step || record.attempt() >= attempt;
      return false;
    });
    return kept;
  };
  ASSIGN_OR_RETURN(const Tail tail, ReadTail(path_, &files_, size, has_kept_line));
  size_t cut = tail.text.rfind('\n') + 1;  // npos + 1 is 0
  std::string text;
  ForEachRecord(tail.text, [&](const StepRecord& record, size_t begin) {
    if (record.step() <= step || record.attempt() >= attempt) return true;
    cut = begin;
    text = tail.text.substr(cut);
    return false;
  });
  return Rest{tail.begin + cut, size, std::move(text)};
}

absl::Status LossLog::CutTo(int64_t step, int64_t attempt) {
  ASSIGN_OR_RETURN(const Rest rest, FindRest(step, attempt));
  const auto is_cut = [&](const StepRecord& record) {
    return record.step() > step && record.attempt() < attempt;
  };
  const auto num_cut = std::count_if(recent_.begin(), recent_.end(), is_cut);
  if (rest.begin == rest.end && num_cut == 0) {
    RETURN_IF_ERROR(Sync());
  } else {
    // The copy is durable before the original is cut. After a crash between them both are repeated.
    const std::string stem = path_.substr(0, path_.size() - sizeof(kLossLogFile) + 1);
    const std::string copy = absl::StrCat(stem, "metrics.attempt-", attempt - 1, ".jsonl");
    if (!rest.text.empty()) RETURN_IF_ERROR(files_.WriteDurably(copy, rest.text));
    RETURN_IF_ERROR(file_->CutTo(rest.begin));
    std::vector<StepRecord> kept;
    std::remove_copy_if(recent_.begin(), recent_.end(), std::back_inserter(kept), is_cut);
    RETURN_IF_ERROR(LoadKept(rest.begin, kept));
    recent_.NoteCut(num_cut);
    dirty_ = false;
  }
  if (step == 0) next_step_ = std::max<int64_t>(next_step_, 1);
  return absl::OkStatus();
}

absl::Status LossLog::LoadKept(size_t size_bytes, const std::vector<StepRecord>& kept) {
  const RecentSteps before = recent_;
  const auto next_step = next_step_;
  const auto synced_step = synced_step_;
  const auto synced_position = synced_position_;
  absl::Status loaded = Load(size_bytes);
  if (loaded.ok()) loaded = PutBackDamaged(kept);
  if (loaded.ok()) return loaded;
  // The caller still has the steps, and who opens the log again puts them back.
  recent_ = before;
  next_step_ = next_step;
  synced_step_ = synced_step;
  synced_position_ = synced_position;
  return loaded;
}

// Their lines may have been damaged on the disk since they were written, and nobody else has them.
// Drops no line: the file has each step at least as long as this takes.
absl::Status LossLog::PutBackDamaged(const std::vector<StepRecord>& records) {
  if (records.empty()) return absl::OkStatus();
  if (!Contradicts(recent_, records) && last_step() >= records.back().step()) {
    return absl::OkStatus();
  }
  for (const StepRecord& record : records) {
    if (record.step() > last_step()) RETURN_IF_ERROR(file_->Append(ToLossLine(record)));
  }
  RETURN_IF_ERROR(file_->Sync());
  base::LogWarning(absl::StrCat(path_, ": lines of its end, of steps from ", records.front().step(),
                                " to ", records.back().step(),
                                ", were damaged on the disk; the driver has written the steps ",
                                "after step ", last_step(), " again, from memory"));
  const RecentSteps found = recent_;
  recent_.Clear();
  for (const StepRecord& record : found) {
    if (record.step() < records.front().step()) recent_.Load(record);
  }
  for (const StepRecord& record : records) recent_.Load(record);
  next_step_ = last_step() + 1;
  synced_step_ = last_step();
  return absl::OkStatus();
}

void LossLog::GoOnAt(int64_t step) {
  if (!HasGapBefore(step)) return;
  base::LogWarning(absl::StrCat(path_, ": steps ", next_step_, " to ", step - 1,
                                " were lost; goes on with step ", step));
  next_step_ = step;
}

absl::Status LossLog::DropAfter(int64_t step) {
  ASSIGN_OR_RETURN(const Rest rest, FindRest(step, std::numeric_limits<int64_t>::max()));
  RETURN_IF_ERROR(file_->CutTo(rest.begin));
  return Load(rest.begin);
}

}  // namespace megascale::driver
