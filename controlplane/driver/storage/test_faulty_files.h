// A file system for RocksDB that fails on purpose, and that forgets at a crash what was not synced.
// Threads: any, because RocksDB writes from its own too.
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
    kWriteFails,  // nothing of it is written
    kShortWrite,  // half of it is written
    kNoSpace,
    kSyncFails,  // what was written may be lost
  };

  FaultyFiles() : FileSystemWrapper(rocksdb::FileSystem::Default()) {}
  const char* Name() const override { return "FaultyFiles"; }

  // From the n-th write or sync on (0: the next), each fails as `harm` says, until Crash.
  void HarmFrom(int64_t effect, Harm harm);
  // Effects since the construction or the last Crash.
  int64_t num_effects() const;
  // Cuts every file back to what was synced and `torn` of the bytes that were not (0 to 1), as a
  // machine without power would. Requires: nobody has a file open.
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

  // What happens to the next effect.
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
