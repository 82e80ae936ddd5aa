#include "controlplane/driver/storage/testing/test_faulty_files.h"

#include <filesystem>
#include <utility>

namespace megascale::driver {

using rocksdb::FSWritableFile;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

class FaultyFiles::File : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  File(FaultyFiles* files, std::string path, std::unique_ptr<FSWritableFile> file)
      : FSWritableFileOwnerWrapper(std::move(file)), files_(*files), path_(std::move(path)) {}

  IOStatus Append(const Slice& data, const IOOptions& options, IODebugContext* debug) override {
    switch (files_.Next(false)) {
      case Harm::kNone:
        break;
      case Harm::kNoSpace:
        return IOStatus::NoSpace("injected");
      case Harm::kShortWrite: {
        const Slice half(data.data(), data.size() / 2);
        if (target()->Append(half, options, debug).ok()) files_.OnWritten(path_, half.size());
        return IOStatus::IOError("injected: short write");
      }
      default:
        return IOStatus::IOError("injected: write");
    }
    IOStatus status = target()->Append(data, options, debug);
    if (status.ok()) files_.OnWritten(path_, data.size());
    return status;
  }
  IOStatus Append(const Slice& data, const IOOptions& options,
                  const rocksdb::DataVerificationInfo& info, IODebugContext* debug) override {
    return Append(data, options, debug);
  }
  IOStatus Sync(const IOOptions& options, IODebugContext* debug) override {
    if (files_.Next(true) != Harm::kNone) return IOStatus::IOError("injected: sync");
    IOStatus status = target()->Sync(options, debug);
    if (status.ok()) files_.OnSynced(path_);
    return status;
  }
  IOStatus Fsync(const IOOptions& options, IODebugContext* debug) override {
    return Sync(options, debug);
  }

 private:
  FaultyFiles& files_;
  const std::string path_;
};

void FaultyFiles::HarmFrom(int64_t effect, Harm harm) {
  std::lock_guard<std::mutex> lock(mutex_);
  harm_from_ = num_effects_ + effect;
  harm_ = harm;
}

int64_t FaultyFiles::num_effects() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return num_effects_;
}

FaultyFiles::Harm FaultyFiles::Next(bool is_sync) {
  std::lock_guard<std::mutex> lock(mutex_);
  const bool due = harm_ != Harm::kNone && num_effects_ >= harm_from_;
  ++num_effects_;
  if (!due) return Harm::kNone;
  // A disk that fails to sync still accepts writes.
  return harm_ == Harm::kSyncFails && !is_sync ? Harm::kNone : harm_;
}

void FaultyFiles::OnWritten(const std::string& path, uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  files_[path].written += bytes;
}

void FaultyFiles::OnSynced(const std::string& path) {
  std::lock_guard<std::mutex> lock(mutex_);
  files_[path].synced = files_[path].written;
}

void FaultyFiles::Crash(double torn) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [path, sizes] : files_) {
    if (!std::filesystem::exists(path)) continue;
    sizes.synced += static_cast<uint64_t>(torn * static_cast<double>(sizes.written - sizes.synced));
    sizes.written = sizes.synced;
    std::filesystem::resize_file(path, sizes.synced);
  }
  num_effects_ = 0;
  harm_ = Harm::kNone;
}

IOStatus FaultyFiles::NewWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                      std::unique_ptr<FSWritableFile>* result,
                                      IODebugContext* debug) {
  std::unique_ptr<FSWritableFile> file;
  // Sizes are counted here, so a file must not be larger than the bytes written.
  rocksdb::FileOptions plain = options;
  plain.use_mmap_writes = false;
  plain.fallocate_with_keep_size = true;
  IOStatus status = target()->NewWritableFile(path, plain, &file, debug);
  if (!status.ok()) return status;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    files_[path] = {};
  }
  *result = std::make_unique<File>(this, path, std::move(file));
  return status;
}

IOStatus FaultyFiles::RenameFile(const std::string& from, const std::string& to,
                                 const IOOptions& options, IODebugContext* debug) {
  IOStatus status = target()->RenameFile(from, to, options, debug);
  std::lock_guard<std::mutex> lock(mutex_);
  if (auto moved = files_.extract(from); status.ok() && !moved.empty()) {
    files_[to] = moved.mapped();
  }
  return status;
}

IOStatus FaultyFiles::DeleteFile(const std::string& path, const IOOptions& options,
                                 IODebugContext* debug) {
  IOStatus status = target()->DeleteFile(path, options, debug);
  std::lock_guard<std::mutex> lock(mutex_);
  if (status.ok()) files_.erase(path);
  return status;
}

}  // namespace megascale::driver
