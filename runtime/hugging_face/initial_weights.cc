#include "runtime/hugging_face/initial_weights.h"

#include <fcntl.h>
#include <google/protobuf/util/message_differencer.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/descriptor.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/hugging_face/kept_files.h"
#include "runtime/job/job_spec.h"
#include "runtime/model/chunk_layout.h"
#include "runtime/model/config.h"

namespace megascale::hugging_face {
namespace {

using google::protobuf::FieldDescriptor;
using job::v1::ModelSpec;

constexpr char kEmbedding[] = "model.embed_tokens.weight";
constexpr char kHead[] = "lm_head.weight";

constexpr absl::string_view kUnspecified = "UNSPECIFIED";

// Fields that a job may set to something else than the source.
constexpr absl::string_view kFree[] = {
    "norm_eps",   "sliding_window", "layer_types",           "initializer_range",
    "rope_theta", "rope_scaling",   "partial_rotary_factor", "max_position_embeddings"};

absl::StatusOr<Source> SourceOfCheckpoint(const std::string& directory) {
  ASSIGN_OR_RETURN(const checkpoint::v1::Manifest manifest, checkpoint::ReadManifest(directory));
  Source source{.path = directory, .is_checkpoint = true, .model = {}, .warnings = {}};
  source.model = Resolved(manifest.spec().model());
  source.model.clear_from();
  return source;
}

std::string FieldText(const ModelSpec& model, const FieldDescriptor& field) {
  const google::protobuf::Reflection& reflection = *model.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat(reflection.GetInt32(model, &field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return absl::StrCat(reflection.GetDouble(model, &field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(model, &field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_ENUM: {
      // As in a job file: "rmsnorm" for NORM_RMSNORM.
      const size_t prefix = field.enum_type()->value(0)->name().size() - kUnspecified.size();
      return absl::AsciiStrToLower(reflection.GetEnum(model, &field)->name().substr(prefix));
    }
    default:
      return "other";
  }
}

bool IsFree(const Source& source, const FieldDescriptor& field) {
  if (field.name() == "max_position_embeddings") {
    return source.model.position_embedding() == job::v1::POSITION_EMBEDDING_ROTARY;
  }
  if (field.name() == "tie_word_embeddings") return source.model.tie_word_embeddings();
  return std::find(std::begin(kFree), std::end(kFree), field.name()) != std::end(kFree);
}

void CopyField(const ModelSpec& from, const FieldDescriptor& field, ModelSpec* to) {
  const google::protobuf::Reflection& reflection = *from.GetReflection();
  ModelSpec rest = from;
  std::vector<const FieldDescriptor*> others;
  reflection.ListFields(from, &others);
  for (const FieldDescriptor* other : others) {
    if (other != &field) reflection.ClearField(&rest, other);
  }
  reflection.ClearField(to, &field);
  to->MergeFrom(rest);
}

// Changes the fields of the source's section that the job sets, and keeps its others.
void MergeScaling(const job::v1::RopeScaling& given, const std::set<std::string>& given_names,
                  ModelSpec* merged) {
  const auto is_given = [&](const std::string& name) {
    return given_names.count("rope_scaling." + name) > 0;
  };
  job::v1::RopeScaling& scaling = *merged->mutable_rope_scaling();
  // An attention factor that follows from the source's factor follows from the new one.
  if (is_given("factor")) {
    ModelSpec derived = *merged;
    derived.mutable_rope_scaling()->clear_attention_factor();
    const double attention = Resolved(derived).rope_scaling().attention_factor();
    if (attention == scaling.attention_factor()) scaling.clear_attention_factor();
  }
  scaling.MergeFrom(given);
  for (int i = 0; i < given.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *given.GetDescriptor()->field(i);
    const bool is_zero = !given.GetReflection()->HasField(given, &field);
    if (is_zero && is_given(field.name())) scaling.GetReflection()->ClearField(&scaling, &field);
  }
}

std::string Expected() {
  return absl::StrCat(": expected a Hugging Face folder with ", kConfigFile, ", a checkpoint with ",
                      checkpoint::kManifestFile, ", or a folder of checkpoints");
}

// A folder that may not be read would seem to be one without weights.
absl::Status CheckMayRead(const std::string& path) {
  struct stat info = {};
  const bool exists = ::stat(path.c_str(), &info) == 0;
  if (exists && !S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is no folder", Expected()));
  }
  const bool is_refused =
      ::faccessat(AT_FDCWD, path.c_str(), R_OK | X_OK, AT_EACCESS) != 0 && errno == EACCES;
  return is_refused ? base::ErrnoStatus(EACCES, path) : absl::OkStatus();
}

}  // namespace

absl::StatusOr<Source> FindSource(const std::string& path) {
  RETURN_IF_ERROR(CheckMayRead(path));
  if (Exists(path, checkpoint::kManifestFile)) return SourceOfCheckpoint(path);
  if (Exists(path, kConfigFile)) {
    // What the weights themselves say, where they are: whether they are tied, and more warnings.
    const auto weights = Weights::Open(path);
    ASSIGN_OR_RETURN(Config config, weights.ok() ? absl::StatusOr<Config>((*weights)->config())
                                                 : ReadConfig(path));
    return Source{.path = path,
                  .is_checkpoint = false,
                  .model = std::move(config.model),
                  .warnings = std::move(config.warnings)};
  }
  const auto checkpoints = checkpoint::ListCheckpoints(path);
  if (checkpoints.ok() && !checkpoints->empty()) {
    return SourceOfCheckpoint(checkpoints->front().directory());
  }
  return absl::NotFoundError(absl::StrCat(path, ": has no weights", Expected()));
}

absl::StatusOr<ModelSpec> MergeModels(const Source& source, const ModelSpec& given,
                                      const std::set<std::string>& given_names) {
  ModelSpec merged = source.model;
  // A bias of queries, keys and values that the source leaves to attention_bias.
  if (given.has_qkv_bias() && !merged.has_qkv_bias()) {
    merged.set_qkv_bias(merged.attention_bias());
  }
  for (int i = 0; i < ModelSpec::descriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *ModelSpec::descriptor()->field(i);
    if (field.name() == "from" || given_names.count(field.name()) == 0) continue;
    if (field.name() == "rope_scaling" && merged.has_rope_scaling() && given.has_rope_scaling() &&
        given.rope_scaling().rope_type() == job::v1::ROPE_TYPE_UNSPECIFIED) {
      MergeScaling(given.rope_scaling(), given_names, &merged);
      continue;
    }
    if (IsFree(source, field)) {
      CopyField(given, field, &merged);
      continue;
    }
    const std::string wanted = FieldText(given, field);
    const std::string found = FieldText(merged, field);
    if (wanted == found) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("model.", field.name(), ": the job has ", wanted, ", ", source.path, " has ",
                     found, "; leave the field out, or start from other weights"));
  }
  // Without a window no layer has one.
  if (merged.sliding_window() == 0 && given_names.count("layer_types") == 0) {
    merged.clear_layer_types();
  }
  merged.set_from(source.path);
  return merged;
}

absl::StatusOr<std::unique_ptr<InitialWeights>> InitialWeights::Open(const ModelSpec& model) {
  std::unique_ptr<InitialWeights> weights(new InitialWeights);
  ASSIGN_OR_RETURN(weights->source_, FindSource(model.from()));
  const std::string& path = weights->source_.path;
  if (weights->source_.is_checkpoint) {
    ASSIGN_OR_RETURN(weights->reader_, checkpoint::CheckpointReader::Open(path));
  } else {
    ASSIGN_OR_RETURN(weights->folder_, Weights::Open(path));
  }
  // The job may have been made where only the folder's configuration could be read.
  if (model.tie_word_embeddings() && !weights->source_.model.tie_word_embeddings()) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.tie_word_embeddings: the job has true, but ", path,
                     " has an output matrix of its own; set it to false in the job"));
  }
  RETURN_IF_ERROR(weights->CheckTensors(model));
  return weights;
}

std::string InitialWeights::NameIn(absl::string_view name) const {
  const bool copies = name == kHead && source_.model.tie_word_embeddings();
  return copies ? kEmbedding : std::string(name);
}

absl::Status InitialWeights::CheckTensors(const ModelSpec& model) const {
  absl::flat_hash_map<std::string, std::vector<int64_t>> shapes;
  if (reader_ != nullptr) {
    for (const auto& tensor : reader_->tensors()) shapes[tensor.name] = tensor.shape;
  } else {
    for (const TensorMap& tensor : folder_->tensors()) shapes[tensor.name] = tensor.shape;
  }
  ASSIGN_OR_RETURN(const model::ModelConfig config, model::MakeModelConfig(model));
  const model::ChunkRange whole{0, static_cast<int>(config.num_layers), true, true};
  const model::ChunkLayout layout(config, whole);
  for (const model::Parameter& parameter : layout.parameters()) {
    const auto found = shapes.find(NameIn(parameter.name));
    if (found == shapes.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(source_.path, ": has no tensor ", parameter.name,
                       ", which the job's model has; take the model section from these weights"));
    }
    if (found->second != parameter.shape) {
      return absl::InvalidArgumentError(absl::StrCat(
          source_.path, ": ", parameter.name, " has the shape [",
          absl::StrJoin(found->second, ", "), "], the job's model wants [",
          absl::StrJoin(parameter.shape, ", "), "]; take the model section from these weights"));
    }
  }
  return absl::OkStatus();
}

template <typename Number>
absl::Status InitialWeights::ReadNumbers(absl::string_view name, const checkpoint::Box& box,
                                         int64_t begin, absl::Span<Number> out) {
  const std::string found = NameIn(name);
  if (reader_ == nullptr) return folder_->Read(found, box, begin, out);
  RETURN_IF_ERROR(reader_->ReadBox(found, box, begin, out));
  const auto wrong =
      std::find_if_not(out.begin(), out.end(), [](Number number) { return std::isfinite(number); });
  if (wrong == out.end()) return absl::OkStatus();
  const checkpoint::Box place =
      checkpoint::BoxesOfRange(box, begin + (wrong - out.begin()), 1).front();
  return absl::DataLossError(absl::StrCat(source_.path, ": ", found, "[",
                                          absl::StrJoin(place.offset, ", "), "] is ", *wrong,
                                          ": expected a finite number"));
}

absl::Status InitialWeights::Read(absl::string_view name, const checkpoint::Box& box, int64_t begin,
                                  absl::Span<float> out) {
  return ReadNumbers(name, box, begin, out);
}

absl::Status InitialWeights::Read(absl::string_view name, const checkpoint::Box& box, int64_t begin,
                                  absl::Span<double> out) {
  return ReadNumbers(name, box, begin, out);
}

}  // namespace megascale::hugging_face
