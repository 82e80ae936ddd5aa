#include "runtime/telemetry/doing.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "runtime/plan/operation.h"

namespace megascale::telemetry {
namespace {

std::string NameForPeople(plan::OpKind kind) {
  const absl::string_view name = plan::OperationOf(kind).name;
  return name.empty() ? "unknown instruction" : std::string(name);
}

std::string DescribeActivity(const v1::RankStatus& status, plan::InstructionId instruction) {
  switch (status.activity()) {
    case v1::ACTIVITY_UNSPECIFIED:
      return "";
    case v1::ACTIVITY_INSTRUCTION:
      return NameForPeople(instruction.operation());
    case v1::ACTIVITY_BETWEEN_INSTRUCTIONS:
      return "between instructions";
    case v1::ACTIVITY_WAIT_FOR_STORAGE:
      return "waiting for checkpoint storage";
    case v1::ACTIVITY_READ_CHECKPOINT:
      if (status.total() > 0) return absl::StrCat("reading weights: ", status.done(), " %");
      return "reading the checkpoint";
    case v1::ACTIVITY_READ_FOR_PEER:
      return absl::StrCat("reading the checkpoint for rank ", status.peer());
    case v1::ACTIVITY_WAIT_FOR_READS:
      return "waiting for all ranks to read the checkpoint";
    case v1::ACTIVITY_WAIT_FOR_READER:
      return absl::StrCat("waiting for rank ", status.peer(),
                          ", which reads the checkpoint for this rank");
    case v1::ACTIVITY_WAIT_FOR_ASKER:
      return absl::StrCat("waiting for rank ", status.peer(), ", to read the checkpoint for it");
    case v1::ACTIVITY_TUNE_PRODUCTS:
      return absl::StrCat("tuning matrix products: ", status.done(), " of ", status.total());
    case v1::ACTIVITY_WAIT_FOR_PRODUCTS:
      return "waiting for the ranks that tune matrix products";
    case v1::ACTIVITY_MAKE_WEIGHTS:
      return absl::StrCat("making initial weights: ", status.done(), " %");
    default:
      return absl::StrCat("unknown activity ", static_cast<int>(status.activity()));
  }
}

}  // namespace

bool Saves(const v1::RankStatus& status) {
  return status.phase() == v1::PHASE_CHECKPOINT ||
         status.activity() == v1::ACTIVITY_WAIT_FOR_STORAGE;
}

bool Evaluates(const v1::RankStatus& status) {
  const auto instruction = plan::InstructionId::FromPacked(status.instruction());
  return plan::OperationOf(instruction.operation()).for_evaluation;
}

bool SaveIsDue(const job::v1::JobSpec& spec, int64_t step) {
  if (step >= spec.train().steps()) return true;
  const int64_t interval = spec.checkpoint().interval();
  return step > 0 && interval > 0 && step % interval == 0;
}

void SetDoing(const Doing& doing, v1::RankStatus* status) {
  status->set_activity(doing.activity);
  status->set_instruction(doing.instruction.packed());
  status->set_peer(doing.peer);
  status->set_done(doing.done);
  status->set_total(doing.total);
}

std::string DescribeDoing(const v1::RankStatus& status) {
  const auto instruction = plan::InstructionId::FromPacked(status.instruction());
  std::string words = DescribeActivity(status, instruction);
  if (instruction == plan::InstructionId()) return words;
  return absl::StrCat(words, " ", instruction.ToString());
}

}  // namespace megascale::telemetry
