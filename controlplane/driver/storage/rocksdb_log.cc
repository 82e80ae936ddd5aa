// The log in RocksDB. Keys: "schema" (a number), "snapshot" (a DriverState), "event/" and the
// event's number in 16 hexadecimal digits, so that they sort in order.
//
// Schemas: 1 - the first. 2 - adds events with numbers from 30 on, stages from 9 on, and rules. A
// program of schema 1 would silently ignore them. 3 - adds events with numbers from 34 on, epochs,
// pools, and rules 4.
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/options.h>
#include <rocksdb/write_batch.h>

#include <exception>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "controlplane/driver/core/driver_core.h"
#include "controlplane/driver/storage/event_log.h"
#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/base/version.h"

namespace megascale::driver {
namespace {

constexpr int kSchema = 4;
constexpr char kSchemaKey[] = "schema";
constexpr char kSnapshotKey[] = "snapshot";
constexpr char kEventPrefix[] = "event/";
constexpr char kRestore[] =
    "; the log was damaged: restore it from a copy, or give another --state-dir";

constexpr char kFreeSpace[] = "; free some space there";
constexpr char kFreeSpaceOrMove[] = "; free some space there, or choose another directory";

std::string EventKey(int64_t number) { return absl::StrFormat("%s%016x", kEventPrefix, number); }

absl::Status FromRocks(const rocksdb::Status& status, absl::string_view what) {
  if (status.ok()) return absl::OkStatus();
  const std::string message = absl::StrCat(what, ": ", status.ToString());
  if (status.IsCorruption()) return absl::DataLossError(message + kRestore);
  if (status.IsNoSpace()) return absl::ResourceExhaustedError(message + kFreeSpace);
  if (status.IsNotFound()) return absl::NotFoundError(message);
  return absl::UnavailableError(message);
}

rocksdb::WriteOptions Synced() {
  rocksdb::WriteOptions options;
  options.sync = true;
  return options;
}

class RocksDbLog : public EventLog {
 public:
  RocksDbLog(std::string directory, std::unique_ptr<rocksdb::Env> env,
             std::unique_ptr<rocksdb::DB> db)
      : directory_(std::move(directory)), env_(std::move(env)), db_(std::move(db)) {}

  // Returns the schema; 0: there is none.
  absl::StatusOr<int> ReadSchema() {
    std::string text;
    const rocksdb::Status status = db_->Get(rocksdb::ReadOptions(), kSchemaKey, &text);
    if (status.IsNotFound()) return 0;
    RETURN_IF_ERROR(FromRocks(status, directory_));
    int schema = 0;
    if (!absl::SimpleAtoi(text, &schema) || schema < 1) {
      return absl::DataLossError(
          absl::StrCat(directory_, ": its schema is '", text, "' where a number was expected"));
    }
    if (schema > kSchema) {
      return absl::FailedPreconditionError(
          absl::StrCat(directory_, ": was written by a newer megascale (schema ", schema,
                       "; this one, ", base::kVersion, ", reads up to ", kSchema,
                       "); run that version, or give another state directory"));
    }
    return schema;
  }

  absl::Status CheckSchema() {
    ASSIGN_OR_RETURN(const int schema, ReadSchema());
    if (schema == 0) return Begin();
    return schema < kSchema ? Upgrade(schema) : absl::OkStatus();
  }

  absl::StatusOr<LogContents> ReadAll() override {
    LogContents contents;
    std::string snapshot;
    const rocksdb::Status status = db_->Get(rocksdb::ReadOptions(), kSnapshotKey, &snapshot);
    if (!status.ok() && !status.IsNotFound()) return FromRocks(status, directory_);
    if (status.ok() && !contents.state.ParseFromString(snapshot)) {
      return absl::DataLossError(
          absl::StrCat(directory_, ": its snapshot cannot be read", kRestore));
    }
    int64_t number = contents.state.num_events();
    std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(rocksdb::ReadOptions()));
    for (it->Seek(kEventPrefix); it->Valid() && it->key().starts_with(kEventPrefix); it->Next()) {
      ++number;
      if (it->key().ToString() != EventKey(number)) {
        return absl::DataLossError(
            absl::StrCat(directory_, ": event ", number, " is missing", kRestore));
      }
      if (!contents.events.emplace_back().ParseFromArray(it->value().data(),
                                                         static_cast<int>(it->value().size()))) {
        return absl::DataLossError(
            absl::StrCat(directory_, ": event ", number, " cannot be read", kRestore));
      }
    }
    RETURN_IF_ERROR(FromRocks(it->status(), directory_));
    return contents;
  }

  absl::Status Append(int64_t num_before, const std::vector<Event>& events) override {
    rocksdb::WriteBatch batch;
    for (const Event& event : events) {
      batch.Put(EventKey(++num_before), event.SerializeAsString());
    }
    return FromRocks(db_->Write(Synced(), &batch), absl::StrCat("write ", directory_));
  }

  absl::Status WriteSnapshot(const DriverState& state) override {
    rocksdb::WriteBatch batch;
    PutSnapshot(state, &batch);
    return FromRocks(db_->Write(Synced(), &batch), absl::StrCat("write ", directory_));
  }

 private:
  // Requires: there is no schema.
  absl::Status Begin() {
    std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(rocksdb::ReadOptions()));
    it->SeekToFirst();
    RETURN_IF_ERROR(FromRocks(it->status(), directory_));
    if (it->Valid()) {
      return absl::DataLossError(absl::StrCat(directory_, ": has no schema version, but the entry ",
                                              base::Printable(it->key().ToString()), kRestore));
    }
    return FromRocks(db_->Put(Synced(), kSchemaKey, absl::StrCat(kSchema)), directory_);
  }

  // Replays the log by the rules of its time and replaces it by the resulting state. This is one
  // write: after a crash the directory has either the old or the new schema, complete.
  absl::Status Upgrade(int from) {
    ASSIGN_OR_RETURN(LogContents contents, ReadAll());
    for (const Event& event : contents.events) Apply(event, &contents.state);
    rocksdb::WriteBatch batch;
    PutSnapshot(contents.state, &batch);
    batch.Put(kSchemaKey, absl::StrCat(kSchema));
    RETURN_IF_ERROR(FromRocks(db_->Write(Synced(), &batch), absl::StrCat("upgrade ", directory_)));
    base::LogInfo(absl::StrCat(directory_, ": upgraded from schema ", from, " to ", kSchema));
    return absl::OkStatus();
  }

  static void PutSnapshot(const DriverState& state, rocksdb::WriteBatch* batch) {
    batch->Put(kSnapshotKey, state.SerializeAsString());
    batch->DeleteRange(EventKey(0), EventKey(state.num_events() + 1));
  }

  std::string directory_;
  std::unique_ptr<rocksdb::Env> env_;  // of db_
  std::unique_ptr<rocksdb::DB> db_;
};

rocksdb::Options SmallDatabase(rocksdb::Env* env) {
  rocksdb::Options options;
  options.env = env;
  options.create_if_missing = true;
  // Every write is synced, so only the tail of the newest log file can be torn by a crash.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  options.write_buffer_size = 4 << 20;
  options.max_background_jobs = 2;
  options.keep_log_file_num = 2;
  options.info_log_level = rocksdb::InfoLogLevel::WARN_LEVEL;
  return options;
}

// Without the file CURRENT, RocksDB takes a directory for a new one and deletes the tables there.
absl::Status CheckIsNewOrWhole(const std::string& directory) {
  std::error_code error;
  const std::filesystem::path path(directory);
  if (std::filesystem::exists(path / "CURRENT", error)) return absl::OkStatus();
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    const std::string extension = entry.path().extension().string();
    if (extension != ".sst" && extension != ".log") continue;
    return absl::DataLossError(absl::StrCat(directory, ": has ",
                                            base::Printable(entry.path().filename().string()),
                                            " but no file CURRENT", kRestore));
  }
  return absl::OkStatus();
}

// Returns what to do about a file system that fails.
absl::string_view AdviceOn(const rocksdb::Status& status) {
  if (status.IsNoSpace()) return kFreeSpaceOrMove;
  if (absl::StrContains(status.ToString(), "Read-only file system")) {
    return "; mount it for writing, or choose another directory";
  }
  return "; repair it, or choose another directory";
}

// Trying again would not help, so no code says "retry".
absl::Status CannotOpen(const rocksdb::Status& status, const std::string& directory) {
  const std::string what = absl::StrCat("open ", directory, ": ", status.ToString());
  if (status.IsCorruption() || status.IsNotFound() || status.IsInvalidArgument()) {
    return absl::DataLossError(absl::StrCat(what, kRestore));
  }
  return absl::FailedPreconditionError(absl::StrCat(what, AdviceOn(status)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<EventLog>> OpenRocksDbLog(const std::string& directory) {
  return OpenRocksDbLog(directory, rocksdb::FileSystem::Default());
}

absl::StatusOr<std::unique_ptr<EventLog>> OpenRocksDbLog(
    const std::string& directory, const std::shared_ptr<rocksdb::FileSystem>& files) {
  RETURN_IF_ERROR(base::MakeDirectories(directory));
  RETURN_IF_ERROR(CheckIsNewOrWhole(directory));
  try {
    std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(files);
    rocksdb::DB* opened = nullptr;
    const rocksdb::Status status = rocksdb::DB::Open(SmallDatabase(env.get()), directory, &opened);
    if (status.IsIOError() && absl::StrContains(status.ToString(), "lock")) {
      return absl::FailedPreconditionError(
          absl::StrCat(directory,
                       ": another driver has this state directory open; stop it, or "
                       "give this one another directory"));
    }
    if (!status.ok()) return CannotOpen(status, directory);
    auto log = std::make_unique<RocksDbLog>(directory, std::move(env),
                                            std::unique_ptr<rocksdb::DB>(opened));
    RETURN_IF_ERROR(log->CheckSchema());
    return std::unique_ptr<EventLog>(std::move(log));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("open ", directory, ": ", error.what()));
  }
}

absl::StatusOr<LogContents> ReadRocksDbLog(const std::string& directory) {
  try {
    std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(rocksdb::FileSystem::Default());
    rocksdb::Options options = SmallDatabase(env.get());
    options.create_if_missing = false;
    rocksdb::DB* opened = nullptr;
    const rocksdb::Status status = rocksdb::DB::OpenForReadOnly(options, directory, &opened);
    if (status.IsCorruption()) return CannotOpen(status, directory);
    if (!status.ok()) {
      return absl::NotFoundError(
          absl::StrCat(directory, ": there is no driver's log to read: ", status.ToString()));
    }
    RocksDbLog log(directory, std::move(env), std::unique_ptr<rocksdb::DB>(opened));
    ASSIGN_OR_RETURN(const int schema, log.ReadSchema());
    if (schema == 0) {
      return absl::NotFoundError(absl::StrCat(directory, ": has no driver's log"));
    }
    return log.ReadAll();
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("open ", directory, ": ", error.what()));
  }
}

}  // namespace megascale::driver
