#include "controlplane/driver/storage/loss_log.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace megascale::driver {
namespace {

constexpr char kFile[] = "metrics.jsonl";

// Doubles have enough digits to read the same bits back.
std::string ToLine(const LossLog::StepRecord& record) {
  nlohmann::ordered_json line;
  line["step"] = record.step();
  line["loss"] = record.loss();
  line["grad_norm"] = record.grad_norm();
  line["lr"] = record.lr();
  line["tokens"] = record.tokens();
  line["seconds"] = record.seconds();
  line["attempt"] = record.attempt();
  return line.dump() + "\n";
}

// JSON has no NaN: null stands for it.
double Number(const nlohmann::json& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

absl::StatusOr<LossLog::StepRecord> FromLine(absl::string_view text) {
  LossLog::StepRecord record;
  try {
    const auto line = nlohmann::json::parse(text.begin(), text.end());
    record.set_step(line.at("step").get<int64_t>());
    record.set_loss(Number(line.at("loss")));
    record.set_grad_norm(Number(line.at("grad_norm")));
    record.set_lr(Number(line.at("lr")));
    record.set_tokens(line.at("tokens").get<int64_t>());
    record.set_seconds(Number(line.at("seconds")));
    record.set_attempt(line.at("attempt").get<int64_t>());
  } catch (const nlohmann::json::exception& error) {
    return absl::DataLossError(absl::StrCat("is not a step record (", error.what(), ")"));
  }
  return record;
}

}  // namespace

LossLog::LossLog(std::string directory, JobFiles* files, std::unique_ptr<AppendedFile> file)
    : directory_(std::move(directory)), files_(*files), file_(std::move(file)) {}

absl::StatusOr<std::unique_ptr<LossLog>> LossLog::Open(const std::string& directory,
                                                       JobFiles* files) {
  const std::string path = absl::StrCat(directory, "/", kFile);
  ASSIGN_OR_RETURN(std::unique_ptr<AppendedFile> file, files->OpenAppended(path));
  ASSIGN_OR_RETURN(std::string text, files->Read(path));
  const size_t whole = text.rfind('\n') + 1;  // npos + 1 is 0
  if (whole < text.size()) {
    RETURN_IF_ERROR(file->CutTo(whole));
    text.resize(whole);
  }
  std::unique_ptr<LossLog> log(new LossLog(directory, files, std::move(file)));
  RETURN_IF_ERROR(base::Annotate(log->Load(text), path));
  return log;
}

absl::Status LossLog::Load(const std::string& text) {
  recent_.clear();
  next_step_ = 0;
  int64_t line_number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    const std::string place = absl::StrCat("line ", ++line_number);
    absl::StatusOr<StepRecord> record =
        FromLine(absl::string_view(text).substr(begin, end - begin));
    if (!record.ok()) return base::Annotate(record.status(), place);
    if (next_step_ != 0 && record->step() < next_step_) {
      return absl::DataLossError(absl::StrCat(place, ": step ", record->step(), " where step ",
                                              next_step_, " was expected"));
    }
    next_step_ = record->step() + 1;
    recent_.push_back(*std::move(record));
    if (recent_.size() > kRecentMax) recent_.pop_front();
    begin = end + 1;
  }
  synced_step_ = last_step();
  return absl::OkStatus();
}

absl::Status LossLog::Append(const StepRecord& record) {
  if (next_step_ != 0 && record.step() != next_step_) return absl::OkStatus();
  RETURN_IF_ERROR(file_->Append(ToLine(record)));
  next_step_ = record.step() + 1;
  recent_.push_back(record);
  if (recent_.size() > kRecentMax) recent_.pop_front();
  ++num_appended_;
  dirty_ = true;
  return absl::OkStatus();
}

absl::Status LossLog::Sync() {
  if (!dirty_) return absl::OkStatus();
  RETURN_IF_ERROR(file_->Sync());
  dirty_ = false;
  synced_step_ = last_step();
  return absl::OkStatus();
}

std::vector<LossLog::StepRecord> LossLog::Since(int64_t* position) const {
  const int64_t begin = *position < 0 ? num_appended_ : std::max(*position, num_at_cut_);
  const int64_t held = std::min(num_appended_ - begin, static_cast<int64_t>(recent_.size()));
  *position = num_appended_;
  return {recent_.end() - held, recent_.end()};
}

absl::Status LossLog::CutTo(int64_t step, int64_t attempt) {
  const std::string path = absl::StrCat(directory_, "/", kFile);
  ASSIGN_OR_RETURN(std::string text, files_.Read(path));
  size_t cut = 0;
  while (cut < text.size()) {
    const size_t end = text.find('\n', cut);
    ASSIGN_OR_RETURN(StepRecord record, FromLine(absl::string_view(text).substr(cut, end - cut)));
    if (record.step() > step && record.attempt() < attempt) break;
    cut = end + 1;
  }
  if (cut < text.size()) {
    // The copy is durable before the original is cut. After a crash between them both are repeated.
    RETURN_IF_ERROR(files_.WriteDurably(
        absl::StrCat(directory_, "/metrics.attempt-", attempt - 1, ".jsonl"), text.substr(cut)));
    RETURN_IF_ERROR(file_->CutTo(cut));
    text.resize(cut);
  }
  RETURN_IF_ERROR(base::Annotate(Load(text), path));
  dirty_ = false;
  num_at_cut_ = num_appended_;
  if (last_step() < step && last_step() > 0) {
    base::LogWarning(absl::StrCat(path, ": steps ", last_step() + 1, " to ", step,
                                  " were never reported; goes on with step ", step + 1));
  }
  if (last_step() <= step) next_step_ = step + 1;
  return absl::OkStatus();
}

}  // namespace megascale::driver
