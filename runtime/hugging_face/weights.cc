#include "runtime/hugging_face/weights.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/checkpoint/format/safetensors.h"
#include "runtime/checkpoint/format/stored_numbers.h"
#include "runtime/hugging_face/limits.h"
#include "runtime/model/config.h"

namespace megascale::hugging_face {
namespace {

using checkpoint::Box;

bool HoldsWeights(absl::string_view dtype) {
  return dtype == "F32" || dtype == "BF16" || dtype == "F16";
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

int64_t BytesOf(absl::string_view dtype) { return *checkpoint::DtypeBytes(dtype); }

// The rows and columns of a box; a vector has one column.
struct Block {
  int64_t first_row, rows, first_col, cols;
};
Block BlockOf(const Box& box) {
  const bool is_matrix = box.shape.size() > 1;
  return {box.offset[0], box.shape[0], is_matrix ? box.offset[1] : 0, is_matrix ? box.shape[1] : 1};
}

}  // namespace

absl::StatusOr<Config> ReadConfig(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kConfigFile);
  const auto text = base::ReadFile(path, kConfigBytesMax);
  if (!text.ok()) return text.status();
  return ParseConfig(*text, path);
}

absl::StatusOr<std::unique_ptr<Weights>> Weights::Open(const std::string& folder) {
  std::unique_ptr<Weights> weights(new Weights);
  ASSIGN_OR_RETURN(weights->config_, ReadConfig(folder));
  const auto config = model::MakeModelConfig(weights->config_.model);
  if (!config.ok()) return base::Annotate(config.status(), folder);
  ASSIGN_OR_RETURN(weights->folder_, Folder::Open(folder));
  const size_t num_tensors = weights->folder_->tensors().size();
  if (static_cast<size_t>(config->num_layers) > num_tensors) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, ": has ", num_tensors, " tensors for ", config->num_layers,
                     " layers: expected several for each layer, as ", kConfigFile, " says"));
  }
  weights->maps_ = MapTensors(weights->config_.architecture, *config);
  for (size_t i = 0; i < weights->maps_.size(); ++i) {
    weights->index_of_name_[weights->maps_[i].name] = i;
  }
  RETURN_IF_ERROR(weights->CheckTensors());
  return weights;
}

absl::Status Weights::CheckTensors() const {
  std::set<std::string> used;
  const std::string& path = folder_->path();
  for (const TensorMap& map : maps_) {
    for (const Part& part : map.parts) {
      const StoredTensor* stored = folder_->Find(part.name);
      if (stored == nullptr) {
        return absl::InvalidArgumentError(absl::StrCat(path, ": has no tensor ", part.name,
                                                       ", which ", Name(config_.architecture),
                                                       " consists of"));
      }
      const std::vector<int64_t> shape = map.ShapeOf(part);
      if (stored->shape != shape) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ": ", part.name, " has the shape ", ShapeText(stored->shape),
                         ": expected ", ShapeText(shape), ", as ", kConfigFile, " says"));
      }
      if (!HoldsWeights(stored->dtype)) {
        return absl::InvalidArgumentError(absl::StrCat(
            path, ": ", part.name, " is stored as ", stored->dtype, ": expected F32, BF16 or F16"));
      }
      used.insert(stored->name);
    }
  }
  for (const auto& [name, tensor] : folder_->tensors()) {
    if (used.count(name) > 0 || IsIgnored(name, config_.model.tie_word_embeddings())) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": has a tensor ", base::Printable(name, kShownBytesMax), ", which is none of ",
        Name(config_.architecture), " with this ", kConfigFile));
  }
  return absl::OkStatus();
}

std::string Weights::DtypeOf(const TensorMap& tensor) const {
  const std::string& first = folder_->Find(tensor.parts[0].name)->dtype;
  const bool same = std::all_of(tensor.parts.begin(), tensor.parts.end(), [&](const Part& part) {
    return folder_->Find(part.name)->dtype == first;
  });
  return same ? first : "F32";
}

absl::Status Weights::ReadTransposed(const TensorMap& tensor, const Part& part, const Box& box,
                                     absl::Span<char> out) const {
  const StoredTensor& stored = *folder_->Find(part.name);
  const Block block = BlockOf(box);
  const auto size = static_cast<size_t>(BytesOf(stored.dtype));
  std::vector<char> column(static_cast<size_t>(block.rows) * size);
  for (int64_t c = 0; c < block.cols; ++c) {
    const int64_t first = (block.first_col + c) * part.rows + block.first_row - part.first_row;
    RETURN_IF_ERROR(
        folder_->Read(stored, first * static_cast<int64_t>(size), absl::MakeSpan(column)));
    for (size_t r = 0; r < static_cast<size_t>(block.rows); ++r) {
      const size_t to = r * static_cast<size_t>(block.cols) + static_cast<size_t>(c);
      std::memcpy(out.data() + to * size, column.data() + r * size, size);
    }
  }
  return absl::OkStatus();
}

absl::Status Weights::ReadPart(const TensorMap& tensor, const Part& part, const Box& box,
                               absl::Span<char> out) const {
  if (part.form == Form::kTransposed) return ReadTransposed(tensor, part, box, out);
  const StoredTensor& stored = *folder_->Find(part.name);
  const Block block = BlockOf(box);
  const int64_t size = BytesOf(stored.dtype);
  const bool whole_rows = block.cols == tensor.cols();
  for (int64_t r = 0; r < block.rows;) {
    const TensorMap::Run run = tensor.TheirRow(part, block.first_row + r);
    const int64_t rows = whole_rows ? std::min(run.count, block.rows - r) : 1;
    const int64_t first = run.row * tensor.cols() + block.first_col;
    RETURN_IF_ERROR(folder_->Read(stored, first * size,
                                  out.subspan(static_cast<size_t>(r * block.cols * size),
                                              static_cast<size_t>(rows * block.cols * size))));
    r += rows;
  }
  return absl::OkStatus();
}

absl::Status Weights::ReadStored(const TensorMap& tensor, const Box& box, int64_t begin,
                                 absl::Span<char> out) const {
  const std::string dtype = DtypeOf(tensor);
  const int64_t size = BytesOf(dtype);
  const int64_t count = static_cast<int64_t>(out.size()) / size;
  for (const Box& piece : checkpoint::BoxesOfRange(box, begin, count)) {
    for (const Part& part : tensor.parts) {
      Box rows = checkpoint::WholeBox(tensor.shape);
      rows.offset[0] = part.first_row;
      rows.shape[0] = part.rows;
      const auto wanted = checkpoint::Intersect(piece, rows);
      if (!wanted.has_value()) continue;
      const auto elements = static_cast<size_t>(*checkpoint::NumElements(wanted->shape));
      const size_t at = static_cast<size_t>(checkpoint::IndexWithin(box, wanted->offset) - begin);
      const absl::Span<char> to =
          out.subspan(at * static_cast<size_t>(size), elements * static_cast<size_t>(size));
      const std::string& stored = folder_->Find(part.name)->dtype;
      if (stored == dtype) {
        RETURN_IF_ERROR(ReadPart(tensor, part, *wanted, to));
        continue;
      }
      std::vector<char> narrow(elements * static_cast<size_t>(BytesOf(stored)));
      std::vector<float> wide(elements);
      RETURN_IF_ERROR(ReadPart(tensor, part, *wanted, absl::MakeSpan(narrow)));
      RETURN_IF_ERROR(checkpoint::ToNumbers(stored, narrow, absl::MakeSpan(wide)));
      RETURN_IF_ERROR(checkpoint::FromNumbers(dtype, wide, to));
    }
  }
  return absl::OkStatus();
}

template <typename Number>
absl::Status Weights::ReadNumbers(absl::string_view name, const Box& box, int64_t begin,
                                  absl::Span<Number> out) const {
  const auto found = index_of_name_.find(name);
  if (found == index_of_name_.end()) {
    return absl::NotFoundError(absl::StrCat(folder_->path(), ": has no tensor for ", name));
  }
  const TensorMap& tensor = maps_[found->second];
  RETURN_IF_ERROR(base::Annotate(checkpoint::CheckBox(box, tensor.shape),
                                 absl::StrCat(folder_->path(), ": ", name)));
  const std::string dtype = DtypeOf(tensor);
  std::vector<char> bytes;
  const auto count = static_cast<int64_t>(out.size());
  for (int64_t at = 0; at < count; at += kBlockElements) {
    const auto size = static_cast<size_t>(std::min(kBlockElements, count - at));
    bytes.resize(size * static_cast<size_t>(BytesOf(dtype)));
    RETURN_IF_ERROR(ReadStored(tensor, box, begin + at, absl::MakeSpan(bytes)));
    RETURN_IF_ERROR(
        checkpoint::ToNumbers(dtype, bytes, out.subspan(static_cast<size_t>(at), size)));
  }
  return absl::OkStatus();
}

absl::Status Weights::Read(absl::string_view name, const Box& box, int64_t begin,
                           absl::Span<float> out) const {
  return ReadNumbers(name, box, begin, out);
}

absl::Status Weights::Read(absl::string_view name, const Box& box, int64_t begin,
                           absl::Span<double> out) const {
  return ReadNumbers(name, box, begin, out);
}

}  // namespace megascale::hugging_face
