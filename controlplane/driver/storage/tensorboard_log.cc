#include "controlplane/driver/storage/tensorboard_log.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "proto/tensorboard.pb.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace megascale::driver {
namespace {

using TensorboardEvent = megascale::tensorboard::v1::Event;
using megascale::tensorboard::v1::SessionLog;

// The polynomial of CRC-32C, its lowest bit first.
constexpr uint32_t kPolynomial = 0x82f63b78;
constexpr uint32_t kMask = 0xa282ead8;

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table = {};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    table[byte] = value;
  }
  return table;
}

uint32_t MaskedCrc(absl::string_view data) {
  static constexpr std::array<uint32_t, 256> kTable = MakeTable();
  uint32_t crc = ~uint32_t{0};
  for (const char c : data) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<uint8_t>(c)) & 0xff];
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + kMask;
}

// Returns the number in little-endian order, whatever the machine's is.
template <typename Number>
std::string LittleEndian(Number number) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(Number); ++i) bytes += static_cast<char>(number >> (8 * i));
  return bytes;
}

TensorboardEvent EventAt(int64_t step, absl::Time wall) {
  TensorboardEvent event;
  event.set_wall_time(absl::ToDoubleSeconds(wall - absl::UnixEpoch()));
  event.set_step(step);
  return event;
}

std::string VersionRecord(absl::Time wall) {
  TensorboardEvent event = EventAt(0, wall);
  event.set_file_version("brain.Event:2");
  return EventRecord(event.SerializeAsString());
}

std::string StartRecord(int64_t step, absl::Time wall) {
  TensorboardEvent event = EventAt(step, wall);
  event.mutable_session_log()->set_status(SessionLog::START);
  return EventRecord(event.SerializeAsString());
}

std::string StepEvents(const LossLog::StepRecord& record, absl::Time wall) {
  TensorboardEvent event = EventAt(record.step(), wall);
  const auto add = [&](const char* tag, double value) {
    auto* added = event.mutable_summary()->add_value();
    added->set_tag(tag);
    added->set_simple_value(static_cast<float>(value));
  };
  add("train/loss", record.loss());
  if (record.has_held_out_loss()) add("held_out/loss", record.held_out_loss());
  add("train/grad_norm", record.grad_norm());
  add("train/learning_rate", record.lr());
  add("speed/step_seconds", record.seconds());
  if (record.seconds() > 0) {
    add("speed/tokens_per_second", static_cast<double>(record.tokens()) / record.seconds());
  }
  return EventRecord(event.SerializeAsString());
}

}  // namespace

std::string EventRecord(absl::string_view data) {
  const std::string length = LittleEndian(static_cast<uint64_t>(data.size()));
  return absl::StrCat(length, LittleEndian(MaskedCrc(length)), data, LittleEndian(MaskedCrc(data)));
}

absl::Status TensorBoardLogs::Write(const std::string& directory, const LossLog& log,
                                    absl::Time wall, Entry* entry) {
  if (entry->file == nullptr) {
    const std::string path = absl::StrCat(directory, "/tensorboard/events.out.tfevents.",
                                          absl::ToUnixSeconds(wall), ".megascale");
    ASSIGN_OR_RETURN(entry->file, files_.OpenAppended(path));
    // What an earlier file has of these steps, this one repeats.
    RETURN_IF_ERROR(entry->file->Append(
        absl::StrCat(VersionRecord(wall), StartRecord(log.recent().front().step(), wall))));
  }
  std::string records;
  for (const LossLog::StepRecord& record : log.recent()) {
    if (record.step() <= entry->step && record.attempt() <= entry->attempt) continue;
    // A step that was written before is computed again.
    if (record.step() <= entry->step) records += StartRecord(record.step(), wall);
    records += StepEvents(record, wall);
    entry->step = record.step();
    entry->attempt = record.attempt();
  }
  return records.empty() ? absl::OkStatus() : entry->file->Append(records);
}

void TensorBoardLogs::Follow(const std::string& job_id, const std::string& directory,
                             const LossLog& log, absl::Time wall) {
  Entry& entry = jobs_[job_id];
  if (entry.failed || log.recent().empty()) return;
  if (const LossLog::StepRecord& newest = log.recent().back();
      newest.step() == entry.step && newest.attempt() == entry.attempt) {
    return;
  }
  const absl::Status written = Write(directory, log, wall, &entry);
  if (written.ok()) return;
  entry.failed = true;
  base::LogWarning(absl::StrCat("job ", job_id,
                                ": TensorBoard gets no further events of it: ", written.message()));
}

}  // namespace megascale::driver
