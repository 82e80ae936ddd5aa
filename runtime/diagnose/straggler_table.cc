#include "runtime/diagnose/straggler_table.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/base/check.h"
#include "runtime/plan/operation.h"

namespace megascale::diagnose {
namespace {

using plan::Instruction;
using plan::OpKind;
using plan::RankPlan;
using timeline::SpanTime;

constexpr std::array<std::pair<OpKind, absl::string_view>, 16> kTypes = {{
    {OpKind::kForward, "forward-compute"},
    {OpKind::kBackward, "backward-compute"},
    {OpKind::kWeightGradient, "backward-wgrad-compute"},
    {OpKind::kSendActivation, "forward-send"},
    {OpKind::kReceiveActivation, "forward-recv"},
    {OpKind::kSendGradient, "backward-send"},
    {OpKind::kReceiveGradient, "backward-recv"},
    {OpKind::kGatherParameters, "params-all-gather"},
    {OpKind::kReduceGradients, "grads-reduce-scatter"},
    {OpKind::kGatherTensorNorms, "optimizer-clip-main-grad"},
    {OpKind::kGatherDataNorms, "optimizer-clip-main-grad"},
    {OpKind::kReduceNorm, "optimizer-clip-main-grad"},
    {OpKind::kOptimizerStep, "optimizer"},
    {OpKind::kOptimizerUpdate, "optimizer"},
    {OpKind::kGatherTensorTrustSums, "optimizer"},
    {OpKind::kGatherTrustSums, "optimizer"},
}};

absl::string_view TypeOf(OpKind kind) {
  for (const auto& [operation, type] : kTypes) {
    if (operation == kind) return type;
  }
  return "";
}

// The pieces of an operation that become one row.
using RowKey = std::tuple<absl::string_view, int, int, int>;  // type, chunk, micro-batch, bucket

RowKey KeyOf(const Instruction& instruction) {
  const absl::string_view type = TypeOf(instruction.kind());
  const plan::InstructionId& id = instruction.id;
  if (type == "optimizer") return {type, -1, -1, -1};
  const bool is_pass = plan::IsPass(instruction.kind());
  const int chunk = id.chunk() == plan::InstructionId::kNoChunk ? -1 : id.chunk();
  const int microbatch =
      id.microbatch() == plan::InstructionId::kNoMicrobatch ? -1 : id.microbatch();
  return {type, chunk, microbatch, is_pass ? -1 : id.bucket()};
}

struct Extent {
  int64_t begin = std::numeric_limits<int64_t>::max();
  int64_t end = 0;
};

class Rows {
 public:
  explicit Rows(std::vector<StragglerRow>* rows) : rows_(*rows) {}

  void Add(const RankPlan& plan, const timeline::TimedStep& step) {
    const std::vector<SpanTime>& spans = step.time.ranks[static_cast<size_t>(plan.rank)];
    std::map<RowKey, Extent> extents;
    Extent passes;
    for (size_t i = 0; i < plan.instructions.size(); ++i) {
      const Instruction& instruction = plan.instructions[i];
      if (TypeOf(instruction.kind()).empty()) continue;
      Grow(spans[i], &extents[KeyOf(instruction)]);
      if (plan::IsPass(instruction.kind())) Grow(spans[i], &passes);
    }
    const size_t first = rows_.size();
    for (const auto& [key, extent] : extents) {
      const auto& [type, chunk, microbatch, bucket] = key;
      StragglerRow row = RowOf(plan, step, type, extent);
      const bool is_transfer = type == "forward-send" || type == "forward-recv" ||
                               type == "backward-send" || type == "backward-recv";
      if (!is_transfer && chunk >= 0) {
        row.mc = chunk / plan.mesh.pipeline_size();
        row.gmc = chunk;
        row.mb_id = microbatch;
      }
      rows_.push_back(row);
    }
    AddMissing(plan, step, passes.end);
    Number(first);
  }

 private:
  static void Grow(const SpanTime& span, Extent* extent) {
    extent->begin = std::min(extent->begin, span.ready);
    extent->end = std::max(extent->end, span.end);
  }

  static StragglerRow RowOf(const RankPlan& plan, const timeline::TimedStep& step,
                            absl::string_view type, const Extent& extent) {
    const plan::Coordinate at = plan.mesh.CoordinateOf(plan.rank);
    StragglerRow row;
    row.dp_rank = at.data;
    row.tp_rank = at.tensor;
    row.stage = at.pipeline;
    row.rank = plan.rank;
    row.step = step.step;
    row.optype = type;
    row.start_ts = static_cast<double>(extent.begin) / 1e9;
    row.duration = static_cast<double>(extent.end - extent.begin) / 1e9;
    return row;
  }

  // Adds the operations that our steps lack.
  void AddMissing(const RankPlan& plan, const timeline::TimedStep& step, int64_t at) {
    const Extent none = {at, at};
    const int last_stage = plan.mesh.pipeline_size() - 1;
    rows_.push_back(RowOf(plan, step, "gc", none));
    rows_.push_back(RowOf(plan, step, "layernorm-grads-all-reduce", none));
    if (plan.stage() == 0 || plan.stage() == last_stage) {
      rows_.push_back(RowOf(plan, step, "embedding-grads-all-reduce", none));
    }
    if (plan.mesh.data_size() > 1) {
      rows_.push_back(RowOf(plan, step, "separate-grads-all-reduce", none));
    }
  }

  // Sorts the rows from `first` on by type and time, and numbers those of each type.
  void Number(size_t first) {
    const auto begin = rows_.begin() + static_cast<int64_t>(first);
    std::sort(begin, rows_.end(), [](const StragglerRow& a, const StragglerRow& b) {
      return std::tie(a.optype, a.start_ts, a.mb_id, a.gmc) <
             std::tie(b.optype, b.start_ts, b.mb_id, b.gmc);
    });
    for (auto row = begin; row != rows_.end(); ++row) {
      const bool is_first = row == begin || (row - 1)->optype != row->optype;
      row->seq_id = is_first ? 0 : (row - 1)->seq_id + 1;
    }
  }

  std::vector<StragglerRow>& rows_;
};

}  // namespace

std::vector<StragglerRow> StragglerRows(absl::Span<const RankPlan> plans,
                                        const std::vector<bool>& known,
                                        absl::Span<const timeline::TimedStep> steps) {
  MEGASCALE_CHECK(plans.size() == known.size());
  std::vector<StragglerRow> rows;
  Rows table(&rows);
  for (const timeline::TimedStep& step : steps) {
    if (!step.whole) continue;
    for (const RankPlan& plan : plans) {
      if (known[static_cast<size_t>(plan.rank)]) table.Add(plan, step);
    }
  }
  return rows;
}

std::string ToCsv(absl::Span<const StragglerRow> rows) {
  std::string csv =
      "dp_rank,tp_rank,stage,rank,step,optype,start_ts,duration,seq_id,mc,gmc,mb_id\n";
  for (const StragglerRow& row : rows) {
    absl::StrAppendFormat(&csv, "%d,%d,%d,%d,%d,%s,%.9f,%.9f,%d,%d,%d,%d\n", row.dp_rank,
                          row.tp_rank, row.stage, row.rank, row.step, row.optype, row.start_ts,
                          row.duration, row.seq_id, row.mc, row.gmc, row.mb_id);
  }
  return csv;
}

}  // namespace megascale::diagnose
