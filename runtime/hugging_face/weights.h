// The weights of a Hugging Face folder under our names and in our shapes: read element by element,
// so that any layout can take its part, and nothing is kept in memory. Threads: one thread at a
// time. Blocking: storage.
//
//   ASSIGN_OR_RETURN(const auto weights, Weights::Open("/models/llama"));
//   weights->Read("model.layers.0.attn.qkv.weight", box, 0, absl::MakeSpan(floats));
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/checkpoint/format/box.h"
#include "runtime/hugging_face/config/config.h"
#include "runtime/hugging_face/folder.h"
#include "runtime/hugging_face/tensor_map.h"

namespace megascale::hugging_face {

inline constexpr size_t kConfigBytesMax = 1 << 20;

// Reads FOLDER/config.json. Errors: as ParseConfig; NotFound - there is none.
absl::StatusOr<Config> ReadConfig(const std::string& folder);

class Weights {
 public:
  // Opens a folder. A tied model whose output matrix is in the folder with other numbers than the
  // embedding matrix is an untied one, as in `transformers`; equal matrices are one, so both are
  // read whole. Errors: those of ReadConfig and Folder::Open; InvalidArgument - a tensor is
  // missing, has another shape or a type that holds no weights, or does not belong to the model;
  // the error names it. DataLoss - as Read.
  static absl::StatusOr<std::unique_ptr<Weights>> Open(const std::string& folder);

  // With the folder's own warnings.
  const Config& config() const { return config_; }
  // In the order of the forward pass.
  const std::vector<TensorMap>& tensors() const { return maps_; }
  // Returns the type in which all of the tensor's elements are stored without loss: that of its
  // parts, or "F32" if they differ.
  std::string DtypeOf(const TensorMap& tensor) const;
  // Returns the type in which a part is stored.
  const std::string& DtypeOf(const Part& part) const;

  // Overwrites `out` with the stored bytes of elements [begin, begin + count) of a box of a tensor.
  // count = out.size() / bytes of DtypeOf(tensor). Errors: those of Folder::Read; DataLoss - a
  // number is infinite or not a number: names the tensor and the index.
  absl::Status ReadStored(const TensorMap& tensor, const checkpoint::Box& box, int64_t begin,
                          absl::Span<char> out) const;
  // As ReadStored, but finds the tensor by its name and returns its exact values as numbers.
  // Errors: also NotFound - no such tensor; InvalidArgument - the box does not fit it.
  absl::Status Read(absl::string_view name, const checkpoint::Box& box, int64_t begin,
                    absl::Span<float> out) const;
  absl::Status Read(absl::string_view name, const checkpoint::Box& box, int64_t begin,
                    absl::Span<double> out) const;

 private:
  Weights() = default;
  // Decides whether a tied model's output matrix is a tensor of its own, and where it is.
  absl::Status SettleHead();
  absl::StatusOr<bool> AreEqual(const StoredTensor& a, const StoredTensor& b) const;
  absl::Status CheckTensors();
  absl::Status CheckPart(const TensorMap& map, const Part& part, const StoredTensor& stored) const;
  absl::Status CheckFinite(const TensorMap& tensor, const Part& part, const checkpoint::Box& box,
                           absl::Span<const char> bytes) const;
  template <typename Number>
  absl::Status ReadNumbers(absl::string_view name, const checkpoint::Box& box, int64_t begin,
                           absl::Span<Number> out) const;
  // Reads a box of a tensor, whose elements all lie in `part`, as stored.
  absl::Status ReadPart(const TensorMap& tensor, const Part& part, const checkpoint::Box& box,
                        absl::Span<char> out) const;
  absl::Status ReadTransposed(const TensorMap& tensor, const Part& part, const checkpoint::Box& box,
                              absl::Span<char> out) const;

  Config config_;
  std::unique_ptr<Folder> folder_;
  std::vector<TensorMap> maps_;
  absl::flat_hash_map<std::string, size_t> index_of_name_;
};

}  // namespace megascale::hugging_face
