#include "controlplane/driver/storage/testing/simulated_disk.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"

namespace megascale::driver {

void SimulatedDisk::SetFaults(FateOf fate, Remainder remainder) {
  fate_ = std::move(fate);
  remainder_ = std::move(remainder);
}

void SimulatedDisk::FailOn(const std::string& part) {
  const auto fate = [part](absl::string_view effect) {
    return !part.empty() && absl::StrContains(effect, part) ? Fate::kFails : Fate::kDone;
  };
  SetFaults(fate, {});
}

absl::Status SimulatedDisk::Do(const std::string& effect) {
  switch (fate_ ? fate_(effect) : Fate::kDone) {
    case Fate::kDone:
      return absl::OkStatus();
    case Fate::kFails:
      return absl::UnavailableError(absl::StrCat(effect, ": input/output error"));
    case Fate::kDies:
      return absl::AbortedError(absl::StrCat(effect, ": the process ended"));
  }
  return absl::InternalError(effect);
}

void SimulatedDisk::Crash() {
  if (!unsynced_.empty()) {
    const size_t left = remainder_ ? remainder_(unsynced_.size()) : 0;
    MEGASCALE_CHECK(left <= unsynced_.size());
    log_.events.insert(log_.events.end(), unsynced_.begin(),
                       unsynced_.begin() + static_cast<std::ptrdiff_t>(left));
    unsynced_.clear();
  }
  for (auto& [path, file] : files_) {
    const size_t unsynced = file->content.size() - file->synced;
    if (unsynced == 0) continue;
    file->content.resize(file->synced + (remainder_ ? remainder_(unsynced) : 0));
    file->synced = file->content.size();
  }
}

template <typename Records>
absl::Status SimulatedDisk::CheckSizes(const Records& records) const {
  for (const auto& record : records) {
    RETURN_IF_ERROR(base::Serialize(record, record_bytes_max_).status());
  }
  return absl::OkStatus();
}

// --- the log ----------------------------------------------------------------------------------

class SimulatedDisk::Log : public EventLog {
 public:
  explicit Log(SimulatedDisk* disk) : disk_(*disk) {}

  absl::StatusOr<LogContents> ReadAll() override {
    RETURN_IF_ERROR(disk_.log_error_);
    return disk_.log_;
  }

  absl::Status Append(int64_t num_before, const std::vector<Event>& events) override {
    MEGASCALE_CHECK(num_before == NumEvents(disk_.log_));
    RETURN_IF_ERROR(disk_.CheckSizes(events));
    RETURN_IF_ERROR(disk_.Do("append to the log"));
    disk_.unsynced_ = events;
    RETURN_IF_ERROR(disk_.Do("sync the log"));
    disk_.log_.events.insert(disk_.log_.events.end(), events.begin(), events.end());
    disk_.unsynced_.clear();
    return absl::OkStatus();
  }

  absl::Status WriteSnapshot(const DriverState& state) override {
    RETURN_IF_ERROR(disk_.CheckSizes(state.jobs()));
    RETURN_IF_ERROR(disk_.CheckSizes(state.nodes()));
    RETURN_IF_ERROR(disk_.Do("write a snapshot"));
    LogContents& log = disk_.log_;
    const int64_t covered = state.num_events() - log.state.num_events();
    MEGASCALE_CHECK(covered >= 0 && covered <= static_cast<int64_t>(log.events.size()));
    log.state = state;
    log.events.erase(log.events.begin(), log.events.begin() + covered);
    return absl::OkStatus();
  }

 private:
  SimulatedDisk& disk_;
};

std::unique_ptr<EventLog> SimulatedDisk::OpenLog() { return std::make_unique<Log>(this); }

void SimulatedDisk::ReplaceLog(LogContents contents) {
  log_ = std::move(contents);
  undamaged_.reset();
  log_error_ = absl::OkStatus();
}

bool SimulatedDisk::DamageLog(LogDamage damage, size_t choice) {
  MEGASCALE_CHECK(!is_log_damaged());
  // The machine goes on, and with it all that the process wrote.
  log_.events.insert(log_.events.end(), unsynced_.begin(), unsynced_.end());
  unsynced_.clear();
  for (auto& [path, file] : files_) file->synced = file->content.size();
  const LogContents before = log_;
  if (damage == LogDamage::kOlderCopy) {
    if (!copy_.has_value()) return false;
    log_ = *copy_;
  } else if (log_.events.size() < 2) {
    return false;
  } else if (damage == LogDamage::kLostEnd) {
    log_.events.resize(choice % log_.events.size());
  } else {
    // Without its last event it would be a log that lost its end.
    const size_t index = choice % (log_.events.size() - 1);
    const int64_t number = log_.state.num_events() + 1 + static_cast<int64_t>(index);
    log_error_ = absl::DataLossError(absl::StrCat(
        "event ", number, damage == LogDamage::kFlipped ? " cannot be read" : " is missing"));
  }
  if (log_error_.ok() && NumEvents(log_) == NumEvents(before)) return false;
  undamaged_ = before;
  return true;
}

void SimulatedDisk::MendLog() {
  if (is_log_damaged()) ReplaceLog(*std::move(undamaged_));
}

// --- files ------------------------------------------------------------------------------------

class SimulatedDisk::OpenFile : public AppendedFile {
 public:
  OpenFile(SimulatedDisk* disk, std::string path)
      : disk_(*disk), path_(std::move(path)), file_(disk_.files_[path_]) {}

  absl::Status Append(absl::string_view data) override {
    RETURN_IF_ERROR(disk_.Do(absl::StrCat("append to ", path_)));
    file_->content.append(data.data(), data.size());
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    RETURN_IF_ERROR(disk_.Do(absl::StrCat("sync ", path_)));
    file_->synced = file_->content.size();
    return absl::OkStatus();
  }

  absl::Status CutTo(size_t size_bytes) override {
    RETURN_IF_ERROR(disk_.Do(absl::StrCat("cut ", path_)));
    MEGASCALE_CHECK(size_bytes <= file_->content.size());
    file_->content.resize(size_bytes);
    file_->synced = size_bytes;
    return absl::OkStatus();
  }

  bool IsAtItsPath() override {
    const auto named = disk_.files_.find(path_);
    return named != disk_.files_.end() && named->second == file_;
  }

 private:
  SimulatedDisk& disk_;
  const std::string path_;
  const std::shared_ptr<File> file_;
};

absl::StatusOr<std::unique_ptr<AppendedFile>> SimulatedDisk::OpenAppended(const std::string& path) {
  RETURN_IF_ERROR(Do(absl::StrCat("open ", path)));
  if (!Exists(path)) files_[path] = std::make_shared<File>();
  return std::make_unique<OpenFile>(this, path);
}

absl::StatusOr<size_t> SimulatedDisk::Size(const std::string& path) {
  const auto file = files_.find(path);
  if (file == files_.end()) return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  return file->second->content.size();
}

absl::StatusOr<std::string> SimulatedDisk::ReadAt(const std::string& path, size_t offset,
                                                  size_t size_bytes) {
  const auto file = files_.find(path);
  if (file == files_.end()) return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  const std::string& content = file->second->content;
  return offset < content.size() ? content.substr(offset, size_bytes) : "";
}

void SimulatedDisk::Corrupt(const std::string& path, size_t offset, absl::string_view bytes) {
  const auto file = files_.find(path);
  if (file == files_.end()) return;
  std::string& content = file->second->content;
  for (size_t i = 0; i < bytes.size() && offset + i < content.size(); ++i) {
    content[offset + i] = bytes[i];
  }
}

void SimulatedDisk::ReplaceFile(const std::string& path, absl::string_view content) {
  files_[path] = std::make_shared<File>(File{std::string(content), content.size()});
}

absl::Status SimulatedDisk::WriteDurably(const std::string& path, absl::string_view data) {
  RETURN_IF_ERROR(Do(absl::StrCat("write ", path)));
  ReplaceFile(path, data);
  return absl::OkStatus();
}

absl::Status SimulatedDisk::WriteSoon(const std::string& path, absl::string_view data) {
  RETURN_IF_ERROR(Do(absl::StrCat("write, not synced, ", path)));
  files_[path] = std::make_shared<File>(File{std::string(data), 0});
  return absl::OkStatus();
}

}  // namespace megascale::driver
