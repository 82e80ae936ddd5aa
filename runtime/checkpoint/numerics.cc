#include "runtime/checkpoint/numerics.h"

#include <dnnl.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "runtime/base/check.h"
#include "runtime/base/text/nearest_name.h"
#include "runtime/base/text/printable.h"
#include "runtime/checkpoint/product_table.h"
#include "runtime/job/data_digest.h"
#include "runtime/job/job_spec.h"

namespace megascale::checkpoint {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr size_t kChangesShownMax = 4;

constexpr absl::string_view kReplicas = "layout.data_parallel_size";
constexpr absl::string_view kBucketSize = "layout.ddp_bucket_size";
constexpr absl::string_view kDevice = "device";
constexpr absl::string_view kAttention = "data.attention";

// Fields that older versions did not write, and the values that match their behaviour.
constexpr std::pair<absl::string_view, absl::string_view> kWasImplied[] = {
    {"layout.virtual_pipeline_model_parallel_size", "1"},
    {"layout.zero_stage", "1"},
    {kBucketSize, "1099511627776"},  // larger than any chunk: one bucket for everything
    {"optimizer.type", "OPTIMIZER_TYPE_ADAMW"},
    {kAttention, "ATTENTION_ACROSS_DOCUMENTS"},  // left out, as the next one
    {kDevice, "DEVICE_CPU"},  // this version leaves it out, too: see MakeNumericsFingerprint
};
// A field that only older versions wrote.
constexpr absl::string_view kWasWritten = "layout.pipeline_schedule";
constexpr absl::string_view kReducedBySchedule = "layout.zero_stage_2_schedule";

// Returns the shortest text that reads back as the same number.
std::string Text(double value) {
  constexpr int kDigitsMax = 17;  // always enough for a double
  std::string text;
  for (int digits = 1; digits <= kDigitsMax; ++digits) {
    text = absl::StrFormat("%.*g", digits, value);
    double read = 0;
    if (absl::SimpleAtod(text, &read) && read == value) break;
  }
  return text;
}

std::string FieldText(const Message& message, const FieldDescriptor* field) {
  const google::protobuf::Reflection* reflection = message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Text(reflection->GetDouble(message, field));
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat(reflection->GetInt32(message, field));
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(reflection->GetInt64(message, field));
    case FieldDescriptor::CPPTYPE_UINT64:
      return absl::StrCat(reflection->GetUInt64(message, field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->GetBool(message, field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection->GetString(message, field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection->GetEnum(message, field)->name();
    default:
      MEGASCALE_CHECK_MSG(false, absl::StrCat(field->full_name(), ": teach FieldText its type"));
  }
}

using Fields = google::protobuf::Map<std::string, std::string>;

// Adds the set fields of `message` as "area.field". Uses reflection, so that new fields of the job
// are included automatically.
void AddFields(const Message& message, absl::string_view area, Fields* fields) {
  std::vector<const FieldDescriptor*> set;
  message.GetReflection()->ListFields(message, &set);
  for (const FieldDescriptor* field : set) {
    const std::string name = absl::StrCat(area, ".", field->name());
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      AddFields(message.GetReflection()->GetMessage(message, field), name, fields);
    } else {
      (*fields)[name] = FieldText(message, field);
    }
  }
}

// Renames a field, usually to give it an area of its own.
void Rename(absl::string_view field, absl::string_view name, Fields* fields) {
  const auto found = fields->find(std::string(field));
  if (found == fields->end()) return;
  const std::string value = found->second;
  fields->erase(found);
  (*fields)[std::string(name)] = value;
}

struct Change {
  std::string field;
  std::string kept;
  std::string now;

  std::string Area() const {
    return std::pair<std::string, std::string>(absl::StrSplit(field, absl::MaxSplits('.', 1)))
        .first;
  }
};

absl::Status Refuse(std::vector<Change> changes, const std::vector<std::string>& allow_changed) {
  const auto is_allowed = [&allow_changed](const Change& change) {
    return AllowsChange(allow_changed, change.Area());
  };
  std::erase_if(changes, is_allowed);
  if (changes.empty()) return absl::OkStatus();
  std::set<std::string> areas;
  std::vector<std::string> texts;
  for (const Change& change : changes) {
    areas.insert(change.Area());
    if (texts.size() == kChangesShownMax) continue;
    texts.push_back(absl::StrCat(change.field, " was ", change.kept, ", is ", change.now));
  }
  if (changes.size() > kChangesShownMax) {
    texts.push_back(absl::StrCat(changes.size() - kChangesShownMax, " more"));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the checkpoint was made under other conditions: ", absl::StrJoin(texts, "; "),
      "; restore them, or go on with other bits by --allow-changed ", absl::StrJoin(areas, ",")));
}

int64_t NumFiles(const v1::DataFingerprint& fingerprint) {
  return std::max<int64_t>(fingerprint.file_sha256_size(), fingerprint.num_files());
}

std::string ShortHash(const v1::DataFingerprint& fingerprint, int file) {
  return absl::StrCat("SHA-256 ", fingerprint.file_sha256(file).substr(0, 12), "...");
}

}  // namespace

std::vector<absl::string_view> NumericsAreas() {
  return {"data",
          "model",
          "optimizer",
          "batch",
          "precision",
          "seed",
          "layout",
          kDevice,
          "threads_per_rank",
          "instruction_set",
          "onednn",
          "megascale_numerics",
          kProductTableField};
}

absl::Status CheckAllowed(absl::string_view field, absl::string_view name) {
  std::vector<std::string> known = {"all"};
  for (const absl::string_view area : NumericsAreas()) known.emplace_back(area);
  if (std::find(known.begin(), known.end(), name) != known.end()) return absl::OkStatus();
  constexpr size_t kShownBytesMax = 60;
  const std::string nearest = base::NearestName(name, known);
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": unknown area '", base::Printable(name, kShownBytesMax), "'; ",
                   nearest.empty() ? absl::StrCat("expected one of ", absl::StrJoin(known, ", "))
                                   : absl::StrCat("did you mean '", nearest, "'?")));
}

v1::NumericsFingerprint MakeNumericsFingerprint(const job::v1::JobSpec& spec,
                                                absl::string_view instruction_set) {
  v1::NumericsFingerprint fingerprint;
  Fields* fields = fingerprint.mutable_fields();
  // A job on processors has the fingerprint that it had before jobs chose their device.
  if (spec.device() != job::v1::DEVICE_UNSPECIFIED && spec.device() != job::v1::DEVICE_CPU) {
    (*fields)[std::string(kDevice)] = job::v1::Device_Name(spec.device());
    // Ranks that share a GPU exchange through the host, which adds in another order.
    if (spec.device_sharing()) (*fields)[absl::StrCat(kDevice, ".sharing")] = "true";
  }
  if (spec.data().attention() == job::v1::ATTENTION_WITHIN_DOCUMENTS) {
    (*fields)[std::string(kAttention)] = job::v1::Attention_Name(spec.data().attention());
  }
  AddFields(spec.model(), "model", fields);
  AddFields(spec.optimizer(), "optimizer", fields);
  AddFields(spec.train(), "batch", fields);
  AddFields(spec.parallel(), "layout", fields);
  fields->erase("model.from");  // a path; the weights themselves are in the first checkpoint
  fields->erase("batch.steps");
  for (const char* of_evaluations : {"eval_interval", "eval_batches"}) {
    fields->erase(absl::StrCat("batch.", of_evaluations));
  }
  // A resume compares the rates that follow from these, as from the number of steps.
  for (const char* of_schedule : {"schedule", "decay_steps", "decay"}) {
    fields->erase(absl::StrCat("optimizer.", of_schedule));
  }
  fields->erase("batch.recompute_granularity");
  // With stage 2 a reduction takes the gradients that passes have added since the previous one, and
  // the schedule decides which passes these are. With stage 1 all schedules add in one order.
  if (spec.parallel().zero_stage() == 2) Rename(kWasWritten, kReducedBySchedule, fields);
  for (const char* when : {"pipeline_schedule", "overlap_grad_reduce", "overlap_param_gather",
                           "overlap_p2p_communication", "tp_comm_overlap"}) {
    fields->erase(absl::StrCat("layout.", when));
  }
  // NCCL may add a whole sum in another order than its pieces.
  if (job::HasWholeTensorExchanges(spec)) (*fields)["layout.whole_tensor_exchanges"] = "true";
  Rename("batch.precision", "precision", fields);
  Rename("batch.seed", "seed", fields);
  Rename("layout.threads_per_rank", "threads_per_rank", fields);
  (*fields)["instruction_set"] = std::string(instruction_set);
  const dnnl_version_t* onednn = dnnl_version();
  (*fields)["onednn"] = absl::StrCat(onednn->major, ".", onednn->minor, ".", onednn->patch);
  (*fields)["megascale_numerics"] = std::string(kNumericsVersion);
  return fingerprint;
}

absl::Status CompareFingerprints(const v1::NumericsFingerprint& kept,
                                 const v1::NumericsFingerprint& now,
                                 const std::vector<std::string>& allow_changed) {
  std::set<std::string> names;
  for (const auto& [name, value] : kept.fields()) names.insert(name);
  for (const auto& [name, value] : now.fields()) names.insert(name);
  names.erase(std::string(kWasWritten));
  const auto value = [](const v1::NumericsFingerprint& from, const std::string& name) {
    const auto found = from.fields().find(name);
    if (found != from.fields().end()) return found->second;
    for (const auto& [field, implied] : kWasImplied) {
      if (field == name) return std::string(implied);
    }
    return std::string("not set");
  };
  // A single replica has no buckets; a changed number of replicas shows in its own field.
  const std::string one = "1";
  if (value(kept, std::string(kReplicas)) == one || value(now, std::string(kReplicas)) == one) {
    names.erase(std::string(kBucketSize));
  }
  std::vector<Change> changes;
  for (const std::string& name : names) {
    Change change{name, value(kept, name), value(now, name)};
    if (change.kept != change.now) changes.push_back(std::move(change));
  }
  return Refuse(std::move(changes), allow_changed);
}

absl::Status CompareFingerprints(const v1::DataFingerprint& kept, const v1::DataFingerprint& now,
                                 const std::vector<std::string>& allow_changed) {
  std::vector<Change> changes;
  const auto add = [&changes](const std::string& name, const std::string& was,
                              const std::string& is) {
    if (was != is) changes.push_back({absl::StrCat("data.", name), was, is});
  };
  add("tokenizer", kept.tokenizer(), now.tokenizer());
  add("files", absl::StrCat(NumFiles(kept)), absl::StrCat(NumFiles(now)));
  add("total_bytes", absl::StrCat(kept.total_bytes()), absl::StrCat(now.total_bytes()));
  add("total_tokens", absl::StrCat(kept.total_tokens()), absl::StrCat(now.total_tokens()));
  add("held_out_bytes", absl::StrCat(kept.held_out_bytes()), absl::StrCat(now.held_out_bytes()));
  for (int i = 0; i < std::min(kept.file_sha256_size(), now.file_sha256_size()); ++i) {
    if (kept.file_sha256(i) == now.file_sha256(i)) continue;
    add(absl::StrCat("files[", i, "]"), ShortHash(kept, i), ShortHash(now, i));
    break;
  }
  if (changes.empty()) {
    add("files_sha256", job::DigestOf(kept).files_sha256(), job::DigestOf(now).files_sha256());
    add("tokens_sha256", kept.tokens_sha256(), now.tokens_sha256());
  }
  return Refuse(std::move(changes), allow_changed);
}

}  // namespace megascale::checkpoint
