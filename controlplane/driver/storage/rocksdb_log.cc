// The log in RocksDB. Keys: "schema" (a number); "event/" and the event's number in 16 hexadecimal
// digits, so that they sort in order; and the pieces of the snapshot: "snapshot" (a DriverState
// whose jobs and nodes have only their ids), "job/" and an id (a JobRecord), "node/" and an id (a
// NodeRecord). In pieces, because a message cannot have 2 GiB, and because a snapshot then writes
// only the records that changed.
//
// Schemas: 1 - the first. 2 - adds events with numbers from 30 on, stages from 9 on, and rules. A
// program of schema 1 would silently ignore them. 3 - adds events with numbers from 34 on, epochs,
// pools, and rules 4. Up to 4, "snapshot" is the whole state. 5 - the snapshot in pieces.
#include <google/protobuf/util/field_mask_util.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/options.h>
#include <rocksdb/write_batch.h>

#include <exception>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "controlplane/driver/core/driver_core.h"
#include "controlplane/driver/storage/event_log.h"
#include "runtime/base/checksum.h"
#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "runtime/base/serialize.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/base/version.h"

namespace megascale::driver {
namespace {

constexpr int kSchema = 5;
constexpr int kSchemaOfPieces = 5;  // the first one with a snapshot in pieces
constexpr char kSchemaKey[] = "schema";
constexpr char kSnapshotKey[] = "snapshot";
constexpr char kEventPrefix[] = "event/";
constexpr char kJobPrefix[] = "job/";
constexpr char kNodePrefix[] = "node/";
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

// Returns the state without its records: jobs and nodes have only their ids.
DriverState FrameOf(const DriverState& state) {
  google::protobuf::FieldMask others;
  const auto* type = DriverState::descriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const int number = type->field(i)->number();
    if (number == DriverState::kJobsFieldNumber) continue;
    if (number == DriverState::kNodesFieldNumber) continue;
    others.add_paths(type->field(i)->name());
  }
  DriverState frame;
  google::protobuf::util::FieldMaskUtil::MergeMessageTo(state, others, {}, &frame);
  for (const JobRecord& job : state.jobs()) {
    frame.add_jobs()->mutable_submitted()->set_job_id(JobId(job));
  }
  for (const NodeRecord& node : state.nodes()) {
    frame.add_nodes()->mutable_hello()->set_node_id(node.hello().node_id());
  }
  return frame;
}

// Tells whether a piece of a snapshot has changed: its size and a hash.
using Print = std::pair<size_t, uint64_t>;

Print PrintOf(absl::string_view bytes) {
  return {bytes.size(), base::Xxh3(bytes.data(), bytes.size())};
}

class RocksDbLog : public EventLog {
 public:
  RocksDbLog(std::string directory, std::unique_ptr<rocksdb::Env> env,
             std::unique_ptr<rocksdb::DB> db, size_t record_bytes_max)
      : directory_(std::move(directory)),
        record_bytes_max_(record_bytes_max),
        env_(std::move(env)),
        db_(std::move(db)) {}

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
    in_pieces_ = schema >= kSchemaOfPieces;
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
    if (status.ok() && in_pieces_) {
      prints_ = {{kSnapshotKey, PrintOf(snapshot)}};
      RETURN_IF_ERROR(ReadRecords(&contents.state));
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
      const std::string key = EventKey(++num_before);
      ASSIGN_OR_RETURN(const std::string bytes, Bytes(key, event));
      batch.Put(key, bytes);
    }
    return FromRocks(db_->Write(Synced(), &batch), absl::StrCat("write ", directory_));
  }

  absl::Status WriteSnapshot(const DriverState& state) override {
    rocksdb::WriteBatch batch;
    RETURN_IF_ERROR(PutSnapshot(state, &batch));
    return FromRocks(db_->Write(Synced(), &batch), absl::StrCat("write ", directory_));
  }

 private:
  using Prints = std::map<std::string, Print>;

  // Requires: there is no schema.
  absl::Status Begin() {
    std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(rocksdb::ReadOptions()));
    it->SeekToFirst();
    RETURN_IF_ERROR(FromRocks(it->status(), directory_));
    if (it->Valid()) {
      return absl::DataLossError(absl::StrCat(directory_, ": has no schema version, but the entry ",
                                              base::Printable(it->key().ToString()), kRestore));
    }
    in_pieces_ = true;
    return FromRocks(db_->Put(Synced(), kSchemaKey, absl::StrCat(kSchema)), directory_);
  }

  // Replays the log by the rules of its time and replaces it by the resulting state. This is one
  // write: after a crash the directory has either the old or the new schema, complete.
  absl::Status Upgrade(int from) {
    ASSIGN_OR_RETURN(LogContents contents, ReadAll());
    for (const Event& event : contents.events) Apply(event, &contents.state);
    rocksdb::WriteBatch batch;
    RETURN_IF_ERROR(PutSnapshot(contents.state, &batch));
    batch.Put(kSchemaKey, absl::StrCat(kSchema));
    RETURN_IF_ERROR(FromRocks(db_->Write(Synced(), &batch), absl::StrCat("upgrade ", directory_)));
    in_pieces_ = true;
    base::LogInfo(absl::StrCat(directory_, ": upgraded from schema ", from, " to ", kSchema));
    return absl::OkStatus();
  }

  template <typename Message>
  absl::StatusOr<std::string> Bytes(const std::string& key, const Message& message) const {
    absl::StatusOr<std::string> bytes = base::Serialize(message, record_bytes_max_);
    if (bytes.ok()) return bytes;
    return absl::ResourceExhaustedError(absl::StrCat(directory_, ": ", base::Printable(key), ": ",
                                                     bytes.status().message(),
                                                     "; nothing was written or deleted"));
  }

  // Puts the record there, unless it is there already.
  template <typename Message>
  absl::Status PutPiece(const std::string& key, const Message& message, Prints* prints,
                        rocksdb::WriteBatch* batch) const {
    ASSIGN_OR_RETURN(const std::string bytes, Bytes(key, message));
    const Print print = PrintOf(bytes);
    (*prints)[key] = print;
    const auto before = prints_.find(key);
    if (before == prints_.end() || before->second != print) batch->Put(key, bytes);
    return absl::OkStatus();
  }

  absl::Status PutSnapshot(const DriverState& state, rocksdb::WriteBatch* batch) {
    Prints prints;
    RETURN_IF_ERROR(PutPiece(kSnapshotKey, FrameOf(state), &prints, batch));
    for (const JobRecord& job : state.jobs()) {
      RETURN_IF_ERROR(PutPiece(kJobPrefix + JobId(job), job, &prints, batch));
    }
    for (const NodeRecord& node : state.nodes()) {
      RETURN_IF_ERROR(PutPiece(kNodePrefix + node.hello().node_id(), node, &prints, batch));
    }
    for (const auto& [key, print] : prints_) {
      if (prints.count(key) == 0) batch->Delete(key);
    }
    batch->DeleteRange(EventKey(0), EventKey(state.num_events() + 1));
    prints_ = std::move(prints);  // if the write fails, nothing is written any more
    return absl::OkStatus();
  }

  template <typename Message>
  absl::Status ReadRecord(const std::string& key, Message* record) {
    std::string bytes;
    const rocksdb::Status status = db_->Get(rocksdb::ReadOptions(), key, &bytes);
    if (!status.ok() && !status.IsNotFound()) return FromRocks(status, directory_);
    if (status.IsNotFound() || !record->ParseFromString(bytes)) {
      return absl::DataLossError(absl::StrCat(directory_, ": ", base::Printable(key),
                                              status.ok() ? " cannot be read" : " is missing",
                                              kRestore));
    }
    prints_[key] = PrintOf(bytes);
    return absl::OkStatus();
  }

  // Completes the jobs and nodes, which have only their ids.
  absl::Status ReadRecords(DriverState* state) {
    for (JobRecord& job : *state->mutable_jobs()) {
      RETURN_IF_ERROR(ReadRecord(kJobPrefix + JobId(job), &job));
    }
    for (NodeRecord& node : *state->mutable_nodes()) {
      RETURN_IF_ERROR(ReadRecord(kNodePrefix + node.hello().node_id(), &node));
    }
    return absl::OkStatus();
  }

  std::string directory_;
  const size_t record_bytes_max_;
  bool in_pieces_ = false;             // the snapshot there is
  Prints prints_;                      // of its pieces, by key
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
  return OpenRocksDbLog(directory, rocksdb::FileSystem::Default(), base::kMessageBytesMax);
}

absl::StatusOr<std::unique_ptr<EventLog>> OpenRocksDbLog(
    const std::string& directory, const std::shared_ptr<rocksdb::FileSystem>& files,
    size_t record_bytes_max) {
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
                                            std::unique_ptr<rocksdb::DB>(opened), record_bytes_max);
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
    RocksDbLog log(directory, std::move(env), std::unique_ptr<rocksdb::DB>(opened),
                   base::kMessageBytesMax);
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
