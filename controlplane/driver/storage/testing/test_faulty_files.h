// A file system for RocksDB that fails on purpose and loses unsynced data in a crash.
// Threads: any, because RocksDB also writes from its own threads.
#pragma once

#include <rocksdb/file_system.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace megascale::driver {

class FaultyFiles : public rocksdb::FileSystemWrapper {
 public:
  enum class Harm {
    kNone,
    kWriteFails,  // nothing is written
    kShortWrite,  // half of the data is written
    kNoSpace,
    kSyncFails,  // what was written may be lost
  };

  FaultyFiles() : FileSystemWrapper(rocksdb::FileSystem::Default()) {}
  const char* Name() const override { return "FaultyFiles"; }

  // Makes every write or sync from the n-th on (0: the next) fail as `harm` says, until Crash.
  void HarmFrom(int64_t effect, Harm harm);
  // Returns the number of writes and syncs since the construction or the last Crash.
  int64_t num_effects() const;
  // Cuts every file back to its synced bytes plus the fraction `torn` (0 to 1) of its unsynced
  // ones, as a power failure would. Requires: no file is open.
  void Crash(double torn);

  rocksdb::IOStatus NewWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* result,
                                    rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus RenameFile(const std::string& from, const std::string& to,
                               const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus DeleteFile(const std::string& path, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override;

 private:
  class File;
  struct Sizes {
    uint64_t written = 0;
    uint64_t synced = 0;
  };

  // Returns the harm to the next write or sync.
  Harm Next(bool is_sync);
  void OnWritten(const std::string& path, uint64_t bytes);
  void OnSynced(const std::string& path);

  mutable std::mutex mutex_;
  std::map<std::string, Sizes> files_;
  int64_t num_effects_ = 0;
  int64_t harm_from_ = 0;
  Harm harm_ = Harm::kNone;
};

}  // namespace megascale::driver
