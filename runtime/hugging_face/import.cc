#include "runtime/hugging_face/import.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/checksum.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/format/message_json.h"
#include "runtime/checkpoint/format/safetensors.h"
#include "runtime/checkpoint/format/shard.h"
#include "runtime/checkpoint/writer.h"
#include "runtime/hugging_face/kept_files.h"
#include "runtime/hugging_face/limits.h"
#include "runtime/hugging_face/weights.h"

namespace megascale::hugging_face {
namespace {

using checkpoint::v1::TensorSlice;

// Weights are what a training has before its first step.
constexpr checkpoint::ShardMoment kMoment = {.attempt = 0, .step = 0, .next_sample = 0};

// A checkpoint keeps a tensor in one type, so an export could not give parts of several types back.
absl::Status CheckTypes(const Weights& weights, const std::string& folder) {
  for (const TensorMap& tensor : weights.tensors()) {
    const std::string& first = weights.DtypeOf(tensor.parts[0]);
    for (const Part& part : tensor.parts) {
      if (weights.DtypeOf(part) == first) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(folder, ": ", part.name, " is stored as ", weights.DtypeOf(part), ", ",
                       tensor.parts[0].name, " as ", first,
                       ": expected one type, since a checkpoint has them in one tensor; save the "
                       "model in one type"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<checkpoint::ShardLayout> LayOut(const Weights& weights) {
  std::vector<TensorSlice> slices;
  for (const TensorMap& tensor : weights.tensors()) {
    TensorSlice slice;
    slice.set_name(tensor.name);
    slice.set_dtype(weights.DtypeOf(tensor));
    slice.mutable_global_shape()->Add(tensor.shape.begin(), tensor.shape.end());
    ASSIGN_OR_RETURN(const int64_t elements, checkpoint::NumElements(tensor.shape));
    slice.set_flat_count(elements);
    slices.push_back(std::move(slice));
  }
  // No number may begin within a wider one.
  std::stable_sort(slices.begin(), slices.end(), [](const auto& a, const auto& b) {
    return *checkpoint::DtypeBytes(a.dtype()) > *checkpoint::DtypeBytes(b.dtype());
  });
  return checkpoint::ShardLayout::Create(/*rank=*/0, std::move(slices));
}

// A file that is written from its beginning to its end, and hashed.
class HashedFile {
 public:
  explicit HashedFile(std::string path) : path_(std::move(path)) {}

  absl::Status Create() {
    fd_ = base::UniqueFd(
        ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, S_IRUSR | S_IWUSR));
    return fd_.valid() ? absl::OkStatus()
                       : base::ErrnoStatus(errno, absl::StrCat("create ", path_));
  }
  absl::Status Append(absl::string_view bytes) {
    hash_.Update(bytes);
    return base::Annotate(base::WriteAll(fd_.get(), bytes), path_);
  }
  // Syncs the file; returns its SHA-256.
  absl::StatusOr<std::string> Finish() {
    if (::fsync(fd_.get()) != 0) return base::ErrnoStatus(errno, absl::StrCat("sync ", path_));
    return hash_.Finish();
  }

 private:
  const std::string path_;
  base::UniqueFd fd_;
  base::Sha256 hash_;
};

absl::Status WriteTensor(const Weights& weights, const TensorMap& tensor, HashedFile* file) {
  ASSIGN_OR_RETURN(const int64_t elements, checkpoint::NumElements(tensor.shape));
  ASSIGN_OR_RETURN(const int64_t size, checkpoint::DtypeBytes(weights.DtypeOf(tensor)));
  std::vector<char> block;
  for (int64_t at = 0; at < elements; at += kBlockElements) {
    const int64_t count = std::min(kBlockElements, elements - at);
    block.resize(static_cast<size_t>(count * size));
    RETURN_IF_ERROR(
        weights.ReadStored(tensor, checkpoint::WholeBox(tensor.shape), at, absl::MakeSpan(block)));
    RETURN_IF_ERROR(file->Append({block.data(), block.size()}));
  }
  return absl::OkStatus();
}

absl::Status WriteShard(const Weights& weights, const checkpoint::ShardLayout& layout,
                        const std::string& directory) {
  HashedFile file(absl::StrCat(directory, "/", checkpoint::ShardFileName(0)));
  RETURN_IF_ERROR(file.Create());
  RETURN_IF_ERROR(file.Append(layout.PaddedHeader(kMoment)));
  checkpoint::v1::ShardFile record;
  for (const TensorSlice& slice : layout.slices()) {
    const auto tensor =
        std::find_if(weights.tensors().begin(), weights.tensors().end(),
                     [&](const TensorMap& one) { return one.name == slice.name(); });
    RETURN_IF_ERROR(WriteTensor(weights, *tensor, &file));
    *record.add_slices() = slice;
  }
  ASSIGN_OR_RETURN(const std::string sha256, file.Finish());
  record.set_file(checkpoint::ShardFileName(0));
  record.set_size_bytes(layout.size_bytes());
  record.set_sha256(sha256);
  return base::WriteFileDurably(absl::StrCat(directory, "/", checkpoint::ShardRecordName(0)),
                                checkpoint::ToJson(record, checkpoint::JsonStyle::kOneLine));
}

}  // namespace

absl::StatusOr<Converted> Import(const std::string& folder, const std::string& directory) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Weights> weights, Weights::Open(folder));
  RETURN_IF_ERROR(CheckTypes(*weights, folder));
  RETURN_IF_ERROR(MakeEmptyFolder(directory));
  ASSIGN_OR_RETURN(const checkpoint::ShardLayout layout, LayOut(*weights));
  RETURN_IF_ERROR(WriteShard(*weights, layout, directory));
  Converted result{.num_tensors = static_cast<int64_t>(weights->tensors().size()),
                   .num_files = 1,
                   .size_bytes = layout.size_bytes(),
                   .warnings = weights->config().warnings};
  const std::string kept = KeptFolderOf(directory);
  RETURN_IF_ERROR(CopyKeptFiles(folder, kept));
  ASSIGN_OR_RETURN(const std::string config,
                   base::ReadFile(absl::StrCat(folder, "/", kConfigFile), kConfigBytesMax));
  RETURN_IF_ERROR(base::WriteFileDurably(absl::StrCat(kept, "/", kConfigFile), config));
  checkpoint::v1::Manifest manifest;
  manifest.set_kind(checkpoint::v1::CHECKPOINT_KIND_WEIGHTS);
  *manifest.mutable_spec()->mutable_model() = weights->config().model;
  RETURN_IF_ERROR(checkpoint::WriteManifest(directory, std::move(manifest)));
  return result;
}

}  // namespace megascale::hugging_face
