// plan: shows a job's step before anything runs.
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cli/command_line/report.h"
#include "cli/commands/commands.h"
#include "cli/job_file/job_file.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/process/resource_limit.h"
#include "runtime/base/status.h"
#include "runtime/base/text/shortlist.h"
#include "runtime/job/evaluation.h"
#include "runtime/job/job_spec.h"
#include "runtime/layout/rank_layout.h"
#include "runtime/model/chunk_layout.h"
#include "runtime/model/pass_operations.h"
#include "runtime/plan/build/roles.h"
#include "runtime/plan/check/validate_roles.h"
#include "runtime/plan/plan_options.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/plan/role_map.h"
#include "runtime/simulate/cost_model.h"
#include "runtime/simulate/links.h"
#include "runtime/simulate/step_time.h"
#include "runtime/timeline/perfetto_trace.h"
#include "runtime/timeline/timed_step.h"
#include "runtime/timeline/timeline_svg.h"

namespace megascale::cli {
namespace {

constexpr int kRanksShown = 64;
// The maximum numbers of instructions in a drawing and in a trace: about 6 and 50 MB, which a
// browser still handles well.
constexpr int64_t kDrawnMax = 20'000;
constexpr int64_t kTracedMax = 50'000;

// Means that --memory-bytes-per-second follows from --flops-per-second, or
// --network-bytes-per-second from --bytes-per-second.
constexpr double kDerived = 0;

struct PlanFlags {
  std::string file;
  std::vector<std::string> overrides;
  double flops_per_second = 1e12;
  double bytes_per_second = 1e10;
  double network_bytes_per_second = kDerived;
  double memory_bytes_per_second = kDerived;
  int64_t slots = 0;  // 0: one machine runs all ranks
  std::string svg;
  std::string trace;
  bool force = false;
  bool instructions = false;
  bool measure = false;
  std::string format = "text";
};

// The time that planning itself took.
struct Effort {
  absl::Duration build;     // the plans of all roles
  absl::Duration validate;  // for all ranks
};

// The job's plan, with the time of each instruction.
struct JobPlan {
  job::v1::JobSpec spec;
  layout::RankLayout part;  // rank 0's
  plan::PlanOptions options;
  std::vector<plan::RankPlan> stages;               // roles: every replica does the same
  int ranks_per_machine = 0;                        // 0: one machine runs all ranks
  std::map<plan::GroupKind, simulate::Link> links;  // the slowest of each kind of group
  timeline::StepTime time;
  std::vector<plan::RankPlan> evaluation;  // of a batch, as `stages`
  int64_t evaluation_nanos = 0;            // of a batch
  Effort effort;
};

// No machine is slower. With less the nanoseconds of a large job's step would not fit into 64 bits.
constexpr double kRateMin = 1e4;

absl::Status CheckRate(const char* flag, double rate) {
  if (std::isfinite(rate) && rate >= kRateMin) return absl::OkStatus();
  return absl::InvalidArgumentError(
      rate > 0 ? absl::StrCat(flag, ": ", rate, " is out of range; expected at least ", kRateMin,
                              " a second (312 TFLOP/s are 312e12)")
               : absl::StrCat(flag, ": ", rate, " is out of range; expected more than 0"));
}

// Default memory bandwidth, in bytes per second for each FLOP/s: an A100 has 1/156, a present-day
// server processor about 1/30.
constexpr double kMemoryBytesPerFlop = 0.01;

// Default rate of a link between machines, for each byte per second of a link inside one: an A100
// has 1/12 (300 GB/s of NVLink, 25 GB/s of network).
constexpr double kNetworkBytesPerLinkByte = 0.1;

simulate::MachineRates RatesOf(const PlanFlags& flags) {
  const auto rate = [](double given, double derived) {
    return given == kDerived ? derived : given;
  };
  return {.flops_per_second = flags.flops_per_second,
          .memory_bytes_per_second =
              rate(flags.memory_bytes_per_second, kMemoryBytesPerFlop * flags.flops_per_second),
          .link_bytes_per_second = flags.bytes_per_second,
          .network_bytes_per_second = rate(flags.network_bytes_per_second,
                                           kNetworkBytesPerLinkByte * flags.bytes_per_second)};
}

absl::Status CheckRates(const PlanFlags& flags) {
  RETURN_IF_ERROR(CheckRate("--flops-per-second", flags.flops_per_second));
  RETURN_IF_ERROR(CheckRate("--bytes-per-second", flags.bytes_per_second));
  RETURN_IF_ERROR(CheckRate("--memory-bytes-per-second", RatesOf(flags).memory_bytes_per_second));
  RETURN_IF_ERROR(CheckRate("--network-bytes-per-second", RatesOf(flags).network_bytes_per_second));
  if (flags.slots < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--slots: ", flags.slots, " is out of range; expected 0 or more"));
  }
  if (flags.network_bytes_per_second != kDerived && flags.slots == 0) {
    return absl::InvalidArgumentError(
        "--network-bytes-per-second: without --slots one machine runs all ranks and no network is "
        "used; add --slots N, the ranks on each machine");
  }
  return absl::OkStatus();
}

// Returns how many consecutive ranks the driver places on a machine of `slots` slots: it never
// parts tensor-parallel ranks. 0: one machine runs all ranks.
absl::StatusOr<int> RanksPerMachine(const plan::Mesh& mesh, int64_t slots) {
  if (slots == 0) return 0;
  const int tensor_size = mesh.tensor_size();
  if (slots < tensor_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--slots: ", slots, " is less than parallel.tensor_model_parallel_size = ", tensor_size,
        ", whose ranks share a machine"));
  }
  return static_cast<int>(std::min<int64_t>(slots, mesh.world_size())) / tensor_size * tensor_size;
}

absl::StatusOr<simulate::CostModel> MakeCostModel(const JobPlan& plan,
                                                  std::vector<model::ChunkPasses> passes,
                                                  const PlanFlags& flags) {
  simulate::CostOptions costs = {.plan = plan.options,
                                 .compute = plan.part.compute,
                                 .tp_comm_overlap = plan.spec.parallel().tp_comm_overlap(),
                                 .rates = RatesOf(flags)};
  for (int chunk = 0; chunk < plan.options.num_chunks(); ++chunk) {
    ASSIGN_OR_RETURN(const model::ChunkRange range,
                     model::MakeChunkRange(plan.part.config, plan.options.num_chunks(), chunk));
    const optim::OptimizerShard shard = plan.part.ShardOf(range);
    costs.chunks.push_back(
        {.passes = std::move(passes[static_cast<size_t>(chunk)]),
         .shard_elements = shard.layout().padded_elements(shard.num_shards) / shard.num_shards});
  }
  return simulate::CostModel(costs);
}

absl::StatusOr<JobPlan> MakePlan(const PlanFlags& flags) {
  RETURN_IF_ERROR(CheckRates(flags));
  JobPlan result;
  ASSIGN_OR_RETURN(result.spec, LoadJobFile(flags.file, {.overrides = flags.overrides}));
  ASSIGN_OR_RETURN(result.part, layout::RankLayoutOf(result.spec, 0));
  plan::PlanOptions& options = result.options;
  options = result.part.plan_options;
  ASSIGN_OR_RETURN(result.ranks_per_machine, RanksPerMachine(options.mesh, flags.slots));
  ASSIGN_OR_RETURN(std::vector<model::ChunkPasses> passes, layout::PassesOf(result.part));
  ASSIGN_OR_RETURN(options.chunks, layout::ChunkCostsOf(result.spec, result.part, passes));
  const base::Clock& clock = base::RealClock();
  const absl::Duration start = clock.Monotonic();
  ASSIGN_OR_RETURN(result.stages, plan::BuildRolePlans(options));
  const absl::Duration built = clock.Monotonic();
  RETURN_IF_ERROR(plan::ValidateRolePlans(result.stages));
  result.effort = {.build = built - start, .validate = clock.Monotonic() - built};
  ASSIGN_OR_RETURN(const simulate::CostModel costs,
                   MakeCostModel(result, std::move(passes), flags));
  const simulate::Links links(result.stages, plan::RoleMap::ByStage(options.mesh),
                              result.ranks_per_machine);
  result.links = links.by_group();
  const auto duration = [&](const plan::RankPlan& stage, const plan::Instruction& instruction) {
    return costs.NanosOf(instruction, links.Of(stage, instruction));
  };
  ASSIGN_OR_RETURN(result.time, simulate::TimeStep(result.stages, duration));
  plan::PlanOptions evaluation = options;
  evaluation.evaluates = true;
  ASSIGN_OR_RETURN(result.evaluation, plan::BuildRolePlans(evaluation));
  RETURN_IF_ERROR(plan::ValidateRolePlans(result.evaluation));
  ASSIGN_OR_RETURN(const timeline::StepTime batch, simulate::TimeStep(result.evaluation, duration));
  result.evaluation_nanos = batch.end;
  return result;
}

// Returns how long an evaluation takes at most, and how often there is one; "": there is none.
std::string EvaluationLine(const JobPlan& plan) {
  const int64_t interval = job::EvaluationInterval(plan.spec);
  if (interval == 0) return "";
  const int64_t batches = job::EvaluationBatches(plan.spec);
  return absl::StrFormat(
      "every %d steps an evaluation of at most %d windows of held-out text takes at most %.4g s\n",
      interval, batches * plan.spec.train().global_batch_size(),
      static_cast<double>(batches) * static_cast<double>(plan.evaluation_nanos) / 1e9);
}

std::string Title(const JobPlan& plan) {
  const plan::Mesh& mesh = plan.options.mesh;
  const int chunks = plan.options.chunks_per_stage;
  return absl::StrFormat(
      "%s: %s = %d ranks, %d micro-batches, %s%s%s", plan.spec.name(), mesh.SizesText(),
      mesh.world_size(), plan.options.num_microbatches, Name(plan.options.schedule),
      chunks > 1 ? absl::StrCat(" with ", chunks, " virtual stages") : "",
      plan.options.zero_stage > 1 ? absl::StrCat(", ZeRO stage ", plan.options.zero_stage) : "");
}

std::string Ranks(const plan::Mesh& mesh, plan::GroupKind kind, int rank) {
  const plan::Group group = mesh.GroupOf(kind, rank);
  std::vector<std::string> ranks;
  for (const int member : group.ranks) ranks.push_back(absl::StrCat(member));
  return base::Shortlist(ranks);
}

void PrintMesh(const plan::Mesh& mesh) {
  const std::vector<plan::AxisRow> axes = mesh.AxesForPeople();
  std::vector<plan::GroupKind> groups;  // of one axis each
  for (const plan::GroupKind kind : mesh.Kinds()) {
    if (mesh.OnlyAxisOf(kind).has_value()) groups.push_back(kind);
  }
  std::vector<std::vector<std::string>> rows = {{"RANK"}};
  for (const plan::AxisRow& axis : axes) rows[0].push_back(absl::AsciiStrToUpper(axis.name));
  for (const plan::GroupKind kind : groups) {
    rows[0].push_back(absl::StrCat(absl::AsciiStrToUpper(mesh.Name(kind)), " GROUP"));
  }
  const int shown = std::min(kRanksShown, mesh.world_size());
  for (int rank = 0; rank < shown; ++rank) {
    const plan::Coordinate at = mesh.CoordinateOf(rank);
    rows.push_back({absl::StrCat(rank)});
    for (const plan::AxisRow& axis : axes) rows.back().push_back(absl::StrCat(At(at, axis.axis)));
    for (const plan::GroupKind kind : groups) rows.back().push_back(Ranks(mesh, kind, rank));
  }
  std::printf("%s", FormatTable(rows).c_str());
  if (shown < mesh.world_size()) std::printf("and %d more ranks\n", mesh.world_size() - shown);
}

// Prints on which link each kind of group exchanges; nothing where one machine runs all ranks.
void PrintLinks(const JobPlan& plan) {
  if (plan.ranks_per_machine == 0) return;
  std::vector<std::vector<std::string>> rows = {{"GROUP", "EXCHANGES"}};
  for (const auto& [group, link] : plan.links) {
    rows.push_back({std::string(plan.options.mesh.Name(group)),
                    link == simulate::Link::kInMachine ? "inside a machine" : "between machines"});
  }
  std::printf("\n%s", FormatTable(rows).c_str());
}

// "1e+10 bytes/s a link"
std::string LinkRatesText(const JobPlan& plan, const PlanFlags& flags) {
  const simulate::MachineRates rates = RatesOf(flags);
  std::string text = absl::StrFormat("%.3g bytes/s a link", rates.link_bytes_per_second);
  if (plan.ranks_per_machine > 0) {
    absl::StrAppendFormat(&text, " inside a machine of %d ranks, %.3g bytes/s between machines",
                          plan.ranks_per_machine, rates.network_bytes_per_second);
  }
  return text;
}

// "0-3, 8-11"
absl::StatusOr<std::string> LayersOf(const JobPlan& plan, int stage) {
  ASSIGN_OR_RETURN(const model::ModelConfig config, model::MakeModelConfig(plan.spec.model()));
  std::vector<std::string> ranges;
  for (int chunk = stage; chunk < plan.options.num_chunks();
       chunk += plan.options.mesh.pipeline_size()) {
    ASSIGN_OR_RETURN(const model::ChunkRange range,
                     model::MakeChunkRange(config, plan.options.num_chunks(), chunk));
    const int last = range.first_layer + range.num_layers - 1;
    ranges.push_back(last == range.first_layer ? absl::StrCat(last)
                                               : absl::StrCat(range.first_layer, "-", last));
  }
  return absl::StrJoin(ranges, ", ");
}

// Returns the bytes that one rank of each stage needs for gradients.
absl::StatusOr<std::vector<int64_t>> GradientBytesByStage(const JobPlan& plan) {
  std::vector<int64_t> bytes;
  for (const plan::RankPlan& stage : plan.stages) {
    ASSIGN_OR_RETURN(const layout::RankLayout part, layout::RankLayoutOf(plan.spec, stage.rank));
    bytes.push_back(layout::GradientBytes(layout::GradientSizesOf(part, stage),
                                          tensor::AccumulationType(part.compute)));
  }
  return bytes;
}

// Returns the peak resident memory of this process, as the kernel counts it.
int64_t PeakMemoryBytes() {
  rusage usage = {};
  return ::getrusage(RUSAGE_SELF, &usage) == 0 ? int64_t{usage.ru_maxrss} << 10 : 0;
}

double Percent(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
}

// Returns by how many percent the step takes longer than the stage that computes longest.
double BubblePercent(const JobPlan& plan) {
  int64_t longest = 0;
  for (const timeline::RankTime& rank : timeline::Summarize(plan.stages, plan.time)) {
    longest = std::max(longest, rank.compute);
  }
  return Percent(plan.time.end - longest, longest);
}

// Returns how often the next `length` operations repeat in a row.
size_t Repeats(absl::Span<const model::PassOperation> operations, size_t length) {
  const auto are_alike = [](const model::PassOperation& a, const model::PassOperation& b) {
    return a.kind == b.kind && a.name == b.name && a.flops == b.flops && a.bytes == b.bytes;
  };
  size_t same = length;
  while (same < operations.size() && are_alike(operations[same], operations[same - length])) ++same;
  return same / length;
}

// Prints a layer's operations in each pass of a micro-batch, in order; all layers of all ranks have
// the same. Consecutive pieces, and pieces that alternate with those of a product, are shown once.
absl::Status PrintLayer(const JobPlan& plan) {
  const model::ChunkOptions options =
      plan.part.ModelOptions({.first_layer = 0, .num_layers = 1}, /*num_slots=*/1);
  ASSIGN_OR_RETURN(const model::ChunkPasses passes, model::RecordChunk(options, {0}));
  std::vector<std::vector<std::string>> rows = {{"PASS", "TIMES", "OPERATION", "COST OF EACH"}};
  const auto add = [&](const char* name, const model::PassOperations& pass) {
    absl::Span<const model::PassOperation> left = pass;
    while (!left.empty()) {
      const size_t length = Repeats(left, 1) == 1 && Repeats(left, 2) > 1 ? 2 : 1;
      const size_t times = Repeats(left, length);
      for (const model::PassOperation& one : left.first(length)) {
        rows.push_back({name, absl::StrCat(times), model::Describe(one),
                        one.flops > 0 ? absl::StrFormat("%.3g FLOP", one.flops)
                                      : base::FormatBytes(one.bytes)});
      }
      left.remove_prefix(length * times);
    }
  };
  add("forward", passes.forward);
  add(options.split_backward ? "input's gradient" : "backward", passes.backward);
  add("weights' gradients", passes.weights);
  std::printf("\neach layer, of one micro-batch, on one rank\n%s", FormatTable(rows).c_str());
  return absl::OkStatus();
}

absl::Status PrintText(const JobPlan& plan, const PlanFlags& flags) {
  std::printf("%s\n\n", Title(plan).c_str());
  PrintMesh(plan.options.mesh);
  PrintLinks(plan);
  const std::vector<timeline::RankTime> times = timeline::Summarize(plan.stages, plan.time);
  ASSIGN_OR_RETURN(const std::vector<int64_t> gradients, GradientBytesByStage(plan));
  std::vector<std::vector<std::string>> rows = {
      {"STAGE", "LAYERS", "INSTRUCTIONS", "MICRO-BATCHES KEPT", "GRADIENTS", "COMPUTES", "WAITS"}};
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    ASSIGN_OR_RETURN(std::string layers, LayersOf(plan, static_cast<int>(stage)));
    rows.push_back({absl::StrCat(stage), std::move(layers),
                    absl::StrCat(plan.stages[stage].instructions.size()),
                    absl::StrJoin(plan.stages[stage].slots, " + "),
                    base::FormatBytes(gradients[stage]),
                    absl::StrFormat("%.1f %%", Percent(times[stage].compute, plan.time.end)),
                    absl::StrFormat("%.1f %%", Percent(times[stage].idle, plan.time.end))});
  }
  std::printf("\n%s", FormatTable(rows).c_str());
  std::printf(
      "\nvalid for all %d ranks: no deadlock, every message is received, every micro-batch passes "
      "every layer once each way\nat %.3g FLOP/s and %.3g bytes/s of memory a rank, and %s, a step "
      "takes %.4g s, %.1f %% more than its busiest stage computes\n",
      plan.options.mesh.world_size(), flags.flops_per_second,
      RatesOf(flags).memory_bytes_per_second, LinkRatesText(plan, flags).c_str(),
      static_cast<double>(plan.time.end) / 1e9, BubblePercent(plan));
  std::printf("%s", EvaluationLine(plan).c_str());
  if (flags.measure) {
    std::printf("built in %s, validated in %s, at most %s of memory\n",
                absl::FormatDuration(plan.effort.build).c_str(),
                absl::FormatDuration(plan.effort.validate).c_str(),
                base::FormatBytes(PeakMemoryBytes()).c_str());
  }
  if (flags.instructions) {
    RETURN_IF_ERROR(PrintLayer(plan));
    for (const plan::RankPlan& stage : plan.stages) {
      std::printf("\n%s", plan::ToString(stage).c_str());
    }
    if (job::EvaluationInterval(plan.spec) > 0) {
      std::printf("\nan evaluation, for each batch of windows\n");
      for (const plan::RankPlan& stage : plan.evaluation) {
        std::printf("\n%s", plan::ToString(stage).c_str());
      }
    }
  }
  return absl::OkStatus();
}

absl::Status PrintJson(const JobPlan& plan, const PlanFlags& flags) {
  const plan::Mesh& mesh = plan.options.mesh;
  ASSIGN_OR_RETURN(const std::vector<int64_t> gradients, GradientBytesByStage(plan));
  JsonObject object;
  object.Add("job", plan.spec.name());
  object.Add("data_parallel_size", int64_t{mesh.data_size()});
  object.Add("pipeline_model_parallel_size", int64_t{mesh.pipeline_size()});
  object.Add("tensor_model_parallel_size", int64_t{mesh.tensor_size()});
  object.Add("ranks", int64_t{mesh.world_size()});
  object.Add("virtual_stages", int64_t{plan.options.chunks_per_stage});
  object.Add("num_microbatches", int64_t{plan.options.num_microbatches});
  object.Add("schedule", Name(plan.options.schedule));
  object.Add("zero_stage", int64_t{plan.options.zero_stage});
  object.Add("gradient_bytes", *std::max_element(gradients.begin(), gradients.end()));
  object.Add("step_seconds", static_cast<double>(plan.time.end) / 1e9);
  object.Add("bubble_percent", BubblePercent(plan));
  if (const int64_t interval = job::EvaluationInterval(plan.spec); interval > 0) {
    object.Add("evaluation_interval", interval);
    object.Add("evaluation_seconds", static_cast<double>(job::EvaluationBatches(plan.spec)) *
                                         static_cast<double>(plan.evaluation_nanos) / 1e9);
  }
  if (plan.ranks_per_machine > 0) {
    object.Add("ranks_per_machine", int64_t{plan.ranks_per_machine});
    object.Add("network_bytes_per_second", RatesOf(flags).network_bytes_per_second);
    for (const auto& [group, link] : plan.links) {
      object.Add(absl::StrCat(mesh.Name(group), "_link"),
                 link == simulate::Link::kInMachine ? "machine" : "network");
    }
  }
  if (flags.measure) {
    object.Add("build_seconds", absl::ToDoubleSeconds(plan.effort.build));
    object.Add("validate_seconds", absl::ToDoubleSeconds(plan.effort.validate));
    object.Add("peak_memory_bytes", PeakMemoryBytes());
  }
  std::printf("%s\n", object.Finish().c_str());
  return absl::OkStatus();
}

// The part of the step that fits into a file, and a text about the part left out; "": all of it
// fits.
struct Shown {
  timeline::TimedStep step;
  std::string left_out;
};

Shown ShownOf(const JobPlan& plan, int64_t instructions_max) {
  timeline::Beginning beginning = timeline::BeginningOf(plan.time, instructions_max);
  Shown shown = {.step = {.time = std::move(beginning.time)}, .left_out = ""};
  if (beginning.num_left_out == 0) return shown;
  shown.left_out =
      absl::StrFormat("the first %.3g s of %.3g s; %d later instructions are left out",
                      static_cast<double>(shown.step.time.end) / 1e9,
                      static_cast<double>(plan.time.end) / 1e9, beginning.num_left_out);
  return shown;
}

absl::Status WriteFile(const char* flag, const std::string& path, const std::string& contents,
                       const std::string& left_out) {
  RETURN_IF_ERROR(base::Annotate(WriteOutputFile(path, contents), flag));
  if (!left_out.empty()) std::fprintf(stderr, "%s: %s\n", flag, left_out.c_str());
  return absl::OkStatus();
}

absl::Status WriteFiles(const JobPlan& plan, const PlanFlags& flags) {
  std::vector<std::string> names;
  for (const plan::RankPlan& stage : plan.stages) {
    names.push_back(absl::StrCat("stage ", stage.stage()));
  }
  if (!flags.svg.empty()) {
    const Shown shown = ShownOf(plan, kDrawnMax);
    const std::string title =
        shown.left_out.empty() ? Title(plan) : absl::StrCat(Title(plan), "; ", shown.left_out);
    RETURN_IF_ERROR(WriteFile("--svg", flags.svg,
                              timeline::TimelineSvg(plan.stages, shown.step.time, title, names),
                              shown.left_out));
  }
  if (!flags.trace.empty()) {
    const Shown shown = ShownOf(plan, kTracedMax);
    RETURN_IF_ERROR(WriteFile("--trace", flags.trace,
                              timeline::PerfettoTrace(plan.stages, {{shown.step}}, names),
                              shown.left_out));
  }
  return absl::OkStatus();
}

int RunPlan(const PlanFlags& flags) {
  if (!CheckOutputFormat(flags.format)) return kExitUsage;
  const bool svg_printed = IsStandardOutput(flags.svg);
  const bool trace_printed = IsStandardOutput(flags.trace);
  if (svg_printed && trace_printed) {
    return ReportError(absl::InvalidArgumentError(
        "--svg and --trace: both are standard output; give one of them a file"));
  }
  absl::Status keeps = CheckKeepsInputs("--svg", flags.svg, {flags.file});
  keeps.Update(CheckKeepsInputs("--trace", flags.trace, {flags.file}));
  keeps.Update(CheckReplaces("--svg", flags.svg, SvgPicture(), flags.force));
  keeps.Update(CheckReplaces("--trace", flags.trace, PerfettoFile(), flags.force));
  if (!keeps.ok()) return ReportError(keeps);
  const absl::StatusOr<JobPlan> plan = MakePlan(flags);
  if (!plan.ok()) return ReportMistakes(plan.status());
  if (const absl::Status written = WriteFiles(*plan, flags); !written.ok()) {
    return ReportError(written);
  }
  if (svg_printed || trace_printed) return kExitGood;
  const absl::Status printed =
      flags.format == "json" ? PrintJson(*plan, flags) : PrintText(*plan, flags);
  return printed.ok() ? static_cast<int>(kExitGood) : ReportError(printed);
}

}  // namespace

void AddPlanCommand(CommandLine* line) {
  auto flags = std::make_shared<PlanFlags>();
  Command* command =
      line->Add("plan", "shows the instructions of a job's step and their time; starts nothing");
  command->PathPositional("FILE", &flags->file, "job file (YAML); examples/ has some");
  command->Repeated("--set", &flags->overrides,
                    "FIELD=VALUE instead of the file's, such as train.global_batch_size=64");
  command->Number("--flops-per-second", &flags->flops_per_second, "of each rank");
  command->Number("--bytes-per-second", &flags->bytes_per_second, "of each link between ranks");
  command->Integer(
      "--slots", &flags->slots,
      "ranks on each machine; links between machines then have a rate of their own; 0: "
      "one machine runs all");
  command->Number("--network-bytes-per-second", &flags->network_bytes_per_second,
                  "with --slots: of each link between ranks on different machines; 0: a tenth of "
                  "--bytes-per-second");
  command->Number("--memory-bytes-per-second", &flags->memory_bytes_per_second,
                  "of each rank's memory; 0: a hundredth of --flops-per-second");
  command->Path("--svg", &flags->svg,
                "draws the step into this file; -: standard output, instead of the tables");
  command->Path(
      "--trace", &flags->trace,
      "writes a trace for ui.perfetto.dev into this file; -: standard output, instead of the "
      "tables");
  AddForceOption(command, &flags->force);
  command->Flag("--instructions", &flags->instructions,
                "prints what a layer does in a pass, and every stage's instructions");
  command->Flag("--measure", &flags->measure, "prints the time and memory of planning itself");
  AddOutputOption(command, &flags->format);
  command->Details(
      "Places the ranks in the mesh, builds the plan of every stage, proves for every rank that it "
      "ends and that nothing is used before it is made, and computes when each instruction begins "
      "and ends. Ranks that do the same are planned once, so thousands cost what a few cost. "
      "With --slots, consecutive ranks fill the machines, as the driver places them: a transfer "
      "takes the rate of the link between its two ranks, a collective that of the slowest link in "
      "its group; if replicas of a stage lie differently on the machines, the slowest one counts. "
      "Drawings and traces of a very long step show its beginning only, and say so.");
  command->Examples(
      "megascale plan examples/fortunes.yaml\n"
      "megascale plan examples/fortunes.yaml --set train.global_batch_size=64 --svg step.svg\n"
      "megascale plan examples/fortunes.yaml --set parallel.pipeline_schedule=zb_h1 \\\n"
      "    --set train.global_batch_size=64 --trace step.json\n"
      "megascale plan examples/fortunes.yaml --set train.global_batch_size=64 \\\n"
      "    --set parallel.virtual_pipeline_model_parallel_size=2\n"
      "megascale plan examples/megascale-175b-12288.yaml --flops-per-second 312e12 --measure\n"
      "# links of 300 GB/s inside machines of 8 ranks, 25 GB/s between them\n"
      "megascale plan examples/megascale-175b-12288.yaml --flops-per-second 312e12 \\\n"
      "    --slots 8 --bytes-per-second 300e9 --network-bytes-per-second 25e9");
  command->Runs([flags] { return RunPlan(*flags); });
}

}  // namespace megascale::cli
