#include "controlplane/driver/storage/loss_line.h"

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace megascale::driver {

using megascale::telemetry::v1::StepRecord;

namespace {

// JSON has no NaN: null stands for it.
double Number(const nlohmann::json& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

}  // namespace

std::string ToLossLine(const StepRecord& record) {
  nlohmann::ordered_json line;
  line["step"] = record.step();
  line["loss"] = record.loss();
  line["grad_norm"] = record.grad_norm();
  line["lr"] = record.lr();
  line["tokens"] = record.tokens();
  line["seconds"] = record.seconds();
  line["attempt"] = record.attempt();
  if (record.has_held_out_loss()) line["held_out_loss"] = record.held_out_loss();
  return line.dump() + "\n";
}

absl::StatusOr<StepRecord> FromLossLine(absl::string_view text) {
  StepRecord record;
  try {
    const auto line = nlohmann::json::parse(text.begin(), text.end());
    record.set_step(line.at("step").get<int64_t>());
    record.set_loss(Number(line.at("loss")));
    record.set_grad_norm(Number(line.at("grad_norm")));
    record.set_lr(Number(line.at("lr")));
    record.set_tokens(line.at("tokens").get<int64_t>());
    record.set_seconds(Number(line.at("seconds")));
    record.set_attempt(line.at("attempt").get<int64_t>());
    if (line.contains("held_out_loss")) {
      record.set_held_out_loss(Number(line.at("held_out_loss")));
    }
  } catch (const nlohmann::json::exception& error) {
    return absl::DataLossError(absl::StrCat("is not a step record (", error.what(), ")"));
  }
  return record;
}

}  // namespace megascale::driver
