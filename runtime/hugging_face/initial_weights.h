// The weights with which a job with `model.from` begins: those of a checkpoint, or of a Hugging
// Face folder. Every rank reads its own slices, so that any layout starts with the same weights.
// Threads: one thread at a time. Blocking: storage.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/job.pb.h"
#include "runtime/checkpoint/format/box.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/hugging_face/weights.h"

namespace megascale::hugging_face {

// Where weights are, and their model.
struct Source {
  std::string path;  // of a folder with config.json, or of one checkpoint
  bool is_checkpoint = false;
  job::v1::ModelSpec model;  // resolved, without `from`
  std::vector<std::string> warnings;
};

// Finds the weights at `path`: a Hugging Face folder, a checkpoint, or the newest one in a folder
// of checkpoints. Reads config.json or the manifest, and of a folder the weights that say whether
// they are tied, if they are there. Errors: NotFound - none of them is there; those of ReadConfig
// and of checkpoint::ReadManifest.
absl::StatusOr<Source> FindSource(const std::string& path);

// Returns the model of a job that starts from `source`. `given`: the job's model section, of which
// the job sets the fields `given_names`. Fields that change what the weights mean or their shapes
// must agree; others, such as the window, theta or the longest sequence of rotary positions, are
// taken from `given`. Tied embeddings may be untied: both matrices then start equal. A rope_scaling
// without rope_type changes single fields of the source's rope_scaling, by names such as
// "rope_scaling.factor"; a rope_scaling with rope_type replaces the source's. Errors:
// InvalidArgument - a contradiction: "model.FIELD: the job has X, PATH has Y".
absl::StatusOr<job::v1::ModelSpec> MergeModels(const Source& source,
                                               const job::v1::ModelSpec& given,
                                               const std::set<std::string>& given_names);

class InitialWeights {
 public:
  // Opens `model.from`. Errors: those of FindSource, Weights::Open and CheckpointReader::Open;
  // InvalidArgument - a tensor of `model` is missing or has another shape there.
  static absl::StatusOr<std::unique_ptr<InitialWeights>> Open(const job::v1::ModelSpec& model);

  // What the source says that this program ignores, one line each.
  const std::vector<std::string>& warnings() const { return source_.warnings; }

  // Overwrites `out` with elements of a box of one of our tensors, from element `begin` of the box
  // on. Errors: those of Weights::Read and CheckpointReader::ReadBox; DataLoss - a number is
  // infinite or not a number: names the tensor and the index.
  absl::Status Read(absl::string_view name, const checkpoint::Box& box, int64_t begin,
                    absl::Span<float> out);
  absl::Status Read(absl::string_view name, const checkpoint::Box& box, int64_t begin,
                    absl::Span<double> out);

 private:
  InitialWeights() = default;
  absl::Status CheckTensors(const job::v1::ModelSpec& model) const;
  // Returns the name in the source, where the output matrix may be the tied embedding matrix.
  std::string NameIn(absl::string_view name) const;
  template <typename Number>
  absl::Status ReadNumbers(absl::string_view name, const checkpoint::Box& box, int64_t begin,
                           absl::Span<Number> out);

  Source source_;
  std::unique_ptr<Weights> folder_;  // one of the two
  std::unique_ptr<checkpoint::CheckpointReader> reader_;
};

}  // namespace megascale::hugging_face
